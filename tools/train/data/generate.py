"""The mix of the families, thinking on every family, and the stream of documents of one seed."""
from __future__ import annotations

from typing import Callable, Iterator

from . import arith, chat, copying, everyday, jsondata, recall, story, subject_story, tools
from .base import Source

Maker = Callable[[Source], dict]

# Share of the documents of a short window, chosen so that the share of the tokens is about:
# story 9 %, storyqa 10, recall 27, arith 10, json 11, tool 18, algo 9, chat 8.
SHORT: tuple[tuple[Maker, float], ...] = (
    (story.write, 0.095), (story.questions, 0.08), (recall.short, 0.10), (arith.document, 0.265),
    (jsondata.document, 0.10), (tools.document, 0.085), (copying.document, 0.18),
    (chat.document, 0.14))

# Free chat of people: about a quarter of the tokens are stories.
TALK: tuple[tuple[Maker, float], ...] = ((everyday.document, 0.88), (subject_story.document, 0.12))

_THOUGHTS = {
    "story": ("The user wants a story.", "The answer is in the story."),
    "storyqa": ("The answer is in the text.", "I look it up in the text."),
    "recall": ("The answer is in the notes.", "I look it up in the text."),
    "json": ("I read the values from the text.", "The user wants data from the text."),
    "algo": ("I follow the instruction.", "The user gives me a simple task."),
    "chat": ("This is a simple question.", "I can answer this directly.")}


def add_thinking(s: Source, conv: dict) -> dict:
    """A short thought before the last answer, so that thinking mode, the default of the server,
    works for every family; a part of the earlier turns is cut off to vary the length."""
    messages = conv["messages"]
    turns = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    if len(turns) > 1:
        messages = messages[:s.r.choice(turns) + 1]
    last = dict(messages[-1])
    last["reasoning_content"] = s.r.choice(_THOUGHTS[conv["family"]])
    return {**conv, "thinking": True, "messages": messages[:-1] + [last]}


def _finish(s: Source, conv: dict, thoughts: float) -> dict:
    if conv["family"] in _THOUGHTS and s.extra(thoughts):
        conv = add_thinking(s, conv)
    if conv["thinking"] and s.extra(0.06):
        conv["effort"] = s.r.choice(("low", "max"))
    return conv


def _weighted(mix) -> Callable[[float], Maker]:
    total = sum(w for _, w in mix)
    bounds, at = [], 0.0
    for maker, w in mix:
        at += w / total
        bounds.append((at, maker))

    def pick(x: float) -> Maker:
        for bound, maker in bounds:
            if x < bound:
                return maker
        return bounds[-1][1]
    return pick


def documents(seed, kind: str = "short", reference: bool = False) -> Iterator[dict]:
    """Endless conversations of one kind (short | long | xlong | talk) from one seed. `reference` turns
    everything off that goes beyond the reference text (for checks against it)."""
    s = Source(seed, reference=reference)
    pick = _weighted({"short": SHORT, "long": ((recall.long, 1.0),),
                      "xlong": ((recall.xlong, 1.0),), "talk": TALK}[kind])
    while True:
        s.next_document()
        yield _finish(s, pick(s.r.random())(s), 0.2 if kind == "talk" else 0.08)
