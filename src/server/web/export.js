// A request as a command line and as a program, to be repeated elsewhere.
import {hasKey} from "./api.js";

const base = () => new URL("v1", document.baseURI).href;
const quote = (text) => `'${text.replaceAll("'", "'\\''")}'`;

export function asCurl(body) {
  const auth = hasKey() ? " \\\n  -H \"Authorization: Bearer $DEEPINFER_API_KEY\"" : "";
  return `curl -N ${base()}/chat/completions -H 'Content-Type: application/json'${auth} \\\n  -d ${quote(JSON.stringify(body, null, 2))}\n`;
}

// What the openai package knows as arguments; the rest goes into extra_body.
const known = new Set(["model", "messages", "stream", "temperature", "top_p", "max_tokens", "seed", "stop", "tools", "tool_choice",
  "response_format", "logprobs", "top_logprobs", "reasoning_effort"]);

function python(value, indent) {
  const pad = " ".repeat(indent);
  if (value === null) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const open = Array.isArray(value) ? "[" : "{";
  const close = Array.isArray(value) ? "]" : "}";
  const parts = Array.isArray(value) ? value.map((v) => python(v, indent + 4))
    : Object.entries(value).map(([k, v]) => `${JSON.stringify(k)}: ${python(v, indent + 4)}`);
  const line = open + parts.join(", ") + close;
  if (line.length + indent < 90) return line;
  return `${open}\n${parts.map((p) => `${pad}    ${p},\n`).join("")}${pad}${close}`;
}

export function asPython(body) {
  const unusual = body.response_format && !["text", "json_object", "json_schema"].includes(body.response_format.type);
  const here = Object.entries(body).filter(([k]) => known.has(k) && !(unusual && k === "response_format"));
  const extra = Object.fromEntries(Object.entries(body).filter(([k]) => !here.some(([n]) => n === k)));
  const args = here.map(([k, v]) => `    ${k}=${python(v, 4)},\n`).join("");
  const more = Object.keys(extra).length ? `    extra_body=${python(extra, 4)},\n` : "";
  return `${hasKey() ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${JSON.stringify(base())}, api_key=${hasKey() ? 'os.environ["DEEPINFER_API_KEY"]' : '"none"'})
stream = client.chat.completions.create(
${args}${more})
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
print()
`;
}
