"""Engram's compressed vocabulary (model.md §5.10): ids whose text is equal after folding share one
compressed id; compressed ids are given in order of first appearance."""
from __future__ import annotations

import argparse
import json
import re
import unicodedata

_BLANKS = re.compile(r"[ \t\r\n]+")


def _byte_alphabet() -> dict[str, int]:
    """Stand-in character -> byte of the byte-level alphabet (recipe.md §1.2 step 5)."""
    kept = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {chr(b): b for b in kept}
    extra = 0x100
    for b in range(256):
        if b not in table.values():
            table[chr(extra)] = b
            extra += 1
    return table


def _fold(text: str) -> str:
    """NFKC, NFD, no accents, lower case, blanks to one space, trimmed (a lone space stays).
    Accents are all marks, Mn, Mc and Me: only so the published map of the real tokenizer results."""
    folded = unicodedata.normalize("NFD", unicodedata.normalize("NFKC", text))
    folded = "".join(c for c in folded if unicodedata.category(c)[0] != "M").lower()
    folded = _BLANKS.sub(" ", folded)
    return (folded if folded == " " else folded.strip()) or text


def compressed_vocab(tokenizer_json: dict | str) -> tuple[list[int], int]:
    """(compressed id of every token id, number of compressed ids) of a tokenizer.json, given as
    parsed object or as path. The list covers ids 0 .. len(tokenizer) - 1 with added tokens."""
    if isinstance(tokenizer_json, str):
        with open(tokenizer_json, encoding="utf-8") as file:
            tokenizer_json = json.load(file)
    spellings = {i: s for s, i in tokenizer_json["model"]["vocab"].items()}
    spellings.update({t["id"]: t["content"] for t in tokenizer_json["added_tokens"]})
    to_byte = _byte_alphabet()
    numbers: dict[str, int] = {}
    mapping = []
    for token in range(len(spellings)):
        spelling = spellings[token]
        if all(c in to_byte for c in spelling):
            text = bytes(to_byte[c] for c in spelling).decode("utf-8", errors="replace")
        else:
            text = spelling
        key = spelling if "\ufffd" in text else _fold(text)
        mapping.append(numbers.setdefault(key, len(numbers)))
    return mapping, len(numbers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer_json")
    mapping, size = compressed_vocab(parser.parse_args().tokenizer_json)
    print(f"{len(mapping)} token ids, {size} compressed ids")


if __name__ == "__main__":
    main()
