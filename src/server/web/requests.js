// Recent requests, and where the time of one went.
import {adminKeyNeeded, getJson, getText, keyProblem, onKeyChange} from "./api.js";
import {clock, compact, duration, h, plural, replace, svg} from "./dom.js";

const pageSize = 100;
const stageColours = {parse: "--c4", render: "--c4", tokenize: "--c4", constraint: "--c6", queue: "--line-strong", kv_fetch: "--c2", prefill: "--c3",
  transfer: "--c6", decode: "--c1", detokenize: "--c5", socket: "--c5"};
const stageNames = {parse: "Parse", render: "Render", tokenize: "Tokenize", constraint: "Compile constraint", queue: "Queue", kv_fetch: "KV fetch", prefill: "Prefill",
  transfer: "Transfer", decode: "Decode", detokenize: "Detokenize", socket: "Socket"};

function badge(r) {
  if (r.phase !== "done") return h("span.badge.run", {}, r.phase);
  if (r.code >= 500) return h("span.badge.bad", {}, `${r.code} ${r.finish}`);
  if (r.code === 499) return h("span.badge.warn", {}, "client left");
  if (r.code >= 400) return h("span.badge.bad", {}, `${r.code} ${r.finish}`);
  if (r.finish === "error") return h("span.badge.bad", {}, "error");
  return h(r.finish === "length" ? "span.badge.warn" : "span.badge.ok", {}, r.finish || "done");
}
const speed = (r) => {
  const ms = r.duration_ms - r.ttft_ms;
  return r.ttft_ms !== null && r.output_tokens > 1 && ms > 0 ? compact((r.output_tokens - 1) / (ms / 1000)) : "–";
};

export class Requests {
  constructor(root, app) {
    this.root = root;
    this.app = app;
    this.rows = null;
    this.limit = pageSize;
    this.visible = false;
    this.build();
    onKeyChange(() => { if (this.visible) this.poll(); });
  }

  show(id) {
    this.visible = true;
    this.id = id;
    this.listView.hidden = Boolean(id);
    this.detailView.hidden = !id;
    if (id) replace(this.detailView, this.head(id), h("div.empty", {role: "status"}, "Loading…"));
    this.poll();
  }
  hide() {
    this.visible = false;
    clearTimeout(this.timer);
  }

  build() {
    this.search = h("input", {type: "search", id: "request-search", placeholder: "Id, route or tenant", oninput: () => this.drawList()});
    this.state = h("select", {id: "request-state", onchange: () => this.drawList()}, [["all", "All"], ["running", "Running"], ["done", "Finished"], ["failed", "Failed or left"]]
      .map(([value, text]) => h("option", {value}, text)));
    this.live = h("input", {type: "checkbox", id: "request-live", checked: true, onchange: () => this.poll()});
    this.count = h("span.muted.small", {role: "status"});
    this.tableBox = h("div");
    this.listView = h("div.inner", {}, h("div.bar", {}, h("h1", {}, "Requests"), this.count, h("span.grow"),
      h("label.check", {for: "request-live"}, this.live, "Refresh")),
      h("div.filters", {}, h("div.field", {}, h("label", {for: "request-search"}, "Search"), this.search),
        h("div.field", {}, h("label", {for: "request-state"}, "Show"), this.state)), this.tableBox);
    this.detailView = h("div.inner", {hidden: true});
    replace(this.root, this.listView, this.detailView);
  }

  async poll() {
    clearTimeout(this.timer);
    const {id} = this;
    let again = 1000;
    try {
      if (id) {
        const line = await getJson(`admin/requests/${encodeURIComponent(id)}`);
        if (this.id !== id || !this.visible) return;
        this.drawDetail(line);
        if (line.phase === "done") return;
      } else {
        this.rows = (await getJson("admin/requests?limit=1000")).requests;
        if (this.id || !this.visible) return;
        this.drawList();
        again = 2000;
      }
    } catch (error) {
      if (this.id !== id || !this.visible) return;
      this.app.noticed(error);
      this.drawProblem(error, id);
      if (error.status === 401 || error.status === 403 || error.status === 404) return;
      again = 3000;
    }
    if (this.visible && (this.id || this.live.checked)) this.timer = setTimeout(() => this.poll(), again);
  }

  drawProblem(error, id) {
    const [title, text] = error.status === 401 ? [keyProblem(), "Requests are shown to keys of scope admin."]
      : error.status === 403 ? ["This key may not see requests", adminKeyNeeded]
      : error.status === 404 && id ? ["This request is not known", "Only the last 1,000 are kept, and none over a restart."]
      : error.status === 0 ? ["The server cannot be reached", "Trying again by itself."] : ["That did not work", error.message];
    const node = h("div.empty", {role: "alert"}, h("h2", {}, title), h("p", {}, text),
      [401, 403].includes(error.status) ? h("button.primary", {type: "button", onclick: () => this.app.openKeyDialog()}, "Enter a key") : null);
    if (id) replace(this.detailView, this.head(id), node);
    else { this.count.textContent = ""; replace(this.tableBox, node); }
  }

  drawList() {
    if (!this.rows) return;
    const text = this.search.value.trim().toLowerCase();
    const kind = this.state.value;
    const failed = (r) => r.phase === "done" && (r.code >= 400 || r.finish === "error");
    const rows = this.rows.filter((r) => (!text || `${r.id} ${r.route} ${r.tenant}`.toLowerCase().includes(text)) &&
      (kind === "all" || (kind === "running" ? r.phase !== "done" : kind === "done" ? r.phase === "done" && !failed(r) : failed(r))));
    this.count.textContent = `${plural(rows.length, "request")}${rows.length === this.rows.length ? "" : ` of ${this.rows.length}`}`;
    if (!rows.length) {
      replace(this.tableBox, h("div.empty", {}, h("h2", {}, this.rows.length ? "Nothing matches" : "No requests yet"),
        h("p", {}, this.rows.length ? "Change the search or what is shown." : "The last 1,000 requests appear here as they arrive. Ask something in the chat to see one.")));
      return;
    }
    const focused = document.activeElement?.closest?.("tr")?.dataset.id;
    const table = h("table.table", {}, h("thead", {}, h("tr", {}, ["Time", "State", "Request", "Route"].map((t) => h("th", {scope: "col"}, t)),
      ["Prompt", "Cached", "Output", "First token", "Duration", "tok/s"].map((t) => h("th.n", {scope: "col"}, t)))),
      h("tbody", {}, rows.slice(0, this.limit).map((r) => this.row(r))));
    replace(this.tableBox, h("div.card.scroll", {tabIndex: 0, role: "group", "aria-label": "Table of requests"}, table),
      rows.length > this.limit ? h("div.row", {style: {"justify-content": "center", "padding-top": "14px"}}, h("button", {type: "button", onclick: () => { this.limit += 300; this.drawList(); }}, "Show more")) : null);
    if (focused) this.tableBox.querySelector(`tr[data-id="${CSS.escape(focused)}"] a`)?.focus();
  }

  row(r) {
    const share = r.prompt_tokens ? r.cached_tokens / r.prompt_tokens : 0;
    return h("tr", {"data-id": r.id}, h("td.num", {}, clock(r.received_unix_ms)), h("td", {}, badge(r)),
      h("td", {}, h("a", {href: `#requests/${encodeURIComponent(r.id)}`, "aria-label": `Request ${r.id}`}, r.id.length > 16 ? `${r.id.slice(0, 14)}…` : r.id)),
      h("td", {}, r.route),
      h("td.n", {}, r.prompt_tokens ? r.prompt_tokens.toLocaleString("en") : "–"),
      h("td.n", {}, r.prompt_tokens ? `${Math.round(100 * share)} %` : "–", h("span.minibar", {"aria-hidden": "true"}, h("i", {style: {width: `${100 * share}%`}}))),
      h("td.n", {}, r.output_tokens.toLocaleString("en")), h("td.n", {}, duration(r.ttft_ms)), h("td.n", {}, duration(r.duration_ms)), h("td.n", {}, speed(r)));
  }

  head(id) {
    const save = (format) => h("button", {type: "button", onclick: () => this.download(id, format)}, format === "chrome" ? "Chrome trace" : "JSON");
    return h("div.bar", {}, h("a.button", {href: "#requests"}, "← All requests"), h("h1.mono", {style: {"font-size": "15px"}}, id), h("span.grow"), save("json"), save("chrome"));
  }

  async download(id, format) {
    try {
      const text = await getText(`admin/requests/${encodeURIComponent(id)}?format=${format}`);
      const url = URL.createObjectURL(new Blob([text], {type: "application/json"}));
      h("a", {href: url, download: `${id}${format === "chrome" ? ".trace" : ""}.json`}).click();
      URL.revokeObjectURL(url);
    } catch (error) {
      this.drawProblem(error, id);
    }
  }

  drawDetail(line) {
    const facts = [["State", badge(line)], ["Route", line.route.split("/").map((part, i) => i ? ["/", h("wbr"), part] : part)], ["Tenant", line.tenant], ["Received", clock(line.received_unix_ms)], ["Duration", duration(line.duration_ms)],
      ["First token", duration(line.ttft_ms)], ["Prompt", plural(line.prompt_tokens, "token")], ["Output", plural(line.output_tokens, "token")], ["tok/s", speed(line)],
      ["Steps", line.total_steps ? `${line.total_steps} (${(line.output_tokens / line.total_steps).toFixed(2)} tok each)` : "–"],
      ...(line.workers.prefill ? [["Prefill worker", line.workers.prefill]] : []), ...(line.workers.decode ? [["Decode worker", line.workers.decode]] : [])];
    const focus = document.activeElement?.textContent;
    replace(this.detailView, this.head(line.id),
      h("section.card", {"aria-label": "Facts"}, h("dl.facts", {}, facts.map(([k, v]) => h("div", {}, h("dt", {}, k), h("dd", {}, v))))),
      cacheCard(line), waterfall(line));
    for (const b of this.detailView.querySelectorAll(".bar button, .bar a")) if (b.textContent === focus) b.focus();
  }
}

function cacheCard(line) {
  const c = line.cache;
  const parts = [["device", c.device_tokens, "--c2"], ["host", c.host_tokens, "--c1"], ["store", c.store_tokens, "--c4"], ["computed", c.computed_tokens, "--line-strong"]].filter(([, n]) => n > 0);
  const total = parts.reduce((s, [, n]) => s + n, 0);
  if (!total) return null;
  const text = parts.map(([name, n]) => `${name === "computed" ? "computed" : `from ${name}`} ${plural(n, "token")}`).join(", ");
  return h("section.card.cachecard", {"aria-label": "Where the prompt came from"}, h("h2.name", {}, "Where the prompt came from"),
    h("div.stack", {role: "img", "aria-label": text}, parts.map(([, n, k]) => h("div", {style: {width: `${100 * n / total}%`, "--k": `var(${k})`}}))),
    h("div.legend", {}, parts.map(([name, n, k]) => h("span", {}, h("i.swatch", {style: {"--k": `var(${k})`, height: "10px"}}), `${name === "computed" ? "computed" : `cached, ${name}`}: ${n.toLocaleString("en")}`)),
      c.miss_reason ? h("span", {}, `Not cached because: ${c.miss_reason.replaceAll("_", " ")}`) : null));
}

// 0 and up to five round moments until `total`.
function roundMarks(total) {
  const raw = total / 5;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = [1, 2, 5, 10].map((m) => m * power).find((s) => s >= raw * 0.999);
  const out = [];
  for (let i = 0; i * step <= total; i += 1) out.push(i * step);
  return out;
}

function waterfall(line) {
  const total = Math.max(line.duration_ms, 0.001);
  const percent = (ms) => `${Math.max(0, Math.min(100, 100 * ms / total))}%`;
  const rows = line.stages.slice().sort((a, b) => a.begin_ms - b.begin_ms).map((s) => {
    const name = stageNames[s.stage] ?? s.stage;
    const label = `${name}${s.detail ? ` (${s.detail})` : ""}`;
    const text = `${label}: ${duration(s.end_ms - s.begin_ms)} from ${duration(s.begin_ms)}${s.tokens ? `, ${plural(s.tokens, "token")}` : ""}`;
    return h("div.line", {role: "listitem"}, h("span", {}, label, s.tokens ? h("span.muted.small", {}, ` ${s.tokens.toLocaleString("en")} tok`) : null),
      h("div.lane", {title: text, role: "img", "aria-label": text}, h("div", {style: {left: percent(s.begin_ms), width: percent(s.end_ms - s.begin_ms), "--k": `var(${stageColours[s.stage] ?? "--c1"})`}})),
      h("span.t", {}, duration(s.end_ms - s.begin_ms)));
  });
  if (line.steps.length) {
    const first = line.steps[0][0];
    const last = line.steps.at(-1)[0];
    const most = Math.max(...line.steps.map((s) => s[1]));
    const label = `Decode: ${plural(line.total_steps, "step")} in ${duration(last - first)}, ${plural(line.output_tokens, "token")}, at most ${most} at once${line.steps_per_entry > 1 ? ` (${line.steps_per_entry} steps a mark)` : ""}`;
    const marks = svg("svg", {viewBox: "0 0 1000 16", preserveAspectRatio: "none", "aria-hidden": "true"});
    for (const [at, n] of line.steps) {
      const tall = 4 + 12 * n / most;
      const mark = svg("rect", {x: (1000 * at / total).toFixed(2), y: (16 - tall).toFixed(1), width: "2", height: tall.toFixed(1)});
      mark.style.fill = "var(--c1)";
      marks.append(mark);
    }
    rows.push(h("div.line", {role: "listitem"}, h("span", {}, "Decode", h("span.muted.small", {}, ` ${plural(line.total_steps, "step")}`)),
      h("div.lane", {title: label, role: "img", "aria-label": label}, h("div", {style: {left: percent(first), width: percent(last - first), "--k": "var(--accent-soft)"}}), marks), h("span.t", {}, duration(last - first))));
  }
  for (const [stage, w] of Object.entries(line.work)) {
    rows.push(h("div.line", {role: "listitem"}, h("span", {}, stageNames[stage] ?? stage), h("span.muted.small", {}, `${plural(w.pieces, "piece")}, ${duration(w.ms / w.pieces)} each, beside the steps above`), h("span.t", {}, duration(w.ms))));
  }
  const axis = roundMarks(total).map((ms) => h(ms > 0.94 * total ? "span.last" : "span", {style: {left: percent(ms)}}, duration(ms)));
  return h("section.card.fall", {"aria-label": "Waterfall"}, h("div.line.axis", {"aria-hidden": "true"}, h("span", {}, "Stage"), h("div.lane", {}, axis), h("span.t", {}, "Time")),
    h("div", {role: "list", "aria-label": "Stages"}, rows),
    line.dropped_stages ? h("p.muted.small", {}, `${plural(line.dropped_stages, "further stage")} not kept.`) : null);
}
