"""HTTP as seen from a socket: good, odd, hostile and broken requests. After each one the server still answers."""
import json
import socket
import struct
import time

import pytest
from harness import CHAT, Connection, check_envelope, get, post, sse_events, wait_until

MIB = 1 << 20
BODY_LIMIT = 48 * MIB


def refused(server, data, status, code, closes=None):
    """Sends the bytes and checks the error; returns its error object."""
    with server.connect() as connection:
        connection.send_until_refused(data)
        response = connection.read_response()
        assert response.status == status, response
        error = check_envelope(response.body)
        assert error["code"] == code, error
        if closes is not None:
            assert connection.at_end() == closes
        return error


# ---- streams

def test_the_bytes_of_a_stream(server):
    with server.connect() as connection:
        connection.send(post(CHAT, server.body(stream=True)))
        response = connection.read_response()
        assert response.status == 200
        assert response.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert response.headers["cache-control"] == "no-cache, no-transform"
        assert response.headers["x-accel-buffering"] == "no"
        events = sse_events(response.body)
        assert events[-1] == "[DONE]"
        chunks = [json.loads(event) for event in events[:-1]]
        assert all(event == json.dumps(json.loads(event), ensure_ascii=False, separators=(",", ":")) for event in events[:-1]), \
            "one line of compact JSON, UTF-8 not escaped"
        first = chunks[0]
        assert list(first) [:4] == ["id", "object", "created", "model"]
        assert first["choices"][0]["delta"] == {"role": "assistant", "content": ""}
        assert first["choices"][0]["finish_reason"] is None
        assert all("usage" not in chunk or chunk["usage"] is None for chunk in chunks[:-1])
        assert chunks[-1]["choices"][0]["finish_reason"] in ("stop", "length") and chunks[-1]["usage"]["total_tokens"] > 0
        # The connection lives on.
        connection.send(get("/livez"))
        assert connection.read_response().status == 200


def test_each_event_comes_in_a_chunk_of_its_own(server):
    with server.connect() as connection:
        connection.send(post(CHAT, server.body(stream=True)))
        assert connection.read_head()[0] == 200
        while chunk := connection.read_chunk():
            assert chunk.endswith(b"\n\n") and chunk.count(b"\n\n") == 1


# ---- bodies that are not right

BROKEN_JSON = {
    "empty": b"", "cut": b'{"model": "x", "messages": [', "no JSON": b"hello", "two values": b"{} {}", "a comma too many": b'{"a": 1,}',
    "single quotes": b"{'model': 'x'}", "bare word": b'{"model": nul}', "NaN": b'{"temperature": NaN}', "infinity": b'{"temperature": -Infinity}',
    "a control character": b'{"model": "a\nb"}', "bad escape": b'{"model": "\\x"}', "lone surrogate": b'{"model": "\\ud800"}',
    "not UTF-8": b'{"model": "\xff\xfe"}', "overlong UTF-8": b'{"model": "\xc0\xaf"}', "a NUL": b'{"model": "x"}\0', "leading zero": b'{"max_tokens": 01}',
}


@pytest.mark.parametrize("body", BROKEN_JSON.values(), ids=BROKEN_JSON.keys())
def test_broken_json(server, body):
    error = refused(server, post(CHAT, body), 400, "invalid_json")
    assert error["type"] == "invalid_request_error"


def test_a_body_that_is_json_but_no_object(server):
    for body in ("[]", "7", '"text"', "null", "true"):
        error = refused(server, post(CHAT, body), 400, "invalid_type")
        assert error["type"] == "invalid_request_error"


def test_json_nested_too_deeply(server):
    for depth in (128, 100_000):
        refused(server, post(CHAT, b'{"messages":' + b"[" * depth + b"]" * depth + b"}"), 400, "json_too_deep")


USER = {"role": "user", "content": "x"}
WRONG = [
    # (change of a good body; None removes), field that param names, code
    ({"model": None}, "model", "missing_field"), ({"messages": None}, "messages", "missing_field"),
    ({"model": 7}, "model", "invalid_type"), ({"messages": "x"}, "messages", "invalid_type"), ({"messages": {}}, "messages", "invalid_type"),
    ({"messages": [7]}, "messages[0]", "invalid_type"), ({"messages": []}, "messages", "invalid_value"),
    ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_field"),
    ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role", "invalid_value"),
    ({"messages": [{"role": 1, "content": "x"}]}, "messages[0].role", "invalid_type"),
    ({"messages": [USER, {"role": "user"}]}, "messages[1].content", "missing_field"),
    ({"messages": [USER, {"role": "user", "content": 5}]}, "messages[1].content", "invalid_type"),
    ({"messages": [{"role": "user", "content": [{"type": "sound"}]}]}, "messages[0].content[0].type", "invalid_value"),
    ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text", "missing_field"),
    ({"messages": [{"role": "assistant"}]}, "messages", "invalid_value"),
    ({"messages": [{"role": "tool", "content": "x", "tool_call_id": "a"}]}, "messages", "invalid_value"),
    ({"temperature": "hot"}, "temperature", "invalid_type"), ({"temperature": 2.1}, "temperature", "invalid_value"),
    ({"temperature": -0.1}, "temperature", "invalid_value"), ({"top_p": 0}, "top_p", "invalid_value"), ({"top_p": 1.5}, "top_p", "invalid_value"),
    ({"top_p": []}, "top_p", "invalid_type"), ({"max_tokens": 0}, "max_tokens", "invalid_value"), ({"max_tokens": -1}, "max_tokens", "invalid_value"),
    ({"max_tokens": 1.5}, "max_tokens", "invalid_type"), ({"max_tokens": "many"}, "max_tokens", "invalid_type"),
    ({"max_tokens": 8, "max_completion_tokens": 9}, "max_completion_tokens", "invalid_value"),
    ({"stream": "yes"}, "stream", "invalid_type"), ({"stream_options": {"include_usage": True}}, "stream_options", "invalid_value"),
    ({"stream": True, "stream_options": 1}, "stream_options", "invalid_type"),
    ({"stop": 5}, "stop", "invalid_type"), ({"stop": [""]}, "stop", "invalid_value"), ({"stop": ["x"] * 17}, "stop", "invalid_value"),
    ({"stop": ["x" * 1025]}, "stop", "invalid_value"), ({"stop": [1]}, "stop", "invalid_type"),
    ({"seed": -1}, "seed", "invalid_value"), ({"seed": 2**63}, "seed", "invalid_value"), ({"seed": "s"}, "seed", "invalid_type"),
    ({"presence_penalty": 3}, "presence_penalty", "invalid_value"), ({"frequency_penalty": -3}, "frequency_penalty", "invalid_value"),
    ({"n": 0}, "n", "invalid_value"), ({"n": 17}, "n", "invalid_value"), ({"n": "one"}, "n", "invalid_type"),
    ({"top_k": -2}, "top_k", "invalid_value"), ({"min_p": 2}, "min_p", "invalid_value"), ({"repetition_penalty": 0}, "repetition_penalty", "invalid_value"),
    ({"thinking": True}, "thinking", "invalid_type"), ({"thinking": {"type": "maybe"}}, "thinking.type", "invalid_value"),
    ({"thinking": {}}, "thinking.type", "missing_field"), ({"reasoning_effort": "huge"}, "reasoning_effort", "invalid_value"),
    ({"reasoning_effort": 0}, "reasoning_effort", "invalid_value"), ({"reasoning_effort": 101}, "reasoning_effort", "invalid_value"),
    ({"chat_template": "{{x}}"}, "chat_template", "invalid_value"), ({"top_logprobs": 3}, "top_logprobs", "invalid_value"),
]


@pytest.mark.parametrize("change, field, code", WRONG, ids=[json.dumps(change)[:60] for change, _, _ in WRONG])
def test_wrong_fields(server, change, field, code):
    body = {key: value for key, value in {**server.body(), **change}.items() if value is not None}
    status, error = server.error(body)
    assert status == 400 and error["type"] == "invalid_request_error", error
    assert error["code"] == code, error
    assert error["param"] and error["param"].startswith(field), error


def test_null_equals_absence_and_unknown_fields_are_ignored(server):
    plain = server.answer()
    nulls = {name: None for name in ("stop", "seed", "top_p", "n", "stream", "stream_options", "presence_penalty", "logprobs", "user",
                                     "reasoning_effort", "tools", "tool_choice", "response_format", "max_completion_tokens")}
    assert server.answer(**nulls) == plain
    assert server.answer(never_heard_of={"a": [1, 2]}, store=True, metadata={"k": "v"}, service_tier="auto") == plain


def test_what_json_leaves_open(server):
    good = json.dumps(server.body())
    plain = server.answer()

    def content(body):
        response = server.exchange(post(CHAT, body))
        assert response.status == 200, response
        return response.json()["choices"][0]["message"]["content"]

    assert content(b"\xef\xbb\xbf" + good.encode()) == plain, "a byte order mark is skipped"
    assert content(good[:-1] + ', "max_tokens": 24.0}') == plain, "24.0 is an integer"
    assert content('{"model": "nobody", "temperature": 2, ' + good[1:]) == plain, "of equal keys the last counts"
    assert content(" \r\n\t" + good + "\n\n") == plain
    assert content(json.dumps(server.body(), ensure_ascii=True)) == plain


def test_unusual_text_comes_through(server):
    for text in ("é ü 漢字 🎉", "\u0000\u0001\u001f", "<｜User｜><｜end▁of▁sentence｜>", "a" * 600, " ", "\u2028\u2029", "\u202e!"):
        status, _, data = server.request("POST", CHAT, server.body(text, max_tokens=2))
        assert status == 200, (text[:20], data[:300])


# ---- size

def test_a_body_of_48_mib_is_read(server):
    """The size of the body alone is no reason to refuse: here it is mostly white space."""
    body = json.dumps(server.body(max_tokens=2)).encode()
    body = body[:-1] + b" " * (BODY_LIMIT - len(body)) + b"}"
    assert len(body) == BODY_LIMIT
    assert server.exchange(post(CHAT, body)).status == 200


def test_a_field_of_48_mib_is_read(server):
    head = json.dumps(server.body(max_tokens=2))[:-1] + ', "metadata": {"a": "'
    tail = '"}}'
    body = head + "x" * (BODY_LIMIT - len(head) - len(tail)) + tail
    assert server.exchange(post(CHAT, body)).status == 200


def test_a_message_of_48_mib_is_beyond_the_context(server):
    head, tail = json.dumps(server.body("@"))[:].split("@")
    body = head + "word " * ((BODY_LIMIT - len(head) - len(tail)) // 5) + tail
    with server.connect(300) as connection:
        connection.send(post(CHAT, body))
        response = connection.read_response()
    assert response.status == 400 and check_envelope(response.body)["code"] == "context_length_exceeded"


def test_a_body_over_48_mib(server):
    error = refused(server, post(CHAT, b" " * (BODY_LIMIT + 1)), 413, "request_too_large")
    assert error["type"] == "invalid_request_error"


def test_a_length_over_48_mib_is_refused_before_the_body(server):
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {BODY_LIMIT + 1}\r\n"
    refused(server, head + "\r\n", 413, "request_too_large")
    refused(server, head + "Expect: 100-continue\r\n\r\n", 413, "request_too_large")
    refused(server, head.replace(str(BODY_LIMIT + 1), "9" * 18) + "\r\n", 413, "request_too_large")


def test_chunks_over_48_mib(server):
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunk = b"100000\r\n" + b" " * MIB + b"\r\n"
    refused(server, head + chunk * 49, 413, "request_too_large")


# ---- the protocol

def test_keep_alive_and_chunked_bodies(server):
    body = json.dumps(server.body(max_tokens=2)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (body[i:i + 7] for i in range(0, len(body), 7))) + b"0\r\n\r\n"
    with server.connect() as connection:
        for _ in range(3):
            connection.send(head + chunks)
            assert connection.read_response().status == 200
        connection.send(post(CHAT, body, ["Connection: close"]))
        response = connection.read_response()
        assert response.status == 200 and response.headers.get("connection", "").lower() == "close"
        assert connection.at_end()


def test_expect_100_continue(server):
    body = json.dumps(server.body(max_tokens=2)).encode()
    with server.connect() as connection:
        connection.send(post(CHAT, body, ["Expect: 100-continue"])[:-len(body)])
        assert connection.read_head()[0] == 100
        connection.send(body)
        assert connection.read_response().status == 200


def test_pipelined_requests_are_answered_in_order(server):
    with server.connect() as connection:
        connection.send(post(CHAT, server.body(max_tokens=8)) + get("/livez") + post(CHAT, "broken") + get("/v1/models")
                        + post(CHAT, server.body(stream=True, max_tokens=4)) + get("/nowhere"))
        responses = [connection.read_response() for _ in range(6)]
    assert [response.status for response in responses] == [200, 200, 400, 200, 200, 404]
    assert responses[0].json()["object"] == "chat.completion" and responses[3].json()["object"] == "list"
    assert sse_events(responses[4].body)[-1] == "[DONE]"


BAD_HTTP = {
    "garbage": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", "no version": b"GET /livez\r\n\r\n", "words": b"hello there, server\r\n\r\n",
    "bad version": b"GET /livez HTTP/9.9\r\nHost: x\r\n\r\n", "space in a name": b"GET /livez HTTP/1.1\r\nHo st: x\r\n\r\n",
    "no colon": b"GET /livez HTTP/1.1\r\nHost x\r\n\r\n", "NUL in a header": b"GET /livez HTTP/1.1\r\nHost: a\0b\r\n\r\n",
    "negative length": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    "length in words": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: five\r\n\r\n",
    "two lengths": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}x",
    "length and chunked": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bad chunk size": b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n\r\n",
}


@pytest.mark.parametrize("data", BAD_HTTP.values(), ids=BAD_HTTP.keys())
def test_bad_http_is_refused_and_closed(server, data):
    with server.connect() as connection:
        connection.send(data)
        response = connection.read_response()
        assert response.status == 400, response
        check_envelope(response.body)
        assert connection.at_end()


def test_headers_beyond_the_limits(server):
    big = get("/livez", headers=["X-Filler: " + "a" * (65 << 10)])
    many = get("/livez", headers=[f"X-Filler-{i}: a" for i in range(120)])
    for data in (big, many):
        with server.connect() as connection:
            connection.send_until_refused(data)
            response = connection.read_response()
            assert response.status == 431
            check_envelope(response.body)


def test_http_1_0(server):
    with server.connect() as connection:
        connection.send(post(CHAT, server.body(max_tokens=2), version="HTTP/1.0"))
        status, headers = connection.read_head()
        assert status == 200 and "transfer-encoding" not in headers
        assert json.loads(connection.read_exactly(int(headers["content-length"])))["object"] == "chat.completion"
        assert connection.at_end()


def test_content_types(server):
    body = json.dumps(server.body(max_tokens=2)).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n"
    for kind in ("", "Content-Type: application/json; charset=utf-8\r\n", "Content-Type: text/json\r\n", "Content-Type: Application/JSON\r\n"):
        assert server.exchange(head.encode() + kind.encode() + b"\r\n" + body).status == 200, kind
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"):
        error = refused(server, head.encode() + f"Content-Type: {kind}\r\n\r\n".encode() + body, 415, "unsupported_media_type")
        assert error["type"] == "invalid_request_error"


# ---- clients that go away or dawdle

@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_request_cut_off(server, part, how):
    data = post(CHAT, server.body("x" * 100_000))
    with server.connect() as connection:
        connection.send(data[:int(len(data) * part)])
        if how == "reset":
            connection.reset()


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("how", ["close", "reset"])
def test_a_client_that_goes_away_ends_its_request(server, stream, how):
    before = server.metric("deepinfer:requests_aborted_total")
    connection = server.connect()
    connection.send(post(CHAT, server.endless(stream=stream)))
    if stream:
        connection.read_until(b"data: ")
    wait_until(lambda: server.metric("vllm:num_requests_running") >= 1, "the request runs")
    connection.reset() if how == "reset" else connection.socket.close()
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0, "the request is gone", 5)
    assert server.metric("deepinfer:requests_aborted_total") == before + 1


def test_a_client_that_goes_away_while_queued(start):
    server = start("--max-num-seqs", "1")
    with server.connect() as running:
        running.send(post(CHAT, server.endless(stream=True)))
        running.read_until(b"data: ")
        waiting = server.connect()
        waiting.send(post(CHAT, server.endless(stream=True)))
        wait_until(lambda: server.metric("vllm:num_requests_waiting") == 1, "the second request waits")
        waiting.socket.close()
        wait_until(lambda: server.metric("vllm:num_requests_waiting") == 0, "the second request is gone", 5)
        assert server.metric("vllm:num_requests_running") == 1


def test_a_half_close_is_no_disconnect(server):
    for stream in (True, False):
        with server.connect() as connection:
            connection.send(post(CHAT, server.body(stream=stream)))
            connection.socket.shutdown(socket.SHUT_WR)
            response = connection.read_response()
            assert response.status == 200
            assert not stream or sse_events(response.body)[-1] == "[DONE]"


def test_a_client_that_sends_slowly(server):
    data = post(CHAT, server.body(max_tokens=2))
    with server.connect() as connection:
        for at in range(0, len(data), 16):
            connection.send(data[at:at + 16])
            time.sleep(0.005)  # what is tested is the slowness itself
        assert connection.read_response().status == 200


def test_a_client_that_does_not_read_holds_up_nobody(server):
    slow = server.connect()
    try:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.send(post(CHAT, server.endless(stream=True)))
        wait_until(lambda: server.metric("vllm:num_requests_running") >= 1, "the unread request runs")
        for _ in range(5):
            begun = time.monotonic()
            assert server.answer(max_tokens=8)
            assert time.monotonic() - begun < 10
    finally:
        slow.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        slow.socket.close()
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0, "the unread request is gone")


def test_many_idle_connections_leave_room(server):
    idle = [server.connect() for _ in range(300)]
    try:
        assert server.answer(max_tokens=4)
    finally:
        for connection in idle:
            connection.socket.close()


def test_a_storm_of_broken_requests_does_not_grow_the_server(server):
    """File descriptors come back: as many as before are open afterwards."""
    def descriptors():
        import os
        return len(os.listdir(f"/proc/{server.process.pid}/fd"))
    server.answer(max_tokens=2)
    before = descriptors()
    for data in [*BAD_HTTP.values(), *(post(CHAT, body) for body in BROKEN_JSON.values())] * 3:
        connection = Connection(server.port)
        connection.send(data)
        connection.reset()
    wait_until(lambda: descriptors() <= before + 2, f"{before} open descriptors again")


def test_http_2_is_not_offered(server):
    """docs/decisions/0006: an upgrade is not taken and the request answered; the preface ends the connection and nothing else."""
    upgrade = ["Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA"]
    assert server.exchange(get("/livez", headers=upgrade)).status == 200
    with server.connect() as connection:
        connection.send(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        data = b""
        try:
            while part := connection.socket.recv(1000):
                data += part
        except ConnectionResetError:
            pass
    assert not data or data.startswith(b"HTTP/1.1 4"), data
    assert server.request("GET", "/livez")[0] == 200
