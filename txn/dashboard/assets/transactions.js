// Every txid, newest first, out of the tables' logs; and one of them whole.

import { get, topologyNamed } from "./data.js";
import { badge, copyable, empty, h, show, skeleton } from "./dom.js";
import { go, link, route } from "./address.js";
import { bytes, clock, count, iso, ms, num, tableName } from "./format.js";

const ONLY = [["all", "All"], ["open", "Not committed yet"], ["quarantined", "Quarantined"], ["replayed", "Replayed"], ["failed", "With failed attempts"], ["broken", "With broken rules"], ["grouped", "In a group"]];
const STATIONS = { started: "start", processing: "wait for Spark", staged: "process", processed: "acknowledge", turn: "wait for its turn", prepared: "prepare", published: "publish" };
const MOST_ROWS = 3000;
const AGAIN = 30; // newest txids that are looked at again: some tables have them later than others
const MOST_ASKED = 5;

function marks(one) {
  return [
    one.committed === false ? badge("not committed yet", "warn", "The tables have it, and ZooKeeper does not have it as committed yet") : null,
    one.quarantined ? badge("quarantined", "err", one.quarantined) : null,
    one.replay_of !== null && one.replay_of !== undefined ? badge(one.replay_of ? `replays ${one.replay_of}` : "replay", "info") : null,
    one.failures ? badge(`${count(one.failures, "attempt")} failed`, "warn") : one.attempt ? badge(`attempt ${one.attempt}`, "", "Earlier attempts failed") : null,
    one.broken ? badge(`${count(one.broken, "row")} broke a rule`, "warn") : null,
    one.group ? badge(`group ${one.group[0]}–${one.group[1]}`, "", "Published together, as one version of each table") : null,
  ];
}

const bar = (kind, part, slowest) => h("i", { class: `bar ${kind}`, vars: { "--part": String(Math.min(1, part / Math.max(1, slowest))) } });

const times = (one) => `${ms(one.processing_ms)} + ${ms(one.waiting_ms)} waiting`;

function line(one, name, params, slowest) {
  const address = link(name, "transactions", [one.txid], params);
  const row = h("tr", { tabindex: "-1", "data-txid": one.txid, onclick: (event) => { if (!event.target.closest("a")) go(address); } },
    h("td", { class: "id" }, h("a", { href: address }, String(one.txid))),
    h("td", { class: "time" }, h("time", { datetime: iso(one.at_ms), title: iso(one.at_ms) }, clock(one.at_ms))),
    h("td", { class: "read", title: one.read }, one.read || h("span", { class: "none" }, "nothing")),
    h("td", { class: "n" }, num(one.rows)),
    h("td", { class: "took", title: `${ms(one.total_ms)} from its plan to its commit` }, h("div", { class: "times" }, h("span", { class: "bars" }, bar("work", one.processing_ms, slowest), bar("wait", one.waiting_ms, slowest)), h("span", {}, times(one)))),
    h("td", { class: "marks" }, marks(one)));
  return row;
}

export function transactions(root, at) {
  const name = at.name;
  let params = { ...at.params }, stop = new AbortController(), before = null, busy = false, ended = false, covered = -1, rows = new Map(), slowest = 1, opened = null, detailStop = null;
  const search = h("input", { type: "search", placeholder: "txid, 120-140, file, partition or error", "aria-label": "Search", value: params.q || "", spellcheck: "false", autocomplete: "off" });
  const only = h("select", { "aria-label": "Which" }, ONLY.map(([id, words]) => h("option", { value: id, selected: (params.only || "all") === id }, words)));
  const table = h("select", { "aria-label": "Table" }, h("option", { value: "" }, "All tables"));
  const told = h("span", { class: "told", role: "status", "aria-live": "polite" });
  const body = h("tbody", {});
  const sentinel = h("div", { class: "sentinel" }, skeleton("Reading the newest txids from the tables' logs…", 6));
  const fresh = h("button", { type: "button", class: "button fresh", hidden: true, onclick: () => { scrollTo(0, 0); reload(); } }, "Newer txids");
  const detail = h("aside", { class: "detail", hidden: true, "aria-label": "One txid", tabindex: "-1" });
  const list = h("div", { class: "list" }, h("div", { class: "scroller", role: "region", "aria-label": "Transactions", tabindex: "0" }, h("table", { class: "txids" }, h("thead", {}, h("tr", {}, ["txid", "published", "read"].map((w) => h("th", { scope: "col" }, w)), h("th", { scope: "col", class: "n" }, "rows staged"), h("th", { scope: "col" }, "processing + waiting"), h("th", { scope: "col" }, h("span", { class: "sr" }, "remarks")))), body)), sentinel);
  root.append(h("h1", { class: "sr" }, `Transactions of ${name}`), h("form", { class: "filters", role: "search", onsubmit: (e) => { e.preventDefault(); apply(); } }, search, only, table, told, fresh), h("div", { class: "split" }, list, detail));

  get("tables", { name }, stop.signal).then((all) => { for (const t of all.tables) table.append(h("option", { value: t.name, selected: params.table === t.name, title: t.name }, tableName(t.name))); if (params.table) table.value = params.table; }).catch(() => {});

  const asked = () => ({ name, q: params.q, only: params.only, table: params.table });
  function apply() {
    params = { q: search.value.trim(), only: only.value === "all" ? "" : only.value, table: table.value };
    go(link(name, "transactions", route().rest, params), true);
    reload();
  }
  let typing = 0;
  search.addEventListener("input", () => { clearTimeout(typing); typing = setTimeout(apply, 250); });
  only.addEventListener("change", apply);
  table.addEventListener("change", apply);

  function reload() {
    stop.abort(); stop = new AbortController();
    before = null; ended = false; rows = new Map(); busy = false; fresh.hidden = true;
    body.replaceChildren();
    more();
  }

  // The newest is the first, whenever it comes.
  function add(one) {
    if (rows.has(one.txid)) return;
    slowest = Math.max(slowest, Math.min(one.total_ms, slowest * 4 + 1000));
    const row = line(one, name, params, slowest);
    if (opened === one.txid) row.classList.add("open");
    rows.set(one.txid, row);
    let below = null;
    if (Number(body.lastElementChild?.dataset.txid) < one.txid) for (below = body.firstElementChild; Number(below.dataset.txid) > one.txid;) below = below.nextElementSibling;
    body.insertBefore(row, below);
    if (!body.querySelector("tr[tabindex='0']")) row.tabIndex = 0;
  }

  // What came on top pushes out the oldest rows.
  function trim() {
    if (rows.size <= MOST_ROWS) return;
    while (rows.size > MOST_ROWS) { const row = body.lastElementChild; rows.delete(Number(row.dataset.txid)); row.remove(); }
    ended = true;
    tellFull();
  }

  const tellFull = () => sentinel.replaceChildren(empty(`${num(MOST_ROWS)} txids are shown.`, "Search for a range, such as 120-140, to see others."));

  async function more() {
    if (busy || ended) return;
    busy = true;
    const mine = stop;
    try {
      const page = await get("transactions", { ...asked(), before }, mine.signal);
      if (mine !== stop) return;
      if (page.txids.length && slowest === 1) slowest = Math.max(...page.txids.map((t) => t.total_ms)) || 1;
      for (const one of page.txids) add(one);
      if (before === null) covered = page.span ? page.span[1] : -1;
      before = page.before;
      ended = before === null || rows.size >= MOST_ROWS;
      tell(page);
    } catch (error) {
      if (error.name === "AbortError") return;
      ended = true;
      sentinel.replaceChildren(empty(error.message));
    }
    busy = false;
    if (!ended && sentinel.getBoundingClientRect().top < innerHeight + 600) more();
  }

  function tell(page) {
    const filtered = params.q || params.only || params.table;
    const span = page.span ? `txids ${num(page.span[0])} to ${num(page.span[1])} can be searched${page.reads_old ? "; older ones are being read" : ""}` : "";
    told.textContent = filtered ? `${count(rows.size, "txid")}${page.before ? ` so far, searched down to txid ${num(page.before)}` : ""}; ${span}` : span;
    if (rows.size === 0 && page.before === null) {
      sentinel.replaceChildren(filtered ? empty("No txid matches.", page.reads_old ? "Older ones are still being read." : "Search for something else, or remove a filter.") : empty("Nothing is committed yet.", "The first txid appears here by itself."));
    } else if (rows.size >= MOST_ROWS) tellFull();
    else sentinel.replaceChildren(page.before === null ? h("p", { class: "hint" }, page.reads_old ? "Older txids are being read…" : "This is the oldest txid in the tables' logs.") : h("p", { class: "hint" }, "…"));
    if (page.before === null && page.reads_old && !stop.signal.aborted) { const mine = stop; setTimeout(() => { if (mine === stop) { ended = false; before = rows.size ? Math.min(...rows.keys()) : null; more(); } }, 1500); }
  }

  // What is new comes on top while the top is in sight; else a button says so.
  let looking = false, seen = -1;
  async function newer() {
    const one = topologyNamed(name);
    if (!one || looking || one.revision === seen) return;
    seen = one.revision;
    if (scrollY > 300) { if (!params.q && !params.only) fresh.hidden = false; return; }
    looking = true;
    const mine = stop;
    try {
      const found = [], down = covered - AGAIN;
      let first = null, page = null, at = null;
      for (let asks = 0; asks < MOST_ASKED && (asks === 0 || (at !== null && at > down)); asks++) {
        page = await get("transactions", { ...asked(), before: at, limit: first ? null : 50 }, mine.signal);
        if (mine !== stop) break;
        first = first || page;
        found.push(...page.txids);
        at = page.before;
      }
      if (mine === stop && at !== null && at > down) reload(); // too many have come to be added one by one
      else if (mine === stop) {
        const news = found.filter((t) => !rows.has(t.txid));
        for (const txid of found) if (rows.has(txid.txid)) { const old = rows.get(txid.txid), now = line(txid, name, params, slowest); now.tabIndex = old.tabIndex; if (old.classList.contains("open")) now.classList.add("open"); if (old.textContent !== now.textContent) { const had = old === document.activeElement; old.replaceWith(now); rows.set(txid.txid, now); if (had) now.focus(); } }
        for (const txid of news) { add(txid); rows.get(txid.txid).classList.add("new"); }
        trim();
        covered = first.span ? first.span[1] : -1;
        if (news.length && rows.size === news.length) tell(page); else if (first.span) { const filtered = params.q || params.only || params.table; if (!filtered) told.textContent = `txids ${num(first.span[0])} to ${num(first.span[1])} can be searched${first.reads_old ? "; older ones are being read" : ""}`; }
      }
      if (opened !== null && detail.dataset.open === "true") open(opened, true);
    } catch { /* the next event asks again */ }
    looking = false;
    newer(); // if something has changed meanwhile
  }

  function mark(txid) {
    for (const row of body.querySelectorAll("tr.open")) row.classList.remove("open");
    rows.get(txid)?.classList.add("open");
  }

  async function open(txid, quiet = false) {
    detailStop?.abort(); detailStop = new AbortController();
    opened = txid; mark(txid);
    detail.hidden = false; root.classList.add("has-detail");
    if (!quiet) { detail.shownKey = null; detail.replaceChildren(h("p", { class: "loading" }, `Txid ${txid}…`)); }
    try {
      const one = await get("transaction", { name, txid }, detailStop.signal);
      detail.dataset.open = String(!!one.open || one.committed === false);
      show(detail, one, () => whole(one, name, params));
    } catch (error) {
      if (error.name !== "AbortError") { detail.shownKey = null; detail.replaceChildren(closer(name, params), empty(`Txid ${txid}`, error.message)); }
    }
    if (quiet) return;
    detail.focus({ preventScroll: true });
    if (matchMedia("(max-width: 1000px)").matches) detail.scrollIntoView({ block: "start" }); // below the header
  }

  function shut() { opened = null; detail.hidden = true; root.classList.remove("has-detail"); mark(null); }

  function moved(now) {
    const txid = now.rest[0] && /^\d+$/.test(now.rest[0]) ? Number(now.rest[0]) : null;
    if ((now.params.q || "") !== (params.q || "") || (now.params.only || "") !== (params.only || "") || (now.params.table || "") !== (params.table || "")) {
      params = { ...now.params }; search.value = params.q || ""; only.value = params.only || "all"; table.value = params.table || ""; reload();
    }
    if (txid === null) shut(); else if (txid !== opened) open(txid);
  }

  const watcher = new IntersectionObserver((seenNow) => { if (seenNow.some((e) => e.isIntersecting)) more(); }, { rootMargin: "800px" });
  watcher.observe(sentinel);
  more();
  moved(at);

  function step(by) {
    const all = [...body.querySelectorAll("tr")];
    if (!all.length) return;
    const was = all.findIndex((r) => r === document.activeElement || r.contains(document.activeElement));
    const to = all[Math.max(0, Math.min(all.length - 1, was < 0 ? 0 : was + by))];
    for (const row of all) row.tabIndex = -1;
    to.tabIndex = 0; to.focus();
  }

  return {
    moved, changed: newer,
    escape() { if (opened !== null) { const row = rows.get(opened); go(link(name, "transactions", [], params)); row?.focus(); } },
    key(event) {
      if (event.key === "j" || (event.key === "ArrowDown" && !detail.contains(document.activeElement))) step(1);
      else if (event.key === "k" || (event.key === "ArrowUp" && !detail.contains(document.activeElement))) step(-1);
      else if (event.key === "Enter" && document.activeElement?.dataset.txid) go(link(name, "transactions", [document.activeElement.dataset.txid], params));
      else return false;
      return true;
    },
    close() { stop.abort(); detailStop?.abort(); watcher.disconnect(); clearTimeout(typing); },
  };
}

const closer = (name, params) => h("a", { class: "close", href: link(name, "transactions", [], params), "aria-label": "Close", "data-key": "close" }, "×");

function timeline(one) {
  const steps = Object.entries(one.timings_ms || {}).filter(([, v]) => v > 0);
  const total = steps.reduce((sum, [, v]) => sum + v, 0);
  if (!steps.length) return h("p", { class: "hint" }, "Its times are unknown: the log has none.");
  return [
    h("p", {}, `${ms(one.processing_ms)} processing, ${ms(one.waiting_ms)} waiting, ${ms(one.total_ms)} in all up to the commit.`),
    h("div", { class: "timeline", role: "img", "aria-label": steps.map(([k, v]) => `${STATIONS[k] || k} ${ms(v)}`).join(", ") }, steps.map(([k, v]) => h("i", { class: `st st-${k}`, vars: { "--part": String(Math.max(v / total, 0.004)) }, title: `${STATIONS[k] || k}: ${ms(v)}` }))),
    h("ul", { class: "stations" }, steps.map(([k, v]) => h("li", {}, h("i", { class: `st st-${k}` }), h("span", {}, STATIONS[k] || k), h("b", {}, ms(v))))),
  ];
}

function readBy(stream, value, words) {
  if (value === null) return h("div", { class: "kv-row" }, h("b", {}, stream), h("span", { class: "none" }, words));
  const metadata = h("details", {}, h("summary", {}, "metadata"), h("pre", { tabindex: "0" }, JSON.stringify(value, null, 1)));
  const files = Array.isArray(value?.files) && value.files.every((f) => typeof f?.path === "string") ? value.files : null;
  if (files) return h("div", { class: "kv-row" }, h("b", {}, stream), h("div", {}, files.length > 3 ? words : null, h("ul", { class: "plain mono" }, files.slice(0, 200).map((f) => h("li", {}, f.path, Number.isInteger(f.size) ? h("span", { class: "muted" }, ` ${bytes(f.size)}`) : null)), files.length > 200 ? h("li", {}, `and ${num(files.length - 200)} more`) : null)), metadata);
  return h("div", { class: "kv-row" }, h("b", {}, stream), h("span", {}, words), metadata);
}

function whole(one, name, params) {
  const metadata = Object.entries(one.metadata || {});
  const broken = Object.entries(one.violations || {}).flatMap(([stream, rules]) => Object.entries(rules).map(([rule, rows]) => ({ stream, rule, rows })));
  return [
    closer(name, params),
    h("h2", { class: "detail-title" }, `Txid ${num(one.txid)}`, h("span", { class: "marks" }, one.open ? badge(one.phase === "open" ? "in flight" : one.phase, "info") : one.committed && !one.quarantined ? badge("committed", "ok") : null, marks(one))),
    h("p", { class: "muted" }, `attempt ${one.attempt}, epoch ${num(one.epoch)}`, one.at_ms ? [", published ", h("time", { datetime: iso(one.at_ms), title: iso(one.at_ms) }, clock(one.at_ms))] : null),
    one.quarantined ? h("div", { class: "note err" }, h("b", {}, "Committed empty. "), h("span", { class: "pre" }, one.quarantined), h("p", {}, h("a", { href: link(name, "trouble") }, "What to do"))) : null,
    one.blocked ? h("div", { class: "note warn" }, h("b", {}, "Blocked. "), h("span", { class: "pre" }, one.blocked)) : null,
    h("h3", {}, "Read"), metadata.length ? metadata.map(([stream, value]) => readBy(stream, value, one.reads[stream])) : h("p", { class: "hint" }, "Unknown: the log no longer has it."),
    one.open ? null : [h("h3", {}, `Timeline of attempt ${one.attempt}`), timeline(one)],
    h("h3", {}, "Attempts"),
    h("ol", { class: "attempts" }, [...(one.open ? one.failures || [] : one.attempts)].reverse().map((a) => h("li", {}, h("span", { class: "badge warn" }, `${one.txid}:${a.attempt} failed`), h("time", { datetime: iso(a.at_ms) }, clock(a.at_ms)), h("p", { class: "pre" }, a.error))),
      h("li", {}, badge(`${one.txid}:${one.attempt} ${one.open ? "at work" : one.quarantined ? "committed empty" : one.committed ? "committed" : "published"}`, one.open ? "info" : one.quarantined ? "warn" : "ok"))),
    !one.open && one.attempt > one.attempts.length ? h("p", { class: "hint" }, "The errors of earlier attempts are unknown: the log of their run is not in this folder.") : null,
    one.watermark ? [h("h3", {}, "Watermark"), h("p", {}, `${one.watermark}. Rows with an earlier event time came too late.`)] : null,
    broken.length ? [h("h3", {}, "Rules"), h("ul", { class: "plain" }, broken.map((b) => h("li", {}, `${b.rule} (${b.stream}): `, h("b", {}, b.rows ? `${count(b.rows, "row")} broke it` : "no row broke it"))))] : null,
    one.group ? [h("h3", {}, "Group"), h("p", {}, `Txids ${one.group[0]} to ${one.group[1]} were published together: `, Array.from({ length: Math.min(40, one.group[1] - one.group[0] + 1) }, (_, i) => one.group[0] + i).flatMap((t) => [t === one.txid ? h("b", {}, String(t)) : h("a", { href: link(name, "transactions", [t], params) }, String(t)), " "]))] : null,
    one.tables.length ? [h("h3", {}, "Tables"), h("div", { class: "parts" }, one.tables.map((t) => h("details", { class: "part", open: one.tables.length === 1 }, h("summary", {}, h("span", { class: "part-name", title: t.table }, tableName(t.table)), h("span", { class: "part-n" }, count(t.rows, "row")), h("span", { class: "part-n" }, `v${num(t.version)}`)),
      h("p", { class: "path" }, t.table), h("p", {}, h("a", { href: link(name, "tables", [t.table], { view: "rows", txid: one.txid }) }, `Rows as of txid ${one.txid}`), one.txid > 1 ? [" · ", h("a", { href: link(name, "tables", [t.table], { view: "changes", from: one.txid - 1, to: one.txid }) }, "What it changed")] : null),
      t.queries.map((q) => h("div", { class: "query" }, h("span", { class: "query-title" }, q.title), copyable(q.text, `the ${q.title} query`))))))] : null,
    one.missing?.length ? h("p", { class: "hint" }, `Not in the log of ${one.missing.map(tableName).join(", ")} as far as it is indexed.`) : null,
  ];
}
