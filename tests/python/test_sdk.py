"""The official Python SDKs read what the codec writes: a matrix of streams of the three APIs goes through the openai and
anthropic clients over a local HTTP server, warnings are errors, and every event also validates against the SDK's own types."""
import http.server
import itertools
import json
import os
import pathlib
import threading
import typing
import warnings

import pytest

codec = pytest.importorskip("deepinfer.codec", reason="the Python module is not built (python3-dev, pybind11-dev)")
openai = pytest.importorskip("openai", reason="the openai SDK is not installed")
anthropic = pytest.importorskip("anthropic", reason="the anthropic SDK is not installed")
pydantic = pytest.importorskip("pydantic")

from anthropic.types import Message, RawMessageStreamEvent  # noqa: E402
from openai.types.chat import ChatCompletion, ChatCompletionChunk  # noqa: E402
from openai.types.responses import Response, ResponseStreamEvent  # noqa: E402

VECTORS = pathlib.Path(os.environ.get("DEEPINFER_VECTORS") or
                       pathlib.Path(__file__).resolve().parents[2] / "../shared/vectors") / "recipe"
pytestmark = pytest.mark.skipif(not VECTORS.is_dir(), reason=f"reference vectors are absent: {VECTORS}")

CALL = ('<｜DSML｜ invoke name="{name}">\n<｜DSML｜ parameter name="city" string="true">Zürich "west"\n</｜DSML｜ parameter>\n'
        '<｜DSML｜ parameter name="days" string="false">[1, 2, {{"a": null}}]</｜DSML｜ parameter>\n</｜DSML｜ invoke>')
CALLS = "\n\n<｜DSML｜ calls>\n{}\n</｜DSML｜ calls>"
OUTPUTS = {
    "text": "A plain answer, 中文 and 😀.",
    "nothing": "",
    "one call": "Let me look." + CALLS.format(CALL.format(name="weather")),
    "two calls": CALLS.format("\n".join(CALL.format(name=name) for name in ("weather", "clock"))),
    "cut off call": "Hm." + CALLS.format(CALL.format(name="weather"))[:-70],
}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "array", "items": {}}}}
BODIES = {"chat": ChatCompletion, "responses": Response, "messages": Message}
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "messages": "/v1/messages"}


def request_of(api, thinking, logprobs=False):
    """The members that an SDK call takes."""
    out = {"model": "DeepSeek-V4.1-Flash"}
    if api == "responses":
        out |= {"input": "Where?", "reasoning": {"effort": "high" if thinking else "none"},
                "tools": [{"type": "function", "name": name, "parameters": SCHEMA, "strict": False} for name in ("weather", "clock")]}
        return out | ({"top_logprobs": 2} if logprobs else {})
    out["messages"] = [{"role": "user", "content": "Where?"}]
    if api == "messages":
        return out | {"max_tokens": 100, "thinking": {"type": "enabled", "budget_tokens": 1024} if thinking else {"type": "disabled"},
                      "tools": [{"name": name, "input_schema": SCHEMA} for name in ("weather", "clock")]}
    out |= {"tools": [{"type": "function", "function": {"name": name, "parameters": SCHEMA}} for name in ("weather", "clock")],
            "extra_body": {"thinking": {"type": "enabled" if thinking else "disabled"}}, "stream_options": {"include_usage": True}}
    return out | ({"logprobs": True, "top_logprobs": 2} if logprobs else {})


def matrix():
    for api, thinking, name, finish, step in itertools.product(PATHS, (True, False), OUTPUTS, ("Stop", "Length", "ContentFilter"), (1, 6)):
        yield api, thinking, name, finish, step, False
    for api, thinking, name, step in itertools.product(("chat", "responses"), (True, False), OUTPUTS, (1, 6)):
        yield api, thinking, name, "Stop", step, True


def event_types(union):
    """{type: class} of a union of events."""
    out = {}
    for kind in typing.get_args(union):
        if isinstance(kind, type):
            out[typing.get_args(kind.model_fields["type"].annotation)[0]] = kind
        else:
            out |= event_types(kind)
    return out


EVENTS = event_types(ResponseStreamEvent) | event_types(RawMessageStreamEvent)


def validate(kind, data):
    """Strict reading; the official service does not send how many tokens its cache took up."""
    try:
        kind.model_validate_json(data)
    except pydantic.ValidationError as error:
        others = [e for e in error.errors() if (e["type"], e["loc"][-1]) != ("missing", "cache_write_tokens")]
        if others:
            raise


class Server:
    """Answers every POST with the body under its path."""

    def __init__(self):
        self.stream = self.body = b""
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self):
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                streamed = asked.get("stream", False)
                data = outer.stream if streamed else outer.body
                self.send_response(200)
                self.send_header("content-type", "text/event-stream" if streamed else "application/json")
                self.send_header("content-length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, daemon=True).start()


@pytest.fixture(scope="module")
def server():
    server = Server()
    yield server
    server.http.shutdown()
    server.http.server_close()


@pytest.fixture(scope="module")
def tokenizer():
    renames = json.loads((VECTORS / "tokenizer_v41_patch.json").read_text(encoding="utf-8"))["rename_added_tokens"]
    return codec.Tokenizer.load(str(VECTORS), {int(key): value for key, value in renames.items()})


@pytest.fixture(scope="module")
def clients(server):
    return (openai.OpenAI(api_key="k", base_url=server.url + "/v1", max_retries=0),
            anthropic.Anthropic(api_key="k", base_url=server.url, max_retries=0))


def produce(tokenizer, case):
    """(SSE text, events, body) of one case."""
    api, thinking, name, finish, step, logprobs = case
    asked = request_of(api, thinking, logprobs)
    body = {key: value for key, value in asked.items() if key != "extra_body"} | asked.get("extra_body", {}) | {"stream": True}
    request = codec.Request(api, body)
    text = ("I think.</think>" if thinking else "") + OUTPUTS[name]
    ids = tokenizer.encode(text)
    output = codec.Output(request, tokenizer, id={"chat": "chatcmpl-1", "responses": "resp_1", "messages": "msg_1"}[api],
                          model="DeepSeek-V4.1-Flash", created=1700000000)
    events = output.ready(prompt_tokens=100, prompt_cache_hit_tokens=60)
    for at in range(0, len(ids), step):
        part = ids[at:at + step]
        events += output.tokens(part, [(-0.5, [(token, -0.5), (0, -3.25)]) for token in part] if logprobs else None)
    events += output.finish(finish)
    events += output.close()
    lines = []
    for event, data in events:
        lines.append((f"event: {event}\n" if event else "") + f"data: {data}\n\n")
    if output.end_of_stream:
        lines.append(f"data: {output.end_of_stream}\n\n")
    return "".join(lines), events, output.body()


def read_stream(clients, case):
    """What an SDK client makes of the stream: (reasoning, text, calls)."""
    api, thinking, _, _, _, logprobs = case
    asked = request_of(api, thinking, logprobs)
    reasoning = text = ""
    calls = []
    if api == "chat":
        for chunk in clients[0].chat.completions.create(stream=True, **asked):
            chunk.model_dump(warnings="error")
            for choice in chunk.choices:
                reasoning += getattr(choice.delta, "reasoning_content", None) or ""
                text += choice.delta.content or ""
                for call in choice.delta.tool_calls or []:
                    if call.function.name:
                        calls.append([call.function.name, ""])
                    calls[call.index][1] += call.function.arguments or ""
    elif api == "responses":
        final = None
        for event in clients[0].responses.create(stream=True, **asked):
            event.model_dump(warnings="error")
            if event.type == "response.reasoning_text.delta":
                reasoning += event.delta
            elif event.type == "response.output_text.delta":
                text += event.delta
            elif event.type == "response.output_item.added" and event.item.type == "function_call":
                calls.append([event.item.name, ""])
            elif event.type == "response.function_call_arguments.delta":
                calls[-1][1] += event.delta
            elif event.type in ("response.completed", "response.incomplete"):
                final = event.response
        assert final.output_text == text
    else:
        with clients[1].messages.stream(**asked) as stream:
            for event in stream:
                event.model_dump(warnings="error")
                if event.type == "content_block_delta" and event.delta.type == "thinking_delta":
                    reasoning += event.delta.thinking
                elif event.type == "content_block_delta" and event.delta.type == "text_delta":
                    text += event.delta.text
                elif event.type == "content_block_start" and event.content_block.type == "tool_use":
                    calls.append([event.content_block.name, ""])
                elif event.type == "content_block_delta" and event.delta.type == "input_json_delta":
                    calls[-1][1] += event.delta.partial_json
    return reasoning, text, calls


def read_body(clients, case):
    api, thinking, _, _, _, logprobs = case
    asked = request_of(api, thinking, logprobs)
    if api == "chat":
        asked.pop("stream_options")
        message = clients[0].chat.completions.create(**asked).choices[0].message
        return (getattr(message, "reasoning_content", None) or "", message.content or "",
                [[call.function.name, call.function.arguments] for call in message.tool_calls or []])
    if api == "responses":
        response = clients[0].responses.create(**asked)
        return ("".join(part.text for item in response.output if item.type == "reasoning" for part in item.content or []),
                response.output_text, [[item.name, item.arguments] for item in response.output if item.type == "function_call"])
    message = clients[1].messages.create(**asked)
    return ("".join(block.thinking for block in message.content if block.type == "thinking"),
            "".join(block.text for block in message.content if block.type == "text"),
            [[block.name, block.input] for block in message.content if block.type == "tool_use"])


@pytest.mark.parametrize("api", PATHS)
def test_every_stream_of_the_matrix_is_read_without_a_warning(server, tokenizer, clients, api):
    cases = [case for case in matrix() if case[0] == api]
    assert len(list(matrix())) >= 200
    problems = []
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for case in cases:
            stream, events, body = produce(tokenizer, case)
            server.stream, server.body = stream.encode(), body.encode()
            try:
                for name, data in events:
                    if name != "ping":
                        validate(ChatCompletionChunk if name is None else EVENTS[name], data)
                validate(BODIES[api], body)
                reasoning, text, calls = read_stream(clients, case)
                whole = read_body(clients, case)
                assert reasoning == whole[0] == ("I think." if case[1] else "")
                assert text == whole[1]
                assert [name for name, _ in calls] == [name for name, _ in whole[2]]
                if case[2] in ("one call", "two calls"):
                    assert [json.loads(arguments) for _, arguments in calls] == \
                        [{"city": 'Zürich "west"\n', "days": [1, 2, {"a": None}]}] * len(calls)
                    assert len(calls) == (1 if case[2] == "one call" else 2)
            except Exception as error:
                problems.append(f"{case}: {type(error).__name__}: {str(error)[:600]}")
    print(f"{len(cases)} streams, {len(problems)} problems")
    assert not problems, f"{len(problems)} of {len(cases)}: " + "\n".join(problems[:3])
