"""Evaluates a model through a running server.

    python3 -m tools.train.eval --base-url http://127.0.0.1:8000/v1 --set eval.jsonl.zst --out report.json

Talks to /v1/chat/completions only. Needs zstandard and jsonschema (tools/requirements-test.txt)."""
from __future__ import annotations

import argparse
import concurrent.futures
import json
import sys
import time

from ..data.lines import read_lines
from .client import MODEL, Client, draft_counts, request_body
from .report import Family, table
from .score import Score, score


def choose(items, families: list[str] | None, limit: int | None) -> list[dict]:
    """The items of the wanted families, at most `limit` of each."""
    taken: dict[str, int] = {}
    chosen = []
    for item in items:
        family = item["family"]
        if families and family not in families:
            continue
        if limit is not None and taken.get(family, 0) >= limit:
            continue
        taken[family] = taken.get(family, 0) + 1
        chosen.append(item)
    return chosen


def run_item(client: Client, item: dict, model: str, max_tokens: int) -> tuple[dict, Score]:
    response = client.ask(request_body(item, model, max_tokens))
    choices = response.get("choices")
    if not choices:
        response.setdefault("failure", "response without choices")
        return response, score(item, {})._replace(detail=response["failure"])
    return response, score(item, choices[0].get("message") or {})


def entry(item: dict, response: dict, result: Score) -> dict:
    """What the report keeps of a miss or of an answer for a reader."""
    choice = (response.get("choices") or [{}])[0]
    message = choice.get("message") or {}
    users = [m["content"] for m in item["messages"] if m["role"] in ("user", "tool")]
    kept = {"id": item["id"], "family": item["family"], "prompt": users[-1][-400:],
            "expected": item.get("answer"), "got": message.get("content"),
            "finish_reason": choice.get("finish_reason")}
    if message.get("tool_calls"):
        kept["got_tool_calls"] = [c.get("function") for c in message["tool_calls"]]
    if message.get("reasoning_content"):
        kept["got_reasoning"] = message["reasoning_content"]
    if result.detail:
        kept["detail"] = result.detail
    return kept


def evaluate(client: Client, items: list[dict], concurrency: int, model: str = MODEL,
             max_tokens: int = 1024, progress=None) -> dict:
    """The report: counts per family, every miss, every answer without a single right wording."""
    families: dict[str, Family] = {}
    misses, judged = [], []
    begin = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(concurrency) as pool:
        answers = pool.map(lambda i: run_item(client, i, model, max_tokens), items)
        for n, (item, (response, result)) in enumerate(zip(items, answers), 1):
            families.setdefault(item["family"], Family()).add(result, response)
            invalid = result.json_valid is False or result.tool_valid is False
            if result.exact is False or invalid or "failure" in response:
                misses.append(entry(item, response, result))
            if result.exact is None:
                judged.append(entry(item, response, result))
            if progress:
                progress(n, len(items))
    return {"seconds": round(time.monotonic() - begin, 1), "families": families,
            "misses": misses, "judged": judged}


def _progress(n: int, total: int) -> None:
    if sys.stderr.isatty() and (n % 10 == 0 or n == total):
        print(f"\r{n}/{total}", end="\n" if n == total else "", file=sys.stderr, flush=True)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tools.train.eval",
                                     description=__doc__.split("\n\n")[0])
    parser.add_argument("--base-url", required=True, help="for example http://127.0.0.1:8000/v1")
    parser.add_argument("--set", required=True, help="evaluation file, .jsonl or .jsonl.zst")
    parser.add_argument("--families", nargs="*", help="only these families")
    parser.add_argument("--limit", type=int, help="at most so many items of each family")
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--out", help="report file (JSON)")
    args = parser.parse_args(arguments)
    families = [f for arg in args.families or [] for f in arg.split(",") if f]
    items = choose(read_lines(args.set), families, args.limit)
    if not items:
        parser.error(f"{args.set}: no items of the wanted families")
    before = draft_counts(args.base_url)
    report = evaluate(Client(args.base_url), items, args.concurrency, args.model,
                      args.max_tokens, _progress)
    failed = sum(f.failures for f in report["families"].values())
    print(table(report["families"]))
    print(f"{len(items)} items in {report['seconds']} s")
    after = draft_counts(args.base_url)
    drafts = {k: after[k] - before.get(k, 0.0) for k in after}
    if drafts.get("rounds"):
        report["drafts"] = drafts
        print(f"{drafts['accepted'] / drafts['rounds']:.2f} of {drafts['verified'] / drafts['rounds']:.2f}"
              f" drafts accepted per round, {drafts['rounds']:.0f} rounds")
    if args.out:
        report["families"] = {k: f.as_dict() for k, f in report["families"].items()}
        report = {"set": args.set, "model": args.model, **report}
        with open(args.out, "w", encoding="utf-8") as file:
            json.dump(report, file, ensure_ascii=False, indent=1)
            file.write("\n")
    return 1 if failed == len(items) else 0


if __name__ == "__main__":
    sys.exit(main())
