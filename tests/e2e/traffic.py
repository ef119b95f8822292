"""Mixed traffic as many clients at once make it: every API, streamed and not, clients that leave, that read slowly, that send
rubbish. Each request ends with a verdict; what is neither a whole answer nor a clean error is a fault, kept with its details."""
import collections
import contextlib
import http.client
import json
import os
import pathlib
import random
import re
import socket
import threading
import time

import harness
import wire
from harness import check_envelope, post

PIXEL = ("data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
WORDS = "the quick brown fox jumps over the lazy dog while others sleep in the shade of old trees".split()
MODEL = wire.MODEL


class Fault(Exception):
    pass


class Traffic:
    """`clients` threads that send until stop(); tally counts the verdicts by kind, faults holds what must not be."""

    def __init__(self, server, clients=8, seed=1):
        self.server, self.tally, self.faults = server, collections.Counter(), []
        self.lock, self.ending, self.left = threading.Lock(), threading.Event(), None
        self.ended = False  # the server was told to end: it may refuse
        self.threads = [threading.Thread(target=self.work, args=(random.Random(seed * 1000 + i),)) for i in range(clients)]

    def run(self, requests=None, seconds=None):
        """So many requests, or so long."""
        self.start(requests)
        if seconds is not None:
            time.sleep(seconds)
            self.stop()
        self.join()

    def start(self, requests=None):
        self.left = requests
        for thread in self.threads:
            thread.start()

    def stop(self):
        self.ending.set()

    def join(self):
        for thread in self.threads:
            thread.join(300)
            assert not thread.is_alive(), "a request without an end"

    def more(self):
        with self.lock:
            if self.ending.is_set():
                return False
            if self.left is None:
                return True
            self.left -= 1
            return self.left >= 0

    def work(self, rng):
        while self.more():
            kind, = rng.choices(list(KINDS), [weight for weight, _ in KINDS.values()])
            told = self.ended
            try:
                verdict = KINDS[kind][1](self.server, rng)
            except (ConnectionRefusedError, ConnectionResetError, BrokenPipeError, http.client.RemoteDisconnected) as e:
                # Nothing was answered: only a server that ends may do that, to who comes too late.
                verdict = "refused"
                if not self.ended:
                    self.fault(kind, e)
            except Exception as e:  # each fault is told, the others go on
                verdict = "fault"
                self.fault(kind, e)
            with self.lock:
                self.tally[kind, verdict] += 1
            if verdict.startswith(("503", "529")) and not self.ended and not told:
                self.fault(kind, Fault("503 from a server that is up"))
            if verdict == "refused":
                time.sleep(0.05)

    def fault(self, kind, error):
        with self.lock:
            self.faults.append(f"{kind}: {type(error).__name__}: {str(error)[:500]}")

    def summary(self):
        return {f"{kind} {verdict}": n for (kind, verdict), n in sorted(self.tally.items())}


def text_of(rng, most=60):
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(1, most)))


def request_of(rng, api, **more):
    return wire.body(api, text_of(rng), thinking=rng.random() < .3, max_tokens=rng.choice([1, 8, 40]), **more)


def refusal(status, data):
    """The verdict of an answer that is an error; its envelope is checked."""
    try:
        error = json.loads(data)["error"]
    except (ValueError, KeyError, TypeError) as e:
        raise Fault(f"{status} without an error object: {data[:300]!r}") from e
    if "param" in error:
        check_envelope(data)
    assert error["message"] and error["type"], error
    return f"{status} {error.get('code') or error['type']}"


def stream_error(api, data):
    """The code of the error that a stream ended with, or None; a stream ends with one of the two, and with the mark."""
    events = wire.sse(data)
    if not events:
        raise Fault("a stream without an event")
    if api == "chat" or api == "completions":
        if events[-1] != (None, "[DONE]"):
            raise Fault(f"the stream ends with {events[-1]}")
        last = json.loads(events[-2][1])
        return last["error"]["code"] if "error" in last else None
    name, last = events[-1][0], json.loads(events[-1][1])
    if name == "response.failed":
        return last["response"]["error"]["code"]
    if name == "error":
        return last["error"]["type"]
    if name not in ("response.completed", "response.incomplete", "message_stop"):
        raise Fault(f"the stream ends with {name}")
    return None


def exchange(server, path, body, api, stream):
    status, _, data = server.request("POST", path, body)
    if status != 200:
        return refusal(status, data)
    if not stream:
        (wire.READ_BODY[api] if api in wire.READ_BODY else check_completion)(json.loads(data))
        return "answered"
    code = stream_error(api, data)
    if code is not None:
        return f"stream error {code}"
    if api in wire.READ_STREAM:
        wire.READ_STREAM[api](wire.sse(data))
    return "answered"


def check_completion(data):
    assert data["choices"][0]["finish_reason"] in ("stop", "length"), data


def ask(server, rng):
    api, stream = rng.choice(wire.APIS), rng.random() < .6
    return exchange(server, wire.PATHS[api], request_of(rng, api, stream=stream), api, stream)


def complete(server, rng):
    stream = rng.random() < .5
    body = {"model": MODEL, "prompt": text_of(rng), "max_tokens": 8, "stream": stream, "n": rng.choice([1, 1, 2])}
    return exchange(server, "/v1/completions", body, "completions", stream)


def constrained(server, rng):
    schema = {"type": "object", "properties": {f"k{rng.randint(0, 60)}": {"type": "boolean"}}, "additionalProperties": False}
    body = request_of(rng, "chat", response_format={"type": "json_schema", "json_schema": {"name": "s", "schema": schema}})
    return exchange(server, wire.PATHS["chat"], body, "chat", False)


def picture(server, rng):
    body = request_of(rng, "chat")
    body["messages"][0]["content"] = [{"type": "text", "text": text_of(rng)}, {"type": "image_url", "image_url": {"url": PIXEL}}]
    return exchange(server, wire.PATHS["chat"], body, "chat", False)


def leave(server, rng):
    """Somewhere between the first byte of the request and the last of the answer."""
    api = rng.choice(wire.APIS)
    data = post(wire.PATHS[api], request_of(rng, api, stream=rng.random() < .7))
    connection = server.connect()
    point = rng.random()
    try:
        connection.send(data[:rng.randint(1, len(data))] if point < .3 else data)
        if point > .6:
            connection.socket.recv(rng.choice([1, 200, 4000]))
        if point > .9:
            time.sleep(.02)
    finally:
        connection.reset() if rng.random() < .5 else connection.socket.close()
    return "left"


def read_slowly(server, rng):
    body = request_of(rng, "chat", stream=True) | {"max_tokens": 200}
    with socket.socket() as raw:
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        raw.settimeout(120)
        raw.connect(("127.0.0.1", server.port))
        raw.sendall(post(wire.PATHS["chat"], body, ["Connection: close"]))
        data = b""
        while part := raw.recv(512):
            data += part
            time.sleep(.002)
    if not data:
        raise ConnectionResetError
    head, _, rest = data.partition(b"\r\n\r\n")
    status = int(head.split(b" ")[1])
    if status != 200:
        return refusal(status, rest)
    whole = b""
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        whole, rest = whole + rest[:int(size, 16)], rest[int(size, 16) + 2:]
        if int(size, 16) == 0:
            break
    else:
        raise Fault("the last chunk is missing")
    code = stream_error("chat", whole)
    return "answered" if code is None else f"stream error {code}"


GOOD = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
RUBBISH = [
    b"{", b"", b"null", b"[]", b"\xff\xfe", b'{"model": "\\ud800"}', b'{"messages":' + b"[" * 5000, json.dumps(GOOD | {"messages": 1}).encode(),
    json.dumps(GOOD | {"max_tokens": "many"}).encode(), json.dumps(GOOD | {"model": "nobody"}).encode(),
    json.dumps(GOOD | {"temperature": 9}).encode(), json.dumps(GOOD | {"tools": [{}]}).encode(),
]


def rubbish_body(server, rng):
    status, _, data = server.request("POST", rng.choice(list(wire.PATHS.values())), rng.choice(RUBBISH))
    if status not in (400, 404, 503, 529):
        raise Fault(f"rubbish was answered with {status}: {data[:200]!r}")
    return refusal(status, data)


def rubbish_http(server, rng):
    """Bytes that are no request: answered with an error, or the connection ends."""
    data = rng.choice([
        b"\x16\x03\x01\x02\x00\x01\x00", b"GET\r\n\r\n", b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{"])
    with server.connect() as connection:
        answer = b""
        with contextlib.suppress(ConnectionResetError, BrokenPipeError):
            connection.send(data)
            with contextlib.suppress(OSError):  # it has been closed already
                connection.socket.shutdown(socket.SHUT_WR)
            while part := connection.socket.recv(65536):
                answer += part
    if answer and not answer.startswith((b"HTTP/1.1 4", b"HTTP/1.1 503", b"HTTP/1.0 4")):
        raise Fault(f"rubbish was answered with {answer[:100]!r}")
    return "turned away"


def cancel(server, rng):
    """Ended by a second client, or over before that."""
    name = f"traffic-{rng.getrandbits(64):x}"
    body = request_of(rng, "chat", stream=True) | {"max_tokens": 300}
    with server.connect() as connection:
        connection.send(post(wire.PATHS["chat"], body, [f"X-Request-Id: {name}"]))
        if not connection.fill():
            raise ConnectionResetError  # closed without a word, as a server that ends may
        status, headers = connection.read_head()
        if status != 200:
            return refusal(status, connection.read_exactly(int(headers["content-length"])))
        with contextlib.suppress(ConnectionError, http.client.RemoteDisconnected):  # a server that ends hears no more
            server.request("POST", f"/v1/requests/{name}/cancel", {})
        data = b""
        while chunk := connection.read_chunk():
            data += chunk
    code = stream_error("chat", data)
    return "ended" if code is None else f"stream error {code}"


# Shares of all requests, and what does them.
KINDS = {"ask": (54, ask), "complete": (8, complete), "constrained": (5, constrained), "picture": (5, picture), "leave": (10, leave),
         "slow": (4, read_slowly), "body": (6, rubbish_body), "bytes": (4, rubbish_http), "cancel": (4, cancel)}


def open_files(server):
    return len(os.listdir(f"/proc/{server.process.pid}/fd"))


def resident(server):
    text = pathlib.Path(f"/proc/{server.process.pid}/status").read_text()
    return int(re.search(r"VmRSS:\s+(\d+) kB", text).group(1)) / 1024


def at_rest(server):
    """Nothing runs and nobody is connected: what is open then stays open."""
    harness.wait_until(lambda: server.metric("vllm:num_requests_running") + server.metric("vllm:num_requests_waiting") == 0, "idle", 60)
    harness.wait_until(lambda: server.metric("deepinfer:http_connections") <= 1, "no connections but this one", 60)
