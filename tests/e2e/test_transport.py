"""TLS, content codings, traces, responses in the background."""
import concurrent.futures
import gzip
import http.client
import http.server
import json
import os
import pathlib
import shutil
import socket
import ssl
import subprocess
import threading
import time

import harness
import pytest
from harness import CHAT, get, post, wait_until
from wire import MODEL, PATHS, ask, body, read_responses, read_responses_stream, sse

# ---- TLS ----


def make_certificate(folder, name, authority=None):
    """A self-signed certificate for 127.0.0.1, or one signed by `authority`."""
    key, certificate = folder / f"{name}.key", folder / f"{name}.pem"
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30", "-subj", f"/CN={name}",
               "-addext", "subjectAltName=IP:127.0.0.1,DNS:localhost", "-keyout", key, "-out", certificate]
    if authority:
        command += ["-CA", authority[0], "-CAkey", authority[1]]
    subprocess.run(command, check=True, capture_output=True)
    return certificate, key


def https(server, trusted, client=None):
    context = ssl.create_default_context(cafile=trusted)
    context.set_alpn_protocols(["h2", "http/1.1"])
    if client:
        context.load_cert_chain(*client)
    return http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=60)


def tls_ready(server, trusted, client=None):
    def ready():
        assert server.process.poll() is None, server.log()
        try:
            connection = https(server, trusted, client)
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
    wait_until(ready, "ready over TLS")


def test_chat_and_top_over_tls(start, tmp_path):
    """They accept a server whose certificate an authority that they trust has signed for its name, and no other."""
    one = make_certificate(tmp_path, "one")
    two = make_certificate(tmp_path, "two")
    script = harness.write_script(tmp_path, [{"text": "over the wire " * 2000}])
    server = start("--engine", f"scripted:{script}", "--tls-cert", one[0], "--tls-key", one[1], "--max-model-len", 16384, ready=False)
    tls_ready(server, one[0])

    def told(command, *options, url=f"https://127.0.0.1:{server.port}", **environment):
        environment = {key: str(value) for key, value in environment.items()}
        return subprocess.run([str(harness.binary()), command, "--url", url, *map(str, options)], input="hello\n", capture_output=True, text=True,
                              timeout=120, env={**os.environ, **environment})
    answer = told("chat", "--ca-cert", one[0])
    assert answer.returncode == 0 and answer.stdout.count("over the wire") > 1000, answer.stderr
    assert told("chat", SSL_CERT_FILE=one[0]).returncode == 0, "as everywhere with OpenSSL"
    assert told("chat", "--ca-cert", one[0], url=f"https://localhost:{server.port}").returncode == 0
    elsewhere = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    elsewhere.load_cert_chain(*one)
    other = socket.create_server(("127.0.0.2", 0))

    def shake_hands():
        with pytest.raises(OSError):
            elsewhere.wrap_socket(other.accept()[0], server_side=True).recv(1)
    threading.Thread(target=shake_hands, daemon=True).start()
    for options, where in ((("--ca-cert", two[0]), f"127.0.0.1:{server.port}"), ((), f"127.0.0.1:{server.port}"),
                           (("--ca-cert", one[0]), "127.0.0.2:%d" % other.getsockname()[1])):
        wrong = told("chat", *options, url=f"https://{where}")
        assert wrong.returncode == 1 and "certificate is not accepted" in wrong.stderr and "--ca-cert" in wrong.stderr, wrong
    plain = told("chat", url=f"http://127.0.0.1:{server.port}")
    assert plain.returncode == 1 and plain.stderr.count("\n") == 1, "a server with TLS that is asked without"
    assert told("chat", "--ca-cert", tmp_path / "none").returncode == 2
    assert told("chat", url="ftp://127.0.0.1").returncode == 2
    figures = told("top", "--ca-cert", one[0], "--count", 1, "--interval", "50ms", "--json")
    assert figures.returncode == 0 and json.loads(figures.stdout), figures.stderr
    deaf = socket.socket()
    deaf.bind(("127.0.0.1", 0))
    deaf.listen()
    threading.Thread(target=lambda: deaf.accept()[0].sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n"), daemon=True).start()
    wrong = told("chat", url=f"https://127.0.0.1:{deaf.getsockname()[1]}")
    assert wrong.returncode == 1 and "no TLS connection" in wrong.stderr, wrong


def test_tls_serves_streams_and_keeps_connections(start, tmp_path):
    certificate, key = make_certificate(tmp_path, "one")
    server = start("--engine", "mock:tokens=40", "--tls-cert", certificate, "--tls-key", key, ready=False)
    tls_ready(server, certificate)
    assert f"https://127.0.0.1:{server.port}" in server.log()
    connection = https(server, certificate)
    for number in range(5):
        connection.request("POST", CHAT, json.dumps(body("chat", f"hello {number}", stream=True)), {"Content-Type": "application/json"})
        response = connection.getresponse()
        assert response.status == 200
        assert sse(response.read())[-1] == (None, "[DONE]")
    assert connection.sock.selected_alpn_protocol() == "http/1.1"
    assert connection.sock.version() in ("TLSv1.2", "TLSv1.3")
    # A body of many records, on the same connection.
    connection.request("POST", "/tokenize", json.dumps({"prompt": "word " * 100_000}), {"Content-Type": "application/json"})
    assert json.loads(connection.getresponse().read())["count"] > 100_000
    # A client that leaves frees its place; plain HTTP and a client without trust end without harm.
    connection.request("POST", CHAT, json.dumps(body("chat", "long", stream=True, ignore_eos=True, max_tokens=20000)), {"Content-Type": "application/json"})
    assert connection.getresponse().read(1)
    connection.sock.close()
    connection.close()
    with server.connect() as plain:
        plain.send(get("/livez"))
        assert plain.at_end()
    with pytest.raises(ssl.SSLError):
        stranger = http.client.HTTPSConnection("127.0.0.1", server.port, timeout=60)
        stranger.request("GET", "/livez")

    def idle():
        probe = https(server, certificate)
        probe.request("GET", "/load")
        return json.loads(probe.getresponse().read())["server_load"] == 0
    wait_until(idle, "freed")


def test_tls_certificates_are_read_again(start, tmp_path):
    (tmp_path / "two").mkdir()
    certificate, key = make_certificate(tmp_path, "first")
    server = start("--engine", "mock", "--tls-cert", certificate, "--tls-key", key, ready=False)
    tls_ready(server, certificate)
    other = make_certificate(tmp_path / "two", "second")
    trusted = tmp_path / "two" / "trusted.pem"
    shutil.copy(other[0], trusted)
    os.replace(other[1], key)
    os.replace(other[0], certificate)
    tls_ready(server, trusted)  # asks until the new one is shown
    certificate.write_text("no certificate")
    wait_until(lambda: tls_ready(server, trusted) or "certificates stay as they were" in server.log(), "a bad file is logged")
    tls_ready(server, trusted)


def test_tls_asks_for_client_certificates(start, tmp_path):
    authority = make_certificate(tmp_path, "authority")
    own = make_certificate(tmp_path, "server", authority)
    client = make_certificate(tmp_path, "client", authority)
    server = start("--engine", "mock", "--tls-cert", own[0], "--tls-key", own[1], "--tls-ca", authority[0], ready=False)
    tls_ready(server, authority[0], client)
    with pytest.raises(OSError):
        connection = https(server, authority[0])
        connection.request("GET", "/livez")
        connection.getresponse()


def test_tls_files_that_cannot_be_used(tmp_path):
    from harness import binary
    certificate, key = make_certificate(tmp_path, "a")
    other = make_certificate(tmp_path, "b")
    for options, said in ((["--tls-cert", certificate], "--tls-key"), (["--tls-cert", tmp_path / "none", "--tls-key", key], "--tls-cert"),
                          (["--tls-cert", certificate, "--tls-key", other[1]], "--tls-key")):
        result = subprocess.run([str(part) for part in [binary(), "serve", "--engine", "mock", "--port", "0", *options]], capture_output=True, text=True,
                                timeout=60, stdin=subprocess.DEVNULL)
        assert result.returncode == 2 and said in result.stderr, result


# ---- content codings ----

@pytest.fixture(scope="module")
def mock(tmp_path_factory):
    import harness
    server = harness.Server(tmp_path_factory.mktemp("transport"), "--engine", "mock:tokens=20,step_ms=1", "--max-num-seqs", 8, "--max-body-size", "2MiB",
                            "--responses-store", "16")
    server.model = MODEL
    yield server
    assert server.stop() == 0


def packed(data, coding):
    if coding == "zstd":
        zstd = shutil.which("zstd")
        if zstd is None:
            pytest.skip("no zstd program here")
        return subprocess.run([zstd, "-c"], input=data, capture_output=True, check=True).stdout
    return gzip.compress(data)


@pytest.mark.parametrize("coding", ["gzip", "x-gzip", "GZIP", "zstd"])
def test_packed_requests(mock, coding):
    data = packed(json.dumps(body("chat", "word " * 3000, max_tokens=2)).encode(), coding)
    status, _, answer = mock.request("POST", CHAT, data, {"Content-Encoding": coding, "Content-Type": "application/json"})
    assert status == 200 and json.loads(answer)["usage"]["prompt_tokens"] > 3000


def test_packed_requests_that_are_refused(mock):
    good = gzip.compress(json.dumps(body("chat", "hi")).encode())
    bomb = gzip.compress(b"[" + b" " * (20 << 20))
    assert len(bomb) < 100_000
    for data, coding, expected in ((good[:-5], "gzip", 400), (b"no gzip", "gzip", 400), (good, "zstd", 400), (good, "br", 415), (bomb, "gzip", 413),
                                   (good + b"rest", "gzip", 400)):
        status, _, answer = mock.request("POST", CHAT, data, {"Content-Encoding": coding, "Content-Type": "application/json"})
        assert status == expected, (coding, status, answer)
        assert json.loads(answer)["error"]["message"]
    assert mock.request("POST", CHAT, body("chat", "hi"), {"Content-Encoding": "identity"})[0] == 200


def test_answers_are_packed_for_those_who_take_it(mock):
    request = {"prompt": "word " * 2000}
    plain = mock.request("POST", "/tokenize", request)
    status, headers, data = mock.request("POST", "/tokenize", request, {"Accept-Encoding": "br;q=1, gzip;q=0.5"})
    assert status == 200 and headers["content-encoding"] == "gzip" and headers["vary"] == "Accept-Encoding"
    assert int(headers["content-length"]) == len(data) < len(plain[2]) / 2
    assert gzip.decompress(data) == plain[2] and "content-encoding" not in plain[1]
    for accepted in ("gzip;q=0", "br", "identity"):
        assert "content-encoding" not in mock.request("POST", "/tokenize", request, {"Accept-Encoding": accepted})[1]
    # Streams and short answers stay as they are.
    assert "content-encoding" not in mock.request("GET", "/livez", headers={"Accept-Encoding": "gzip"})[1]
    status, headers, data = mock.request("POST", CHAT, body("chat", "hi", stream=True), {"Accept-Encoding": "gzip"})
    assert "content-encoding" not in headers and sse(data)[-1] == (None, "[DONE]")
    assert gzip.decompress(mock.request("GET", "/metrics", headers={"Accept-Encoding": "gzip"})[2]).startswith(b"# HELP")


# ---- responses without their client ----

SCRIPT = [{"match": "Kslow", "text": "one two three four five six seven eight nine ten " * 100, "delays_ms": 20},
          {"match": "Kfault", "text": "one two three", "fault": {"kind": "error", "at": 2}}, {"text": "ok"}]


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    import harness
    folder = tmp_path_factory.mktemp("background")
    (folder / "script.jsonl").write_text("\n".join(json.dumps(line) for line in SCRIPT))
    server = harness.Server(folder, "--engine", f"scripted:{folder / 'script.jsonl'}", "--responses-store", "16")
    server.model = MODEL
    yield server
    assert server.stop() == 0


def background(server, text, **more):
    return server.json("POST", PATHS["responses"], body("responses", text, background=True, **more))


def response(server, response_id):
    return server.json("GET", f"/v1/responses/{response_id}")


def test_a_background_response_is_fetched_later(stored):
    begun = background(stored, "hello")
    assert begun["object"] == "response" and begun["background"] is True and begun["store"] is True
    assert begun["status"] in ("in_progress", "completed")
    done = wait_until(lambda: (found := response(stored, begun["id"]))["status"] == "completed" and found, "completed")
    assert done["id"] == begun["id"] and read_responses(done).text == "ok" and done["usage"]["output_tokens"] >= 1
    # It can be gone on from, and forgotten.
    following = stored.json("POST", PATHS["responses"], body("responses", "again", previous_response_id=begun["id"]))
    assert read_responses(following).text == "ok"
    assert stored.json("DELETE", f"/v1/responses/{begun['id']}") == {"id": begun["id"], "object": "response", "deleted": True}
    assert stored.request("GET", f"/v1/responses/{begun['id']}")[0] == 404


def test_a_background_response_can_be_cancelled(stored):
    begun = background(stored, "Kslow")
    assert begun["status"] == "in_progress" and begun["output"] == []
    wait_until(lambda: stored.metric("vllm:num_requests_running") == 1, "running")
    assert response(stored, begun["id"])["status"] == "in_progress"
    assert stored.json("POST", f"/v1/responses/{begun['id']}/cancel")["status"] == "cancelled"
    wait_until(lambda: stored.metric("vllm:num_requests_running") == 0, "ended")
    wait_until(lambda: response(stored, begun["id"])["status"] == "cancelled", "cancelled")
    # A second time changes nothing.
    assert stored.json("POST", f"/v1/responses/{begun['id']}/cancel")["status"] == "cancelled"
    deleted = background(stored, "Kslow")
    assert stored.json("DELETE", f"/v1/responses/{deleted['id']}")["deleted"] is True
    wait_until(lambda: stored.metric("vllm:num_requests_running") == 0, "ended")
    assert stored.request("GET", f"/v1/responses/{deleted['id']}")[0] == 404


def test_a_background_response_that_fails(stored):
    begun = background(stored, "Kfault")
    failed = wait_until(lambda: (found := response(stored, begun["id"]))["status"] == "failed" and found, "failed")
    assert failed["error"]["message"] and failed["error"]["code"]


def test_a_background_stream_goes_on_without_its_reader(stored):
    with stored.connect() as connection:
        connection.send(post(PATHS["responses"], body("responses", "Kslow", background=True, stream=True)))
        connection.read_head()
        response_id = json.loads(connection.read_chunk().split(b"data: ")[1])["response"]["id"]
    assert response(stored, response_id)["status"] == "in_progress"
    running = stored.metric("vllm:generation_tokens_total")
    wait_until(lambda: stored.metric("vllm:generation_tokens_total") > running + 5, "it goes on")
    stored.json("POST", f"/v1/responses/{response_id}/cancel")
    wait_until(lambda: response(stored, response_id)["status"] == "cancelled", "cancelled")
    status, _, data = stored.request("POST", PATHS["responses"], body("responses", "hello", background=True, stream=True))
    assert status == 200 and read_responses_stream(sse(data)).text == "ok"


def test_background_needs_a_store(stored, start):
    status, error = stored.error(body("responses", "hello", background=True, store=False), PATHS["responses"])
    assert status == 400 and error["param"] == "background"
    status, error = stored.error(body("responses", "hello", background=True, temperature=5), PATHS["responses"])
    assert status == 400
    without = start("--engine", "mock:tokens=2")
    status, error = without.error(body("responses", "hello", background=True), PATHS["responses"])
    assert status == 400 and error["code"] == "unsupported_parameter" and error["param"] == "background"


# ---- traces ----

class Collector(http.server.ThreadingHTTPServer):
    """Takes OTLP over HTTP in JSON and keeps the spans."""

    def __init__(self):
        self.spans, self.resources, self.headers = [], [], []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                data = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.headers.append((self.path, dict(self.headers)))
                for resource in data["resourceSpans"]:
                    outer.resources.append(resource["resource"])
                    for scope in resource["scopeSpans"]:
                        outer.spans.extend(scope["spans"])
                self.send_response(200)
                self.send_header("Content-Length", "2")
                self.end_headers()
                self.wfile.write(b"{}")

            def log_message(self, *_):
                pass

        super().__init__(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.serve_forever)
        self.thread.start()

    def close(self):
        self.shutdown()
        self.thread.join()
        self.server_close()


@pytest.fixture
def collector():
    one = Collector()
    yield one
    one.close()


def attributes(span):
    return {one["key"]: next(iter(one["value"].values())) for one in span["attributes"]}


TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def test_traces_reach_a_collector(start, collector):
    server = start("--engine", "mock:tokens=250", "--otlp-endpoint", f"http://127.0.0.1:{collector.server_address[1]}", "--trace-ratio", "0")
    for flags in ("01", "00"):
        status, _, _ = server.request("POST", CHAT, body("chat", "SECRETWORD", stream=True, max_tokens=220, temperature=0.5),
                                      {"traceparent": f"00-{TRACE}-{PARENT}-{flags}", "X-Request-Id": "traced-" + flags})
        assert status == 200
    server.answer(max_tokens=2)  # nobody asks for a trace of it
    wait_until(lambda: server.metric("deepinfer:traces_total", result="sent") == 1, "sent")
    (request,) = [span for span in collector.spans if span["name"] == "llm_request"]
    assert (request["traceId"], request["parentSpanId"], request["kind"]) == (TRACE, PARENT, 2)
    found = attributes(request)
    assert found["gen_ai.operation.name"] == "chat" and found["gen_ai.request.id"] == "traced-01" and found["gen_ai.request.model"] == MODEL
    assert found["gen_ai.usage.output_tokens"] == found["gen_ai.usage.completion_tokens"] == "220" and found["gen_ai.request.temperature"] == 0.5
    assert found["gen_ai.response.finish_reasons"] == {"values": [{"stringValue": "length"}]}
    assert found["gen_ai.latency.e2e"] >= found["gen_ai.latency.time_to_first_token"] > 0
    children = [span for span in collector.spans if span is not request]
    assert {span["name"] for span in children} >= {"http.parse", "tokenize", "queue", "prefill", "decode", "detokenize"}
    now = time.time_ns()
    for span in children:
        assert span["traceId"] == TRACE and span["parentSpanId"] == request["spanId"] and span["kind"] == 1
        assert now - 600e9 < int(request["startTimeUnixNano"]) - 1e6 <= int(span["startTimeUnixNano"]) <= int(span["endTimeUnixNano"]) <= now + 1e9
    assert len({span["spanId"] for span in collector.spans}) == len(collector.spans)
    (decode,) = [span for span in children if span["name"] == "decode"]
    assert len(decode["events"]) == 2
    path, headers = collector.headers[0]
    assert path == "/v1/traces" and headers["Content-Type"] == "application/json"
    assert {one["key"]: one["value"]["stringValue"] for one in collector.resources[0]["attributes"]}["service.name"] == "deepinfer"
    assert "SECRETWORD" not in json.dumps(collector.spans)


def test_traces_by_ratio_and_without_a_collector(start, collector, monkeypatch):
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_address[1]}/base/")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-key=abc,x-other=1")
    monkeypatch.setenv("OTEL_SERVICE_NAME", "my-service")
    server = start("--engine", "mock:tokens=2", "--trace-ratio", "1")
    for text in ("a", "b", "c"):
        server.answer(text, max_tokens=2)
    wait_until(lambda: server.metric("deepinfer:traces_total", result="sent") == 3, "sent")
    assert len({span["traceId"] for span in collector.spans}) == 3
    path, headers = collector.headers[0]
    assert path == "/base/v1/traces" and headers["x-key"] == "abc" and "my-service" in json.dumps(collector.resources)
    monkeypatch.undo()
    alone = start("--engine", "mock:tokens=2", "--trace-ratio", "1", "--otlp-endpoint", "http://127.0.0.1:1")
    assert alone.answer(max_tokens=2)
    wait_until(lambda: alone.metric("deepinfer:traces_total", result="failed") >= 1, "counted")
    assert alone.answer(max_tokens=2)


# ---- files ----

PIXEL = bytes.fromhex("89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6364f80f0001050101272"
                      "7b1420000000049454e44ae426082".replace("\n", ""))
IMAGES = {"a.png": PIXEL, "b.jpg": b"\xff\xd8\xff\xe0" + b"j" * 100, "c.gif": b"GIF89a" + b"g" * 100, "d.webp": b"RIFF\x10\0\0\0WEBP" + b"w" * 100}


def form(file=PIXEL, filename="a.png", boundary="mark", **fields):
    parts = [f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode() for name, value in fields.items()]
    if file is not None:
        parts.append(f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{filename}"\r\nContent-Type: image/png\r\n\r\n'.encode()
                     + file + b"\r\n")
    return b"".join(parts) + f"--{boundary}--\r\n".encode(), {"Content-Type": f"multipart/form-data; boundary={boundary}"}


def upload(server, *arguments, key=None, **fields):
    data, headers = form(*arguments, **{"purpose": "user_data", **fields})
    if key:
        headers["Authorization"] = "Bearer " + key
    status, _, answer = server.request("POST", "/v1/files", data, headers)
    return status, json.loads(answer)


def test_files_come_and_go(start):
    server = start("--engine", "mock", "--files-store", "100KiB", "--api-key", "a:one", "--api-key", "b:two", ready=False)
    wait_until(server.is_ready, "ready")

    def ask(method, path, key="a"):
        status, headers, data = server.request(method, path, headers={"Authorization": "Bearer " + key})
        return status, headers, data

    ids = []
    for name, data in IMAGES.items():
        status, file = upload(server, data, name, key="a", **{"expires_after[anchor]": "created_at", "expires_after[seconds]": "3600"})
        assert status == 200 and file["object"] == "file" and file["bytes"] == len(data) and file["filename"] == name and file["purpose"] == "user_data"
        assert file["id"].startswith("file-api-") and len(file["id"]) == 41 and file["expires_at"] == file["created_at"] + 3600
        ids.append(file["id"])
        assert json.loads(ask("GET", f"/v1/files/{file['id']}")[2]) == file
        status, headers, content = ask("GET", f"/v1/files/{file['id']}/content")
        assert content == data and headers["content-type"] == {"a.png": "image/png", "b.jpg": "image/jpeg", "c.gif": "image/gif", "d.webp": "image/webp"}[name]
    listed = json.loads(ask("GET", "/v1/files?order=asc")[2])
    assert [one["id"] for one in listed["data"]] == ids and listed["has_more"] is False and listed["first_id"] == ids[0]
    page = json.loads(ask("GET", f"/v1/files?limit=2&after={ids[3]}")[2])
    assert [one["id"] for one in page["data"]] == [ids[2], ids[1]] and page["has_more"] is True
    # Another tenant sees nothing of them.
    assert json.loads(ask("GET", "/v1/files", "b")[2])["data"] == []
    for method, path in (("GET", f"/v1/files/{ids[0]}"), ("GET", f"/v1/files/{ids[0]}/content"), ("DELETE", f"/v1/files/{ids[0]}")):
        assert ask(method, path, "b")[0] == 404
    assert json.loads(ask("DELETE", f"/v1/files/{ids[0]}")[2]) == {"id": ids[0], "object": "file", "deleted": True}
    assert ask("GET", f"/v1/files/{ids[0]}")[0] == 404
    status, error = upload(server, PIXEL + b"x" * 101 * 1024, key="a")
    assert status == 413 and error["error"]["code"] == "files_full"


def test_files_that_are_refused(mock, start):
    assert upload(mock, b"no image", "a.png")[0] == 400
    for fields in ({"purpose": "fine-tune"}, {"expires_after[seconds]": "10"}, {"expires_after[seconds]": "x"}, {"expires_after[anchor]": "now"}):
        assert upload(mock, **fields)[0] == 400, fields
    assert upload(mock, None)[0] == 400
    for data, kind in ((b"", "multipart/form-data; boundary=x"), (b"--x\r\n", "multipart/form-data; boundary=x"), (b"--x--", "multipart/form-data"),
                       (b"{}", "application/json"), (b"--x\r\n\r\n\r\n--x", "multipart/form-data; boundary=x")):
        status, _, answer = mock.request("POST", "/v1/files", data, {"Content-Type": kind})
        assert status == 400 and json.loads(answer)["error"]["message"], (data, kind)
    for query in ("limit=0", "limit=1001", "limit=x", "order=up"):
        assert mock.request("GET", "/v1/files?" + query)[0] == 400
    without = start("--engine", "mock", "--files-store", "0")
    assert upload(without)[0] == 501


def test_a_file_may_be_larger_than_other_bodies(mock):
    """The bound of other bodies is 2 MiB here."""
    status, file = upload(mock, PIXEL + b"x" * (5 << 20))
    assert status == 200 and file["bytes"] == len(PIXEL) + (5 << 20)
    assert mock.request("POST", CHAT, b" " * (3 << 20))[0] == 413
    data, headers = form(PIXEL + b"x" * (64 << 20), purpose="user_data", expires="0" * (70 << 10))
    with mock.connect() as connection:
        connection.send(f"POST /v1/files HTTP/1.1\r\nHost: x\r\nContent-Type: {headers['Content-Type']}\r\nContent-Length: {len(data)}\r\n\r\n")
        assert connection.read_response().status == 413
