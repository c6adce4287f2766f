// The tables of a topology: files and sizes, versions, rows as of a txid, what two txids changed.

import { get, topologyNamed } from "./data.js";
import { badge, empty, h, show, skeleton } from "./dom.js";
import { go, link } from "./address.js";
import { bytes, clock, count, iso, num, tableName, UNKNOWN } from "./format.js";

const VIEWS = [["versions", "Versions"], ["rows", "Rows as of a txid"], ["changes", "Difference"], ["about", "About"]];
const MEANS = { settled: "A mark: the txid is final and is not replayed again", fence: "Written by a new leader, so that no earlier one can publish", compaction: "The same rows in fewer files", change: "The program has changed the shape of the table between two txids", maintenance: "Old files were deleted, or a property was set", publication: "Rows of one txid, or of a group of them", foreign: "A change by another program or person" };
const KINDS = { publication: "ok", foreign: "err", unreadable: "err", compaction: "info", change: "info" };

const COUNTING = () => h("span", { class: "none" }, "counting…");

// A number of a table; of one that is not loaded yet, or cannot be read, it is missing.
const of = (table, name, words) => (table.facts ? words(table.facts[name]) : table.error || table.version === null ? UNKNOWN : COUNTING());

function stored(table, words) {
  if (!table.stored) return table.facts ? COUNTING() : of(table);
  return words(table.stored) || h("span", { class: "none", title: table.stored.why }, UNKNOWN);
}

function grid(columns, rows, label) {
  return h("div", { class: "scroller", role: "region", "aria-label": label, tabindex: "0" }, h("table", { class: "rows" }, h("thead", {}, h("tr", {}, columns.map(([name, type]) => h("th", { scope: "col" }, name, type ? h("span", { class: "type" }, type) : null)))), h("tbody", {}, rows.map((row) => h("tr", {}, row.map((value) => value === null ? h("td", { class: "null" }, "NULL") : h("td", {}, value)))))));
}

export function tables(root, at) {
  const name = at.name;
  let now = at, stop = new AbortController(), viewStop = new AbortController(), told = null, seen = -1, busy = false, shownView = null;
  const list = h("div", {}, skeleton("Asking for the tables…")), view = h("div", { class: "table-view" });
  root.append(h("h1", { class: "sr" }, `Tables of ${name}`), h("section", { class: "panel", "aria-label": "Tables" }, list), view);
  const chosen = () => told?.tables.find((t) => t.name === now.rest[0]) || (now.rest[0] ? null : told?.tables[0]) || null;

  function drawList() {
    show(list, [told.tables, told.reads_old, now.rest[0]], () => {
      if (!told.tables.length) return empty("The tables are unknown so far.", "They appear with the first commit.");
      const all = told.tables, sum = (of) => all.reduce((n, t) => n + (t.facts?.[of] || 0), 0);
      return h("div", { class: "scroller", role: "region", "aria-label": "All tables", tabindex: "0" }, h("table", { class: "tables" }, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "table"), h("th", { scope: "col" }, "kind"), ["version", "txids", "rows", "files", "below 1 MB", "size", "with old versions", "txn vacuum frees"].map((w) => h("th", { scope: "col", class: "n" }, w)), h("th", { scope: "col" }, "compacted"))),
        h("tbody", {}, all.map((t) => { const f = t.facts; return h("tr", { class: t === chosen() ? "open" : "", onclick: (e) => { if (!e.target.closest("a")) go(link(name, "tables", [t.name], { view: now.params.view })); } },
          h("td", {}, h("a", { href: link(name, "tables", [t.name], { view: now.params.view }), title: t.name, "data-key": t.name }, tableName(t.name)), t.error ? [" ", badge("not read", "err", t.error)] : null),
          h("td", {}, f ? (f.kind ? `${f.kind}, ${f.semantics}` : "not of a topology") : t.error ? h("span", { class: "none" }, t.error) : h("span", { class: "none" }, "loading…")),
          h("td", { class: "n" }, num(t.version)), h("td", { class: "n" }, t.span ? `${num(t.span[0])}–${num(t.span[1])}` : "none"), h("td", { class: "n" }, of(t, "rows", num)),
          h("td", { class: "n" }, of(t, "files", num)), h("td", { class: "n" }, of(t, "small_files", num)), h("td", { class: "n" }, of(t, "bytes", bytes)), h("td", { class: "n" }, stored(t, (s) => (s.bytes ? bytes(s.bytes) : null))), h("td", { class: "n" }, stored(t, (s) => (s.why ? null : s.free_files ? `${bytes(s.free_bytes)} in ${count(s.free_files, "file")}` : "nothing"))),
          h("td", {}, t.compacted_ms ? h("time", { datetime: iso(t.compacted_ms), title: `version ${t.compacted_version}` }, clock(t.compacted_ms)) : h("span", { class: "none" }, f ? f.kind?.startsWith("log") ? "not yet" : "not needed" : UNKNOWN))); })),
        all.length > 1 ? h("tfoot", {}, h("tr", {}, h("td", { colspan: 4 }, count(all.length, "table")), h("td", { class: "n" }, num(sum("rows"))), h("td", { class: "n" }, num(sum("files"))), h("td", { class: "n" }, num(sum("small_files"))), h("td", { class: "n" }, bytes(sum("bytes"))), h("td", { class: "n" }, bytes(all.reduce((n, t) => n + (t.stored?.bytes || 0), 0))), h("td", { class: "n" }, bytes(all.reduce((n, t) => n + (t.stored?.free_bytes || 0), 0))), h("td", {}))) : null),
        h("p", { class: "hint" }, "Old versions stay readable until ", h("code", {}, "txn vacuum"), " deletes their files, a week after they were replaced unless the table says otherwise. Counted at most once a minute."));
    });
  }

  function drawView() {
    const table = chosen();
    if (!table) { shownView = null; view.replaceChildren(now.rest[0] ? empty("The topology has no table of that name.") : ""); return; }
    const which = VIEWS.some(([id]) => id === now.params.view) ? now.params.view : "versions";
    const key = JSON.stringify([table.name, which, now.params, which === "about" ? table.facts : null]);
    if (key === shownView) return;
    shownView = key;
    viewStop.abort(); viewStop = new AbortController();
    const box = h("div", { class: "view-box" });
    view.replaceChildren(h("section", { class: "panel", "aria-label": table.name }, h("div", { class: "panel-head" }, h("h2", { title: table.name }, tableName(table.name)),
      h("div", { class: "segmented", role: "group", "aria-label": "What to see" }, VIEWS.map(([id, words]) => h("button", { type: "button", "aria-pressed": String(id === which), "data-key": `view ${id}`, onclick: () => go(link(name, "tables", [table.name], { view: id })) }, words)))), h("p", { class: "path" }, table.name), box));
    ({ versions: versions, rows: rows, changes: changes, about: about })[which](box, table);
  }

  const failed = (box, error) => { if (error.name !== "AbortError") box.replaceChildren(empty(error.message)); };

  async function versions(box, table) {
    const body = h("tbody", {}), kind = h("select", { "aria-label": "Kind of version" }, [["", "All versions"], ["publication", "Publications"], ["compaction", "Compactions"], ["change", "Changes of shape"], ["maintenance", "Maintenance"], ["fence", "Fences"], ["foreign", "Others' changes"]].map(([id, words]) => h("option", { value: id }, words)));
    const next = h("button", { type: "button", class: "button", hidden: true }, "Older versions"), none = h("div", {}, skeleton("Reading the versions…"));
    let before = null, asked = 0;
    const load = async () => {
      const mine = ++asked;
      try {
        const page = await get("versions", { name, table: table.name, before, kind: kind.value }, viewStop.signal);
        if (mine !== asked) return;
        for (const v of page.versions) body.append(h("tr", {}, h("td", { class: "n" }, num(v.version)), h("td", { class: "time" }, clock(v.at_ms)), h("td", {}, badge(v.kind, KINDS[v.kind] || "", MEANS[v.kind])), h("td", {}, v.operation, v.kind === "foreign" ? h("span", { class: "muted" }, ` by ${v.writer}`) : null),
          h("td", { class: "n" }, v.first && v.last ? v.first === v.last ? h("a", { href: link(name, "transactions", [v.last]) }, String(v.last)) : `${v.first}–${v.last}` : v.last ? `up to ${num(v.last)}` : ""), h("td", { class: "n" }, v.files_added ? `+${num(v.files_added)}` : "", v.files_removed ? ` −${num(v.files_removed)}` : ""), h("td", { class: "n" }, v.bytes_added ? bytes(v.bytes_added) : ""), h("td", { class: "n" }, v.files_added ? num(v.rows_added) : "")));
        before = page.before;
        next.hidden = before === null;
        none.replaceChildren(body.childElementCount ? "" : empty("There is no such version.", told.reads_old ? "Older ones are still being read." : ""));
      } catch (error) { failed(box, error); }
    };
    next.addEventListener("click", load);
    kind.addEventListener("change", () => { body.replaceChildren(); before = null; load(); });
    box.replaceChildren(h("div", { class: "filters" }, kind), h("div", { class: "scroller", role: "region", "aria-label": "Versions", tabindex: "0" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", { class: "n" }, "version"), h("th", {}, "at"), h("th", {}, "kind"), h("th", {}, "operation"), ["txids", "files", "added", "rows added"].map((w) => h("th", { class: "n" }, w)))), body)), none, next, h("details", {}, h("summary", { class: "muted" }, "What the kinds mean"), h("dl", { class: "about" }, Object.entries(MEANS).map(([word, meaning]) => [h("dt", {}, word), h("dd", {}, meaning)]))));
    load();
  }

  const number = (label, value) => h("input", { type: "number", min: "0", step: "1", inputmode: "numeric", value: value ?? "", "aria-label": label });

  async function rows(box, table) {
    const txid = number("Txid", now.params.txid ?? table.span?.[1]), place = h("div", {});
    box.replaceChildren(h("form", { class: "filters", onsubmit: (e) => { e.preventDefault(); go(link(name, "tables", [table.name], { view: "rows", txid: txid.value })); } }, h("label", {}, "as of txid ", txid), h("button", { class: "button" }, "Show"), table.span ? h("span", { class: "told" }, `txids ${num(table.span[0])} to ${num(table.span[1])} can be shown`) : null), place);
    place.replaceChildren(skeleton("Reading the first rows…"));
    try {
      const found = await get("rows", { name, table: table.name, txid: now.params.txid ?? table.span?.[1] }, viewStop.signal);
      place.replaceChildren(found.note ? h("p", { class: "note" }, found.note) : "", found.rows.length ? grid(Object.entries(found.columns), found.rows, "Rows") : empty("It has no rows as of that txid."), h("p", { class: "hint" }, `${found.more ? "The first " : ""}${count(found.rows.length, "row")}${found.more ? "; there are more" : ""}. Version ${num(found.version)}.${Object.keys(found.columns).some((column) => /^(prev_|txn_)/.test(column)) ? " The columns txid, prev_… and txn_… are the topology's own." : ""}`));
    } catch (error) { failed(place, error); }
  }

  async function changes(box, table) {
    const span = table.span, from = number("From txid", now.params.from ?? (span ? Math.max(span[0], (table.newest?.[0] ?? span[1]) - 1) : "")), to = number("To txid", now.params.to ?? span?.[1]), place = h("div", {});
    box.replaceChildren(h("form", { class: "filters", onsubmit: (e) => { e.preventDefault(); go(link(name, "tables", [table.name], { view: "changes", from: from.value, to: to.value })); } }, h("label", {}, "after txid ", from), h("label", {}, "up to ", to), h("button", { class: "button" }, "Compare")), place);
    if (from.value === "" || to.value === "" || from.value === to.value) { place.replaceChildren(empty("Choose two txids.", "The difference is what the txids after the first one changed, up to the second.")); return; }
    place.replaceChildren(skeleton("Comparing the two versions…"));
    try {
      const found = await get("changes", { name, table: table.name, from: from.value, to: to.value }, viewStop.signal);
      const total = Object.values(found.counts).reduce((a, b) => a + b, 0);
      const sum = Object.entries(found.counts).filter(([, n]) => n).map(([kind, n]) => `${num(n)} ${kind}`).join(", ");
      const cellOf = (c, i) => { const was = c.before?.[i] ?? null, is = c.after?.[i] ?? null; if (c.before && c.after && was !== is) return h("td", { class: "changed" }, h("del", {}, was ?? "NULL"), " ", h("ins", {}, is ?? "NULL")); const value = c.after ? is : was; return value === null ? h("td", { class: "null" }, "NULL") : h("td", {}, value); };
      place.replaceChildren(h("p", { class: "hint" }, total ? `${sum}. Versions ${num(found.versions[0])} and ${num(found.versions[1])}.${total > found.changes.length ? ` The first ${found.changes.length} are shown.` : ""}` : ""), total === 0 ? empty("Nothing differs.") : h("div", { class: "scroller", role: "region", "aria-label": "Changes", tabindex: "0" }, h("table", { class: "rows" }, h("thead", {}, h("tr", {}, h("th", {}, h("span", { class: "sr" }, "kind")), [...found.keys, ...found.values].map((c) => h("th", { scope: "col" }, c)))), h("tbody", {}, found.changes.map((c) => h("tr", { class: c.kind }, h("td", {}, badge(c.kind, { added: "ok", changed: "info", removed: "err" }[c.kind])), c.key.map((v) => h("td", { class: "key-cell" }, v ?? "NULL")), found.values.map((_, i) => cellOf(c, i))))))));
    } catch (error) { failed(place, error); }
  }

  async function about(box, table) {
    const f = table.facts;
    if (!f) { box.replaceChildren(table.error ? empty(table.error) : skeleton("Loading the table…")); return; }
    const pairs = [["version", `${num(f.version)}, ${num(table.committed_version)} committed in ZooKeeper`], ["log", `versions ${num(table.oldest_version)} to ${num(table.version)}`], ["begins with txid", num(f.first_txid)], ["kind", f.kind || "not of a topology"], ["semantics", f.semantics || "none"], ["keys", f.keys.join(", ") || "none"], ["values", Object.entries(f.values).map(([k, v]) => `${k} = ${v}`).join(", ") || "none"], ["hash buckets", f.buckets ? num(f.buckets) : "none"], ["partitioned by", f.partition_by.join(", ") || "nothing"], ...Object.entries(f.properties)];
    box.replaceChildren(h("dl", { class: "about" }, pairs.map(([k, v]) => [h("dt", {}, k), h("dd", {}, v)])), h("h3", {}, "Columns"), grid([["column", ""], ["type", ""]], Object.entries(f.columns), "Columns"));
  }

  // What changes while it asks is asked for afterwards.
  async function load() {
    busy = true;
    seen = topologyNamed(name)?.revision;
    try {
      told = await get("tables", { name }, stop.signal);
      drawList(); drawView();
    } catch (error) { failed(list, error); }
    busy = false;
    changed();
  }

  function changed() { const one = topologyNamed(name); if (!busy && one && one.revision !== seen) load(); }

  load();
  return {
    moved(to) { now = to; if (told) { drawList(); drawView(); } },
    changed,
    escape() { if (now.rest.length) go(link(name, "tables")); },
    close() { stop.abort(); viewStop.abort(); },
  };
}
