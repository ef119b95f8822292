// Panels that appear only when the server reports what they show: cache tiers, speculation, transfer, replicas, experts
// and workers.
import {bytes, compact, h, replace} from "./dom.js";
import {LineChart} from "./charts.js";

const colours = ["var(--c1)", "var(--c2)", "var(--c3)", "var(--c4)", "var(--c5)", "var(--c6)"];
const percent = (v) => v === null || v === undefined ? "–" : `${(100 * v).toFixed(0)} %`;
const some = (columns) => columns.some((c) => c.some((v) => v));

// A chart of one line per series of a family; hidden while all are nothing but zero.
function familyChart(title, family, format, {rate = false, name}) {
  const chart = new LineChart({title, format, base: format === bytes ? 1024 : 10});
  return {node: chart.node, update(feed, from, to) {
    const found = feed.family(family);
    chart.node.hidden = !some(found.map((f) => feed.column(f.key)));
    if (chart.node.hidden) return;
    chart.update(feed.times, found.slice(0, 6).map((f, i) => ({name: name(f.labels), colour: colours[i], values: rate ? feed.rate(feed.column(f.key)) : feed.column(f.key)})), from, to);
  }};
}

// Average accepted tokens per draft, and the part of the drafts that is taken.
function speculation() {
  const chart = new LineChart({title: "Draft tokens accepted", format: percent, max: 1});
  return {node: chart.node, update(feed, from, to) {
    const drafted = feed.rate(feed.column("vllm:spec_decode_num_draft_tokens_total"), 10);
    const accepted = feed.rate(feed.column("vllm:spec_decode_num_accepted_tokens_total"), 10);
    chart.node.hidden = !feed.total("vllm:spec_decode_num_draft_tokens_total");
    if (chart.node.hidden) return;
    chart.update(feed.times, [{name: "accepted", colour: colours[4], values: drafted.map((d, i) => d > 0 ? accepted[i] / d : null)}], from, to);
  }};
}

function histogram(title, family) {
  const bars = h("div.bars", {role: "img"});
  const axis = h("div.bars-axis", {"aria-hidden": "true"});
  const node = h("section.card.panel", {"aria-label": title, hidden: true}, h("header", {}, h("h2.name", {}, title), h("span.now", {}, "since the start")), bars, axis);
  return {node, update(feed) {
    const buckets = new Map();
    for (const s of feed.samples(`${family}_bucket`)) buckets.set(s.labels.le, (buckets.get(s.labels.le) ?? 0) + s.value);
    const bounds = [...buckets.keys()].sort((a, b) => Number(a.replace("+Inf", "Infinity")) - Number(b.replace("+Inf", "Infinity")));
    const counts = bounds.map((b, i) => buckets.get(b) - (i ? buckets.get(bounds[i - 1]) : 0));
    node.hidden = !counts.some((c) => c > 0);
    if (node.hidden) return;
    if (counts.at(-1) === 0) counts.pop();
    const names = counts.map((_, i) => bounds[i] === "+Inf" ? `> ${bounds[i - 1]}` : bounds[i]);
    const most = Math.max(...counts);
    const sum = counts.reduce((a, b) => a + b, 0);
    const share = (c) => c > 0 && c < 0.01 * sum ? "< 1 %" : percent(c / sum);
    replace(bars, counts.map((c, i) => h("div", {title: `${names[i]}: ${c}`, style: {height: `${100 * c / most}%`}})));
    bars.setAttribute("aria-label", `${title}: ${names.map((n, i) => `${n}: ${counts[i]}`).join(", ")}`);
    replace(axis, counts.map((c, i) => h("span", {}, h("strong", {}, names[i]), h("br"), share(c))));
  }};
}

// Layers down, ranks across; the colour is the load over the layer's mean.
function experts() {
  const map = h("div.heatmap", {role: "img"});
  const now = h("span.now");
  const node = h("section.card.panel.wide", {"aria-label": "Expert load", hidden: true}, h("header", {}, h("h2.name", {}, "Expert load, layer by rank"), now), map);
  return {node, update(feed) {
    const samples = feed.samples("deepinfer:expert_load").map((s) => ({layer: Number(s.labels.layer), rank: Number(s.labels.rank), value: s.value}));
    node.hidden = !samples.some((s) => s.value > 0);
    if (node.hidden) return;
    const ranks = Math.max(...samples.map((s) => s.rank)) + 1;
    const layers = [...new Set(samples.map((s) => s.layer))].sort((a, b) => a - b);
    let worst = 0;
    map.style.gridTemplateColumns = `repeat(${ranks}, 1fr)`;
    replace(map, layers.flatMap((layer) => {
      const row = new Array(ranks).fill(0);
      for (const s of samples) if (s.layer === layer) row[s.rank] = s.value;
      const mean = row.reduce((a, b) => a + b, 0) / ranks || 1;
      return row.map((v, rank) => {
        worst = Math.max(worst, v / mean);
        const share = Math.min(1, Math.abs(v / mean - 1));
        return h("i", {title: `layer ${layer}, rank ${rank}: ${(v / mean).toFixed(2)} of the mean`,
          style: {background: `color-mix(in srgb, var(${v > mean ? "--c3" : "--c1"}) ${Math.round(100 * share)}%, var(--sunken))`}});
      });
    }));
    now.textContent = `largest ${worst.toFixed(2)} of the mean`;
    map.setAttribute("aria-label", `Load of ${layers.length} layers on ${ranks} ranks; ${now.textContent}`);
  }};
}

function workers() {
  const body = h("tbody");
  const node = h("section.card.panel.wide", {"aria-label": "Workers", hidden: true}, h("header", {}, h("h2.name", {}, "Workers")),
    h("table.table", {}, h("thead", {}, h("tr", {}, h("th", {scope: "col"}, "Worker"), h("th", {scope: "col"}, "Health"))), body));
  return {node, update(feed) {
    const found = feed.samples("deepinfer:router_worker_health");
    node.hidden = !found.length;
    replace(body, found.map((s) => h("tr", {}, h("td.mono", {}, s.labels.worker), h("td", {}, h(s.value ? "span.badge.ok" : "span.badge.bad", {}, s.value ? "healthy" : "out")))));
  }};
}

export function optionalPanels() {
  return [
    familyChart("Cache hits by tier, tokens per second", "deepinfer:kv_hits_tokens_total", compact, {rate: true, name: (l) => l.tier}),
    familyChart("KV memory by tier", "deepinfer:kv_bytes", bytes, {name: (l) => `${l.tier} ${l.state}`}),
    familyChart("Window cache, requests per second", "deepinfer:swa_requests_total", compact, {rate: true, name: (l) => l.result.replaceAll("_", " ")}),
    familyChart("KV transfer, bytes per second", "deepinfer:pd_transfer_bytes_total", bytes, {rate: true, name: () => "transferred"}),
    familyChart("Replicas", "deepinfer:pool_replicas", compact, {name: (l) => `${l.role} ${l.state}`}),
    speculation(),
    histogram("Verify length", "deepinfer:spec_verify_len"),
    histogram("Accepted length", "deepinfer:spec_accept_len"),
    experts(),
    workers(),
  ];
}
