// The loss around a model, along one or two directions: models side by side on one scale.

import { blend, blendBar } from "./clients.js";
import { COLOURS, written } from "./charts.js";
import { element, shape } from "./dom.js";
import { extent } from "./numbers.js";

/** Landscapes of the same kind. In two directions a map for each, in one direction a curve for each in one figure. */
export function landscapes(group) {
  const [low, high] = extent(group.map((each) => each.losses), (value) => value > 0);
  const share = (loss) => (loss > 0 ? (Math.log(loss) - Math.log(low)) / (Math.log(high / low) || 1) : 0);
  const place = element("div", { class: "multiples wide" });
  if (group[0].dimensions === 1) {
    const lines = group.map((each, index) => shape("path", { fill: "none", "vector-effect": "non-scaling-stroke",
      style: `stroke: var(--c${index % COLOURS}); stroke-width: 2`,
      d: `M${each.losses.map((loss, i) => `${(100 * i) / (each.points - 1)} ${40 - 38 * share(loss)}`).join("L")}` },
    shape("title", {}, each.label)));
    place.append(element("figure", {}, shape("svg", { viewBox: "0 0 100 42", preserveAspectRatio: "none" }, ...lines),
      element("figcaption", {}, group.map((each) => each.label).join(", "))));
  } else {
    for (const { label, points, losses } of group) {
      const canvas = element("canvas", { width: points, height: points, role: "img", "aria-label": `Loss around ${label}` });
      const context = canvas.getContext("2d");
      losses.forEach((loss, i) => {
        context.fillStyle = loss === null ? "rgb(128,128,128)" : blend(1 - share(loss));
        context.fillRect(i % points, Math.floor(i / points), 1, 1);
      });
      place.append(element("figure", {}, canvas, element("figcaption", {}, label)));
    }
  }
  const bar = element("i");
  bar.style.background = blendBar(true);
  const scale = element("div", { class: "scale" }, written("number", low), bar, written("number", high),
    element("span", {}, "loss, on a logarithmic scale"));
  return element("div", {}, scale, place);
}
