// Clients: which labels they hold, how each of them fares, and the graph that connects them.

import { written } from "./charts.js";
import { element, shape } from "./dom.js";
import { extent } from "./numbers.js";

/** A heat map of labels by client: the stronger the colour, the larger the share of the client's samples. */
export function heatMap(labels) {
  const [clients, classes] = [labels.length, labels[0].length];
  const canvas = element("canvas", { width: clients, height: classes, role: "img",
    "aria-label": `Share of each label, of ${clients} clients` });
  const high = Math.max(classes * 9, Math.min(classes * 18, 260));
  canvas.style.height = `${high}px`;
  const named = classes <= 20;
  const rows = element("div", { class: "rows" });
  rows.style.height = `${high}px`;
  for (let label = 0; named && label < classes; label += 1) rows.append(element("span", {}, String(label)));
  const place = element("div", { class: "heat" }, named ? rows : element("span", {}, "label"), canvas,
    element("div", { class: "ends" }, element("span", {}, "client 0"), element("span", {}, `client ${clients - 1}`)));
  const draw = () => {
    const [red, green, blue] = getComputedStyle(document.documentElement).getPropertyValue("--heat").split(",").map(Number);
    const context = canvas.getContext("2d");
    const image = context.createImageData(clients, classes);
    labels.forEach((counts, client) => {
      const all = counts.reduce((sum, count) => sum + count, 0);
      counts.forEach((count, label) => {
        image.data.set([red, green, blue, all ? 255 * Math.sqrt(count / all) : 0], 4 * (label * clients + client));
      });
    });
    context.putImageData(image, 0, 0);
  };
  draw();
  return { place, draw };
}

/** A small curve for each client, all on the same scale; of many clients the lowest, the highest and some between. */
export function smallMultiples(values, most = 48) {
  const { rounds, rows, kind } = values;
  const [low, high] = extent(rows, kind === "percent" ? undefined : (value) => value >= 0);
  const clients = rows[0].length;
  const last = (client) => rows.findLast((row) => row[client] !== null)?.[client] ?? null;
  let order = Array.from({ length: clients }, (_, client) => client);
  if (clients > most) {
    order.sort((a, b) => (last(a) ?? -Infinity) - (last(b) ?? -Infinity));
    order = Array.from({ length: most }, (_, i) => order[Math.round((i * (clients - 1)) / (most - 1))]);
  }
  const place = element("div", { class: "multiples" });
  const [first, end] = [rounds[0], Math.max(rounds.at(-1), rounds[0] + 1)];
  for (const client of order) {
    const points = rows.flatMap((row, i) => {
      if (row[client] === null) return [];
      const across = (100 * (rounds[i] - first)) / (end - first);
      return [`${across.toFixed(1)} ${(38 - (34 * (row[client] - low)) / (high - low || 1)).toFixed(1)}`];
    });
    const line = shape("path", { d: points.length > 1 ? `M${points.join("L")}` : points.length ? `M${points[0]}h1` : "",
      fill: "none", "vector-effect": "non-scaling-stroke", style: "stroke: var(--c0); stroke-width: 1.6" });
    const drawn = shape("svg", { viewBox: "0 0 100 42", preserveAspectRatio: "none", "aria-hidden": "true" }, line);
    place.append(element("figure", {}, drawn,
      element("div", {}, element("span", {}, String(client)), element("b", {}, written(kind, last(client))))));
  }
  return { place, shown: order.length, clients, low, high };
}

/** A colour between two ends that differ in lightness and hue, so that grey print and colour-blind readers see it. */
export function blend(share) {
  const stops = [[213, 94, 0], [236, 190, 120], [110, 170, 205], [0, 82, 147]];
  const at = Math.min(0.99999, Math.max(0, share)) * (stops.length - 1);
  const [i, part] = [Math.floor(at), at % 1];
  return `rgb(${stops[i].map((from, c) => Math.round(from + part * (stops[i + 1][c] - from))).join(",")})`;
}

/** Whether white text is read better than black on a colour "rgb(r, g, b)". */
export function isDark(rgb) {
  const [red, green, blue] = rgb.match(/\d+/g).map((part) => {
    const share = Number(part) / 255;
    return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
  });
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue < 0.179;
}

/** The gradient of `blend` in CSS. */
export function blendBar(reversed) {
  const stops = [0, 0.33, 0.66, 1].map((share) => blend(reversed ? 1 - share : share));
  return `linear-gradient(to right, ${stops.join(", ")})`;
}

/** A graph with the places that were computed for it; `colourBy` colours its clients. */
export class Graph {
  constructor({ places, links, server }) {
    const [xs, ys] = [places.map((place) => place[0]), places.map((place) => place[1])];
    const [[left, right], [top, bottom]] = [extent([xs]), extent([ys])];
    const scale = 1000 / Math.max(right - left, bottom - top, 1e-9);
    const at = ([x, y]) => [(x - left) * scale, (bottom - y) * scale];
    const [wide, high] = [Math.max((right - left) * scale, 1), Math.max((bottom - top) * scale, 1)];
    const points = places.map(at);
    this.points = points;
    // The distance of some clients from their nearest neighbour, so that discs do not overlap.
    const gaps = points.slice(0, 40).map(([x, y], i) => Math.min(...points.map(([u, v], j) => (i === j ? 1000 : Math.hypot(x - u, y - v)))));
    const radius = Math.max(3, Math.min(34, 0.42 * gaps.sort((a, b) => a - b)[gaps.length >> 1]));
    this.radius = radius;
    const path = links.map(([i, j]) => {
      const [a, b] = [points[i], j < 0 ? at([0, 0]) : points[j]];
      return `M${a[0].toFixed(0)} ${a[1].toFixed(0)}L${b[0].toFixed(0)} ${b[1].toFixed(0)}`;
    }).join("");
    const fine = Math.max(0.5, Math.min(3, 60 / Math.sqrt(links.length + 1)));
    this.circles = points.map(([x, y]) => shape("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: radius,
      "stroke-width": Math.min(3, radius / 6), style: "fill: var(--c6)" }, shape("title")));
    this.numbers = places.length > 64 ? [] : points.map(([x, y], i) =>
      shape("text", { x: x.toFixed(1), y: y.toFixed(1), "font-size": radius * 0.9 }, String(i)));
    const margin = radius + 4;
    const middle = server ? [shape("rect", { x: wide / 2 - 30, y: high / 2 - 30, width: 60, height: 60, rx: 8,
      style: "fill: var(--ink)" }, shape("title", {}, "server"))] : [];
    this.place = shape("svg", { class: "graph", role: "img", "aria-label": "The graph of the clients",
      viewBox: `${-margin} ${-margin} ${wide + 2 * margin} ${high + 2 * margin}` },
    shape("path", { class: "links", d: path, "stroke-width": fine }), ...middle, ...this.circles, ...this.numbers);
  }

  /** Colour the clients by a row of numbers within [low, high]; null leaves them grey. */
  colourBy(row, [low, high], kind, reversed = false) {
    this.circles.forEach((circle, client) => {
      const value = row?.[client] ?? null;
      const share = (value - low) / (high - low || 1);
      circle.style.fill = value === null ? "var(--c6)" : blend(reversed ? 1 - share : share);
      // White on the dark ends of the scale, black between them: both are read on any ground.
      if (this.numbers[client]) this.numbers[client].style.fill = value === null ? "" : isDark(circle.style.fill) ? "#fff" : "#111";
      circle.firstChild.textContent = value === null ? `client ${client}` : `client ${client}: ${written(kind, value)}`;
    });
  }
}
