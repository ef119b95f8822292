"""Exact replay: an answer with tool calls that comes back in the history has the tokens that the model made, so that the
prefix cache reaches to the last of them. The script's answers have one token per byte, which no tokenizer would give."""
import json

import pytest
from harness import scripted_server, write_script
from wire import APIS, PATHS, body, send, tool

THOUGHT, SAID, BLOCK = "Let me look.", "Looking.", 128
CALLS = ("\n\n<｜DSML｜ calls>\n" + "\n".join(
    f"<｜DSML｜ invoke name=\"search\">\n<｜DSML｜ parameter name=\"query\" string=\"true\">{query}</｜DSML｜ parameter>\n"
    "<｜DSML｜ parameter name=\"limit\" string=\"false\">3.0</｜DSML｜ parameter>\n</｜DSML｜ invoke>"
    for query in ("where is the \"river\"\nand why? " * 8, "the hill")) + "\n</｜DSML｜ calls>")
SCRIPT = [
    {"match": "Kanswered", "text": "Done."},
    {"match": "Kthink", "text": f"{THOUGHT}</think>{SAID}{CALLS}", "split": True},
    {"text": f"{SAID}{CALLS}", "split": True},
]


@pytest.fixture(scope="module")
def script_file(tmp_path_factory):
    return write_script(tmp_path_factory.mktemp("replay"), SCRIPT)


def serve(script_file, *options):
    return scripted_server(script_file, "--responses-store", 8, *options)


@pytest.fixture(scope="module")
def with_replay(script_file):
    with serve(script_file) as server:
        yield server


@pytest.fixture(scope="module")
def without_replay(script_file):
    with serve(script_file, "--exact-replay-memory", 0) as server:
        yield server


def first_request(api, thinking, stream, pad, case=""):
    text = ("Kthink" if thinking else "Kplain") + f" {api} {stream} {case} find it" + " a" * pad
    return body(api, text, thinking=thinking, stream=stream, tools=[tool(api, "search", query="string", limit="number")])


def tokens(api, usage):
    """Prompt, cached and answered tokens."""
    if api == "chat":
        return usage["prompt_tokens"], usage["prompt_tokens_details"]["cached_tokens"], usage["completion_tokens"]
    if api == "responses":
        return usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]
    cached = usage["cache_read_input_tokens"]
    return usage["input_tokens"] + cached + usage["cache_creation_input_tokens"], cached, usage["output_tokens"]


def next_request(api, request, answer, previous=False, edit=str):
    """What a client sends when the tools have run. Arguments are written anew, as clients do that keep them parsed."""
    request = {**request, "stream": False}
    again = [(name, json.dumps(json.loads(edit(arguments)), separators=(",", ":")), call) for name, arguments, call in answer.calls]
    if api == "chat":
        calls = [{"id": call, "type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments, call in again]
        turn = {"role": "assistant", "content": answer.text, "tool_calls": calls}
        if answer.reasoning:
            turn["reasoning_content"] = answer.reasoning
        results = [{"role": "tool", "tool_call_id": call, "content": "Kanswered"} for _, _, call in again]
        return request | {"messages": [*request["messages"], turn, *results]}
    if api == "responses":
        results = [{"type": "function_call_output", "call_id": call, "output": "Kanswered"} for _, _, call in again]
        if previous:
            return request | {"input": results, "previous_response_id": answer.body["id"]}
        items = [dict(item) for item in answer.body["output"]]
        for item in items:
            if item["type"] == "function_call":
                item["arguments"] = edit(item["arguments"])
        return request | {"input": [{"role": "user", "content": request["input"]}, *items, *results]}
    blocks = [{"type": "thinking", "thinking": answer.reasoning, "signature": "s"}] if answer.reasoning else []
    blocks += [{"type": "text", "text": answer.text}]
    blocks += [{"type": "tool_use", "id": call, "name": name, "input": json.loads(arguments)} for name, arguments, call in again]
    results = [{"type": "tool_result", "tool_use_id": call, "content": "Kanswered"} for _, _, call in again]
    return request | {"messages": [*request["messages"], {"role": "assistant", "content": blocks}, {"role": "user", "content": results}]}


def first_turn(server, api, thinking, stream, case=""):
    """The request and its answer, padded so that prompt and answer together fill whole blocks of the cache."""
    usage = send(server, api, first_request(api, thinking, stream, 0, case)).usage
    prompt, _, answered = tokens(api, usage)
    request = first_request(api, thinking, stream, -(prompt + answered) % BLOCK, case)
    answer = send(server, api, request)
    prompt, _, answered = tokens(api, answer.usage)
    assert (prompt + answered) % BLOCK == 0 and answered > 2 * BLOCK
    assert len(answer.calls) == 2 and answer.text == SAID and answer.reasoning == (THOUGHT if thinking else "")
    return request, answer, prompt, answered


FORMS = [(api, thinking, stream, previous) for api in APIS for thinking in (True, False) for stream in (True, False)
         for previous in ((False, True) if api == "responses" else (False,))]


@pytest.mark.parametrize("api, thinking, stream, previous", FORMS)
def test_the_cache_reaches_to_the_last_token_of_the_turn(with_replay, api, thinking, stream, previous):
    server = with_replay
    request, answer, prompt, answered = first_turn(server, api, thinking, stream, previous)
    hits = server.metric("deepinfer:exact_replay_total", result="hit")
    second = next_request(api, request, answer, previous)
    total, cached, _ = tokens(api, send(server, api, second).usage)
    assert cached == prompt + answered < total
    assert server.metric("deepinfer:exact_replay_total", result="hit") == hits + 1
    if previous:
        return
    # The tokens themselves: the first prompt, the answer byte by byte, the end of the turn, then the results.
    ids = server.json("POST", "/v1/render", second)["token_ids"]
    assert len(ids) == total
    assert ids[:prompt] == server.json("POST", "/v1/render", request)["token_ids"]
    made = server.json("POST", "/detokenize", {"tokens": ids[prompt:prompt + answered]})["prompt"]
    assert made == (f"{THOUGHT}</think>" if thinking else "") + SAID + CALLS
    assert server.json("POST", "/detokenize", {"tokens": ids[prompt + answered:prompt + answered + 2]})["prompt"] == \
        "<｜end▁of▁sentence｜><｜User｜>"


@pytest.mark.parametrize("api", APIS)
def test_without_it_the_text_is_rendered(without_replay, api):
    server = without_replay
    request, answer, prompt, answered = first_turn(server, api, True, False)
    total, cached, _ = tokens(api, send(server, api, next_request(api, request, answer)).usage)
    assert prompt // BLOCK * BLOCK <= cached < prompt + BLOCK, (cached, prompt, answered)
    assert total < prompt + answered, "the rendered turn has far fewer tokens than bytes"
    assert server.metric("deepinfer:exact_replay_total") == 0


@pytest.mark.parametrize("api", APIS)
def test_an_edited_turn_is_rendered_from_its_text(with_replay, api):
    server = with_replay
    request, answer, prompt, answered = first_turn(server, api, False, False, "edited")
    misses = server.metric("deepinfer:exact_replay_total", result="miss")
    edited = next_request(api, request, answer, edit=lambda text: text.replace("hill", "lake"))
    total, cached, _ = tokens(api, send(server, api, edited).usage)
    assert cached < prompt + answered and total < prompt + answered
    assert server.metric("deepinfer:exact_replay_total", result="miss") == misses + 1
    assert "lake" in server.json("POST", "/v1/render", edited)["prompt"]


def test_missing_reasoning_comes_back_with_the_turn(with_replay):
    server = with_replay
    request, answer, prompt, answered = first_turn(server, "chat", True, False)
    second = next_request("chat", request, answer)
    assert second["messages"][1].pop("reasoning_content") == THOUGHT
    assert tokens("chat", send(server, "chat", second).usage)[1] == prompt + answered


@pytest.mark.parametrize("api", APIS)
def test_missing_reasoning_of_a_known_turn_is_not_refused(script_file, api):
    def without(request):
        out = json.loads(json.dumps(request))
        for message in out.get("messages", ()):
            message.pop("reasoning_content", None)
            if isinstance(message["content"], list):
                message["content"] = [block for block in message["content"] if block["type"] != "thinking"]
        if api == "responses":
            out["input"] = [item for item in out["input"] if item.get("type") != "reasoning"]
        return out

    with serve(script_file, "--missing-reasoning", "reject") as server:
        request, answer, prompt, answered = first_turn(server, api, True, False)
        second = without(next_request(api, request, answer))
        assert THOUGHT not in json.dumps(second)
        assert tokens(api, send(server, api, second).usage)[1] == prompt + answered
        edited = without(next_request(api, request, answer, edit=lambda text: text.replace("hill", "lake")))
        status, _, data = server.request("POST", PATHS[api], edited)
        error = json.loads(data)["error"]
        assert status == 400 and "in the thinking mode must be passed back to the API" in error["message"], error
        assert api == "messages" or error["code"] == "invalid_request_error", error


def test_counting_sees_the_same_prompt(with_replay):
    request, answer, _, _ = first_turn(with_replay, "messages", True, False)
    second = next_request("messages", request, answer)
    counted = with_replay.json("POST", PATHS["messages"] + "/count_tokens", second)["input_tokens"]
    assert counted == tokens("messages", send(with_replay, "messages", second).usage)[0]


def test_official_policy_renders_the_text(script_file):
    with serve(script_file, "--api-policy", "official") as server:
        request, answer, prompt, answered = first_turn(server, "chat", False, False)
        assert tokens("chat", send(server, "chat", next_request("chat", request, answer)).usage)[0] < prompt + answered


def test_turns_of_other_tenants_are_not_used(script_file):
    with serve(script_file, "--api-key", "one:a", "--api-key", "two:b") as server:
        request = first_request("chat", False, False, 0)
        answer = send(server, "chat", request, {"Authorization": "Bearer one"})
        second = next_request("chat", request, answer)
        own, other = (tokens("chat", send(server, "chat", second, {"Authorization": f"Bearer {key}"}).usage)[0] for key in ("one", "two"))
        assert own > other


def test_turns_outlive_the_server_in_a_folder(script_file, tmp_path):
    folder = tmp_path / "turns"
    with serve(script_file, "--exact-replay-dir", folder) as server:
        request, answer, prompt, answered = first_turn(server, "chat", True, False)
        second = next_request("chat", request, answer)
        expected = server.json("POST", "/v1/render", second)["token_ids"]
    file, = folder.iterdir()
    assert file.stat().st_mode & 0o777 == 0o600

    with serve(script_file, "--exact-replay-dir", folder) as server:
        assert server.json("POST", "/v1/render", second)["token_ids"] == expected and len(expected) > prompt + answered
        assert server.metric("deepinfer:exact_replay_turns") == 2

    whole = file.read_bytes()
    file.write_bytes(whole[:100] + b"!" + whole[101:])  # damage counts as empty
    with serve(script_file, "--exact-replay-dir", folder) as server:
        assert server.metric("deepinfer:exact_replay_turns") == 0
        assert len(server.json("POST", "/v1/render", second)["token_ids"]) < len(expected)
