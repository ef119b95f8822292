"""Token ids and loss weights of rendered conversations.

Plain ASCII text is cut by one regular expression that equals the three sequential splits of
recipe.md §1.2 on ASCII, and every piece is looked up in a table filled from the real tokenizer, so
that encoding costs a dictionary look-up per piece instead of a BPE run. Other text goes to the
tokenizer itself."""
from __future__ import annotations

import os
import re

from .render import Segment

os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

_SIGNS = r"""!-/:-@\[-`{-~"""
# The look-ahead of `\s+(?!\S)` ends at a digit, because digits are pieces of the first split.
_PIECE = re.compile(
    rf"[0-9]{{1,3}}|[{_SIGNS}][A-Za-z]+|[^\r\nA-Za-z0-9{_SIGNS}]?[A-Za-z]+| ?[{_SIGNS}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?![^\s0-9])|\s+")
_PLAIN = re.compile(r"[\t\n\r -~]*")
_LIMIT = 400_000


class Encoder:
    """Encodes segments with one tokenizer.json; not shared between threads."""

    def __init__(self, tokenizer_json: str) -> None:
        from tokenizers import Tokenizer   # only needed where text is encoded

        self.tokenizer = Tokenizer.from_file(str(tokenizer_json))
        self._special: dict[str, int] = {}
        self._pieces: dict[str, tuple[int, ...]] = {}

    def special(self, spelling: str) -> int:
        """Id of a special token."""
        found = self._special.get(spelling)
        if found is None:
            found = self.tokenizer.token_to_id(spelling)
            if found is None:
                raise ValueError(f"tokenizer.json: no token {spelling!r}")
            self._special[spelling] = found
        return found

    def _reference(self, text: str) -> list[int]:
        """Plain encoding: spellings of special tokens are ordinary text."""
        self.tokenizer.encode_special_tokens = True
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def plain(self, text: str) -> list[int]:
        if not _PLAIN.fullmatch(text) or "<think>" in text or "</think>" in text \
                or "dsml:" in text or "<|" in text:
            return self.plain_slow(text)
        ids: list[int] = []
        pieces = self._pieces
        for piece in _PIECE.findall(text):
            known = pieces.get(piece)
            if known is None:
                known = tuple(self._reference(piece))
                if len(pieces) < _LIMIT:
                    pieces[piece] = known
            ids += known
        return ids

    def plain_slow(self, text: str) -> list[int]:
        """Pieces by the tokenizer's own pre-tokenizer, so that added spellings stay plain."""
        ids: list[int] = []
        for piece, _ in self.tokenizer.pre_tokenizer.pre_tokenize_str(text):
            ids += [t.id for t in self.tokenizer.model.tokenize(piece)]
        return ids

    def encode(self, segments: list[Segment]) -> tuple[list[int], list[int]]:
        """(ids, weights): weight 10 for trained tokens, 1 for the others (tenths)."""
        ids: list[int] = []
        weights: list[int] = []
        for text, special, trained in segments:
            if special:
                ids.append(self.special(text))
                weights.append(10 if trained else 1)
            else:
                part = self.plain(text)
                ids += part
                weights += [10 if trained else 1] * len(part)
        return ids, weights
