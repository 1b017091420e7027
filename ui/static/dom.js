// Small tools: elements, text for numbers, requests.
import { parse } from "./json.js";

export function h(tag, attributes, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return element;
}

// Replaces what is shown only if it differs, so that nobody loses focus, selection or scroll for nothing. What
// somebody opened stays open: a <details> is known by its summary.
export function fill(container, ...children) {
  const next = h("div", {}, ...children);
  if (container.dataset.shown === next.innerHTML) return;
  const active = document.activeElement;
  if (container.contains(active) && active.closest("form")) return; // somebody is typing here
  const refocus = container.contains(active) ? likeness(active) : null;
  const opened = new Set([...container.querySelectorAll("details[open] > summary")].map((each) => each.textContent));
  container.dataset.shown = next.innerHTML;
  for (const each of next.querySelectorAll("details > summary")) each.parentElement.open = opened.has(each.textContent);
  container.replaceChildren(...next.childNodes);
  if (refocus) refocus(container)?.focus();
}

// How to find again what had the focus: by where it leads, by its name, or by its words in the same <details>.
function likeness(active) {
  const key = active.getAttribute("href") || active.id;
  if (key) return (container) => container.querySelector(`[href="${CSS.escape(key)}"], #${CSS.escape(key)}`);
  const summary = (details) => details?.querySelector("summary")?.textContent;
  const [within, tag, words] = [summary(active.closest("details")), active.tagName, active.textContent];
  return (container) => {
    const found = [...container.querySelectorAll("details")].find((each) => within && summary(each) === within);
    return [...(found?.querySelectorAll(tag) || [])].find((each) => each.textContent === words);
  };
}

export function table(columns, rows) {
  const heads = columns.map((column) => {
    const [name, kind] = [].concat(column);
    return h("th", { class: kind, scope: "col" }, name);
  });
  const body = rows.map((row) =>
    h("tr", {}, row.map((cell, index) => h("td", { class: [].concat(columns[index])[1] }, cell))));
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, heads)), h("tbody", {}, body)));
}

const counts = new Intl.NumberFormat("en");
export const count = (value) => (value === null || value === undefined ? "–" : counts.format(value));

export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let unit = 0;
  while (value >= 1000 && unit < units.length - 1) { value /= 1000; unit += 1; }
  return `${unit ? value.toFixed(1) : +value.toFixed(1)} ${units[unit]}`;
}

export function duration(ms) {
  if (ms === null || ms === undefined) return "–";
  if (ms < 1000) return `${ms} ms`;
  const seconds = Math.floor(ms / 1000);
  if (seconds < 60) return `${seconds} s`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ${seconds % 60} s`;
  const hours = Math.floor(seconds / 3600);
  return hours < 48 ? `${hours} h ${Math.floor((seconds % 3600) / 60)} min` : `${Math.floor(hours / 24)} days`;
}

export const many = (number, what, plural = "s") => `${count(number)} ${what}${number === 1 ? "" : plural}`;

// UTC, as everything that stretto logs.
export const moment = (ms) => new Date(ms).toISOString().replace("T", " ").slice(0, 23);

export async function ask(path, options = {}) {
  const headers = { accept: "application/json" };
  const token = sessionStorage.getItem("token");
  if (token) headers.authorization = `Bearer ${token}`;
  if (options.body !== undefined) headers["content-type"] = "application/json";
  const response = await fetch(`/api/v1${path}`, {
    method: options.method || "GET",
    headers,
    body: options.body === undefined ? undefined : JSON.stringify(options.body),
  });
  const text = await response.text();
  if (response.ok) return response.status === 204 ? null : parse(text);
  let problem = {};
  try { problem = JSON.parse(text); } catch { /* no body */ }
  throw new Error(problem.detail || problem.title || `the server answered ${response.status}`);
}

// What does not depend on one another: if one fails, the others are shown all the same.
export async function all(...works) {
  const failed = (await Promise.allSettled(works)).find((each) => each.status === "rejected");
  if (failed) throw failed.reason;
}

// The choices of a <select>: changed only if they differ, and never under somebody's hands.
export function offered(select, choices) {
  const told = JSON.stringify(choices);
  if (document.activeElement === select && select.options.length || select.dataset.offered === told && select.options.length) return;
  const chosen = select.value;
  select.dataset.offered = told;
  select.replaceChildren(...choices.map(([value, label]) => h("option", { value }, label)));
  if (choices.some(([value]) => String(value) === chosen)) select.value = chosen;
}

// A button whose work may fail, in words beside it.
export function action(label, work, confirmation) {
  const said = h("span", { role: "status" });
  const button = h("button", { type: "button" }, label);
  button.addEventListener("click", async () => {
    if (confirmation && !window.confirm(confirmation)) return;
    button.disabled = true;
    said.className = "soft";
    said.textContent = "…";
    try {
      said.textContent = (await work()) || "done";
    } catch (error) {
      said.className = "error";
      said.textContent = error.message;
    }
    button.disabled = false;
  });
  return h("span", {}, button, " ", said);
}

export const path = (...parts) => parts.map(encodeURIComponent).join("/");
export const moduleLink = (module) => h("a", { href: `#/modules/${path(module)}` }, module);
export const groupLink = (module, group) =>
  h("a", { href: `#/modules/${path(module)}/groups/${group}` }, `group ${group}`);
export const workerLink = (worker) => h("a", { href: `#/workers/${path(worker)}` }, worker);
export const nodeLink = (node) => h("a", { href: `#/nodes/${path(node)}` }, node);
