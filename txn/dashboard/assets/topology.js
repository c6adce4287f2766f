// One topology: its graph, what is in flight, and how it goes over time.

import { Chart, gapped } from "./charts.js";
import { get, topologyNamed } from "./data.js";
import { empty, h, panel, show, skeleton } from "./dom.js";
import { link } from "./address.js";
import { BOUNDS, bytes, lagWords, ms, now, num, seconds, short, tableName } from "./format.js";
import { drawGraph } from "./graph.js";
import { ofProgram, people, state, stats } from "./parts.js";

const SPANS = [[15, "15 min"], [60, "1 h"], [360, "6 h"], [1440, "24 h"], [10080, "7 d"], [0, "all"]];
const PHASES = [["planning", "planning"], ["queued", "waiting for Spark"], ["processing", "processing"], ["processed", "waiting for its turn"], ["committing", "committing"]];
const ENDED = { until: "it had committed the txid up to which it was to run.", caught_up: "everything was read.", stopped: "it was stopped." };
const COLOURS = ["accent", "c2", "c3", "c4"];

function flight(one, name) {
  const at = PHASES.findIndex(([phase]) => phase === one.phase);
  const since = one.since ? now() - one.since * 1000 : null;
  const words = one.blocked ? "blocked" : at >= 0 ? PHASES[at][1] : one.phase === "waiting" ? "waits to be replayed" : one.phase;
  return h("li", { class: `flight ${one.blocked ? "blocked" : ""}` },
    h("a", { href: link(name, "transactions", [one.txid]), class: "flight-id" }, `${one.txid}:${one.attempt_id}`),
    h("span", { class: "track", "aria-hidden": "true" }, PHASES.map(([phase], i) => h("i", { class: `seg p-${phase} ${i < at ? "done" : i === at ? "now" : ""}` }))),
    h("span", { class: "flight-words" }, words, since !== null ? ` ${seconds(Math.max(0, since / 1000))}` : ""),
    one.failures ? h("span", { class: "badge warn" }, `${one.failures} failed`) : null,
    one.blocked ? h("span", { class: "flight-error" }, one.blocked) : null);
}

export function topology(root, at) {
  const name = at.name;
  // A topology that is new has all of its life in the shortest span.
  let told = null, minutes = now() - topologyNamed(name).began_ms < 900_000 || !topologyNamed(name).began_ms ? 15 : 60, stop = new AbortController(), busy = false, again = false, lagChart = null, lagKey = null;
  const head = h("div", { class: "head" }), held = h("div", { class: "held" });
  const graphBox = h("div", { class: "graph-box" }, skeleton("Asking for the graph of the program…")), flights = h("div", {}, skeleton("Asking for the batches that are being processed…")), lagBox = h("div", {}), more = h("div", { class: "stack" });
  const rate = new Chart("Rows staged", [{ label: "rows", colour: "accent", fill: true }], (v) => `${short(v)}/s`);
  const input = [new Chart("Records read", [{ label: "records", colour: "c2", fill: true }], (v) => `${short(v)}/s`), new Chart("Bytes read", [{ label: "bytes", colour: "c2", fill: true }], (v) => `${bytes(Math.round(v))}/s`)];
  input[0].node.hidden = true;
  const slow = new Chart("Time of a txid, from its plan to its commit", [{ label: "processing", colour: "c4" }, { label: "waiting", colour: "c2" }, { label: "slowest txid, both", colour: "c3" }], ms);
  const spans = h("div", { class: "segmented", role: "group", "aria-label": "How far back" }, SPANS.map(([m, words]) => h("button", { type: "button", "aria-pressed": String(m === minutes), onclick: (e) => { minutes = m; for (const b of spans.children) b.setAttribute("aria-pressed", String(b === e.currentTarget)); lagKey = null; load(); } }, words)));
  const graphPanel = panel("Graph", graphBox), flightPanel = panel("In flight", flights);
  const charts = h("section", { class: "panel", "aria-labelledby": "p-time" }, h("div", { class: "panel-head" }, h("h2", { id: "p-time" }, "Over time"), spans), h("div", { class: "charts" }, input[0].node, input[1].node, rate.node, slow.node, lagBox));
  root.append(h("h1", { class: "sr" }, name), head, held, graphPanel, h("div", { class: "columns" }, h("div", { class: "stack" }, flightPanel, more), charts));

  const drawHead = () => {
    const one = topologyNamed(name);
    if (!one) return;
    show(head, one, () => [h("div", { class: "head-line" }, h("span", { class: "title" }, name), state(one), people(one)), stats(one)]);
    show(held, [one.waits, one.held_up_by, one.live], () => {
      if (!one.live) return [];
      const waits = one.waits.map((words) => (words === "source: nothing to read" ? "waiting for new records" : words)).join("; ");
      const sentence = waits ? `${waits[0].toUpperCase()}${waits.slice(1)}.` : "";
      if (one.held_up_by !== "idle") return h("p", { class: "waits" }, h("b", {}, `Held up by ${BOUNDS[one.held_up_by] || one.held_up_by}. `), sentence);
      return sentence ? h("p", { class: "waits calm" }, sentence) : [];
    });
  };

  const drawRest = (told) => {
    const lags = {};
    for (const [stream, by] of Object.entries(told.lag || {})) { const words = lagWords(by, told.planned?.[stream]); lags[stream] = words === "none" ? "no lag" : `lag ${words}`; }
    show(graphBox, [told.graph, told.held_up_by, lags], () => {
      if (!told.graph.nodes.length) return empty("The streams and tables are unknown so far.", "They appear with the first commit.");
      return [h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Graph" }, drawGraph(told.graph, told.held_up_by, lags)),
        told.graph.declared ? null : h("p", { class: "hint" }, "Only the program knows its stages. To see them, name it: ", h("code", {}, "txn dashboard FILE.py:TOPOLOGY"), ", or start it with ", h("code", {}, "txn run"), " in this folder.")];
    });
    show(flights, told.flights.map((f) => ({ ...f, age: f.since ? Math.round((now() - f.since * 1000) / 500) : 0 })), () => {
      if (told.flights.length) return [h("ul", { class: "flights" }, told.flights.slice(0, 40).map((f) => flight(f, name))), told.flights.length > 40 ? h("p", { class: "hint" }, `and ${num(told.flights.length - 40)} more`) : null,
        told.live ? h("p", { class: "key" }, PHASES.map(([phase, words]) => h("span", {}, h("i", { class: `seg p-${phase} now` }), words))) : h("p", { class: "hint" }, "What each one is doing is unknown: only ", h("code", {}, "txn run"), " in this folder reports it.")];
      if (told.state === "running") return empty("Nothing is in flight.", "The topology waits for new records.");
      return empty("The topology is not running.", told.last_run ? told.last_run.error ? `The last run ended with an error: ${told.last_run.error}` : `The last run ended: ${ENDED[told.last_run.ended] || told.last_run.ended}` : "Start it: it goes on after the last committed txid.", ofProgram(told, "run"));
    });
    const spouts = Object.entries(told.spouts || {});
    show(more, [spouts, told.reads, told.settings, told.changes, told.notices, told.published], () => [
      told.published.length ? panel("Published tables", h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Published tables" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "table"), h("th", {}, "shows"), h("th", { class: "n" }, "txids behind"))), h("tbody", {}, told.published.map((one) => h("tr", {}, h("td", { title: one.table }, tableName(one.table)), h("td", {}, one.txid === null ? "unknown" : one.txid ? h("a", { href: link(name, "transactions", [one.txid]) }, `txid ${num(one.txid)}`) : "nothing yet"), h("td", { class: "n" }, one.behind === null ? "unknown" : num(one.behind)))))))) : null,
      spouts.length ? panel("Positions", h("p", { class: "hint" }, `What each stream read last, up to txid ${num(told.committed)}.`), h("div", { class: "kv" }, spouts.map(([stream, value]) => h("details", {}, h("summary", {}, h("b", {}, stream), ` ${told.reads[stream]}`), h("pre", { tabindex: "0" }, value === null ? "nothing read yet" : JSON.stringify(value, null, 1)))))) : null,
      told.changes ? panel("Newest change of the program", h("p", {}, `Since txid ${num(told.changes.since_txid)}:`), h("ul", { class: "plain" }, told.changes.changes.map((c) => h("li", {}, c)))) : null,
      told.settings.length ? panel("Settings", h("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": "Settings" }, h("table", {}, h("thead", {}, h("tr", {}, h("th", {}, "setting"), h("th", {}, "value"), h("th", {}, "from"))), h("tbody", {}, told.settings.map((one) => h("tr", {}, h("td", {}, h("code", {}, one.name)), h("td", {}, h("code", {}, one.value)), h("td", {}, one.place))))))) : null,
    ]);
  };

  const drawLag = (told) => {
    const lag = told.lag, key = JSON.stringify(lag.streams.map((x) => [x.name, x.unit]));
    if (!lag.streams.length) {
      lagChart?.close(); lagChart = null; lagKey = key;
      show(lagBox, "none", () => h("div", { class: "chart" }, h("div", { class: "chart-title" }, "Lag"), h("p", { class: "hint" }, "Unknown. Only the running process knows its lag, and the page keeps what it has seen. Start the topology with ", h("code", {}, "txn run"), " in this folder.")));
      return;
    }
    if (key !== lagKey) {
      lagChart?.close(); lagKey = key; lagBox.shownKey = null;
      lagChart = new Chart("Lag", lag.streams.map((x, i) => ({ label: `${x.name}, ${x.unit}`, colour: COLOURS[i % COLOURS.length] })), (v) => (lag.streams.every((x) => x.unit === "bytes") ? bytes(v) : short(v)));
      lagBox.replaceChildren(lagChart.node);
    }
    lagChart.set([lag.t, ...lag.streams.map((x) => x.values)], told.range);
  };

  async function load() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      told = await get("topology", { name, minutes }, stop.signal);
      const over = told.series;
      drawRest(told);
      input.forEach((chart) => { chart.node.hidden = (chart === input[0]) !== (over.read_unit === "records"); if (!chart.node.hidden) chart.set([over.t, over.read_per_s], over.range); });
      rate.set([over.t, over.rows_per_s], over.range);
      slow.set([over.t, ...["processing_ms", "waiting_ms", "max_ms"].map((key) => gapped(over[key], over.ran))], over.range);
      drawLag(over);
    } catch (error) { if (error.name !== "AbortError") for (const box of [graphBox, flights]) show(box, error.message, () => empty(error.message)); }
    busy = false;
    if (again && !stop.signal.aborted) { again = false; setTimeout(load, 300); }
  }

  drawHead();
  load();
  const ticking = setInterval(() => { if (told?.live) drawRest(told); }, 1000); // what is in flight gets older
  return { changed() { drawHead(); load(); }, painted() { for (const chart of [...input, rate, slow, lagChart]) chart?.redraw(); }, close() { clearInterval(ticking); stop.abort(); for (const chart of [...input, rate, slow, lagChart]) chart?.close(); } };
}
