// The report: what Python has written is complete as it stands; here its tables sort, its curves and graphs are drawn.

import { Chart, legend, written } from "./charts.js";
import { blendBar, Graph, heatMap, smallMultiples } from "./clients.js";
import { choices, download, element, onLooks } from "./dom.js";
import { landscapes } from "./landscape.js";
import { csv } from "./numbers.js";
import { sortable } from "./table.js";

const data = JSON.parse(document.getElementById("data").textContent);
const place = (id) => document.getElementById(id);
const PAPER = 310; // the width of one of two charts side by side on paper, in CSS pixels
const charts = [];
const redraws = [];

function drawCurves() {
  const into = place("curves-charts");
  if (!into) return;
  for (const metric of data.metrics) {
    const own = element("div", { class: "chart" }, element("h3", {}, metric.title));
    into.append(own);
    charts.push(new Chart(own, metric, data.rounds, data.variants));
  }
  const said = element("span", { class: "paper" });
  const against = (key) => {
    const axis = data.axes.find((each) => each.key === key);
    said.textContent = `Against ${axis.title === "round" ? "rounds" : axis.title}.`;
    for (const chart of charts) chart.against(axis);
  };
  place("curves-controls").append(said, element("span", { class: "note" }, "against"),
    choices("axis", "The horizontal axis", data.axes.map((axis) => [axis.key, axis.title]), "round", against));
  if (data.variants.length > 1) {
    place("curves-legend").append(legend(data.variants.map((variant) => variant.label), (shown) => {
      for (const chart of charts) chart.show(shown);
    }));
  }
  against("round");
}

function drawClients() {
  const into = place("clients-body");
  if (!into) return;
  const { variants, partitions, graphs } = data.clients;
  let chosen = 0;
  const label = element("b", { class: "paper" });
  const show = () => {
    redraws.length = 0;
    label.textContent = variants[chosen].label;
    into.replaceChildren(...clientParts(variants[chosen], partitions, graphs));
  };
  if (variants.length > 1) {
    const select = element("select", { "aria-label": "Variant" },
      ...variants.map((variant, index) => element("option", { value: index }, variant.label)));
    select.addEventListener("change", () => {
      chosen = Number(select.value);
      show();
    });
    place("clients-controls").append(select, label);
  }
  show();
}

function clientParts(variant, partitions, graphs) {
  const [left, right, below] = [element("figure"), element("figure"), element("div")];
  if (variant.partition !== null) {
    const labels = partitions[variant.partition];
    const map = heatMap(labels);
    redraws.push(map.draw);
    left.append(element("h3", {}, labels[0].length > 1 ? "Labels of each client" : "Samples of each client"), map.place);
    left.append(element("figcaption", {},
      "The stronger the colour, the larger the share of the client's samples (by its square root, so that few are seen too)."));
  }
  if (variant.graph !== null) right.append(...graphParts(graphs[variant.graph], variant.values));
  for (const values of variant.values.filter((each) => each.multiples)) {
    const small = smallMultiples(values);
    const what = small.shown < small.clients
      ? `${small.shown} of ${small.clients} clients, from the lowest to the highest at the end. ` : "";
    below.append(element("h3", {}, values.title), element("p", { class: "note" },
      `${what}All on one scale, ${written(values.kind, small.low)} to ${written(values.kind, small.high)}; ` +
      "the number is the last value."), small.place);
  }
  below.style.marginTop = "36px";
  return [element("div", { class: "two" }, ...[right, left].filter((part) => part.childNodes.length)), below];
}

function graphParts(described, values) {
  const graph = new Graph(described);
  const parts = [element("h3", {}, described.title)];
  const thinned = values.filter((each) => each.rounds.length < each.of)
    .map((each) => `${each.rounds.length} of ${each.of} rounds with ${each.short} are here, evenly spaced.`);
  const note = element("figcaption", {}, [described.note, ...thinned].join(" "));
  if (!values.length) return [...parts, graph.place, note];
  let [by, at] = [values[0], values[0].rounds.length - 1];
  const [slider, said, bar] = [element("input", { type: "range", min: 0, "aria-label": "Round" }), element("span"), element("i")];
  const scale = element("div", { class: "scale" });
  const colour = () => {
    const [low, high] = by.range;
    graph.colourBy(by.rows[at], by.range, by.kind, by.reversed);
    said.textContent = `round ${by.rounds[at]}`;
    bar.style.background = blendBar(by.reversed);
    scale.replaceChildren(written(by.kind, low), bar, written(by.kind, high));
    slider.setAttribute("aria-valuetext", said.textContent);
  };
  const choose = (key) => {
    by = values.find((each) => each.key === key);
    at = by.rounds.length - 1;
    slider.max = slider.value = at;
    colour();
  };
  slider.addEventListener("input", () => {
    at = Number(slider.value);
    colour();
  });
  const first = element("div", { class: "controls" });
  if (values.length > 1) {
    first.append(choices("by", "What clients are coloured by", values.map((each) => [each.key, each.short]), by.key, choose));
  } else first.append(element("span", { class: "note" }, `coloured by ${by.short}`));
  first.append(scale);
  choose(by.key);
  return [...parts, first, graph.place, element("div", { class: "controls" }, slider, said), note];
}

function drawLandscapes() {
  const into = place("landscapes");
  if (!into) return;
  for (const name of new Set(data.landscapes.map((each) => each.name))) {
    const group = data.landscapes.filter((each) => each.name === name);
    into.append(landscapes(group));
  }
}

function offerDownloads() {
  const into = place("downloads");
  if (!into) return;
  const offer = (name, text) => into.append(
    element("button", { type: "button", class: "plain", onclick: () => download(name, text()) }, name));
  for (const [name, text] of Object.entries(data.files)) offer(name, () => text);
  const keys = data.metrics.map((metric) => metric.key);
  const axes = data.axes.map((axis) => axis.key).filter((key) => key !== "round");
  offer("curves.csv", () => csv([["variant", "seed", "round", ...axes, ...keys], ...data.variants.flatMap((variant) =>
    variant.runs.flatMap((run) => data.rounds.map((round, i) => [variant.label, run.seed, round,
      ...axes.map((key) => run.x[key]?.[i]), ...keys.map((key) => run.y[key]?.[i])]).filter((row) => row.slice(3).some(
      (cell) => cell !== null && cell !== undefined))))]));
  if (data.clients.variants.some((variant) => variant.values.length)) {
    offer("clients.csv", () => csv([["variant", "seed", "round", "client", "measure", "value"],
      ...data.clients.variants.flatMap((variant) => variant.values.flatMap((values) => values.rows.flatMap((row, i) =>
        row.map((value, client) => [variant.label, variant.seed, values.rounds[i], client, values.key, value]))))]));
  }
}

for (const table of document.querySelectorAll("table.sortable")) sortable(table);
drawCurves();
drawClients();
drawLandscapes();
offerDownloads();
onLooks((onPaper) => {
  for (const chart of charts) chart.draw(onPaper ? PAPER : undefined);
  for (const redraw of redraws) redraw();
});
let width = innerWidth;
addEventListener("resize", () => {
  if (innerWidth === width) return;
  width = innerWidth;
  for (const chart of charts) chart.draw();
});
document.documentElement.dataset.ready = "true";
