// Dynamic options, of the cluster, of a module, or of one of its objects.
import { action, ask, h, offered, path } from "../dom.js";
import { moduleHead } from "./shared.js";

const KINDS = [["depot", "depots", "depot"], ["topology", "topologies", "topology"], ["pstate", "pstates", "PState"]];

export function options(root, [name]) {
  if (name) moduleHead(root, name, "/options");
  else root.append(h("h1", {}, "Options of the cluster"));
  const box = h("div", {});
  const of = h("select", { "aria-label": "Options of" });
  if (name) root.append(h("p", {}, h("label", {}, "Options of ", of)));
  root.append(box);
  const rows = new Map();
  // What is chosen: "", or a kind of object and its name.
  const level = () => {
    const [kind, ...object] = of.value.split(":");
    return name ? `?${new URLSearchParams({ module: name, ...(kind ? { [kind]: object.join(":") } : {}) })}` : "";
  };
  const change = async (option, input) => {
    await ask(`/options/${path(option)}${level()}`, { method: "PUT", body: { value: input.value } });
    input.blur();
    return "set";
  };
  const offer = async () => {
    const view = await ask(`/modules/${path(name)}`);
    offered(of, [["", `module ${name}`], ...KINDS.flatMap(([kind, field, words]) => view[field].map((each) => [`${kind}:${each.name}`, `${words} ${each.name}`]))]);
  };
  const show = async () => {
    const at = level();
    const told = await ask(`/options${at}`);
    if (at !== level()) return; // Something else was chosen meanwhile.
    if (!rows.size) {
      for (const each of told) {
        const input = h("input", { id: `option-${each.name}`, "aria-label": each.name, size: 14 });
        const origin = h("span", { class: "soft" });
        rows.set(each.name, { input, origin, element: h("tr", {}, h("td", {}, h("strong", {}, each.name), h("div", { class: "soft" }, each.doc)),
          h("td", {}, h("form", { class: "inline", onsubmit: (event) => event.preventDefault() }, input, each.unit ? h("span", {}, each.unit) : null, action("Set", () => change(each.name, input)),
            action("Unset", async () => { await ask(`/options/${path(each.name)}${level()}`, { method: "DELETE" }); return "unset"; }))), h("td", {}, origin)) });
      }
      box.replaceChildren(rows.size ? h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, ["option", "value", "set at"].map((each) => h("th", { scope: "col" }, each)))), h("tbody", {}, [...rows.values()].map((row) => row.element))))
        : h("p", { class: "soft" }, "It has none of its own."));
    }
    for (const each of told) {
      const row = rows.get(each.name);
      if (document.activeElement !== row.input) row.input.value = each.value ?? "";
      row.input.placeholder = each.value === null ? "unset" : "";
      const unit = each.unit && typeof each.default === "number" ? ` ${each.unit}` : "";
      row.origin.textContent = `${each.origin}; default ${each.default ?? "unset"}${unit}`;
    }
  };
  const showOther = async () => {
    rows.clear();
    box.replaceChildren();
    try { await show(); } catch (error) { box.replaceChildren(h("p", { class: "error" }, error.message)); }
  };
  of.addEventListener("change", showOther);
  return async () => {
    if (name) await offer();
    await show();
  };
}
