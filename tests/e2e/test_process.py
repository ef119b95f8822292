"""The program as a process: exit statuses, orderly ends, memory, ./run."""
import concurrent.futures
import json
import os
import re
import shutil
import signal
import subprocess

import harness
import pytest
from harness import CHAT, ROOT, binary, free_port, model_dir, post, sse_events, wait_until


def deepinfer(*arguments, timeout=120, **options):
    return subprocess.run([str(binary()), *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL if "input" not in options else None, **options)


def test_help_and_version():
    for arguments in (["--help"], ["serve", "--help"], ["--version"]):
        result = deepinfer(*arguments)
        assert result.returncode == 0 and result.stdout, arguments
    assert "serve" in deepinfer("--help").stdout


def test_wrong_use_is_status_2():
    result = deepinfer("serve", "--prot", "8000")
    assert result.returncode == 2 and "--port" in result.stderr, "the nearest name is suggested"
    assert deepinfer("sevre").returncode == 2
    assert deepinfer("serve", model_dir(), "--port", "many").returncode == 2


def test_bad_model_files_are_status_3(tmp_path):
    result = deepinfer("serve", tmp_path / "nothing", "--port", free_port())
    assert result.returncode == 3 and "nothing" in result.stderr
    broken = tmp_path / "broken"
    shutil.copytree(model_dir(), broken)
    config = json.loads((broken / "config.json").read_text())
    section = config.get("text_config", config)
    section["hidden_size"] += 32
    (broken / "config.json").write_text(json.dumps(config))
    result = deepinfer("serve", broken, "--port", free_port())
    assert result.returncode == 3 and result.stderr.strip(), result
    (broken / "config.json").write_text("{")
    result = deepinfer("serve", broken, "--port", free_port())
    assert result.returncode == 3 and "config.json" in result.stderr


def test_a_cut_weight_file_is_status_3(tmp_path):
    broken = tmp_path / "broken"
    shutil.copytree(model_dir(), broken)
    shard = sorted(broken.glob("model*.safetensors"))[0]
    os.truncate(shard, shard.stat().st_size // 2)
    result = deepinfer("serve", broken, "--port", free_port())
    assert result.returncode == 3 and shard.name in result.stderr, result


def test_a_port_in_use_is_status_5(server):
    result = deepinfer("serve", model_dir(), "--port", server.port)
    assert result.returncode == 5 and str(server.port) in result.stderr


def test_the_port_is_local_by_default(tmp_path):
    port = free_port()
    process = subprocess.Popen([str(binary()), "serve", str(model_dir()), "--port", str(port)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        def listening():
            assert process.poll() is None
            lines = open("/proc/net/tcp").read().splitlines() + open("/proc/net/tcp6").read().splitlines()
            return [line.split()[1] for line in lines if line.split()[1].endswith(f":{port:04X}") and line.split()[3] == "0A"]
        assert [one.split(":")[0] for one in wait_until(listening, "listening", 60)] == ["0100007F"]
    finally:
        process.terminate()
        assert process.wait(60) == 0


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT], ids=["TERM", "INT"])
def test_a_signal_ends_the_server_with_status_0(start, signal_number):
    server = start()
    server.process.send_signal(signal_number)
    assert server.process.wait(60) == 0
    assert server.stop() == 0  # its log is clean


def test_running_requests_finish_before_the_end(start):
    server = start()
    with server.connect() as connection:
        connection.send(post(CHAT, server.body("Tell me a long story.", max_tokens=300, ignore_eos=True, stream=True)))
        connection.read_until(b"data: ")
        server.process.send_signal(signal.SIGTERM)
        rest = b""
        while chunk := connection.fill() and connection.buffer:
            rest, connection.buffer = rest + chunk, b""
        assert b"data: [DONE]" in rest and b'"finish_reason":"length"' in rest
    assert server.process.wait(60) == 0


def test_not_ready_while_draining(start):
    server = start("--drain-delay", "2s")
    with server.connect() as connection:
        connection.send(post(CHAT, server.endless(stream=True)))
        connection.read_until(b"data: ")
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.request("GET", "/readyz")[0] == 503, "not ready any more")
        assert server.request("GET", "/livez")[0] == 200
        assert json.loads(server.request("GET", "/readyz")[2])["status"] == "draining"
    # With its last client gone nothing is left to wait for.
    assert server.process.wait(60) == 0


def test_a_second_signal_ends_it_at_once(start):
    server = start("--drain-delay", "60s")
    with server.connect() as connection:
        connection.send(post(CHAT, server.endless(stream=True)))
        connection.read_until(b"data: ")
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: server.request("GET", "/readyz")[0] == 503, "not ready any more")
        server.process.send_signal(signal.SIGTERM)
        assert server.process.wait(10) in (143, -signal.SIGTERM)


def test_one_question_answered_on_the_command_line():
    first = deepinfer("run", model_dir(), "What is the capital of Austria?")
    assert first.returncode == 0 and first.stdout.strip(), first.stderr


def test_chat_without_a_terminal_prints_only_the_answer():
    result = deepinfer("chat", model_dir(), input="What is the capital of Austria?\n")
    assert result.returncode == 0 and result.stdout.strip() and "\x1b" not in result.stdout


def model_bytes():
    return sum(path.stat().st_size for path in model_dir().glob("model*.safetensors"))


@pytest.mark.release_only
def test_peak_memory_is_below_files_plus_kv_plan_plus_100_mib(start):
    """Under load: sixteen at once, long prompts among them. Weights are mapped as stored, nothing is dequantised whole."""
    options = ("--max-num-seqs", "16", "--max-model-len", "8192")
    server = start(*options)
    kv_bytes = json.loads(deepinfer("model", "inspect", model_dir(), *options, "--json").stdout)["plan"]["kv_total_bytes"]
    assert kv_bytes > 0
    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        prompts = ["word " * (20 if i % 4 else 4000) for i in range(16)]
        assert all(pool.map(lambda prompt: server.json("POST", CHAT, server.body(prompt, max_tokens=64, ignore_eos=True)), prompts))
    peak = server.peak_resident_bytes()
    limit = model_bytes() + kv_bytes + (100 << 20)
    print(f"peak {peak >> 20} MiB, files {model_bytes() >> 20} MiB, KV plan {kv_bytes >> 20} MiB")
    assert peak < limit


@pytest.mark.release_only
def test_run_once_answers_and_leaves_nothing_behind():
    result = subprocess.run([str(ROOT / "run"), "--once", "--model", str(model_dir()), "--prompt", 'Say "hi" and it\'s done.'],
                            capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stdout + result.stderr
    url = re.search(r"curl -N (http://127\.0\.0\.1:\d+)/v1/chat/completions", result.stdout).group(1)
    assert "from openai import OpenAI" in result.stdout and f'base_url="{url}/v1"' in result.stdout
    answer = result.stdout.split("\n\n")[1]
    assert answer.strip()
    port = int(url.rsplit(":", 1)[1])
    with pytest.raises(OSError):
        harness.Connection(port, timeout=2)


@pytest.mark.release_only
def test_what_run_prints_can_be_pasted_and_ctrl_c_ends_it(tmp_path):
    """In the foreground until the interrupt; then no process is left and the status is 0."""
    port = free_port()
    # A shell cannot trap what it was started to ignore, as everything in the background of a script ignores the interrupt.
    command = ["env", "--default-signal=INT", str(ROOT / "run")]
    process = subprocess.Popen([*command, "--port", str(port), "--model", str(model_dir()), "--prompt", "It's 2 o'clock?"],
                               stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True)
    printed = ""
    try:
        while "Ctrl-C stops" not in printed:
            line = process.stdout.readline()
            assert line, printed
            printed += line
        curl = printed[printed.index("curl -N"):printed.index("or in Python")]
        answer = subprocess.run(["bash", "-c", curl], capture_output=True, timeout=120)
        assert sse_events(answer.stdout)[-1] == "[DONE]"
        python = "\n".join(line[2:] for line in printed[printed.index("  from openai"):].splitlines()[:7])
        program = subprocess.run([ROOT / ".venv/bin/python", "-c", python.split("\n\n")[0]], capture_output=True, text=True, timeout=120)
        assert program.returncode == 0 and program.stdout.strip(), program
    finally:
        os.killpg(process.pid, signal.SIGINT)
        rest, _ = process.communicate(timeout=60)
    assert process.returncode == 0, printed + rest
    with pytest.raises(OSError):
        harness.Connection(port, timeout=2)


@pytest.mark.release_only
def test_no_server_survives_a_killed_run():
    port = free_port()
    process = subprocess.Popen([str(ROOT / "run"), "--port", str(port), "--model", str(model_dir())], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, text=True)
    while "Ctrl-C stops" not in (line := process.stdout.readline()):
        assert line
    process.kill()
    process.wait()

    def gone():
        try:
            harness.Connection(port, timeout=2).socket.close()
        except OSError:
            return True
    wait_until(gone, "the server is gone", 30)
