// The runs below a folder: what runs, how far it is, its curves, its clients.

import { lineSample, written } from "./charts.js";
import { blendBar, Graph } from "./clients.js";
import { choices, element } from "./dom.js";
import { columns } from "./live_feed.js";
import { arrange, bar, Curves, roughly, setBar, setText } from "./live_parts.js";
import { extent } from "./numbers.js";

const FEW = 6; // groups that are listed before the rest is asked for
const STATES = {
  waiting: "waiting", running: "running", finished: "finished", stopped: "stopped on purpose", diverged: "diverged",
  interrupted: "interrupted", unreadable: "cannot be read",
};

/** Groups as they are listed: what runs first, then what has changed last. */
export function ordered(groups) {
  const rank = ([, group]) => (group.state === "running" ? 0 : 1);
  return groups.toSorted((a, b) => rank(a) - rank(b) || b[1].changed - a[1].changed || a[1].name.localeCompare(b[1].name));
}

/** What there is to say of all groups, in a sentence or two. */
export function headline(about, groups) {
  if (about.gone) return ["The folder is not there. This page waits for it.", "gone"];
  if (!groups.length) return ["No runs here yet. This page waits: start one below this folder, and it appears.", "waiting"];
  const running = groups.filter(([, group]) => group.state === "running");
  if (!running.length) {
    const [, last] = ordered(groups)[0];
    const ended = ending(last);
    const words = groups.length > 1 ? `The last was ${last.name}: ${ended}` : ended[0].toUpperCase() + ended.slice(1);
    return [`Nothing runs now. ${words}.`, "nothing runs"];
  }
  if (running.length > 1) return [`${running.length} of ${groups.length} run now.`, `${running.length} run`];
  const [, group] = running[0];
  const share = Math.floor((100 * group.done) / (group.rounds || 1));
  const left = group.left === null ? "" : `, about ${roughly(group.left)} left`;
  const runs = group.runs > 1 ? `${group.ended} of ${group.runs} runs have ended` : `round ${group.done} of ${group.rounds}`;
  return [`${group.name} is running: ${runs}${left}.`, `${share} %`];
}

/** How a group ended, in words. */
export function ending(group) {
  if (group.state === "unreadable") return group.problem || "it cannot be read";
  if (group.runs === 1) return group.state === "finished" ? `${group.done} rounds are done` : `${STATES[group.state]} after round ${group.done} of ${group.rounds}`;
  return group.ended === group.runs ? `all ${group.runs} runs have ended` : `${group.ended} of ${group.runs} runs have ended`;
}

export class RunsView {
  constructor(stores, show) {
    Object.assign(this, { stores, show, rows: new Map(), all: false, chosen: location.hash.slice(1) || null, picked: Boolean(location.hash) });
    this.list = element("tbody");
    this.more = element("button", { type: "button", class: "plain", hidden: true, onclick: () => this.showAll() });
    this.heads = element("tr", {}, ...["name", "", "done", "left", "best"].map((head, i) => (
      element("th", { scope: "col", class: ["text", "bar"][i] ?? null }, i === 1 ? element("span", { class: "unseen" }, "progress") : head))));
    this.note = element("p", { class: "note" });
    this.listing = element("section", { hidden: true }, element("h2", {}, "Below this folder"),
      element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Runs and comparisons" },
        element("table", { class: "live" }, element("thead", {}, this.heads), this.list)), this.more, this.note);
    this.group = new GroupView(stores.shown);
    this.place = element("div", {}, this.listing, this.group.place);
  }

  draw() {
    const about = this.stores.all.get("about");
    const groups = this.stores.all.under("group/");
    this.follow(groups);
    this.drawList(about, groups);
    const [said, short] = headline(about, groups);
    this.group.draw(this.chosen, this.stores.all.get(`group/${this.chosen}`));
    return { title: `gossamer live · ${about.root}`, headline: said, short, about: "" };
  }

  /** Show what runs, until somebody has chosen. */
  follow(groups) {
    if (this.picked && groups.some(([id]) => id === this.chosen)) return;
    const first = ordered(groups)[0]?.[0] ?? null;
    const stays = this.stores.all.get(`group/${this.chosen}`)?.state === "running";
    if (first !== this.chosen && !stays) {
      this.picked = false;
      this.choose(first);
    }
  }

  choose(id) {
    this.chosen = id;
    this.show(id);
  }

  pick(id) {
    this.picked = true;
    history.replaceState(null, "", `#${id}`);
    this.choose(id);
    this.draw();
  }

  showAll() {
    this.all = true;
    this.draw();
  }

  drawList(about, groups) {
    this.listing.hidden = groups.length < 2;
    const sorted = ordered(groups);
    const few = sorted.filter(([id], i) => this.all || i < FEW || id === this.chosen);
    for (const id of [...this.rows.keys()]) if (!few.some(([known]) => known === id)) this.rows.delete(id);
    arrange(this.list, few.map(([id, group]) => this.row(id, group)));
    this.more.hidden = few.length === sorted.length;
    setText(this.more, `Show all ${sorted.length}`);
    const notes = about.groups > about.listed ? [`The ${about.listed} that changed last, of ${about.groups}.`] : [];
    if (about.cut) notes.push("There are more folders than are looked into: name one nearer to the runs.");
    setText(this.note, notes.join(" "));
  }

  row(id, group) {
    if (!this.rows.has(id)) {
      const parts = {
        name: element("button", { type: "button", onclick: () => this.pick(id) }), about: element("div", { class: "note" }),
        bar: bar(`Progress of ${group.name}`), done: element("td"), left: element("td"), best: element("td"),
      };
      parts.row = element("tr", {}, element("td", { class: "text name" }, parts.name, parts.about),
        element("td", { class: "bar" }, parts.bar), parts.done, parts.left, parts.best);
      this.rows.set(id, parts);
    }
    const parts = this.rows.get(id);
    setText(parts.name, group.name);
    parts.name.setAttribute("aria-pressed", String(id === this.chosen));
    setText(parts.about, group.problem || group.described);
    setBar(parts.bar, group.done, group.rounds);
    const rounds = group.rounds ? `${group.done} of ${group.rounds}` : "–";
    setText(parts.done, group.runs > 1 ? `${group.ended} of ${group.runs} runs` : rounds);
    const still = group.state !== "running";
    setText(parts.left, still ? STATES[group.state] : roughly(group.left) || "–",
      still ? `state ${group.state}` : "");
    setText(parts.best, group.score ? written(group.score[1], group.score[2]) : "–");
    return parts.row;
  }

  resized() {
    this.group.curves.redraw();
  }

  recoloured() {
    this.group.curves.redraw();
  }
}

/** One comparison or one run. */
class GroupView {
  constructor(store) {
    this.store = store;
    this.title = element("h2");
    this.said = element("p", { class: "about" });
    this.list = element("tbody");
    this.score = element("th", { scope: "col" });
    this.heads = element("tr", {}, element("th", { scope: "col", class: "text" }, "run"),
      element("th", { scope: "col", class: "bar" }, element("span", { class: "unseen" }, "progress")), element("th", { scope: "col" }, "round"),
      this.score, element("th", { scope: "col" }, "left"));
    this.table = element("div", { class: "scroll tall", tabindex: 0, role: "region", "aria-label": "The runs" },
      element("table", { class: "live" }, element("thead", {}, this.heads), this.list));
    this.note = element("p", { class: "note" });
    this.curves = new Curves("Variants");
    this.clients = new ClientsView(store);
    this.place = element("div", { hidden: true },
      element("section", {}, this.title, this.said, this.table, this.note), this.curves.place, this.clients.place);
    this.rows = new Map();
    this.shown = null;
  }

  draw(id, group) {
    const shown = this.store.get("shown");
    this.place.hidden = !shown || shown.id !== id || !group;
    if (this.place.hidden) return;
    if (this.shown !== id) {
      this.shown = id;
      this.rows.clear();
      this.curves.clear();
      this.clients.clear();
    }
    setText(this.title, shown.name);
    const words = [group.problem || group.described];
    if (group.command) words.push(`It was interrupted; this goes on with it:  ${group.command}`);
    if (shown.report && group.state !== "running") words.push(`Its report is ${shown.path}/report.html.`);
    setText(this.said, words.join(". ").replaceAll("..", "."));
    const runs = shown.runs.map((name) => [name, this.store.get(`run/${name}`)]).filter(([, run]) => run);
    this.table.hidden = !runs.length;
    const scored = runs.find(([, run]) => run.score);
    setText(this.score, scored ? scored[1].score[0] : "");
    arrange(this.list, runs.map(([name, run]) => this.row(name, run, runs.length > 1)));
    setText(this.note, shown.more ? `And ${shown.more} more runs.` : "");
    this.drawCurves(shown, runs);
    this.clients.draw(runs);
  }

  row(name, run, several) {
    if (!this.rows.has(name)) {
      const parts = { bar: bar(`Progress of ${called(run)}`), round: element("td"), score: element("td"), left: element("td") };
      parts.why = element("div", { class: "note" });
      parts.row = element("tr", {}, element("td", { class: "text name" },
        element("span", { class: "label" }, several ? lineSample(run.variant) : "", called(run)), parts.why),
      element("td", { class: "bar" }, parts.bar), parts.round, parts.score, parts.left);
      this.rows.set(name, parts);
    }
    const parts = this.rows.get(name);
    setBar(parts.bar, run.round, run.rounds);
    setText(parts.round, run.state === "waiting" ? "–" : `${run.round} of ${run.rounds}`);
    setText(parts.score, run.score ? written(run.score[1], run.score[2]) : "–");
    setText(parts.why, run.why);
    if (run.state === "running") setText(parts.left, run.round ? roughly(run.left) : "starting", "");
    else setText(parts.left, STATES[run.state], `state ${run.state}`);
    return parts.row;
  }

  drawCurves(shown, runs) {
    const lines = runs.flatMap(([name, run]) => {
      const rows = this.store.get(`rows/${name}`);
      if (!rows?.length) return [];
      return [{ name: called(run), label: run.label, variant: run.variant, columns: columns(shown.columns, rows) }];
    });
    const every = Math.max(1, ...runs.map(([, run]) => run.every ?? 1));
    const notes = runs.length > new Set(runs.map(([, run]) => run.variant)).size ? ["One line for each seed."] : [];
    if (every > 1) notes.push(`Of long runs one round in ${every} is drawn; the run folders have all.`);
    this.curves.draw(lines, shown.metrics, shown.axes, notes.join(" "));
  }
}

/** A run by its variant and its seed. */
function called(run) {
  return run.seed === null ? run.label : `${run.label}, seed ${run.seed}`;
}

/** The graph of one run, its clients coloured by what was measured of them last. */
class ClientsView {
  constructor(store) {
    this.store = store;
    this.controls = element("div", { class: "controls" });
    this.said = element("p", { class: "note" });
    this.figure = element("figure");
    this.scale = element("div", { class: "scale" });
    this.switch = element("div");
    this.place = element("section", { hidden: true }, element("h2", {}, "Clients"), this.controls,
      element("div", { class: "controls" }, this.switch, this.scale), this.figure, this.said);
    this.clear();
  }

  clear() {
    Object.assign(this, { picked: null, by: null, options: "", drawn: "", switched: "", graph: null });
  }

  draw(runs) {
    const with_ = runs.filter(([name, run]) => run.graph && this.store.get(`clients/${name}`));
    this.place.hidden = !with_.length;
    if (!with_.length) return;
    this.runs = runs;
    const running = with_.findLast(([, run]) => run.state === "running") ?? with_.at(-1);
    const [name, run] = with_.find(([known]) => known === this.picked) ?? running;
    this.drawSelect(with_, name);
    const about = this.store.get(`graph/${run.graph}`);
    if (about && this.drawn !== run.graph) {
      this.drawn = run.graph;
      this.graph = about.places.length ? new Graph(about) : null;
      this.figure.replaceChildren(element("h3", {}, about.title), this.graph?.place ?? "");
    }
    const { round, values } = this.store.get(`clients/${name}`);
    const by = values.find((value) => value.key === this.by) ?? values[0];
    this.drawSwitch(values, by);
    const range = extent([by.row]);
    this.graph?.colourBy(by.row, range, by.kind, by.reversed);
    const bar = element("i");
    bar.style.background = blendBar(by.reversed);
    this.scale.replaceChildren(written(by.kind, range[0]), bar, written(by.kind, range[1]));
    setText(this.said, [`${by.title}, after round ${round}.`, about?.note, about?.problem].filter(Boolean).join(" "));
  }

  drawSelect(runs, chosen) {
    const options = JSON.stringify(runs.map(([name]) => name));
    if (options !== this.options) {
      this.options = options;
      this.select = element("select", { "aria-label": "Run" }, ...runs.map(([name, run]) => element("option", { value: name }, called(run))));
      this.select.addEventListener("change", () => {
        this.picked = this.select.value;
        this.draw(this.runs);
      });
      this.controls.replaceChildren(runs.length > 1 ? this.select : "");
    }
    if (this.select.value !== chosen) this.select.value = chosen;
  }

  drawSwitch(values, by) {
    const keys = values.map((value) => value.key).join();
    if (keys === this.switched) return;
    this.switched = keys;
    const choose = (key) => {
      this.by = key;
      this.draw(this.runs);
    };
    this.switch.replaceChildren(values.length > 1
      ? choices("by", "What clients are coloured by", values.map((value) => [value.key, value.short]), by.key, choose)
      : element("span", { class: "note" }, `coloured by ${by.short}`));
  }
}
