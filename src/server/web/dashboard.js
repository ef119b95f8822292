// The dashboard: what the server does now and did in the last minutes. Panels of parts that this server does not run are
// left out.
import {adminKeyNeeded, keyProblem} from "./api.js";
import {bytes, compact, duration, h, plural, replace} from "./dom.js";
import {LineChart} from "./charts.js";
import {Feed, lastOf} from "./feed.js";
import {optionalPanels} from "./dashboard_parts.js";

const colours = ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)"];
const latencies = [["ttft", "Time to first token"], ["itl", "Gap between chunks"], ["tpot", "Time per output token"], ["e2e", "Whole request"]];
const seconds = (v) => v === null || v === undefined ? "–" : v === 0 ? "0" : duration(v * 1000);
const percent = (v) => v === null || v === undefined ? "–" : v > 0 && v < 0.0005 ? "< 0.1 %" : `${(100 * v).toFixed(v > 0 && v < 0.1 ? 1 : 0)} %`;

export class Dashboard {
  constructor(root, app) {
    this.app = app;
    this.root = root;
    this.feed = new Feed();
    this.feed.on(() => this.draw());
    this.window = 5;
    this.build();
  }

  show() { this.feed.start(); this.draw(); }
  hide() { this.feed.stop(); }

  build() {
    this.windows = [1, 5, 15].map((minutes) => h("button", {type: "button", "aria-pressed": String(minutes === this.window), onclick: () => {
      this.window = minutes;
      for (const [i, b] of this.windows.entries()) b.setAttribute("aria-pressed", String([1, 5, 15][i] === minutes));
      this.draw();
    }}, `${minutes} min`));
    this.live = h("span.pill", {role: "status"}, h("span.dot", {"aria-hidden": "true"}), h("span", {}, "Connecting…"));
    this.tiles = {};
    const tile = (key, name) => {
      const value = h("div.value", {"data-metric": key}, "–");
      const note = h("div.note", {}, "\u00a0");
      this.tiles[key] = {value, note};
      return h("div.card.tile", {role: "group", "aria-label": name}, h("div.name", {}, name), value, note);
    };
    const tiles = h("div.tiles", {}, tile("requests", "Requests"), tile("output", "Output"), tile("prefill", "Prefill"), tile("running", "Running"),
      tile("kv", "KV cache"), tile("hits", "From cache"), tile("ttft", "First token, p50"), tile("tpot", "Per token, p50"));
    this.charts = {
      requests: new LineChart({title: "Requests per second", format: compact, empty: "No requests in this window"}),
      tokens: new LineChart({title: "Tokens per second", format: compact, empty: "No tokens in this window"}),
      load: new LineChart({title: "Requests in the engine", format: compact}),
      ttft: new LineChart({title: "Time to first token", format: seconds, empty: "No answers in this window"}),
      tpot: new LineChart({title: "Time per output token", format: seconds, empty: "No answers in this window"}),
      e2e: new LineChart({title: "Whole request", format: seconds, empty: "No answers in this window"}),
      kv: new LineChart({title: "KV cache in use", format: percent, max: 1}),
      steps: new LineChart({title: "Engine time", format: percent, max: 1, stacked: true}),
      process: new LineChart({title: "Processor use, cores", format: compact}),
      memory: new LineChart({title: "Resident memory", format: bytes, base: 1024}),
    };
    this.latency = h("div.scroll", {tabIndex: 0, role: "group", "aria-label": "Table of latencies"});
    this.facts = h("dl.facts");
    this.optional = optionalPanels();
    this.body = h("div.inner", {hidden: true}, tiles,
      h("div.panels", {}, ["requests", "tokens", "load", "ttft", "tpot", "e2e", "kv", "steps", "process", "memory"].map((k) => this.charts[k].node),
        this.optional.map((p) => p.node)),
      h("section.card.panel", {"aria-label": "Latencies"}, h("header", {}, h("h2.name", {}, "Latencies"), h("span.now", {}, "from the histograms of /metrics")), this.latency),
      h("section.card", {"aria-label": "Since the start"}, this.facts));
    this.state = h("div.empty", {role: "status"});
    replace(this.root, h("div.inner", {}, h("div.bar", {}, h("h1", {}, "Dashboard"), this.live, h("span.grow"),
      h("div.segments", {role: "group", "aria-label": "Window of the charts"}, this.windows)), this.state, this.body));
  }

  draw() {
    const {feed} = this;
    this.drawState();
    if (!feed.frame || this.body.hidden) return;
    const to = feed.times.at(-1) ?? feed.frame.t;
    const from = to - this.window * 60000;
    const chart = (key, series) => this.charts[key].update(feed.times, series, from, to);
    const codes = feed.family("deepinfer:http_requests_total").sort((a, b) => a.key.localeCompare(b.key));
    const colourOf = (code, i) => code < "400" ? colours[0] : code === "499" ? colours[2] : code >= "500" ? colours[5] : colours[3 - (i % 2)];
    chart("requests", codes.map((f, i) => ({name: f.labels.code, colour: colourOf(f.labels.code, i), values: feed.rate(feed.column(f.key))})));
    const output = feed.rate(feed.sum("vllm:generation_tokens_total"));
    const prefill = feed.rate(feed.sum("deepinfer:engine_prompt_tokens_total"));
    const engines = feed.family("vllm:generation_tokens_total");
    const each = engines.length > 1 ? engines.map((f, i) => ({name: `output, device ${f.labels.engine}`, colour: colours[(i + 2) % 6], values: feed.rate(feed.column(f.key))})) : [];
    chart("tokens", [{name: "output", colour: colours[0], values: output}, {name: "prefill", colour: colours[1], values: prefill}, ...each]);
    const running = feed.column("vllm:num_requests_running");
    const waiting = feed.column("vllm:num_requests_waiting");
    chart("load", [{name: "running", colour: colours[0], values: running}, {name: "waiting", colour: colours[2], values: waiting}]);
    for (const key of ["ttft", "tpot", "e2e"])
      chart(key, ["p50", "p90", "p99"].map((q, i) => ({name: q, colour: colours[i], values: feed.column(`${key}_${q}`)})));
    const kv = feed.column("vllm:kv_cache_usage_perc");
    chart("kv", [{name: "in use", colour: colours[1], values: kv}]);
    chart("steps", this.stepSeries());
    chart("process", [{name: "cores", colour: colours[3], values: feed.rate(feed.column("process_cpu_seconds_total"))}]);
    chart("memory", [{name: "resident", colour: colours[3], values: feed.column("process_resident_memory_bytes")}]);
    for (const panel of this.optional) panel.update(feed, from, to);
    this.drawTiles({codes, output, prefill, running, waiting, kv});
    this.drawLatency();
    this.drawFacts();
  }

  // Parts of the engine thread's time; what is left is idle.
  stepSeries() {
    const {feed} = this;
    const family = "deepinfer:step_seconds_sum";
    const parts = feed.family(family).filter((f) => f.labels.phase !== "wait").sort((a, b) => ["forward", "sample", "schedule"].indexOf(a.labels.phase) - ["forward", "sample", "schedule"].indexOf(b.labels.phase))
      .map((f, i) => ({name: f.labels.phase, colour: colours[[0, 2, 1, 3, 4][i % 5]], values: feed.rate(feed.column(f.key)).map((v) => v === null ? null : Math.min(1, v))}));
    const idle = feed.times.map((_, i) => parts.some((p) => p.values[i] === null) ? null : Math.max(0, 1 - parts.reduce((s, p) => s + p.values[i], 0)));
    return [...parts, {name: "idle", colour: "var(--line-strong)", values: idle}];
  }

  drawState() {
    const {problem, frame} = this.feed;
    const pill = (kind, text) => {
      this.live.className = `pill ${kind}`;
      this.live.lastChild.textContent = text;
    };
    const whole = (title, text, button) => {
      this.body.hidden = true;
      this.state.hidden = false;
      replace(this.state, h("h2", {}, title), h("p", {}, text), button);
    };
    const keyButton = () => h("button.primary", {type: "button", onclick: () => this.app.openKeyDialog()}, "Enter a key");
    if (problem?.status === 401) {
      pill("bad", "No access");
      return whole(keyProblem(), "The dashboard needs a key of scope admin. It stays in this tab's memory only.", keyButton());
    }
    if (problem?.status === 403) {
      pill("bad", "Not allowed");
      return whole("This key may not see the dashboard", adminKeyNeeded, keyButton());
    }
    if (!frame) {
      pill(problem ? "bad" : "", problem ? "No connection" : "Connecting…");
      if (problem) return whole("The server cannot be reached", "Trying again by itself. Is the server running, and is this the right address?");
      return whole("Connecting…", "Figures arrive once a second.");
    }
    this.state.hidden = true;
    this.body.hidden = false;
    if (problem) pill("bad", "Connection lost, trying again");
    else pill("ok", "Live");
  }

  drawTiles({codes, output, prefill, running, waiting, kv}) {
    const {feed, tiles} = this;
    const set = (key, value, unit, note) => {
      replace(tiles[key].value, value, unit ? h("small", {}, unit) : null);
      tiles[key].note.textContent = note || "\u00a0";
    };
    const soFar = (name) => `${compact(feed.total(name) ?? 0)} so far`;
    const rates = codes.map((f) => ({code: f.labels.code, rate: lastOf(feed.rate(feed.column(f.key))) ?? 0}));
    const failing = rates.filter((r) => r.code >= "500").reduce((s, r) => s + r.rate, 0);
    set("requests", compact(rates.reduce((s, r) => s + r.rate, 0)), "/s", failing > 0 ? `${compact(failing)}/s fail` : soFar("deepinfer:http_requests_total"));
    set("output", compact(lastOf(output) ?? 0), "tok/s", soFar("vllm:generation_tokens_total"));
    set("prefill", compact(lastOf(prefill) ?? 0), "tok/s", soFar("deepinfer:engine_prompt_tokens_total"));
    const limit = feed.frame.state.engine?.max_num_seqs;
    set("running", compact(lastOf(running)), limit ? `of ${limit}` : "", `${compact(lastOf(waiting))} waiting`);
    const blocks = feed.frame.state.engine?.blocks;
    set("kv", percent(lastOf(kv)), "", blocks ? `of ${plural(blocks, "block")}` : "");
    const prompt = feed.total("vllm:prompt_tokens_total");
    const cached = feed.total("vllm:prompt_tokens_cached_total");
    set("hits", prompt ? percent(cached / prompt) : "–", "", prompt ? `${compact(cached)} of ${compact(prompt)}` : "no prompts yet");
    for (const key of ["ttft", "tpot"]) {
      const found = feed.frame.latency[key]?.["60"];
      set(key, found?.count ? seconds(found.p50) : "–", "", found?.count ? `p99 ${seconds(found.p99)}` : "none in 1 min");
    }
  }

  drawLatency() {
    const data = this.feed.frame.latency;
    const windows = [["60", "1 min"], ["300", "5 min"], ["900", "15 min"]];
    replace(this.latency, h("table.lat", {}, h("thead", {}, h("tr", {}, h("th", {scope: "col", rowspan: "2"}, "Latency"),
      windows.map(([, name]) => h("th", {scope: "colgroup", colspan: "3"}, `Last ${name}`))),
      h("tr", {}, windows.flatMap(() => ["p50", "p90", "p99"].map((q) => h("th", {scope: "col"}, q))))),
      h("tbody", {}, latencies.filter(([key]) => data[key]).map(([key, name]) => h("tr", {}, h("th", {scope: "row"}, name),
        windows.flatMap(([w]) => ["p50", "p90", "p99"].map((q) => h("td", {}, seconds(data[key][w][q])))))))));
  }

  drawFacts() {
    const {feed} = this;
    const {state} = feed.frame;
    const engine = state.engine ?? {};
    const exact = (v) => v === null ? "–" : v.toLocaleString("en");
    const facts = [["Version", state.version], ["Model", state.model], ["Backend", engine.backend], ["KV format", engine.kv_dtype],
      ["Context", engine.max_model_len ? plural(engine.max_model_len, "token") : null],
      ["Answers", exact(feed.total("deepinfer:http_requests_total")), "requests_total"],
      ["Errors sent", exact(feed.total("deepinfer:errors_total") ?? 0), "errors_total"],
      ["Aborted by clients", exact(feed.total("deepinfer:requests_aborted_total") ?? 0), "aborted_total"],
      ["Prompt tokens", exact(feed.total("vllm:prompt_tokens_total")), "prompt_tokens_total"],
      ["Output tokens", exact(feed.total("vllm:generation_tokens_total")), "generation_tokens_total"],
      ["Preemptions", exact(feed.total("vllm:num_preemptions_total"))],
      ["Engine steps", exact(feed.total("deepinfer:engine_steps_total"))],
      ["Connections", exact(feed.total("deepinfer:http_connections"))],
      ["Open files", exact(feed.total("process_open_fds"))]];
    replace(this.facts, facts.filter(([, v]) => v !== null && v !== undefined && v !== "–").map(([name, value, key]) =>
      h("div", {}, h("dt", {}, name), h("dd", {"data-total": key}, value))));
    this.root.dataset.time = feed.frame.t;
  }
}
