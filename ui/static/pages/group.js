// One task group: replicas, epochs, story, charts.
import { charts } from "../charts.js";
import { action, ask, count, duration, fill, h, moduleLink, moment, nodeLink, offered, path, table, workerLink } from "../dom.js";
import { catchup, state } from "./shared.js";

const EPOCHS_MAX = 20;
const WEIGHTY = ["leads", "isr", "stalled", "recovered_from_stall", "leader_gone", "stopped", "session_expired", "installed_state", "truncates", "steps_down"];

export function group(root, [name, number]) {
  root.append(h("h1", {}, moduleLink(name), ` · group ${number}`));
  const box = h("div", {});
  const target = h("select", { "aria-label": "Hand over to" });
  const hand = h("form", { class: "inline" }, "Hand leadership over to ", target, action("Resign", async () => {
    await ask(`/modules/${path(name)}/groups/${number}/resign`, { method: "POST", body: { to: target.value } });
    return "asked";
  }));
  const alone = h("p", { class: "soft", hidden: true }, "No other member of the ISR could take over.");
  const epochs = h("div", {});
  const story = h("div", {});
  const drawn = charts({ module: name, group: number });
  root.append(box, h("h2", {}, "Leadership"), hand, alone, h("h2", {}, "Epochs"), epochs, h("h2", {}, "Recent story ", h("span", { class: "unit" }, "UTC, newest first")), story, h("h2", {}, "Replication"), drawn.element);
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
          count(each.start), count(each.apply), count(each.end), count(each.lag), catchup(each, view.replicas.find((replica) => replica.worker === view.leader)?.end), each.why || ""])));
    const others = view.isr.filter((worker) => worker !== view.leader);
    offered(target, others.map((worker) => [worker, worker]));
    hand.hidden = !others.length;
    alone.hidden = others.length > 0;
    const [past, lines] = await Promise.all([ask(`/modules/${path(name)}/groups/${number}/epochs`), ask(`/modules/${path(name)}/groups/${number}/story`)]);
    fill(epochs, past.length ? table([["epoch", "number"], "leader", "elected at (UTC)", ["first offset", "number"], ["entries", "number"]],
      past.reverse().slice(0, EPOCHS_MAX).map((each) => [count(each.epoch), each.leader ? workerLink(each.leader) : "not remembered", each.at_ms === null ? "not remembered" : moment(each.at_ms),
        count(each.start), each.end === null ? "it goes on" : count(each.end - each.start)]))
      : h("p", { class: "soft" }, "No replica that answers has entries of any."),
      past.length > EPOCHS_MAX ? h("p", { class: "soft" }, `and ${count(past.length - EPOCHS_MAX)} earlier ones`) : null);
    fill(story, lines.length ? h("ol", { class: "story" }, lines.reverse().map((line) => h("li", { class: WEIGHTY.includes(line.event) ? "weighty" : null },
      h("time", { datetime: new Date(line.at_ms).toISOString() }, moment(line.at_ms)), h("span", {}, line.worker),
      h("span", {}, line.event.replaceAll("_", " "), " ", h("span", { class: "soft" }, Object.entries(line.fields).map(([key, value]) => `${key} ${Array.isArray(value) ? value.join(", ") : value ?? "none"}`).join(" · ")))))) : h("p", { class: "soft" }, "Nobody remembers anything."));
    await drawn.refresh();
  };
}
