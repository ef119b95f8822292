// Talking to the server: the key, errors, and server-sent events read with fetch (which, unlike EventSource, can send
// the key).

let key = "";  // in memory only
const keyListeners = new Set();

export const hasKey = () => key !== "";
export const onKeyChange = (f) => keyListeners.add(f);
export function setKey(value) {
  key = value.trim();
  for (const f of keyListeners) f();
}

export class ApiError extends Error {
  constructor(status, message, code, retryAfter) {
    super(message);
    this.status = status;  // 0: the server could not be reached
    this.code = code;
    this.retryAfter = retryAfter;
  }
}
// The connection ended before the stream did.
export class StreamCut extends Error {}

// Relative to the page, so that it works below a path of a proxy too.
const address = (path) => new URL(path, document.baseURI);

export function headers(body) {
  const out = {};
  if (body !== undefined) out["Content-Type"] = "application/json";
  if (key) out.Authorization = `Bearer ${key}`;
  return out;
}

async function send(path, {body, signal, method} = {}) {
  let response;
  try {
    response = await fetch(address(path), {
      method: method ?? (body === undefined ? "GET" : "POST"), headers: headers(body), signal, cache: "no-store",
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "The server cannot be reached.", "unreachable");
  }
  if (response.ok) return response;
  const text = await response.text();
  let error = {};
  try { error = JSON.parse(text).error ?? {}; } catch { /* not an envelope: shown as text */ }
  throw new ApiError(response.status, error.message ?? (text.slice(0, 300) || `HTTP status ${response.status}`), error.code,
                     Number(response.headers.get("retry-after")) || 0);
}

export const getJson = async (path, options) => (await send(path, options)).json();
export const getText = async (path, options) => (await send(path, options)).text();
export const postJson = async (path, body, options) => (await send(path, {...options, body})).json();

// Readiness is public, and tells about loading with status 503.
export async function readiness() {
  try {
    const response = await fetch(address("readyz"), {cache: "no-store"});
    return await response.json();
  } catch {
    return {status: "unreachable"};
  }
}

// Calls onEvent(name, data) for each event until the stream ends. Resolves with the response's headers.
export async function stream(path, {body, signal, onEvent}) {
  const response = await send(path, {body, signal});
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new StreamCut("The connection was lost.");
    }
    if (part.done) return response.headers;
    buffer += part.value;
    let end;
    while ((end = buffer.indexOf("\n\n")) >= 0) {
      const block = buffer.slice(0, end);
      buffer = buffer.slice(end + 2);
      let name = "message";
      const data = [];
      for (const line of block.split("\n")) {
        if (line.startsWith("event:")) name = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      }
      if (data.length) onEvent(name, data.join("\n"));
    }
  }
}

// What a refusal of the key means to its owner.
export const keyProblem = () => hasKey() ? "This server does not accept the key" : "This server wants an API key";
export const adminKeyNeeded = "A key of scope admin is needed (the server takes one with --api-key KEY:TENANT:admin); this one is for inference only.";
