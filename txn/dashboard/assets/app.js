// Which page is shown, for which topology; keys; light and dark; what is live.

import { NAMES, go, link, route } from "./address.js";
import { get, listen, live, topologyNamed } from "./data.js";
import { h, show } from "./dom.js";
import { ago, clock } from "./format.js";
import { overview } from "./overview.js";
import { tables } from "./tables.js";
import { topology } from "./topology.js";
import { transactions } from "./transactions.js";
import { trouble } from "./trouble.js";

const VIEWS = { overview, topology, transactions, tables, trouble };
const PAGES = NAMES.map((id) => [id, id[0].toUpperCase() + id.slice(1), VIEWS[id]]);
const $ = (id) => document.getElementById(id);
let shown = null;
let last = null;

const current = () => route().name || last || live.overview?.topologies[0]?.name || null;

const compact = (n) => (n < 1000 ? String(n) : n < 1e6 ? `${Math.floor(n / 1000)}k` : `${Math.floor(n / 1e6)}M`);

function troubleCount(one) {
  const open = one.troubles.error + one.troubles.warning;
  if (!open && !one.set_aside) return null;
  return h("span", { class: `count ${one.troubles.error ? "err" : "warn"}` }, compact(open || one.set_aside), h("span", { class: "sr" }, open ? " open" : " rows set aside"));
}

function chrome() {
  const at = route(), name = current(), names = live.overview?.topologies.map((t) => t.name) || [];
  if (name) last = name;
  const one = name ? topologyNamed(name) : null;
  show($("nav"), [at.page, name, one?.troubles, one?.set_aside], () => PAGES.map(([id, words], i) => h("a", {
    href: id === "overview" || !name ? "#/" : link(name, id), "aria-current": at.page === id ? "page" : null, "data-key": id, title: `${words} (${i + 1})`,
  }, words, id === "trouble" && one ? troubleCount(one) : null)));
  const select = $("topology");
  show(select, [names, name], () => names.map((each) => h("option", { value: each, selected: each === name }, each)));
  select.hidden = names.length === 0;
  if (name) select.value = name;
  document.title = at.page === "overview" ? "txn" : `${name} · ${at.page} · txn`;
  const shownHere = at.page === "overview" ? live.overview?.topologies || [] : [one]; // each has its own credentials
  const words = !live.overview ? "connecting" : !live.connected ? `not connected${live.at ? `, as of ${clock(live.at)}` : ""}` : live.overview.error ? "ZooKeeper away" : shownHere.some((each) => each?.error && each.state !== "absent") ? "ZooKeeper error" : "live";
  const kind = words === "live" ? "ok" : words === "connecting" ? "muted" : "err";
  show($("live"), words, () => [h("i", { class: `dot ${kind}` }), h("span", {}, words)]);
}

function render() {
  const at = route(), main = $("main");
  chrome();
  if (!live.overview) return;
  if (at.lost) { close(); main.replaceChildren(nothing("There is no such page.")); return; }
  const key = `${at.page}\n${at.name}`;
  if (shown?.key === key) { shown.view.moved?.(at); return; }
  if (at.name && !topologyNamed(at.name)) {
    close();
    main.replaceChildren(nothing("No topology of that name is shown here."));
    return;
  }
  close();
  const make = PAGES.find(([id]) => id === at.page)[2];
  const root = h("div", { class: `page page-${at.page}` });
  main.replaceChildren(root);
  shown = { key, view: make(root, at) };
  scrollTo(0, 0);
}

const nothing = (words) => h("div", { class: "empty" }, h("p", { class: "empty-title" }, words), h("p", {}, h("a", { href: "#/" }, "All topologies")));

function close() { shown?.view.close?.(); shown = null; }

function changed() {
  if (!shown) render(); else { chrome(); shown.view.changed?.(); }
}

// Ages go on between two events.
setInterval(() => { for (const node of document.querySelectorAll("[data-ago]")) { const words = ago(Number(node.dataset.ago)); if (node.textContent !== words) node.textContent = words; } }, 1000);

function turn() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try { localStorage.setItem("txn-theme", root.dataset.theme); } catch { /* storage may be switched off */ }
  shown?.view.painted?.();
}

function neighbour(step) {
  const names = live.overview?.topologies.map((t) => t.name) || [];
  const at = names.indexOf(current());
  if (at < 0 || names.length < 2) return;
  const page = route().page;
  go(link(names[(at + step + names.length) % names.length], page === "overview" ? "topology" : page));
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input, textarea, select");
  if (event.key === "Escape") { if (typing) event.target.blur(); else if (!$("keys").open) shown?.view.escape?.(); return; }
  if (typing || $("keys").open) return;
  const page = PAGES[Number(event.key) - 1];
  if (page) { const name = current(); go(page[0] === "overview" || !name ? "#/" : link(name, page[0])); }
  else if (event.key === "?") $("keys").showModal();
  else if (event.key === "t") turn();
  else if (event.key === "[" || event.key === "]") neighbour(event.key === "]" ? 1 : -1);
  else if (event.key === "/") { event.preventDefault(); const name = current(); if (route().page !== "transactions" && name) go(link(name, "transactions")); setTimeout(() => document.querySelector("input[type=search]")?.focus(), 30); }
  else if (shown?.view.key?.(event)) event.preventDefault();
});

$("theme").addEventListener("click", turn);
$("help").addEventListener("click", () => $("keys").showModal());
$("topology").addEventListener("change", (event) => { const page = route().page; go(link(event.target.value, page === "overview" ? "topology" : page)); });
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => shown?.view.painted?.());
addEventListener("hashchange", render);
live.listeners.add(changed);
chrome();
listen();
get("overview").then((told) => { if (!live.overview) { live.overview = told; live.connected = true; render(); } }).catch((error) => {
  if (!live.overview) $("main").replaceChildren(h("div", { class: "empty" }, h("p", { class: "empty-title" }, error.message), h("p", {}, "Start it again with ", h("code", {}, "txn dashboard"), ".")));
});
