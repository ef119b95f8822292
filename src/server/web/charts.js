// Line charts over time as SVG, read with the pointer or the arrow keys.
import {announce, clock, h, replace, svg} from "./dom.js";

const height = 150;
const pad = {right: 10, top: 8, bottom: 20};

// Round steps for an axis from 0 to at least `max`; `base` 1024 for bytes.
function ticks(max, base = 10) {
  if (!(max > 0)) return [0, 1];
  const raw = max / 3;
  const power = base ** Math.floor(Math.log(raw) / Math.log(base));
  const steps = base === 10 ? [1, 2, 2.5, 5, 10] : [1, 2, 4, 8, 16, 20, 32, 64, 100, 128, 200, 256, 512, 1024];
  const step = steps.map((m) => m * power).find((s) => s >= raw * 0.999);
  const out = [];
  for (let v = 0; v < max + step * 0.999; v += step) out.push(v);
  return out;
}

export class LineChart {
  // {title, format, max, base, stacked, empty}: format makes text of a value; max fixes the top of the axis; base 1024:
  // its steps are round in bytes.
  constructor(options) {
    this.options = options;
    this.svg = svg("svg", {role: "img", tabindex: "0", "aria-label": options.title});
    this.tip = h("div.tip", {hidden: true, "aria-hidden": "true"});
    this.now = h("span.now");
    this.legend = h("div.legend");
    this.none = h("div.nodata", {hidden: true}, options.empty ?? "Nothing in this window yet");
    this.chart = h("div.chart", {}, this.svg, this.tip);
    this.node = h("section.card.panel", {"aria-label": options.title}, h("header", {}, h("h2.name", {}, options.title), this.now), this.chart, this.none, this.legend);
    this.at = null;  // index under the pointer
    this.svg.addEventListener("pointermove", (e) => this.hover(e));
    this.svg.addEventListener("pointerleave", () => this.point(null));
    this.svg.addEventListener("blur", () => this.point(null));
    this.svg.addEventListener("keydown", (e) => this.key(e));
    new ResizeObserver(() => this.draw()).observe(this.chart);
  }

  // times: unix ms, ascending; series: [{name, colour, values}], null where there is nothing; from, to: the window.
  update(times, series, from, to) {
    this.data = {times, series, from, to};
    this.draw();
  }

  x = (t) => this.left + (t - this.data.from) / (this.data.to - this.data.from) * (this.width - this.left - pad.right);
  y = (v) => height - pad.bottom - v / this.top * (height - pad.top - pad.bottom);

  draw() {
    if (!this.data) return;
    const {times, from, to} = this.data;
    const {format, stacked} = this.options;
    const first = Math.max(0, times.findIndex((t) => t >= from));
    const any = times.length > 0 && this.data.series.some((s) => s.values.slice(first).some((v) => v !== null && v !== undefined));
    this.chart.hidden = !any;
    this.none.hidden = any;
    const visible = any ? this.data.series : [];
    replace(this.legend, visible.length > 1 ? visible.map((s) => h("span", {}, h("i.swatch", {style: {"--k": s.colour}}), s.name)) : "");
    const last = (s) => s.values.findLast((v) => v !== null && v !== undefined);
    this.now.textContent = visible.map((s) => (visible.length > 1 && visible.length <= 3 ? `${s.name}: ` : "") + format(last(s))).slice(0, 3).join(" · ");
    this.svg.setAttribute("aria-label", `${this.options.title}: ${visible.map((s) => `${s.name} ${format(last(s))}`).join(", ") || "no data"}. Arrow keys read single moments.`);
    if (!any) return;
    this.width = this.chart.clientWidth || 400;
    this.svg.setAttribute("viewBox", `0 0 ${this.width} ${height}`);
    // Stacked values lie on those before them.
    const below = times.map(() => 0);
    this.shown = visible.map((s) => ({...s, low: stacked ? [...below] : null,
      high: s.values.map((v, i) => v === null || v === undefined ? null : stacked ? (below[i] += v) : v)}));
    const peak = Math.max(0, ...this.shown.flatMap((s) => s.high.slice(first).filter((v) => v !== null)));
    const marks = this.options.max ? [0, this.options.max / 2, this.options.max] : ticks(peak, this.options.base);
    this.top = marks.at(-1);
    this.left = Math.max(...marks.map((v) => format(v).length)) * 6.6 + 12;
    replace(this.svg, marks.map((v) => [svg("line", {class: "grid", x1: this.left, x2: this.width - pad.right, y1: this.y(v), y2: this.y(v)}),
      svg("text", {x: this.left - 6, y: this.y(v) + 4, "text-anchor": "end"}, format(v))]), this.timeMarks(from, to),
      this.shown.map((s) => this.paths(s, times, first)), this.hair = svg("line", {class: "hair", y1: pad.top, y2: height - pad.bottom, visibility: "hidden"}));
    if (this.at !== null) this.point(this.at);
  }

  timeMarks(from, to) {
    const minutes = (to - from) / 60000;
    const step = (minutes <= 1 ? 15 : minutes <= 5 ? 60 : 180) * 1000;
    const out = [];
    for (let t = Math.ceil(from / step) * step; t <= to; t += step) {
      if (this.x(t) < this.left + 14 || this.x(t) > this.width - 22) continue;
      out.push(svg("text", {x: this.x(t), y: height - 5, "text-anchor": "middle"}, minutes <= 1 ? clock(t) : clock(t).slice(0, 5)));
    }
    return out;
  }

  paths(s, times, first) {
    let line = "";
    let pieces = [];
    const areas = [];
    const close = () => {
      if (pieces.length > 1) {
        const base = pieces.map(([x,, i]) => [x, this.y(s.low ? s.low[i] : 0)]).reverse();
        areas.push(`M${[...pieces, ...base].map(([x, y]) => `${x.toFixed(1)} ${y.toFixed(1)}`).join("L")}Z`);
      }
      pieces = [];
    };
    for (let i = first; i < times.length; i += 1) {
      const v = s.high[i];
      if (v === null || v === undefined) { close(); continue; }
      const x = this.x(times[i]);
      const y = this.y(Math.min(v, this.top));
      line += `${pieces.length ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`;
      pieces.push([x, y, i]);
    }
    close();
    const area = this.options.stacked || this.shown.length === 1 ? areas.map((d) => svg("path", {class: "area", d})) : [];
    for (const a of area) {
      a.style.fill = s.colour;
      if (this.options.stacked) a.style.opacity = "0.45";
    }
    const path = svg("path", {class: "series", d: line});
    path.style.stroke = s.colour;
    return [...area, path];
  }

  hover(event) {
    const box = this.svg.getBoundingClientRect();
    const {times, from, to} = this.data;
    const t = from + (event.clientX - box.left - this.left) / (box.width - this.left - pad.right) * (to - from);
    let best = null;
    for (let i = 0; i < times.length; i += 1) if (best === null || Math.abs(times[i] - t) < Math.abs(times[best] - t)) best = i;
    this.point(best);
  }

  key(event) {
    if (!this.data || !["ArrowLeft", "ArrowRight", "Home", "End", "Escape"].includes(event.key)) return;
    event.preventDefault();
    const {times, from} = this.data;
    const first = Math.max(0, times.findIndex((t) => t >= from));
    const at = this.at ?? times.length;
    if (event.key === "Escape") this.point(null);
    else this.point(Math.min(times.length - 1, Math.max(first, {ArrowLeft: at - 1, ArrowRight: at + 1, Home: first, End: times.length - 1}[event.key])));
    if (this.at !== null) announce(this.tip.textContent);
  }

  point(i) {
    this.at = i;
    this.tip.hidden = i === null || !this.shown;
    this.hair?.setAttribute("visibility", i === null ? "hidden" : "visible");
    if (i === null || !this.shown) return;
    const t = this.data.times[i];
    const x = this.x(t);
    this.hair.setAttribute("x1", x);
    this.hair.setAttribute("x2", x);
    replace(this.tip, h("div.muted", {}, clock(t)), this.shown.map((s) => h("div", {}, h("i.swatch", {style: {"--k": s.colour}}), ` ${s.name} `,
      h("strong.num", {}, this.options.format(s.values[i])), " ")));
    const share = x / this.width;
    this.tip.style.left = share < 0.6 ? `${x + 10}px` : "auto";
    this.tip.style.right = share < 0.6 ? "auto" : `${this.width - x + 10}px`;
  }
}
