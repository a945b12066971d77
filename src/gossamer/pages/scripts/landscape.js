// The loss around a model, along one or two directions: models side by side on one scale.

import { blend, blendBar } from "./clients.js";
import { lineSample, strokes, written } from "./charts.js";
import { element, shape } from "./dom.js";
import { extent } from "./numbers.js";

/** Landscapes of the same kind. In two directions a map for each, in one direction a curve for each in one figure. */
export function landscapes(group) {
  const [low, high] = extent(group.map((each) => each.losses), (value) => value > 0);
  const share = (loss) => (loss > 0 ? (Math.log(loss) - Math.log(low)) / (Math.log(high / low) || 1) : 0);
  const place = element("div", { class: "multiples wide" });
  if (group[0].dimensions === 1) {
    const lines = group.map(({ label, variant, points, losses }) => {
      let broken = true; // a loss that is not finite has no place
      const path = losses.map((loss, i) => {
        const at = loss > 0 ? `${broken ? "M" : "L"}${(100 * i) / (points - 1)} ${40 - 38 * share(loss)}` : "";
        broken = !(loss > 0);
        return at;
      }).join("");
      return shape("path", { fill: "none", "vector-effect": "non-scaling-stroke", d: path,
        style: strokes(variant, 2) }, shape("title", {}, label));
    });
    const names = group.map(({ label, variant }) => element("span", {}, lineSample(variant), label));
    return element("figure", { class: "line" },
      element("div", { class: "ends" }, element("span", {}, `loss ${written("number", low)} to ${written("number", high)}, on a logarithmic scale`)),
      shape("svg", { viewBox: "0 0 100 42", preserveAspectRatio: "none", role: "img",
        "aria-label": `Loss around ${group.map((each) => each.label).join(", ")}` }, ...lines),
      element("div", { class: "ends" }, element("span", {}, `−${group[0].radius}`), element("span", {}, "the model"),
        element("span", {}, `${group[0].radius}`)),
      element("figcaption", { class: "names" }, ...names));
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
