// The address says everything: #/t/NAME/PAGE/REST?PARAMETERS

export const NAMES = ["overview", "topology", "transactions", "tables", "trouble"];

export function route() {
  const [path, query] = location.hash.replace(/^#/, "").split("?");
  const parts = path.split("/").filter(Boolean).map((part) => { try { return decodeURIComponent(part); } catch { return part; } });
  const params = Object.fromEntries(new URLSearchParams(query || ""));
  if (parts[0] !== "t" || !parts[1]) return { page: "overview", name: null, rest: [], params, lost: parts.length > 0 };
  return { lost: parts.length > 2 && !NAMES.includes(parts[2]), page: NAMES.includes(parts[2]) ? parts[2] : "topology", name: parts[1], rest: parts.slice(3), params };
}

export function link(name, page, rest = [], params = {}) {
  const query = new URLSearchParams(Object.entries(params).filter(([, v]) => v !== "" && v !== null && v !== undefined).map(([k, v]) => [k, String(v)])).toString();
  return `#/t/${[name, page, ...rest].map((part) => encodeURIComponent(part)).join("/")}${query ? `?${query}` : ""}`;
}

// Whoever draws pages listens for a change of the address, which a replacement does not tell by itself.
export function go(address, replace = false) {
  if (replace) { history.replaceState(null, "", address); dispatchEvent(new HashChangeEvent("hashchange")); } else location.hash = address;
}
