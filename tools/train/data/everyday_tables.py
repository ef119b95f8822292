"""The tables of data/everyday and what asks questions about them."""
from __future__ import annotations

from pathlib import Path

from . import chat
from . import lexicon as lex
from .base import Source
from .chat import Turn
from .lexicon import Thing
from .phrasing import ask

_FOLDER = Path(__file__).parent / "everyday"


def _rows(name: str) -> list[list[str]]:
    lines = (_FOLDER / name).read_text(encoding="utf-8").splitlines()
    return [line.split("|") for line in lines if line]


ANIMALS = _rows("animals.txt")
USES = _rows("uses.txt")
JOBS = _rows("jobs.txt")
PLACES = _rows("places.txt")
COUNTRIES = _rows("countries.txt")
LISTS = [(a, b, c.split(", ")) for a, b, c in _rows("lists.txt")]
WORDS = _rows("words.txt")
SITUATIONS = [(a.split(" / "), b, c) for a, b, c in _rows("situations.txt")]
SAYINGS = [(asks.split(" / "), reply) for asks, reply in
           (line.rsplit("|", 1) for line in (_FOLDER / "sayings.txt").read_text(encoding="utf-8").splitlines())]


def _how_to() -> list[tuple[list[str], tuple[str, ...]]]:
    steps = dict(lex.HOW_TO + chat.HOW_TO_MORE)
    made = []
    for variants, *own in _rows("howto.txt"):
        names = variants.split(" / ")
        made.append((names, tuple(own) or steps[names[0]]))
    return made


HOW_TO = _how_to()


class Asker:
    """The random source of a document and whether it asks in kept-back wordings."""

    def __init__(self, s: Source, held: bool = False) -> None:
        self.s, self.r, self.held = s, s.r, held

    def turn(self, patterns, reply: str, /, **slots: str) -> list[Turn]:
        question = ask(self.s, patterns, self.held, **slots)
        return [(question, reply)] if question else []


THINGS: dict[str, Thing] = {t.name: t for t in lex.KNOWLEDGE + lex.KNOWLEDGE_MORE}
ANIMALS_BY_NAME = {row[0]: row for row in ANIMALS}
