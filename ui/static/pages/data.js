// What a module holds: depots and PStates, and records that its functions did not manage.
import { action, ask, count, fill, h, many, moment, path, table } from "../dom.js";
import { parse, show } from "../json.js";
import { moduleHead } from "./shared.js";

const PAGE = 50;
const text = (key) => (typeof key === "string" ? key : show(key));

// What somebody typed: a JSON list of keys, each inside what the one before leads to; anything else is one key.
function keysOf(typed) {
  if (!typed) return [];
  try {
    const found = parse(typed);
    if (Array.isArray(found)) return found.map(text);
  } catch { /* it is a key */ }
  return [typed];
}
const typedFor = (keys) => (keys.length === 1 && keysOf(keys[0].trim())[0] === keys[0] ? keys[0] : keys.length ? show(keys) : "");

export function data(root, [name]) {
  moduleHead(root, name, "/data");
  const what = h("select", { "aria-label": "Depot or PState" });
  const task = h("input", { type: "number", min: 0, value: 0, style: "width: 5em" });
  const offset = h("input", { type: "number", min: 0, value: 0, style: "width: 9em" });
  const keys = h("input", { placeholder: "all of them" });
  const ofDepot = [h("label", {}, "Task ", task), h("label", {}, "From offset ", offset)];
  const ofPState = [h("label", {}, "Key, or a JSON list of keys ", keys)];
  const box = h("div", {});
  const more = h("p", { class: "inline" });
  const button = (label, work) => h("button", { type: "button", onclick: () => guarded(work) }, label);
  let asked = 0; // An answer to what nobody waits for any more is not shown.
  let inside = []; // Keys that lead to what is shown.

  const guarded = async (work) => {
    asked += 1;
    const mine = asked;
    try {
      await work();
    } catch (error) {
      if (mine !== asked) return;
      fill(box, h("p", { class: "error" }, error.message));
      more.replaceChildren();
    }
  };

  async function depot(object, start) {
    const mine = asked;
    const page = await ask(`/modules/${path(name)}/depots/${path(object)}/records?${new URLSearchParams({ task: task.value, offset: start, limit: PAGE })}`);
    if (mine !== asked) return;
    fill(box, h("p", { class: "soft" }, page.end > page.start ? `Task ${page.task} has offsets ${count(page.start)} to ${count(page.end)} (exclusive).` : `Task ${page.task} has no records; it has offsets from ${count(page.end)} on.`),
      page.records.length ? table([["offset", "number"], "time (UTC)", "record"], page.records.map((each) => [count(each.offset), moment(each.timestamp_ms), h("code", {}, show(each.value))])) : null);
    more.replaceChildren(...(start > page.start ? [button("First", () => depot(object, page.start))] : []),
      ...(page.next < page.end ? [button("Next page", () => depot(object, page.next)), button("Newest", () => depot(object, Math.max(page.start, page.end - PAGE)))] : []));
  }

  async function pstate(object, after) {
    const mine = asked;
    const query = new URLSearchParams({ limit: PAGE + (after === undefined ? 0 : 1) });
    for (const key of inside) query.append("key", key);
    if (after !== undefined) query.set("after", after);
    const page = await ask(`/modules/${path(name)}/pstates/${path(object)}?${query}`);
    if (mine !== asked) return;
    const { entries } = page;
    const into = (key) => h("button", { type: "button", class: "key", onclick: () => guarded(() => { inside = [...inside, text(key)]; keys.value = typedFor(inside); return pstate(object); }) }, h("code", {}, show(key)));
    const preview = ({ first, more }) => h("code", {}, `${first.map((each) => show(each)).join(", ")}${more ? (first.length ? ", …" : "…") : ""}`);
    const row = (each) => (each.inside ? [into(each.key), preview(each.inside)] : [h("code", {}, show(each.key)), h("code", {}, show(each.value))]);
    fill(box, h("p", { class: "soft" }, "Type ", h("code", {}, page.type), inside.length ? [", inside ", h("code", {}, inside.map((key) => show(key)).join(" / "))] : null),
      entries.length ? table(["key", "value"], entries.map(row))
        : page.value === null ? h("p", { class: "soft" }, "Nothing is there.") : h("pre", {}, show(page.value, 2)));
    const last = entries.at(-1);
    more.replaceChildren(...(after === undefined ? [] : [button("First", () => pstate(object))]), ...(page.more && last ? [button("Next page", () => pstate(object, text(last.key)))] : []));
  }

  const look = () => guarded(() => {
    const [kind, object] = what.value.split(":");
    for (const each of ofDepot) each.hidden = kind !== "depot";
    for (const each of ofPState) each.hidden = kind !== "pstate";
    if (kind === "depot") return depot(object, Number(offset.value));
    inside = keysOf(keys.value.trim());
    return pstate(object);
  });
  const form = h("form", { class: "inline", onsubmit: (event) => { event.preventDefault(); look(); } }, what, ofDepot, ofPState, h("button", {}, "Show"));
  what.addEventListener("change", () => { keys.value = ""; look(); });
  root.append(form, box, more);
  let known = false;
  return async () => {
    if (known) return;
    const view = await ask(`/modules/${path(name)}`);
    what.replaceChildren(...view.depots.map((each) => h("option", { value: `depot:${each.name}` }, `depot ${each.name}`)), ...view.pstates.map((each) => h("option", { value: `pstate:${each.name}` }, `PState ${each.name}`)));
    known = true;
    if (what.options.length) await look();
    else fill(box, h("p", { class: "soft" }, "It has neither depots nor PStates."));
  };
}

export function failures(root, [name]) {
  moduleHead(root, name, "/failures");
  const box = h("div", {});
  const parked = h("div", {});
  const send = async (body) => {
    const done = await ask(`/modules/${path(name)}/failures`, { method: "POST", body });
    return `${many(done.records, "record")} ${body.again ? "will be tried again" : "forgotten"}`;
  };
  const warning = "Forget all parked records? Their depot still has them, but nobody will process them.";
  root.append(box, h("h2", {}, "Parked records"), parked, h("p", {}, action("Try all again", () => send({ again: true })), " ", action("Forget all", () => send({ again: false }), warning)));
  const one = (each) => {
    const record = { topology: each.topology, depot: each.depot, task: each.task, offset: each.offset };
    return h("p", {}, action("Try again", () => send({ again: true, record })), " ", action("Forget", () => send({ again: false, record })));
  };
  return async () => {
    const told = await ask(`/modules/${path(name)}/failures`);
    const by = new Map();
    for (const each of told.streams) {
      const sum = by.get(each.topology) || { lag: 0, retrying: 0 };
      by.set(each.topology, { lag: sum.lag + each.lag, retrying: sum.retrying + each.retrying });
    }
    fill(box, told.problems.length ? h("ul", { class: "problems" }, told.problems.map((problem) => h("li", {}, problem))) : null,
      h("h2", {}, "Streams"), by.size ? table(["topology", ["records to process", "number"], ["records tried again", "number"]], [...by].map(([topology, sum]) => [topology, count(sum.lag), count(sum.retrying)])) : h("p", { class: "soft" }, "No stream runs."));
    fill(parked, told.more ? h("p", { class: "stale" }, `These are ${count(told.parked.length)} of them, and there are more. What is done to all is done to those as well.`) : null,
      told.parked.length ? told.parked.map((each) => h("details", {}, h("summary", {}, `${each.topology}: record ${count(each.offset)} of ${each.depot} on task ${each.task}, after ${many(each.attempts, "attempt")}, ${moment(each.at_ms)} UTC: ${each.error}`),
        h("pre", {}, each.record, "\n\n", each.traceback || each.error), one(each))) : h("p", { class: "soft" }, "None."));
  };
}
