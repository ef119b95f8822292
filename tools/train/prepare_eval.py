"""Evaluation items as token ids, for the evaluation inside the training program.

    python3 -m tools.train.prepare_eval --out items.safetensors [--per-family 30]

Items come from heldout.py (the generator with a seed no training uses) plus recall at 15,000 tokens.
"""
import argparse
import json

import numpy as np
from safetensors.numpy import save_file

from .data import recall
from .data.base import Source
from .data.encode import Encoder
from .data.pool import TOKENIZER
from .data.render import prompt_segments, render_training
from .heldout import SEED, item, items


def recall_15k(count):
    s = Source(f"{SEED} recall_15k")
    for n in range(count):
        s.next_document()
        yield item(recall.document(s, int(4.15 * 15000), 1, single="first"), "recall_15k", n)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--per-family", type=int, default=30)
    parser.add_argument("--tokenizer", default=str(TOKENIZER))
    args = parser.parse_args()
    encoder = Encoder(args.tokenizer)
    ids, start, answer, family, exact = [], [0], [], [], []
    for line in [*items(args.per_family), *recall_15k(args.per_family)]:
        if line["family"] == "chat30":
            tokens, begin = encoder.encode(prompt_segments(line))[0], None
        else:
            tokens, weights = encoder.encode(render_training({**line, "messages": line["messages"] + [line["answer"]]}))
            begin = len(tokens)
            while weights[begin - 1] == 10:
                begin -= 1
        if len(tokens) > 16384:
            continue
        ids += tokens
        start.append(len(ids))
        answer.append(len(tokens) if begin is None else begin)
        family.append(line["family"])
        exact.append(line["match"] == "exact")
    names = sorted(set(family), key=family.index)
    save_file({"ids": np.array(ids, np.uint16), "start": np.array(start, np.int64), "answer": np.array(answer, np.int64),
               "family": np.array([names.index(f) for f in family], np.int64), "exact": np.array(exact, np.uint8)},
              args.out, {"families": json.dumps(names)})
    lengths = np.diff(start)
    for i, name in enumerate(names):
        mine = np.array([f == name for f in family])
        print(f"{name:<14} {mine.sum():4d} items, {lengths[mine].min()}..{lengths[mine].max()} tokens")


if __name__ == "__main__":
    main()
