// Small helpers over the DOM. Text always goes in as text, never as markup.

// h("button.primary", {type: "button", onclick: f, "aria-label": "x"}, "text", node, …)
export function h(spec, attributes, ...children) {
  const [tag, ...classes] = spec.split(".");
  const node = document.createElement(tag || "div");
  if (classes.length) node.className = classes.join(" ");
  apply(node, attributes);
  append(node, children);
  return node;
}

export function svg(tag, attributes, ...children) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(attributes ?? {})) node.setAttribute(name, value);
  append(node, children);
  return node;
}

function apply(node, attributes) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === undefined || value === null || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [k, v] of Object.entries(value)) node.style.setProperty(k, v);
    else if (name in node && !name.startsWith("aria") && typeof value !== "string") node[name] = value;
    else node.setAttribute(name, value === true ? "" : value);
  }
}

function append(node, children) {
  for (const child of children.flat(Infinity)) {
    if (child === undefined || child === null || child === false) continue;
    node.append(child instanceof Node ? child : String(child));
  }
}

export const icon = (path) => {
  const node = svg("svg", {class: "icon", viewBox: "0 0 20 20", "aria-hidden": "true"});
  node.append(svg("path", {d: path}));
  return node;
};

export function replace(node, ...children) {
  node.replaceChildren();
  append(node, children);
}

// Tells screen readers, and only them.
export function announce(text) {
  document.getElementById("live").textContent = text;
}

export async function copy(text, button) {
  const before = button.textContent;
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Not allowed here";
  }
  announce(button.textContent);
  setTimeout(() => { button.textContent = before; }, 1500);
}

// ---- numbers ----
const units = ["", "k", "M", "G", "T"];

// Three significant digits at most, with a letter from 10,000 on.
export function compact(value) {
  if (value === null || value === undefined || !Number.isFinite(value)) return "–";
  let unit = 0;
  while (Math.abs(value) >= (unit === 0 ? 10000 : 1000) && unit < units.length - 1) {
    value /= 1000;
    unit += 1;
  }
  const size = Math.abs(value);
  const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : 2;
  return (unit === 0 && size >= 1000 ? Math.round(value).toLocaleString("en") : value.toFixed(digits)) + units[unit];
}

export function bytes(value) {
  if (!Number.isFinite(value)) return "–";
  let unit = 0;
  while (value >= 1024 && unit < 4) {
    value /= 1024;
    unit += 1;
  }
  return `${value >= 100 || unit === 0 ? value.toFixed(0) : value.toFixed(1)} ${["B", "KiB", "MiB", "GiB", "TiB"][unit]}`;
}

// Milliseconds as people read them.
export function duration(ms) {
  if (ms === null || ms === undefined || !Number.isFinite(ms)) return "–";
  if (ms === 0) return "0 ms";
  if (ms < 0.01) return "< 0.01 ms";
  if (ms < 1) return `${ms.toFixed(2)} ms`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${ms.toFixed(0)} ms`;
  if (ms < 60000) return `${(ms / 1000).toFixed(ms < 10000 ? 2 : 1)} s`;
  const minutes = Math.floor(ms / 60000);
  return minutes < 60 ? `${minutes} min ${Math.round((ms % 60000) / 1000)} s` : `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

export const clock = (unixMs) => new Date(unixMs).toLocaleTimeString([], {hour: "2-digit", minute: "2-digit", second: "2-digit", hour12: false});
export const plural = (n, one, many = one + "s") => `${n.toLocaleString("en")} ${n === 1 ? one : many}`;
