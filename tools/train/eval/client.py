"""One evaluation item as a request to a running OpenAI-compatible server."""
from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request

from ..data.render import SCHEMA_HEAD, python_style

MODEL = "deepinfer-tiny"


def answers_json(item: dict) -> bool:
    """Whether the reference answer is a JSON object."""
    try:
        return isinstance(json.loads(item["answer"].get("content") or ""), dict)
    except ValueError:
        return False


def _schema_as_text(messages: list[dict], schema: dict) -> None:
    """Follow-up questions on a record have a schema in the prompt but a plain answer, which a
    server that enforces response_format could not give. The template appends the schema to the
    first system message, so writing it there gives the same prompt without the constraint."""
    if not messages or messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": ""})
    messages[0]["content"] += SCHEMA_HEAD + python_style(schema)


def request_body(item: dict, model: str = MODEL, max_tokens: int = 1024) -> dict:
    """The body of POST /v1/chat/completions. Tool calls get ids in their order; the tool messages
    that follow refer to them in the same order."""
    messages, open_calls, made = [], [], 0
    for message in item["messages"]:
        entry = {"role": message["role"], "content": message.get("content") or ""}
        if message.get("reasoning_content") is not None:
            entry["reasoning_content"] = message["reasoning_content"]
        if message.get("tool_calls"):
            open_calls = []
            for call in message["tool_calls"]:
                made += 1
                open_calls.append(f"call_{made}")
            entry["tool_calls"] = [
                {"id": i, "type": "function",
                 "function": {"name": c["name"],
                              "arguments": json.dumps(c["arguments"], ensure_ascii=False)}}
                for i, c in zip(open_calls, message["tool_calls"])]
        if message["role"] == "tool":
            if not open_calls:
                raise ValueError(f"{item['id']}: a tool result without a call")
            entry["tool_call_id"] = open_calls.pop(0)
        messages.append(entry)
    body = {"model": model, "messages": messages, "temperature": 0, "max_tokens": max_tokens,
            "thinking": {"type": "enabled" if item["thinking"] else "disabled"}}
    if item.get("tools"):
        body["tools"] = [{"type": "function", "function": t} for t in item["tools"]]
    if item.get("response_schema") and not answers_json(item):
        _schema_as_text(messages, item["response_schema"])
    elif item.get("response_schema"):
        body["response_format"] = {"type": "json_schema", "json_schema": {
            "name": "answer", "schema": item["response_schema"]}}
    elif item.get("json_object"):
        body["response_format"] = {"type": "json_object"}
    if item.get("effort"):
        body["reasoning_effort"] = item["effort"]
    return body


class Client:
    """POST requests with a few repeats when the server is busy; `pause` in seconds."""
    pause = 0.2

    def __init__(self, base_url: str, timeout: float = 300.0, retries: int = 4) -> None:
        self.url = base_url.rstrip("/") + "/chat/completions"
        self.timeout, self.retries = timeout, retries

    def ask(self, body: dict) -> dict:
        """The parsed response, or {"failure": text}."""
        data = json.dumps(body, ensure_ascii=False).encode()
        failure = ""
        for attempt in range(self.retries + 1):
            if attempt:
                time.sleep(self.pause * 2**attempt)
            request = urllib.request.Request(
                self.url, data, {"Content-Type": "application/json"}, method="POST")
            try:
                with urllib.request.urlopen(request, timeout=self.timeout) as response:
                    return json.loads(response.read())
            except urllib.error.HTTPError as error:
                text = error.read().decode(errors="replace")
                failure = f"HTTP {error.code}: {text[:300]}"
                if error.code not in (429, 500, 502, 503):
                    break
            except (OSError, http.client.HTTPException, ValueError) as error:
                failure = f"{type(error).__name__}: {error}"
        return {"failure": failure}


def draft_counts(base_url: str, timeout: float = 10.0) -> dict[str, float]:
    """The server's counters of speculative decoding so far, from its /metrics; empty when it has none."""
    url = base_url.rstrip("/").removesuffix("/v1") + "/metrics"
    try:
        with urllib.request.urlopen(url, timeout=timeout) as response:
            return parse_draft_counts(response.read().decode())
    except (OSError, http.client.HTTPException):
        return {}


def parse_draft_counts(text: str) -> dict[str, float]:
    names = {"vllm:spec_decode_num_drafts_total": "rounds",
             "vllm:spec_decode_num_draft_tokens_total": "verified",
             "vllm:spec_decode_num_accepted_tokens_total": "accepted"}
    counts: dict[str, float] = {}
    for line in text.splitlines():
        name = line.split("{")[0].split(" ")[0]
        if name in names:
            counts[names[name]] = counts.get(names[name], 0.0) + float(line.rsplit(" ", 1)[1])
    return counts
