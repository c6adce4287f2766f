// Parts that several pages show alike.

import { live } from "./data.js";
import { badge, command, copyable, h, quoted } from "./dom.js";
import { ago, BOUNDS, bytes, clock, count, iso, lag, num, short, STATES, UNKNOWN } from "./format.js";

export function state(one) {
  const [words, kind] = STATES[one.state] || [one.state, "muted"];
  return h("span", { class: `state ${kind}` }, h("i", { class: `dot ${kind}` }), words);
}

const stat = (label, value, unit) => h("div", { class: "stat" }, h("dt", {}, label), h("dd", {}, value, unit ? h("span", { class: "unit" }, ` ${unit}`) : null));

export const age = (at) => h("time", { datetime: iso(at), title: iso(at), "data-ago": at || null }, ago(at));

// Records and bytes a second; files have no number of records before they are read.
function readWords(records, read) {
  const size = read === null ? null : `${bytes(Math.round(read))}/s`;
  if (records === 0 && read === 0) return [h("span", { class: "none" }, "nothing")];
  if (records !== null) return [short(records), read === null ? "records/s" : `records/s, ${size}`];
  return [size || h("span", { class: "none" }, UNKNOWN)];
}

export function stats(one) {
  const lags = lag(one.lag, one.planned);
  const behind = lags === null ? [h("span", { class: "none", title: "Only the running process knows it: start it with txn run in this folder." }, UNKNOWN)]
    : lags.some((l) => l.words !== "none") ? lags.map((l) => h("span", { class: "lag" }, lags.length > 1 ? h("span", { class: "lag-name" }, `${l.stream} `) : null, l.words)) : [h("span", { class: "none" }, "none")];
  const [records, read] = one.read_per_s;
  return h("dl", { class: "stats" },
    stat("Committed txid", num(one.committed)),
    stat("Last commit", one.last_commit_ms ? age(one.last_commit_ms) : "never"),
    stat("Read, last minute", ...readWords(records, read)),
    stat("Staged, last minute", short(one.rows_per_s), "rows/s"),
    stat("Lag", behind),
    stat("In flight", num(one.in_flight), one.in_flight === 1 ? "txid" : "txids"),
    stat("Held up by", one.held_up_by ? BOUNDS[one.held_up_by] || one.held_up_by : h("span", { class: "none" }, one.state === "running" ? UNKNOWN : "not running")));
}

// A command that needs the program of a topology; to be copied if the program is known.
export function ofProgram(one, before, after = "") {
  const text = `txn ${before} ${one?.program ? quoted(one.program) : "FILE.py:TOPOLOGY"}${after}${live.overview?.option || ""}`;
  return one?.program ? copyable(text, "the command") : command(text, "FILE.py:TOPOLOGY is your program, and the name of the topology in it.");
}

export function people(one) {
  const who = (p) => `${p.host}:${p.pid}`;
  const told = [];
  if (one.leader) told.push(h("span", {}, one.leader.alive ? "Leader " : "Leader (gone) ", h("b", {}, who(one.leader)), ` since ${clock(Date.parse(one.leader.started))}, epoch ${num(one.leader.epoch)}`));
  else if (one.last_leader) told.push(h("span", {}, "Last led by ", h("b", {}, who(one.last_leader)), `, epoch ${num(one.last_leader.epoch)}`));
  else told.push(h("span", {}, "No process has led it yet"));
  if (one.standbys.length) told.push(h("span", {}, one.standbys.length > 1 ? `${one.standbys.length} standbys: ` : "Standby ", h("b", {}, one.standbys.slice(0, 3).map((s) => who(s) + (s.changes_program ? " (another program)" : "")).join(", "))));
  else if (one.leader) told.push(h("span", { class: "muted" }, "No standby"));
  return h("p", { class: "people" }, told);
}

export const levels = { error: ["err", "Error"], warning: ["warn", "Warning"], note: ["muted", "Note"] };

export function troubleWords(one) {
  const { error, warning } = one.troubles;
  if (!error && !warning) return one.set_aside ? badge(`${count(one.set_aside, "row")} set aside`, "warn") : badge("no trouble", "ok");
  return [error ? badge(`${error} ${error === 1 ? "error" : "errors"}`, "err") : null, warning ? badge(`${warning} ${warning === 1 ? "warning" : "warnings"}`, "warn") : null];
}
