// Numbers and times for people; every number has its unit.

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const tenth = new Intl.NumberFormat("en-US", { maximumFractionDigits: 1 });

export const UNKNOWN = "unknown";

export const num = (n) => (n === null || n === undefined ? UNKNOWN : whole.format(n));

export function short(n) {
  if (n === null || n === undefined) return UNKNOWN;
  const size = Math.abs(n);
  if (size >= 1e9) return `${tenth.format(n / 1e9)} G`;
  if (size >= 1e6) return `${tenth.format(n / 1e6)} M`;
  if (size >= 1e4) return `${tenth.format(n / 1e3)} k`;
  return size >= 10 || Number.isInteger(n) ? whole.format(n) : tenth.format(n);
}

export function bytes(n) {
  if (n === null || n === undefined) return UNKNOWN;
  if (n < 1000) return `${n} B`;
  const units = ["kB", "MB", "GB", "TB", "PB"];
  let at = -1;
  while (n >= 999.95 && at < units.length - 1) { n /= 1000; at += 1; }
  return `${tenth.format(n)} ${units[at]}`;
}

export function ms(n) {
  if (n === null || n === undefined) return UNKNOWN;
  if (n < 1) return `${tenth.format(n)} ms`;
  if (n < 1000) return `${whole.format(n)} ms`;
  return seconds(n / 1000);
}

export function seconds(n) {
  if (n < 10) return `${tenth.format(n)} s`;
  if (n < 60) return `${whole.format(Math.floor(n))} s`;
  if (n < 3600) return `${Math.floor(n / 60)} min ${String(Math.floor(n % 60)).padStart(2, "0")} s`;
  if (n < 172800) return `${Math.floor(n / 3600)} h ${String(Math.floor((n % 3600) / 60)).padStart(2, "0")} min`;
  return `${Math.floor(n / 86400)} days`;
}

const pad = (n) => String(n).padStart(2, "0");

export function clock(at) {
  if (!at) return UNKNOWN;
  const d = new Date(at);
  const time = `${pad(d.getHours())}:${pad(d.getMinutes())}:${pad(d.getSeconds())}`;
  const today = new Date().toDateString() === d.toDateString();
  return today ? time : `${d.getFullYear()}-${pad(d.getMonth() + 1)}-${pad(d.getDate())} ${time}`;
}

export const iso = (at) => (at ? new Date(at).toISOString() : "");

// The server's clock counts, not the browser's.
let skew = 0;
export const setNow = (serverMs) => { skew = serverMs - Date.now(); };
export const now = () => Date.now() + skew;
export const ago = (at) => (at ? `${seconds(Math.max(0, (now() - at) / 1000))} ago` : "never");

export function lag(streams, planned) {
  if (!streams) return null;
  return Object.entries(streams).map(([stream, by]) => ({ stream, words: lagWords(by, planned?.[stream]) })).filter((x) => x.words);
}

export function lagWords(by, planned) {
  const amounts = Object.values(by), behind = amounts.some((n) => n > 0);
  if (amounts.length && !behind) return "none";
  const told = [];
  for (const unit of ["records", "files", "versions"]) if (by[unit] !== undefined) told.push(`${short(by[unit])} ${by[unit] === 1 ? unit.slice(0, -1) : unit}`);
  if (by.bytes !== undefined) told.push(bytes(by.bytes));
  if (by.seconds !== undefined) told.push(seconds(by.seconds));
  if (!planned || !Object.values(planned).some((n) => n > 0)) return told.join(", ");
  const all = Object.entries(planned).every(([unit, n]) => n >= by[unit]);
  return `${told.join(", ")} (${all ? "all" : lagWords(planned)} in flight)`;
}

export const count = (n, one, many) => `${num(n)} ${n === 1 ? one : many || `${one}s`}`;

export const tableName = (path) => path.replace(/\/+$/, "").split("/").pop() || path;

export const BOUNDS = {
  source: "the source", processing: "processing", commit: "commits", away: "a source or storage that is away",
  replay: "replays", idle: "nothing: all records are read", ended: "nothing: it ends",
};

export const STATES = {
  running: ["Running", "ok"], starting: ["Asking ZooKeeper", "muted"], lost: ["Leader lost", "err"],
  standby: ["Standby only", "warn"], stopped: ["Stopped", "muted"], died: ["Died", "err"], absent: ["Never run", "muted"], unknown: ["Unknown", "err"],
};
