"""Public load generators drive the server without an error. Runs where LOAD_VENV names an environment with
requirements-load.txt (make clients sets it up)."""
import json
import os
import pathlib
import subprocess

import pytest
from harness import model_dir
from wire import MODEL

VENV = os.environ.get("LOAD_VENV")
pytestmark = pytest.mark.skipif(not VENV, reason="LOAD_VENV names no environment with requirements-load.txt")


def tool(name, *arguments, cwd):
    result = subprocess.run([str(pathlib.Path(VENV).resolve() / "bin" / name), *map(str, arguments)], cwd=cwd, capture_output=True,
                            text=True, timeout=900, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, (result.stdout + result.stderr)[-4000:]


@pytest.fixture
def server(start):
    server = start("--engine", "mock:tokens=16", "--max-num-seqs", 64)
    yield server
    assert server.metric("vllm:request_success_total", finished_reason="error") == 0


def test_guidellm(server, tmp_path):
    out = tmp_path / "out.json"
    tool("guidellm", "run", "--backend", f"kind=openai_http,target=http://127.0.0.1:{server.port},model={MODEL}",
         "--profile", "kind=concurrent,streams=4", "--constraint", "kind=max_requests,count=40",
         "--tokenizer", f"kind=huggingface_auto,model={model_dir()}", "--data", "kind=synthetic_text,prompt_tokens=64,output_tokens=16",
         "--output", f"kind=json,path={out}", "--disable-console", cwd=tmp_path)
    totals = json.loads(out.read_text())["benchmarks"][0]["metrics"]["request_totals"]
    assert totals["successful"] == 40 and totals["errored"] == 0 and totals["incomplete"] == 0, totals
    assert server.metric("vllm:request_success_total") >= 40


def test_aiperf(server, tmp_path):
    tool("aiperf", "profile", "-m", MODEL, "--url", f"http://127.0.0.1:{server.port}", "--endpoint-type", "chat", "--streaming",
         "--tokenizer", model_dir(), "--use-server-token-count", "--concurrency", 8, "--request-count", 64,
         "--output-artifact-dir", tmp_path / "out", "--ui", "none", "--synthetic-input-tokens-mean", 64, "--output-tokens-mean", 16,
         cwd=tmp_path)
    found = json.loads((tmp_path / "out" / "profile_export_aiperf.json").read_text())
    assert found["request_count"]["avg"] == 64 and not found.get("error_request_count"), found.get("error_summary")
