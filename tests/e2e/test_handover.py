"""Prompts computed in one engine and answers in another, in one process (`serve --test-prefill`): the same answers as with one engine, and
nothing that stays behind when a client leaves, a hand-over fails or comes too late."""
import json
import time

import pytest
from harness import CHAT, post, wait_until

BLOCK = 128


@pytest.fixture
def script(tmp_path):
    def write(*lines):
        path = tmp_path / "handover.jsonl"
        path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
        return f"scripted:{path}"

    return write


def words(n, seed=0):
    return " ".join(f"word{(i * 7 + seed) % 97}" for i in range(n))


def is_idle(server):
    return all(server.metric(name) == 0 for name in
               ("deepinfer:kv_blocks_leased", "vllm:kv_cache_usage_perc", "vllm:num_requests_running", "vllm:num_requests_waiting"))


def in_transfer(server):
    return server.metric("deepinfer:kv_blocks_leased") > 0


def test_the_model_answers_as_with_one_engine(server, start):
    pair = start("--test-prefill")
    schema = {"type": "object", "properties": {"n": {"type": "integer"}, "s": {"type": "string", "maxLength": 8}}, "required": ["n", "s"],
              "additionalProperties": False}
    requests = [server.body(), server.body(words(300, 1), max_tokens=40), server.body(words(300, 1), max_tokens=60),
                server.body("Tell me a story.", temperature=1, seed=5, max_tokens=50, thinking={"type": "enabled"}),
                server.body("One more.", n=3, temperature=1, seed=9, max_tokens=12),
                server.body("An object.", max_tokens=60, response_format={"type": "json_schema", "json_schema": {"name": "o", "schema": schema}}),
                server.body("One token.", max_tokens=1)]
    for body in requests:
        one, two = (s.json("POST", CHAT, body) for s in (server, pair))
        assert [c["message"] for c in one["choices"]] == [c["message"] for c in two["choices"]], body
        assert [c["finish_reason"] for c in one["choices"]] == [c["finish_reason"] for c in two["choices"]]
        assert one["usage"]["completion_tokens"] == two["usage"]["completion_tokens"]
    assert pair.metric("deepinfer:pd_transfer_bytes_total") > 0
    assert is_idle(pair)
    # The two answers to the same words: the second time the first engine knew the beginning.
    assert pair.metric("vllm:prompt_tokens_cached_total") > 0


def test_a_prompt_alone_and_a_stream(start, script):
    server = start("--engine", script({"text": "One two three."}), "--test-prefill")
    status, _, data = server.request("POST", CHAT, server.body(words(400), stream=True, stream_options={"include_usage": True}))
    assert status == 200 and data.rstrip().endswith(b"data: [DONE]")
    chunks = [json.loads(line[6:]) for line in data.decode().splitlines() if line.startswith("data: {")]
    assert "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"]) == "One two three."
    status, _, data = server.request("POST", "/v1/completions", {"model": server.model, "prompt": "a b c", "max_tokens": 0, "echo": True, "logprobs": 1})
    assert status == 200 and json.loads(data)["choices"][0]["text"] == "a b c"
    assert is_idle(server)


@pytest.mark.parametrize("stream", [True, False])
def test_B061_a_client_that_leaves_in_transfer_frees_both_sides(start, script, stream):
    server = start("--engine", script({"text": "never seen", "fault": {"kind": "late_completion", "ms": 3600000}}), "--test-prefill")
    connection = server.connect()
    connection.send(post(CHAT, server.body(words(600), stream=stream)))
    wait_until(lambda: server.metric("deepinfer:kv_blocks_leased") >= 2 * (600 // BLOCK), "the prompt is in both engines")
    connection.reset()
    left = time.monotonic()
    wait_until(lambda: is_idle(server), "freed")
    assert time.monotonic() - left < 1
    assert server.metric("vllm:generation_tokens_total") == 0
    assert server.metric("deepinfer:requests_aborted_total", reason="disconnect") == 1


def test_a_half_close_in_transfer_does_not_cancel(start, script):
    import socket
    server = start("--engine", script({"text": "Here it is.", "fault": {"kind": "late_completion", "ms": 400}}), "--test-prefill")
    with server.connect() as connection:
        connection.send(post(CHAT, server.body(words(300))))
        connection.socket.shutdown(socket.SHUT_WR)
        wait_until(lambda: in_transfer(server), "in transfer")
        answer = connection.read_response()
    assert answer.status == 200 and answer.json()["choices"][0]["message"]["content"] == "Here it is."


def test_a_cancel_in_transfer_ends_the_request(start, script):
    server = start("--engine", script({"text": "never seen", "fault": {"kind": "late_completion", "ms": 3600000}}), "--test-prefill")
    with server.connect() as connection:
        connection.send(post(CHAT, server.body(words(300)), ["X-Request-Id: going"]))
        wait_until(lambda: in_transfer(server), "in transfer")
        assert server.json("POST", "/v1/requests/going/cancel")["status"] == "cancelled"
        assert connection.read_response().status == 200
    wait_until(lambda: is_idle(server), "freed", 1)


@pytest.mark.parametrize("fault", [{"kind": "late_completion", "ms": 200}, {"kind": "wrong_order"}])
def test_a_late_end_and_a_wrong_order_are_waited_for(start, script, fault):
    server = start("--engine", script({"text": "The right answer.", "fault": fault}), "--test-prefill")
    assert server.answer(words(300)) == "The right answer."
    assert is_idle(server)


def test_B060_an_end_that_is_too_late_is_an_error_and_frees_both_sides(start, script):
    server = start("--engine", script({"match": "slow", "text": "no", "fault": {"kind": "late_completion", "ms": 3600000}}, {"text": "yes"}),
                   "--test-prefill", "--test-transfer-timeout", "300ms")
    status, headers, data = server.request("POST", CHAT, server.body("slow " + words(300)))
    error = json.loads(data)["error"]
    assert (status, error["code"], headers["retry-after"]) == (503, "overloaded", "1"), error
    assert "hand-over" in error["message"]
    assert server.log().count("is handed over once more") == 1
    wait_until(lambda: is_idle(server), "freed", 1)
    assert server.answer() == "yes"


def test_damage_on_the_way_is_an_error_and_no_text(start, script):
    server = start("--engine", script({"text": "no", "fault": {"kind": "damage"}}), "--test-prefill")
    status, _, data = server.request("POST", CHAT, server.body(words(300)))
    assert status == 503 and "damaged" in json.loads(data)["error"]["message"]
    status, _, data = server.request("POST", CHAT, server.body(words(300), stream=True))
    assert b'"content"' not in data.replace(b'"content":""', b"") and b"damaged" in data and data.rstrip().endswith(b"data: [DONE]")
    assert is_idle(server)


def test_B059_half_of_the_requests_leave_in_transfer(start, script):
    server = start("--engine", script({"text": "All of it is here.", "fault": {"kind": "late_completion", "ms": 60}}),
                   "--test-prefill", "--test-blocks", 64, "--max-model-len", 4096)
    for round_ in range(4):
        connections = [server.connect() for _ in range(12)]
        for i, connection in enumerate(connections):
            connection.send(post(CHAT, server.body(words(400, round_ * 12 + i))))
        wait_until(lambda: in_transfer(server), "in transfer")
        for connection in connections[::2]:
            connection.reset()
        for connection in connections[1::2]:
            answer = connection.read_response()
            assert answer.status == 200 and answer.json()["choices"][0]["message"]["content"] == "All of it is here."
            connection.socket.close()
        wait_until(lambda: is_idle(server), "freed", 2)
    assert server.metric("vllm:corrupted_requests_total") == 0


def test_mock_with_drafts_counts_what_is_accepted(start):
    server = start("--engine", "mock:tokens=200,accept=0.9:0.5:0.1", "--test-prefill")
    alone = start("--engine", "mock:tokens=200")
    for i in range(4):
        assert server.answer(words(50, i), max_tokens=200) == alone.answer(words(50, i), max_tokens=200)
    drafts, accepted = server.metric("vllm:spec_decode_num_draft_tokens_total"), server.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert 0 < accepted < drafts
