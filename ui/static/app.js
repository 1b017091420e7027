// Which page is shown, and when it is refreshed.
import { ask } from "./dom.js";
import * as pages from "./pages.js";

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
  const where = location.hash.slice(1) || "/";
  if (where === "main") return;
  main.replaceChildren();
  shown += 1;
  refresh = null;
  for (const link of document.querySelectorAll("header nav a"))
    link.toggleAttribute("aria-current", link.getAttribute("href") === `#${where}`);
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

async function turn() {
  clearTimeout(timer);
  const mine = shown;
  const looksAtCluster = [pages.cluster, pages.node, pages.worker];
  try {
    if (refresh) await refresh();
    const where = location.hash.slice(1) || "/";
    if (!ROUTES.some(([pattern, page]) => pattern.test(where) && looksAtCluster.includes(page)))
      pages.showHealth(await ask("/cluster"));
    freshness.textContent = `As of ${new Date().toLocaleTimeString()}`;
    freshness.className = "";
  } catch (error) {
    freshness.textContent = `Not refreshed since: ${error.message}`;
    freshness.className = "error";
  }
  if (mine === shown && pause.getAttribute("aria-pressed") === "false") timer = setTimeout(turn, REFRESH_MS);
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

window.addEventListener("hashchange", show);
show();
