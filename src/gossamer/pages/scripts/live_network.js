// A network of peers: the graph with letters under way, each peer, what happened, what was refused, mass and weights.

import { lineSample, lineStyle, written } from "./charts.js";
import { Graph } from "./clients.js";
import { element, shape } from "./dom.js";
import { columns } from "./live_feed.js";
import { arrange, bar, Curves, setBar, setText } from "./live_parts.js";
import { amount, digits } from "./numbers.js";

const STATES = { waiting: "not heard of yet", working: "", away: "does not answer", finished: "finished" };
const TRAVEL = 900; // milliseconds that a letter is seen under way
const MOST = 120; // letters that are drawn under way at once
const EVENTS = 60; // events that are listed

/** What there is to say of the network, in a sentence or two, and in a word. */
export function headline(peers) {
  const told = peers.filter(([, peer]) => peer.rounds);
  if (!told.length) return ["No peer has answered yet. This page goes on asking.", "waiting"];
  const rounds = Math.max(...told.map(([, peer]) => peer.rounds));
  const round = Math.min(...peers.map(([, peer]) => peer.round));
  if (peers.every(([, peer]) => peer.state === "finished")) return [`All ${peers.length} peers have finished ${rounds} rounds.`, "finished"];
  const some = (state) => peers.filter(([, peer]) => peer.state === state).map(([name]) => name);
  if (peers.every(([, peer]) => peer.state === "away" || peer.state === "finished")) {
    return [`No peer answers any more. The last that they said: round ${round} of ${rounds}. Peers leave when they have finished.`, "gone"];
  }
  const words = [`All peers have done round ${round} of ${rounds}.`];
  const [away, missing] = [some("away"), some("waiting")];
  if (away.length) words.push(`${listed(away)} ${away.length > 1 ? "do" : "does"} not answer.`);
  if (missing.length) words.push(`${listed(missing)} ${missing.length > 1 ? "have" : "has"} not been heard of yet.`);
  return [words.join(" "), away.length ? `${away.length} away` : `${round} of ${rounds}`];
}

function listed(names, most = 4) {
  const shown = names.length > most ? [...names.slice(0, most - 1), `${names.length - most + 1} more`] : names;
  return shown.length === 1 ? shown[0] : `${shown.slice(0, -1).join(", ")} and ${shown.at(-1)}`;
}

/** What push-sum weights sum to, in a sentence; nothing for methods without. */
export function mass(peers) {
  const known = peers.filter(([, peer]) => peer.weight !== null);
  if (!known.length) return "";
  const held = known.reduce((sum, [, peer]) => sum + peer.weight, 0);
  const rest = peers.length - held;
  const where = Math.abs(rest) < 5e-4 ? "nothing is under way."
    : "the rest is in letters under way, or the peers were asked at different moments.";
  return `The push-sum weights that peers hold sum to ${held.toFixed(3)} of ${peers.length}: ${where}`;
}

export class NetworkView {
  constructor({ all: store }) {
    this.store = store;
    this.net = element("figure");
    this.weights = element("p", { class: "note" });
    this.events = element("ol", { class: "events" });
    this.list = element("tbody");
    this.heads = element("tr");
    this.refused = element("tbody");
    this.refusals = element("section", { hidden: true }, element("h2", {}, "Refused"),
      element("p", { class: "about" }, "Messages and connections that a peer did not accept, by its reason; none of them stops it."),
      element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "What was refused" },
        element("table", { class: "live" }, element("thead", {}, element("tr", {},
          ...["by", "reason", "how often"].map((head, i) => element("th", { scope: "col", class: i < 2 ? "text" : null }, head)))),
        this.refused)));
    this.curves = new Curves("Peers");
    this.place = element("div", {},
      element("section", { class: "first two" }, this.net, element("div", {}, element("h3", {}, "What happened"),
        element("div", { class: "scroll log", tabindex: 0, role: "log", "aria-label": "What happened" }, this.events))),
      element("section", {}, element("h2", {}, "Peers"),
        element("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Peers" },
          element("table", { class: "live" }, element("thead", {}, this.heads), this.list)), this.weights),
      this.curves.place, this.refusals);
    this.rows = new Map();
    this.shown = 0;
  }

  draw() {
    const about = this.store.get("about");
    if (!this.graph) {
      this.graph = new PeerGraph(about.graph, about.names);
      this.net.replaceChildren(element("h3", {}, "The network"), this.graph.place,
        element("figcaption", {}, [about.graph.note, about.graph.problem, "Dots are letters on their way. Grey: does not answer."].filter(Boolean).join(" ")));
    }
    const peers = about.names.map((name) => [name, this.store.get(`peer/${name}`)]).filter(([, peer]) => peer);
    this.graph.update(new Map(peers), this.store.get("letters") ?? {});
    this.drawPeers(peers);
    this.drawEvents(this.store.get("events") ?? []);
    this.drawRefused(peers);
    const lines = about.names.flatMap((name, index) => {
      const rows = this.store.get(`rows/${name}`);
      return rows?.length ? [{ name, label: name, variant: index, columns: columns(about.columns, rows) }] : [];
    });
    this.curves.draw(lines, about.metrics, about.axes, "They begin when this page's server began to ask.");
    const [said, short] = headline(peers);
    return { title: `gossamer live · ${about.title}`, headline: said, short, about: `Asked with the kit of ${about.asked_as}, over mutual TLS.` };
  }

  drawPeers(peers) {
    const loss = peers.some(([, peer]) => peer.test_loss !== null) && !peers.some(([, peer]) => peer.accuracy !== null);
    const weighs = peers.some(([, peer]) => peer.weight !== null);
    const heads = ["peer", "progress", "round", loss ? "test loss" : "accuracy", "loss", "reached", "sent", "refused",
      ...(weighs ? ["weight"] : []), "doing"];
    if (this.heads.cells.length !== heads.length) {
      this.heads.replaceChildren(...heads.map((head) => element("th", { scope: "col", class: { peer: "text", doing: "text", progress: "bar" }[head] ?? null },
        head === "progress" ? element("span", { class: "unseen" }, head) : head)));
      this.rows.clear();
    }
    arrange(this.list, peers.map(([name, peer], index) => this.row(name, peer, index, heads, loss)));
    setText(this.weights, mass(peers));
  }

  row(name, peer, index, heads, loss) {
    if (!this.rows.has(name)) {
      const made = { bar: bar(`Progress of ${name}`), cells: heads.map((head) => element("td", { class: head === "doing" ? "text" : null })) };
      made.cells[0] = element("td", { class: "text name" }, element("span", { class: "label" }, lineSample(index), name));
      made.cells[1] = element("td", { class: "bar" }, made.bar);
      made.row = element("tr", {}, ...made.cells);
      this.rows.set(name, made);
    }
    const { bar: progress, cells, row } = this.rows.get(name);
    row.className = peer.state;
    setBar(progress, peer.round, peer.rounds);
    const refused = Object.values(peer.refused).reduce((sum, count) => sum + count, 0);
    const known = peer.rounds > 0;
    const [, , round, score, local, reached, sent, no, ...rest] = cells;
    setText(round, known ? `${peer.round} of ${peer.rounds}` : "–");
    setText(score, loss ? digits(peer.test_loss) : written("percent", peer.accuracy));
    setText(local, digits(peer.loss));
    setText(reached, known ? `${peer.neighbours - peer.away.length} of ${peer.neighbours}` : "–", peer.away.length ? "warn" : "");
    setText(sent, known ? amount(peer.sent, "B") : "–");
    setText(no, known ? String(refused) : "–", refused ? "warn" : "");
    if (rest.length > 1) setText(rest[0], peer.weight === null ? "–" : peer.weight.toFixed(3));
    setText(rest.at(-1), doing(peer), `text ${peer.state}`);
    return row;
  }

  drawEvents(events) {
    if (events.length === this.shown) return;
    if (events.length < this.shown) this.events.replaceChildren();
    const fresh = events.slice(events.length < this.shown ? 0 : this.shown).slice(-EVENTS);
    this.shown = events.length;
    for (const [seconds, peer, kind, words] of fresh) {
      const time = new Date(1000 * seconds);
      this.events.prepend(element("li", { class: kind }, element("time", { datetime: time.toISOString() }, time.toLocaleTimeString("en-GB")),
        element("span", {}, element("b", {}, peer), ` ${words}`)));
    }
    while (this.events.children.length > EVENTS) this.events.lastChild.remove();
  }

  drawRefused(peers) {
    const rows = peers.flatMap(([name, peer]) => Object.entries(peer.refused).map(([reason, count]) => [name, reason, count]));
    this.refusals.hidden = !rows.length;
    const key = JSON.stringify(rows);
    if (key === this.refusedKey) return;
    this.refusedKey = key;
    this.refused.replaceChildren(...rows.map(([name, reason, count]) => element("tr", {}, element("td", { class: "text" }, name),
      element("td", { class: "text" }, reason), element("td", {}, String(count)))));
  }

  resized() {
    this.curves.redraw();
  }

  recoloured() {
    this.curves.redraw();
    this.graph?.recolour();
  }
}

function doing(peer) {
  if (peer.state === "away") {
    const seconds = Math.max(0, Math.round(Date.now() / 1000 - peer.since));
    return `does not answer for ${seconds} s: ${peer.problem}`;
  }
  if (peer.state === "waiting") return peer.problem ?? STATES.waiting;
  if (peer.state === "finished") return "finished";
  const missed = peer.away.length ? `, cannot reach ${listed(peer.away)}` : "";
  const again = peer.starts > 1 ? `, started ${peer.starts} times` : "";
  return `${peer.doing}${missed}${again}`;
}

/** The graph of the peers, with their names, their state, and letters on their way. */
class PeerGraph extends Graph {
  constructor(about, names) {
    super(about);
    this.names = names;
    this.index = new Map(names.map((name, i) => [name, i]));
    this.letters = null;
    for (const number of this.numbers) number.remove();
    this.numbers = [];
    this.flights = shape("g", { class: "flights", "aria-hidden": "true" });
    this.resting = shape("g", { class: "resting", "aria-hidden": "true" });
    this.labels = names.length > 40 ? [] : this.points.map(([x, y], i) => shape("g", { class: "peer" },
      shape("text", { x: x.toFixed(1), y: (y + this.radius).toFixed(1), dy: "1.15em" }, names[i]),
      shape("text", { x: x.toFixed(1), y: (y + this.radius).toFixed(1), dy: "2.5em", class: "said" })));
    this.place.insertBefore(this.flights, this.circles[0] ?? null);
    this.place.append(this.resting, ...this.labels);
    this.place.setAttribute("aria-label", "The graph of the peers; the table below has all that it shows");
    this.place.classList.add("peers");
    const [, , wide, high] = this.place.getAttribute("viewBox").split(" ").map(Number);
    const room = names.length > 40 ? 0 : 130; // for names below and beside the outer circles
    this.wide = wide + 2 * room;
    this.place.setAttribute("viewBox", `${-this.radius - 4 - room} ${-this.radius - 4 - room / 3} ${this.wide} ${high + 1.4 * room}`);
    new ResizeObserver(() => this.size()).observe(this.place);
    this.still = matchMedia("(prefers-reduced-motion: reduce)");
  }

  /** Names have the size of text, however wide the graph is drawn. */
  size() {
    const box = this.place.getBoundingClientRect();
    const [, , wide, high] = this.place.getAttribute("viewBox").split(" ").map(Number);
    const unit = Math.max(wide / (box.width || 1), high / (box.height || 1));
    this.place.style.setProperty("--unit", `${unit}px`);
  }

  update(peers, letters) {
    this.peers = peers;
    this.recolour();
    if (this.letters) {
      for (const [edge, [, total]] of Object.entries(letters)) {
        const before = this.letters[edge]?.[1] ?? 0;
        if (total > before) this.send(edge, Math.min(total - before, 3));
      }
    }
    this.letters = letters;
    this.rest(letters, peers);
  }

  recolour() {
    this.names.forEach((name, i) => {
      const peer = this.peers?.get(name);
      const state = peer?.state ?? "waiting";
      const circle = this.circles[i];
      circle.setAttribute("class", state);
      circle.style.fill = state === "away" || state === "waiting" ? "" : lineStyle(i).colour;
      const said = state === "working" ? `round ${peer.round}` : STATES[state];
      setText(circle.firstChild, `${name}: ${said}`);
      if (this.labels[i]) setText(this.labels[i].lastChild, said);
    });
  }

  ends(edge) {
    const [from, to] = edge.split(">").map((name) => this.points[this.index.get(name)]);
    return [from, to];
  }

  send(edge, count) {
    const [from, to] = this.ends(edge);
    if (!from || !to || this.still.matches || document.hidden) return;
    for (let i = 0; i < count && this.flights.children.length < MOST; i += 1) {
      const dot = shape("circle", { cx: from[0], cy: from[1], r: Math.max(5, this.radius * 0.24) });
      this.flights.append(dot);
      const there = `translate(${to[0] - from[0]}px, ${to[1] - from[1]}px)`;
      const flight = dot.animate([{ transform: "none" }, { transform: there }], { duration: TRAVEL, delay: 160 * i, easing: "ease-in-out" });
      flight.onfinish = flight.oncancel = () => dot.remove();
    }
  }

  /** Letters that cannot be delivered lie before the peer that does not take them. */
  rest(letters, peers) {
    const lying = Object.entries(letters).filter(([edge, [waiting]]) => {
      const [, to] = edge.split(">");
      return waiting > 0 && peers.get(to)?.state === "away";
    });
    const key = JSON.stringify(lying);
    if (key === this.lying) return;
    this.lying = key;
    this.resting.replaceChildren(...lying.map(([edge, [waiting]]) => {
      const [from, to] = this.ends(edge);
      const length = Math.hypot(to[0] - from[0], to[1] - from[1]) || 1;
      const share = 1 - Math.min(0.5, (2.2 * this.radius) / length);
      const [x, y] = [from[0] + share * (to[0] - from[0]), from[1] + share * (to[1] - from[1])];
      return shape("circle", { cx: x.toFixed(1), cy: y.toFixed(1), r: Math.max(6, this.radius * 0.28) },
        shape("title", {}, `${waiting} waiting for ${edge.split(">")[1]}`));
    }));
  }
}
