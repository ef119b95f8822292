"""The loss of reference answers through a running server: what a part of the model is worth is seen
by starting the server with that part switched off (`deepinfer serve --ablate PART`).

    python3 -m tools.train.eval.loss --base-url http://127.0.0.1:8000/v1 --set eval.jsonl.zst --limit 20

Talks to /v1/render (the token ids of a conversation) and /v1/completions (echo with
log-probabilities) only. Items that think are left out: the template drops the reasoning of an answer
that is history."""
from __future__ import annotations

import argparse
import concurrent.futures
import json
import sys
import urllib.request
from dataclasses import dataclass

from ..data.lines import read_lines
from .__main__ import choose
from .client import MODEL, request_body


@dataclass
class Loss:
    items: int = 0
    tokens: int = 0
    nll: float = 0.0
    right: int = 0      # items whose every answer token is the likeliest one

    def add(self, other: "Loss") -> None:
        self.items += other.items
        self.tokens += other.tokens
        self.nll += other.nll
        self.right += other.right

    def __str__(self) -> str:
        return f"{self.items:>6}{self.right:>7}{self.tokens:>8}{self.nll / max(1, self.tokens):>9.4f}"


def post(url: str, body: dict, timeout: float = 600.0) -> dict:
    request = urllib.request.Request(url, json.dumps(body, ensure_ascii=False).encode(),
                                     {"Content-Type": "application/json"}, method="POST")
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.loads(response.read())


def answer_message(item: dict) -> dict:
    answer = item["answer"]
    message = {"role": "assistant", "content": answer.get("content") or ""}
    if answer.get("tool_calls"):
        message["tool_calls"] = [
            {"id": f"answer_{i}", "type": "function",
             "function": {"name": c["name"],
                          "arguments": json.dumps(c["arguments"], ensure_ascii=False)}}
            for i, c in enumerate(answer["tool_calls"], 1)]
    return message


def item_loss(base: str, item: dict, model: str) -> Loss:
    """The answer's tokens and the end of the turn, given the conversation before them."""
    body = request_body(item, model)
    body.pop("response_format", None)   # a constraint would add to the prompt of one of the two
    prompt = post(base + "/render", body)["token_ids"]
    body["messages"] = body["messages"] + [answer_message(item)]
    whole = post(base + "/render", body)["token_ids"]
    if whole[:len(prompt)] != prompt:
        raise ValueError(f"{item['id']}: the answer changes the prompt before it")
    end = whole.index(1, len(prompt)) + 1   # id 1 ends a turn
    echo = post(base + "/completions", {"model": model, "prompt": whole[:end], "max_tokens": 0,
                                        "echo": True, "logprobs": 1})
    probabilities = echo["choices"][0]["logprobs"]
    chosen = probabilities["token_logprobs"][len(prompt):end]
    best = [max(top.values()) for top in probabilities["top_logprobs"][len(prompt):end]]
    right = all(b - c < 1e-6 for b, c in zip(best, chosen))
    return Loss(1, len(chosen), -sum(chosen), int(right))


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python3 -m tools.train.eval.loss",
                                     description=__doc__.split("\n\n")[0])
    parser.add_argument("--base-url", required=True, help="for example http://127.0.0.1:8000/v1")
    parser.add_argument("--set", required=True, help="evaluation file, .jsonl or .jsonl.zst")
    parser.add_argument("--families", nargs="*", help="only these families")
    parser.add_argument("--limit", type=int, help="at most so many items of each family")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--model", default=MODEL)
    args = parser.parse_args(arguments)
    families = [f for arg in args.families or [] for f in arg.split(",") if f]
    items = choose((i for i in read_lines(args.set) if not i["thinking"]), families, args.limit)
    if not items:
        parser.error(f"{args.set}: no items of the wanted families")
    losses: dict[str, Loss] = {}
    base = args.base_url.rstrip("/")
    with concurrent.futures.ThreadPoolExecutor(args.concurrency) as pool:
        found = pool.map(lambda i: item_loss(base, i, args.model), items)
        for item, loss in zip(items, found):
            losses.setdefault(item["family"], Loss()).add(loss)
    total = Loss()
    print(f"{'family':<18}{'items':>6}{'right':>7}{'tokens':>8}{'nll':>9}")
    for name, loss in losses.items():
        print(f"{name:<18}{loss}")
        total.add(loss)
    print(f"{'all':<18}{total}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
