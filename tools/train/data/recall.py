"""Notes with facts at random places between filler, and questions on them (family `recall`).

The keys of the facts of one document are unique; an answer repeats its fact."""
from __future__ import annotations

from . import knowledge
from . import lexicon as lex
from .base import UNKNOWN, Source, answer, article, conversation, user
from .story import fragment

HEADS = ("Notes:\n", "Remember these notes.\n\n", "Here are some facts:\n\n",
         "Read the following text.\n\n")
_MORE_HEADS = ("", "Text:\n", "Please remember this:\n\n", "Here is a long text.\n\n",
               "Keep this in mind.\n\n", "Facts:\n")
ACKNOWLEDGE = ("I have read it. What would you like to know?", "Done. Ask me anything about it.")
_ROOMS = ("drawer",)
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September",
           "October", "November", "December")
Fact = tuple[str, str]   # the question and the sentence that answers it


def _code(s: Source, key: str) -> Fact:
    value = s.code() if s.new() else str(s.r.randint(1000, 9999))
    return f"What is the code of {key}?", f"The code of {key} is {value}."


def _lives(s: Source, key: str) -> Fact:
    return f"Where does {key} live?", f"{key} lives in {s.city()}."


def _password(s: Source, key: str) -> Fact:
    value = s.code() if s.new() and s.chance(0.4) else s.word()
    return f"What is the password for the {key}?", f"The password for the {key} is {value}."


def _box(s: Source, key: str) -> Fact:
    return f"What is in box {key}?", f"Box {key} contains {article(s.object())}."


def _bought(s: Source, key: str) -> Fact:
    n = s.r.randint(2, 9999) if s.new() and s.chance(0.4) else s.r.randint(2, 98)
    return f"What did {key} buy?", f"{key} bought {n} {s.fruit()}."


def _meeting(s: Source, key: str) -> Fact:
    return (f"When does {key} have a meeting?",
            f"{key} has a meeting on {s.r.choice(lex.DAYS)} at {s.r.randint(1, 12)} o'clock.")


def _keeps(s: Source, key: str) -> Fact:
    return (f"What does {key} keep in the drawer?",
            f"{key} keeps {article(s.color() + ' ' + s.object())} in the drawer.")


def _phone(s: Source, key: str) -> Fact:
    number = "-".join(str(s.r.randint(100, 999)) for _ in range(s.r.randint(2, 3)))
    return f"What is the phone number of {key}?", f"The phone number of {key} is {number}."


def _birthday(s: Source, key: str) -> Fact:
    return (f"When is the birthday of {key}?",
            f"The birthday of {key} is on {s.r.randint(1, 28)} {s.r.choice(_MONTHS)}.")


def _works(s: Source, key: str) -> Fact:
    return f"What is the job of {key}?", f"The job of {key} is {s.job()}."


def _color(s: Source, key: str) -> Fact:
    return f"What is the favorite color of {key}?", f"The favorite color of {key} is {s.color()}."


def _train(s: Source, key: str) -> Fact:
    return (f"When does the train to {key} leave?",
            f"The train to {key} leaves at {s.r.randint(5, 23)}:{s.r.randint(0, 59):02d}.")


def _animal(s: Source, key: str) -> Fact:
    animal = s.animal()
    return f"What animal is {key}?", f"The animal called {key} is {article(animal)}."


def _secret(s: Source, key: str) -> Fact:
    value = s.code() if s.chance(0.5) else s.pseudo_word()
    return f"What is the secret of {key}?", f"The secret of {key} is {value}."


def _box_key(s: Source) -> str:
    return s.r.choice("ABCDEFGHIJKLMN") + str(s.r.randint(10, 99))


_KINDS = ((_code, Source.name), (_lives, Source.name), (_password, Source.place), (_box, _box_key),
          (_bought, Source.name), (_meeting, Source.name), (_keeps, Source.name))
_MORE_KINDS = ((_phone, Source.name), (_birthday, Source.name), (_works, Source.name),
               (_color, Source.name), (_train, Source.city), (_animal, Source.name),
               (_secret, Source.name))


class Notes:
    """Lines of notes of about `characters` length and the facts in their order."""

    def __init__(self, s: Source, characters: int) -> None:
        r = s.r
        self.lines: list[str] = []
        self.facts: list[Fact] = []
        seen: set[str] = set()
        size = 0
        density = 0.53 if s.reference else r.choice((0.3, 0.53, 0.53, 0.53, 0.7))
        while size < characters or not self.facts:
            x = r.random()
            if x < density:
                fact = self._fact(s)
                if fact is None or fact[0] in seen:
                    size += 1   # a short text may run out of keys
                    continue
                seen.add(fact[0])
                self.facts.append(fact)
                line = fact[1]
            elif x < (1 + density) / 2:
                line = fragment(s)
            else:
                line = knowledge.filler(s)
            self.lines.append(line)
            size += len(line) + 1
        self.seen = seen

    @staticmethod
    def _fact(s: Source) -> Fact | None:
        kinds = _MORE_KINDS if s.extra(0.15) else _KINDS
        make, key = s.r.choice(kinds)
        return make(s, key(s))

    def unknown(self, s: Source) -> Fact:
        """A question of a known form on a key that has no such fact."""
        while True:
            question, _ = self._fact(s)
            if question not in self.seen:
                return question, UNKNOWN

    def choose(self, s: Source, n: int) -> list[Fact]:
        """n questions; the first, the last and a middle fact come up more often than by chance."""
        r = s.r
        facts = self.facts
        picked = r.sample(facts, min(n, len(facts)))
        if not s.reference and len(picked) > 2:
            for wanted in (facts[0], facts[-1], facts[len(facts) // 2]):
                if r.random() < 0.4 and wanted not in picked:
                    picked[r.randrange(len(picked))] = wanted
            picked = list(dict.fromkeys(picked))
        return picked


def _head_and_text(s: Source, notes: Notes) -> str:
    r = s.r
    head = r.choice(_MORE_HEADS if s.extra(0.1) else HEADS)
    return head + ("\n" if r.random() < 1 / 3 else " ").join(notes.lines)


def document(s: Source, characters: int, questions: int, single: str | None = None) -> dict:
    """Notes and questions. `single` = first | middle | last asks only that fact (evaluation)."""
    r = s.r
    notes = Notes(s, characters)
    if single:
        at = {"first": 0, "middle": len(notes.facts) // 2, "last": -1}[single]
        asked = [(q, a, True) for q, a in [notes.facts[at]]]
    else:
        asked = [(q, a, True) for q, a in notes.choose(s, questions)]
        for _ in range(len(asked) // 5 + (r.random() < 0.5)):
            t = knowledge.thing(s)
            asked.insert(r.randint(0, len(asked)),
                         (knowledge.question(s, t), knowledge.define(s, t), False))
        if s.extra(0.25):
            q, a = notes.unknown(s)
            asked.insert(r.randint(0, len(asked)), (q, a, True))
    text = _head_and_text(s, notes)
    if r.random() < 0.3:
        messages = [user(text), answer(r.choice(ACKNOWLEDGE), exact=False), user(asked[0][0])]
    else:
        messages = [user(text + "\n\n" + asked[0][0])]
    messages.append(answer(asked[0][1], asked[0][2]))
    for question, reply, exact in asked[1:]:
        messages += [user(question), answer(reply, exact)]
    return conversation("recall", s.system(messages))


def short(s: Source) -> dict:
    """60 to 1,700 tokens of notes, 2 to 13 questions."""
    characters = int(4.7 * 60 * (1700 / 60) ** s.r.random())
    return document(s, characters, s.r.randint(2, 5 if characters < 1500 else 13))


def long(s: Source) -> dict:
    """1,000 to 5,300 tokens of notes, 6 to 19 questions."""
    return document(s, int(4.7 * s.r.randint(900, 5300)), s.r.randint(6, 19))


def xlong(s: Source) -> dict:
    """6,000 to 14,500 tokens of notes, 10 to 30 questions."""
    return document(s, int(4.7 * s.r.randint(6000, 14200)), s.r.randint(10, 30))
