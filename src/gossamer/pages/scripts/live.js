// The live page: one connection, and a view of runs or of a network that is drawn anew when something has changed.

import { element, onLooks } from "./dom.js";
import { Connection, Store } from "./live_feed.js";
import { NetworkView } from "./live_network.js";
import { openTo } from "./live_parts.js";
import { RunsView } from "./live_runs.js";

const stores = { all: new Store(), shown: new Store() };
const place = (id) => document.getElementById(id);
const SAID = {
  live: ["live", "live"],
  lost: ["connection lost, trying again", "lost"],
  refused: ["the server has ended: start gossamer live again and open the address that it prints", "lost"],
};
let view = null;
let waiting = false;

function draw() {
  waiting = false;
  const about = stores.all.get("about");
  if (!about) return;
  if (view === null) {
    view = about.kind === "network" ? new NetworkView(stores) : new RunsView(stores, (id) => connection.show(id));
    place("content").replaceChildren(view.place);
  }
  const said = view.draw();
  text(place("title"), said.title);
  text(place("headline"), said.headline);
  text(place("about"), [said.about, openTo(location)].filter(Boolean).join(" "));
  document.title = said.headline ? `${said.short} · gossamer live` : "gossamer live";
  document.documentElement.dataset.ready = "true";
}

function text(node, words) {
  if (node.textContent !== words) node.textContent = words;
}

const connection = new Connection((name, message) => {
  stores[name].take(message);
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(draw);
}, (state) => {
  const [words, name] = SAID[state];
  place("connection").replaceChildren(element("span", { class: `state ${name}` }, words));
  document.documentElement.dataset.connection = state;
});

addEventListener("resize", () => view?.resized());
onLooks(() => view?.recoloured());
connection.show(location.hash.slice(1) || null);
