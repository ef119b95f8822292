"""Questions in many wordings: a pattern has alternatives in brackets, `(How do|How can) I {what}?`.

One wording in ten is kept back by a checksum of its text before the slots are filled, so that an evaluation can
ask for known facts in wordings that were never trained."""
from __future__ import annotations

import re
import zlib

from .base import Source

_GROUP = re.compile(r"\(([^()]*)\)")
_ASKING = "(Can you tell me|Could you tell me|Do you know|Can you say|Would you tell me|Can you explain to me)"
_TELLING = "(Tell me|Please tell me|I want to know|I would like to know|I wonder|Explain to me|I need to know|Let me know)"


def about(*clauses: str) -> tuple[str, ...]:
    """The indirect questions of a clause: `where {n} lives`."""
    return tuple(f"{_ASKING} {c}?" for c in clauses) + tuple(f"{_TELLING} {c}." for c in clauses)


def held_back(wording: str) -> bool:
    return zlib.crc32(wording.encode()) % 10 == 3


def expand(s: Source, pattern: str) -> str:
    """One choice of every group, inner groups first."""
    while (found := _GROUP.search(pattern)) is not None:
        pattern = pattern[:found.start()] + s.r.choice(found[1].split("|")) + pattern[found.end():]
    return pattern


def ask(s: Source, patterns, held: bool = False, /, **slots: str) -> str | None:
    """A wording with its slots filled; None when no kept-back (or trained) one was found."""
    for _ in range(30):
        wording = expand(s, s.r.choice(patterns))
        if held_back(wording) == held:
            text = wording.format(**slots)
            return text[0].upper() + text[1:]
    return None
