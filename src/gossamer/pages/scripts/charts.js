// Curves: one chart for each metric, all variants in it, against the same axis. uPlot gives axes, scales and zoom.

import { colour, element } from "./dom.js";
import { amount, decimals, duration, extent, meanAndSpread, plain } from "./numbers.js";

/* global uPlot */

const DASHES = [[], [7, 4], [2, 3], [9, 3, 2, 3]];
const COLOURS = 7;
const HEIGHT = 250;

/** The colour and dashes of a variant: colours first, then the same colours dashed. */
export function lineStyle(index) {
  return { colour: colour(`c${index % COLOURS}`), dash: DASHES[Math.floor(index / COLOURS) % DASHES.length] };
}

/** The same as `lineStyle`, as the style of an SVG path. */
export function strokes(index, width) {
  const dash = DASHES[Math.floor(index / COLOURS) % DASHES.length].join(" ");
  return `stroke: var(--c${index % COLOURS}); stroke-width: ${width}; stroke-dasharray: ${dash || "none"}`;
}

/** A sample of a variant's line, for a legend. */
export function lineSample(index) {
  const sample = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  sample.setAttribute("width", "26");
  sample.setAttribute("height", "10");
  const line = document.createElementNS("http://www.w3.org/2000/svg", "path");
  line.setAttribute("d", "M0 5H26");
  line.style.cssText = strokes(index, 2.5);
  sample.append(line);
  return sample;
}

/** The curve of a variant: mean and band over its runs, against an axis; null if no run measured the metric. */
export function curve(runs, metric, axis) {
  const measured = runs.filter((run) => run.y[metric]?.some((value) => value !== null));
  if (!measured.length) return null;
  const { mean, spread } = meanAndSpread(measured.map((run) => run.y[metric]));
  const x = axis === null ? null : meanAndSpread(measured.map((run) => run.x[axis])).mean;
  return { x, mean, spread };
}

/** How a value of a metric or of an axis is written. */
export function written(kind, value) {
  if (kind === "percent") return value === null ? "–" : `${(100 * value).toFixed(1).replace("-", "−")} %`;
  if (kind === "bytes") return amount(value, "B");
  if (kind === "count") return amount(value);
  if (kind === "seconds") return duration(value);
  return plain(value);
}

/** Values beside an axis, all with the decimals that their steps need; null where there is a line without a value. */
export function ticked(kind, values, log = false) {
  const known = values.filter((value) => value !== null).map((value) => (kind === "percent" ? 100 * value : value));
  const size = Math.max(0, ...known.map(Math.abs));
  const fixed = kind === "percent" || (kind === "number" && !log && size >= 1e-3 && size < 1e5);
  const places = fixed ? decimals(known) : 0;
  return values.map((value) => {
    if (value === null) return "";
    if (!fixed) return written(kind, value);
    return (kind === "percent" ? `${(100 * value).toFixed(places)} %` : value.toFixed(places)).replace("-", "−");
  });
}

/** Whether a logarithmic axis has a line at a value: powers of ten, of a long one every second, third, ... of them, and
 *  2 and 5 times these where it is short. */
export function isRound(value, ratio) {
  const [digit, power] = value.toExponential(6).split("e").map(Number);
  const every = Math.max(1, Math.ceil(Math.log10(ratio) / 8));
  return (digit === 1 && power % every === 0) || (ratio < 300 && (digit === 2 || digit === 5));
}

/** A positive number cut to one digit. uPlot counts the lines of a logarithmic axis up from its lower end in steps of the
 *  power of ten below it; from 0.0098 it would step over 0.01, and count for ever. */
export function oneDigit(value) {
  const power = 10 ** Math.floor(Math.log10(value));
  return Number((Math.max(1, Math.floor(value / power)) * power).toPrecision(1));
}

/** One chart. `variants` are [{label, runs}], `rounds` the rounds of all columns; a variant may have rounds of its own,
 *  and the line style of another one. */
export class Chart {
  constructor(place, metric, rounds, variants) {
    Object.assign(this, { place, metric, rounds, variants, shown: variants.map(() => true), axis: null, lines: [], zoomed: false });
    this.tip = element("div", { class: "tip", hidden: true });
    place.append(this.tip);
  }

  /** The lines against an axis: {key, title, kind}; round is the axis of all. */
  against(axis) {
    this.axis = axis;
    this.lines = this.columns();
    this.draw();
  }

  columns() {
    return this.variants.map(({ runs, rounds }) => {
      const found = curve(runs, this.metric.key, this.axis.key === "round" ? null : this.axis.key);
      if (found === null) return null;
      return { ...found, x: found.x ?? rounds ?? this.rounds };
    });
  }

  /** Other columns of runs that go on; `shown` says which of them are. A zoom and the pointer stay where they are. */
  update(variants, shown) {
    Object.assign(this, { variants, shown });
    if (!this.axis) return;
    this.lines = this.columns();
    const before = this.range;
    this.range = this.ranges();
    if (!this.plot || before?.log !== this.range.log) this.draw();
    else {
      this.plot.setData(this.frame(), !this.zoomed);
      if (this.zoomed) this.plot.redraw();
      this.point(this.plot);
    }
  }

  /** The corners of the range, as data: all lines are painted by hand. */
  frame() {
    const { x, y } = this.range;
    return [x, y];
  }

  show(shown) {
    this.shown = shown;
    this.draw();
  }

  visible() {
    return this.lines.flatMap((line, index) => (line && this.shown[index] ? [[index, line]] : []));
  }

  ranges() {
    const lines = this.visible().map(([, line]) => line);
    const [small, large] = extent(lines.map((line) => line.mean), (value) => value > 0);
    const log = this.metric.log && large > 8 * small; // a shorter axis has too few round numbers
    const [left, right] = extent(lines.map((line) => line.x.filter((_, i) => line.mean[i] !== null)));
    const x = left === right ? [left - 1, right + 1] : [left, right];
    if (log) return { log, x, y: [oneDigit(small / 1.6), large * 1.6] };
    let [low, high] = extent(lines.map((line) => line.mean));
    const [least, most] = [low, high];
    for (const line of lines) {
      line.mean.forEach((mean, i) => {
        if (mean === null || line.spread[i] === null) return;
        low = Math.min(low, mean - line.spread[i]);
        high = Math.max(high, mean + line.spread[i]);
      });
    }
    // No axis goes below 0 % or beyond 100 % for a band alone.
    if (this.metric.kind === "percent" && least >= 0) [low, high] = [Math.max(low, 0), Math.min(high, Math.max(1, most))];
    const room = (high - low) * 0.06 || Math.abs(high) * 0.06 || 1;
    const top = this.metric.kind === "percent" && high <= 1 ? Math.min(1, high + room) : high + room;
    return { log, x, y: [low >= 0 && low - room < 0 ? 0 : low - room, top] };
  }

  draw(width = this.place.clientWidth) {
    this.plot?.destroy();
    if (!width || !this.axis) return;
    this.range = this.ranges();
    const { log } = this.range;
    const [soft, rule] = [colour("soft"), colour("rule")];
    const font = "12px system-ui, sans-serif";
    const common = { stroke: soft, font, grid: { stroke: rule, width: 1 }, ticks: { show: false } };
    const filter = (_, splits) => splits.map((value) => (isRound(value, this.range.y[1] / this.range.y[0]) ? value : null));
    const options = {
      width, height: HEIGHT, legend: { show: false },
      cursor: { y: false, points: { show: false }, drag: { x: true, y: false } },
      scales: {
        x: { time: false, range: (_, low, high) => (this.zoomed ? [low, high] : this.range.x) },
        y: { distr: log ? 3 : 1, range: () => this.range.y },
      },
      axes: [
        { ...common, grid: { show: false }, size: 30, gap: 6, space: 64,
          values: (_, ticks) => ticks.map((tick) => (this.axis.key === "round" && tick % 1 ? "" : written(this.axis.kind, tick))) },
        { ...common, size: 58, gap: 6, space: 34, ...(log ? { filter, grid: { ...common.grid, filter } } : {}),
          values: (_, ticks) => ticked(this.metric.kind, ticks, log) },
      ],
      series: [{}, { show: false }],
      hooks: {
        draw: [(plot) => this.paint(plot)], setCursor: [(plot) => this.point(plot)],
        setSelect: [() => { this.zoomed = true; }],
      },
    };
    this.zoomed = false;
    this.plot = new uPlot(options, this.frame(), this.place);
    this.plot.over.addEventListener("dblclick", () => { this.zoomed = false; });
    this.plot.over.addEventListener("mouseleave", () => { this.tip.hidden = true; });
  }

  paint(plot) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio || 1;
    const [, bottom] = [0, plot.scales.y.min];
    const at = (line, i, value) => [
      plot.valToPos(line.x[i], "x", true), plot.valToPos(plot.scales.y.distr === 3 ? Math.max(value, bottom) : value, "y", true),
    ];
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const [index, line] of this.visible()) {
      const style = lineStyle(this.variants[index].style ?? index);
      const known = line.mean.flatMap((value, i) => (value !== null && line.x[i] !== null ? [i] : []));
      const banded = known.filter((i) => line.spread[i] !== null);
      ctx.fillStyle = ctx.strokeStyle = style.colour;
      if (banded.length > 1) {
        ctx.globalAlpha = 0.14;
        ctx.beginPath();
        for (const i of banded) ctx.lineTo(...at(line, i, line.mean[i] + line.spread[i]));
        for (const i of banded.toReversed()) ctx.lineTo(...at(line, i, line.mean[i] - line.spread[i]));
        ctx.fill();
        ctx.globalAlpha = 1;
      }
      ctx.lineWidth = 1.8 * ratio;
      ctx.lineJoin = "round";
      ctx.setLineDash(style.dash.map((length) => length * ratio));
      ctx.beginPath();
      for (const i of known) ctx.lineTo(...at(line, i, line.mean[i]));
      ctx.stroke();
      if (known.length === 1) {
        ctx.beginPath();
        ctx.arc(...at(line, known[0], line.mean[known[0]]), 3.5 * ratio, 0, 2 * Math.PI);
        ctx.fill();
      }
    }
    ctx.restore();
  }

  /** Name the curve that is nearest to the pointer. */
  point(plot) {
    const { left, top } = plot.cursor;
    let found = null;
    if (left >= 0 && top >= 0) {
      for (const [index, line] of this.visible()) {
        line.mean.forEach((value, i) => {
          if (value === null || line.x[i] === null) return;
          const [dx, dy] = [plot.valToPos(line.x[i], "x") - left, plot.valToPos(value, "y") - top];
          const far = dx * dx + dy * dy;
          if (far < 1600 && (found === null || far < found.far)) found = { far, index, line, i, value };
        });
      }
    }
    this.tip.hidden = found === null;
    if (found === null) return;
    const { index, line, i, value } = found;
    const band = line.spread[i] === null ? "" : ` ± ${written(this.metric.kind, line.spread[i])}`;
    const where = `${this.axis.title} ${written(this.axis.kind, line.x[i])}`;
    this.tip.replaceChildren(
      element("b", {}, this.variants[index].label), element("br"),
      `${written(this.metric.kind, value).replace(band ? " %" : "", "")}${band}`, element("br"), where,
    );
    const right = left > plot.over.clientWidth / 2;
    this.tip.style.top = `${plot.over.offsetTop + top + 14}px`;
    this.tip.style.left = right ? "" : `${plot.over.offsetLeft + left + 14}px`;
    this.tip.style.right = right ? `${this.place.clientWidth - plot.over.offsetLeft - left + 14}px` : "";
  }
}

/** Buttons that show and hide variants; with many of them, two more for all and none. */
export function legend(labels, changed, name = "Variants", styles = labels.map((_, index) => index)) {
  const shown = labels.map(() => true);
  const buttons = labels.map((label, index) => {
    const button = element("button", { type: "button", "aria-pressed": "true" }, lineSample(styles[index]), label);
    button.addEventListener("click", () => set(index, !shown[index]));
    return button;
  });
  const mark = () => buttons.forEach((button, index) => button.setAttribute("aria-pressed", String(shown[index])));
  const set = (index, value) => {
    shown[index] = value;
    mark();
    changed([...shown]);
  };
  const all = (value) => {
    shown.fill(value);
    mark();
    changed([...shown]);
  };
  const place = element("div", { class: "legend", role: "group", "aria-label": name }, ...buttons);
  if (labels.length > 7) {
    for (const [text, value] of [["all", true], ["none", false]]) {
      place.append(element("button", { type: "button", class: "every", onclick: () => all(value) }, text));
    }
  }
  return place;
}
