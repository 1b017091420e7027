// Which page is shown, and when it is refreshed.
import { ask } from "./dom.js";
import * as clusters from "./pages/cluster.js";
import * as data from "./pages/data.js";
import * as groups from "./pages/group.js";
import * as logs from "./pages/logs.js";
import * as modules from "./pages/module.js";
import * as options from "./pages/options.js";
import { showHealth } from "./pages/shared.js";

const pages = { ...clusters, ...data, ...groups, ...logs, ...modules, ...options };

const REFRESH_MS = 2000;

const ROUTES = [
  [/^\/$/, pages.cluster],
  [/^\/operations$/, pages.operations],
  [/^\/options$/, pages.options],
  [/^\/nodes\/([^/]+)$/, pages.node],
  [/^\/workers\/([^/]+)$/, pages.worker],
  [/^\/conductor\/log$/, pages.conductorLog],
  [/^\/nodes\/([^/]+)\/log$/, pages.nodeLog],
  [/^\/workers\/([^/]+)\/log$/, pages.workerLog],
  [/^\/modules\/([^/]+)$/, pages.module],
  [/^\/modules\/([^/]+)\/groups$/, pages.groups],
  [/^\/modules\/([^/]+)\/groups\/(\d+)$/, pages.group],
  [/^\/modules\/([^/]+)\/leadership$/, pages.leadership],
  [/^\/modules\/([^/]+)\/charts$/, pages.moduleCharts],
  [/^\/modules\/([^/]+)\/failures$/, pages.failures],
  [/^\/modules\/([^/]+)\/data$/, pages.data],
  [/^\/modules\/([^/]+)\/options$/, pages.options],
  [/^\/modules\/([^/]+)\/operations$/, pages.operations],
];

const main = document.getElementById("main");
const freshness = document.getElementById("freshness");
const pause = document.getElementById("pause");
let refresh = null;
let shown = 0;
let timer = null;

function show() {
  const hash = location.hash.slice(1);
  const where = hash === "" || hash === "main" ? "/" : hash;
  main.replaceChildren();
  shown += 1;
  refresh = null;
  for (const link of document.querySelectorAll("header nav a"))
    if (link.getAttribute("href") === `#${where}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  for (const [pattern, page] of ROUTES) {
    const found = where.match(pattern);
    if (found) {
      refresh = page(main, found.slice(1).map(decodeURIComponent));
      document.title = `${main.querySelector("h1")?.textContent || "stretto"} · stretto`;
      break;
    }
  }
  if (!refresh) main.textContent = "There is no such page.";
  turn();
}

const clock = (date) => `${date.toISOString().slice(11, 19)} UTC`;
let heard = null; // When the server last told the health.

// The health is asked for itself: whatever is wrong with a page, the line above it is true or says that it is not.
async function look() {
  try {
    const view = await ask("/cluster");
    heard = new Date();
    showHealth(view.health, view.sentence);
    return null;
  } catch (error) {
    const since = heard ? `since ${clock(heard)}, and what is below is as old` : "";
    showHealth("unknown", `The server of this page does not tell how the cluster is ${since} (${error.message})`);
    return error;
  }
}

async function turn() {
  clearTimeout(timer);
  const mine = shown;
  const told = await Promise.allSettled([refresh ? refresh() : null, look()]);
  if (mine !== shown) return;
  const error = told[0].reason || told[1].value;
  freshness.textContent = error ? `Not refreshed: ${error.message}` : `As of ${clock(new Date())}`;
  freshness.className = error ? "error" : "";
  if (pause.getAttribute("aria-pressed") === "false") timer = setTimeout(turn, REFRESH_MS);
}

pause.addEventListener("click", () => {
  const pressed = pause.getAttribute("aria-pressed") === "false";
  pause.setAttribute("aria-pressed", pressed);
  pause.textContent = pressed ? "Paused" : "Pause";
  if (!pressed) turn();
  else clearTimeout(timer);
});

document.getElementById("minutes").addEventListener("change", turn);

const theme = document.getElementById("theme");
function setTheme(name) {
  document.documentElement.dataset.theme = name;
  theme.textContent = name === "dark" ? "Light" : "Dark";
  window.dispatchEvent(new Event("themechange"));
}
theme.addEventListener("click", () => {
  const name = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
  localStorage.setItem("theme", name);
  setTheme(name);
});
setTheme(localStorage.getItem("theme") || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light"));

document.getElementById("token").addEventListener("click", () => {
  const token = window.prompt("The token that lets you change things (kept until this tab is closed):");
  if (token !== null) sessionStorage.setItem("token", token.trim());
});

// Where a page is, is in the hash: the link that skips to its content must not change that.
document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});

window.addEventListener("hashchange", show);
show();
