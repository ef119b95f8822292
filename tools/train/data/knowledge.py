"""Sentences about the things of the knowledge tables."""
from __future__ import annotations

from . import lexicon as lex
from .base import Source, capital


def thing(s: Source) -> lex.Thing:
    """A thing of the reference table, or of the wider one in a part of the documents."""
    return s.r.choice(lex.KNOWLEDGE_MORE if s.extra(0.4) else lex.KNOWLEDGE)


def be(t: lex.Thing) -> str:
    return "are" if t.plural else "is"


def core(t: lex.Thing) -> str:
    return f"{capital(t.name)} {be(t)} {t.kind} {t.that}."


def where(s: Source, t: lex.Thing) -> str:
    if t.plural:
        return s.r.choice((f"They are common in places like {t.where}.",
                           f"You can find them in or near {t.where}."))
    return s.r.choice((f"It is common in places like {t.where}.",
                       f"You can find it in or near {t.where}."))


def feature(s: Source, t: lex.Thing) -> str:
    return s.r.choice((f"A typical feature is {t.feature}.",
                       f"One thing to know about it is {t.feature}."))


def define(s: Source, t: lex.Thing) -> str:
    """One to three sentences: what it is, where it is, a feature."""
    r = s.r
    parts = [core(t)]
    if r.random() < 0.67:
        parts.append(where(s, t))
    if r.random() < 0.67:
        parts.append(feature(s, t))
    return " ".join(parts)


def question(s: Source, t: lex.Thing) -> str:
    """`What is a dog?`"""
    return f"What {be(t)} {t.name}?"


def filler(s: Source, n: int = 3) -> str:
    """Definitions of n different things on one line."""
    return " ".join(define(s, t) for t in s.distinct(lambda: thing(s), n))
