// A module: overview, task groups, leadership map, charts.
import { charts } from "../charts.js";
import { action, all, ask, count, duration, fill, groupLink, h, many, nodeLink, offered, path, table, workerLink } from "../dom.js";
import { down, moduleHead, moduleState, state, worstFirst } from "./shared.js";

const percent = (share) => `${(share * 100).toFixed(0)} %`;

export function module(root, [name]) {
  moduleHead(root, name, "");
  const box = h("div", {});
  const drawn = charts({ module: name });
  root.append(box, h("h2", {}, "Replication"), drawn.element);
  const overview = async () => {
    const [view, cluster] = await Promise.all([ask(`/modules/${path(name)}`), ask("/cluster")]);
    fill(box, view.problems.length ? h("ul", { class: "problems" }, view.problems.map((problem) => h("li", {}, problem))) : null,
      h("dl", {},
        h("dt", {}, "State"), h("dd", {}, moduleState(cluster, name)),
        h("dt", {}, "Parallelism"), h("dd", {}, `${many(view.tasks, "task")}, ${many(view.threads, "task thread")}, ${many(view.workers, "worker")}, replication factor ${view.replication_factor}`),
        h("dt", {}, "Groups led"), h("dd", {}, `${view.led} of ${view.groups}`),
        h("dt", {}, "Topologies"), h("dd", {}, view.topologies.map((each) => h("div", {}, `${each.name} (${each.kind} of ${each.depots.join(", ")}${each.pstates.length ? `, writes ${each.pstates.join(", ")}` : ""})`)), view.topologies.length ? null : "none"),
        h("dt", {}, "Depots"), h("dd", {}, view.depots.map((each) => each.name).join(", ") || "none"),
        h("dt", {}, "PStates"), h("dd", {}, view.pstates.map((each) => each.name).join(", ") || "none"),
        h("dt", {}, "Queries"), h("dd", {}, view.queries.map((each) => `${each.name}(${each.parameters.join(", ")})`).join(", ") || "none"),
        h("dt", {}, "Artifact"), h("dd", {}, h("code", {}, view.artifact))),
      h("h2", {}, "Processes"),
      table(["worker", "node", "address"], view.processes.map((each) => [workerLink(each.worker), nodeLink(each.node), each.address || down("not registered")])));
  };
  return () => all(overview(), drawn.refresh());
}

export function moduleCharts(root, [name]) {
  moduleHead(root, name, "/charts");
  const drawn = charts({ module: name });
  root.append(drawn.element);
  return () => drawn.refresh();
}

export function groups(root, [name]) {
  moduleHead(root, name, "/groups");
  const box = h("div", {});
  root.append(box);
  return async () => {
    const told = await ask(`/modules/${path(name)}/groups`);
    fill(box, table(["group", "state", "leader", ["epoch", "number"], "ISR", "OSR", ["end offset", "number"], ["largest lag (entries)", "number"], "in this state for"],
      worstFirst(told).map((each) => [groupLink(name, each.group[2]), state(each.state), each.leader ? workerLink(each.leader) : "–", count(each.epoch),
        `${each.isr.length} (min-ISR ${each.min_isr ?? "?"})`, each.osr.length ? `${each.osr.length} behind` : "–",
        count(each.replicas.find((replica) => replica.worker === each.leader)?.end), count(Math.max(0, ...each.replicas.map((replica) => replica.lag || 0))), duration(each.since_ms)])));
  };
}

export function leadership(root, [name]) {
  moduleHead(root, name, "/leadership");
  const map = h("div", {});
  const plan = h("div", {});
  const group = h("select", { "aria-label": "Group to hand over" });
  const target = h("select", { "aria-label": "Hand over to" });
  const hand = h("form", { class: "inline" }, "Hand ", group, " over to ", target, action("Resign", async () => {
    if (!target.value) throw new Error("no other member of its ISR could lead it");
    await ask(`/modules/${path(name)}/groups/${group.value}/resign`, { method: "POST", body: { to: target.value } });
    return `group ${group.value} was asked to go to ${target.value}`;
  }));
  let statuses = [];
  const offer = () => {
    offered(group, statuses.map((each) => [each.group[2], `group ${each.group[2]}`]));
    const chosen = statuses.find((each) => String(each.group[2]) === group.value);
    const placed = (worker) => chosen.replicas.find((each) => each.worker === worker)?.node;
    offered(target, chosen ? chosen.isr.filter((worker) => worker !== chosen.leader).map((worker) => [worker, `${worker} on ${placed(worker) || "?"}`]) : []);
  };
  group.addEventListener("change", () => { target.replaceChildren(); offer(); });
  root.append(h("p", { class: "legend" },
    h("span", {}, h("span", { class: "cell leader" }, "★ 0"), " leads"), h("span", {}, h("span", { class: "cell" }, "● 0"), " in the ISR"),
    h("span", {}, h("span", { class: "cell osr" }, "○ 0"), " outside the ISR"), h("span", {}, h("span", { class: "cell gone" }, "✖ 0"), " not running")), map, plan,
    h("p", {}, action("Balance now", async () => { const done = await ask(`/modules/${path(name)}/leadership/balance`, { method: "POST" }); return done.switches.length ? `${many(done.switches.length, "switch", "es")} asked for` : "it is balanced already"; })), hand);
  return async () => {
    // Replicas tell of themselves also while no conductor tells of the balance.
    const [groups, leadership] = await Promise.allSettled([ask(`/modules/${path(name)}/groups`), ask(`/modules/${path(name)}/leadership`)]);
    if (groups.reason) throw groups.reason;
    const [told, balance] = [groups.value, leadership.value];
    statuses = told;
    offer();
    const at = new Map(told.flatMap((each) => each.replicas.map((replica) => [replica.worker, replica.node])));
    const placed = (worker) => [workerLink(worker), " on ", at.get(worker) ? nodeLink(at.get(worker)) : "?"];
    const nodes = [...new Set([...(balance?.nodes || []).map((each) => each.node), ...at.values()])].filter(Boolean).sort();
    fill(map, h("div", { class: "map" }, nodes.map((node) => {
      const held = told.flatMap((each) => each.replicas.filter((replica) => replica.node === node).map((replica) => [each, replica]));
      const leaders = balance?.nodes.find((each) => each.node === node);
      return h("section", {}, h("h3", {}, nodeLink(node)), h("p", { class: "soft" }, leaders ? `leads ${many(leaders.leaders, "group")}, ideal ${leaders.ideal.toFixed(1)} groups${leaders.allowed ? "" : ", disallowed"}` : balance ? "leads no group" : ""),
        h("div", { class: "cells" }, held.map(([each, replica]) => cell(name, each, replica))));
    })));
    if (!balance) {
      fill(plan, h("p", { class: "stale" }, "How it would be balanced is not known now."));
      throw leadership.reason;
    }
    fill(plan, h("p", {}, `Imbalance ${percent(balance.imbalance)} of the ideal share; it is balanced by itself from ${percent(balance.threshold)} on. `,
      balance.switches.length ? "A balancing would switch:" : "A balancing would change nothing."),
      balance.switches.length ? table(["group", "from", "to"], balance.switches.map((each) => [groupLink(name, each.group[2]), placed(each.leader), placed(each.target)])) : null);
  };
}

function cell(module, status, replica) {
  const number = status.group[2];
  const leads = status.leader === replica.worker && replica.role === "leader";
  const gone = ["absent", "silent", "stopped"].includes(replica.role);
  const [kind, mark, words] = leads ? ["leader", "★", "leads"] : gone ? ["gone", "✖", replica.role] : replica.in_isr ? ["", "●", "in the ISR"] : ["osr", "○", "outside the ISR"];
  return h("a", { class: `cell ${kind}`, href: `#/modules/${path(module)}/groups/${number}`, title: `group ${number}: ${replica.worker} ${words}`, "aria-label": `group ${number}, ${words}` }, `${mark} ${number}`);
}
