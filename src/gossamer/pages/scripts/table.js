// Tables that are sorted by a click on a head.

import { element } from "./dom.js";
import { sortValue } from "./numbers.js";

/** The order of rows by the texts of one column: numbers by value, text by alphabet; cells without a number come last. */
export function sortedOrder(texts, descending) {
  const values = texts.map(sortValue);
  const isText = values.every(Number.isNaN);
  const sign = descending ? -1 : 1;
  return texts
    .map((_, index) => index)
    .sort((a, b) => {
      if (isText) return sign * texts[a].localeCompare(texts[b], "en", { numeric: true });
      if (Number.isNaN(values[a]) || Number.isNaN(values[b])) return Number.isNaN(values[a]) - Number.isNaN(values[b]);
      return sign * (values[a] - values[b]);
    });
}

/** Make every head of a table a button that sorts by its column; a second click turns the order around. */
export function sortable(table) {
  const body = table.tBodies[0];
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = element("button", { type: "button" }, head.textContent);
    button.addEventListener("click", () => {
      const rows = [...body.rows];
      const descending = head.getAttribute("aria-sort") === "ascending";
      const order = sortedOrder(rows.map((row) => row.cells[column].textContent), descending);
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      body.append(...order.map((index) => rows[index]));
    });
    head.replaceChildren(button);
  });
}
