// What the server says: answers to questions, and the stream of what has changed.

import { setNow } from "./format.js";

export async function get(what, params, signal) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(params || {})) {
    if (value !== null && value !== undefined && value !== "") query.set(name, String(value));
  }
  let answer;
  try {
    answer = await fetch(`api/${what}?${query}`, { signal, credentials: "same-origin", cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("The page's server does not answer.");
  }
  const text = await answer.text();
  let told = null;
  try { told = JSON.parse(text); } catch { /* an error page */ }
  if (!answer.ok) throw new Error(told && told.error ? told.error : text || `HTTP ${answer.status}`);
  return told;
}

export const live = { overview: null, connected: false, at: 0, listeners: new Set() };

const AGAIN_MS = 3000;
const SILENT_MS = 25000; // the server says something every 10 s

export function listen() {
  const source = new EventSource("api/events");
  const tell = () => { for (const listener of [...live.listeners]) listener(); };
  const lost = () => { if (live.connected) { live.connected = false; tell(); } };
  // After a sleep, or in a network that drops it without a word, a connection may be silent for ever.
  const silent = () => { source.close(); lost(); listen(); };
  let timer = setTimeout(silent, SILENT_MS);
  source.addEventListener("overview", (event) => {
    live.overview = JSON.parse(event.data);
    live.connected = true;
    live.at = Date.now();
    clearTimeout(timer); timer = setTimeout(silent, SILENT_MS);
    setNow(live.overview.now_ms);
    tell();
  });
  source.addEventListener("error", () => {
    // After an answer that is no stream (a proxy's 502, a 401) the browser does not ask again by itself.
    if (source.readyState === EventSource.CLOSED) { clearTimeout(timer); setTimeout(listen, AGAIN_MS); }
    lost();
  });
}

export const topologyNamed = (name) => live.overview?.topologies.find((t) => t.name === name) || null;
