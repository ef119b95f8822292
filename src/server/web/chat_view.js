// How messages look. Each function makes the node of one message; what its buttons do comes in `actions`.
import {compact, copy, duration, h, plural} from "./dom.js";
import {markdown, codeBox} from "./markdown.js";
import {verdict} from "./schema.js";

export function messageNode(message, actions) {
  if (message.role === "user") return userNode(message, actions);
  if (message.role === "tool") return toolNode(message);
  return assistantNode(message, actions);
}

function userNode(message, actions) {
  return h("article.message.user", {"aria-label": "You"},
    message.images?.length ? h("div.pictures", {}, message.images.map((url, i) => h("img", {src: url, alt: `Attached picture ${i + 1}`}))) : null,
    h("div.body", {}, message.content),
    h("div.foot", {}, h("button.ghost.tiny", {type: "button", onclick: actions.edit}, "Edit"),
      h("button.ghost.tiny", {type: "button", onclick: (e) => copy(message.content, e.currentTarget)}, "Copy")));
}

function toolNode(message) {
  return h("article.message.tool", {"aria-label": `Result of ${message.name ?? "a tool"}`},
    h("div.who", {}, `Result of ${message.name ?? "the tool"}`), h("div.body.mono", {}, message.content));
}

function assistantNode(message, actions) {
  const running = message.running;
  const empty = !message.content && !message.reasoning && !message.tool_calls?.length;
  const node = h("article.message.assistant", {"aria-label": "Answer", "aria-busy": running ? "true" : null}, h("div.who", {}, message.model ?? "Assistant"));
  if (message.reasoning) {
    const fold = h("details.think", {open: message.openThink ?? running === true}, h("summary", {}, running && !message.content ? "Thinking…" : "Thought"),
      h("div.body", {}, message.reasoning));
    fold.addEventListener("toggle", () => { message.openThink = fold.open; });
    node.append(fold);
  }
  if (message.heat && message.logprobs?.length) node.append(heatNode(message));
  else if (message.content) node.append(bodyNode(message));
  if (running) (node.lastElementChild?.querySelector(".md > p:last-child") ?? (empty ? node.appendChild(h("p")) : node.lastElementChild)).classList.add("cursor");
  for (const call of message.tool_calls ?? []) node.append(callNode(call, message, actions));
  if (message.tool_calls?.length && !running && actions.sendResults) {
    node.append(h("div.row", {}, h("button.primary", {type: "button", onclick: () => actions.sendResults(node)}, "Send results")));
  }
  if (message.error) node.append(errorNode(message, actions));
  if (!running) node.append(...footNodes(message, actions));
  return node;
}

// Answers that were asked for as JSON are shown as code.
function bodyNode(message) {
  if (message.format && message.format.kind !== "text") return codeBox(message.content, message.format.kind === "regex" ? "text" : "json");
  return markdown(message.content);
}

function callNode(call, message, actions) {
  let args = call.function.arguments;
  try { args = JSON.stringify(JSON.parse(args), null, 2); } catch { /* shown as it came */ }
  const id = `result-${call.id}`;
  return h("div.call", {}, h("header", {}, h("span.muted", {}, "Calls"), h("strong.mono", {}, call.function.name)), h("pre", {}, args || "…"),
    actions.sendResults && !message.running ? h("div.field", {}, h("label", {for: id}, "Result"),
      h("textarea.code", {id, rows: "2", placeholder: "What the function returns", "data-call": call.id, "data-name": call.function.name})) : null);
}

function errorNode(message, actions) {
  const {kind, text} = message.error;
  const title = {stopped: "Stopped.", cut: "The answer broke off."}[kind] ?? "";
  return h(kind === "stopped" ? "div.notice.warn" : "div.notice", {role: kind === "stopped" ? null : "alert"},
    h("span.grow", {}, h("strong", {}, title, title && text ? " " : ""), text ?? ""),
    kind === "auth" ? h("button", {type: "button", onclick: actions.key}, "Enter a key")
      : actions.retry ? h("button", {type: "button", onclick: actions.retry}, kind === "stopped" ? "Answer again" : "Try again") : null);
}

function footNodes(message, actions) {
  const out = [];
  const mark = message.error || message.tool_calls?.length ? null : verdict(message.content, message.format);
  const marks = [];
  if (mark) marks.push(h(mark.ok ? "span.mark-ok" : "span.mark-bad", {"data-valid": String(mark.ok)}, mark.ok ? "✓ " : "✗ ", mark.text));
  if (message.finish === "length") marks.push(h("span.mark-bad", {}, "Cut at the longest answer"));
  if (marks.length) out.push(h("div.marks", {}, marks));
  const stats = [];
  if (message.usage) {
    stats.push(plural(message.usage.prompt_tokens, "prompt token"));
    if (message.usage.prompt_cache_hit_tokens) stats.push(`${message.usage.prompt_cache_hit_tokens} cached`);
    stats.push(plural(message.usage.completion_tokens, "token"));
  }
  if (message.times?.first) {
    const seconds = (message.times.end - message.times.first) / 1000;
    if (message.usage && message.usage.completion_tokens > 1 && seconds > 0) stats.push(`${compact((message.usage.completion_tokens - 1) / seconds)} tok/s`);
    stats.push(`first after ${duration(message.times.first - message.times.start)}`);
  }
  const buttons = [];
  const button = (text, onclick, more = {}) => buttons.push(h("button.ghost.tiny", {type: "button", onclick, ...more}, text));
  if (message.content) button("Copy", (e) => copy(message.content, e.currentTarget));
  if (message.logprobs?.length) button(message.heat ? "Text" : "Probabilities", actions.heat);
  if (message.raw) button("Inspect", actions.inspect);
  if (actions.retry && !message.error) button("Again", actions.retry, {"aria-label": "Answer again"});
  if (stats.length || buttons.length) out.push(h("div.foot", {}, h("span.stats.num", {}, stats.join(" · ")), buttons));
  return out;
}

// Each token with a background by its probability; its alternatives in the tool tip.
function heatNode(message) {
  const tokens = message.logprobs.map((entry) => {
    const p = Math.exp(entry.logprob);
    const others = (entry.top_logprobs ?? []).map((t) => `${JSON.stringify(t.token)} ${(100 * Math.exp(t.logprob)).toFixed(1)} %`).join("\n");
    return h("span", {title: `${JSON.stringify(entry.token)} ${(100 * p).toFixed(1)} %\n${others}`, style: {"background-color": heatColour(p)}}, entry.token);
  });
  const mean = message.logprobs.reduce((sum, e) => sum + e.logprob, 0) / message.logprobs.length;
  return h("div", {}, h("div.heat", {}, tokens), h("div.legend-heat", {}, "Probability: likely ",
    [1, 0.6, 0.3, 0.1, 0.02].map((p) => h("span.swatch", {style: {width: "22px", height: "10px", "background-color": heatColour(p)}})),
    ` unlikely · perplexity ${Math.exp(-mean).toFixed(2)}`));
}

const heatColour = (p) => `rgb(214 60 40 / ${Math.round(Math.min(1, -Math.log(Math.max(p, 1e-4)) / 5) * 45)}%)`;
