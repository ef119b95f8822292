"""Endless windows of generated conversations, one stream per window length."""
from random import Random

from data.encode import Encoder
from data.filter import EvalFilter
from data.generate import documents
from data.render import render_training

# Chance that a document of a window is of a long kind: (any document, the first one of a window). Long documents
# begin a window where they can, since a cut one loses its questions.
MIX = (
    (12000, {"long": (0.05, 0.10), "xlong": (0.03, 0.60)}),
    (5000, {"long": (0.08, 0.60)}),
    (0, {}),
)


class Windows:
    """Documents as (ids, flags) for windows of t tokens: `start()` before each window, then iterate.

    `talk` is the chance that a short document is free chat of people (data/everyday.py).
    Conversations that repeat an evaluation prompt are left out.
    """

    def __init__(self, tokenizer, t, seed, talk=0.0):
        self.encoder, self.filter = Encoder(str(tokenizer)), EvalFilter.load()
        self.chances = next(mix for least, mix in MIX if t >= least)
        self.random, self.talk = Random(f"{seed}.mix"), talk
        self.streams = {kind: documents(f"{seed}.{kind}", kind) for kind in ("short", "long", "xlong", "talk")}
        self.first = True

    def start(self):
        self.first = True

    def __iter__(self):
        return self

    def __next__(self):
        x, kind = self.random.random(), "short"
        for name, chance in self.chances.items():
            if x < chance[self.first]:
                kind = name
                break
            x -= chance[self.first]
        self.first = False
        if kind == "short" and self.talk and self.random.random() < self.talk:
            kind = "talk"
        while True:
            conversation = next(self.streams[kind])
            segments = render_training(conversation)
            if not self.filter.repeats(conversation, segments):
                ids, weights = self.encoder.encode(segments)
                return ids, [int(w == 10) for w in weights]
