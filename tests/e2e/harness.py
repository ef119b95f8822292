"""Starts the real program, waits until it is ready, and talks to it, through HTTP libraries or byte by byte."""
import contextlib
import http.client
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
SANITIZER_REPORT = re.compile(r"ERROR: \w+Sanitizer|WARNING: ThreadSanitizer|runtime error:|^.*DI_CHECK.*$", re.M)


def binary():
    path = ROOT / os.environ.get("DEEPINFER_BINARY", "build/release/deepinfer")
    assert path.exists(), f"{path} is not built (tools/build.sh release deepinfer)"
    return path


def sanitized():
    return "asan" in str(binary())


def has_weights(folder):
    return (folder / "config.json").exists() and any(folder.glob("model*.safetensors"))


def model_dir():
    """DEEPINFER_TEST_MODEL, else the bundled model."""
    folder = pathlib.Path(os.environ.get("DEEPINFER_TEST_MODEL", ROOT / "models/tiny"))
    assert has_weights(folder), f"no model in {folder}: config.json and model*.safetensors expected"
    return folder


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(condition, what, seconds=30.0):
    """Asks again until the condition holds; the pause is only there to leave the processor to the program."""
    end = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.01)


class Response:
    """An HTTP response read off a raw connection."""

    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)

    def __repr__(self):
        return f"<{self.status} {self.headers} {self.body[:500]!r}>"


class Connection:
    """One TCP connection to the server, driven byte by byte."""

    def __init__(self, port, timeout=60.0):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout)
        self.buffer = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def send(self, data):
        self.socket.sendall(data.encode() if isinstance(data, str) else data)

    def send_until_refused(self, data, chunk=1 << 16):
        """Sends as much as the other side takes: it may answer and stop reading before the end."""
        view, sent = memoryview(data.encode() if isinstance(data, str) else data), 0
        try:
            while sent < len(view):
                sent += self.socket.send(view[sent:sent + chunk])
        except (BrokenPipeError, ConnectionResetError):
            pass
        return sent

    def reset(self):
        """Closes with a reset instead of an orderly end."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.socket.close()

    def fill(self):
        data = self.socket.recv(1 << 16)
        self.buffer += data
        return bool(data)

    def read_until(self, mark):
        while mark not in self.buffer:
            assert self.fill(), f"connection closed before {mark!r}; so far: {self.buffer[-500:]!r}"
        head, self.buffer = self.buffer.split(mark, 1)
        return head

    def read_exactly(self, size):
        while len(self.buffer) < size:
            assert self.fill(), f"connection closed after {len(self.buffer)} of {size} bytes"
        data, self.buffer = self.buffer[:size], self.buffer[size:]
        return data

    def at_end(self):
        """True when the server closed the connection and nothing unread is left."""
        if self.buffer:
            return False
        try:
            return not self.fill()
        except ConnectionResetError:
            return True

    def read_head(self):
        lines = self.read_until(b"\r\n\r\n").decode("latin-1").split("\r\n")
        version, status, *_ = lines[0].split(" ", 2)
        assert version in ("HTTP/1.1", "HTTP/1.0"), lines[0]
        headers = {}
        for line in lines[1:]:
            name, value = line.split(":", 1)
            headers[name.strip().lower()] = value.strip()
        return int(status), headers

    def read_chunk(self):
        size = int(self.read_until(b"\r\n").split(b";")[0], 16)
        data = self.read_exactly(size)
        assert self.read_exactly(2) == b"\r\n"
        return data

    def read_response(self, head_request=False):
        status, headers = self.read_head()
        while status == 100:
            status, headers = self.read_head()
        if head_request or status in (204, 304):
            return Response(status, headers, b"")
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = b""
            while chunk := self.read_chunk():
                body += chunk
            return Response(status, headers, body)
        return Response(status, headers, self.read_exactly(int(headers["content-length"])))


def post(path, body, headers=(), version="HTTP/1.1"):
    """The bytes of a POST request."""
    if isinstance(body, (dict, list)):
        body = json.dumps(body)
    if isinstance(body, str):
        body = body.encode()
    lines = [f"POST {path} {version}", "Host: localhost", "Content-Type: application/json", f"Content-Length: {len(body)}",
             *headers]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def get(path, method="GET", headers=()):
    return ("\r\n".join([f"{method} {path} HTTP/1.1", "Host: localhost", *headers]) + "\r\n\r\n").encode()


CHAT = "/v1/chat/completions"


class Server:
    """A running `deepinfer serve`. Its log goes to a file, which every failed start shows."""

    def __init__(self, folder, *options, model=None, ready=True):
        self.port = free_port()
        self.log_path = folder / f"server-{self.port}.log"
        command = [binary(), "serve", model or model_dir(), "--host", "127.0.0.1", "--port", str(self.port), *options]
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log,
                                            stderr=subprocess.STDOUT)
        if ready:
            wait_until(self.is_ready, f"ready; log: {self.log()[-2000:]}", 60)
            self.model = self.json("GET", "/v1/models")["data"][0]["id"]

    def log(self):
        return self.log_path.read_text(errors="replace")

    def is_ready(self):
        assert self.process.poll() is None, f"ended with status {self.process.returncode}: {self.log()[-3000:]}"
        try:
            return self.request("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def connect(self, timeout=60.0):
        return Connection(self.port, timeout)

    def exchange(self, data, timeout=60.0):
        with self.connect(timeout) as connection:
            connection.send(data)
            return connection.read_response()

    def request(self, method, path, body=None, headers=None, timeout=120.0):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            sent = {"Content-Type": "application/json"} if data is not None else {}
            connection.request(method, path, data, {**sent, **(headers or {})})
            response = connection.getresponse()
            return response.status, dict((k.lower(), v) for k, v in response.getheaders()), response.read()
        finally:
            connection.close()

    def json(self, method, path, body=None):
        status, _, data = self.request(method, path, body)
        assert status == 200, (status, data[:2000])
        return json.loads(data)

    def body(self, text="What is 3 times 4?", **fields):
        """A greedy chat request without thinking, so that equal requests have equal answers."""
        return {"model": self.model, "messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 24,
                "thinking": {"type": "disabled"}, **fields}

    def endless(self, **fields):
        """A request that goes on for as long as the context allows."""
        return self.body("Tell me a long story.", **{"max_tokens": 20000, "ignore_eos": True, **fields})

    def answer(self, text="What is 3 times 4?", **fields):
        return self.json("POST", CHAT, self.body(text, **fields))["choices"][0]["message"]["content"]

    def error(self, body, path=CHAT):
        """Status and error object of a request that must fail, whose envelope is checked."""
        status, _, data = self.request("POST", path, body)
        return status, check_envelope(data)

    def metric(self, name, **labels):
        """The sum over all series of that name whose labels hold those given; the series must exist."""
        found = [value for series, series_labels, value in self.metrics() if series == name
                 and all(series_labels.get(key) == wanted for key, wanted in labels.items())]
        assert found, f"no series {name} {labels}"
        return sum(found)

    def metrics(self):
        status, _, data = self.request("GET", "/metrics")
        assert status == 200
        return list(parse_metrics(data.decode()))

    def peak_resident_bytes(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmHWM:\s+(\d+) kB", status).group(1)) * 1024

    def stop(self, seconds=60):
        """Ends the server as a service manager would; returns its exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"did not end within {seconds} s of SIGTERM; log: {self.log()[-2000:]}") from None
        report = SANITIZER_REPORT.search(self.log())
        assert not report, self.log()[report.start():][:6000]
        return self.process.returncode


def write_script(folder, script):
    """The file of a server that answers from the lines of `script` instead of a model (docs/server.md, --engine scripted)."""
    path = folder / "script.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in script))
    return path


@contextlib.contextmanager
def scripted_server(script_file, *options):
    """Such a server, ready; also one whose keys keep the plain probes out."""
    server = Server(script_file.parent, "--engine", f"scripted:{script_file}", *options, ready=False)
    try:
        wait_until(server.is_ready, "ready")
        yield server
    except BaseException:
        server.process.kill()  # a test that fails leaves no server behind
        server.process.wait()
        raise
    assert server.stop() == 0


def check_envelope(data):
    """The error object of the OpenAI family: exactly the four members, of the right types."""
    error = json.loads(data)["error"]
    assert set(error) >= {"message", "type", "param", "code"}, error
    assert set(error) <= {"message", "type", "param", "code", "n_prompt_tokens", "n_ctx"}, error
    assert isinstance(error["message"], str) and 0 < len(error["message"]) <= 1000, error
    assert isinstance(error["type"], str), error
    assert error["param"] is None or isinstance(error["param"], str), error
    assert error["code"] is None or isinstance(error["code"], str), error
    assert "/" + "root" not in error["message"] and ".cc" not in error["message"], error
    return error


SAMPLE = re.compile(r'([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})? (\S+)(?: \d+)?')
LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"(?:,|$)')


def parse_metrics(text):
    """(name, labels, value) of each sample; every sample has a TYPE and a HELP line before it."""
    typed, helped = {}, set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in typed, f"TYPE of {name} twice"
            typed[name] = kind
        elif line.startswith("# HELP "):
            helped.add(line.split(" ")[2])
        elif line and not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match, line
            name, labels, value = match.groups()
            family = name if name in typed else re.sub(r"_(bucket|sum|count)$", "", name)
            assert family in typed and family in helped, f"{name}: no TYPE or HELP"
            if typed[family] == "counter":
                assert name.endswith("_total"), f"{name}: a counter whose name does not end in _total"
            yield name, dict(LABEL.findall(labels or "")), float(value)


def sse_events(body):
    """The data of each event of a stream's body; comments left out."""
    text = body.decode("utf-8")
    assert text.endswith("\n\n"), text[-200:]
    events = []
    for block in text[:-2].split("\n\n"):
        lines = [line for line in block.split("\n") if not line.startswith(":")]
        assert all(line.startswith("data: ") for line in lines), block
        if lines:
            events.append("\n".join(line[len("data: "):] for line in lines))
    return events
