// The frame of the page: which view is shown, the theme, the key, and how the server is.
import {hasKey, keyProblem, onKeyChange, readiness, setKey} from "./api.js";
import {announce, h, replace} from "./dom.js";
import {Chat} from "./chat.js";
import {Dashboard} from "./dashboard.js";
import {Requests} from "./requests.js";

const $ = (id) => document.getElementById(id);
const titles = {chat: "Chat", dashboard: "Dashboard", requests: "Requests"};

class App {
  constructor() {
    this.views = {};
    this.current = null;
    this.theme();
    this.keys();
    addEventListener("hashchange", () => this.route());
    document.addEventListener("visibilitychange", () => { if (!document.hidden) this.check(); });
    this.views.chat = new Chat($("view-chat"), this);
    this.views.dashboard = new Dashboard($("view-dashboard"), this);
    this.views.requests = new Requests($("view-requests"), this);
    this.route();
    this.check();
  }

  route() {
    const [name, ...rest] = location.hash.slice(1).split("/");
    const view = name in titles ? name : "chat";
    const moved = this.current !== view;
    if (moved && this.current) this.views[this.current].hide();
    this.current = view;
    for (const key of Object.keys(titles)) $(`view-${key}`).hidden = key !== view;
    for (const link of document.querySelectorAll(".tabs a")) {
      if (link.dataset.view === view) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = `${titles[view]} · deepinfer`;
    this.views[view].show(rest.length ? decodeURIComponent(rest.join("/")) : null);
  }

  // ---- theme: as the system, light or dark ----
  theme() {
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const order = ["system", "light", "dark"];
    let chosen = "system";
    try { chosen = localStorage.getItem("deepinfer.theme") ?? chosen; } catch { /* private mode */ }
    if (!order.includes(chosen)) chosen = "system";
    const apply = () => {
      const name = chosen === "system" ? (dark.matches ? "dark" : "light") : chosen;
      document.documentElement.dataset.theme = name;
      const label = {system: "as the system", light: "light", dark: "dark"}[chosen];
      $("theme-button").setAttribute("aria-label", `Colour theme: ${label}`);
      $("theme-button").title = `Colour theme: ${label}`;
    };
    dark.addEventListener("change", apply);
    $("theme-button").addEventListener("click", () => {
      chosen = order[(order.indexOf(chosen) + 1) % 3];
      try { localStorage.setItem("deepinfer.theme", chosen); } catch { /* private mode */ }
      apply();
    });
    apply();
  }

  // ---- key ----
  keys() {
    $("key-button").addEventListener("click", () => this.openKeyDialog());
    $("key-form").addEventListener("submit", () => setKey($("key-input").value));
    $("key-clear").addEventListener("click", () => { setKey(""); $("key-dialog").close(); });
    onKeyChange(() => {
      $("key-button").querySelector("span").textContent = hasKey() ? "Key set" : "API key";
      announce(hasKey() ? "The key is set" : "The key is forgotten");
      this.unauthorised = false;
      this.check();
      this.views.chat.refreshModels();
    });
  }

  openKeyDialog() {
    $("key-input").value = "";
    if (!$("key-dialog").open) $("key-dialog").showModal();
  }

  keyWanted() {
    this.unauthorised = true;
    this.draw();
  }

  // A view met an error that concerns the whole page.
  noticed(error) {
    if (error.status === 401) this.keyWanted();
    if (error.status === 0) this.check();
  }

  // ---- the server's state ----
  async check() {
    clearTimeout(this.timer);
    const before = this.state?.status;
    this.state = await readiness();
    if (before !== this.state.status && this.state.status === "ready") this.views.chat.refreshModels();
    this.draw();
    const wait = this.state.status === "ready" ? 5000 : this.state.status === "loading" ? 500 : 2000;
    if (!document.hidden) this.timer = setTimeout(() => this.check(), wait);
  }

  draw() {
    const {status, progress, reason} = this.state ?? {};
    const [kind, text] = this.unauthorised ? (hasKey() ? ["bad", "Key refused"] : ["warn", "Key wanted"])
      : {ready: ["ok", "Ready"], loading: ["warn", `Loading ${Math.round(100 * (progress ?? 0))} %`], draining: ["warn", "Shutting down"], degraded: ["warn", "Degraded"],
        unreachable: ["bad", "Unreachable"]}[status] ?? ["", "Connecting…"];
    $("status").className = `pill ${kind}`;
    if ($("status-text").textContent !== text) $("status-text").textContent = text;
    const banner = $("banner");
    banner.className = kind === "bad" ? "banner bad" : "banner";
    const content = this.unauthorised ? [`${keyProblem()}.`, h("button.tiny", {type: "button", onclick: () => this.openKeyDialog()}, hasKey() ? "Enter another key" : "Enter a key")]
      : status === "loading" ? [`The model is loading${reason ? ` (${reason})` : ""}. Questions are answered once it is ready.`, h("progress", {max: "1", value: String(progress ?? 0), "aria-label": "Loading"})]
      : status === "draining" ? ["The server is shutting down: running answers end, new ones are refused."]
      : status === "degraded" ? [`The server is not fully ready${reason ? `: ${reason}` : ""}.`]
      : status === "unreachable" ? ["The server cannot be reached. Trying again by itself."] : null;
    const key = content ? `${kind}${content[0]}${progress ?? ""}` : "";
    if (key === this.bannerKey) return;
    this.bannerKey = key;
    banner.hidden = !content;
    replace(banner, content ?? "");
  }
}

new App();
