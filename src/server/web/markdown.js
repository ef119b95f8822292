// The Markdown that models write, as DOM nodes: headings, lists, tables, quotes, code, emphasis, links. Everything else
// stays text; nothing is ever parsed as HTML, and pictures from elsewhere are not loaded.
import {copy, h} from "./dom.js";

export function markdown(text) {
  const root = h("div.md");
  blocks(text.replace(/\r\n?/g, "\n").split("\n"), root, 0);
  return root;
}

const fence = /^ {0,3}(`{3,}|~{3,})\s*([^\s`]*)/;
const item = /^(\s*)([-*+]|\d{1,9}[.)])\s+(.*)$/;

function blocks(lines, parent, depth) {
  let i = 0;
  const paragraph = [];
  const flush = () => {
    if (paragraph.length) parent.append(h("p", {}, inline(paragraph.join("\n"))));
    paragraph.length = 0;
  };
  while (i < lines.length) {
    const line = lines[i];
    let match;
    if ((match = fence.exec(line))) {
      flush();
      const end = lines.findIndex((l, k) => k > i && l.trim().startsWith(match[1]) && /^\s*(`+|~+)\s*$/.test(l));
      const stop = end < 0 ? lines.length : end;
      parent.append(codeBox(lines.slice(i + 1, stop).join("\n"), match[2]));
      i = stop + 1;
    } else if (!line.trim()) {
      flush();
      i += 1;
    } else if ((match = /^(#{1,6})\s+(.*?)\s*#*$/.exec(line))) {
      flush();
      parent.append(h("h" + Math.min(match[1].length + 1, 6), {}, inline(match[2])));
      i += 1;
    } else if (/^ {0,3}([-*_])( *\1){2,} *$/.test(line)) {
      flush();
      parent.append(h("hr"));
      i += 1;
    } else if (/^\s*>/.test(line) && depth < 6) {
      flush();
      const inner = [];
      while (i < lines.length && /^\s*>/.test(lines[i])) inner.push(lines[i++].replace(/^\s*> ?/, ""));
      const quote = h("blockquote");
      blocks(inner, quote, depth + 1);
      parent.append(quote);
    } else if (item.test(line) && depth < 6) {
      flush();
      i = list(lines, i, parent, depth);
    } else if (line.includes("|") && /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/.test(lines[i + 1] ?? "") && lines[i + 1].includes("|")) {
      flush();
      const head = cells(line);
      const body = h("tbody");
      for (i += 2; i < lines.length && lines[i].includes("|"); i += 1)
        body.append(h("tr", {}, cells(lines[i]).map((c) => h("td", {}, inline(c)))));
      parent.append(h("table", {}, h("thead", {}, h("tr", {}, head.map((c) => h("th", {}, inline(c))))), body));
    } else {
      paragraph.push(line);
      i += 1;
    }
  }
  flush();
}

const cells = (line) => line.trim().replace(/^\||\|$/g, "").split("|").map((c) => c.trim());

function list(lines, start, parent, depth) {
  const first = item.exec(lines[start]);
  const ordered = /\d/.test(first[2]);
  const indent = first[1].length;
  const node = h(ordered ? "ol" : "ul", ordered && parseInt(first[2], 10) !== 1 ? {start: String(parseInt(first[2], 10))} : {});
  let i = start;
  while (i < lines.length) {
    const match = item.exec(lines[i]);
    if (!match || match[1].length > indent + 1 || match[1].length < indent || /\d/.test(match[2]) !== ordered) break;
    const inner = [match[3]];
    for (i += 1; i < lines.length; i += 1) {
      const next = item.exec(lines[i]);
      if (next && next[1].length <= indent + 1) break;
      if (!lines[i].trim() && !/^\s{2,}\S/.test(lines[i + 1] ?? "")) break;
      if (lines[i].trim() && !/^\s/.test(lines[i])) break;
      inner.push(lines[i].slice(Math.min(lines[i].length - lines[i].trimStart().length, indent + 2)));
    }
    const entry = h("li");
    if (inner.length === 1) entry.append(...inline(inner[0]));
    else blocks(inner, entry, depth + 1);
    node.append(entry);
    while (i < lines.length && !lines[i].trim() && item.test(lines[i + 1] ?? "")) i += 1;
  }
  parent.append(node);
  return i;
}

export function codeBox(text, language) {
  const button = h("button.ghost.tiny", {type: "button", onclick: () => copy(text, button)}, "Copy");
  return h("div.codebox", {}, h("div.bar", {}, h("span", {}, language || "text"), button),
           h("pre", {tabIndex: 0, "aria-label": `Code, ${language || "text"}`}, h("code", {}, text)));
}

const spans = /(`+)([\s\S]*?[^`])\1(?!`)|\*\*([^\s*](?:[\s\S]*?[^\s*])?)\*\*|(?<![\w*])\*([^\s*](?:[^*]*[^\s*])?)\*(?!\w)|(?<!\w)_([^\s_](?:[^_]*[^\s_])?)_(?!\w)|~~([^~]+)~~|\[([^\]\n]+)\]\((https?:\/\/[^\s)]+)\)|(https?:\/\/[^\s<>()]+[^\s<>().,;:!?'"])/g;

function inline(text) {
  const out = [];
  let at = 0;
  for (const m of text.matchAll(spans)) {
    out.push(text.slice(at, m.index));
    at = m.index + m[0].length;
    if (m[2] !== undefined) out.push(h("code", {}, m[2].trim() || m[2]));
    else if (m[3] !== undefined) out.push(h("strong", {}, inline(m[3])));
    else if (m[4] ?? m[5]) out.push(h("em", {}, inline(m[4] ?? m[5])));
    else if (m[6] !== undefined) out.push(h("del", {}, inline(m[6])));
    else out.push(h("a", {href: m[8] ?? m[9], rel: "noopener noreferrer", target: "_blank"}, m[7] ?? m[9]));
  }
  out.push(text.slice(at));
  return out.filter((part) => part !== "");
}
