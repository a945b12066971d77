// What the pages' scripts compute. Run by test_scripts.py with node.
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";

const scripts = process.argv[2];
const { amount, csv, decimals, digits, duration, extent, meanAndSpread, plain, sortValue } = await import(`${scripts}/numbers.js`);
const { sortedOrder } = await import(`${scripts}/table.js`);
const { curve, isRound, oneDigit, ticked, written } = await import(`${scripts}/charts.js`);
const { headline } = await import(`${scripts}/live_runs.js`);
const network = await import(`${scripts}/live_network.js`);
const { Store } = await import(`${scripts}/live_feed.js`);
const { openTo, roughly } = await import(`${scripts}/live_parts.js`);
const { blend, isDark } = await import(`${scripts}/clients.js`);

assert.deepEqual([0, 0.01234, 1234.5, -0.5, 1.2e-7, null, NaN, Infinity].map((x) => plain(x)),
  ["0", "0.0123", "1,235", "−0.5", "1.2e−7", "–", "–", "∞"]);
assert.deepEqual([amount(13_300_000, "B"), amount(480), amount(48_000), amount(null)], ["13.3 MB", "480", "48 k", "–"]);
assert.deepEqual([2.2, 2.1834, 47, 1234, 0, null, 1e-5].map((x) => digits(x)), ["2.20", "2.18", "47.0", "1,234", "0", "–", "1e−5"]);
assert.deepEqual([[1, 2], [2.25, 0.1 + 0.2], [2.275, 2.3], []].map((x) => decimals(x)), [0, 2, 3, 0]);
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
assert.deepEqual(ticked("number", [1.05, 1.025, 1]), ["1.050", "1.025", "1.000"]);
assert.deepEqual(ticked("percent", [-0.005, 0, 0.02]), ["−0.5 %", "0.0 %", "2.0 %"]);
assert.deepEqual(ticked("number", [0.01, null, 1], true), ["0.01", "", "1"]);
assert.deepEqual(ticked("bytes", [1e6, 2.5e6]), ["1 MB", "2.5 MB"]);
assert.deepEqual([0.1, 0.2, 0.3, 0.05].map((x) => isRound(x, 100)), [true, true, false, true]);
assert.ok(isRound(0.1, 1e5) && !isRound(0.2, 1e5));
assert.deepEqual([1, 10, 1e3, 1e-3, 1e22].map((x) => isRound(x, 1e23)), [true, false, true, true, false]);
assert.deepEqual([0.0098, 0.01, 9.99e-7, 4.2, 1, 123, 9e-5].map(oneDigit), [0.009, 0.01, 9e-7, 4, 1, 100, 9e-5]);
assert.ok(isDark(blend(1)) && !isDark(blend(0.4)));

// The live page: what it keeps, and what it says.
const store = new Store();
store.take({ all: true, set: { about: 1, "rows/a": [[1]], "group/x": {} } });
store.take({ set: { about: 2 }, add: { "rows/a": [[2]], "rows/unknown": [[9]] }, gone: ["group/x"] });
assert.deepEqual([store.get("about"), store.get("rows/a"), store.under("group/")], [2, [[1], [2]], []]);
store.take({ all: true, set: { about: 3 } });
assert.deepEqual(store.under(""), [["about", 3]]);
assert.deepEqual([null, 0.4, 12.2, 130, 4000].map(roughly), ["", "moments", "13 s", "2 min", "1 h 7 min"]);
const places = ["http://127.0.0.1:80/", "http://localhost/", "http://[::1]:8/", "https://10.0.0.1/", "http://10.0.0.1/", "http://127.0.0.1.example/"];
assert.deepEqual(places.map((place) => openTo(new URL(place)) !== ""), [false, false, false, false, true, true]);
const group = { name: "a", state: "running", runs: 1, done: 30, rounds: 40, left: 12, changed: 1 };
assert.deepEqual(headline({}, [["1", group]]), ["a is running: round 30 of 40, about 12 s left.", "75 %"]);
assert.equal(headline({ gone: true }, [])[1], "gone");
assert.equal(headline({}, [["1", { ...group, state: "diverged" }]])[0], "Nothing runs now. Diverged after round 30 of 40.");
const peer = { state: "working", round: 3, rounds: 9, weight: 0.75 };
assert.equal(network.headline([["a", peer], ["b", { ...peer, state: "away" }]])[0], "All peers have done round 3 of 9. b does not answer.");
assert.equal(network.headline([["a", { ...peer, state: "finished" }]])[1], "finished");
assert.ok(network.mass([["a", peer], ["b", peer]]).includes("sum to 1.500 of 2: the rest is in letters"));
assert.equal(network.mass([["a", { ...peer, weight: null }]]), "");

// The report joins its modules into one, so that a name may be defined in one of them alone.
const names = process.argv.slice(3).flatMap((name) =>
  [...readFileSync(`${scripts}/${name}`, "utf8").matchAll(/^(?:export )?(?:const|let|function|class) (\w+)/gm)].map((found) => found[1]));
assert.equal(new Set(names).size, names.length);
