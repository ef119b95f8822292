"""Public load generators drive the server without an error. Runs where LOAD_VENV names an environment with
requirements-load.txt, and VLLM_VENV one with requirements-vllm.txt (make clients sets them up)."""
import json
import os
import pathlib
import subprocess

import pytest
from harness import model_dir
from wire import MODEL

VENV = os.environ.get("LOAD_VENV")
VLLM = os.environ.get("VLLM_VENV")
needs_load = pytest.mark.skipif(not VENV, reason="LOAD_VENV names no environment with requirements-load.txt")
needs_vllm = pytest.mark.skipif(not VLLM, reason="VLLM_VENV names no environment with requirements-vllm.txt")


def tool(name, *arguments, cwd, venv=VENV):
    result = subprocess.run([str(pathlib.Path(venv).absolute() / "bin" / name), *map(str, arguments)], cwd=cwd, capture_output=True,
                            text=True, timeout=900, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]
    return result.stdout


@pytest.fixture
def server(start):
    server = start("--engine", "mock:tokens=16", "--max-num-seqs", 64)
    yield server
    assert server.metric("vllm:request_success_total", finished_reason="error") == 0


@needs_load
def test_guidellm(server, tmp_path):
    out = tmp_path / "out.json"
    tool("guidellm", "run", "--backend", f"kind=openai_http,target=http://127.0.0.1:{server.port},model={MODEL}",
         "--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=40",
         "--tokenizer", f"kind=huggingface_auto,model={model_dir()}", "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16",
         "--output", f"kind=json,path={out}", "--disable-console", cwd=tmp_path)
    totals = json.loads(out.read_text())["benchmarks"][0]["metrics"]["request_totals"]
    assert totals["successful"] == 40 and totals["errored"] == 0 and totals["incomplete"] == 0, totals
    assert server.metric("vllm:request_success_total") >= 40


@needs_load
def test_aiperf(server, tmp_path):
    tool("aiperf", "profile", "-m", MODEL, "--url", f"http://127.0.0.1:{server.port}", "--endpoint-type", "chat", "--streaming",
         "--tokenizer", model_dir(), "--use-server-token-count", "--concurrency", 8, "--request-count", 64,
         "--output-artifact-dir", tmp_path / "out", "--ui", "none", "--synthetic-input-tokens-mean", 64, "--output-tokens-mean", 16,
         cwd=tmp_path)
    found = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert found["request_count"]["avg"] == 64 and not found.get("error_request_count"), found.get("error_summary")


# `vllm` itself looks for a device while it builds the options of its other commands; this one needs none.
BENCH_SERVE = """
from vllm.benchmarks.serve import add_cli_args, main
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
main(parser.parse_args())
"""


@needs_vllm
@pytest.mark.parametrize("backend, path", [("openai-chat", "/v1/chat/completions"), ("openai", "/v1/completions")])
def test_vllm_bench_serve(server, tmp_path, backend, path):
    said = tool("python", "-c", BENCH_SERVE, "--backend", backend, "--base-url", f"http://127.0.0.1:{server.port}", "--endpoint", path,
                "--model", MODEL, "--tokenizer", model_dir(), "--dataset-name", "random", "--random-input-len", 64, "--random-output-len", 16,
                "--num-prompts", 40, "--max-concurrency", 4, "--ignore-eos", "--percentile-metrics", "ttft,tpot,itl,e2el", "--save-result",
                "--result-filename", tmp_path / "out.json", cwd=tmp_path, venv=VLLM)
    found = json.loads((tmp_path / "out.json").read_text())
    assert found["completed"] == 40 and found["failed"] == 0, said
    assert found["total_output_tokens"] == 40 * 16 == server.metric("vllm:generation_tokens_total")
    assert 0 < found["median_ttft_ms"] < found["median_e2el_ms"] and found["median_itl_ms"] > 0
    # It reads what drafts gave from /metrics, and leaves the part out when there were none.
    assert ("Speculative Decoding" in said) == (server.metric("vllm:spec_decode_num_drafts_total") > 0)
