// Charts over time (uPlot) and small lines (SVG), in the page's own colours.

import { h, s } from "./dom.js";
import { UNKNOWN } from "./format.js";

export const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

// A line for each time in which something ran; null: nothing did.
export function spark(points, label) {
  const width = 240, height = 36, most = Math.max(...points, 1e-9);
  const step = width / Math.max(1, points.length - 1);
  const x = (i) => (i * step).toFixed(1), y = (v) => (height - 1.5 - (v / most) * (height - 4)).toFixed(1);
  const lines = [];
  points.forEach((v, i) => { if (v === null) return; if (i === 0 || points[i - 1] === null) lines.push([]); lines[lines.length - 1].push(i); });
  return s("svg", { class: "spark", viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": label }, lines.map((all) => {
    const line = all.map((i) => `${x(i)},${y(points[i])}`).join(" ");
    return [s("polygon", { points: `${x(all[0])},${height} ${line} ${x(all[all.length - 1])},${height}`, class: "spark-area" }),
      s("polyline", { points: line, class: "spark-line", "vector-effect": "non-scaling-stroke" })];
  }));
}

// uPlot ends a line at null, and goes on over undefined: a run without a txid is no gap.
export const gapped = (values, ran) => values.map((value, i) => value ?? (ran[i] ? undefined : null));

const isThere = (value) => value !== null && value !== undefined;

// Places of values without a neighbour, through which no line goes.
const alone = (plot, series) => plot.data[series].flatMap((value, i, all) => (isThere(value) && !isThere(all[i - 1]) && !isThere(all[i + 1]) ? [i] : []));

const sync = () => (window.uPlot ? window.uPlot.sync("txn") : null);

export class Chart {
  // lines: [{label, colour, fill}]; format: value -> text with its unit; none: what to say if there is no value.
  constructor(title, lines, format, none = "Nothing was committed in this time.") {
    this.none = none;
    this.title = title;
    this.lines = lines;
    this.format = format;
    this.legend = h("div", { class: "legend" });
    this.place = h("div", { class: "plot" });
    this.node = h("figure", { class: "chart" }, h("figcaption", {}, h("span", { class: "chart-title" }, title), this.legend), this.place);
    this.plot = null;
    this.data = null;
    this.range = null;
    this.resizer = new ResizeObserver(() => this.resize());
    this.resizer.observe(this.place);
  }

  // range: [from, until] in seconds, the same for all charts under each other.
  set(data, range) {
    this.data = data;
    this.range = range;
    if (!data.slice(1).some((values) => values.some(isThere))) {
      this.plot?.destroy(); this.plot = null; this.data = null;
      this.legend.replaceChildren();
      this.place.replaceChildren(h("p", { class: "hint" }, this.none));
      return;
    }
    if (!this.plot) this.build();
    else this.plot.setData(data);
    this.tell(null);
  }

  build() {
    if (!this.data || !window.uPlot || !this.place.clientWidth) return;
    this.place.replaceChildren();
    const axis = { stroke: colour("muted"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false }, font: "12px system-ui, sans-serif" };
    const secondOf = (sec) => new Date(sec * 1000).toTimeString().slice(0, 8);
    const clockOf = (sec) => secondOf(sec).slice(0, 5);
    const dayOf = (sec) => { const d = new Date(sec * 1000); return `${d.getMonth() + 1}/${d.getDate()} ${clockOf(sec)}`; };
    this.plot = new window.uPlot({
      width: this.place.clientWidth, height: 132, cursor: { sync: { key: "txn" }, points: { size: 6 }, y: false },
      legend: { show: false }, padding: [6, 6, 0, 0],
      scales: { x: { range: () => this.range }, y: { range: (u, low, high) => [0, high > 0 ? high * 1.08 : 1] } },
      axes: [
        { ...axis, size: 22, space: 64, values: (u, at) => { const [from, until] = this.range; return at.map(until - from > 86400 ? dayOf : at[1] - at[0] < 60 ? secondOf : clockOf); } },
        { ...axis, size: 76, space: 34, values: (u, at) => at.map((v) => (v === 0 ? "0" : this.format(v))) },
      ],
      series: [{}, ...this.lines.map((line) => ({
        label: line.label, stroke: colour(line.colour), width: 1.5, points: { show: true, size: 4, filter: alone },
        fill: line.fill ? `color-mix(in srgb, ${colour(line.colour)} 14%, transparent)` : undefined,
      }))],
      hooks: { setCursor: [(u) => this.tell(u.cursor.idx)] },
    }, this.data, this.place);
    sync()?.sub(this.plot);
    this.describe();
  }

  // The legend has the value under the cursor, or the newest one.
  tell(at) {
    if (!this.data) return;
    const told = this.lines.map((line, i) => {
      const values = this.data[i + 1];
      let value = at === null || at === undefined ? null : values[at];
      if (at === null || at === undefined) for (let j = values.length - 1; j >= 0 && !isThere(value); j -= 1) value = values[j];
      return h("span", { class: "legend-item" }, h("i", { class: `dot c-${line.colour}` }), `${line.label} `, h("b", {}, isThere(value) ? this.format(value) : UNKNOWN));
    });
    this.legend.replaceChildren(...told);
    this.describe();
  }

  describe() {
    const canvas = this.place.querySelector("canvas");
    if (!canvas) return;
    canvas.setAttribute("role", "img");
    canvas.setAttribute("aria-label", `${this.title} over time. ${this.legend.textContent}`);
  }

  resize() {
    if (!this.plot) this.build();
    else if (this.place.clientWidth) this.plot.setSize({ width: this.place.clientWidth, height: 132 });
  }

  redraw() { this.plot?.destroy(); this.plot = null; this.build(); this.tell(null); }

  close() { this.resizer.disconnect(); if (this.plot) { sync()?.unsub(this.plot); this.plot.destroy(); } }
}
