#!/usr/bin/env python3
"""The front end without a model: `deepinfer serve --engine mock` under `deepinfer bench serve` on the same machine. Processor time of
server and client is read from /proc and counted apart; "per second of the server" divides by it, so the figure holds on a machine
that does other things too.

    front_end.py PROGRAM [--requests N] [--peer PYTHON]

PYTHON: an environment with bench/server/requirements.txt; then llama-cpp-python's server with a trivial model runs the same load in
the same run, and so does that model without the server, which is taken off.
"""
import argparse
import http.client
import json
import os
import pathlib
import socket
import subprocess
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
MODEL = HERE.parents[1] / "models/tiny"
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def resident_mib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return 0


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Server:
    def __init__(self, command, port, path):
        self.port = port
        self.process = subprocess.Popen([str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for _ in range(600):
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
                connection.request("GET", path)
                if connection.getresponse().status == 200:
                    return
            except OSError:
                pass
            assert self.process.poll() is None, command
            time.sleep(0.1)
        raise SystemExit(f"not ready: {command}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def mock(program, settings, *options):
    port = free_port()
    return Server([program, "--log-level", "warn", "serve", MODEL, "--engine", f"mock:{settings}", "--port", port, *options], port, "/readyz")


def load(program, server, requests, concurrency, input_len, output_len, *options):
    with tempfile.NamedTemporaryFile(suffix=".json") as out:
        before = cpu_seconds(server.process.pid)
        begun = time.monotonic()
        subprocess.run([str(part) for part in [
            program, "bench", "serve", "--base-url", f"http://127.0.0.1:{server.port}", "--tokenizer", MODEL, "--num-prompts", requests,
            "--input-len", input_len, "--output-len", output_len, "--max-concurrency", concurrency, "--temperature", 0, "--result-filename",
            out.name, "--metric-percentiles", "50,99", *options]], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        result = json.loads(pathlib.Path(out.name).read_text())
        result["wall_s"] = time.monotonic() - begun
        result["server_cpu_s"] = cpu_seconds(server.process.pid) - before
        return result


def throughput(program, requests):
    print("\n32 tokens in, 32 out, streamed, 128 in flight")
    for name, extra in (("as the API samples (thinking: temperature 1)", None), ("greedy (thinking off)", '{"thinking":{"type":"disabled"}}')):
        with mock(program, "tokens=32", "--max-num-seqs", 256) as server:
            idle = resident_mib(server.process.pid)
            options = ["--probe-livez", 10] + (["--extra-body", extra] if extra else [])
            r = load(program, server, requests, 128, 32, 32, *options)
            done = r["completed"]
            probes = r.get("livez", {})
            print(f"  {name}: {done} requests, {r['failed']} failed")
            print(f"    requests/s                         {r['request_throughput']:9.1f}")
            print(f"    requests per second of the server  {done / r['server_cpu_s']:9.1f}   ({1e3 * r['server_cpu_s'] / done:.3f} ms each)")
            print(f"    client's own time per request, ms  {1e3 * r['client']['cpu_seconds'] / done:9.3f}")
            print(f"    /livez under this load, ms         {probes.get('p50_ms', 0):9.2f} median {probes.get('p99_ms', 0):9.2f} p99")
            print(f"    resident MiB                       {idle:9.1f} idle   {resident_mib(server.process.pid):9.1f} after")


def probes(program, requests):
    """The same question on two connections in turn: one that began with it and has a thread of its own, one that began otherwise and is
    served between the streams."""
    took = {"on the thread of probes": [], "between the streams": []}
    with mock(program, "tokens=32", "--max-num-seqs", 256) as server:
        done = threading.Event()

        def ask(connection, path):
            connection.request("GET", path)
            connection.getresponse().read()

        def probe():
            connections = [http.client.HTTPConnection("127.0.0.1", server.port, timeout=60) for _ in took]
            for connection, path in zip(connections, ("/livez", "/version")):
                ask(connection, path)
            while not done.is_set():
                for connection, times in zip(connections, took.values()):
                    begun = time.perf_counter()
                    ask(connection, "/livez")
                    times.append(1e3 * (time.perf_counter() - begun))
                time.sleep(0.01)

        thread = threading.Thread(target=probe)
        thread.start()
        load(program, server, requests, 128, 32, 32)
        done.set()
        thread.join()
    print("\n/livez under that load, asked from Python, ms")
    for name, times in took.items():
        times.sort()
        print(f"    {name:34} {times[len(times) // 2]:9.2f} median {times[len(times) * 99 // 100]:9.2f} p99   ({len(times)} asked)")


def added_latency(program):
    print("\nOne client at a time, 1,000 tokens in, 2 out; the engine takes no time")
    with mock(program, "tokens=2") as server:
        greedy = ["--extra-body", '{"thinking":{"type":"disabled"}}']
        load(program, server, 50, 1, 1000, 2, *greedy)
        r = load(program, server, 300, 1, 1000, 2, *greedy)
        print(f"    first token after, ms              {r['median_ttft_ms']:9.3f} median {r['p99_ttft_ms']:9.3f} p99")
        print(f"    processor time per request, ms     {1e3 * r['server_cpu_s'] / r['completed']:9.3f}")


def open_streams(program, streams=1000):
    with mock(program, "tokens=200,step_ms=500", "--max-num-seqs", 1024, "--max-num-batched-tokens", 2048, "--max-model-len", 4096) as server:
        idle = resident_mib(server.process.pid)
        sockets = []
        body = json.dumps({"model": "deepseek-v4.1-flash", "stream": True, "max_tokens": 200, "messages": [{"role": "user", "content": "hello"}]})
        request = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode()
        for _ in range(streams):
            one = socket.create_connection(("127.0.0.1", server.port))
            one.sendall(request)
            sockets.append(one)
        for one in sockets:
            one.recv(65536)
        time.sleep(2)
        print(f"\n{streams} open streams, resident MiB         {resident_mib(server.process.pid):9.1f}   ({idle:.1f} idle)")
        for one in sockets:
            one.close()


def peer(program, python, requests):
    with tempfile.TemporaryDirectory() as folder:
        model = pathlib.Path(folder) / "trivial.gguf"
        subprocess.run([python, HERE / "trivial_model.py", model], check=True, stdout=subprocess.DEVNULL)
        alone = subprocess.run([python, HERE / "model_alone.py", model, "200"], check=True, capture_output=True, text=True)
        model_s = float(alone.stdout.split()[-1])
        port = free_port()
        command = [python, "-m", "llama_cpp.server", "--model", model, "--port", port, "--n_ctx", 512, "--n_threads", 1, "--n_threads_batch", 1,
                   "--chat_format", "chatml", "--verbose", "False", "--interrupt_requests", "False"]
        version = subprocess.run([python, "-c", "import llama_cpp; print(llama_cpp.__version__)"], capture_output=True, text=True).stdout.strip()
        print(f"\nllama-cpp-python {version}'s server with a model of one layer of width 32, the same load, {requests} requests")
        with Server(command, port, "/v1/models") as server:
            load(program, server, 20, 4, 32, 32, "--model", "trivial")
            r = load(program, server, requests, 128, 32, 32, "--model", "trivial")
            each = r["server_cpu_s"] / r["completed"]
            print(f"    requests/s                         {r['request_throughput']:9.1f}   ({r['failed']} failed)")
            print(f"    requests per second of the server  {1 / each:9.1f}   ({1e3 * each:.3f} ms each, of which the model alone {1e3 * model_s:.3f})")
            print(f"    without the model                  {1 / max(1e-9, each - model_s):9.1f}")
            print(f"    resident MiB                       {resident_mib(server.process.pid):9.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--peer", help="Python of an environment with llama-cpp-python")
    arguments = parser.parse_args()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f} at the start")
    throughput(arguments.program, arguments.requests)
    probes(arguments.program, arguments.requests)
    added_latency(arguments.program)
    open_streams(arguments.program)
    if arguments.peer:
        peer(arguments.program, arguments.peer, max(200, arguments.requests // 10))


if __name__ == "__main__":
    main()
