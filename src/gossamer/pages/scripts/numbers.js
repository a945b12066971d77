// Numbers: as a person reads them, as a table sorts them, over several seeds, and as CSV.

/** A number to `digits` significant digits, with thin thousands: 0.0123, 1,234, 1.2e-7. */
export function plain(value, digits = 3) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e6)) {
    return value.toExponential(Math.max(0, digits - 1)).replace(/\.?0+e/, "e").replace("e+", "e").replaceAll("-", "−");
  }
  const places = size === 0 ? 0 : Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  const text = value.toLocaleString("en-GB", { maximumFractionDigits: Math.min(places, 12) });
  return text.replace("-", "−");
}

/** A number to as many significant digits as others of its column, zeros at its end included. */
export function digits(value, count = 3) {
  const size = Math.abs(value ?? NaN);
  return size >= 1e-3 && size < 10 ** (count - 1) ? value.toPrecision(count).replace("-", "−") : plain(value, count);
}

/** The fewest decimals with which each of some numbers is exact; at most `most`. */
export function decimals(values, most = 9) {
  const exact = (places) => values.every((value) => Math.abs(value - Number(value.toFixed(places))) <= 1e-9 * Math.abs(value));
  let places = 0;
  while (places < most && !exact(places)) places += 1;
  return places;
}

/** A count with the prefix of its unit: 48 k, 13.3 MB. */
export function amount(value, unit = "") {
  if (value === null || Number.isNaN(value)) return "–";
  let power = 0;
  while (Math.abs(value) >= 1000 && power < 4) {
    value /= 1000;
    power += 1;
  }
  return `${plain(value)} ${["", "k", "M", "G", "T"][power]}${unit}`.trimEnd();
}

/** Seconds: 4.2 s, 3 min 5 s, 2 h 5 min. */
export function duration(seconds) {
  if (!(seconds >= 0) || !Number.isFinite(seconds)) return "–";
  if (seconds < 60) return `${plain(seconds, seconds < 10 ? 2 : 3)} s`;
  const whole = Math.round(seconds);
  const [hours, minutes, rest] = [Math.floor(whole / 3600), Math.floor((whole % 3600) / 60), whole % 60];
  return hours ? `${hours} h ${minutes} min` : `${minutes} min ${rest} s`;
}

/** The number by which a cell of a table is sorted; NaN for a cell without one. "> 300" comes after "300". */
export function sortValue(text) {
  const found = /^\s*(>?)\s*([+−-]?[\d.,]+(?:e[+−-]?\d+)?)(?:\s*±\s*\S+)?\s*(?:([kMGT])(?:B)?\b|B\b|%|s\b|\(|$)/.exec(text);
  if (!found) return NaN;
  const value = Number(found[2].replaceAll("−", "-").replaceAll(",", ""));
  const scaled = value * { k: 1e3, M: 1e6, G: 1e9, T: 1e12 }[found[3] ?? ""] || value;
  return found[1] ? scaled * (1 + 1e-9) + 1e-9 : scaled;
}

/** Mean and sample standard deviation at every place where all columns have a number; null elsewhere. */
export function meanAndSpread(columns) {
  const length = Math.max(0, ...columns.map((column) => column.length));
  const mean = new Array(length).fill(null);
  const spread = new Array(length).fill(null);
  for (let i = 0; i < length; i += 1) {
    let sum = 0;
    let whole = columns.length > 0;
    for (const column of columns) {
      const value = column[i];
      if (value === null || value === undefined || Number.isNaN(value)) {
        whole = false;
        break;
      }
      sum += value;
    }
    if (!whole) continue;
    mean[i] = sum / columns.length;
    if (columns.length > 1) {
      let squares = 0;
      for (const column of columns) squares += (column[i] - mean[i]) ** 2;
      spread[i] = Math.sqrt(squares / (columns.length - 1));
    }
  }
  return { mean, spread };
}

/** Rows of cells as CSV; a cell with a comma, a quote or a line break is quoted. */
export function csv(rows) {
  const cell = (value) => {
    const text = value === null || value === undefined ? "" : String(value);
    return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
  };
  return rows.map((row) => row.map(cell).join(",")).join("\r\n") + "\r\n";
}

/** The smallest and the largest number of arrays, of those that are numbers; [0, 1] if there are none. */
export function extent(arrays, keep = () => true) {
  let [low, high] = [Infinity, -Infinity];
  for (const array of arrays) {
    for (const value of array) {
      if (value === null || value === undefined || !Number.isFinite(value) || !keep(value)) continue;
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? [low, high] : [0, 1];
}
