"""What surrounds answering: the cache's routes, levels of the log, a port of its own for administration, a Unix socket, metrics
that count what they say."""
import concurrent.futures
import http.client
import json
import signal
import socket

import harness
import pytest
from harness import CHAT, free_port, parse_metrics, wait_until
from test_field_reports import DSML, call, calls
from test_process import deepinfer
from wire import APIS, MODEL, PATHS, ask, body, tool

PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
SCRIPT = [
    # Spelled with ordinary tokens, which no grammar watches over.
    {"match": "Kwords", "split": True,
     "text": "Look." + (calls(call("bash", command=["x"])).replace(DSML, "|DSML|").replace('["x"]', "two words"))},
    {"match": "Kwhole", "text": calls(call("bash", command="ls"))},
    {"text": "ok"},
]


@pytest.fixture(scope="module")
def script_file(tmp_path_factory):
    return harness.write_script(tmp_path_factory.mktemp("operations"), SCRIPT)


@pytest.fixture(scope="module")
def scripted(script_file):
    with harness.scripted_server(script_file) as server:
        server.model = MODEL
        yield server


# ---- profiles ----

def profile_of(server, seconds):
    """A profile, once no other one is being taken."""
    while True:
        status, _, data = server.request("POST", "/admin/profile", {"seconds": seconds})
        if status != 503:
            assert status == 200, data
            return json.loads(data)


def one_is_taken(server):
    return server.request("POST", "/admin/profile", {"seconds": .01})[0] == 503


def test_a_profile_of_a_running_server(start):
    server = start("--engine", "mock:tokens=1000,step_ms=2")
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        answer = pool.submit(server.json, "POST", CHAT, body("chat", "hello", max_tokens=1000))
        wait_until(lambda: server.metric("vllm:num_requests_running") == 1, "running")
        profile = pool.submit(profile_of, server, 1)

        def refused():
            status, headers, data = server.request("POST", "/admin/profile", {"seconds": 0.01})
            return status == 503 and headers["retry-after"] and json.loads(data)["error"]["code"] == "overloaded"
        wait_until(lambda: profile.done() or refused(), "one at a time")
        found = profile.result()
        assert answer.result()["choices"][0]["finish_reason"] in ("stop", "length")
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0, "at rest")
    spans = [event for event in found["traceEvents"] if event["ph"] == "X"]
    assert {"schedule", "forward", "sample", "post"} <= {span["name"] for span in spans}
    assert {span["tid"] for span in spans} == {1, 2}, "the engine's thread and the device's"
    totals = found["otherData"]["totals"]
    assert found["otherData"]["steps"] == len({span["args"]["step"] for span in spans}) > 0
    for name, total in totals.items():
        own = [span["dur"] for span in spans if span["name"] == name]
        assert total["spans"] == len(own) and total["ms"] == pytest.approx(sum(own) / 1000, abs=.1)
    assert all(span["ts"] + span["dur"] < 60e6 for span in spans)
    again = server.json("POST", "/admin/profile", {"seconds": .05})
    assert [event for event in again["traceEvents"] if event["ph"] == "X"] == [], "nothing is kept from before"
    for wrong, param in (({"seconds": 61}, "seconds"), ({"seconds": "x"}, "seconds"), ({"seconds": 0}, "seconds"), ({}, "seconds")):
        status, error = server.error(wrong, "/admin/profile")
        assert status == 400 and error["param"] == param, (wrong, error)


def test_a_drain_ends_a_profile(start):
    server = start("--engine", "mock:tokens=2")
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        profile = pool.submit(profile_of, server, 60)
        wait_until(lambda: one_is_taken(server), "under way")
        server.process.send_signal(signal.SIGTERM)
        assert "traceEvents" in profile.result(30)
        assert server.process.wait(30) == 0


def test_who_leaves_a_profile_ends_it(start):
    server = start("--engine", "mock:tokens=2")
    for _ in range(100):
        with server.connect() as connection:
            connection.send(harness.post("/admin/profile", {"seconds": 60}))
            if one_is_taken(server):
                break  # not by the one that asked
    else:
        raise AssertionError("no profile was under way")
    wait_until(lambda: not one_is_taken(server), "free again")


# ---- the cache ----

def test_what_the_cache_knows_and_forgets(start):
    server = start("--engine", "mock:tokens=2")
    request = body("chat", "word " * 600)
    prompt = server.json("POST", "/tokenize", request)["count"]
    asked = {"messages": request["messages"], "thinking": request["thinking"]}
    assert server.json("POST", "/admin/cache/lookup", asked)["matched"] == {"device": 0}
    server.json("POST", CHAT, request)
    found = server.json("POST", "/admin/cache/lookup", asked)
    assert found["prompt_tokens"] == prompt and prompt - 256 <= found["matched"]["device"] <= prompt
    assert server.json("POST", "/admin/cache/lookup", asked | {"cache_salt": "other"})["matched"] == {"device": 0}
    assert server.json("POST", "/admin/cache/lookup", {"prompt": "word"})["matched"] == {"device": 0}
    assert server.json("POST", CHAT, request)["usage"]["prompt_cache_hit_tokens"] > 0
    stats = server.json("GET", "/admin/cache/stats")
    assert stats["device"]["kept"] > 0 and 0 < stats["device"]["hit_tokens"] < stats["device"]["queried_tokens"]
    assert server.json("GET", "/v1/loads")["loads"][0]["cached_tokens_ratio"] > 0
    assert server.json("POST", "/admin/cache/flush", {"tier": "device"}) == {"status": "flushed"}
    wait_until(lambda: server.json("GET", "/admin/cache/stats")["device"]["kept"] == 0, "flushed")
    assert server.json("POST", "/admin/cache/lookup", asked)["matched"] == {"device": 0}
    assert server.json("POST", CHAT, request)["usage"]["prompt_cache_hit_tokens"] == 0
    status, error = server.error({"tier": "moon"}, "/admin/cache/flush")
    assert status == 400 and error["param"] == "tier"
    assert server.request("POST", "/reset_prefix_cache")[0] == 200


def test_a_flush_under_load_harms_nobody(start):
    server = start("--engine", "mock:tokens=20,step_ms=1", "--max-num-seqs", 8)
    import concurrent.futures
    with concurrent.futures.ThreadPoolExecutor(5) as pool:
        answers = [pool.submit(server.json, "POST", CHAT, body("chat", f"{i % 3} " + "word " * 700, max_tokens=20)) for i in range(40)]
        flushes = [pool.submit(server.json, "POST", "/admin/cache/flush", {}) for _ in range(40)]
        assert all(one.result()["choices"] for one in answers) and all(one.result() for one in flushes)


def test_times_of_blocks(start):
    names = [f"vllm:kv_block_{what}_seconds" for what in ("lifetime", "idle_before_evict", "reuse_gap")]
    server = start("--engine", "mock:tokens=2", "--test-blocks", 16, "--max-model-len", 1500)
    assert [server.metric(name + "_count") for name in names] == [0, 0, 0]
    for i in (1, 1, 2, 3, 4):
        server.json("POST", CHAT, body("chat", f"{i} " + "word " * 700, max_tokens=2))
    evicted = server.metric("deepinfer:kv_blocks_evicted_total")
    assert evicted > 0 and [server.metric(name + "_count") for name in names[:2]] == [evicted, evicted]
    assert server.metric(names[2] + "_count") > 0


# ---- metrics ----

def test_images_that_come_again(scripted):
    def counts():
        return [scripted.metric(f"vllm:mm_cache_{what}_total") for what in ("queries", "hits")]
    queries, hits = counts()
    request = {"model": MODEL, "messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PIXEL}}]}]}
    for _ in range(3):
        scripted.json("POST", CHAT, request)
    assert counts() == [queries + 3, hits + 2] and scripted.metric("deepinfer:image_cache_entries") == 1


@pytest.mark.parametrize("api", APIS)
def test_calls_that_cannot_be_read_are_counted(scripted, api):
    name = "deepinfer:tool_call_parse_failures_total"
    before = scripted.metric(name)
    ask(scripted, api, "Kwhole", tools=[tool(api, "bash", command="string")])
    ask(scripted, api, "hello", tools=[tool(api, "bash", command="string")])
    assert scripted.metric(name) == before
    answer = ask(scripted, api, "Kwords", tools=[tool(api, "bash", command="array")], stream=True)
    assert "two words" in answer.calls[0][1]
    assert scripted.metric(name) == before + 1


def test_open_metrics(scripted):
    status, headers, data = scripted.request("GET", "/metrics", headers={"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"})
    assert status == 200 and headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    text = data.decode()
    lines = text.splitlines()
    assert lines[-1] == "# EOF" and text.endswith("\n")
    types = dict(line.split(" ")[2:4] for line in lines if line.startswith("# TYPE "))
    helps = [line.split(" ")[2] for line in lines if line.startswith("# HELP ")]
    assert helps == list(types)
    plain = list(parse_metrics(scripted.request("GET", "/metrics")[2].decode()))
    samples = [line for line in lines if not line.startswith("#")]
    assert len(samples) == len(plain)
    for family, kind in types.items():
        assert kind != "counter" or not family.endswith("_total"), family
    assert types["vllm:prompt_tokens"] == "counter" and types["vllm:iteration_tokens_total"] == "histogram"
    assert not [line for line in samples if 'le="' in line and line.split('le="')[1].split('"')[0].isdigit()]


# ---- levels of the log ----

def test_levels_of_the_log(start, script_file):
    server = start("--engine", f"scripted:{script_file}", "--log-level", "info,server=warn")
    server.request("POST", CHAT, body("chat", "hello"), {"X-Request-Id": "not-logged"})
    assert server.json("POST", "/admin/log_level", {"level": "warn,server=info"}) == {"level": "warn,server=info"}
    server.request("POST", CHAT, body("chat", "hello"), {"X-Request-Id": "logged-1"})
    assert "listening on" in server.log() and "not-logged" not in server.log() and "logged-1" in server.log()
    for wrong in ("loud", "info,attic=debug", "", "info,debug"):
        status, error = server.error({"level": wrong}, "/admin/log_level")
        assert status == 400 and error["param"] == "level"
    result = deepinfer("--log-level", "info,attic=debug", "serve")
    assert result.returncode == 2 and "attic" in result.stderr


def test_sizes_of_a_cluster_are_one():
    result = deepinfer("serve", "--tensor-parallel-size", 2)
    assert result.returncode == 2 and "expected 1" in result.stderr


# ---- where the server listens ----

def test_administration_on_a_port_of_its_own(start, script_file):
    port = free_port()
    server = start("--engine", f"scripted:{script_file}", "--admin-port", port)
    assert ask(server, "chat", "hello").text == "ok"
    for path in ("/livez", "/readyz", "/health", "/version", "/v1/models"):
        assert server.request("GET", path)[0] == 200, path
    for path in ("/metrics", "/server_info", "/admin/requests", "/ui/feed", "/"):
        assert server.request("GET", path)[0] == 404, path
    assert server.request("POST", "/metrics")[0] in (404, 405)
    own, server.port = server.port, port
    assert server.metric("vllm:request_success_total") == 1
    for path in ("/livez", "/server_info", "/admin/requests", "/", "/v1/models"):
        assert server.request("GET", path)[0] == 200, path
    assert ask(server, "chat", "hello").text == "ok"
    server.port = own


def test_a_unix_socket(tmp_path, script_file):
    path = tmp_path / "socket"
    stale = socket.socket(socket.AF_UNIX)
    stale.bind(str(path))
    stale.close()  # the file stays, nobody listens
    server = harness.Server(tmp_path, "--engine", f"scripted:{script_file}", "--uds", path, ready=False)

    def request(method, target, data=None):
        connection = http.client.HTTPConnection("localhost", timeout=60)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(60)
        connection.sock.connect(str(path))
        connection.request(method, target, json.dumps(data) if data else None, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, answer.read()

    def ready():
        assert server.process.poll() is None, server.log()
        try:
            return request("GET", "/readyz")[0] == 200
        except OSError:
            return False

    wait_until(ready, "ready")
    for api in APIS:
        status, data = request("POST", PATHS[api], body(api, "hello", stream=True))
        assert status == 200 and b"ok" in data
    assert request("GET", "/livez")[0] == 200
    second = deepinfer("serve", harness.model_dir(), "--engine", f"scripted:{script_file}", "--uds", path)
    assert second.returncode == 5 and str(path) in second.stderr
    assert server.stop() == 0 and not path.exists()
    with pytest.raises(OSError):
        harness.Connection(server.port, timeout=2)


def test_probes_keep_their_thread_and_other_requests_work_there(scripted):
    """A connection that begins with a probe may go on with anything."""
    with scripted.connect() as connection:
        for _ in range(3):
            connection.send(harness.get("/livez"))
            assert connection.read_response().json() == {"status": "ok"}
            connection.send(harness.post(CHAT, body("chat", "hello", stream=True)))
            assert b"ok" in connection.read_response().body
        connection.send(harness.get("/readyz", "HEAD"))
        assert connection.read_response(head_request=True).status == 200
    for first in (b"G", b"GET /live", b"GET /livezz"):  # what only begins as one does
        with scripted.connect() as connection:
            connection.send(first)
            scripted.request("GET", "/livez")
            connection.send((b"GET /livez" if first != b"GET /livezz" else first)[len(first):] + b" HTTP/1.1\r\nHost: x\r\n\r\n")
            assert connection.read_response().status == (404 if first == b"GET /livezz" else 200)
