// The panel beside the chat: everything of a request but its messages.
import {h, replace} from "./dom.js";

const storeName = "deepinfer.settings";
const defaults = {system: "", thinking: false, effort: "high", temperature: "", top_p: "", max_tokens: "", seed: "", stop: "",
  format: "text", schema: "", regex: "", tools: "", tool_choice: "auto", logprobs: false};

const sampleSchema = `{
  "type": "object",
  "properties": {
    "name": {"type": "string"},
    "age": {"type": "integer"}
  },
  "required": ["name", "age"],
  "additionalProperties": false
}`;
const sampleTools = `[
  {
    "type": "function",
    "function": {
      "name": "get_weather",
      "description": "Current weather of a city",
      "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"]
      }
    }
  }
]`;

export class Settings {
  constructor() {
    this.values = {...defaults};
    this.models = [];
    this.model = "";
    try { Object.assign(this.values, JSON.parse(localStorage.getItem(storeName) ?? "{}")); } catch { /* a fresh start */ }
    this.node = h("aside.settings", {"aria-label": "Settings of the request", tabIndex: -1});
    this.onChange = () => {};
    this.onClose = () => {};
    this.draw();
  }

  setModels(models) {
    this.models = models;
    if (!models.some((m) => m.id === this.model)) this.model = models[0]?.id ?? "";
    this.draw();
  }

  get takesImages() {
    return this.models.find((m) => m.id === this.model)?.capabilities?.vision === true;
  }

  set(name, value) {
    this.values[name] = value;
    try { localStorage.setItem(storeName, JSON.stringify(this.values)); } catch { /* private mode */ }
    this.onChange();
  }

  // Fields of the request body. Throws an Error whose message names the field when one cannot be read.
  body() {
    const v = this.values;
    const out = {model: this.model, stream: true, thinking: {type: v.thinking ? "enabled" : "disabled"}};
    if (v.thinking) out.reasoning_effort = v.effort;
    for (const [name, label, whole] of [["temperature", "Temperature"], ["top_p", "Top-p"], ["max_tokens", "Longest answer", true], ["seed", "Seed", true]]) {
      if (v[name] === "") continue;
      const number = Number(v[name]);
      if (!Number.isFinite(number) || (whole && !Number.isInteger(number))) throw new Error(`${label}: “${v[name]}” is no ${whole ? "whole " : ""}number.`);
      out[name] = number;
    }
    if (v.stop) out.stop = v.stop.split("\n").filter(Boolean);
    if (v.tools.trim()) {
      out.tools = parse(v.tools, "Tools");
      if (!Array.isArray(out.tools)) throw new Error("Tools: expected a JSON array.");
      out.tool_choice = v.tool_choice;
    }
    const format = this.format();
    if (format.kind === "json_object") out.response_format = {type: "json_object"};
    if (format.kind === "json_schema") out.response_format = {type: "json_schema", json_schema: {name: "answer", strict: true, schema: format.schema}};
    if (format.kind === "regex") out.response_format = {type: "regex", regex: format.regex};
    if (v.logprobs) Object.assign(out, {logprobs: true, top_logprobs: 5});
    return out;
  }

  // What the answer must look like (schema.js).
  format() {
    const v = this.values;
    if (v.format === "json_schema") return {kind: "json_schema", schema: parse(v.schema || sampleSchema, "Schema")};
    if (v.format === "regex") {
      if (!v.regex) throw new Error("Expression: it is empty.");
      return {kind: "regex", regex: v.regex};
    }
    return {kind: v.format};
  }

  // ---- drawing ----
  text(name, label, options = {}) {
    const id = `set-${name}`;
    const hint = options.hint ? h("span.hint", {id: `${id}-hint`}, options.hint) : null;
    const attributes = {id, value: this.values[name], placeholder: options.placeholder ?? "", spellcheck: "false", autocomplete: "off",
      "aria-describedby": hint ? `${id}-hint` : undefined, inputmode: options.number ? "decimal" : undefined};
    attributes.oninput = (event) => {
      this.set(name, event.target.value);
      options.check?.(event.target.value, hint);
    };
    const input = options.rows ? h(options.code ? "textarea.code" : "textarea", {...attributes, value: undefined, rows: String(options.rows)}) : h("input", {...attributes, type: "text"});
    input.value = this.values[name];
    if (options.code || options.number) input.setAttribute("autocapitalize", "off");
    return h("div.field", {}, h("label", {for: id}, label), input, hint);
  }

  choice(name, label, choices, redraw) {
    const id = `set-${name}`;
    const select = h("select", {id, onchange: (event) => {
      this.set(name, event.target.value);
      if (redraw) this.redrawKeepingFocus(id);
    }}, choices.map(([value, text]) => h("option", {value}, text)));
    select.value = this.values[name];
    return h("div.field", {}, h("label", {for: id}, label), select);
  }

  check(name, label, redraw) {
    const id = `set-${name}`;
    return h("label.check", {for: id}, h("input", {id, type: "checkbox", checked: this.values[name], onchange: (event) => {
      this.set(name, event.target.checked);
      if (redraw) this.redrawKeepingFocus(id);
    }}), label);
  }

  redrawKeepingFocus(id) {
    this.draw();
    document.getElementById(id)?.focus();
  }

  draw() {
    const v = this.values;
    const jsonHint = (text, hint) => {
      let problem = "";
      try { if (text.trim()) JSON.parse(text); } catch (error) { problem = `Not JSON: ${error.message}`; }
      hint.textContent = problem || hint.dataset.text;
      hint.classList.toggle("bad", problem !== "");
    };
    const withJsonHint = (field, text) => {
      const hint = field.querySelector(".hint");
      hint.dataset.text = text;
      jsonHint(field.querySelector("textarea").value, hint);
      return field;
    };
    const model = h("select", {id: "set-model", onchange: (event) => { this.model = event.target.value; this.onChange(); }},
      this.models.length ? this.models.map((m) => h("option", {value: m.id}, m.id)) : h("option", {value: ""}, "not known yet"));
    model.value = this.model;
    const schemaHint = "JSON Schema; the answer is checked against it here too.";
    const toolsHint = "A JSON array of function tools. Calls appear in the chat, and you write their results.";
    replace(this.node,
      h("div.row", {}, h("h2.grow", {}, "Settings"), h("button.ghost.icon-only.narrow", {type: "button", "aria-label": "Close the settings", onclick: () => this.onClose()}, "×")),
      h("div.field", {}, h("label", {for: "set-model"}, "Model"), model),
      this.text("system", "System prompt", {rows: 3, placeholder: "None"}),
      h("fieldset", {}, h("legend", {}, "Reasoning"), this.check("thinking", "Think before answering", true),
        v.thinking && this.choice("effort", "Effort", [["low", "Low"], ["medium", "Medium"], ["high", "High"], ["max", "Max"]])),
      h("fieldset", {}, h("legend", {}, "Sampling"),
        h("div.pair", {}, this.text("temperature", "Temperature", {number: true, placeholder: "1"}), this.text("top_p", "Top-p", {number: true, placeholder: "1"})),
        h("div.pair", {}, this.text("max_tokens", "Longest answer", {number: true, placeholder: "Default"}), this.text("seed", "Seed", {number: true, placeholder: "Random"})),
        v.thinking && h("span.hint.muted.small", {}, "While thinking, the server fixes the temperature at 1."),
        this.text("stop", "Stop strings, one a line", {rows: 1, placeholder: "None"})),
      h("fieldset", {}, h("legend", {}, "Form of the answer"),
        this.choice("format", "Format", [["text", "Free text"], ["json_object", "JSON object"], ["json_schema", "JSON Schema"], ["regex", "Regular expression"]], true),
        v.format === "json_schema" && withJsonHint(this.text("schema", "Schema", {rows: 9, code: true, placeholder: sampleSchema, hint: schemaHint, check: jsonHint}), schemaHint),
        v.format === "regex" && this.text("regex", "Expression", {rows: 2, code: true, placeholder: "[A-Z][a-z]+ [0-9]{4}", hint: "The whole answer must match."})),
      h("fieldset", {}, h("legend", {}, "Tools"),
        withJsonHint(this.text("tools", "Definitions", {rows: v.tools ? 8 : 2, code: true, placeholder: "[]", hint: toolsHint, check: jsonHint}), toolsHint),
        h("div.row", {}, h("button.tiny", {type: "button", onclick: () => { this.set("tools", sampleTools); this.redrawKeepingFocus("set-tools"); }}, "Insert an example"),
          v.tools && h("button.tiny", {type: "button", onclick: () => { this.set("tools", ""); this.redrawKeepingFocus("set-tools"); }}, "Clear")),
        v.tools && this.choice("tool_choice", "Choice", [["auto", "Automatic"], ["none", "None"], ["required", "Required"]])),
      h("fieldset", {}, h("legend", {}, "Inspect"), this.check("logprobs", "Token probabilities")),
    );
  }
}

function parse(text, label) {
  try {
    return JSON.parse(text);
  } catch (error) {
    throw new Error(`${label}: not JSON: ${error.message}`);
  }
}
