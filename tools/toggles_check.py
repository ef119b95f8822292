#!/usr/bin/env python3
"""Runs the same greedy and seeded requests through `deepinfer generate` with each feature that may not change a token switched off
(design.md §4, item 1), and says for each whether every answer stayed the same.

    tools/toggles_check.py build/release/deepinfer [--device cuda:0] [--requests 120] [--start COMMAND…]

Replay and truncated prefill, which may change results, are off in all runs. Ends with status 1 if an answer differs."""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALWAYS = ["--no-swa-replay", "--prefill-truncation", "off"]
# What is changed against the first run.
TOGGLES: dict[str, list[str]] = {
    "all features on, 32 requests at once": ["--max-num-seqs", "32"],
    "16 at once": [],
    "one request at a time": ["--max-num-seqs", "1", "--concurrency", "1"],
    "prompts in pieces of 32 rows": ["--max-num-batched-tokens", "32"],
    "no prefix cache": ["--prefix-cache", "off"],
    "synchronous scheduling": ["--async-scheduling", "off"],
    "no drafts": ["--spec", "off"],
    "always five drafts": ["--spec", "5"],
    "little memory, so that requests are computed again": ["--kv-memory", "12MiB"],
}


def requests(count: int, max_tokens: int) -> list[dict]:
    """Conversations that share beginnings of several lengths, some of two turns; some with a schema or penalties."""
    lines = (ROOT / "bench/device/prompts.txt").read_text(encoding="utf-8").splitlines()
    shared = " ".join(lines[:60])
    out = []
    for i in range(count):
        prompt = lines[i % len(lines)]
        messages = [{"role": "user", "content": (shared[: 400 * (i % 4)] + " " + prompt).strip()}]
        if i % 3 == 0:
            messages += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": lines[-1 - i % 50]}]
        body = {"model": "deepinfer-tiny", "messages": messages, "temperature": 0, "max_tokens": max_tokens,
                "thinking": {"type": "enabled" if i % 5 == 0 else "disabled"}}
        if i % 5 == 0:  # thinking samples at the recipe's temperature: reproducible with a seed
            body["seed"] = i
        if i % 7 == 0:
            body["response_format"] = {"type": "json_schema", "json_schema": {"name": "answer", "schema": {
                "type": "object", "properties": {"name": {"type": "string"}, "count": {"type": "integer"}},
                "required": ["name", "count"], "additionalProperties": False}}}
        if i % 11 == 0:
            body["frequency_penalty"] = 0.5
        out.append({"custom_id": f"r-{i}", "method": "POST", "url": "/v1/chat/completions", "body": body})
    return out


def answers(path: Path) -> dict[str, str]:
    out = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        result = json.loads(line)
        choices = ((result.get("response") or {}).get("body") or {}).get("choices")
        # An error is an answer too: it may not come and go with a feature.
        out[result["custom_id"]] = json.dumps(
            [[c["message"].get("content"), c["message"].get("reasoning_content"), c["finish_reason"]] for c in choices]
            if choices else result, ensure_ascii=False, sort_keys=True)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("program", help="deepinfer")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default=str(ROOT / "models/tiny"))
    parser.add_argument("--requests", type=int, default=120)
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--start", nargs=argparse.REMAINDER, default=[], help="what stands before the program")
    args = parser.parse_args()
    wanted = requests(args.requests, args.max_tokens)
    different = 0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "requests.jsonl"
        source.write_text("".join(json.dumps(r) + "\n" for r in wanted), encoding="utf-8")
        first: dict[str, str] = {}
        for n, (name, options) in enumerate(TOGGLES.items()):
            target = Path(folder) / f"{n}.jsonl"
            begin = time.monotonic()
            given = [*args.start, args.program, "generate", str(source), str(target), args.model, "--device", args.device]
            run = subprocess.run([*given, *ALWAYS, *options], capture_output=True, text=True, check=False)
            if run.returncode != 0:
                print(f"{name}: ended with status {run.returncode}: {run.stderr.strip()[-400:]}")
                different += 1
                continue
            got = answers(target)
            first = first or got
            same = sum(got.get(k) == v for k, v in first.items())
            good = sum(v.startswith("[[") for v in got.values())
            print(f"{name}: {same} of {len(first)} answers the same, {good} of {len(wanted)} without an error, "
                  f"{time.monotonic() - begin:.1f} s", flush=True)
            different += same != len(first) or len(got) != len(wanted) or good != len(wanted)
            for k, v in first.items():
                if got.get(k) != v:
                    print(f"  {k}\n    {v[:200]}\n    {str(got.get(k))[:200]}")
                    break
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
