"""Invented words, names and codes. They never repeat often enough to be learnt by heart, so a model
that answers with them has copied (tiny-model.md §9.1).

One in eight invented words is *reserved* (by a checksum of its lower-case spelling): training text
never contains it, the kept-back evaluation set uses only such words."""
from __future__ import annotations

import zlib
from random import Random

from . import lexicon as lex

_ONSETS = ("b bl br c ch cl cr d dr f fl fr g gl gr h j k kl kr l m n p pl pr qu r s sc sh sk sl sm "
           "sn sp st str sw t th tr v w x y z zh").split() + [""]
_NUCLEI = "a a a e e e i i o o o u u y ai au ea ee ei eo ia ie io oa oi oo ou ua ue".split()
_CODAS = ("b ck d f g k l ll lm lt m mp n nd ng nk nt p r rd rk rm rn rt s sh sk ss st t th v x z "
          "").split() + [""] * 12
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_SMALL = _LETTERS.lower()
_DIGITS = "0123456789"
_KNOWN = frozenset(lex.WORDS) | frozenset(lex.ENGLISH) | frozenset(
    w.lower() for w in (*lex.NAMES, *lex.NAMES_MORE, *lex.OBJECTS, *lex.CITIES, *lex.ANIMALS))
_SYLLABLES = (1, 2, 2, 2, 3, 3, 4)


def is_reserved(word: str) -> bool:
    """True for the words that only the kept-back evaluation set may use."""
    return zlib.crc32(b"held-out " + word.lower().encode()) % 8 == 0


def _draw(r: Random) -> str:
    choice = r.choice
    parts = []
    for _ in range(choice(_SYLLABLES)):
        parts.append(choice(_ONSETS) + choice(_NUCLEI))
    return "".join(parts) + choice(_CODAS)


def word(r: Random, reserved: bool = False) -> str:
    """A lower-case invented word of 3 to 12 letters."""
    while True:
        text = _draw(r)
        if 3 <= len(text) <= 12 and is_reserved(text) == reserved and text not in _KNOWN:
            return text


def name(r: Random, reserved: bool = False) -> str:
    """An invented name such as `Zorvin`."""
    return word(r, reserved).capitalize()


def code(r: Random, reserved: bool = False) -> str:
    """A random string: digits, letters with digits, or words joined by a sign."""
    choice = r.choice
    while True:
        kind = r.randrange(7)
        if kind == 0:
            text = "".join(choice(_DIGITS) for _ in range(r.randint(3, 9)))
        elif kind == 1:
            text = "".join(choice(_LETTERS) for _ in range(r.randint(1, 3))) + "-" \
                + str(r.randint(10, 9999))
        elif kind == 2:
            text = "".join(choice(_SMALL + _DIGITS) for _ in range(r.randint(4, 9)))
        elif kind == 3:
            text = "".join(choice(_LETTERS + _DIGITS) for _ in range(r.randint(4, 8)))
        elif kind == 4:
            text = word(r, reserved) + str(r.randint(1, 999))
        elif kind == 5:
            text = word(r, reserved) + choice("-_.") + word(r, reserved)
        else:
            text = choice(_LETTERS) + str(r.randint(1, 99)) + "-" \
                + "".join(choice(_LETTERS) for _ in range(2)) + str(r.randint(1, 9))
        if is_reserved(text) == reserved:
            return text
