"""Evaluation items as requests for tools that read files of them: `deepinfer model calibrate`,
`deepinfer bench speculation`, `deepinfer generate`.

    python3 -m tools.train.eval.requests --out requests.jsonl [--set eval.jsonl.zst] [--families chat algo] [--limit 60]

Batch lines: `custom_id` names the family, `body` is a chat request. Without --set the items are those of
tools.train.heldout, which are made here and are the same every time. `--families short` is every family
but those of thousands of tokens."""
from __future__ import annotations

import argparse
from typing import Iterable, Iterator

from ..data.lines import read_lines, write_lines
from ..heldout import items as heldout_items
from .__main__ import choose
from .client import request_body

LONG = ("recall_1k", "recall_2k", "recall_4k", "recall_8k")


def requests(items: Iterable[dict], families: list[str] | None, limit: int | None, skip: int = 0) -> Iterator[dict]:
    """`skip`: so many items of each family are left out before the first."""
    chosen = choose(items, None if families == ["short"] else families, None if limit is None else limit + skip)
    seen: dict[str, int] = {}
    for item in chosen:
        family = item["family"]
        seen[family] = seen.get(family, 0) + 1
        if seen[family] <= skip or (families == ["short"] and family in LONG):
            continue
        body = request_body(item)
        for field in ("model", "temperature", "max_tokens"):  # the tool's own
            body.pop(field, None)
        yield {"custom_id": f"{family}-{seen[family] - 1}", "method": "POST", "url": "/v1/chat/completions",
               "body": body}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--out", required=True, help=".jsonl or .jsonl.zst")
    parser.add_argument("--set", help="evaluation items; without it those of tools.train.heldout")
    parser.add_argument("--families", nargs="+", help="only these; `short`: all with short prompts")
    parser.add_argument("--limit", type=int, help="items of each family")
    parser.add_argument("--skip", type=int, default=0, help="items of each family left out before them")
    args = parser.parse_args()
    count = (args.limit + args.skip) if args.limit is not None else 300
    items = read_lines(args.set) if args.set else heldout_items(count)
    write_lines(args.out, requests(items, args.families, args.limit, args.skip))


if __name__ == "__main__":
    main()
