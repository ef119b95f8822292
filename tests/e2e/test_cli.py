"""Configuration, doctor, completion and bench serve, as commands."""
import json
import os
import subprocess

import pytest
from harness import ROOT, binary, free_port, model_dir
from wire import MODEL


def deepinfer(*arguments, env=None, timeout=120):
    return subprocess.run([str(binary()), *map(str, arguments)], capture_output=True, text=True, timeout=timeout,
                          stdin=subprocess.DEVNULL, env={**os.environ, **(env or {})})


def printed(*arguments, env=None):
    result = deepinfer("config", "print", "--json", *arguments, env=env)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_command_line_over_environment_over_file(tmp_path):
    file = tmp_path / "c.toml"
    file.write_text('port = 9000\nmax_num_seqs = 7\nhost = "127.0.0.2"\n[max]\nqueue-wait = "2m"\n[serve]\nserved-model-name = ["a", "b"]\n')
    shown = printed("--config", file, "--host", "127.0.0.3", env={"DEEPINFER_MAX_NUM_SEQS": "9"})
    assert shown["port"] == {"value": "9000", "origin": "file"}
    assert shown["max-num-seqs"] == {"value": "9", "origin": "environment"}
    assert shown["host"] == {"value": "127.0.0.3", "origin": "command line"}
    assert shown["served-model-name"]["value"] == "a,b" and shown["max-queue-wait"]["value"] == "2m"
    assert shown["max-n"] == {"value": "16", "origin": "built-in"}
    as_json = tmp_path / "c.json"
    as_json.write_text(json.dumps({"port": 9001, "api-key": ["k1:t", "k2"]}))
    shown = printed("--config", as_json)
    assert shown["port"]["value"] == "9001" and shown["api-key"]["value"] == "***"
    assert "9000" in deepinfer("config", "print", "--config", file).stdout


def test_wrong_files_are_status_2(tmp_path):
    for name, text, said in (("a.toml", "prot = 1", "prot"), ("b.toml", "port = ", "b.toml:1"), ("c.json", "[]", "object"),
                             ("d.toml", "port = 'x'", "port")):
        (tmp_path / name).write_text(text)
        result = deepinfer("config", "check", "--config", tmp_path / name)
        assert result.returncode == 2 and said in result.stderr, (name, result)
    assert deepinfer("config", "check", "--config", tmp_path / "none").returncode == 2
    (tmp_path / "good.toml").write_text("port = 9000")
    assert deepinfer("config", "check", "--config", tmp_path / "good.toml").returncode == 0
    schema = json.loads(deepinfer("config", "schema").stdout)
    assert schema["properties"]["port"] and schema["additionalProperties"] is False


def test_the_file_is_what_serve_uses(start, tmp_path):
    (tmp_path / "s.toml").write_text('engine = "mock:tokens=3"\nserved-model-name = "from-file"\n')
    server = start("--config", tmp_path / "s.toml")
    assert server.model == "from-file" and server.json("GET", "/server_info")["config"]["engine"]["origin"] == "file"


def test_flags_of_vllm_are_taken(start):
    server = start("--engine", "mock", "--enable-auto-tool-choice", "--tool-call-parser", "x", "--disable-log-requests", "--api-server-count", "4",
                   "--shutdown-timeout", "3")
    assert "has no effect" in server.log()


@pytest.mark.parametrize("arguments, said", [
    ([], "a command is missing: serve config"),
    (["bench"], "bench: a command is missing: "),
    (["serv"], "unknown command `serv` of deepinfer; did you mean serve?"),
    (["serve", "--prot", "3"], "unknown option --prot of deepinfer serve; did you mean --port?"),
    (["serve", "--prot=3"], "unknown option --prot of deepinfer serve; did you mean --port?"),
    (["chat", "--temp", "0.7"], "unknown option --temp of deepinfer chat; did you mean --temperature?"),
    (["serve", "--ctx-size", "4096"], "unknown option --ctx-size of deepinfer serve; here it is --max-model-len"),
    (["serve", "-ngl", "99"], "unknown option -ngl of deepinfer serve; here it is --device"),
    (["chat", "--ssl-keyfile", "x"], "unknown option --ssl-keyfile of deepinfer chat (--help lists what there is)"),
    (["serve", "models", "more"], "unexpected argument `more` of deepinfer serve"),
    (["serve", "--max-model-len", "10x"], "--max-model-len: expected a number of tokens above 0, such as 32768 or 32K, found `10x`"),
    (["serve", "--max-model-len", "-1"], "found `-1`"),
    (["serve", "--max-queue-size", "0"], "--max-queue-size: expected a number above 0, found `0`"),
    (["serve", "--max-images", "many"], "--max-images: expected 0 or more, found `many`"),
    (["serve", "--tp", "2"], "--tensor-parallel-size: one process runs one replica on one device: expected 1, found `2`"),
    (["run"], "there is no question"),
])
def test_a_line_that_is_not_understood(arguments, said):
    result = deepinfer(*arguments)
    assert result.returncode == 2 and said in result.stderr and result.stdout == "", result
    assert result.stderr.count("\n") == 1, "one line"


def test_the_model_is_named_by_place_option_file_and_environment(tmp_path):
    (tmp_path / "m.toml").write_text('model = "/nowhere"\n')
    for arguments, env in ((["/nowhere"], {}), (["--model", "/nowhere"], {}), (["-m", "/nowhere"], {}), (["--config", tmp_path / "m.toml"], {}),
                           ([], {"DEEPINFER_MODEL": "/nowhere"})):
        result = deepinfer("serve", "--port", 0, *arguments, env=env)
        assert result.returncode == 3 and "/nowhere: expected a model's config.json" in result.stderr, (arguments, result)
        assert printed(*arguments, env=env)["model"]["value"] == "/nowhere"
    assert printed(model_dir(), "--config", tmp_path / "m.toml")["model"]["value"] == str(model_dir())
    assert printed("--max-model-len", "32K")["max-model-len"]["value"] == "32768"
    assert not {"help-all", "trust-remote-code"} & set(printed()), "what has no effect is no setting"


def test_a_question_without_a_model():
    alone = deepinfer("run", "What is 3 times 4?", "--temperature", 0)
    assert alone.returncode == 0 and alone.stdout == deepinfer("run", model_dir(), "What is 3 times 4?", "--temperature", 0).stdout
    wrong = deepinfer("run", "models/no-such-folder", "Hello")
    assert wrong.returncode == 3 and "models/no-such-folder: expected" in wrong.stderr


def test_the_help_is_for_people():
    text = deepinfer("serve", "--help").stdout
    assert "--truncation-rule vl|di=vl" in text and "--max-num-seqs INT=16" in text and "--swa-replay,--no-swa-replay" in text
    assert "Env:" not in text and "POSITIVE" not in text and "{" not in text.split("Inspection")[0]


def test_doctor(tmp_path):
    result = deepinfer("doctor", model_dir(), "--port", free_port(), "--json")
    found = json.loads(result.stdout)
    assert result.returncode == 0 and found["ok"] is True, found
    assert {one["name"] for one in found["findings"]} >= {"processor", "nofile", "memory", "port", "model", "dry run"}
    result = deepinfer("doctor", tmp_path, "--port", free_port())
    assert result.returncode == 1 and "fail  model" in result.stdout and "->" in result.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell):
    result = deepinfer("completion", shell)
    assert result.returncode == 0 and "--max-num-seqs" in result.stdout and "serve" in result.stdout
    if shell == "bash":
        script = result.stdout + "\nCOMP_WORDS=(deepinfer serve --max-num-s); COMP_CWORD=2; _deepinfer; echo \"${COMPREPLY[@]}\""
        assert subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout.strip() == "--max-num-seqs"


def test_bench_serve(start, tmp_path):
    server = start("--engine", "mock:step_ms=1", "--max-num-seqs", 32)
    for backend in ("openai-chat", "openai", "openai-responses", "anthropic"):
        out = tmp_path / f"{backend}.json"
        result = deepinfer("bench", "serve", "--base-url", f"http://127.0.0.1:{server.port}", "--backend", backend, "--model", MODEL,
                           "--tokenizer", ROOT / "models/tiny", "--num-prompts", 20, "--input-len", 32, "--output-len", 16, "--max-concurrency", 8,
                           "--result-filename", out, "--verify-stream", "--save-detailed", "--goodput", "ttft:5000", "--probe-livez", 20)
        assert result.returncode == 0, result.stderr
        lines = result.stdout.splitlines()
        assert lines[0] == "============ Serving Benchmark Result ============" and lines[1].split() == ["Successful", "requests:", "20"]
        assert any(line.startswith("Mean TTFT (ms):") for line in lines)
        data = json.loads(out.read_text())
        assert data["completed"] == 20 and data["failed"] == 0 and data["total_output_tokens"] == 20 * 16
        assert len(data["ttfts"]) == 20 and data["p99_ttft_ms"] >= data["median_ttft_ms"] > 0 and data["request_goodput"] > 0
        assert all(data["input_lens"]) and data["server"]["version"]


def test_bench_model_at_toy_widths():
    result = deepinfer("bench", "model", "--shape", "toy", "--layers", 8, "--experts", 4, "--prefill", 40, "--batches", "1,3",
                       "--contexts", "20,64", "--steps", 2, "--threads", 1)
    assert result.returncode == 0, result.stderr
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in result.stdout.splitlines() if line.startswith(("| prefill", "| decode"))]
    assert [row[:3] for row in rows] == [["prefill", "1", "40"], *(["decode", b, c] for b in "13" for c in ("20", "64"))]
    for row in rows:
        assert all(float(cell) > 0 for cell in (row[3], row[4])), row


def test_bench_long_context():
    result = deepinfer("bench", "long-context", model_dir(), "--contexts", 64, 1000)
    assert result.returncode == 0, result.stderr
    rows = [line for line in result.stdout.splitlines() if line.startswith("| 1000 |")]
    assert len(rows) == 2, result.stdout  # the folder's model, and random weights


def test_bench_serve_without_a_server():
    result = deepinfer("bench", "serve", "--base-url", f"http://127.0.0.1:{free_port()}", "--model", "x", "--num-prompts", 2)
    assert result.returncode == 1
    assert deepinfer("bench", "serve", "--base-url", "https://x").returncode == 2


def run_with_input(text, *arguments):
    return subprocess.run([str(binary()), *map(str, arguments)], input=text, capture_output=True, text=True, timeout=120)


def test_the_codec_on_the_command_line(start):
    server = start("--engine", "mock:tokens=2")
    text = "Hello, wörld! 🤣 <｜User｜>"
    tokens = json.loads(run_with_input(text, "tokenize", model_dir(), "--json").stdout)
    assert tokens["tokens"] == server.json("POST", "/tokenize", {"prompt": text, "add_special_tokens": False})["tokens"]
    plain = run_with_input(text, "tokenize", model_dir())
    assert plain.returncode == 0 and [int(one) for one in plain.stdout.split()] == tokens["tokens"]
    for ids in (plain.stdout, json.dumps(tokens["tokens"])):
        assert run_with_input(ids, "detokenize", model_dir()).stdout == text + "\n"
    request = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
    rendered = run_with_input(json.dumps(request), "render", model_dir(), "--json")
    assert json.loads(rendered.stdout) == server.json("POST", "/v1/render", request)
    assert run_with_input(json.dumps(request), "render", model_dir()).stdout.rstrip("\n") == json.loads(rendered.stdout)["prompt"]
    wrong = run_with_input('{"model":"%s"}' % MODEL, "render", model_dir())
    assert wrong.returncode == 1 and "messages" in wrong.stderr
    assert run_with_input("x", "tokenize", "/nowhere").returncode == 3
    wrong = run_with_input("5, 6x 7", "detokenize", model_dir())
    assert wrong.returncode == 1 and "tokens[1]" in wrong.stderr and "string" in wrong.stderr and wrong.stdout == ""


def test_top(start):
    server = start("--engine", "mock:tokens=50,step_ms=2", "--api-key", "k:t:metrics+inference", "--metrics-auth", ready=False)
    from harness import CHAT, wait_until
    wait_until(server.is_ready, "ready")
    process = subprocess.Popen([str(binary()), "top", "--url", f"http://127.0.0.1:{server.port}", "--api-key", "k", "--json", "--interval", "500ms",
                                "--count", "400"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL, text=True)
    try:
        seen = []
        while not any(one["decode_tokens_per_second"] > 0 and one["ttft_p50_ms"] > 0 for one in seen):
            assert len(seen) < 300
            status, _, _ = server.request("POST", CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 40},
                                          {"Authorization": "Bearer k"})
            assert status == 200
            line = process.stdout.readline()
            assert line, "it ended"
            seen.append(json.loads(line))
        assert seen[-1]["model"] and seen[-1]["resident_mib"] > 1 and seen[-1]["connections"] >= 1
    finally:
        process.terminate()
        process.wait()
    text = deepinfer("top", "--url", f"http://127.0.0.1:{server.port}", "--api-key", "k", "--count", "1", "--interval", "100ms")
    assert text.returncode == 0 and "TTFT p99" in text.stdout and "\x1b" not in text.stdout
    assert deepinfer("top", "--url", f"http://127.0.0.1:{server.port}", "--count", "1").returncode == 1, "no key"
    assert deepinfer("top", "--url", f"http://127.0.0.1:{free_port()}", "--count", "1").returncode == 1
    assert deepinfer("top", "--url", "nothing://").returncode == 2


def test_version_and_all_help():
    shown = deepinfer("version")
    assert shown.returncode == 0 and shown.stdout == deepinfer("--version").stdout
    assert json.loads(deepinfer("version", "--json").stdout)["version"] in shown.stdout
    everything = deepinfer("--help-all")
    assert everything.returncode == 0 and "--max-num-seqs" in everything.stdout and "--otlp-endpoint" in everything.stdout
    for command in ("serve", "run", "chat", "generate", "doctor", "top", "tokenize", "detokenize", "render", "completion", "config", "model", "bench", "version"):
        result = deepinfer(command, "--help")
        assert result.returncode == 0 and command in deepinfer("--help").stdout, command
