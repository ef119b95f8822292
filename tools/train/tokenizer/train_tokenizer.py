"""Trains the byte-level BPE tokenizer of the bundled model on generated text (tiny-model.md §3).

    python -m tools.train.tokenizer.train_tokenizer --out models/tiny/tokenizer.json

Ids: 0 BOS, 1 EOS, 2 pad, then the 256 byte symbols, then the merges, then 64 added tokens that end
the vocabulary of 4,096. Digits stay single tokens: the pre-tokenizer would allow merges of up to
three, but a small model copies, sorts and adds digit by digit far better, and the thousand entries
serve words instead."""
from __future__ import annotations

import argparse
import itertools
import json
import re

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from ..data import lexicon as lex
from ..data import render
from ..data.base import Source
from ..data.generate import documents

VOCABULARY = 4096

# recipe.md §1.2: the three sequential splits.
SPLITS = (
    r"\p{N}{1,3}",
    "[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+",
    "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+"
    "| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+")

# Spelling, special flag and normalized flag of recipe.md §1.3, in id order (V4.1 spellings).
BEGINNING = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>")
ADDED: tuple[tuple[str, bool, bool], ...] = (
    *((f"<｜place▁holder▁no▁{n}｜>", True, False) for n in range(7)),
    ("<｜System｜>", True, False),
    *((s, False, True) for s in (
        "<｜fim▁hole｜>", "<｜fim▁begin｜>", "<｜fim▁end｜>", "<｜User｜>", "<｜Assistant｜>", "<|EOT|>",
        "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>", "<｜tool▁call▁begin｜>",
        "<｜tool▁call▁end｜>", "<｜tool▁outputs▁begin｜>", "<｜tool▁outputs▁end｜>",
        "<｜tool▁output▁begin｜>", "<｜tool▁output▁end｜>", "<｜tool▁sep｜>", "<think>", "</think>",
        "｜DSML｜", "<｜begin▁sys｜>", "<｜end▁sys｜>", "<｜latest_reminder｜>", "<｜action｜>",
        "<｜query｜>", "<｜authority｜>", "<｜domain｜>", "<｜task｜>", "<｜political｜>", "<｜entity｜>",
        "<｜title｜>", "<｜safety｜>", "<｜answer｜>", "<｜search｜>", "<dsml:", "</dsml:",
        "<｜search▁begin｜>", "<｜search▁end｜>", "<｜extracted_url｜>", "<｜read_url｜>")),
    *((s, True, False) for s in ("<｜end_of_query｜>", "<｜rl_image_pad｜>", "<｜rl_image_start｜>")),
    *((s, False, False) for s in ("<｜deepseek_image｜>", "<｜/table>｜", "<｜table｜>", "<｜/td｜>",
                                  "<｜td｜>", "<｜/tr｜>", "<｜tr｜>")),
    *((s, True, False) for s in ("<｜/polygon｜>", "<｜polygon｜>", "<｜/point｜>", "<｜point｜>",
                                 "<｜/box｜>", "<｜box｜>", "<｜/ref｜>", "<｜ref｜>")))
assert len(ADDED) == 64

_DIGITS = re.compile(r"[0-9]+")


def pre_tokenizer() -> pre_tokenizers.PreTokenizer:
    return pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(s), "isolated") for s in SPLITS]
        + [pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def sample(seed: int, short: int, long: int):
    """Plain text of generated conversations (special tokens dropped), long template texts once in
    twenty documents, and word lists so that words outside the stories are cheap too."""
    template = "You have access to a set of tools"
    with_tools = 0
    for kind, n in (("short", short), ("long", long)):
        for conv in itertools.islice(documents(f"{seed} {kind}", kind), n):
            texts = [s.text for s in render.render_training(conv) if not s.special]
            if conv.get("tools"):
                with_tools += 1
                if with_tools % 20:
                    texts = [t for t in texts if template not in t]
            for text in texts:
                yield _DIGITS.sub("0", text)
    s = Source(seed)
    for _ in range(60):
        words = [*lex.ENGLISH, *lex.NAMES_MORE]
        s.r.shuffle(words)
        yield " ".join(words)
    for _ in range(20000):
        yield " ".join((s.pseudo_word(), s.pseudo_word().capitalize()))


def train(seed: int, short: int, long: int) -> dict:
    """The finished tokenizer.json as an object."""
    added = [t for t, _, _ in ADDED]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer()
    tokenizer.decoder = decoders.ByteLevel(add_prefix_space=True, trim_offsets=True, use_regex=True)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(added), special_tokens=list(BEGINNING), show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(sample(seed, short, long), trainer)
    raw = json.loads(tokenizer.to_str())
    vocab = raw["model"]["vocab"]
    assert len(vocab) == VOCABULARY - len(added), len(vocab)
    assert not [t for t in vocab if len(t) > 1 and t.isdigit()]
    flags = [(t, True, False) for t in BEGINNING] + list(ADDED)
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": i if i < 3 else VOCABULARY - len(added) + i - 3, "content": text,
             "single_word": False, "lstrip": False, "rstrip": False, "normalized": normalized,
             "special": special}
            for i, (text, special, normalized) in enumerate(flags)],
        "normalizer": {"type": "Sequence", "normalizers": []},
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            *({"type": "Split", "pattern": {"Regex": s}, "behavior": "Isolated", "invert": False}
              for s in SPLITS),
            {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
             "use_regex": False}]},
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False,
                           "use_regex": True},
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": dict(sorted(vocab.items(), key=lambda item: item[1])),
            "merges": [m if isinstance(m, str) else " ".join(m) for m in raw["model"]["merges"]]}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", default="models/tiny/tokenizer.json")
    parser.add_argument("--seed", type=int, default=4096)
    parser.add_argument("--short", type=int, default=20000, help="short conversations")
    parser.add_argument("--long", type=int, default=150, help="long conversations")
    args = parser.parse_args()
    result = train(args.seed, args.short, args.long)
    with open(args.out, "w", encoding="utf-8") as file:
        json.dump(result, file, ensure_ascii=False, indent=1)
        file.write("\n")


if __name__ == "__main__":
    main()
