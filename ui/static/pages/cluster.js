// The cluster, a node, a worker, and what was done.
import { charts } from "../charts.js";
import { action, ask, count, fill, groupLink, h, moduleLink, moment, nodeLink, path, table, workerLink } from "../dom.js";
import { catchup, down, moduleHead, moduleState, nodesTable, problemsList } from "./shared.js";

const OPERATIONS = 100;

export function cluster(root) {
  const box = h("div", {});
  root.append(h("h1", {}, "Cluster"), box);
  return async () => {
    const view = await ask("/cluster");
    const isOld = view.planned_at_ms !== view.at_ms;
    const unknown = h("p", { class: "soft" }, "Nobody has told: it takes a conductor.");
    const none = h("p", { class: "soft" }, "No module is launched; launch one with ", h("code", {}, "stretto deploy launch"), ".");
    fill(box, view.problems.length ? [h("h2", {}, "Problems"), problemsList(view.problems)] : null,
      isOld && view.planned_at_ms !== null ? h("p", { class: "stale" }, `Nodes and modules are shown as a conductor told of them at ${moment(view.planned_at_ms)} UTC.`) : null,
      h("h2", {}, "Modules"),
      view.modules.length ? table(
        ["module", "state", ["tasks", "number"], ["task threads", "number"], ["replication factor", "number"], ["groups led", "number"], ["processes", "number"]],
        view.modules.map((module) => [moduleLink(module.module), moduleState(view, module.module), count(module.tasks), count(module.threads), count(module.replication_factor),
          `${module.led} of ${module.groups}`, `${module.processes.filter((each) => each.address).length} of ${module.processes.length}`]))
        : view.planned_at_ms === null ? unknown : none,
      h("h2", {}, "Nodes"), view.planned_at_ms === null ? unknown.cloneNode(true) : nodesTable(view.nodes),
      h("p", { class: "soft" }, view.conductor ? [`The active conductor is at ${view.conductor}. `, h("a", { href: "#/conductor/log" }, "Its log")] : "No conductor is active."));
  };
}

export function node(root, [name]) {
  root.append(h("h1", {}, "Node ", name));
  const box = h("div", {});
  const actions = h("p", {}, action("Disallow leadership", () => ask(`/nodes/${path(name)}/leadership`, { method: "PUT", body: { allowed: false } }), `Move all leaders away from ${name}?`), " ",
    action("Allow leadership", () => ask(`/nodes/${path(name)}/leadership`, { method: "PUT", body: { allowed: true } })));
  root.append(box, h("p", {}, h("a", { href: `#/nodes/${path(name)}/log` }, "Log of its supervisor")), h("h2", {}, "Leadership"), actions);
  return async () => {
    const view = await ask("/cluster");
    const here = view.nodes.filter((each) => each.node === name);
    const workers = view.modules.flatMap((each) => each.processes.filter((process) => process.node === name).map((process) => [each, process]));
    fill(box, here.length ? nodesTable(here) : h("p", { class: "error" }, `There is no node ${name}.`), h("h2", {}, "Workers"),
      table(["worker", "module", "address"], workers.map(([each, process]) => [workerLink(process.worker), moduleLink(each.module), process.address || down("not registered")])));
  };
}

export function worker(root, [name]) {
  root.append(h("h1", {}, "Worker ", name));
  const box = h("div", {});
  const drawn = charts({ worker: name });
  root.append(box, h("p", {}, h("a", { href: `#/workers/${path(name)}/log` }, "Its log")), h("h2", {}, "Replication"), drawn.element);
  return async () => {
    const view = await ask("/cluster");
    const found = view.modules.flatMap((each) => each.processes.filter((process) => process.worker === name).map((process) => [each, process]))[0];
    if (!found) {
      fill(box, h("p", { class: "error" }, `There is no worker ${name}.`));
    } else {
      const told = await ask(`/modules/${path(found[0].module)}/groups`);
      const held = told.flatMap((each) => each.replicas.filter((replica) => replica.worker === name).map((replica) => [each, replica]));
      fill(box, h("dl", {}, h("dt", {}, "Module"), h("dd", {}, moduleLink(found[0].module)), h("dt", {}, "Node"), h("dd", {}, nodeLink(found[1].node)), h("dt", {}, "Address"), h("dd", {}, found[1].address || down("not registered"))),
        h("h2", {}, "Replicas"), table(["group", "role", "ISR", ["applied below", "number"], ["log end", "number"], ["lag (entries)", "number"], "catchup", "remarks"],
          held.map(([each, replica]) => [groupLink(found[0].module, each.group[2]), replica.role, replica.in_isr ? "● in" : "○ out", count(replica.apply), count(replica.end), count(replica.lag), catchup(replica, each.replicas.find((other) => other.worker === each.leader)?.end), replica.why || ""])));
    }
    await drawn.refresh();
  };
}

export function operations(root, [name]) {
  if (name) moduleHead(root, name, "/operations");
  else root.append(h("h1", {}, "Operations"));
  const box = h("div", {});
  const at = h("p", {});
  root.append(box, at);
  let before = null; // The newest page, unless somebody went further back.
  const go = (to) => () => { before = to; show().catch((error) => fill(box, h("p", { class: "error" }, error.message))); };
  const show = async () => {
    const mine = before;
    const told = await ask(`/operations?${new URLSearchParams({ limit: OPERATIONS, ...(name ? { module: name } : {}), ...(mine === null ? {} : { before_ms: mine }) })}`);
    if (mine !== before) return;
    fill(at, told.length === OPERATIONS ? h("button", { type: "button", id: "earlier", onclick: go(told[0].at_ms) }, "Earlier") : null, " ",
      mine === null ? null : h("button", { type: "button", id: "newest", onclick: go(null) }, "Newest"));
    fill(box, told.length ? table(["time (UTC)", "module", "what", "outcome"], told.reverse().map((each) => [moment(each.at_ms), each.module ? moduleLink(each.module) : "–", each.what, each.outcome]))
      : h("p", { class: "soft" }, mine === null ? "Nothing was done yet." : "Nothing was done before."));
  };
  return async () => { if (before === null) await show(); };
}
