// One function for each page: it builds what stays, and returns how to refresh what changes.
import { charts } from "./charts.js";
import { action, ask, bytes, count, duration, fill, groupLink, h, moduleLink, moment, nodeLink, path, table, workerLink } from "./dom.js";

const MARKS = { good: "✔", degraded: "▲", bad: "✖", unknown: "?" };
const GOOD = ["running"];
const BAD = ["stalled", "offline", "no lease", "electing", "leader silent"];
const state = (name) => h("span", { class: `state ${GOOD.includes(name) ? "good" : BAD.includes(name) ? "bad" : "degraded"}` },
  `${GOOD.includes(name) ? MARKS.good : BAD.includes(name) ? MARKS.bad : MARKS.degraded} ${name}`);

export function showHealth(view) {
  const line = document.getElementById("health");
  line.dataset.health = view.health;
  line.dataset.mark = MARKS[view.health];
  line.textContent = view.sentence;
}

function problemsList(problems) {
  if (!problems.length) return null;
  return [h("h2", {}, "Problems"), h("ul", { class: "problems" }, problems.map((problem) =>
    h("li", { class: problem.health }, `${MARKS[problem.health]} `, problem.sentence, " ",
      problem.group !== null ? groupLink(problem.module, problem.group) : problem.module ? moduleLink(problem.module) : problem.node ? nodeLink(problem.node) : null)))];
}

export function cluster(root) {
  const box = h("div", {});
  root.append(h("h1", {}, "Cluster"), box);
  return async () => {
    const view = await ask("/cluster");
    showHealth(view);
    fill(box, problemsList(view.problems),
      h("h2", {}, "Modules"),
      view.modules.length ? table(
        ["module", "state", ["tasks", "number"], ["task threads", "number"], ["replication factor", "number"], ["groups led", "number"], ["processes", "number"]],
        view.modules.map((module) => [moduleLink(module.module), state(module.state), count(module.tasks), count(module.threads), count(module.replication_factor),
          `${module.led} of ${module.groups}`, `${module.processes.filter((each) => each.address).length} of ${module.processes.length}`]))
        : h("p", { class: "soft" }, "No module is launched; launch one with ", h("code", {}, "stretto deploy launch"), "."),
      h("h2", {}, "Nodes"), nodesTable(view.nodes),
      h("p", { class: "soft" }, view.conductor ? [`The active conductor is at ${view.conductor}. `, h("a", { href: "#/conductor/log" }, "Its log")] : "No conductor is active."));
  };
}

function nodesTable(nodes) {
  return table(["node", "supervisor", ["workers running", "number"], ["groups led", "number"], "leadership", "labels"],
    nodes.map((node) => [nodeLink(node.node), node.address || h("span", { class: "state bad" }, `${MARKS.bad} down`), `${node.running} of ${node.workers}`,
      count(node.leaders), node.leadership_allowed ? "allowed" : "disallowed", Object.entries(node.labels).map(([name, value]) => `${name}=${value}`).join(" ") || "–"]));
}

const TABS = [["", "Overview"], ["/groups", "Task groups"], ["/leadership", "Leadership"], ["/charts", "Charts"], ["/failures", "Failures"], ["/data", "Data"], ["/options", "Options"], ["/operations", "Operations"]];

function moduleHead(root, module, tab) {
  root.append(h("h1", {}, "Module ", module), h("div", { class: "tabs", role: "navigation", "aria-label": "Of the module" },
    TABS.map(([suffix, label]) => h("a", { href: `#/modules/${path(module)}${suffix}`, "aria-current": suffix === tab ? "page" : null }, label))));
}

export function module(root, [name]) {
  moduleHead(root, name, "");
  const box = h("div", {});
  const drawn = charts({ module: name });
  root.append(box, h("h2", {}, "Replication"), drawn.element);
  return async () => {
    const view = await ask(`/modules/${path(name)}`);
    fill(box, view.problems.length ? h("ul", { class: "problems" }, view.problems.map((problem) => h("li", {}, problem))) : null,
      h("dl", {},
        h("dt", {}, "State"), h("dd", {}, state(view.state)),
        h("dt", {}, "Parallelism"), h("dd", {}, `${count(view.tasks)} tasks, ${count(view.threads)} task threads, ${count(view.workers)} workers, replication factor ${view.replication_factor}`),
        h("dt", {}, "Groups led"), h("dd", {}, `${view.led} of ${view.groups}`),
        h("dt", {}, "Topologies"), h("dd", {}, (view.topologies || []).map((each) => h("div", {}, `${each.name} (${each.kind})`)), (view.topologies || []).length ? null : "none"),
        h("dt", {}, "Depots"), h("dd", {}, view.depots.map((each) => each.name).join(", ") || "none"),
        h("dt", {}, "PStates"), h("dd", {}, view.pstates.map((each) => each.name).join(", ") || "none"),
        h("dt", {}, "Queries"), h("dd", {}, view.queries.map((each) => `${each.name}(${each.parameters.join(", ")})`).join(", ") || "none"),
        h("dt", {}, "Artifact"), h("dd", {}, h("code", {}, view.artifact))),
      h("h2", {}, "Processes"),
      table(["worker", "node", "address"], view.processes.map((each) => [workerLink(each.worker), nodeLink(each.node), each.address || h("span", { class: "state bad" }, `${MARKS.bad} not registered`)])));
    await drawn.refresh();
  };
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
      told.map((each) => [groupLink(name, each.group[2]), state(each.state), each.leader ? workerLink(each.leader) : "–", count(each.epoch),
        `${each.isr.length} (min-ISR ${each.min_isr ?? "?"})`, each.osr.length ? `${each.osr.length} behind` : "–",
        count(each.replicas.find((replica) => replica.worker === each.leader)?.end), count(Math.max(0, ...each.replicas.map((replica) => replica.lag || 0))), duration(each.since_ms)])));
  };
}

const WEIGHTY = ["leads", "isr", "stalled", "recovered_from_stall", "leader_gone", "stopped", "session_expired", "installed_state", "truncates", "steps_down"];

export function group(root, [name, number]) {
  root.append(h("h1", {}, moduleLink(name), ` · group ${number}`));
  const box = h("div", {});
  const target = h("select", { "aria-label": "Hand over to" });
  const hand = h("form", { class: "inline" }, "Hand leadership over to ", target, action("Resign", async () => {
    await ask(`/modules/${path(name)}/groups/${number}/resign`, { method: "POST", body: { to: target.value } });
    return "asked";
  }));
  const story = h("div", {});
  const drawn = charts({ module: name, group: number });
  root.append(box, h("h2", {}, "Leadership"), hand, h("h2", {}, "Recent story"), story, h("h2", {}, "Replication"), drawn.element);
  return async () => {
    const view = await ask(`/modules/${path(name)}/groups/${number}`);
    fill(box, h("dl", {},
      h("dt", {}, "State"), h("dd", {}, state(view.state), view.why ? ` · ${view.why}` : "", ` · for ${duration(view.since_ms)}`),
      h("dt", {}, "Leader"), h("dd", {}, view.leader ? workerLink(view.leader) : "none"),
      h("dt", {}, "Epoch"), h("dd", {}, count(view.epoch)),
      h("dt", {}, "ISR"), h("dd", {}, `${view.isr.length} of ${view.replicas.length} replicas; min-ISR ${view.min_isr ?? "unknown"}`),
      h("dt", {}, "Tasks"), h("dd", {}, view.tasks.join(", "))),
      h("h2", {}, "Replicas"),
      table(["worker", "node", "role", "ISR", ["log start", "number"], ["applied below", "number"], ["log end", "number"], ["lag (entries)", "number"], "catchup", "remarks"],
        view.replicas.map((each) => [workerLink(each.worker), each.node ? nodeLink(each.node) : "–", each.role, each.in_isr ? "● in" : "○ out",
          count(each.start), count(each.apply), count(each.end), count(each.lag), catchup(each.catchup), each.why || ""])));
    const others = view.isr.filter((worker) => worker !== view.leader);
    if (document.activeElement !== target && [...target.options].map((each) => each.value).join() !== others.join())
      target.replaceChildren(...others.map((worker) => h("option", { value: worker }, worker)));
    const lines = await ask(`/modules/${path(name)}/groups/${number}/story`);
    fill(story, lines.length ? h("ol", { class: "story" }, lines.reverse().map((line) => h("li", { class: WEIGHTY.includes(line.event) ? "weighty" : null },
      h("time", { datetime: new Date(line.at_ms).toISOString() }, moment(line.at_ms)), h("span", {}, line.worker),
      h("span", {}, line.event.replaceAll("_", " "), " ", h("span", { class: "soft" }, Object.entries(line.fields).map(([key, value]) => `${key} ${Array.isArray(value) ? value.join(", ") : value}`).join(" · ")))))) : h("p", { class: "soft" }, "Nobody remembers anything."));
    await drawn.refresh();
  };
}

function catchup(view) {
  if (!view) return "–";
  const known = view.tasks.filter((task) => task.size_bytes !== null);
  const size = known.reduce((sum, task) => sum + task.size_bytes, 0);
  const left = known.reduce((sum, task) => sum + task.left_bytes, 0);
  return h("span", {}, h("progress", { max: size || 1, value: size - left, "aria-label": "catchup" }), ` round ${view.round}, ${bytes(left)} left at ${bytes(view.bytes_per_second)}/s`, view.waits ? ` · ${view.waits}` : "");
}

export function leadership(root, [name]) {
  moduleHead(root, name, "/leadership");
  const map = h("div", {});
  const plan = h("div", {});
  root.append(h("p", { class: "legend" },
    h("span", {}, h("span", { class: "cell leader" }, "★ 0"), " leads"), h("span", {}, h("span", { class: "cell" }, "● 0"), " in the ISR"),
    h("span", {}, h("span", { class: "cell osr" }, "○ 0"), " outside the ISR"), h("span", {}, h("span", { class: "cell gone" }, "✖ 0"), " not running")), map, plan,
    h("p", {}, action("Balance now", async () => { const done = await ask(`/modules/${path(name)}/leadership/balance`, { method: "POST" }); return `${done.switches.length} switches asked for`; })));
  return async () => {
    const [told, balance, view] = await Promise.all([ask(`/modules/${path(name)}/groups`), ask(`/modules/${path(name)}/leadership`), ask(`/modules/${path(name)}`)]);
    const nodes = [...new Set([...balance.nodes.map((each) => each.node), ...view.processes.map((each) => each.node)])].sort();
    fill(map, h("div", { class: "map" }, nodes.map((node) => {
      const held = told.flatMap((each) => each.replicas.filter((replica) => replica.node === node).map((replica) => [each, replica]));
      const leaders = balance.nodes.find((each) => each.node === node);
      return h("section", {}, h("h3", {}, nodeLink(node)), h("p", { class: "soft" }, leaders ? `leads ${leaders.leaders}, ideal ${leaders.ideal.toFixed(1)}${leaders.allowed ? "" : ", disallowed"}` : "leads none"),
        h("div", { class: "cells" }, held.map(([each, replica]) => cell(name, each, replica))));
    })));
    fill(plan, h("p", {}, `Imbalance ${balance.imbalance.toFixed(2)} (balanced from ${balance.threshold.toFixed(2)} on). `,
      balance.switches.length ? "A balancing would switch:" : "A balancing would change nothing."),
      balance.switches.length ? table(["group", "from", "to"], balance.switches.map((each) => [groupLink(name, each.group[2]), each.leader, each.target])) : null);
  };
}

function cell(module, status, replica) {
  const number = status.group[2];
  const leads = status.leader === replica.worker && replica.role === "leader";
  const gone = ["absent", "silent", "stopped"].includes(replica.role);
  const [kind, mark, words] = leads ? ["leader", "★", "leads"] : gone ? ["gone", "✖", replica.role] : replica.in_isr ? ["", "●", "in the ISR"] : ["osr", "○", "outside the ISR"];
  return h("a", { class: `cell ${kind}`, href: `#/modules/${path(module)}/groups/${number}`, title: `group ${number}: ${replica.worker} ${words}`, "aria-label": `group ${number}, ${words}` }, `${mark} ${number}`);
}

export function node(root, [name]) {
  root.append(h("h1", {}, "Node ", name));
  const box = h("div", {});
  const actions = h("p", {}, action("Disallow leadership", () => ask(`/nodes/${path(name)}/leadership`, { method: "PUT", body: { allowed: false } }), `Move all leaders away from ${name}?`), " ",
    action("Allow leadership", () => ask(`/nodes/${path(name)}/leadership`, { method: "PUT", body: { allowed: true } })));
  root.append(box, h("p", {}, h("a", { href: `#/nodes/${path(name)}/log` }, "Log of its supervisor")), h("h2", {}, "Leadership"), actions);
  return async () => {
    const view = await ask("/cluster");
    showHealth(view);
    const here = view.nodes.filter((each) => each.node === name);
    const workers = view.modules.flatMap((each) => each.processes.filter((process) => process.node === name).map((process) => [each, process]));
    fill(box, here.length ? nodesTable(here) : h("p", { class: "error" }, `There is no node ${name}.`), h("h2", {}, "Workers"),
      table(["worker", "module", "address"], workers.map(([each, process]) => [workerLink(process.worker), moduleLink(each.module), process.address || h("span", { class: "state bad" }, `${MARKS.bad} not registered`)])));
  };
}

export function worker(root, [name]) {
  root.append(h("h1", {}, "Worker ", name));
  const box = h("div", {});
  const drawn = charts({ worker: name });
  root.append(box, h("p", {}, h("a", { href: `#/workers/${path(name)}/log` }, "Its log")), h("h2", {}, "Replication"), drawn.element);
  return async () => {
    const view = await ask("/cluster");
    showHealth(view);
    const found = view.modules.flatMap((each) => each.processes.filter((process) => process.worker === name).map((process) => [each, process]))[0];
    if (!found) {
      fill(box, h("p", { class: "error" }, `There is no worker ${name}.`));
    } else {
      const told = await ask(`/modules/${path(found[0].module)}/groups`);
      const held = told.flatMap((each) => each.replicas.filter((replica) => replica.worker === name).map((replica) => [each, replica]));
      fill(box, h("dl", {}, h("dt", {}, "Module"), h("dd", {}, moduleLink(found[0].module)), h("dt", {}, "Node"), h("dd", {}, nodeLink(found[1].node)), h("dt", {}, "Address"), h("dd", {}, found[1].address || "not registered")),
        h("h2", {}, "Replicas"), table(["group", "role", "ISR", ["applied below", "number"], ["log end", "number"], ["lag (entries)", "number"], "catchup", "remarks"],
          held.map(([each, replica]) => [groupLink(found[0].module, each.group[2]), replica.role, replica.in_isr ? "● in" : "○ out", count(replica.apply), count(replica.end), count(replica.lag), catchup(replica.catchup), replica.why || ""])));
    }
    await drawn.refresh();
  };
}

export function data(root, [name]) {
  moduleHead(root, name, "/data");
  const what = h("select", { "aria-label": "Depot or PState" });
  const keys = h("input", { placeholder: "key / inner key", "aria-label": "Keys, separated by /" });
  const task = h("input", { type: "number", min: 0, value: 0, "aria-label": "Task", style: "width: 5em" });
  const offset = h("input", { type: "number", min: 0, value: 0, "aria-label": "From offset", style: "width: 9em" });
  const box = h("div", {});
  const more = h("p", {});
  let last = null;
  const look = async (start) => {
    const [kind, object] = what.value.split(":");
    keys.hidden = kind !== "pstate";
    task.hidden = offset.hidden = kind !== "depot";
    try {
      if (kind === "depot") {
        const page = await ask(`/modules/${path(name)}/depots/${path(object)}/records?${new URLSearchParams({ task: task.value, offset: start ?? offset.value, limit: 50 })}`);
        fill(box, h("p", { class: "soft" }, `Task ${page.task} has offsets ${count(page.start)} to ${count(page.end)} (exclusive).`),
          table([["offset", "number"], "time (UTC)", "record"], page.records.map((each) => [count(each.offset), moment(each.timestamp_ms), h("code", {}, JSON.stringify(each.value))])));
        more.replaceChildren(page.next < page.end ? h("button", { type: "button", onclick: () => look(page.next) }, "Next page") : "");
      } else {
        const query = new URLSearchParams({ limit: 50 });
        for (const key of keys.value.split("/").map((each) => each.trim()).filter(Boolean)) query.append("key", key);
        if (start !== undefined) query.set("start", start);
        const page = await ask(`/modules/${path(name)}/pstates/${path(object)}?${query}`);
        last = page.entries.at(-1);
        fill(box, h("p", { class: "soft" }, page.type), page.entries.length ? table(["key", "value"], page.entries.map((each) => [h("code", {}, JSON.stringify(each.key)), h("code", {}, JSON.stringify(each.value))]))
          : h("pre", {}, page.value === null ? "nothing" : JSON.stringify(page.value, null, 2)));
        more.replaceChildren(page.more && last ? h("button", { type: "button", onclick: () => look(typeof last.key === "string" ? last.key : JSON.stringify(last.key)) }, "Next page") : "");
      }
    } catch (error) {
      fill(box, h("p", { class: "error" }, error.message));
    }
  };
  const form = h("form", { class: "inline", onsubmit: (event) => { event.preventDefault(); look(); } }, what, task, offset, keys, h("button", {}, "Show"));
  what.addEventListener("change", () => look());
  root.append(form, box, more);
  let known = false;
  return async () => {
    if (known) return;
    const view = await ask(`/modules/${path(name)}`);
    what.replaceChildren(...view.depots.map((each) => h("option", { value: `depot:${each.name}` }, `depot ${each.name}`)), ...view.pstates.map((each) => h("option", { value: `pstate:${each.name}` }, `PState ${each.name}`)));
    known = true;
    if (what.options.length) await look();
  };
}

export function failures(root, [name]) {
  moduleHead(root, name, "/failures");
  const box = h("div", {});
  const settle = (again) => async () => {
    const done = await ask(`/modules/${path(name)}/failures`, { method: "POST", body: { again } });
    return `${count(done.records)} records ${again ? "will be tried again" : "forgotten"}`;
  };
  root.append(box, h("p", {}, action("Try all again", settle(true)), " ", action("Forget all", settle(false), "Forget all parked records? Their depot still has them, but nobody will process them.")));
  return async () => {
    const told = await ask(`/modules/${path(name)}/failures`);
    const by = new Map();
    for (const each of told.streams) {
      const sum = by.get(each.topology) || { lag: 0, retrying: 0 };
      by.set(each.topology, { lag: sum.lag + each.lag, retrying: sum.retrying + each.retrying });
    }
    fill(box, told.problems.length ? h("ul", { class: "problems" }, told.problems.map((problem) => h("li", {}, problem))) : null,
      h("h2", {}, "Streams"), by.size ? table(["topology", ["records to process", "number"], ["records tried again", "number"]], [...by].map(([topology, sum]) => [topology, count(sum.lag), count(sum.retrying)])) : h("p", { class: "soft" }, "No stream runs."),
      h("h2", {}, "Parked records"), told.parked.length ? told.parked.map((each) => h("details", {}, h("summary", {}, `${each.topology}: record ${count(each.offset)} of ${each.depot} on task ${each.task}, after ${each.attempts} attempts, ${moment(each.at_ms)} UTC: ${each.error}`),
        h("pre", {}, each.record, "\n\n", each.traceback || each.error))) : h("p", { class: "soft" }, "None."));
  };
}

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

const LEVELS = ["debug", "info", "warning", "error", "critical"];

function log(root, title, route) {
  const level = h("select", { "aria-label": "Least level" }, LEVELS.map((each) => h("option", { value: each, selected: each === "info" }, each)));
  const box = h("div", {});
  const at = h("p", {});
  let before = null; // The newest page, unless somebody went further back.
  const show = async () => {
    const page = await ask(`${route}?${new URLSearchParams({ level: level.value, ...(before === null ? {} : { before }) })}`);
    fill(box, page.lines.length ? h("ol", { class: "log" }, page.lines.map((line) => h("li", { class: line.level || "plain" },
      h("time", {}, line.at.replace("T", " ").slice(0, 23)), h("span", { class: "level" }, line.level || ""), h("span", {}, h("strong", {}, line.event), " ", line.text))))
      : h("p", { class: "soft" }, "No such lines on this page of the log."));
    fill(at, page.earlier === null ? "This is where it begins. " : h("button", { type: "button", id: "earlier", "data-before": page.earlier }, "Earlier"), " ",
      before === null ? "" : h("button", { type: "button", id: "newest" }, "Newest"));
  };
  at.addEventListener("click", (event) => {
    if (event.target.id === "earlier") before = event.target.dataset.before;
    else if (event.target.id === "newest") before = null;
    else return;
    show();
  });
  level.addEventListener("change", () => { before = null; show(); });
  root.append(h("h1", {}, title), h("p", {}, h("label", {}, "Level ", level), " and above, oldest first"), box, at);
  return async () => { if (before === null) await show(); };
}

export const workerLog = (root, [name]) => log(root, `Log of worker ${name}`, `/workers/${path(name)}/log`);
export const nodeLog = (root, [name]) => log(root, `Log of the supervisor of ${name}`, `/nodes/${path(name)}/log`);
export const conductorLog = (root) => log(root, "Log of the conductor", "/conductor/log");

export function operations(root, [name]) {
  if (name) moduleHead(root, name, "/operations");
  else root.append(h("h1", {}, "Operations"));
  const box = h("div", {});
  root.append(box);
  return async () => {
    const told = await ask(`/operations?${new URLSearchParams(name ? { module: name } : {})}`);
    fill(box, told.length ? table(["time (UTC)", "module", "what", "outcome"], told.reverse().map((each) => [moment(each.at_ms), each.module ? moduleLink(each.module) : "–", each.what, each.outcome])) : h("p", { class: "soft" }, "Nothing was done yet."));
  };
}
