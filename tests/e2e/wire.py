"""One way to ask over all three APIs, streamed and not, and one form of what comes back. Nothing of a vendor's library:
what goes over the wire is checked as it is."""
import json

APIS = ("chat", "responses", "messages")
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}
MODEL = "deepseek-v4.1-flash"


class Answer:
    """Text, reasoning and tool calls in the same form for every API; `events` are those of a stream, in order."""

    def __init__(self):
        self.text, self.reasoning, self.calls, self.finish = "", "", [], None
        self.usage, self.events, self.body, self.deltas = None, [], None, []

    def same_as(self, other):
        mine, theirs = ([(name, arguments) for name, arguments, _ in one.calls] for one in (self, other))
        return (self.text, self.reasoning, mine, self.finish) == (other.text, other.reasoning, theirs, other.finish)

    def __repr__(self):
        return f"<{self.finish} text={self.text!r} reasoning={self.reasoning!r} calls={self.calls}>"


def tool(api, name, **properties):
    schema = {"type": "object", "properties": {key: {"type": kind} for key, kind in properties.items()}}
    if api == "chat":
        return {"type": "function", "function": {"name": name, "parameters": schema}}
    if api == "responses":
        return {"type": "function", "name": name, "parameters": schema}
    return {"name": name, "input_schema": schema}


def body(api, text, thinking=False, stream=False, max_tokens=2000, stop=None, tools=(), **more):
    message = [{"role": "user", "content": text}]
    out = {"model": MODEL, "stream": stream, **more}
    if tools:
        out["tools"] = list(tools)
    if api == "chat":
        out |= {"messages": message, "max_tokens": max_tokens, "thinking": {"type": "enabled" if thinking else "disabled"}}
        if stop is not None:
            out["stop"] = stop
    elif api == "responses":
        out |= {"input": text, "max_output_tokens": max_tokens}
        if not thinking:
            out["reasoning"] = {"effort": "none"}
        assert stop is None, "the Responses API has no stop strings"
    else:
        out |= {"messages": message, "max_tokens": max_tokens, "thinking": {"type": "enabled" if thinking else "disabled"}}
        if stop is not None:
            out["stop_sequences"] = stop
    return out


def sse(data):
    """(event name or None, data) of each event; comments are left out."""
    out = []
    for block in data.decode("utf-8").split("\n\n"):
        name, text = None, []
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line[7:]
            elif line.startswith("data: "):
                text.append(line[6:])
        if text:
            out.append((name, "\n".join(text)))
    return out


def ask(server, api, text, headers=None, **options):
    return send(server, api, body(api, text, **options), headers)


def send(server, api, request, headers=None):
    status, _, data = server.request("POST", PATHS[api], request, headers)
    assert status == 200, (status, data[:1000])
    if not request.get("stream"):
        return READ_BODY[api](json.loads(data))
    return READ_STREAM[api](sse(data))


# ---- whole bodies ----

def read_chat(data):
    answer, choice = Answer(), data["choices"][0]
    message = choice["message"]
    answer.body, answer.usage, answer.finish = data, data["usage"], choice["finish_reason"]
    answer.text, answer.reasoning = message["content"] or "", message.get("reasoning_content") or ""
    for call in message.get("tool_calls", ()):
        assert call["type"] == "function"
        answer.calls.append((call["function"]["name"], call["function"]["arguments"], call["id"]))
    return answer


def read_responses(data):
    answer = Answer()
    answer.body, answer.usage, answer.finish = data, data["usage"], data["status"]
    for item in data["output"]:
        if item["type"] == "reasoning":
            answer.reasoning += "".join(part["text"] for part in item["content"])
        elif item["type"] == "message":
            answer.text += "".join(part["text"] for part in item["content"])
        else:
            answer.calls.append((item["name"], item["arguments"], item["call_id"]))
    return answer


def read_messages(data):
    answer = Answer()
    answer.body, answer.usage, answer.finish = data, data["usage"], data["stop_reason"]
    for block in data["content"]:
        if block["type"] == "thinking":
            assert block["signature"]
            answer.reasoning += block["thinking"]
        elif block["type"] == "text":
            answer.text += block["text"]
        else:
            answer.calls.append((block["name"], json.dumps(block["input"]), block["id"]))
    return answer


# ---- streams ----

def read_chat_stream(events, index=0):
    assert events[-1] == (None, "[DONE]"), events[-1]
    answer = Answer()
    answer.events = [json.loads(data) for _, data in events[:-1]]
    assert "error" not in answer.events[-1], answer.events[-1]
    assert len({(one["id"], one["created"], one["model"]) for one in answer.events}) == 1
    finishes = {}
    for event in answer.events:
        if event.get("usage"):
            answer.usage = event["usage"]
        for choice in event["choices"]:
            assert choice["index"] not in finishes, "something came after the finish chunk"
            if choice["finish_reason"] is not None:
                finishes[choice["index"]] = choice["finish_reason"]
            delta = choice["delta"]
            if choice["index"] != index:
                continue
            assert sum(bool(delta.get(key)) for key in ("content", "reasoning_content", "tool_calls")) <= 1
            answer.text += delta.get("content") or ""
            answer.reasoning += delta.get("reasoning_content") or ""
            if delta.get("content") or delta.get("reasoning_content"):
                answer.deltas.append(delta.get("content") or delta["reasoning_content"])
            for call in delta.get("tool_calls") or ():
                if "id" in call:
                    assert call["index"] == len(answer.calls)
                    answer.calls.append((call["function"]["name"], call["function"]["arguments"], call["id"]))
                else:
                    name, arguments, call_id = answer.calls[call["index"]]
                    fragment = call["function"]["arguments"]
                    assert isinstance(fragment, str)
                    answer.deltas.append(fragment)
                    answer.calls[call["index"]] = (name, arguments + fragment, call_id)
    answer.finish = finishes[index]
    return answer


def read_responses_stream(events):
    answer = Answer()
    answer.events = [json.loads(data) for _, data in events]
    for number, ((name, _), event) in enumerate(zip(events, answer.events)):
        assert name == event["type"], (name, event["type"])
        assert event["sequence_number"] == number, "sequence numbers without gaps"
    assert [one["type"] for one in answer.events[:2]] == ["response.created", "response.in_progress"]
    final = answer.events[-1]["response"]
    added = [one["item"] for one in answer.events if one["type"] == "response.output_item.added"]
    done = [one["item"] for one in answer.events if one["type"] == "response.output_item.done"]
    assert final["output"] == done, "the final object holds the items that were done"
    for first, last in zip(added, done, strict=True):
        for key in ("id", "type", "call_id", "name"):
            assert first.get(key) == last.get(key), key
        assert last["id"].startswith({"reasoning": "rs_", "message": "msg_", "function_call": "fc_"}.get(last["type"], ""))
    whole = read_responses(final)
    answer.body, answer.usage, answer.calls, answer.finish = final, final["usage"], whole.calls, whole.finish
    for event in answer.events:
        if event["type"] in ("response.output_text.delta", "response.reasoning_text.delta", "response.function_call_arguments.delta"):
            answer.deltas.append(event["delta"])
        if event["type"] == "response.output_text.delta":
            answer.text += event["delta"]
        if event["type"] == "response.reasoning_text.delta":
            answer.reasoning += event["delta"]
    arguments = "".join(one["delta"] for one in answer.events if one["type"] == "response.function_call_arguments.delta")
    assert arguments == "".join(one[1] for one in whole.calls)
    assert (answer.text, answer.reasoning) == (whole.text, whole.reasoning), "deltas add up to the final object"
    return answer


def read_messages_stream(events):
    answer = Answer()
    answer.events = [json.loads(data) for _, data in events]
    assert all(name == event["type"] for (name, _), event in zip(events, answer.events))
    assert answer.events[0]["type"] == "message_start" and answer.events[-1]["type"] == "message_stop"
    open_block, blocks = None, 0
    for event in answer.events:
        kind = event["type"]
        if kind == "content_block_start":
            assert open_block is None and event["index"] == blocks
            open_block, blocks = event["content_block"], blocks + 1
            partial = ""
            if open_block["type"] == "tool_use":
                assert open_block["input"] == {}
        elif kind == "content_block_delta":
            delta = event["delta"]
            if delta["type"] == "text_delta":
                answer.text += delta["text"]
                answer.deltas.append(delta["text"])
            elif delta["type"] == "thinking_delta":
                answer.reasoning += delta["thinking"]
                answer.deltas.append(delta["thinking"])
            elif delta["type"] == "input_json_delta":
                partial += delta["partial_json"]
                answer.deltas.append(delta["partial_json"])
        elif kind == "content_block_stop":
            if open_block["type"] == "tool_use":
                answer.calls.append((open_block["name"], partial, open_block["id"]))
            open_block = None
        elif kind == "message_delta":
            answer.finish, answer.usage = event["delta"]["stop_reason"], event["usage"]
    assert open_block is None
    return answer


READ_BODY = {"chat": read_chat, "responses": read_responses, "messages": read_messages}
READ_STREAM = {"chat": read_chat_stream, "responses": read_responses_stream, "messages": read_messages_stream}
