// The server's feed of figures (one frame a second), with 15 minutes of history, reconnecting by itself.
import {StreamCut, onKeyChange, stream} from "./api.js";

const kept = 900;

export class Feed {
  constructor() {
    this.times = [];
    this.columns = new Map();  // name -> one value per time, null where there is none
    this.frame = null;
    this.problem = null;  // null while it runs; else an ApiError or StreamCut
    this.listeners = new Set();
    this.wanted = false;
    onKeyChange(() => { if (this.wanted) this.restart(); });
  }

  on(f) { this.listeners.add(f); }
  changed() { for (const f of this.listeners) f(); }

  start() {
    if (this.wanted) return;
    this.wanted = true;
    this.restart();
  }
  stop() {
    this.wanted = false;
    this.abort?.abort();
    clearTimeout(this.timer);
  }
  restart() {
    this.abort?.abort();
    clearTimeout(this.timer);
    this.wait = 1000;
    this.connect();
  }

  async connect() {
    const abort = this.abort = new AbortController();
    let problem;
    try {
      await stream("ui/feed", {signal: abort.signal, onEvent: (name, data) => {
        if (name === "history") this.history(JSON.parse(data));
        if (name === "frame") this.take(JSON.parse(data));
        this.problem = null;
        this.wait = 1000;
        this.changed();
      }});
      problem = new StreamCut("The feed ended.");
    } catch (error) {
      if (error.name === "AbortError") return;
      problem = error;
    }
    if (!this.wanted || abort.signal.aborted) return;
    this.problem = problem;
    this.changed();
    if (problem.status === 401 || problem.status === 403) return;  // a key starts it again
    this.timer = setTimeout(() => this.connect(), this.wait);
    this.wait = Math.min(10000, this.wait * 2);
  }

  history(data) {
    this.times = data.t;
    this.columns = new Map(data.names.map((name, i) => [name, data.values[i]]));
  }

  take(frame) {
    this.frame = frame;
    if (this.times.length && frame.t <= this.times.at(-1)) return;  // in the history already
    this.times.push(frame.t);
    for (const [name, value] of Object.entries(frame.charted)) {
      if (!this.columns.has(name)) this.columns.set(name, new Array(this.times.length - 1).fill(null));
      this.columns.get(name).push(value);
    }
    for (const column of this.columns.values()) if (column.length < this.times.length) column.push(null);
    if (this.times.length > kept) {
      this.times.shift();
      for (const column of this.columns.values()) column.shift();
    }
  }

  // ---- reading ----
  column(name) { return this.columns.get(name) ?? this.times.map(() => null); }
  // Names of a family in the charted series, with their labels.
  family(name) {
    return [...this.columns.keys()].filter((key) => key === name || key.startsWith(name + "{")).map((key) => ({key, labels: labelsOf(key)}));
  }
  sum(name) {
    const columns = this.family(name).map((f) => this.columns.get(f.key));
    return this.times.map((_, i) => columns.reduce((sum, c) => c[i] === null || c[i] === undefined ? sum : (sum ?? 0) + c[i], null));
  }
  // Per second, over the last `span` seconds at each moment.
  rate(values, span = 5) {
    return values.map((value, i) => {
      if (value === null || i === 0) return null;
      let from = i;
      while (from > 0 && this.times[i] - this.times[from] < span * 1000 && values[from - 1] !== null) from -= 1;
      const seconds = (this.times[i] - this.times[from]) / 1000;
      const grown = value - values[from];
      return seconds > 0 && grown >= 0 ? grown / seconds : null;
    });
  }
  // All samples of a family as they stand now: [{labels, value}].
  samples(name) {
    return Object.entries(this.frame?.series ?? {}).filter(([key]) => key === name || key.startsWith(name + "{")).map(([key, value]) => ({labels: labelsOf(key), value}));
  }
  total(name) {
    const found = this.samples(name);
    return found.length ? found.reduce((sum, s) => sum + s.value, 0) : null;
  }
}

export function labelsOf(key) {
  const out = {};
  for (const m of key.matchAll(/([a-zA-Z_][\w]*)="([^"]*)"/g)) out[m[1]] = m[2];
  return out;
}

export const lastOf = (values) => values.findLast((v) => v !== null && v !== undefined) ?? null;
