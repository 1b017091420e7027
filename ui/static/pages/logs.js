// Logs of daemons, page by page.
import { ask, fill, h, path } from "../dom.js";

const LEVELS = ["debug", "info", "warning", "error", "critical"];

function log(root, title, route) {
  const level = h("select", { "aria-label": "Least level" }, LEVELS.map((each) => h("option", { value: each, selected: each === "info" }, each)));
  const box = h("div", {});
  const at = h("p", {});
  let before = null; // The newest page, unless somebody went further back.
  let asked = 0; // Of two answers the one to the later question counts.
  const show = async () => {
    asked += 1;
    const mine = asked;
    const page = await ask(`${route}?${new URLSearchParams({ level: level.value, ...(before === null ? {} : { before }) })}`);
    if (mine !== asked) return;
    fill(box, page.lines.length ? h("ol", { class: "log" }, page.lines.map((line) => h("li", { class: line.level || "plain" },
      h("time", {}, line.at.replace("T", " ").slice(0, 23)), h("span", { class: "level" }, line.level || ""), h("span", {}, h("strong", {}, line.event), " ", line.text))))
      : h("p", { class: "soft" }, "No such lines on this page of the log."));
    fill(at, page.earlier === null ? "This is where it begins. " : h("button", { type: "button", id: "earlier", "data-before": page.earlier }, "Earlier"), " ",
      before === null ? "" : h("button", { type: "button", id: "newest" }, "Newest"));
  };
  const shown = () => show().catch((error) => fill(box, h("p", { class: "error" }, error.message)));
  at.addEventListener("click", (event) => {
    if (event.target.id === "earlier") before = event.target.dataset.before;
    else if (event.target.id === "newest") before = null;
    else return;
    shown();
  });
  level.addEventListener("change", () => { before = null; shown(); });
  root.append(h("h1", {}, title), h("p", {}, h("label", {}, "Level ", level), " and above, oldest first"), box, at);
  return async () => { if (before === null) await show(); };
}

export const workerLog = (root, [name]) => log(root, `Log of worker ${name}`, `/workers/${path(name)}/log`);
export const nodeLog = (root, [name]) => log(root, `Log of the supervisor of ${name}`, `/nodes/${path(name)}/log`);
export const conductorLog = (root) => log(root, "Log of the conductor", "/conductor/log");
