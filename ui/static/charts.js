// The six charts of replication, and a few beside them.
import { ask, bytes, count, h } from "./dom.js";

const COLOURS = ["#2563eb", "#d97706", "#059669", "#9333ea", "#dc2626", "#0891b2", "#65a30d", "#be185d"];
const DASHES = [[], [6, 3], [2, 3], [8, 3, 2, 3]];

// As long as workers may be silent before their gauges are forgotten.
const FRESH_MS = 35000;

const milliseconds = (value) => (value >= 1000 ? `${(value / 1000).toFixed(1)} s` : `${+value.toPrecision(3)} ms`);

const CHARTS = [
  {
    name: "Replog entries", unit: "entries", format: count,
    dropdowns: [
      { label: "Of", values: { leaders: "leaders", isr_followers: "ISR followers" } },
      { label: "Show", values: { size: "size", unapplied: "unapplied" } },
    ],
    lines: (told, [of, show]) => ({ average: told.replog_entries[of][show].average, maximum: told.replog_entries[of][show].max }),
  },
  { name: "Replicate duration", unit: "from creation to application", format: milliseconds, kinds: "replicate_duration", lines: durations("replicate_duration") },
  { name: "Replicate throughput", unit: "entries per second", format: count, lines: (told) => told.replicate_throughput },
  { name: "Replicate failures", unit: "appends per point, by reason", format: count, kinds: "replicate_failures", lines: (told, [kind]) => told.replicate_failures[kind] || {} },
  { name: "Apply duration", unit: "of a transaction", format: milliseconds, kinds: "apply_duration", lines: durations("apply_duration") },
  { name: "ISR count", unit: "members, of the worst group", format: count, zero: true, lines: (told) => ({ "ISR members": told.isr, "min-ISR": told.min_isr }) },
  { name: "Replicated bytes", unit: "bytes per second", format: bytes, lines: (told) => told.replicate_bytes },
  { name: "Task thread load", unit: "share of time, the busiest worker", format: (value) => `${(value * 100).toFixed(1)} %`, lines: (told) => ({ busiest: told.busy }) },
  { name: "Topology lag", unit: "records visible and not processed", format: count, lines: (told) => told.topology_lag },
  { name: "Topology throughput", unit: "per second", format: count, dropdowns: [{ label: "Of", values: { records: "records", batches: "batches" } }], lines: (told, [of]) => told[`topology_${of}`] },
  { name: "Function time", unit: "of a call", format: milliseconds, kinds: "function_duration", of: "Function", all: "all functions", lines: durations("function_duration") },
  { name: "Failing records", unit: "tried again or parked", format: count, lines: (told) => told.topology_failures },
  { name: "Lease left", unit: "of the leader with the least", format: milliseconds, zero: true, lines: (told) => ({ "lease left": told.lease_left }) },
  { name: "Catchup", unit: "bytes of the round still to come", format: bytes, lines: (told) => ({ left: told.catchup_left }) },
  { name: "Catchup lag", unit: "entries that replicas outside the ISR lack", format: count, lines: (told) => ({ lacking: told.catchup_lag }) },
  { name: "Transitions", unit: "per point", format: count, lines: (told) => told.events },
];

function durations(field) {
  return (told, [kind]) => {
    const found = told[field][kind] || told[field].all;
    return found ? { median: found.p50, "99th percentile": found.p99, maximum: found.max } : {};
  };
}

// UTC, as fine as the axis is.
const time = (seconds, step) => {
  const iso = new Date(seconds * 1000).toISOString();
  return step >= 86400 ? iso.slice(5, 10) : step >= 60 ? iso.slice(11, 16) : iso.slice(11, 19);
};

// Points that have no neighbour, of which no line would be seen.
const isSparse = (line) => line.some((value, index) => value !== null && (line[index - 1] ?? null) === null && (line[index + 1] ?? null) === null);

// Of what is shown: the only one that has to follow the window and the theme.
let drawn = [];
window.addEventListener("resize", () => drawn.forEach((chart) => chart.fit()));
window.addEventListener("themechange", () => drawn.forEach((chart) => chart.redraw()));

class Chart {
  constructor(kind) {
    this.kind = kind;
    this.plot = null;
    this.names = "";
    this.box = h("div", {});
    this.kindChoice = kind.kinds ? h("select", { "aria-label": `${kind.of || "Kind of entry"}: ${kind.name}` }, h("option", { value: "all" }, kind.all || "all kinds")) : null;
    this.choices = (kind.dropdowns || []).map((dropdown) =>
      h("select", { "aria-label": `${dropdown.label}: ${kind.name}` }, Object.entries(dropdown.values).map(([value, label]) => h("option", { value }, label))));
    if (this.kindChoice) this.choices.push(this.kindChoice);
    for (const choice of this.choices) choice.addEventListener("change", () => this.draw());
    this.element = h("section", { class: "chart" },
      h("header", {}, h("h3", {}, kind.name, " ", h("span", { class: "unit" }, kind.unit)), this.choices), this.box);
  }

  show(told, asked) {
    this.told = told;
    this.asked = asked;
    if (this.kindChoice) {
      const kinds = Object.keys(told[this.kind.kinds]).filter((kind) => kind !== "all");
      const known = [...this.kindChoice.options].map((option) => option.value);
      for (const kind of kinds) if (!known.includes(kind)) this.kindChoice.append(h("option", { value: kind }, kind));
    }
    this.draw();
  }

  draw() {
    if (!this.told) return;
    const lines = this.kind.lines(this.told, this.choices.map((choice) => choice.value));
    const names = Object.keys(lines).filter((name) => lines[name].some((value) => value !== null));
    if (!names.length) {
      this.plot?.destroy();
      this.plot = null;
      this.names = "";
      this.box.replaceChildren(h("p", { class: "none" }, this.kind.name === "Replicate failures" ? "no failures" : "nothing measured yet"));
      return;
    }
    const data = [this.told.start_ms.map((ms) => ms / 1000), ...names.map((name) => lines[name])];
    const key = [...names, ...names.filter((name) => data[0].length < 40 || isSparse(lines[name])), data[0].length < 40].join("|");
    if (this.plot && this.names === key) {
      this.plot.setData(data);
      return;
    }
    this.plot?.destroy();
    this.box.replaceChildren();
    this.names = key;
    const ink = getComputedStyle(document.documentElement).getPropertyValue("--soft");
    const grid = { stroke: getComputedStyle(document.documentElement).getPropertyValue("--line"), width: 1 };
    const format = this.kind.format;
    this.plot = new uPlot({
      width: Math.max(240, this.box.clientWidth), height: 200, padding: [null, 32, null, null],
      tzDate: (seconds) => uPlot.tzDate(new Date(seconds * 1000), "Etc/UTC"),
      scales: { x: { range: () => this.window() }, y: { range: (_, low, high) => [this.kind.zero ? 0 : Math.min(0, low), high > 0 ? high * 1.1 : 1] } },
      axes: [{ stroke: ink, grid, space: 80, values: (_, splits, __, ___, step) => splits.map((seconds) => time(seconds, step)) }, { stroke: ink, grid, size: 70, values: (_, splits) => splits.map((value) => format(value)) }],
      series: [{ value: (_, seconds) => (seconds ? `${new Date(seconds * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC` : "latest") }, ...names.map((name, index) => ({
        label: name, stroke: COLOURS[index % COLOURS.length], width: 2, dash: DASHES[index % DASHES.length],
        points: { show: data[0].length < 40 || isSparse(lines[name]) },
        // Where the pointer is; else the latest, unless that was long ago.
        value: (plot, value, series, index) => {
          const shown = index === null ? this.latest(plot.data[series]) : value;
          return shown === null || shown === undefined ? "–" : format(shown);
        },
      }))],
    }, data, this.box);
  }

  // The newest value of a line, unless it is older than what is told while all is well.
  latest(line) {
    const index = line.findLastIndex((each) => each !== null);
    const age = this.asked.end_ms - this.told.start_ms[index];
    return index >= 0 && age <= Math.max(FRESH_MS, 2 * this.told.step_ms) ? line[index] : null;
  }

  // The whole time that was asked for, so that what is missing is seen; a gap at its end as well.
  window() {
    const end = Math.max(this.told.start_ms.at(-1) || 0, this.asked.end_ms - 2 * this.told.step_ms);
    const start = Math.max(this.asked.end_ms - this.asked.minutes * 60000, this.told.start_ms[0] - this.told.step_ms);
    return [start / 1000, end / 1000];
  }

  fit() {
    this.plot?.setSize({ width: Math.max(240, this.box.clientWidth), height: 200 });
  }

  redraw() {
    this.names = "";
    this.draw();
  }
}

// Charts of a module, of a worker or of a group: `wanted` is the query.
export function charts(wanted) {
  const all = CHARTS.map((kind) => new Chart(kind));
  const element = h("div", { class: "charts" }, all.map((chart) => chart.element));
  drawn = all;
  return {
    element,
    async refresh() {
      const minutes = document.getElementById("minutes").value;
      const told = await ask(`/charts?${new URLSearchParams({ ...wanted, minutes })}`);
      all.forEach((chart) => chart.show(told, { minutes: Number(minutes), end_ms: told.at_ms }));
    },
  };
}
