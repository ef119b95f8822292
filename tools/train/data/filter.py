"""Keeps the evaluation prompts out of the training text.

`eval_hashes.bin` holds 8-byte hashes of the evaluation sets (the reference's eval.jsonl.zst and the
kept-back one of heldout.py): first of every rendered prompt with its answer, then of the last user
message of the families whose message alone is the task (sums, lists, records, tool requests, the
hand-typed chat prompts). A generated conversation is dropped when one of its trained answers
repeats an item, or one of its messages repeats such a prompt.

    python -m tools.train.data.filter eval.jsonl.zst heldout.jsonl.zst"""
from __future__ import annotations

import argparse
import hashlib
import struct
from pathlib import Path
from typing import Iterable

from .render import EOS, Segment, render_training

DEFAULT = Path(__file__).parent / "eval_hashes.bin"
# Families of the evaluation set -> families of the generator whose last message is the task.
_PROMPT_FAMILIES = {"arith_think": "arith", "arith_plain": "arith", "json": "json", "algo": "algo",
                    "tool_plain": "tool", "tool_think": "tool", "chat30": "chat"}
_GENERATOR_FAMILIES = frozenset(_PROMPT_FAMILIES.values())


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def item_hashes(segments: list[Segment]) -> list[int]:
    """One hash per trained answer: of everything up to its end."""
    running = hashlib.blake2b(digest_size=8)
    found = []
    for text, special, trained in segments:
        running.update(text.encode())
        if special and trained and text == EOS:
            found.append(int.from_bytes(running.digest(), "little"))
    return found


def is_task(family: str, message: str) -> bool:
    """Whether a last message is a task of its own. Not: questions on an earlier record, questions
    on a word (common knowledge), and the 28 requests on a light, all of which the set contains."""
    if family == "json":
        return not message.startswith("What is the value of ")
    if family.startswith("tool"):
        return "light" not in message and not (
            message.startswith(("What is ", "What are ")) and len(message) < 40
            and "weather" not in message and "file" not in message)
    return family in _PROMPT_FAMILIES


class EvalFilter:
    def __init__(self, items: Iterable[int], prompts: Iterable[int]) -> None:
        self.items = frozenset(items)
        self.prompts = frozenset(prompts)

    @staticmethod
    def load(path: Path | str = DEFAULT) -> "EvalFilter":
        data = Path(path).read_bytes()
        n_items, n_prompts = struct.unpack_from("<II", data)
        if len(data) != 8 + 8 * (n_items + n_prompts):
            raise ValueError(f"{path}: {len(data)} bytes, expected {8 + 8 * (n_items + n_prompts)}")
        values = struct.unpack_from(f"<{n_items + n_prompts}Q", data, 8)
        return EvalFilter(values[:n_items], values[n_items:])

    def save(self, path: Path | str) -> None:
        values = sorted(self.items) + sorted(self.prompts)
        Path(path).write_bytes(struct.pack("<II", len(self.items), len(self.prompts))
                               + struct.pack(f"<{len(values)}Q", *values))

    def repeats(self, conv: dict, segments: list[Segment]) -> bool:
        """True when the conversation must not be trained on."""
        if conv["family"] in _GENERATOR_FAMILIES:
            for message in conv["messages"]:
                if message["role"] == "user" and _hash(message["content"]) in self.prompts:
                    return True
        return not self.items.isdisjoint(item_hashes(segments))


def build(items: Iterable[dict]) -> EvalFilter:
    """From the lines of an evaluation file."""
    whole, prompts = set(), set()
    for item in items:
        conv = {**item, "messages": item["messages"] + [item["answer"]]}
        whole.add(item_hashes(render_training(conv))[-1])
        last = [m["content"] for m in item["messages"] if m["role"] == "user"][-1]
        if is_task(item["family"], last):
            prompts.add(_hash(last))
    return EvalFilter(whole, prompts)


def main() -> None:
    from .lines import read_lines   # needs zstandard

    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("sets", nargs="+", help="evaluation files")
    parser.add_argument("--out", default=str(DEFAULT))
    args = parser.parse_args()
    found = build(item for name in args.sets for item in read_lines(name))
    found.save(args.out)
    print(f"{len(found.items)} items, {len(found.prompts)} prompts")


if __name__ == "__main__":
    main()
