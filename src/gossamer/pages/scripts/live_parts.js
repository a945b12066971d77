// Parts that both views of the live page have: bars, cells that change in place, charts that grow.

import { Chart, legend } from "./charts.js";
import { choices, element } from "./dom.js";
import { duration } from "./numbers.js";

/** Who else may see a page from this address, in a sentence; nothing where it is encrypted or stays on this machine. */
export function openTo({ protocol, hostname }) {
  const here = hostname === "localhost" || hostname === "[::1]" || /^127(\.\d+){3}$/.test(hostname);
  return protocol === "https:" || here ? "" : "Not encrypted: whoever sees the traffic sees this page.";
}

/** How far something is, for the eye and for a screen reader. */
export function bar(label) {
  return element("progress", { max: 1, value: 0, "aria-label": label });
}

/** Set a bar, if it has moved. */
export function setBar(place, done, all) {
  const value = all > 0 ? done / all : 0;
  if (place.value !== value) place.value = value;
}

/** Set a text, if it is another one; `name` is the class that goes with it. */
export function setText(place, words, name) {
  if (place.textContent !== words) place.textContent = words;
  if (name !== undefined && place.className !== name) place.className = name;
}

/** Seconds that are left, in words that do not pretend to know more than they do. */
export function roughly(seconds) {
  if (seconds === null || seconds === undefined) return "";
  if (seconds < 1) return "moments";
  if (seconds < 60) return `${Math.ceil(seconds)} s`;
  if (seconds < 3600) return `${Math.round(seconds / 60)} min`;
  return duration(60 * Math.round(seconds / 60));
}

/** Put rows into this order, moving only what is out of place, so that the focus stays. */
export function arrange(body, rows) {
  const kept = new Set(rows);
  for (const row of [...body.children]) if (!kept.has(row)) row.remove();
  rows.forEach((row, i) => {
    if (body.children[i] !== row) {
      const focus = row.contains(document.activeElement) ? document.activeElement : null;
      body.insertBefore(row, body.children[i] ?? null);
      focus?.focus();
    }
  });
}

/** The charts of lines that grow. `lines` are [{label, variant, columns}]; those of one label share colour and legend. */
export class Curves {
  constructor(name) {
    this.place = element("section", { hidden: true }, element("h2", {}, "Curves"));
    this.controls = element("div", { class: "controls" });
    this.legend = element("div");
    this.grid = element("div", { class: "charts" });
    this.note = element("p", { class: "note" });
    this.place.append(this.controls, this.legend, this.grid, this.note);
    Object.assign(this, { name, charts: new Map(), hidden: new Set(), labels: "", axis: "round", axes: "" });
  }

  /** Forget all lines: others are shown from now on. */
  clear() {
    for (const chart of this.charts.values()) chart.plot?.destroy();
    this.charts.clear();
    this.grid.replaceChildren();
    this.hidden.clear();
    this.labels = this.axes = "";
  }

  draw(lines, metrics, axes, note = "") {
    const known = (key) => lines.some(({ columns }) => columns[key]?.some((value) => value !== null));
    const used = metrics.filter((metric) => known(metric.key));
    this.place.hidden = !used.length;
    if (!used.length) return;
    setText(this.note, note);
    this.drawAxes(axes.filter((axis) => axis.key === "round" || known(axis.key)));
    this.drawLegend([...new Map(lines.map((line) => [line.variant, line.label]))]);
    this.variants = lines.map(({ name, variant, columns }) => (
      { label: name, style: variant, rounds: columns.round, runs: [{ x: columns, y: columns }] }));
    this.shown = lines.map(({ variant }) => !this.hidden.has(variant));
    const axis = axes.find((each) => each.key === this.axis);
    const places = used.map((metric) => {
      if (!this.charts.has(metric.key)) {
        const own = element("div", { class: "chart" }, element("h3", {}, metric.title));
        const chart = new Chart(own, metric, [], this.variants);
        chart.axis = axis;
        this.charts.set(metric.key, chart);
      }
      return this.charts.get(metric.key).place;
    });
    arrange(this.grid, places);
    for (const metric of used) this.charts.get(metric.key).update(this.variants, this.shown);
  }

  drawAxes(axes) {
    const names = axes.map((axis) => axis.key).join();
    if (names === this.axes) return;
    this.axes = names;
    if (!axes.some((axis) => axis.key === this.axis)) this.axis = "round";
    const against = (key) => {
      this.axis = key;
      for (const chart of this.charts.values()) chart.against(axes.find((each) => each.key === key));
    };
    this.controls.replaceChildren(element("span", { class: "note" }, "against"),
      choices("axis", "The horizontal axis", axes.map((axis) => [axis.key, axis.title]), this.axis, against));
  }

  drawLegend(labels) {
    const names = JSON.stringify(labels);
    if (names === this.labels) return;
    this.labels = names;
    this.hidden.clear();
    this.legend.replaceChildren(labels.length > 1 ? legend(labels.map(([, label]) => label), (shown) => {
      this.hidden = new Set(labels.filter((_, i) => !shown[i]).map(([variant]) => variant));
      this.shown = this.variants.map(({ style }) => !this.hidden.has(style));
      for (const chart of this.charts.values()) chart.update(this.variants, this.shown);
    }, this.name, labels.map(([variant]) => variant)) : "");
  }

  redraw() {
    for (const chart of this.charts.values()) chart.draw();
  }
}
