// Dynamic options, of the cluster or of a module.
import { action, ask, h, path } from "../dom.js";
import { moduleHead } from "./shared.js";

export function options(root, [name]) {
  if (name) moduleHead(root, name, "/options");
  else root.append(h("h1", {}, "Options of the cluster"));
  const box = h("div", {});
  root.append(box);
  const level = name ? `?${new URLSearchParams({ module: name })}` : "";
  const rows = new Map();
  const change = async (option, input) => {
    await ask(`/options/${path(option)}${level}`, { method: "PUT", body: { value: input.value } });
    input.blur();
    return "set";
  };
  return async () => {
    const told = await ask(`/options${level}`);
    if (!rows.size) {
      for (const each of told) {
        const input = h("input", { id: `option-${each.name}`, "aria-label": each.name, size: 14 });
        const origin = h("span", { class: "soft" });
        rows.set(each.name, { input, origin, element: h("tr", {}, h("td", {}, h("strong", {}, each.name), h("div", { class: "soft" }, each.doc)),
          h("td", {}, h("form", { class: "inline", onsubmit: (event) => event.preventDefault() }, input, each.unit ? h("span", {}, each.unit) : null, action("Set", () => change(each.name, input)),
            action("Unset", async () => { await ask(`/options/${path(each.name)}${level}`, { method: "DELETE" }); return "unset"; }))), h("td", {}, origin)) });
      }
      box.replaceChildren(h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["option", "value", "set at"].map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, [...rows.values()].map((row) => row.element)))));
    }
    for (const each of told) {
      const row = rows.get(each.name);
      if (document.activeElement !== row.input) row.input.value = each.value ?? "";
      row.input.placeholder = each.value === null ? "unset" : "";
      row.origin.textContent = `${each.origin}; default ${each.default ?? "unset"}`;
    }
  };
}
