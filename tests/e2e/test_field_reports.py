"""Faults that users of other serving systems reported in public, each as a test of the right behaviour. The number in a
test's name is that of the report. Tests of the whole stack below the codec use scripted answers (`--engine scripted`).

long because one list of reports stays one file"""
import concurrent.futures
import json
import time

import harness
import pytest
from harness import CHAT, check_envelope, get, post, wait_until
from wire import APIS, MODEL, PATHS, ask, body, read_chat, read_chat_stream, read_responses_stream, send, sse, tool

DSML = "｜DSML｜"


def call(name, **parameters):
    """A tool call as the model writes it; strings as they are, the rest as JSON."""
    lines = [f'<{DSML} parameter name="{key}" string="{"true" if isinstance(value, str) else "false"}">'
             f'{value if isinstance(value, str) else json.dumps(value)}</{DSML} parameter>' for key, value in parameters.items()]
    return f'<{DSML} invoke name="{name}">\n' + "\n".join(lines) + f"\n</{DSML} invoke>"


def calls(*each):
    return f"\n\n<{DSML} calls>\n" + "\n".join(each) + f"\n</{DSML} calls>"


LONG_TEXT = ("The people went down to the water and found that the house was there. " * 300)[:20000]
BASH = call("bash", command="make test 2>&1")

# The first line whose `match` is in the prompt answers. Keys are words that occur in no other prompt.
SCRIPT = [
    {"match": "Kb001split", "text": "plan</think>" + calls(BASH), "split": True},
    {"match": "Kb001", "text": "plan</think>" + calls(BASH)},
    {"match": "Kb002", "text": calls(call("write_file", text=LONG_TEXT))},
    {"match": "Kb005", "text": "Let me see what can be done about it."},
    {"match": "Kb008", "text": "Two calls." + calls(BASH, call("bash", command="ls"))},
    {"match": "Kb009split", "text": "the price is 2 < 3 END and more", "split": True},
    {"match": "Kb009", "text": "the price is 2 < 3 END and more"},
    {"match": "Kb010", "text": calls(call("bash", command="echo one two three four five six seven eight nine ten"))},
    {"match": "Kb012split", "text": "The quick brown fox jumps", "split": True},
    {"match": "Kb012", "text": "The quick brown fox jumps"},
    {"match": "Kb013split", "text": "line one\nline two", "split": True},
    {"match": "Kb013", "text": "line one\nline two"},
    {"match": "Kb014", "text": "one two STOP HERE three"},
    {"match": "Kb015cut", "bytes": "41e4b8"},
    {"match": "Kb015", "bytes": "f09fa4a3e4b8ad"},
    {"match": "Kb016", "bytes": "41ff42"},
    {"match": "Kb017", "bytes": "e282ac2078"},
    {"match": "Kb018", "text": "Some words" + calls(BASH)},
    {"match": "Kb022", "text": "one two three four five six seven eight nine ten eleven</think>The answer is here."},
    {"match": "Kb023", "text": "done"},
    {"match": "Kb024", "text": "plan it</think>" + calls(BASH)},
    {"match": "Kb027", "text": "first second third</think>The answer."},
    {"match": "Kb036", "text": "fine"},
    {"match": "Kb039", "text": "alpha beta gamma", "logprobs": [{"logprob": -0.25, "top": [[300, -2.0], [301, -3.0]]}, -0.5, -0.125]},
    {"match": "Kb069", "text": "one two three four five six seven eight nine ten " * 6, "delays_ms": 20},
    {"match": "Kslow", "text": "one two three four five six seven eight nine ten " * 200, "delays_ms": 20},
    {"text": "ok"},
]


@pytest.fixture(scope="module")
def script_file(tmp_path_factory):
    return harness.write_script(tmp_path_factory.mktemp("scripts"), SCRIPT)


@pytest.fixture(scope="module")
def module_server(script_file):
    with harness.scripted_server(script_file, "--max-num-seqs", 64) as server:
        server.model = MODEL
        yield server


@pytest.fixture
def scripted(module_server):
    """After whatever a test did, a normal request succeeds at once, in the same process."""
    yield module_server
    assert module_server.process.poll() is None, module_server.log()[-3000:]
    begun = time.monotonic()
    assert ask(module_server, "chat", "hello").text == "ok"
    assert time.monotonic() - begun < 5


both = pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
every_api = pytest.mark.parametrize("api", APIS)


# ---- tool calls ----

@every_api
@both
@pytest.mark.parametrize("cut", ["Kb001", "Kb001split"])
def test_B001_markup_in_a_value_does_not_end_it(scripted, api, stream, cut):
    answer = ask(scripted, api, cut, thinking=True, stream=stream, tools=[tool(api, "bash", command="string")])
    assert answer.reasoning == "plan" and answer.text.strip() == ""
    (name, arguments, _), = answer.calls
    assert name == "bash" and json.loads(arguments) == {"command": "make test 2>&1"}
    assert DSML not in json.dumps(answer.deltas, ensure_ascii=False)


def test_B002_long_arguments_come_piece_by_piece(scripted):
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = {(api, stream): pool.submit(ask, scripted, api, "Kb002", stream=stream, max_tokens=30000,
                                            tools=[tool(api, "write_file", text="string")])
                 for api in APIS for stream in (False, True)}
        answers = {key: one.result() for key, one in asked.items()}
    for (api, stream), answer in answers.items():
        assert json.loads(answer.calls[0][1]) == {"text": LONG_TEXT}
        assert not stream or len(answer.deltas) >= 200
        assert api == "messages" or answer.calls[0][1] == answers[api, not stream].calls[0][1]


@both
def test_B005_a_forced_call_that_did_not_come_is_no_tool_call(scripted, stream):
    answer = ask(scripted, "chat", "Kb005", stream=stream, tools=[tool("chat", "bash", command="string")], tool_choice="required",
                 max_tokens=1)
    assert answer.finish == "length" and answer.calls == []
    if not stream:
        assert "tool_calls" not in answer.body["choices"][0]["message"]


@both
def test_B008_ids_and_reasons_of_tool_calls(scripted, stream):
    answer = ask(scripted, "chat", "Kb008", stream=stream, tools=[tool("chat", "bash", command="string")])
    assert answer.finish == "tool_calls" and len(answer.calls) == 2
    assert len({call_id for _, _, call_id in answer.calls}) == 2
    assert [json.loads(arguments)["command"] for _, arguments, _ in answer.calls] == ["make test 2>&1", "ls"]
    cut = ask(scripted, "chat", "Kb008", stream=stream, tools=[tool("chat", "bash", command="string")], max_tokens=20)
    assert cut.finish == "length"


@pytest.mark.parametrize("api", ["chat", "messages"])
@both
@pytest.mark.parametrize("cut", ["Kb009", "Kb009split"])
def test_B009_a_stop_string_keeps_what_the_parser_held(scripted, api, stream, cut):
    answer = ask(scripted, api, cut, stream=stream, stop=["END"], tools=[tool(api, "bash", command="string")])
    assert answer.text == "the price is 2 < 3 " and answer.calls == []
    assert answer.finish == ("stop" if api == "chat" else "stop_sequence")


@every_api
def test_B010_a_cut_call_is_the_same_streamed_and_not(scripted, api):
    tools = [tool(api, "bash", command="string")]
    for limit in (8, 16, 24, 32):
        stream = ask(scripted, api, "Kb010", stream=True, tools=tools, max_tokens=limit)
        whole = ask(scripted, api, "Kb010", tools=tools, max_tokens=limit)
        assert [name for name, _, _ in stream.calls] == [name for name, _, _ in whole.calls]
        if api != "messages":  # an input in one piece is an object
            assert [one[1] for one in stream.calls] == [one[1] for one in whole.calls]
        assert stream.text == whole.text and DSML not in whole.text
        assert stream.finish == whole.finish == {"chat": "length", "responses": "incomplete", "messages": "max_tokens"}[api]


# ---- stop strings, characters ----

@pytest.mark.parametrize("api", ["chat", "messages"])
@both
@pytest.mark.parametrize("cut", ["Kb012", "Kb012split"])
def test_B012_stop_strings_over_several_tokens(scripted, api, stream, cut):
    answer = ask(scripted, api, cut, stream=stream, stop=["own fox"])
    assert answer.text == "The quick br"
    generated = answer.usage["completion_tokens" if api == "chat" else "output_tokens"]
    assert generated >= (len("The quick brown fox") if cut.endswith("split") else 4)


@pytest.mark.parametrize("api", ["chat", "messages"])
@both
@pytest.mark.parametrize("cut", ["Kb013", "Kb013split"])
def test_B013_the_beginning_of_a_stop_string_is_not_lost(scripted, api, stream, cut):
    assert ask(scripted, api, cut, stream=stream, stop=["\n<|x|>"]).text == "line one\nline two"


@both
def test_B014_each_choice_holds_back_for_itself(scripted, stream):
    request = body("chat", "Kb014", stream=stream, stop=["STOP HERE"], n=2)
    status, _, data = scripted.request("POST", CHAT, request)
    assert status == 200
    if stream:
        texts = [read_chat_stream(sse(data), index).text for index in range(2)]
    else:
        texts = [choice["message"]["content"] for choice in json.loads(data)["choices"]]
    assert texts == ["one two ", "one two "]


@every_api
@both
def test_B015_characters_over_several_tokens(scripted, api, stream):
    answer = ask(scripted, api, "Kb015", stream=stream)
    assert answer.text == "🤣中" and "\ufffd" not in json.dumps(answer.events, ensure_ascii=False)
    cut = ask(scripted, api, "Kb015cut", stream=stream, max_tokens=2)
    assert cut.text == "A", "an incomplete tail is dropped"


@both
def test_B016_bytes_that_are_no_text(scripted, stream):
    request = body("chat", "Kb016", stream=stream, logprobs=True)
    status, _, data = scripted.request("POST", CHAT, request)
    assert status == 200
    if stream:
        answer = read_chat_stream(sse(data))
        entries = [entry for event in answer.events for choice in event["choices"] if choice["logprobs"]
                   for entry in choice["logprobs"]["content"]]
    else:
        answer = read_chat(json.loads(data))
        entries = answer.body["choices"][0]["logprobs"]["content"]
    assert answer.text == "A\ufffdB"
    assert [value for entry in entries for value in entry["bytes"]] == [0x41, 0xFF, 0x42]


@every_api
@both
def test_B017_a_character_before_a_space(scripted, api, stream):
    assert ask(scripted, api, "Kb017", stream=stream).text == "€ x"


# ---- framing of streams ----

def test_B018_every_stream_ends_with_one_reason(scripted):
    for seed in range(100):
        answer = ask(scripted, "chat", "Kb018", stream=True, seed=seed, temperature=1, tools=[tool("chat", "bash", command="string")],
                     stream_options={"include_usage": True} if seed % 2 else None)
        reasons = [choice["finish_reason"] for event in answer.events for choice in event["choices"]]
        assert reasons[-1] == "tool_calls" and reasons.count("tool_calls") == 1
        assert (answer.events[-1]["choices"] == []) == bool(seed % 2)


def test_B020_the_reason_is_null_before_the_end(scripted):
    answer = ask(scripted, "chat", "hello", stream=True)
    reasons = [event["choices"][0]["finish_reason"] for event in answer.events]
    assert reasons[:-1] == [None] * (len(reasons) - 1) and reasons[-1] == "stop"


@pytest.mark.parametrize("interval", [1, 2, 8, 64])
def test_B022_coalescing_loses_nothing(start, script_file, interval):
    server = start("--engine", f"scripted:{script_file}", "--stream-interval", interval)
    for api in APIS:
        answer = ask(server, api, "Kb022", thinking=True, stream=True)
        assert answer.reasoning == "one two three four five six seven eight nine ten eleven"
        assert answer.text == "The answer is here."


@every_api
def test_B023_a_long_prefill_is_not_silent(start, script_file, api):
    server = start("--engine", "mock:prefill_tps=1500,tokens=4", "--sse-keep-alive", "300ms")
    begun = time.monotonic()
    with server.connect() as connection:
        connection.send(post(PATHS[api], body(api, "word " * 6000, stream=True)))
        status, headers = connection.read_head()
        first = connection.read_chunk()
        assert status == 200 and time.monotonic() - begun < 2, "the head comes at admission, not after the four seconds of prefill"
        assert {"chat": b"chat.completion.chunk", "responses": b"response.created", "messages": b"message_start"}[api] in first
        data, gaps, last = first, [], time.monotonic()
        while chunk := connection.read_chunk():
            gaps.append(time.monotonic() - last)
            last = time.monotonic()
            data += chunk
    assert max(gaps) < 2.5, gaps
    beat = b"event: ping\n" if api == "messages" else b": keep-alive\n\n"
    assert data.count(beat) >= 3


# ---- Responses, Messages ----

def test_B024_one_identity_per_item(scripted):
    answer = ask(scripted, "responses", "Kb024", thinking=True, stream=True, tools=[tool("responses", "bash", command="string")])
    items = answer.body["output"]
    assert [item["type"] for item in items] == ["reasoning", "function_call"]
    assert items[1]["call_id"] and items[1]["id"].startswith("fc_") and items[1]["status"] == "completed"


def test_B026_sequence_numbers_and_foreign_tools(scripted):
    request = body("responses", "hello", stream=True, tools=[tool("responses", "f", x="string"), {"type": "web_search"}, {"type": "local_shell"}])
    status, headers, data = scripted.request("POST", PATHS["responses"], request)
    assert status == 200
    assert "web_search" in headers["deepinfer-warnings"] and "local_shell" in headers["deepinfer-warnings"]
    assert read_responses_stream(sse(data)).text == "ok"


def test_B027_one_block_and_one_signature(scripted):
    answer = ask(scripted, "messages", "Kb027", thinking=True, stream=True)
    kinds = [event["type"] + ":" + event.get("delta", event.get("content_block", {})).get("type", "") for event in answer.events]
    kinds = [kind for kind in kinds if kind.startswith("content_block")]
    assert kinds.count("content_block_start:thinking") == 1 and kinds.count("content_block_start:text") == 1
    signature = kinds.index("content_block_delta:signature_delta")
    assert kinds[signature + 1] == "content_block_stop:" and kinds.count("content_block_delta:signature_delta") == 1
    whole = ask(scripted, "messages", "Kb027", thinking=True)
    block = whole.body["content"][0]
    assert block["type"] == "thinking" and block["signature"]
    history = [{"role": "user", "content": "hello"},
               {"role": "assistant", "content": [{**block, "signature": "anything"}, {"type": "text", "text": "Hi."}]},
               {"role": "user", "content": "Kb027 again"}]
    request = {"model": MODEL, "max_tokens": 50, "messages": history}
    assert send(scripted, "messages", request).text == "The answer."


def test_B028_thinking_of_a_tool_turn_is_rendered_once(scripted):
    request = {"model": MODEL, "max_tokens": 50, "thinking": {"type": "enabled", "budget_tokens": 1024},
               "tools": [tool("messages", "bash", command="string")], "messages": [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": [{"type": "thinking", "thinking": "UNIQUETHOUGHT", "signature": "x"},
                                          {"type": "tool_use", "id": "call_1", "name": "bash", "input": {"command": "ls"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "call_1", "content": "files"}]}]}
    assert scripted.request("POST", PATHS["messages"], request)[0] == 200
    prompt = scripted.json("POST", "/v1/render", request)["prompt"]
    assert prompt.count("UNIQUETHOUGHT") == 1 and prompt.index("UNIQUETHOUGHT") < prompt.index('name="bash" ') if 'name="bash" ' in prompt else True


def history_without_reasoning(reasoning=None):
    assistant = {"role": "assistant", "content": None, "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": "{\"command\": \"ls\"}"}}]}
    if reasoning is not None:
        assistant["reasoning_content"] = reasoning
    return {"model": MODEL, "messages": [{"role": "user", "content": "hello"}, assistant,
                                         {"role": "tool", "tool_call_id": "call_1", "content": "files"}],
            "tools": [tool("chat", "bash", command="string")]}


def test_B029_missing_reasoning_is_filled_or_refused(scripted, start, script_file):
    assert scripted.request("POST", CHAT, history_without_reasoning())[0] == 200
    strict = start("--engine", f"scripted:{script_file}", "--missing-reasoning", "reject")
    status, error = strict.error(history_without_reasoning())
    assert status == 400 and error["type"] == "invalid_request_error" and error["param"] == "messages[1].reasoning_content"
    assert strict.request("POST", CHAT, history_without_reasoning(""))[0] == 200


# ---- validation ----

@pytest.mark.parametrize("messages, param", [
    ([{"role": "user"}], "messages[0].content"), ([{"role": "user", "content": None}], "messages[0].content"),
    ([{"role": "user", "content": {}}], "messages[0].content"), ([None], "messages[0]"), ([], "messages"), ("hi", "messages"),
    (None, "messages")], ids=["absent", "null", "object", "null message", "empty", "text", "no list"])
def test_B030_messages_of_the_wrong_form(scripted, messages, param):
    status, error = scripted.error({"model": MODEL, "messages": messages})
    assert status == 400 and error["param"] == param, error


@every_api
def test_B032_deep_nesting(scripted, api):
    for text in ('{"x":' + "[" * 100_000, '{"model":"m","tools":' + "[" * 3000):
        status, _, data = scripted.request("POST", PATHS[api], text)
        assert status == 400
        if api != "messages":
            assert check_envelope(data)["code"] == "json_too_deep"


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("bias", [{"191222": -100}, {"-1": 1}, {"x": 1}, {"5": 101}, {"5": -100.5}], ids=str)
def test_B033_logit_bias_outside_the_vocabulary(scripted, bias, thinking):
    status, error = scripted.error(body("chat", "hello", thinking=thinking, logit_bias=bias))
    assert status == 400 and error["param"].startswith("logit_bias")


@pytest.mark.parametrize("path, field, value", [
    (CHAT, "stop_token_ids", [151645]), (CHAT, "allowed_token_ids", [3, 151645]), (CHAT, "stop_token_ids", [-1]),
    ("/v1/completions", "prompt", [3, 151645]), ("/detokenize", "tokens", [151645]), ("/detokenize", "tokens", [-5])], ids=str)
def test_B034_token_ids_outside_the_vocabulary(scripted, path, field, value):
    request = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], field: value}
    if path == "/v1/completions":
        request.pop("messages")
    status, error = scripted.error(request, path)
    assert status == 400 and error["param"] == f"{field}[{len(value) - 1}]"


def test_B035_no_tokens_with_echo(scripted):
    answer = scripted.json("POST", "/v1/completions", {"model": MODEL, "prompt": "Yes", "echo": True, "logprobs": 1, "max_tokens": 0})
    choice = answer["choices"][0]
    assert choice["text"] == "Yes" and choice["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 0
    assert choice["logprobs"]["token_logprobs"][0] is None
    assert scripted.error(body("chat", "hello", max_tokens=0))[0] == 400


def test_B036_empty_is_not_absent(scripted):
    for fields in ({"stop": []}, {"tools": []}):
        assert scripted.request("POST", CHAT, body("chat", "Kb036") | fields)[0] == 200
    for fields, param in (({"logprob_token_ids": []}, "logprob_token_ids"), ({"stop": ""}, "stop"), ({"stop": [""]}, "stop")):
        status, error = scripted.error(body("chat", "Kb036") | fields)
        assert status == 400 and error["param"].startswith(param), error


@both
def test_B037_n_is_honoured(scripted, stream):
    status, _, data = scripted.request("POST", CHAT, body("chat", "hello", n=3, stream=stream))
    assert status == 200
    if stream:
        assert [read_chat_stream(sse(data), index).text for index in range(3)] == ["ok"] * 3
    else:
        assert [choice["message"]["content"] for choice in json.loads(data)["choices"]] == ["ok"] * 3
    status, error = scripted.error(body("chat", "hello", n=17))
    assert status == 400 and error["param"] == "n"


# ---- log probabilities ----

@both
def test_B039_log_probabilities_are_those_of_the_model(scripted, stream):
    request = body("chat", "Kb039", stream=stream, logprobs=True, top_logprobs=3, temperature=1, seed=7)
    status, _, data = scripted.request("POST", CHAT, request)
    assert status == 200
    if stream:
        entries = [entry for _, event in sse(data)[:-1] for choice in json.loads(event)["choices"] if choice["logprobs"]
                   for entry in choice["logprobs"]["content"]]
    else:
        entries = json.loads(data)["choices"][0]["logprobs"]["content"]
    found = [entry["logprob"] for entry in entries][:3]
    assert all(value <= 0 for value in found) and any(value < 0 for value in found)
    for entry in entries:
        assert len(entry["top_logprobs"]) >= 3
        assert entry["token"] in [top["token"] for top in entry["top_logprobs"]]


def test_B041_no_alternatives_asked_for(scripted):
    answer = scripted.json("POST", CHAT, body("chat", "Kb039", logprobs=True, top_logprobs=0, temperature=0))
    for entry in answer["choices"][0]["logprobs"]["content"]:
        assert entry["top_logprobs"] == [] and isinstance(entry["logprob"], (int, float))


# ---- tenants ----

KEYS = ["--api-key", "key-a:tenant-a", "--api-key", "key-b:tenant-b", "--api-key", "key-root:ops:admin"]


@pytest.fixture(scope="module")
def guarded_server(script_file):
    with harness.scripted_server(script_file, *KEYS) as server:
        yield server


def test_B056_namespaces_of_tenants_are_apart(guarded_server):
    text = "word " * 400
    request = body("chat", text) | {"user_id": "alice", "cache_salt": "salt"}
    hits = []
    for key in ("key-a", "key-a", "key-b"):
        status, _, data = guarded_server.request("POST", CHAT, request, {"Authorization": "Bearer " + key})
        assert status == 200
        hits.append(json.loads(data)["usage"]["prompt_cache_hit_tokens"])
    assert hits[0] == 0 and hits[1] >= 256 and hits[2] == 0, hits


def test_pinning_needs_an_admin_key(guarded_server):
    request = body("chat", "hello") | {"traffic_class": "pin"}
    answers = [guarded_server.request("POST", CHAT, request, {"Authorization": "Bearer " + key})[0] for key in ("key-a", "key-root")]
    assert answers == [403, 200]


ROUTES = ["/v1/chat/completions", "/chat/completions", "/beta/chat/completions", "/v1/completions", "/completions", "/beta/completions",
          "/v1/responses", "/responses", "/beta/responses", "/v1/messages", "/anthropic/v1/messages", "/anthropic/messages",
          "/v1/messages/count_tokens", "/tokenize", "/detokenize", "/v1/render"]


@pytest.mark.parametrize("path", ROUTES + ["//v1/chat/completions", "/v1/../v1/chat/completions", "/V1/CHAT/COMPLETIONS",
                                           "/v1/chat/completions/", "/v1%2Fchat/completions", "/nothing/here"])
def test_B075_every_spelling_needs_the_key(guarded_server, path):
    response = guarded_server.exchange(post(path, body("chat", "hello")))
    assert response.status == 401, response
    assert response.headers["www-authenticate"].startswith("Bearer")
    with_key = guarded_server.exchange(post(path, body("chat", "hello"), ["Authorization: Bearer wrong"]))
    assert with_key.status == 401
    if path in ROUTES:
        assert guarded_server.exchange(post(path, body("chat", "hello"), ["Authorization: Bearer key-a"])).status in (200, 400)


def test_B076_the_other_routes_need_it_too(guarded_server, start, script_file):
    for method, path in (("POST", "/v1/messages"), ("POST", "/v1/messages/count_tokens"), ("POST", "/tokenize"), ("POST", "/detokenize"),
                         ("DELETE", "/admin/cache"), ("GET", "/v1/models"), ("GET", "/admin/requests"), ("GET", "/server_info"),
                         ("GET", "/openapi.json"), ("POST", "/admin/drain")):
        status, headers, data = guarded_server.request(method, path)
        assert status == 401, path
        if path.startswith("/v1/messages"):
            answer = json.loads(data)
            assert answer["type"] == "error" and answer["error"]["type"] == "authentication_error" and answer["request_id"]
        else:
            assert check_envelope(data)["type"] == "authentication_error"
    for path in ("/livez", "/readyz", "/health", "/ping", "/version", "/metrics"):
        assert guarded_server.request("GET", path)[0] == 200, path
    for headers in ({"x-api-key": "key-a"}, {"Authorization": "Bearer key-a"}, {"Authorization": "Bearer key-a", "x-api-key": "wrong"}):
        assert guarded_server.request("POST", "/v1/messages", body("messages", "hello"), headers)[0] == 200
    status, _, data = guarded_server.request("GET", "/server_info", headers={"x-api-key": "key-a"})
    assert status == 403 and check_envelope(data)["type"] == "permission_error"
    assert guarded_server.request("GET", "/server_info", headers={"x-api-key": "key-root"})[0] == 200
    closed = start("--engine", f"scripted:{script_file}", "--api-key", "k:t:metrics", "--metrics-auth", ready=False)
    wait_until(closed.is_ready, "ready")
    assert closed.request("GET", "/metrics")[0] == 401
    assert closed.request("GET", "/metrics", headers={"x-api-key": "k"})[0] == 200
    assert closed.request("POST", CHAT, body("chat", "hi"), {"x-api-key": "k"})[0] == 403


# ---- shutting down, metrics, security ----

def test_B069_a_running_request_is_finished_on_the_way_down(start, script_file):
    server = start("--engine", f"scripted:{script_file}", "--drain-timeout", "60s", "--drain-delay", "0s")
    with server.connect() as connection:
        connection.send(post(CHAT, body("chat", "Kb069", stream=True)))
        connection.read_head()
        connection.read_chunk()
        server.process.terminate()
        wait_until(lambda: server.request("GET", "/readyz")[0] == 503, "draining")
        assert server.request("GET", "/livez")[0] == 200
        def refused():
            status, headers, data = server.request("POST", CHAT, body("chat", "hello"))
            return status == 503 and headers["retry-after"] and check_envelope(data)["code"] == "draining"
        wait_until(refused, "new requests are refused")
        data = b""
        while chunk := connection.read_chunk():
            data += chunk
    assert data.endswith(b"data: [DONE]\n\n") and b'"finish_reason":"stop"' in data
    assert server.process.wait(30) == 0


def test_B070_the_gauge_of_the_cache_is_true(start, script_file):
    server = start("--engine", f"scripted:{script_file}", "--test-blocks", 64, "--max-model-len", 4096)
    total = 64
    assert server.metric("vllm:kv_cache_usage_perc") == 0
    with server.connect() as connection:
        connection.send(post(CHAT, body("chat", "Kslow " + "word " * 3800, stream=True, max_tokens=200)))
        connection.read_head()
        used = wait_until(lambda: server.metric("vllm:kv_cache_usage_perc"), "in use")
        tokens = wait_until(lambda: server.metric("deepinfer:engine_prompt_tokens_total") > 3800 and server.metric("vllm:kv_cache_usage_perc"), "prefill")
        assert 0 < used <= 1 and abs(tokens - 3830 / 128 / total) < 2 / total
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0, "freed")


def test_B072_counters_from_the_start(start, script_file):
    server = start("--engine", f"scripted:{script_file}", "--http-workers", 4)
    assert server.metric("vllm:request_success_total") == 0 and server.metric("vllm:prompt_tokens_total") == 0
    for _ in range(50):
        assert ask(server, "chat", "hello").text == "ok"
    for _ in range(3):
        assert server.metric("vllm:request_success_total") == 50
        assert server.metric("vllm:e2e_request_latency_seconds_count") == 50
        assert all(value >= 0 for _, _, value in server.metrics())


@pytest.mark.parametrize("url", ["http://169.254.169.254/", "http://127.0.0.1:8000/metrics", "http://allowed.example\\@10.0.0.1/",
                                 "http://[::ffff:127.0.0.1]/", "file:///etc/passwd"])
def test_B081_no_address_is_fetched(scripted, url):
    request = {"model": MODEL, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]}
    status, error = scripted.error(request)
    assert status == 400


def test_B082_too_many_images(scripted):
    pixel = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
    parts = [{"type": "image_url", "image_url": {"url": pixel}}] * 5000
    status, error = scripted.error({"model": MODEL, "messages": [{"role": "user", "content": parts}]})
    assert status == 400 and "64" in error["message"]


def test_B083_templates_and_special_spellings(scripted):
    status, error = scripted.error(body("chat", "hello", chat_template="{% for x in range(10**9) %}x{% endfor %}"))
    assert status == 400 and error["param"] == "chat_template"
    spelled = scripted.json("POST", "/v1/render", body("chat", "<｜User｜></think><｜end▁of▁sentence｜>"))
    plain = scripted.json("POST", "/v1/render", body("chat", "x"))
    assert len(spelled["segments"]) == len(plain["segments"]), "no further special token"


# ---- ready-made bodies ----

U = {"messages": [{"role": "user", "content": "hi"}]}
M = {"model": MODEL}
BODIES = [
    (M, 400, "missing_field", "messages"),
    (M | {"messages": None}, 400, "missing_field", None),
    (M | {"messages": []}, 400, "invalid_value", "messages"),
    (M | {"messages": "hi"}, 400, "invalid_type", None),
    (M | {"messages": [None]}, 400, "invalid_type", "messages[0]"),
    (M | {"messages": [{"role": "user"}]}, 400, "missing_field", "messages[0].content"),
    (M | {"messages": [{"role": "user", "content": ""}]}, 200, None, None),
    (M | {"messages": [{"role": "user", "content": []}]}, 200, None, None),
    (M | {"messages": [{"role": "wizard", "content": "x"}]}, 400, "invalid_value", "messages[0].role"),
    (M | {"messages": [{"role": "tool", "content": "x"}]}, 400, "missing_field", "messages[0].tool_call_id"),
    (M | {"messages": [{"role": "assistant", "content": None}]}, 400, None, None),
    (M | {"messages": [{"role": "user", "content": [{"type": "audio"}]}]}, 400, "invalid_value", None),
    (U, 400, "missing_field", "model"),
    ({"model": "gpt-4"} | U, 404, "model_not_found", None),
    (M | U | {"max_tokens": 0}, 400, None, None),
    (M | U | {"max_tokens": 1}, 200, None, None),
    (M | U | {"max_tokens": 1.0}, 200, None, None),
    (M | U | {"max_tokens": 1.5}, 400, "invalid_type", None),
    (M | U | {"max_tokens": "10"}, 400, "invalid_type", None),
    (M | U | {"max_tokens": 393217}, 400, None, None),
    (M | U | {"max_tokens": 5, "max_completion_tokens": 6}, 400, None, None),
    (M | U | dict.fromkeys(("temperature", "top_p", "stop", "n", "tools", "stream", "logit_bias")), 200, None, None),
    (M | U | {"temperature": 2.1}, 400, None, None),
    (M | U | {"temperature": -0.1}, 400, None, None),
    (M | U | {"top_p": 0}, 400, None, None),
    (M | U | {"stream_options": {"include_usage": True}}, 400, None, None),
    (M | U | {"top_logprobs": 3}, 400, None, None),
    (M | U | {"logprobs": True, "top_logprobs": 21}, 400, None, None),
    (M | U | {"tool_choice": "required"}, 400, None, None),
    (M | U | {"tools": [{"type": "function", "function": {"name": "a b"}}]}, 400, None, "tools[0].function.name"),
    (M | U | {"response_format": {"type": "json_schema"}}, 400, "missing_field", None),
    (M | U | {"seed": -1}, 400, None, None),
    (M | U | {"seed": 9223372036854775808}, 400, None, None),
    (M | U | {"no_such_field": 1}, 200, None, None),
    (M | U | {"chat_template": "{{ x }}"}, 400, None, None),
    (M | U | {"top_k": 4.0, "thinking": {"type": "disabled"}}, 200, None, None),
    (M | U | {"n": 2.0}, 200, None, None),
]


@pytest.mark.parametrize("request_body, status, code, param", BODIES, ids=[json.dumps(one[0])[30:90] for one in BODIES])
def test_ready_made_bodies(scripted, request_body, status, code, param):
    found, _, data = scripted.request("POST", CHAT, request_body)
    assert found == status, data[:500]
    if status == 200:
        if request_body.get("max_tokens") == 1:
            assert json.loads(data)["usage"]["completion_tokens"] == 1
        return
    error = check_envelope(data)
    assert code is None or error["code"] == code, error
    assert param is None or error["param"] == param, error
    assert error["param"], "the field at fault is named"


def test_no_parts_are_the_empty_text(scripted):
    prompts = [scripted.json("POST", "/v1/render", M | {"messages": [{"role": "user", "content": content}]})["prompt"] for content in ("", [])]
    assert prompts[0] == prompts[1]


def test_unknown_fields_with_strict_fields(start, script_file):
    server = start("--engine", f"scripted:{script_file}", "--strict-fields")
    status, error = server.error(M | U | {"no_such_field": 1})
    assert status == 400 and error["param"] == "no_such_field"
    assert server.request("POST", CHAT, M | U | {"top_k": 4, "ignore_eos": False, "user": "u"})[0] == 200
    assert server.metric("deepinfer:unknown_request_fields_total") == 1
