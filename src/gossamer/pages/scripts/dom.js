// Elements. All text comes in as text, never as HTML.

/** An element with attributes and children; a child that is a string is text. */
export function element(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function shape(name, attributes = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function filled(made, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (key.startsWith("on")) made.addEventListener(key.slice(2), value);
    else if (key === "style") made.style.cssText = value; // a policy may forbid the attribute, not the property
    else if (value === true) made.setAttribute(key, "");
    else if (value !== false && value !== null && value !== undefined) made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

/** A row of choices of which one is taken: radio buttons, so that the keyboard works as everywhere. */
export function choices(name, label, options, chosen, changed) {
  const group = element("div", { class: "switch", role: "radiogroup", "aria-label": label });
  for (const [value, text] of options) {
    const input = element("input", { type: "radio", name, value, onchange: () => changed(value) });
    input.checked = value === chosen;
    group.append(element("label", {}, input, element("span", {}, text)));
  }
  return group;
}

/** The value of a CSS variable, as colours are now: light, dark or on paper. */
export function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Call `redraw` when colours change: between light and dark, and before and after printing. */
export function onLooks(redraw) {
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => redraw(false));
  matchMedia("print").addEventListener("change", (event) => redraw(event.matches));
}

/** Offer a text as a file. */
export function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv" }));
  const link = element("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}
