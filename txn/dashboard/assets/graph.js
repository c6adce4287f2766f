// The graph of a topology: spouts left, tables right; widths by rows, colour by what waits.

import { s } from "./dom.js";
import { count, num, tableName } from "./format.js";

const LEAST = 104, MOST = 208, GAP_X = 44, GAP_Y = 16, PAD = 6; // LEAST and MOST: widths of text
const TEXT_X = 16, LABEL = "600 12.5px", WORDS = "12px", LINE = 16; // fonts as in app.css
const WAITING = { source: "stream", processing: "stage", commit: "table" };

function layers(graph) {
  const depth = new Map(graph.nodes.map((n) => [n.id, 0]));
  const known = (id) => depth.has(id);
  const edges = graph.edges.filter(([a, b]) => known(a) && known(b) && a !== b);
  for (let round = 0; round < graph.nodes.length; round += 1) {
    let moved = false;
    for (const [from, to] of edges) {
      if (depth.get(to) < depth.get(from) + 1 && depth.get(from) + 1 < graph.nodes.length + 1) { depth.set(to, depth.get(from) + 1); moved = true; }
    }
    if (!moved) break;
  }
  const last = Math.max(0, ...depth.values());
  const feeds = new Set(edges.map(([from]) => from));
  for (const node of graph.nodes) if (node.kind === "table" && !feeds.has(node.id)) depth.set(node.id, last);
  return { depth, edges, last };
}

// Lines that pass a column get a place of their own in it, so that they cross no box.
function withBends(boxes, depth, edges) {
  const nodes = [...boxes];
  const links = [];
  for (const [from, to] of edges) {
    let before = from;
    for (let x = depth.get(from) + 1; x < depth.get(to); x += 1) {
      const id = `bend\n${from}\n${to}\n${x}`;
      depth.set(id, x);
      nodes.push({ id, kind: "bend", high: 10, end: to });
      links.push([before, id, to]);
      before = id;
    }
    links.push([before, to, to]);
  }
  return { nodes, links };
}

export function drawGraph(graph, heldUpBy, lags) {
  const { depth, edges, last } = layers(graph);
  const wide = Array.from({ length: last + 1 }, () => LEAST);
  for (const node of graph.nodes) { const x = depth.get(node.id); wide[x] = Math.max(wide[x], Math.min(MOST, Math.ceil(widthOf(nameOf(node), LABEL))), Math.min(170, Math.ceil(widthOf(node.words, WORDS)))); }
  const left = wide.map((_, x) => PAD + wide.slice(0, x).reduce((sum, w) => sum + w + TEXT_X + 8 + GAP_X, 0));
  const { nodes, links } = withBends(graph.nodes.map((node) => boxOf(node, wide[depth.get(node.id)], lags)), depth, edges);
  const columns = Array.from({ length: last + 1 }, () => []);
  for (const node of nodes) columns[depth.get(node.id)].push(node);
  const place = new Map();
  const tallOf = (column) => column.reduce((sum, n) => sum + n.high + GAP_Y, -GAP_Y);
  const height = Math.max(...columns.map(tallOf)) + 2 * PAD;
  const middle = (id) => { const at = place.get(id); return at ? at.y + at.high / 2 : 0; };
  columns.forEach((column, x) => {
    // Near what feeds it, so that lines cross seldom.
    const at = (n) => { const above = links.filter(([, to]) => to === n.id).map(([from]) => middle(from)); return above.length ? above.reduce((a, b) => a + b, 0) / above.length : 0; };
    if (x > 0) column.sort((a, b) => at(a) - at(b));
    let y = (height - tallOf(column)) / 2;
    for (const node of column) { place.set(node.id, { x: left[x], end: left[x] + wide[x] + TEXT_X + 8, y, high: node.high, bend: node.kind === "bend" }); y += node.high + GAP_Y; }
  });
  const weight = new Map(graph.nodes.map((n) => [n.id, n.rows || 0]));
  for (let x = last; x >= 0; x -= 1) {
    for (const node of columns[x]) {
      const below = edges.filter(([from]) => from === node.id).map(([, to]) => weight.get(to) || 0);
      if (below.length) weight.set(node.id, Math.max(...below));
    }
  }
  const most = Math.max(1, ...weight.values());
  const thick = (id) => (weight.get(id) ? 1.5 + 5 * (Math.log10(1 + weight.get(id)) / Math.log10(1 + most)) : 1.5);
  const lines = links.map(([from, to, end]) => {
    const a = place.get(from), b = place.get(to);
    const x0 = a.x, x1 = a.end, y1 = middle(from), x2 = b.x, y2 = middle(to), half = (x2 - x1) / 2;
    const through = a.bend ? `M${x0},${y1} H${x1}` : `M${x1},${y1}`;
    return s("path", { class: "edge", d: `${through} C${x1 + half},${y1} ${x2 - half},${y2} ${x2},${y2}`, "stroke-width": thick(end).toFixed(1) });
  });
  const waits = WAITING[heldUpBy];
  const boxes = nodes.filter((node) => node.kind !== "bend").map((node) => {
    const { x, y, end } = place.get(node.id);
    const slow = node.kind === waits || (heldUpBy === "away" && node.kind === "stream");
    const text = (line, i, kind, top) => s("text", { x: TEXT_X, y: top + LINE * (i + 1), class: kind }, line);
    return s("g", { class: `node ${node.kind}${slow ? " slow" : ""}`, transform: `translate(${x},${y})` },
      s("title", {}, [node.label, node.rows ? `${count(node.rows, "row")} staged by its newest 200 txids` : null, node.words, node.why].filter(Boolean).join("\n")),
      s("rect", { width: end - x, height: node.high, rx: 5 }),
      s("rect", { class: "mark", width: 3, height: node.high - 12, x: 6, y: 6, rx: 1.5 }),
      node.name.map((line, i) => text(line, i, "node-label", 4)),
      node.about.map((line, i) => text(line, i, "node-words", 4 + LINE * node.name.length)));
  });
  const width = left[last] + wide[last] + TEXT_X + 8 + PAD;
  const told = graph.nodes.map((n) => n.label).join(", ");
  return s("svg", { class: "graph", viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": `Graph of the topology: ${told}` }, lines, boxes);
}

const pen = document.createElement("canvas").getContext("2d");

function widthOf(text, font) {
  pen.font = `${font} ${getComputedStyle(document.body).fontFamily}`;
  return pen.measureText(text || "").width;
}

const nameOf = (node) => (node.kind === "table" ? tableName(node.label) : node.label);

// A node with its lines of text: its whole name, and two lines of words.
function boxOf(node, wide, lags) {
  const staged = node.kind === "table" && node.rows ? `${num(node.rows)} staged` : null;
  const words = (lags && lags[node.label]) || [staged, node.words].filter(Boolean).join(" · ");
  const name = wrapped(nameOf(node), LABEL, wide), about = cut(wrapped(words, WORDS, wide), words, wide);
  const lines = name.length + (node.kind === "stream" ? 2 : about.length); // a lag comes and goes
  return { ...node, name, about, high: LINE * lines + 14 };
}

// Lines that are no wider; broken after a space or a sign, else between letters.
function wrapped(text, font, wide) {
  const lines = [""];
  for (const piece of text.match(/[^\s_/.,:+-]*[\s_/.,:+-]?/g)) {
    const line = lines[lines.length - 1];
    if (widthOf((line + piece).trimEnd(), font) <= wide) { lines[lines.length - 1] += piece; continue; }
    if (line) lines.push("");
    for (const letter of piece) {
      if (widthOf(lines[lines.length - 1] + letter, font) > wide) lines.push("");
      lines[lines.length - 1] += letter;
    }
  }
  return lines.map((line) => line.trimEnd()).filter(Boolean);
}

// Two lines at most; of a path, its end.
function cut(lines, text, wide) {
  if (lines.length <= 2) return lines;
  const isPath = /^\S*[/\\]\S*$/.test(text), letters = isPath ? [...text].slice(-120) : [...text].slice(0, 120);
  while (wrapped(isPath ? `…${letters.join("")}` : `${letters.join("")}…`, WORDS, wide).length > 2) if (isPath) letters.shift(); else letters.pop();
  return wrapped(isPath ? `…${letters.join("")}` : `${letters.join("")}…`, WORDS, wide);
}
