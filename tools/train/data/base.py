"""What every family shares: the random source with its share of new words, system prompts, joins."""
from __future__ import annotations

from random import Random

from . import lexicon as lex
from . import pseudo

SYSTEM_PROMPTS = (
    "You are a helpful assistant.", "You are deepinfer-tiny, a small helpful model.",
    "Answer briefly and clearly.", "Be concise.",
    "You are a friendly assistant. Keep answers short.")
MORE_SYSTEM_PROMPTS = (
    "You are a helpful AI assistant.", "You are an assistant.", "Be helpful and honest.",
    "You answer questions.", "You are a polite assistant.", "Help the user.",
    "You are a careful assistant. Answer with facts from the text.")
UNKNOWN = "I do not know that."

_MORE_PLACES = ("office", "airport", "hotel", "garage", "temple", "theater", "hospital", "island",
                "valley", "pond", "meadow", "balcony", "bank", "church", "shop", "pier", "gym")
_MORE_ANIMALS = ("lion", "tiger", "monkey", "wolf", "cow", "pig", "deer", "swan", "camel", "penguin",
                 "goose", "beaver", "otter", "zebra", "crow", "lizard", "panda", "seal", "dragon",
                 "unicorn", "robot", "dinosaur", "elephant", "eagle", "snake", "bee", "butterfly",
                 "kitten", "puppy", "pony", "whale", "dolphin")
_MORE_JOBS = ("engineer", "student", "dentist", "lawyer", "singer", "dancer", "scientist", "artist",
              "actor", "soldier", "fisherman", "hunter", "clerk", "king", "queen", "shepherd",
              "pirate", "princess", "prince", "wizard", "knight", "witch", "boy", "girl")
_MORE_COLORS = ("violet", "crimson", "beige", "turquoise", "bronze", "striped", "shiny", "small",
                "large", "old", "new", "wooden", "heavy", "tiny")
_MORE_FRUITS = ("peaches", "melons", "mangoes", "cucumbers", "pumpkins", "loaves", "berries", "rolls",
                "pies", "books", "pencils", "marbles", "shells", "coins", "tickets", "balloons")
_MORE_CITIES = ("New York", "Mumbai", "Toronto", "Lagos", "Naples", "Lyon", "Munich", "Kyoto", "Osaka",
                "Seville", "Bergen", "Zurich", "Krakow", "Sofia", "Dakar", "Quito", "Perth", "Denver",
                "Dallas", "Miami", "Seattle", "Leeds", "Bristol", "Glasgow", "Turin", "Basel")


def article(word: str) -> str:
    """The word with a or an in front."""
    return ("an " if word[0] in "aeiou" else "a ") + word


def capital(text: str) -> str:
    return text[0].upper() + text[1:]


def listing(items: list[str]) -> str:
    """`a, b and c`."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + " and " + items[-1]


class Source:
    """Random source of one document. `novel` is the chance that an open slot (name, word, code,
    place, value) gets something outside the closed lists; drawn anew for every document so that
    about a quarter of all slots are new and about half of the documents have none."""

    def __init__(self, seed, reserved: bool = False, reference: bool = False) -> None:
        self.r = Random(seed)
        self.reserved = reserved
        self.reference = reference
        self.novel = 0.0
        self.next_document()

    def next_document(self) -> None:
        r = self.r
        if self.reserved:
            self.novel = 1.0
        elif self.reference or r.random() < 0.5:
            self.novel = 0.0
        else:
            self.novel = r.choice((0.25, 0.5, 0.5, 1.0))

    def new(self) -> bool:
        return self.novel > 0 and self.r.random() < self.novel

    def chance(self, p: float) -> bool:
        return self.r.random() < p

    def extra(self, p: float) -> bool:
        """True with chance p where text beyond the reference's patterns may appear."""
        return not self.reference and self.r.random() < p

    # ------------------------------------------------------------------ open slots
    def pseudo_word(self) -> str:
        return pseudo.word(self.r, self.reserved)

    def code(self) -> str:
        return pseudo.code(self.r, self.reserved)

    def _slot(self, known, more=(), share_more: float = 0.4) -> str:
        r = self.r
        if not self.new():
            return r.choice(known)
        if more and not self.reserved and r.random() < share_more:
            return r.choice(more)
        return pseudo.word(r, self.reserved)

    def name(self) -> str:
        r = self.r
        if not self.new():
            return r.choice(lex.NAMES)
        if not self.reserved and r.random() < 0.3:
            return r.choice(lex.NAMES_MORE)
        return pseudo.name(r, self.reserved)

    def city(self) -> str:
        r = self.r
        if not self.new():
            return r.choice(lex.CITIES)
        if not self.reserved and r.random() < 0.4:
            return r.choice(_MORE_CITIES)
        return pseudo.name(r, self.reserved)

    def word(self) -> str:
        return self._slot(lex.WORDS, lex.ENGLISH, 0.55)

    def object(self) -> str:
        return self._slot(lex.OBJECTS, lex.WORDS)

    def color(self) -> str:
        return self._slot(lex.COLORS, _MORE_COLORS, 0.8)

    def place(self) -> str:
        return self._slot(lex.PLACES, _MORE_PLACES, 0.5)

    def fruit(self) -> str:
        return self._slot(lex.FRUITS, _MORE_FRUITS, 0.7)

    def animal(self) -> str:
        return self._slot(lex.ANIMALS, _MORE_ANIMALS, 0.6)

    def job(self) -> str:
        return self._slot(lex.JOBS, _MORE_JOBS, 0.7)

    def distinct(self, draw, n: int) -> list[str]:
        """n different values of a slot."""
        found: dict[str, None] = {}
        while len(found) < n:
            found[draw()] = None
        return list(found)

    # ------------------------------------------------------------------ conversations
    def system(self, messages: list[dict]) -> list[dict]:
        """Three conversations in ten begin with a system prompt."""
        if self.r.random() < 0.3:
            pool = MORE_SYSTEM_PROMPTS if self.extra(0.1) else SYSTEM_PROMPTS
            messages.insert(0, {"role": "system", "content": self.r.choice(pool)})
        return messages


def user(content: str) -> dict:
    return {"role": "user", "content": content}


def answer(content: str, exact: bool = True, reasoning: str | None = None) -> dict:
    message = {"role": "assistant", "content": content}
    if reasoning is not None:
        message["reasoning_content"] = reasoning
    if exact:
        message["exact"] = True
    return message


def conversation(family: str, messages: list[dict], thinking: bool = False, **rest) -> dict:
    return {"family": family, "thinking": thinking, "messages": messages, **rest}
