"""How an answer looks on request: token ids, log probabilities of chosen tokens, the message it goes on with, padding, when its head
goes out, what a response repeats. Names are vLLM's and OpenAI's (server.md §4.1, §6)."""
import json
import re
import subprocess
import threading
import time

import harness
import pytest
from harness import CHAT, scripted_server, wait_until, write_script
from test_process import deepinfer
from wire import MODEL, PATHS, ask, body, read_chat, read_chat_stream, send, sse, tool

DSML = "｜DSML｜"
CALL = f"\n\n<{DSML} calls>\n<{DSML} invoke name=\"f\">\n<{DSML} parameter name=\"x\" string=\"true\">here</{DSML} parameter>\n</{DSML} invoke>\n</{DSML} calls>"
SCRIPT = [
    {"match": "Kthink", "text": "I think so.</think>It is 12."},
    {"match": "Kcall", "text": "Look." + CALL},
    {"match": "Kcount", "text": "one two three four five six seven eight nine ten"},
    {"match": "Kslow", "text": "one two three four five six seven eight nine ten", "delays_ms": 30},
    {"match": "Klong", "text": "hm " * 60 + "</think>Done."},
    {"match": "Kdead", "text": "x", "fault": {"kind": "error", "at": 0}},
    {"match": "Ksure", "text": "alpha beta", "logprobs": [{"logprob": -1e-6, "top": [[300, -15.0], [301, -16.0]]}] * 4},
    {"match": "It is", "text": " what it is"},
    {"text": "ok"},
]
USER = [{"role": "user", "content": "Kcount"}]
COMPLETIONS = "/v1/completions"


@pytest.fixture(scope="module")
def script_file(tmp_path_factory):
    return write_script(tmp_path_factory.mktemp("forms"), SCRIPT)


@pytest.fixture(scope="module")
def server(script_file):
    with scripted_server(script_file, "--responses-store", 20) as one:
        yield one


def stream(server, path, request):
    status, _, data = server.request("POST", path, request | {"stream": True})
    assert status == 200, data
    return [json.loads(text) for _, text in sse(data) if text != "[DONE]"]


def ids_of(server, text):
    return server.json("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]


# ---- token ids ----

@pytest.mark.parametrize("key, thinking, tools", [("Kcount", False, ()), ("Kthink", True, ()), ("Kcall", False, ("f",))])
@pytest.mark.parametrize("n", [1, 3])
def test_ids_of_a_chat(server, key, thinking, tools, n):
    request = body("chat", key, thinking=thinking, n=n, return_token_ids=True, tools=[tool("chat", name, x="string") for name in tools])
    whole = server.json("POST", CHAT, request)
    rendered = server.json("POST", "/v1/render", {k: v for k, v in request.items() if k not in ("return_token_ids", "n")})
    assert whole["prompt_token_ids"] == rendered["token_ids"] and len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    written = next(line["text"] for line in SCRIPT if line.get("match") == key)
    for choice in whole["choices"]:
        assert server.json("POST", "/detokenize", {"tokens": choice["token_ids"]})["prompt"] == written
    assert sum(len(choice["token_ids"]) for choice in whole["choices"]) == whole["usage"]["completion_tokens"]
    chunks = stream(server, CHAT, request)
    assert chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert not any(chunk.get("prompt_token_ids") for chunk in chunks[1:])
    for index in range(n):
        parts = [c["token_ids"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert sum(parts, []) == whole["choices"][index]["token_ids"] and len(parts) > 2
    status, _, data = server.request("POST", CHAT, request | {"stream": True})
    assert status == 200 and read_chat_stream(sse(data)).same_as(read_chat(whole)), "the rest is as ever"
    plain = server.json("POST", CHAT, request | {"return_token_ids": False})
    assert "prompt_token_ids" not in plain and "token_ids" not in plain["choices"][0]


@pytest.mark.parametrize("prompt", ["Kcount", ["Kcount", "hello"], [0, 5, 6]])
@pytest.mark.parametrize("echo", [False, True])
def test_ids_of_a_completion(server, prompt, echo):
    request = {"model": MODEL, "prompt": prompt, "max_tokens": 6, "n": 2, "return_token_ids": True, "echo": echo}
    whole = server.json("POST", COMPLETIONS, request)
    assert len({json.dumps(choice["prompt_token_ids"]) for choice in whole["choices"]}) == (2 if isinstance(prompt[0], str) and prompt != "Kcount" else 1)
    if prompt == [0, 5, 6]:
        assert whole["choices"][0]["prompt_token_ids"] == prompt
    assert sum(len(choice["token_ids"]) for choice in whole["choices"]) == whole["usage"]["completion_tokens"]
    chunks = stream(server, COMPLETIONS, request)
    for choice in whole["choices"]:
        mine = [c for chunk in chunks for c in chunk["choices"] if c["index"] == choice["index"]]
        assert sum((c["token_ids"] for c in mine), []) == choice["token_ids"]
        assert [c.get("prompt_token_ids") for c in mine] == [choice["prompt_token_ids"]] + [None] * (len(mine) - 1)


def test_usage_in_every_chunk_of_a_completion(server):
    request = {"model": MODEL, "prompt": "Kcount", "max_tokens": 20, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    counts = [chunk["usage"]["completion_tokens"] for chunk in stream(server, COMPLETIONS, request)]
    assert counts == sorted(counts) and len(set(counts)) > 3


# ---- log probabilities ----

def test_tokens_named_by_their_ids(server):
    request = body("chat", "Ksure", logprobs=True, top_logprobs=2)
    plain = server.json("POST", CHAT, request)["choices"][0]
    named = server.json("POST", CHAT, request | {"return_tokens_as_token_ids": True})["choices"][0]
    assert named["message"] == plain["message"]
    ids = ids_of(server, "alpha beta")
    entries = named["logprobs"]["content"]
    assert [one["token"] for one in entries] == [f"token_id:{i}" for i in ids]
    assert [one["bytes"] for one in entries] == [one["bytes"] for one in plain["logprobs"]["content"]]
    assert all(top["token"].startswith("token_id:") for one in entries for top in one["top_logprobs"])
    answer = server.json("POST", COMPLETIONS, {"model": MODEL, "prompt": "Ksure", "max_tokens": 9, "logprobs": 1, "echo": True,
                                                "return_tokens_as_token_ids": True, "return_token_ids": True})["choices"][0]
    assert answer["logprobs"]["tokens"] == [f"token_id:{i}" for i in answer["prompt_token_ids"] + answer["token_ids"]]
    offsets = server.json("POST", COMPLETIONS, {"model": MODEL, "prompt": "Ksure", "max_tokens": 9, "logprobs": 1, "echo": True})["choices"][0]
    assert answer["logprobs"]["text_offset"] == offsets["logprobs"]["text_offset"], "offsets are of the text, whatever names the tokens"


@pytest.mark.parametrize("top", [0, 2])
def test_log_probabilities_of_chosen_tokens(server, top):
    request = body("chat", "Ksure", logprobs=True, top_logprobs=top, logprob_token_ids=[300, 301, 9], return_tokens_as_token_ids=True)
    for entry in server.json("POST", CHAT, request)["choices"][0]["logprobs"]["content"]:
        names = [one["token"] for one in entry["top_logprobs"]]
        assert names[top:] == [f"token_id:{i}" for i in (300, 301, 9) if f"token_id:{i}" not in names[:top]]
        known = {one["token"]: one["logprob"] for one in entry["top_logprobs"]}
        assert abs(known["token_id:300"] - -15) < 0.5 and known["token_id:9"] < known["token_id:301"] < known["token_id:300"] < entry["logprob"]
    answer = server.json("POST", COMPLETIONS, {"model": MODEL, "prompt": "Ksure", "max_tokens": 3, "logprobs": top, "logprob_token_ids": [300],
                                                "return_tokens_as_token_ids": True})
    assert all("token_id:300" in one for one in answer["choices"][0]["logprobs"]["top_logprobs"])


def test_log_probabilities_that_cannot_be(server):
    asked = body("chat", "Ksure", logprobs=True)
    for ids in ([], [-1], [10 ** 6], ["a"], 5, list(range(129))):
        code, error = server.error(asked | {"logprob_token_ids": ids})
        assert code == 400 and error["param"].startswith("logprob_token_ids"), ids
    for path, request in ((CHAT, body("chat", "x")), (COMPLETIONS, {"model": MODEL, "prompt": "x"}), (PATHS["messages"], body("messages", "x"))):
        status, _, data = server.request("POST", path, request | {"logprob_token_ids": [3]})
        assert status == 400 and "not asked for" in json.loads(data)["error"]["message"]
    for api in ("responses", "messages"):
        for field in ("return_token_ids", "return_tokens_as_token_ids", "echo"):
            assert server.request("POST", PATHS[api], body(api, "x") | {field: True})[0] == 400


# ---- echo, reasoning, padding ----

@pytest.mark.parametrize("content", ["It is", [{"type": "text", "text": "Well."}, {"type": "text", "text": "It is"}]])
@pytest.mark.parametrize("n", [1, 2])
def test_an_echo_of_the_last_message(server, content, n):
    request = {"model": MODEL, "messages": [{"role": "user", "content": "Say."}, {"role": "assistant", "content": content}], "echo": True, "n": n,
               "continue_final_message": True, "thinking": {"type": "disabled"}}
    whole = server.json("POST", CHAT, request)
    said = content if isinstance(content, str) else "Well.\n\nIt is"  # as the prompt joins them
    assert [one["message"]["content"] for one in whole["choices"]] == [said + " what it is"] * n
    chunks = stream(server, CHAT, request)
    for index in range(n):
        deltas = [c["delta"] for chunk in chunks for c in chunk["choices"] if c["index"] == index]
        assert deltas[0]["role"] == "assistant" and deltas[1]["content"] == said
        assert "".join(one.get("content") or "" for one in deltas) == said + " what it is"
    assert server.json("POST", CHAT, request | {"echo": False})["choices"][0]["message"]["content"] == " what it is"
    user_last = {"model": MODEL, "messages": USER, "echo": True, "thinking": {"type": "disabled"}}
    assert server.json("POST", CHAT, user_last)["choices"][0]["message"]["content"].startswith("one"), "not what the user said"


def test_reasoning_by_its_other_name(server, script_file):
    request = body("chat", "Kthink", thinking=True)
    assert "reasoning" not in server.json("POST", CHAT, request)["choices"][0]["message"]
    with scripted_server(script_file, "--reasoning-alias") as other:
        message = other.json("POST", CHAT, request)["choices"][0]["message"]
        assert message["reasoning"] == message["reasoning_content"] == "I think so."
        deltas = [c["delta"] for chunk in stream(other, CHAT, request) for c in chunk["choices"]]
        assert "".join(one.get("reasoning") or "" for one in deltas) == "I think so."
        assert "reasoning" not in other.json("POST", CHAT, body("chat", "Kcount"))["choices"][0]["message"]


@pytest.mark.parametrize("api", ["chat", "responses"])
def test_padding_of_deltas(server, script_file, api):
    def lengths(one, **options):
        events = stream(one, PATHS[api], body(api, "Kcount", **options))
        deltas = [e for e in events if api == "chat" or e["type"].endswith(".delta")]
        assert not any("obfuscation" in e for e in events if e not in deltas)
        return [len(e.get("obfuscation", "")) for e in deltas]

    assert set(lengths(server)) == {0} == set(lengths(server, stream_options={"include_obfuscation": False}))
    padded = lengths(server, stream_options={"include_obfuscation": True})
    assert min(padded) >= 1 and max(padded) <= 16 and len(padded) > 5
    with scripted_server(script_file, "--stream-obfuscation") as other:
        assert min(lengths(other)) >= 1
        assert "obfuscation" not in other.request("POST", PATHS["messages"], body("messages", "Kcount", stream=True))[2].decode()


# ---- ids of requests ----

@pytest.mark.parametrize("path, request_body", [(CHAT, body("chat", "x")), (PATHS["responses"], body("responses", "x")), (PATHS["messages"], body("messages", "x")),
                                                (COMPLETIONS, {"model": MODEL, "prompt": "x", "max_tokens": 2})])
def test_a_request_named_in_its_body(server, path, request_body):
    name = "named" + path.replace("/", ".")
    headers = server.request("POST", path, request_body | {"request_id": name})[1]
    assert headers["x-request-id"] == headers["request-id"] == name
    assert server.json("GET", f"/admin/requests/{name}")["id"] == name
    headers = server.request("POST", path, request_body | {"request_id": name}, {"X-Request-Id": "header"})[1]
    assert headers["x-request-id"] == "header"
    assert server.request("POST", path, request_body | {"request_id": "no good\n"})[1]["x-request-id"] != "no good"


# ---- when a stream begins ----

def test_heads_that_wait_for_the_first_token(script_file, server):
    status, _, data = server.request("POST", CHAT, body("chat", "Kdead", stream=True))
    assert status == 200 and b'"error"' in data, "by default the head is gone when the fault comes"
    with scripted_server(script_file, "--no-early-headers") as late:
        for api in ("chat", "responses", "messages"):
            assert late.request("POST", PATHS[api], body(api, "Kdead", stream=True))[0] == 500
            assert ask(late, api, "Kcount", stream=True).same_as(ask(server, api, "Kcount", stream=True))
        with late.connect() as connection:
            connection.send(harness.post(CHAT, body("chat", "Kslow", stream=True)))
            assert connection.read_head()[0] == 200
            connection.reset()
        wait_until(lambda: late.metric("vllm:num_requests_running") == 0, "the client's end is noticed")


def test_tokens_that_wait_for_each_other_by_time(script_file, server):
    """Ten tokens and more, 30 ms apart: an interval that none outlasts leaves the first and the rest."""
    text = ask(server, "chat", "Kslow", stream=True).text
    with scripted_server(script_file, "--stream-interval-ms", 60000) as coarse:
        answer = ask(coarse, "chat", "Kslow", stream=True)
        assert answer.text == text and len(answer.deltas) == 2
    with scripted_server(script_file, "--stream-interval-ms", 60000, "--stream-interval", 4) as both:
        answer = ask(both, "chat", "Kslow", stream=True)
        assert answer.text == text and 2 < len(answer.deltas) <= 5, "the number is reached first"
    with scripted_server(script_file, "--stream-interval-ms", 1) as fine:
        assert len(ask(fine, "chat", "Kslow", stream=True).deltas) > 5


# ---- while the model loads ----

def test_requests_that_wait_for_the_model(tmp_path):
    """The bundled model takes a moment; whoever asks meanwhile is answered by it."""
    server = harness.Server(tmp_path, "--queue-while-loading", "--spec", "off", ready=False)
    answers = []

    def one(api):
        while True:
            try:
                answers.append(server.request("POST", PATHS[api], body(api, "hi", max_tokens=2) | {"model": "deepinfer-tiny"})[0])
                return
            except ConnectionRefusedError:
                time.sleep(0.001)

    threads = [threading.Thread(target=one, args=(api,)) for api in PATHS]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [200, 200, 200], server.log()
    assert server.stop() == 0


# ---- what is written down ----

def test_bodies_in_a_file(tmp_path, script_file):
    path = tmp_path / "bodies.jsonl"
    with scripted_server(script_file, "--log-requests", path) as server:
        request = body("chat", "a secret word")
        server.request("POST", CHAT, request, {"X-Request-Id": "first"})
        server.request("POST", PATHS["messages"], "{broken", {"X-Request-Id": "second"})
        server.json("GET", "/v1/models")
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        assert [(one["id"], one["path"], one["tenant"]) for one in lines] == [("first", CHAT, "default"), ("second", PATHS["messages"], "default")]
        assert lines[0]["body"] == request and lines[1]["body"] == "{broken" and lines[0]["time"] > 1.6e9
        assert path.stat().st_mode & 0o777 == 0o600 and "secret" not in server.log()
    status = deepinfer("serve", "--engine", f"scripted:{script_file}", "--log-requests", tmp_path / "no/such/file")
    assert status.returncode == 2 and "--log-requests" in status.stderr


def test_figures_by_tenant(script_file):
    with scripted_server(script_file, "--metrics-tenant", "--api-key", "ka:alpha,kb:beta,root::admin") as server:
        for key, times in (("ka", 2), ("kb", 1)):
            for _ in range(times):
                assert server.request("POST", CHAT, body("chat", "Kcount"), {"Authorization": f"Bearer {key}"})[0] == 200
        assert server.metric("deepinfer:tenant_requests_total", tenant="alpha", code="200") == 2
        assert server.metric("deepinfer:tenant_requests_total", tenant="beta") == 1
        alpha, beta = (server.metric("deepinfer:tenant_generation_tokens_total", tenant=one) for one in ("alpha", "beta"))
        assert alpha == 2 * beta > 0
        assert server.metric("deepinfer:tenant_prompt_tokens_total") == server.metric("vllm:prompt_tokens_total")
    with scripted_server(script_file) as server:
        ask(server, "chat", "Kcount")
        assert not [name for name, _, _ in server.metrics() if "tenant" in name]


def test_the_commit_that_was_built(server):
    commit = server.json("GET", "/version")["git"]
    if subprocess.run(["git", "rev-parse", "HEAD"], cwd=harness.ROOT, capture_output=True).returncode == 0:
        assert re.fullmatch("[0-9a-f]{12}", commit)
    else:
        assert commit is None


# ---- what a response repeats ----

@pytest.mark.parametrize("streamed", [False, True])
def test_what_a_response_repeats(server, streamed):
    said = {"metadata": {"team": "a"}, "parallel_tool_calls": False, "prompt_cache_key": "k", "safety_identifier": "s", "max_tool_calls": 3,
            "truncation": "auto", "prompt_cache_retention": "24h"}
    first = server.json("POST", PATHS["responses"], body("responses", "hello"))
    assert first["metadata"] == {} and first["previous_response_id"] is None and first["truncation"] == "disabled" and first["store"] is True
    request = body("responses", "hello", stream=streamed, previous_response_id=first["id"], **said)
    answer = send(server, "responses", request)
    assert {key: answer.body[key] for key in said} == said
    assert answer.body["previous_response_id"] == first["id"] and answer.body["store"] is True
    for event in answer.events:
        if "response" in event:
            assert event["response"]["metadata"] == said["metadata"]
    assert server.json("GET", f"/v1/responses/{answer.body['id']}")["metadata"] == said["metadata"]
    assert server.json("POST", PATHS["responses"], body("responses", "hello", store=False))["store"] is False
    status, error = server.error(body("responses", "x", truncation="sometimes"), PATHS["responses"])
    assert status == 400 and error["param"] == "truncation"


def test_a_long_conversation_without_its_oldest_turns(script_file):
    turns = []
    for i in range(40):
        turns += [{"role": "user", "content": f"question {i} " + "word " * 30}, {"role": "assistant", "content": f"answer {i}"}]
    turns.append({"role": "user", "content": "the last question"})
    with scripted_server(script_file, "--max-model-len", 700) as server:
        request = body("responses", "x", max_tokens=20) | {"input": turns, "instructions": "Be brief."}
        status, error = server.error(request, PATHS["responses"])
        assert status == 400 and error["code"] == "context_length_exceeded"
        status, headers, data = server.request("POST", PATHS["responses"], request | {"truncation": "auto"})
        answer = json.loads(data)
        assert status == 200 and answer["status"] == "completed", data
        left = answer["usage"]["input_tokens"]
        dropped = int(headers["deepinfer-warnings"].split("truncated;")[1].split()[0])
        longer = request | {"input": turns[2 * dropped - 2:]}
        kept = server.json("POST", PATHS["responses"], request | {"input": turns[2 * dropped:]})
        assert kept["usage"]["input_tokens"] == left, "instructions stay, whole turns go"
        assert server.error(longer, PATHS["responses"])[0] == 400, "no more turns go than must"
        whole = server.request("POST", PATHS["responses"], request | {"input": turns[-3:], "truncation": "auto"})
        assert "deepinfer-warnings" not in whole[1]
        hopeless = request | {"input": "word " * 2000, "truncation": "auto"}
        assert server.error(hopeless, PATHS["responses"])[0] == 400


def test_why_a_prompt_was_not_in_the_cache(server, script_file):
    def ask_about(other, words="word " * 300, one=server, **more):
        request = body("responses", words) | {"prompt_cache_options": {"comparison_response_id": other}} | more
        return one.json("POST", PATHS["responses"], request)

    first = server.json("POST", PATHS["responses"], body("responses", "word " * 300))
    assert "prompt_cache_diagnostics" not in first and "prompt_cache_options" not in first
    again = ask_about(first["id"])
    assert again["prompt_cache_diagnostics"] == {"type": "cache_hit"}
    assert again["prompt_cache_options"] == {"mode": "implicit", "ttl": "30m", "comparison_response_id": first["id"]}
    assert ask_about(first["id"], "word " * 400)["prompt_cache_diagnostics"] == {"type": "cache_hit"}, "what was there begins it"
    assert ask_about("resp_none")["prompt_cache_diagnostics"] == {"type": "comparison_response_not_found"}
    other = ask_about(first["id"], "word " * 200 + "other " * 100)
    found = other["prompt_cache_diagnostics"]
    reusable = found["comparison_reusable_tokens"]
    assert (found["type"], found["reason"]) == ("cache_miss", "input_changed") and 128 <= reusable <= 220 and reusable % 64 == 0
    assert found["cache_missed_tokens"] == other["usage"]["input_tokens"] - reusable
    for reason, more in (("tools_changed", {"tools": [tool("responses", "f", x="string")]}), ("model_changed", {"model": "deepseek-flash"}),
                         ("prompt_cache_key_changed", {"prompt_cache_key": "k"}), ("verbosity_changed", {"text": {"verbosity": "low"}})):
        found = ask_about(first["id"], "different " * 300, **more)["prompt_cache_diagnostics"]
        assert found["reason"] == reason and found["comparison_reusable_tokens"] == 0, found
    with scripted_server(script_file, "--diag-responses", 0) as none:
        assert ask_about("resp_none", one=none)["prompt_cache_diagnostics"] == {"type": "unavailable"}
    with scripted_server(script_file, "--api-key", "ka:alpha,kb:beta") as two:
        ids = {}
        for key in ("ka", "kb"):
            request = body("responses", "hello") | {"prompt_cache_options": {"comparison_response_id": ids.get("ka", "x")}}
            answer = json.loads(two.request("POST", PATHS["responses"], request, {"Authorization": f"Bearer {key}"})[2])
            ids[key] = answer["id"]
            assert answer["prompt_cache_diagnostics"]["type"] == "comparison_response_not_found", "of the own tenant only"


# ---- a budget for thinking ----

@pytest.mark.parametrize("api", ["chat", "messages"])
@pytest.mark.parametrize("streamed", [False, True])
def test_a_thinking_budget(server, script_file, api, streamed):
    request = lambda budget: body(api, "Klong", thinking=True, stream=streamed, max_tokens=2000) | {
        "thinking": {"type": "enabled", "budget_tokens": budget}}
    whole = send(server, api, request(8))
    assert whole.reasoning.count("hm") == 60 and whole.text == "Done.", "read and not used by default"
    with scripted_server(script_file, "--enforce-thinking-budget") as strict:
        for budget in (1, 8, 33):
            answer = send(strict, api, request(budget))
            assert len(ids_of(server, answer.reasoning)) == budget and whole.reasoning.startswith(answer.reasoning)
            # The script goes on as if nothing had happened: what follows is text now.
            assert answer.text.count("hm") + answer.reasoning.count("hm") >= 59, answer
        assert send(strict, api, request(5000)).same_as(whole)
        assert send(strict, api, body(api, "Klong", thinking=True)).same_as(send(server, api, body(api, "Klong", thinking=True)))
        assert strict.request("POST", PATHS[api], request(-1))[0] == 400
        assert send(strict, api, body(api, "Kcount") | {"thinking": {"type": "disabled", "budget_tokens": 1}}).text.startswith("one two")
