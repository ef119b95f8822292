// The playground: conversations kept in this browser, answers as they arrive, and everything of a request to be seen.
import {ApiError, StreamCut, getJson, keyProblem, stream} from "./api.js";
import {announce, copy, h, icon, replace} from "./dom.js";
import {Settings} from "./chat_settings.js";
import {messageNode} from "./chat_view.js";
import {asCurl, asPython} from "./export.js";

const storeName = "deepinfer.conversations";
const maxKept = 60;
// Where there is no room for three columns, what is beside the conversation lies over it, one at a time.
const narrow = matchMedia("(max-width: 1100px)");
const starters = ["Explain what a KV cache is to a new colleague.", "Write a haiku about the sea.", "What is 17 times 24? Show the steps.",
  "Translate to French: The library opens at nine."];

export class Chat {
  constructor(root, app) {
    this.root = root;
    this.app = app;
    this.conversations = [];
    this.current = null;
    this.running = null;  // AbortController
    this.attached = [];
    try { this.conversations = JSON.parse(localStorage.getItem(storeName) ?? "[]"); } catch { /* a fresh start */ }
    if (!Array.isArray(this.conversations)) this.conversations = [];
    this.settings = new Settings();
    this.settings.onChange = () => this.drawAttach();
    this.build();
    this.open(this.conversations[0] ?? null);
  }

  async refreshModels() {
    try {
      this.settings.setModels((await getJson("v1/models")).data);
      this.drawAttach();
    } catch (error) {
      if (error.status === 401) this.app.keyWanted();
    }
  }

  show() {
    if (!this.settings.models.length) this.refreshModels();
    if (!narrow.matches) this.input.focus();
  }
  hide() {}

  // ---- frame ----
  build() {
    this.list = h("ul.talks");
    this.sideButton = h("button.ghost.icon-only.narrow", {type: "button", "aria-label": "Conversations", title: "Conversations", "aria-expanded": "false", onclick: () => this.toggleSide()},
      icon("M3 5h14M3 10h14M3 15h9"));
    this.side = h("aside.side", {"aria-label": "Conversations", tabIndex: -1}, h("button", {type: "button", onclick: () => { this.open(null); this.input.focus(); }}, "New conversation"), this.list);
    this.messages = h("div.messages", {role: "log", "aria-label": "Conversation", tabIndex: 0});
    this.input = h("textarea", {id: "ask", rows: "1", placeholder: "Ask something…", "aria-label": "Your message", "aria-describedby": "ask-hint",
      oninput: () => this.fitInput(), onkeydown: (e) => this.onKey(e), onpaste: (e) => this.attach(e.clipboardData.files)});
    this.sendButton = h("button.primary", {type: "button", onclick: () => this.running ? this.stop() : this.submit()}, "Send");
    this.fileInput = h("input", {type: "file", accept: "image/png,image/jpeg,image/webp,image/gif", multiple: true, hidden: true, "aria-label": "Pictures to attach",
      onchange: () => { this.attach(this.fileInput.files); this.fileInput.value = ""; }});
    this.attachButton = h("button.ghost.icon-only", {type: "button", onclick: () => this.fileInput.click()},
      icon("M13.5 6.5 7.8 12.2a1.7 1.7 0 0 0 2.4 2.4l6-6a3.2 3.2 0 0 0-4.6-4.6l-6.3 6.3a4.8 4.8 0 0 0 6.8 6.8l4.4-4.4"));
    this.attachments = h("div.attachments");
    this.settingsButton = h("button.ghost.icon-only", {type: "button", "aria-label": "Settings", title: "Settings", "aria-expanded": "true", onclick: () => this.toggleSettings()},
      icon("M3 6h8m4 0h2M3 14h2m4 0h8M13 6m-2 0a2 2 0 1 0 4 0 2 2 0 1 0-4 0M7 14m-2 0a2 2 0 1 0 4 0 2 2 0 1 0-4 0"));
    replace(this.root, h("h1.sr", {}, "Chat"),
      this.side,
      h("div.talk", {}, this.messages,
        h("div.composer", {},
          h("div.box.card", {}, this.attachments, this.input,
            h("div.row", {}, this.sideButton, this.attachButton, this.fileInput, this.settingsButton, h("span.grow"), this.sendButton)),
          h("p.hint", {id: "ask-hint"}, "Enter sends, Shift+Enter starts a new line, Escape stops an answer."))),
      this.settings.node);
    this.settings.onClose = () => this.closeOver();
    const fit = () => {
      this.toggleSide(false);
      this.toggleSettings(!narrow.matches);
    };
    narrow.addEventListener("change", fit);
    fit();
    this.root.addEventListener("keydown", (event) => { if (event.key === "Escape" && !event.defaultPrevented) this.closeOver(); });
    this.messages.addEventListener("pointerdown", () => this.closeOver());
    this.drawAttach();
  }

  toggleSettings(show = this.root.classList.contains("no-settings")) {
    this.root.classList.toggle("no-settings", !show);
    this.settingsButton.setAttribute("aria-expanded", String(show));
    if (!show || !narrow.matches) return;
    this.toggleSide(false);
    this.settings.node.focus();
  }

  toggleSide(show = !this.root.classList.contains("show-side")) {
    this.root.classList.toggle("show-side", show);
    this.sideButton.setAttribute("aria-expanded", String(show));
    if (!show) return;
    this.toggleSettings(false);
    this.side.focus();
  }

  // Puts away what lies over the conversation, and the focus back where it was opened.
  closeOver() {
    if (!narrow.matches) return;
    for (const [shown, button] of [[this.root.classList.contains("show-side"), this.sideButton], [!this.root.classList.contains("no-settings"), this.settingsButton]])
      if (shown) button.focus();
    this.toggleSide(false);
    this.toggleSettings(false);
  }

  fitInput() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight, 240)}px`;
  }

  onKey(event) {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
      event.preventDefault();
      if (!this.running) this.submit();
    } else if (event.key === "Escape" && this.running) {
      event.preventDefault();
      this.stop();
    }
  }

  // ---- pictures ----
  attach(files) {
    if (!this.settings.takesImages) return;
    for (const file of files) {
      if (!file.type.startsWith("image/")) continue;
      const reader = new FileReader();
      reader.onload = () => {
        this.attached.push({name: file.name, url: reader.result});
        this.drawAttach();
      };
      reader.readAsDataURL(file);
    }
  }

  drawAttach() {
    const able = this.settings.takesImages;
    this.attachButton.disabled = !able;
    const label = able ? "Attach pictures" : "Attach pictures (this model takes none)";
    this.attachButton.setAttribute("aria-label", label);
    this.attachButton.title = label;
    replace(this.attachments, this.attached.map((picture, i) => h("span.chip", {}, picture.name,
      h("button", {type: "button", "aria-label": `Remove ${picture.name}`, onclick: () => { this.attached.splice(i, 1); this.drawAttach(); }}, "×"))));
  }

  // ---- conversations ----
  open(conversation) {
    this.stop();
    this.current = conversation;
    this.closeOver();
    this.drawList();
    this.drawMessages();
  }

  save() {
    const plain = (m) => ({...m, raw: undefined, logprobs: undefined, heat: undefined, running: undefined, openThink: undefined});
    const keep = this.conversations.slice(0, maxKept).map((c) => ({...c, messages: c.messages.map(plain)}));
    try {
      localStorage.setItem(storeName, JSON.stringify(keep));
    } catch {
      // Full: pictures are what takes the room.
      for (const c of keep) for (const m of c.messages) delete m.images;
      try { localStorage.setItem(storeName, JSON.stringify(keep)); } catch { /* kept in memory only */ }
    }
  }

  drawList() {
    replace(this.list, this.conversations.map((c) => h(c === this.current ? "li.current" : "li", {},
      h("button.open", {type: "button", title: c.title, "aria-current": c === this.current ? "true" : null, onclick: () => this.open(c)}, h("span", {}, c.title)),
      h("button.drop", {type: "button", "aria-label": `Delete “${c.title}”`, onclick: () => this.drop(c)}, icon("M5 6h10M8 6V4h4v2M6.5 6l.7 10h5.6l.7-10")))));
    if (!this.conversations.length) replace(this.list, h("li.muted.small", {}, "Conversations are kept in this browser."));
  }

  drop(conversation) {
    this.conversations = this.conversations.filter((c) => c !== conversation);
    this.save();
    if (conversation === this.current) this.open(null);
    else this.drawList();
    announce("Conversation deleted");
  }

  // ---- messages ----
  drawMessages() {
    const list = this.current?.messages ?? [];
    if (!list.length) {
      replace(this.messages, h("div.empty", {}, h("h2", {}, "What would you like to ask?"),
        h("p", {}, "Answers stream from this server. Nothing leaves it, and conversations stay in this browser."),
        h("div.starters", {}, starters.map((text) => h("button", {type: "button", onclick: () => this.submit(text)}, text)))));
      return;
    }
    replace(this.messages, list.map((m, i) => this.nodeOf(m, i)));
    this.messages.scrollTop = this.messages.scrollHeight;
  }

  nodeOf(message, i) {
    const list = this.current.messages;
    const last = i === list.length - 1;
    return messageNode(message, {
      edit: () => this.edit(i),
      retry: last && !this.running ? () => this.retry(i) : null,
      key: () => this.app.openKeyDialog(),
      heat: () => { message.heat = !message.heat; this.redraw(i); },
      inspect: () => this.inspect(message),
      sendResults: last && !this.running && message.tool_calls?.length && !message.error ? (node) => this.sendResults(message, node) : null,
    });
  }

  redraw(i) {
    const follow = this.messages.scrollHeight - this.messages.scrollTop - this.messages.clientHeight < 80;
    this.messages.children[i]?.replaceWith(this.nodeOf(this.current.messages[i], i));
    if (follow) this.messages.scrollTop = this.messages.scrollHeight;
  }

  edit(i) {
    this.stop();
    this.input.value = this.current.messages[i].content;
    this.current.messages.length = i;
    this.save();
    this.drawMessages();
    this.fitInput();
    this.input.focus();
  }

  retry(i) {
    this.current.messages.length = i;
    this.drawMessages();
    this.ask();
  }

  submit(text = this.input.value) {
    if (this.running || (!text.trim() && !this.attached.length)) return;
    const message = {role: "user", content: text};
    if (this.attached.length) message.images = this.attached.map((a) => a.url);
    if (!this.current) {
      this.current = {id: String(Date.now()), title: text.trim().slice(0, 60) || "Picture", messages: []};
      this.conversations.unshift(this.current);
    }
    this.current.messages.push(message);
    this.input.value = "";
    this.attached = [];
    this.fitInput();
    this.drawAttach();
    this.drawList();
    this.drawMessages();
    this.ask();
  }

  sendResults(message, node) {
    for (const area of node.querySelectorAll("textarea[data-call]"))
      this.current.messages.push({role: "tool", tool_call_id: area.dataset.call, name: area.dataset.name, content: area.value});
    this.drawMessages();
    this.ask();
  }

  wire(m) {
    if (m.role === "tool") return {role: "tool", tool_call_id: m.tool_call_id, content: m.content};
    if (m.role === "user") {
      if (!m.images?.length) return {role: "user", content: m.content};
      return {role: "user", content: [...m.images.map((url) => ({type: "image_url", image_url: {url}})), {type: "text", text: m.content}]};
    }
    const out = {role: "assistant", content: m.content || (m.tool_calls?.length ? null : "")};
    if (m.reasoning) out.reasoning_content = m.reasoning;
    if (m.tool_calls?.length) out.tool_calls = m.tool_calls;
    return out;
  }

  stop() {
    this.running?.abort();
  }

  async ask() {
    const conversation = this.current;
    const answer = {role: "assistant", content: "", reasoning: "", tool_calls: [], running: true, times: {start: performance.now()}};
    const history = conversation.messages.filter((m) => !m.error || m.content).map((m) => this.wire(m));
    conversation.messages.push(answer);
    const index = conversation.messages.length - 1;
    const shown = () => this.current === conversation;
    try {
      if (!this.settings.model) await this.refreshModels();
      const fields = this.settings.body();
      answer.format = this.settings.format();
      answer.model = fields.model || undefined;
      const system = this.settings.values.system.trim() ? [{role: "system", content: this.settings.values.system}] : [];
      const {model, ...rest} = fields;
      const body = {model, messages: [...system, ...history], ...rest};
      answer.raw = {request: body, events: []};
      this.running = new AbortController();
      this.drawSend();
      if (shown()) this.drawMessages();
      await this.receive(answer, body, () => { if (shown()) this.redraw(index); });
    } catch (error) {
      answer.error = this.explain(error);
    }
    answer.running = false;
    answer.times.end = performance.now();
    if (!answer.reasoning) delete answer.reasoning;
    if (!answer.tool_calls.length) delete answer.tool_calls;
    this.running = null;
    this.drawSend();
    this.save();
    if (shown()) this.drawMessages();
    announce(answer.error ? answer.error.text ?? "The answer broke off" : `Answer complete: ${answer.content.slice(0, 400)}`);
  }

  // Reads the stream into the message; draws at most once a frame, and no more than a quarter of the time, so that a long
  // answer on a slow machine does not keep the page from hearing its user.
  async receive(answer, body, draw) {
    let due = false;
    let finished = false;
    let cost = 0;
    const later = () => {
      if (due) return;
      due = true;
      const run = () => {
        due = false;
        const begun = performance.now();
        if (answer.running) draw();
        cost = performance.now() - begun;
      };
      if (cost > 4) setTimeout(run, 3 * cost);
      else requestAnimationFrame(run);
    };
    await stream("v1/chat/completions", {body, signal: this.running.signal, onEvent: (_, data) => {
      answer.raw.events.push(data);
      if (data === "[DONE]") { finished = true; return; }
      const chunk = JSON.parse(data);
      if (chunk.error) throw new ApiError(200, chunk.error.message, chunk.error.code);
      if (chunk.usage) answer.usage = chunk.usage;
      const choice = chunk.choices?.[0];
      if (!choice) return;
      const {delta} = choice;
      if (delta.content || delta.reasoning_content || delta.tool_calls) answer.times.first ??= performance.now();
      if (delta.reasoning_content) answer.reasoning += delta.reasoning_content;
      if (delta.content) answer.content += delta.content;
      for (const part of delta.tool_calls ?? []) mergeCall(answer.tool_calls, part);
      if (choice.logprobs?.content) (answer.logprobs ??= []).push(...choice.logprobs.content);
      if (choice.finish_reason) answer.finish = choice.finish_reason;
      later();
    }});
    if (!finished) throw new StreamCut("The server ended the stream before the answer was complete.");
  }

  explain(error) {
    if (error.name === "AbortError") return {kind: "stopped"};
    if (error instanceof StreamCut) return {kind: "cut", text: error.message};
    if (error instanceof ApiError) {
      this.app.noticed(error);
      if (error.status === 401) return {kind: "auth", text: `${keyProblem()}.`};
      if (error.status === 0) return {kind: "down", text: "The server cannot be reached. Is it running?"};
      if (error.code === "not_ready") return {kind: "loading", text: "The model is still loading. Try again in a moment."};
      return {kind: "api", text: error.message};
    }
    return {kind: "page", text: error.message};
  }

  drawSend() {
    this.sendButton.textContent = this.running ? "Stop" : "Send";
    this.sendButton.classList.toggle("primary", !this.running);
  }

  // ---- request and response as they went over the wire ----
  inspect(message) {
    const shorten = (key, value) => typeof value === "string" && value.startsWith("data:") && value.length > 200 ? `${value.slice(0, 80)}… (${value.length} characters)` : value;
    const pages = {
      Request: JSON.stringify(message.raw.request, shorten, 2),
      Response: message.raw.events.map((e) => `data: ${e}`).join("\n") || "(nothing arrived)",
      curl: asCurl(message.raw.request),
      Python: asPython(message.raw.request),
    };
    let shown = "Request";
    const pre = h("pre.block", {tabIndex: 0, "aria-label": "Text"});
    const tabs = Object.keys(pages).map((name) => h("button", {type: "button", onclick: () => { shown = name; draw(); }}, name));
    const draw = () => {
      pre.textContent = pages[shown];
      for (const tab of tabs) tab.setAttribute("aria-pressed", String(tab.textContent === shown));
    };
    draw();
    const dialog = h("dialog.wide", {"aria-label": "Request and response"}, h("form", {method: "dialog"},
      h("div.row", {}, h("h2.grow", {}, "Request and response"), h("button.ghost.icon-only", {"aria-label": "Close", value: "close"}, "×")),
      h("div.row", {}, h("div.segments", {role: "group", "aria-label": "What to show"}, tabs), h("span.grow"),
        h("button.tiny", {type: "button", onclick: (e) => copy(pages[shown], e.currentTarget)}, "Copy")), pre));
    dialog.addEventListener("close", () => dialog.remove());
    document.body.append(dialog);
    dialog.showModal();
  }
}

function mergeCall(calls, part) {
  const call = calls[part.index] ??= {id: "", type: "function", function: {name: "", arguments: ""}};
  if (part.id) call.id = part.id;
  if (part.function?.name) call.function.name = part.function.name;
  call.function.arguments += part.function?.arguments ?? "";
}
