"""Free chat through a running server: a transcript of the prompts typed by hand, and questions on known facts in
wordings that training never contains.

    python3 -m tools.train.eval.talk --base-url http://127.0.0.1:8000/v1 [--held 300] [--thinking] [--hand first second]

Answers to hand-typed prompts are for a reader to judge; the others count when they equal the reference."""
from __future__ import annotations

import argparse
from typing import Iterator

from ..data import everyday, handtyped
from ..data.base import Source
from .client import MODEL, Client

SEED = "kept back talk"
HAND = {"first": handtyped.FIRST, "second": handtyped.SECOND}


def held_items(count: int) -> Iterator[tuple[str, str]]:
    """(question, answer) in kept-back wordings; the same every time."""
    s, seen = Source(SEED), set()
    while len(seen) < count:
        s.next_document()
        made = everyday.held(s)
        if made is not None and made["messages"][0]["content"] not in seen:
            seen.add(made["messages"][0]["content"])
            yield made["messages"][0]["content"], made["messages"][1]["content"]


class Talk:
    def __init__(self, client: Client, thinking: bool) -> None:
        self.client, self.thinking = client, thinking

    def reply(self, messages: list[dict]) -> str:
        body = {"model": MODEL, "messages": messages, "temperature": 0, "max_tokens": 400,
                "thinking": {"type": "enabled" if self.thinking else "disabled"}}
        response = self.client.ask(body)
        choices = response.get("choices")
        return choices[0]["message"].get("content") or "" if choices else f"FAILED: {response.get('failure')}"

    def conversation(self, asked: tuple[str, ...]) -> list[tuple[str, str]]:
        messages, said = [], []
        for text in asked:
            messages.append({"role": "user", "content": text})
            answer = self.reply(messages)
            messages.append({"role": "assistant", "content": answer})
            said.append((text, answer))
        return said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--base-url", required=True)
    parser.add_argument("--held", type=int, default=300, help="questions in kept-back wordings")
    parser.add_argument("--hand", nargs="*", default=list(HAND), choices=list(HAND))
    parser.add_argument("--thinking", action="store_true")
    args = parser.parse_args()
    talk = Talk(Client(args.base_url), args.thinking)
    for name in args.hand:
        print(f"# {name}")
        for asked in HAND[name]:
            for text, answer in talk.conversation(asked):
                print(f"> {text}\n{answer}")
    right = 0
    for question, wanted in held_items(args.held):
        got = talk.reply([{"role": "user", "content": question}])
        right += got == wanted
        if got != wanted:
            print(f"? {question}\n  wanted {wanted!r}\n  got    {got!r}")
    print(f"kept-back wordings: {right} of {args.held} answers equal the reference")


if __name__ == "__main__":
    main()
