// What is wrong, or was; each with what to do.

import { get, topologyNamed } from "./data.js";
import { badge, button, copyable, empty, h, panel, quoted, show, skeleton } from "./dom.js";
import { link } from "./address.js";
import { clock, count, iso, num, tableName } from "./format.js";
import { levels, ofProgram } from "./parts.js";

function entry(one, name) {
  const [kind, words] = one.rows ? ["warn", count(one.rows, "row")] : levels[one.level];
  return h("li", { class: `trouble ${one.is_over ? "over" : kind}` },
    h("div", { class: "trouble-head" }, badge(one.is_over ? "over" : words, one.is_over ? "" : kind), h("span", { class: "area" }, one.area),
      one.txid ? h("a", { href: link(name, "transactions", [one.txid]) }, `txid ${one.txid}${one.attempt_id !== null ? `:${one.attempt_id}` : ""}`) : null,
      one.table ? h("a", { href: link(name, "tables", [one.table]), title: one.table }, tableName(one.table)) : null,
      one.at_ms ? h("time", { datetime: iso(one.at_ms), title: iso(one.at_ms) }, clock(one.at_ms)) : null),
    h("p", { class: "pre what" }, one.what), one.do ? h("p", { class: "do" }, one.do) : null, one.command ? copyable(one.command, "the command") : null);
}

export function trouble(root, at) {
  const name = at.name, stop = new AbortController();
  let seen = -1, busy = false, timer = 0;
  const [now, bad, doctor, history] = ["Looking for what is wrong now…", "Counting the rows that rules have set aside…", "Checking Java, disks, ZooKeeper and tables…", "Reading failed attempts and other writers' commits…"].map((words) => h("div", {}, skeleton(words, 2)));
  root.append(h("h1", { class: "sr" }, `Trouble of ${name}`), panel("To do", now), panel("Bad rows", bad), panel("Doctor", doctor), panel("History", history));

  // What changes while it asks is asked for afterwards.
  async function load() {
    busy = true;
    seen = topologyNamed(name)?.revision;
    try {
      const told = await get("trouble", { name }, stop.signal);
      const open = told.troubles.filter((t) => !t.is_over), over = told.troubles.filter((t) => t.is_over);
      show(now, open, () => (open.length ? h("ul", { class: "troubles" }, open.map((t) => entry(t, name))) : empty("Nothing is wrong.", "Failures, quarantined txids, other writers' commits and storage that is away appear here as they happen.")));
      show(history, [over, told.log_read, told.failures_logged], () => [over.length ? h("ul", { class: "troubles" }, over.map((t) => entry(t, name))) : empty(told.failures_logged ? "No attempt has failed, and only this topology has written to its tables." : "Only this topology has written to its tables."), told.failures_logged ? null : h("p", { class: "hint" }, "Failed attempts are unknown: the run logs errors only (", h("code", {}, "--log-level error"), ")."), told.log_read ? null : h("p", { class: "hint" }, "Failed attempts are unknown: they are in ", h("code", {}, ".txn/logs"), " of the folder in which ", h("code", {}, "txn run"), " was started, and this folder has no log of this topology.")]);
    } catch (error) { if (error.name !== "AbortError") show(now, error.message, () => empty(error.message)); }
    busy = false;
    changed();
  }

  function changed() { const one = topologyNamed(name); if (!busy && one && one.revision !== seen) load(); }

  async function loadBad() {
    try {
      const told = await get("bad-rows", { name }, stop.signal);
      show(bad, told, () => {
        if (!told.table) return empty("The topology has no table of bad rows.", "With one, rows that break a rule are set aside instead of lost: Topology(..., bad_rows=AppendTable(path)) and Stream.expect.");
        if (!told.rules.length) return empty("No row was set aside.");
        return [h("div", { class: "scroller", role: "region", "aria-label": "Rules", tabindex: "0" }, h("table", {}, h("thead", {}, h("tr", {}, ["stream", "rule"].map((w) => h("th", { scope: "col" }, w)), ["rows", "txids"].map((w) => h("th", { scope: "col", class: "n" }, w)))), h("tbody", {}, told.rules.map((r) => h("tr", {}, h("td", {}, r.stream), h("td", {}, r.rule), h("td", { class: "n" }, num(r.rows)), h("td", { class: "n" }, r.first_txid === r.last_txid ? num(r.first_txid) : `${num(r.first_txid)}–${num(r.last_txid)}`)))))),
          h("p", { class: "do" }, "Export the rows, correct them, and replay them:"), ofProgram(topologyNamed(name), "rows export", ` --stream ${quoted(told.rules[0].stream)} open.csv`),
          h("details", {}, h("summary", {}, told.rows.length === 1 ? "The row" : `The newest ${num(told.rows.length)} rows`), h("div", { class: "scroller", role: "region", "aria-label": "Bad rows", tabindex: "0" }, h("table", { class: "rows" }, h("thead", {}, h("tr", {}, ["txid", "rule", "row", "reason"].map((w) => h("th", { scope: "col" }, w)))), h("tbody", {}, told.rows.map((r) => h("tr", {}, h("td", {}, h("a", { href: link(name, "transactions", [r.txid]) }, String(r.txid))), h("td", {}, r.rule), h("td", { class: "mono wrap" }, r.row), h("td", { class: "wrap" }, r.reason)))))))];
      });
    } catch (error) { if (error.name !== "AbortError") show(bad, error.message, () => empty("The table of bad rows cannot be read.", error.message)); }
  }

  async function loadDoctor(again = false) {
    clearTimeout(timer);
    try {
      const told = await get("doctor", { name, again: again ? 1 : null }, stop.signal);
      const wrong = told.findings.filter((f) => f.level === "error" || f.level === "warning"), fine = told.findings.filter((f) => !wrong.includes(f));
      show(doctor, told, () => {
        if (!told.findings.length && told.at_work) return skeleton("Checking Java, disks, ZooKeeper and tables…", 2);
        return [h("p", { class: "hint" }, `${count(told.findings.filter((f) => f.level === "error").length, "error")}, ${count(wrong.filter((f) => f.level === "warning").length, "warning")}; looked ${clock(told.at_ms)}, without writing anything. `, h("code", {}, "txn doctor"), " also measures storage and ZooKeeper. ", told.at_work ? "Still looking…" : button("Look again", () => loadDoctor(true), { class: "button link" })),
          wrong.length ? h("ul", { class: "troubles" }, wrong.map((f) => h("li", { class: `trouble ${levels[f.level][0]}` }, h("div", { class: "trouble-head" }, badge(levels[f.level][1], levels[f.level][0]), h("span", { class: "area" }, f.area), h("span", { class: "muted" }, f.check)), h("p", { class: "pre what" }, f.found), f.means ? h("p", {}, f.means) : null, f.do ? h("p", { class: "do" }, f.do) : null))) : null,
          h("details", {}, h("summary", {}, `${count(fine.length, "check")} without a fault`), h("div", { class: "scroller", role: "region", "aria-label": "Checks", tabindex: "0" }, h("table", {}, h("tbody", {}, fine.map((f) => h("tr", {}, h("td", {}, f.area), h("td", {}, f.check), h("td", { class: "wrap" }, f.found)))))))];
      });
      if (told.at_work) timer = setTimeout(() => loadDoctor(), 700);
    } catch (error) { if (error.name !== "AbortError") show(doctor, error.message, () => empty(error.message)); }
  }

  load(); loadBad(); loadDoctor();
  const slow = setInterval(loadBad, 15000);
  return { changed, close() { stop.abort(); clearInterval(slow); clearTimeout(timer); } };
}
