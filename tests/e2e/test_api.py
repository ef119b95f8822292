"""Routes, keys, limits and shutdown over the scripted engine: what is not one public report but the server's own rules."""
import concurrent.futures
import json
import threading
import time

import harness
import pytest
from harness import CHAT, check_envelope, get, post, wait_until
from wire import APIS, MODEL, PATHS, ask, body, sse, tool

SCRIPT = [
    {"match": "Kslow", "text": "one two three four five six seven eight nine ten " * 100, "delays_ms": 10},
    {"match": "Kwhile", "text": "one two three four five six seven eight nine ten", "delays_ms": 100},
    {"match": "Kfault", "text": "one two three", "fault": {"kind": "error", "at": 2}},
    {"match": "Kthink", "text": "let me think</think>It is 42."},
    {"match": "Kblue", "text": "The sky is blue."},
    {"text": "ok"},
]


@pytest.fixture(scope="module")
def script_file(tmp_path_factory):
    return harness.write_script(tmp_path_factory.mktemp("scripts"), SCRIPT)


@pytest.fixture(scope="module")
def module_server(script_file):
    with harness.scripted_server(script_file, "--responses-store", 8) as server:
        server.model = MODEL
        yield server


@pytest.fixture
def scripted(module_server):
    yield module_server
    assert module_server.process.poll() is None, module_server.log()[-3000:]


def idle(server):
    return server.metric("vllm:num_requests_running") == 0 and server.metric("vllm:num_requests_waiting") == 0


# ---- Completions ----

def test_completions(scripted):
    answer = scripted.json("POST", "/v1/completions", {"model": MODEL, "prompt": "Kblue", "max_tokens": 20})
    assert answer["object"] == "text_completion" and answer["id"].startswith("cmpl-")
    choice, = answer["choices"]
    assert choice == {"text": "The sky is blue.", "index": 0, "logprobs": None, "finish_reason": "stop"}
    usage = answer["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


def test_completions_in_a_stream(scripted):
    request = {"model": MODEL, "prompt": "Kblue", "max_tokens": 20, "stream": True, "stream_options": {"include_usage": True}}
    status, headers, data = scripted.request("POST", "/v1/completions", request)
    assert status == 200 and headers["content-type"].startswith("text/event-stream")
    events = sse(data)
    assert events[-1] == (None, "[DONE]")
    chunks = [json.loads(event) for _, event in events[:-1]]
    assert "".join(choice["text"] for chunk in chunks for choice in chunk["choices"]) == "The sky is blue."
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["completion_tokens"] > 0
    assert [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]][-1] == "stop"


def test_completions_of_several_prompts(scripted):
    answer = scripted.json("POST", "/v1/completions", {"model": MODEL, "prompt": ["Kblue", "hello"], "n": 2, "max_tokens": 20, "echo": True})
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert [choice["text"] for choice in answer["choices"]] == ["KblueThe sky is blue."] * 2 + ["hellook"] * 2
    ids = scripted.json("POST", "/tokenize", {"prompt": "Kblue"})["tokens"]
    same = scripted.json("POST", "/v1/completions", {"model": MODEL, "prompt": ids, "max_tokens": 20})
    assert same["choices"][0]["text"] == "The sky is blue."


def test_completions_logprobs(scripted):
    request = {"model": MODEL, "prompt": "Kblue", "max_tokens": 20, "logprobs": 2, "temperature": 1, "echo": True}
    choice = scripted.json("POST", "/v1/completions", request)["choices"][0]
    logprobs = choice["logprobs"]
    assert "".join(logprobs["tokens"][1:]) == "KblueThe sky is blue."
    assert logprobs["token_logprobs"][0] is None and all(value <= 0 for value in logprobs["token_logprobs"][1:])
    assert len(logprobs["tokens"]) == len(logprobs["top_logprobs"]) == len(logprobs["text_offset"])
    assert all(isinstance(top, dict) for top in logprobs["top_logprobs"][1:])


def test_fill_in_the_middle(scripted):
    answer = scripted.json("POST", "/beta/completions", {"model": MODEL, "prompt": "Kblue def", "suffix": "return x"})
    assert answer["choices"][0]["text"] == "The sky is blue."
    assert answer["usage"]["prompt_tokens"] >= 6


@pytest.mark.parametrize("fields, param", [
    ({"prompt": None}, "prompt"), ({"prompt": []}, "prompt"), ({"prompt": 7}, "prompt"), ({"prompt": ["a"] * 65}, "prompt"),
    ({"best_of": 3}, "best_of"), ({"logprobs": 21}, "logprobs"), ({"max_tokens": 0}, "max_tokens"), ({"temperature": 3}, "temperature"),
    ({"top_p": 0}, "top_p"), ({"stop": [""]}, "stop"), ({"stream_options": {}}, "stream_options"), ({"seed": -1}, "seed"),
    ({"model": None}, "model"), ({"n": 0}, "n")], ids=str)
def test_completions_refuse(scripted, fields, param):
    status, error = scripted.error({"model": MODEL, "prompt": "x", **fields}, "/v1/completions")
    assert status == 400 and error["param"] == param, error


# ---- tokens ----

def test_tokenize_and_back(scripted):
    answer = scripted.json("POST", "/tokenize", {"prompt": "Hello, wörld", "return_token_strs": True})
    assert answer["count"] == len(answer["tokens"]) == len(answer["token_strs"]) and answer["max_model_len"] > 0
    bare = scripted.json("POST", "/tokenize", {"content": "Hello, wörld", "add_special_tokens": False})
    assert answer["tokens"][1:] == bare["tokens"]
    assert scripted.json("POST", "/detokenize", {"tokens": bare["tokens"]})["prompt"] == "Hello, wörld"
    chat = scripted.json("POST", "/tokenize", {"messages": [{"role": "user", "content": "hi"}]})
    rendered = scripted.json("POST", "/v1/render", {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]})
    assert chat["tokens"] == rendered["token_ids"]
    answered = scripted.json("POST", CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]})
    assert answered["usage"]["prompt_tokens"] == chat["count"]


def test_counting_equals_what_is_charged(scripted):
    request = {"model": "claude-opus-4", "messages": [{"role": "user", "content": "hi there"}], "tools": [tool("messages", "f", x="string")]}
    counted = scripted.json("POST", "/v1/messages/count_tokens", request)
    answer = scripted.json("POST", "/v1/messages", request | {"max_tokens": 10})
    usage = answer["usage"]
    assert counted == {"input_tokens": usage["input_tokens"] + usage["cache_read_input_tokens"] + usage["cache_creation_input_tokens"]}
    assert answer["model"] == "claude-opus-4"
    counted = scripted.json("POST", "/v1/responses/input_tokens", {"model": MODEL, "input": "hi there"})
    assert counted["object"] == "response.input_tokens" and counted["input_tokens"] > 0


# ---- Responses with a store ----

def test_responses_are_kept_for_the_next_turn(scripted):
    first = scripted.json("POST", "/v1/responses", {"model": MODEL, "input": "Kblue please", "reasoning": {"effort": "none"}})
    assert scripted.json("GET", "/v1/responses/" + first["id"])["output"] == first["output"]
    second = scripted.json("POST", "/v1/responses", {"model": MODEL, "input": "again", "previous_response_id": first["id"]})
    assert second["output"][-1]["content"][0]["text"] == "The sky is blue.", "the first question is in the prompt"
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert scripted.json("DELETE", "/v1/responses/" + first["id"])["deleted"] is True
    assert scripted.request("GET", "/v1/responses/" + first["id"])[0] == 404
    for _ in range(9):
        scripted.json("POST", "/v1/responses", {"model": MODEL, "input": "x"})
    assert scripted.request("GET", "/v1/responses/" + second["id"])[0] == 404, "the oldest go first"
    forgotten = scripted.json("POST", "/v1/responses", {"model": MODEL, "input": "x", "store": False})
    assert scripted.request("GET", "/v1/responses/" + forgotten["id"])[0] == 404


def test_responses_without_a_store(start, script_file):
    server = start("--engine", f"scripted:{script_file}")
    status, error = server.error({"model": MODEL, "input": "x", "previous_response_id": "resp_1"}, "/v1/responses")
    assert status == 400 and error["code"] == "unsupported_parameter" and error["param"] == "previous_response_id"
    answer = server.json("POST", "/v1/responses", {"model": MODEL, "input": "x", "store": True})
    assert answer["store"] is False and server.request("GET", "/v1/responses/" + answer["id"])[0] == 404
    assert server.request("POST", "/v1/responses/compact", {})[0] == 501
    assert server.request("GET", "/v1/responses/x/input_items")[0] == 501
    status, error = server.error({"model": MODEL, "input": [{"type": "item_reference", "id": "x"}]}, "/v1/responses")
    assert status == 400


# ---- the end of a request ----

@pytest.mark.parametrize("api", APIS)
def test_a_cancelled_request_ends_properly(scripted, api):
    with scripted.connect() as connection:
        connection.send(post(PATHS[api], body(api, "Kslow", stream=True), ["X-Request-Id: to-cancel-" + api]))
        connection.read_head()
        connection.read_chunk()
        wait_until(lambda: scripted.metric("vllm:num_requests_running") == 1, "running")
        answer = scripted.json("POST", f"/v1/requests/to-cancel-{api}/cancel")
        assert answer == {"id": "to-cancel-" + api, "status": "cancelled"}
        data = b""
        while chunk := connection.read_chunk():
            data += chunk
    assert {"chat": b'"stop_reason":"cancelled"', "responses": b"response.completed", "messages": b"message_stop"}[api] in data
    wait_until(lambda: idle(scripted), "freed", 5)
    assert scripted.json("POST", "/v1/requests/no-such/cancel")["status"] == "not_found"


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_a_client_that_leaves_frees_its_place(scripted, api, stream):
    connection = scripted.connect()
    connection.send(post(PATHS[api], body(api, "Kslow", stream=stream)))
    wait_until(lambda: scripted.metric("vllm:num_requests_running") == 1, "running")
    connection.socket.close()
    wait_until(lambda: idle(scripted), "freed", 5)
    produced = scripted.metric("vllm:generation_tokens_total")
    assert ask(scripted, "chat", "hello").text == "ok"
    assert scripted.metric("vllm:generation_tokens_total") <= produced + 2


def test_leaving_while_queued_and_in_prefill(start, script_file):
    server = start("--engine", "mock:prefill_tps=300,step_ms=5", "--max-num-seqs", 1)
    first = server.connect()
    first.send(post(CHAT, body("chat", "word " * 6000)))
    wait_until(lambda: server.metric("vllm:num_requests_running") == 1, "in prefill")
    queued = server.connect()
    queued.send(post(CHAT, body("chat", "another")))
    wait_until(lambda: server.metric("vllm:num_requests_waiting") == 1, "queued")
    queued.socket.close()
    wait_until(lambda: server.metric("vllm:num_requests_waiting") == 0, "left the queue", 10)
    first.socket.close()
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0, "left the prefill", 10)
    assert server.metric("vllm:generation_tokens_total") == 0
    assert server.metric("deepinfer:requests_aborted_total", phase="queue") == 1
    assert server.metric("deepinfer:requests_aborted_total", phase="prefill") + server.metric("deepinfer:requests_aborted_total", phase="decode") == 1


def test_a_half_close_is_no_disconnect(scripted):
    with scripted.connect() as connection:
        connection.send(post(CHAT, body("chat", "Kblue", stream=True)))
        connection.socket.shutdown(1)
        status, _ = connection.read_head()
        while status == 100:  # how the server finds out whether somebody is there
            status, _ = connection.read_head()
        data = b""
        while chunk := connection.read_chunk():
            data += chunk
    assert status == 200 and data.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("api", APIS)
def test_an_error_after_the_stream_began(scripted, api):
    status, _, data = scripted.request("POST", PATHS[api], body(api, "Kfault", stream=True))
    assert status == 200
    events = sse(data)
    if api == "chat":
        assert events[-1] == (None, "[DONE]") and check_envelope(events[-2][1].encode())["code"] == "internal_error"
    elif api == "responses":
        last = json.loads(events[-1][1])
        assert last["type"] == "response.failed" and last["response"]["status"] == "failed" and last["response"]["error"]["message"]
    else:
        assert events[-1][0] == "error" and json.loads(events[-1][1])["error"]["type"] == "api_error"
    status, headers, _ = scripted.request("POST", PATHS[api], body(api, "Kfault"))
    assert status == 500 and headers["x-should-retry"] == "false"


def test_time_limit_of_a_request(scripted):
    status, headers, data = scripted.request("POST", CHAT, body("chat", "Kslow"), {"X-Request-Timeout-Ms": "200"})
    assert status == 504 and check_envelope(data)["code"] == "request_timeout" and headers["x-should-retry"] == "true"


# ---- keys ----

def test_limits_of_a_key(start, script_file, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one:small:inference:1\ntwo:slow::0:3\nthree:words::::40\n")
    server = start("--engine", f"scripted:{script_file}", "--api-key-file", keys, ready=False)
    wait_until(server.is_ready, "ready")

    def send(key, text="hello"):
        return server.request("POST", CHAT, body("chat", text), {"Authorization": f"Bearer {key}"})

    with server.connect() as busy:
        busy.send(post(CHAT, body("chat", "Kslow"), ["Authorization: Bearer one"]))
        wait_until(lambda: server.metric("vllm:num_requests_running") == 1, "running")
        status, headers, data = send("one")
        assert status == 429 and int(headers["retry-after"]) >= 1 and check_envelope(data)["type"] == "rate_limit_error"
    wait_until(lambda: send("one")[0] == 200, "the place is free again")
    assert [send("two")[0] for _ in range(4)] == [200, 200, 200, 429]
    assert send("three")[0] == 200
    wait_until(lambda: send("three")[0] == 429, "the minute's tokens are used")
    keys.write_text("four\n")
    wait_until(lambda: send("four")[0] == 200, "the file was read again")
    assert send("one")[0] == 401


def test_wrong_keys_are_status_2(tmp_path):
    from test_process import deepinfer
    from harness import free_port, model_dir
    result = deepinfer("serve", model_dir(), "--port", free_port(), "--api-key", "k:t:king")
    assert result.returncode == 2 and "king" in result.stderr
    result = deepinfer("serve", model_dir(), "--port", free_port(), "--api-key-file", tmp_path / "none")
    assert result.returncode == 2 and "none" in result.stderr
    result = deepinfer("serve", model_dir(), "--port", free_port(), "--host", "0.0.0.0", "--require-auth")
    assert result.returncode == 2 and "--require-auth" in result.stderr


def test_cors(start, script_file):
    server = start("--engine", f"scripted:{script_file}", "--cors-origins", "https://a.example")
    status, headers, _ = server.request("OPTIONS", CHAT, headers={"Origin": "https://a.example"})
    assert status == 204 and headers["access-control-allow-origin"] == "https://a.example"
    status, headers, _ = server.request("POST", CHAT, body("chat", "hello"), {"Origin": "https://a.example"})
    assert status == 200 and headers["access-control-allow-origin"] == "https://a.example"
    _, headers, _ = server.request("POST", CHAT, body("chat", "hello"), {"Origin": "https://b.example"})
    assert "access-control-allow-origin" not in headers


def test_root_path(start, script_file):
    server = start("--engine", f"scripted:{script_file}", "--root-path", "/llm")
    assert server.request("POST", "/llm" + CHAT, body("chat", "hello"))[0] == 200
    assert json.loads(server.request("POST", "/llm/v1/messages", {})[2])["type"] == "error"


# ---- administration ----

def test_introspection(scripted):
    scripted.request("POST", CHAT, body("chat", "Kthink", thinking=True), {"X-Request-Id": "seen-1"})
    line = scripted.json("GET", "/admin/requests/seen-1")
    assert line["code"] == 200 and line["output_tokens"] > 0 and {stage["stage"] for stage in line["stages"]} >= {"parse", "tokenize", "queue", "prefill"}
    assert scripted.json("GET", "/v1/loads")["loads"][0]["kv_total"] > 0
    info = scripted.json("GET", "/server_info")
    assert info["config"]["port"] == {"value": str(scripted.port), "origin": "command line"} and info["engine"]["backend"] == "scripted"
    assert scripted.json("GET", "/props")["total_slots"] >= 1 and scripted.json("GET", "/slots") == []
    assert scripted.json("GET", "/user/balance") == {"is_available": True, "balance_infos": []}
    assert scripted.request("GET", "/health_generate")[0] == 200
    assert scripted.json("POST", "/admin/log_level", {"level": "debug"}) == {"level": "debug"}
    assert scripted.json("POST", "/admin/log_level", {"level": "info"}) == {"level": "info"}
    listing = scripted.json("GET", "/anthropic/v1/models")
    assert listing["has_more"] is False and listing["data"][0]["type"] == "model"
    status, _, data = scripted.request("GET", "/v1/models", headers={"anthropic-version": "2023-06-01"})
    assert status == 200 and json.loads(data)["first_id"]


def test_the_description_names_what_is_served(scripted):
    described = scripted.json("GET", "/openapi.json")
    assert described["openapi"].startswith("3.1")
    for path, operations in described["paths"].items():
        for method in operations:
            status, _, _ = scripted.request(method.upper() if path != "/admin/drain" else "HEAD", path.replace("{id}", "x"))
            assert status not in (405, 501) or path == "/admin/drain", (method, path, status)
    assert described["paths"]["/v1/responses"]["post"]["requestBody"]


def test_drain_can_be_called_off(start, script_file):
    server = start("--engine", f"scripted:{script_file}", "--drain-delay", "60s")
    assert server.json("POST", "/admin/drain")["status"] == "draining"
    wait_until(lambda: server.request("GET", "/readyz")[0] == 503, "draining")
    assert ask(server, "chat", "hello").text == "ok", "within the delay new requests are still taken"
    assert server.json("POST", "/admin/undrain")["status"] == "ready"
    wait_until(lambda: server.request("GET", "/readyz")[0] == 200, "ready again")
    assert ask(server, "chat", "hello").text == "ok"
    server.json("POST", "/admin/drain")
    server.json("POST", "/admin/undrain")
    server.json("POST", "/admin/drain")
    server.process.terminate()  # does not wait the rest of the minute
    assert server.process.wait(20) == 0


def test_a_first_signal_on_top_of_a_drain_harms_nobody(start, script_file):
    """What a service manager does: its stop hook calls /admin/drain, then it sends SIGTERM."""
    server = start("--engine", f"scripted:{script_file}", "--drain-delay", "60s")
    with server.connect() as connection:
        connection.send(post("/v1/messages", body("messages", "Kwhile", stream=True)))
        connection.read_head()
        assert server.json("POST", "/admin/drain")["status"] == "draining"
        server.process.terminate()
        data = b""
        while chunk := connection.read_chunk():
            data += chunk
    assert sse(data)[-1][0] == "message_stop"
    assert server.process.wait(20) == 0


def test_draining_ends_what_does_not_end(start, script_file):
    server = start("--engine", f"scripted:{script_file}", "--drain-delay", "0s", "--drain-timeout", "300ms")
    with server.connect() as connection:
        connection.send(post("/v1/messages", body("messages", "Kslow", stream=True)))
        connection.read_head()
        connection.read_chunk()
        server.process.terminate()
        data = b""
        while chunk := connection.read_chunk():
            data += chunk
    assert sse(data)[-1][0] == "error" and "overloaded_error" in sse(data)[-1][1]
    assert server.process.wait(20) == 0


def test_draining_waits_for_background_responses(start, script_file):
    server = start("--engine", f"scripted:{script_file}", "--responses-store", 8, "--drain-delay", "0s")
    pending = server.json("POST", "/v1/responses", {"model": MODEL, "input": "Kwhile", "background": True, "reasoning": {"effort": "none"}})
    assert pending["status"] == "in_progress"
    server.process.terminate()
    wait_until(lambda: server.request("GET", "/readyz")[0] == 503, "draining")
    # Nobody is connected; the answer is the only thing that is waited for.
    assert server.process.wait(60) == 0
    log = server.log()
    assert "1 background responses" in log and "finish=stop" in log.replace('"finish":"stop"', "finish=stop") and "time to drain" not in log


def test_draining_reports_background_responses_that_it_cuts(start, script_file):
    server = start("--engine", f"scripted:{script_file}", "--responses-store", 8, "--drain-delay", "0s", "--drain-timeout", "300ms")
    server.json("POST", "/v1/responses", {"model": MODEL, "input": "Kslow", "background": True, "reasoning": {"effort": "none"}})
    server.process.terminate()
    assert server.process.wait(60) == 0
    assert "the time to drain is over: 0 requests under way and 1 background responses end with an error" in server.log()


def test_a_signal_cannot_be_called_off(start, script_file):
    server = start("--engine", f"scripted:{script_file}", "--drain-delay", "0s")
    with server.connect() as connection:
        connection.send(post(CHAT, body("chat", "Kslow", stream=True)))
        connection.read_head()
        server.process.terminate()
        wait_until(lambda: server.request("GET", "/readyz")[0] == 503, "draining")
        assert server.json("POST", "/admin/undrain")["status"] == "draining"
        assert server.request("GET", "/readyz")[0] == 503
    assert server.process.wait(60) == 0


def test_nonstream_keep_alive(start, script_file):
    server = start("--engine", f"scripted:{script_file}", "--nonstream-keep-alive", "--sse-keep-alive", "200ms")
    with server.connect() as connection:
        connection.send(post(CHAT, body("chat", "Kslow", max_tokens=60)))
        response = connection.read_response()
    assert response.body.startswith(b"\n") and json.loads(response.body)["choices"][0]["finish_reason"] == "length"


def test_official_policy(start, script_file):
    server = start("--engine", f"scripted:{script_file}", "--api-policy", "official")
    assert server.request("POST", CHAT, body("chat", "hello") | {"top_k": "x", "chat_template": "x"})[0] == 200
    status, error = server.error(body("chat", "hello", max_tokens=1.0))
    assert status == 400


def test_many_requests_at_once_all_end(scripted):
    before = scripted.metric("vllm:request_success_total")
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(lambda i: ask(scripted, APIS[i % 3], "Kblue", stream=bool(i % 2)).text, range(60)))
    assert answers == ["The sky is blue."] * 60
    assert scripted.metric("vllm:request_success_total") == before + 60
    assert time.monotonic() and threading.active_count() < 200
