"""The measuring commands beside `bench serve`, and what that can send."""
import csv
import io
import json
import re

import pytest
from harness import ROOT, free_port
from test_process import deepinfer
from wire import MODEL


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    import harness
    server = harness.Server(tmp_path_factory.mktemp("bench"), "--engine", "mock:tokens=8", "--max-num-seqs", 32)
    yield server
    assert server.stop() == 0


def serve_args(server, *more):
    return ("--base-url", f"http://127.0.0.1:{server.port}", "--model", MODEL, "--tokenizer", ROOT / "models/tiny", *more)


def bench(server, folder, *more):
    """The JSON of a run of `bench serve`, which must succeed."""
    out = folder / "result.json"
    result = deepinfer("bench", "serve", *serve_args(server, "--verify-stream", "--save-detailed", "--result-filename", out, *more))
    assert result.returncode == 0, result.stderr + result.stdout
    data = json.loads(out.read_text())
    assert data["failed"] == 0, data["errors"]
    return data


def test_data_sets(loaded, tmp_path):
    talk = [{"conversations": [{"value": "Tell me what a river is, please, in a few words."}, {"value": "A river is water that flows to the sea."}]},
            {"conversations": [{"value": "x"}]}]
    (tmp_path / "talk.json").write_text(json.dumps(talk))
    data = bench(loaded, tmp_path, "--dataset-name", "sharegpt", "--dataset-path", tmp_path / "talk.json", "--num-prompts", 3)
    assert data["completed"] == 3 and len(set(data["input_lens"])) == 1
    (tmp_path / "poem.txt").write_text("".join(f"line {i} of the poem goes on and on\n" for i in range(60)))
    data = bench(loaded, tmp_path, "--dataset-name", "sonnet", "--dataset-path", tmp_path / "poem.txt", "--num-prompts", 3, "--input-len", 200)
    assert data["completed"] == 3 and all(120 < one < 260 for one in data["input_lens"])
    lines = [{"timestamp": 1000 + 150 * i, "input_length": 600, "output_length": 3 + i, "hash_ids": [7, i]} for i in range(3)]
    (tmp_path / "trace.jsonl").write_text("\n".join(map(json.dumps, lines)))
    data = bench(loaded, tmp_path, "--dataset-name", "timed_trace", "--dataset-path", tmp_path / "trace.jsonl")
    assert data["completed"] == 3 and data["output_lens"] == [3, 4, 5], "as many tokens as were recorded"
    assert all(found >= wanted for found, wanted in zip(data["start_times"], (0, .15, .3)))
    data = bench(loaded, tmp_path, "--dataset-name", "timed_trace", "--dataset-path", tmp_path / "trace.jsonl")
    assert data["server"]["hit_tokens"]["device"] > 3 * 384, "equal ids are equal text"
    for name, text in (("sharegpt", "{}"), ("timed_trace", '{"timestamp": 1}'), ("custom", "{}")):
        (tmp_path / "bad").write_text(text)
        result = deepinfer("bench", "serve", *serve_args(loaded, "--dataset-name", name, "--dataset-path", tmp_path / "bad"))
        assert result.returncode == 2 and "bad" in result.stderr, (name, result)


@pytest.mark.parametrize("backend", ["openai-chat", "anthropic"])
def test_conversations_grow(loaded, tmp_path, backend):
    data = bench(loaded, tmp_path, "--backend", backend, "--multi-turn", 3, "--num-prompts", 2, "--input-len", 300, "--output-len", 8,
                 "--turn-len", 40, "--seed", len(backend))
    assert data["completed"] == 6
    for first in (0, 3):
        lens = data["input_lens"][first:first + 3]
        assert lens[0] + 40 <= lens[1] and lens[1] + 40 <= lens[2], "each turn brings the ones before it"
        starts = data["start_times"][first:first + 3]
        ends = [s + e for s, e in zip(starts, data["latencies"][first:first + 3])]
        assert starts[1] >= ends[0] and starts[2] >= ends[1], "a turn waits for the answer"


def test_what_the_result_says_of_both_sides(loaded, tmp_path):
    data = bench(loaded, tmp_path, "--num-prompts", 30, "--input-len", 40, "--output-len", 8, "--max-concurrency", 4, "--request-rate", "inf")
    assert data["request_rate"] == "inf" and data["max_concurrent_requests"] <= 4
    assert re.fullmatch(r"[0-9a-f]{12}", data["server"]["config_hash"]) and json.loads(data["server"]["version"])["version"]
    assert data["client"]["lag_p99_ms"] <= data["client"]["max_lag_ms"] and data["client"]["valid"] == (data["client"]["lag_p99_ms"] <= 5)
    assert len(data["queue_times"]) == 30 and max(data["queue_times"]) > 0, "most of them waited for a place"
    result = deepinfer("bench", "serve", *serve_args(loaded, "--num-prompts", 2, "--input-len", 8, "--output-len", 2, "--save-result", "--result-dir",
                                                     tmp_path / "made", "--label", "night"))
    assert result.returncode == 0, result.stderr
    name, = (tmp_path / "made").iterdir()
    assert re.fullmatch(rf"night-infqps-{re.escape(MODEL)}-\d{{8}}-\d{{6}}\.json", name.name)
    assert deepinfer("bench", "serve", *serve_args(loaded, "--ramp-up-strategy", "linear")).returncode == 2
    data = bench(loaded, tmp_path, "--num-prompts", 12, "--input-len", 8, "--output-len", 2, "--ramp-up-strategy", "linear",
                 "--ramp-up-start-rps", 20, "--ramp-up-end-rps", 200)
    assert data["completed"] == 12 and data["start_times"] == sorted(data["start_times"])


def test_a_sweep(loaded, tmp_path):
    page = tmp_path / "sweep.html"
    result = deepinfer("bench", "sweep", *serve_args(loaded, "--num-prompts", 6, "--output-len", 8, "--grid", "max-concurrency=1,3",
                                                     "--grid", "input-len=16,64", "--html", page))
    assert result.returncode == 0, result.stderr
    rows = list(csv.DictReader(io.StringIO(result.stdout)))
    assert [(row["max-concurrency"], row["input-len"]) for row in rows] == [("1", "16"), ("1", "64"), ("3", "16"), ("3", "64")]
    assert all(row["completed"] == "6" and float(row["output_throughput"]) > 0 for row in rows)

    def beaten(row):
        keys = ("output_throughput", "tokens_per_user")
        return any(all(float(o[k]) >= float(row[k]) for k in keys) and any(float(o[k]) > float(row[k]) for k in keys) for o in rows)
    assert [row["pareto"] == "true" for row in rows] == [not beaten(row) for row in rows]
    text = page.read_text()
    assert text.count("<circle") == 4 and text.count("class=\"best\"") == sum(row["pareto"] == "true" for row in rows)
    assert "http" not in text and "src=" not in text, "nothing from outside"
    for wrong in ("speed=1", "max-concurrency=x", "max-concurrency"):
        assert deepinfer("bench", "sweep", *serve_args(loaded, "--grid", wrong)).returncode == 2


def test_starts():
    result = deepinfer("bench", "startup", ROOT / "models/tiny", "--engine", "mock", "--repetitions", 2, "--json")
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    for kind in ("cold", "warm"):
        at = {name: data[kind][name]["p50_ms"] for name in ("front end", "ready", "first token")}
        assert 0 < at["front end"] <= at["ready"] <= at["first token"] and data[kind]["to its end"]["p50_ms"] > 0
        assert any(name.startswith("stage ") for name in data[kind])
        assert data[kind]["ready"]["p10_ms"] <= data[kind]["ready"]["p99_ms"]
    assert deepinfer("bench", "startup", ROOT / "tests", "--repetitions", 1).returncode == 1


def test_kv():
    result = deepinfer("bench", "kv", "--blocks", 512, "--prompt-blocks", 16, "--window-bytes", "64KiB", "--host-memory", "4MiB", "--json")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert len(rows) == 6 and {row["unit"] for row in rows} == {"tokens", "look-ups", "blocks", "GB"}
    assert all(row["per_second"] > 0 and 0 < row["p50_us"] <= row["p99_us"] for row in rows)
    assert deepinfer("bench", "kv", "--blocks", 4, "--prompt-blocks", 16).returncode == 2


def test_latency(tmp_path):
    out = tmp_path / "latency.json"
    result = deepinfer("bench", "latency", ROOT / "models/tiny", "--engine", "mock:step_ms=2", "--batch-size", 3, "--input-len", 20, "--output-len", 6,
                       "--num-iters-warmup", 1, "--num-iters", 4, "--output-json", out)
    assert result.returncode == 0, result.stderr
    assert re.search(r"^Avg latency: \d+\.\d+ seconds$", result.stdout, re.M) and "99% percentile latency: " in result.stdout
    data = json.loads(out.read_text())
    assert len(data["latencies"]) == 4 and min(data["latencies"]) >= 6 * .002, "six steps of 2 ms each"
    assert abs(data["avg_latency"] - sum(data["latencies"]) / 4) < 1e-9
    assert data["percentiles"]["10"] <= data["percentiles"]["50"] <= data["percentiles"]["99"] <= max(data["latencies"])


def test_throughput(tmp_path):
    common = ("bench", "throughput", ROOT / "models/tiny", "--engine", "mock", "--json")
    result = deepinfer(*common, "--num-prompts", 12, "--input-len", 30, "--output-len", 5, "--n", 2)
    assert result.returncode == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["num_requests"] == 12 and data["output_tokens"] == 12 * 2 * 5 and data["total_num_tokens"] == 12 * (30 + 2 * 5)
    assert abs(data["tokens_per_second"] * data["elapsed_time"] - data["total_num_tokens"]) < 1e-3
    (tmp_path / "prompts.jsonl").write_text('{"prompt": "one two three"}\n\n{"prompt": "four"}\n')
    data = json.loads(deepinfer(*common, "--dataset-path", tmp_path / "prompts.jsonl", "--output-len", 5).stdout)
    assert data["num_requests"] == 2 and data["output_tokens"] == 10


def test_offline_figures_are_checked(tmp_path):
    """An answer that is cut short is no figure, nor is one that never began."""
    common = ("bench", "throughput", ROOT / "models/tiny", "--engine", "mock", "--num-prompts", 2)
    short = deepinfer(*common, "--max-model-len", 40, "--input-len", 30, "--output-len", 20)
    assert short.returncode == 2 and "expected" in short.stderr, short
    assert deepinfer(*common, "--dataset-path", tmp_path / "none").returncode == 2
    (tmp_path / "bad").write_text('{"text": "x"}')
    assert ":1:" in deepinfer(*common, "--dataset-path", tmp_path / "bad").stderr
    assert deepinfer("bench", "latency", ROOT / "tests").returncode == 3


def test_grammar(tmp_path):
    result = deepinfer("bench", "grammar", ROOT / "models/tiny", "--repetitions", 1, "--json")
    assert result.returncode == 0, result.stderr
    rows = json.loads(result.stdout)["rows"]
    assert {row["name"] for row in rows} == {"JSON object", "JSON Schema", "recursive schema", "regex", "1,000 choices", "grammar"}
    assert all(row["tokens"] > 3 and row["compile_ms"] > 0 and 0 < row["mask_p50_us"] <= row["mask_p99_us"] for row in rows)
    cases = tmp_path / "cases.jsonl"
    good = {"id": "small", "schema": {"type": "integer"}, "tests": [{"text": "17", "valid": True}, {"text": "x", "valid": False}]}
    cases.write_text(json.dumps(good) + "\n" + json.dumps({"schema": {"type": "thing"}, "tests": []}))
    data = json.loads(deepinfer("bench", "grammar", ROOT / "models/tiny", "--cases", cases, "--json").stdout)
    assert [row["name"] for row in data["rows"]] == ["small"] and data["refused"] == 1
    for wrong in ({"text": "17.5", "valid": True}, {"text": "17", "valid": False}):
        cases.write_text(json.dumps({**good, "tests": [wrong]}))
        result = deepinfer("bench", "grammar", ROOT / "models/tiny", "--cases", cases)
        assert result.returncode == 1 and "small: " in result.stderr, "a case that does not hold is no figure"


def test_what_is_not_there_says_so():
    for command in (["router"], ["worker", "prefill", "--router", "x"], ["planner"], ["demo", "cluster"], ["simulate", "x.toml"], ["cache", "ls"],
                    ["bench", "router", "--workers", "4"], ["model", "quantize", "x"]):
        result = deepinfer(*command)
        assert result.returncode == 2 and "not in this program" in result.stderr, (command, result)
    for option, value, said in (("--role", "router", "expected all"), ("--kv-tier", "host=1G", "no store"), ("--ep", "2", "expected 1"),
                                ("--cp", "4", "expected 1"), ("--tp", "2", "expected 1")):
        result = deepinfer("serve", option, value, "--port", free_port())
        assert result.returncode == 2 and said in result.stderr, (option, result)
    assert "router" not in deepinfer("--help").stdout
