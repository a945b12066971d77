// What the server tells: values by name and rows that grow. The connection rests while nobody looks at the tab.

/** Values and rows by name. `take` gives the names that a message has changed. */
export class Store {
  constructor() {
    this.values = new Map();
  }

  get(name) {
    return this.values.get(name);
  }

  /** [the rest of the name, value] of all names that begin like this. */
  under(prefix) {
    return [...this.values].filter(([name]) => name.startsWith(prefix)).map(([name, value]) => [name.slice(prefix.length), value]);
  }

  take({ all = false, set = {}, add = {}, gone = [] }) {
    if (all) this.values.clear();
    for (const name of gone) this.values.delete(name);
    for (const [name, value] of Object.entries(set)) this.values.set(name, value);
    for (const [name, rows] of Object.entries(add)) this.values.get(name)?.push(...rows);
  }
}

/** Rows as columns by name. */
export function columns(names, rows) {
  return Object.fromEntries(names.map((name, i) => [name, rows.map((row) => row[i])]));
}

/** Follow the events: `take(store's name, message)` for each, `say(state)` when the connection changes. */
export class Connection {
  constructor(take, say) {
    Object.assign(this, { take, say, shown: null, source: null });
    document.addEventListener("visibilitychange", () => (document.hidden ? this.close() : this.open()));
    // A page that the browser keeps aside for the "back" button must not hold its connection.
    addEventListener("pagehide", () => this.close());
    addEventListener("pageshow", (event) => event.persisted && this.open());
  }

  /** Show another thing, or none. */
  show(id) {
    if (id === this.shown && this.source) return;
    this.shown = id;
    this.open();
  }

  open() {
    this.close();
    if (document.hidden) return;
    const source = new EventSource(this.shown === null ? "events" : `events?show=${encodeURIComponent(this.shown)}`);
    this.source = source;
    source.onopen = () => this.say("live");
    source.onerror = () => this.say(source.readyState === EventSource.CLOSED ? "refused" : "lost");
    source.onmessage = (event) => this.take("all", JSON.parse(event.data));
    source.addEventListener("shown", (event) => this.take("shown", JSON.parse(event.data)));
  }

  close() {
    this.source?.close();
    this.source = null;
  }
}
