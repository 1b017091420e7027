// What several pages show: states, problems, the head of a module, catchup.
import { bytes, count, groupLink, h, moduleLink, nodeLink, path, table } from "../dom.js";

export const MARKS = { good: "✔", degraded: "▲", bad: "✖", unknown: "?" };
const GOOD = ["running"];
const BAD = ["stalled", "offline", "no lease", "electing", "leader silent"];
const kindOf = (name) => (GOOD.includes(name) ? "good" : BAD.includes(name) ? "bad" : "degraded");

export const state = (name) => h("span", { class: `state ${kindOf(name)}` }, `${MARKS[kindOf(name)]} ${name}`);
// A module as its replicas tell, whatever a conductor told of it last; `view` is that of the cluster.
export function moduleState(view, module) {
  const told = view.serving.find((each) => each.module === module);
  return told ? h("span", { class: `state ${told.health}` }, `${MARKS[told.health]} ${told.state}`) : h("span", { class: "state unknown" }, `${MARKS.unknown} not known`);
}
export const down = (words) => h("span", { class: "state bad" }, `${MARKS.bad} ${words}`);
// Worst first; what is equally bad stays in its order.
export const worstFirst = (statuses) => {
  const rank = (each) => ["bad", "degraded", "good"].indexOf(kindOf(each.state === "running" && each.osr.length ? "behind" : each.state));
  return [...statuses].sort((one, other) => rank(one) - rank(other));
};

export function showHealth(health, sentence) {
  const line = document.getElementById("health");
  line.dataset.health = health;
  line.dataset.mark = MARKS[health];
  if (line.textContent !== sentence) line.textContent = sentence;
}

function whereTo(problem) {
  if (problem.topology) return h("a", { href: `#/modules/${path(problem.module)}/failures` }, "look at them");
  if (problem.groups.length === 1) return groupLink(problem.module, problem.groups[0]);
  if (problem.groups.length) return h("a", { href: `#/modules/${path(problem.module)}/groups` }, `${count(problem.groups.length)} groups`);
  return problem.module ? moduleLink(problem.module) : problem.node ? nodeLink(problem.node) : null;
}

export const problemsList = (problems) => h("ul", { class: "problems" }, problems.map((problem) =>
  h("li", { class: problem.health }, `${MARKS[problem.health]} `, problem.sentence, " ", whereTo(problem))));

const TABS = [["", "Overview"], ["/groups", "Task groups"], ["/leadership", "Leadership"], ["/charts", "Charts"], ["/failures", "Failures"], ["/data", "Data"], ["/options", "Options"], ["/operations", "Operations"]];

export function moduleHead(root, module, tab) {
  root.append(h("h1", {}, "Module ", module), h("div", { class: "tabs", role: "navigation", "aria-label": "Of the module" },
    TABS.map(([suffix, label]) => h("a", { href: `#/modules/${path(module)}${suffix}`, "aria-current": suffix === tab ? "page" : null }, label))));
}

// `end` is where the leader's log ends.
export function catchup(replica, end) {
  const view = replica.catchup;
  if (!view && replica.role === "near" && replica.lag !== null)
    return h("span", {}, h("progress", { max: end || 1, value: replica.end, "aria-label": "catchup" }), ` from the log, ${count(replica.lag)} entries behind`);
  if (!view) return "–";
  const known = view.tasks.filter((task) => task.size_bytes !== null);
  const size = known.reduce((sum, task) => sum + task.size_bytes, 0);
  const left = known.reduce((sum, task) => sum + task.left_bytes, 0);
  return h("span", {}, h("progress", { max: size || 1, value: size - left, "aria-label": "catchup" }), ` round ${view.round}, ${bytes(left)} left at ${bytes(view.bytes_per_second)}/s`, view.waits ? ` · ${view.waits}` : "");
}

export function nodesTable(nodes) {
  return table(["node", "supervisor", ["workers running", "number"], ["groups led", "number"], "leadership", "labels"],
    nodes.map((node) => [nodeLink(node.node), node.address || down("down"), `${node.running} of ${node.workers}`,
      count(node.leaders), node.leadership_allowed ? "allowed" : "disallowed", Object.entries(node.labels).map(([name, value]) => `${name}=${value}`).join(" ") || "–"]));
}
