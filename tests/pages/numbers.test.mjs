// What the pages' scripts compute. Run by test_scripts.py with node.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

const scripts = process.argv[2];
const { amount, csv, duration, extent, meanAndSpread, plain, sortValue } = await import(`${scripts}/numbers.js`);
const { sortedOrder } = await import(`${scripts}/table.js`);
const { curve, isRound, written } = await import(`${scripts}/charts.js`);
const { blend, isDark } = await import(`${scripts}/clients.js`);

assert.deepEqual([0, 0.01234, 1234.5, -0.5, 1.2e-7, null, NaN, Infinity].map((x) => plain(x)),
  ["0", "0.0123", "1,235", "−0.5", "1.2e−7", "–", "–", "∞"]);
assert.deepEqual([amount(13_300_000, "B"), amount(480), amount(48_000), amount(null)], ["13.3 MB", "480", "48 k", "–"]);
assert.deepEqual([4.23, 185, 7500, NaN].map(duration), ["4.2 s", "3 min 5 s", "2 h 5 min", "–"]);

assert.deepEqual(["93.6 ± 1.1 %", "13.3 MB", "48 ± 1.2 k", "−0.3 ± 0.2", "1,200", "3.2 s"].map(sortValue),
  [93.6, 13.3e6, 48e3, -0.3, 1200, 3.2]);
assert.ok(Number.isNaN(sortValue("–")) && Number.isNaN(sortValue("dfedavg")) && Number.isNaN(sortValue("2 of them")));
assert.ok(sortValue("> 300") > sortValue("300") && sortValue("> 300") < sortValue("301"));
assert.deepEqual(sortedOrder(["13.3 MB", "–", "480 kB", "2 GB"], false), [2, 0, 3, 1]);
assert.deepEqual(sortedOrder(["13.3 MB", "–", "480 kB", "2 GB"], true), [3, 0, 2, 1]);
assert.deepEqual(sortedOrder(["b", "a10", "a2"], false), [2, 1, 0]);

const { mean, spread } = meanAndSpread([[1, 2, null], [3, 2, 5]]);
assert.deepEqual(mean, [2, 2, null]);
assert.deepEqual(spread, [Math.SQRT2, 0, null]);
assert.deepEqual(meanAndSpread([[1, NaN]]), { mean: [1, null], spread: [null, null] });
assert.deepEqual(meanAndSpread([]), { mean: [], spread: [] });
const runs = [{ x: { bytes: [10, 20] }, y: { loss: [1, 3] } }, { x: { bytes: [30, 40] }, y: { loss: [3, 5] } }, { x: {}, y: {} }];
assert.deepEqual(curve(runs, "loss", "bytes").x, [20, 30]);
assert.deepEqual(curve(runs, "loss", null).mean, [2, 4]);
assert.equal(curve(runs, "accuracy", null), null);

assert.equal(csv([["a", 'say "b"'], [1, null], ["x,y", "two\nlines"]]), 'a,"say ""b"""\r\n1,\r\n"x,y","two\nlines"\r\n');
assert.deepEqual(extent([[3, null, 1], [NaN, 2]]), [1, 3]);
assert.deepEqual(extent([[null]]), [0, 1]);
assert.equal(written("percent", -0.012), "−1.2 %");
assert.deepEqual([0.1, 0.2, 0.3, 0.05].map((x) => isRound(x, 100)), [true, true, false, true]);
assert.ok(isRound(0.1, 1e5) && !isRound(0.2, 1e5));
assert.deepEqual([1, 10, 1e3, 1e-3, 1e22].map((x) => isRound(x, 1e23)), [true, false, true, true, false]);
assert.ok(isDark(blend(1)) && !isDark(blend(0.4)));

// The report joins its modules into one, so that a name may be defined in one of them alone.
const names = process.argv.slice(3).flatMap((name) =>
  [...readFileSync(`${scripts}/${name}`, "utf8").matchAll(/^(?:export )?(?:const|let|function|class) (\w+)/gm)].map((found) => found[1]));
assert.equal(new Set(names).size, names.length);
