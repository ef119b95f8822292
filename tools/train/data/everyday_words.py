"""Questions on words, opposites and what is larger, faster or hotter."""
from __future__ import annotations

from . import lexicon as lex
from .base import capital
from .chat import Turn
from .everyday_tables import WORDS, Asker
from .phrasing import about

# ------------------------------------------------------------------ words
_WORD_ASKS = {
    "same": ("(What is|What's|Give me|Tell me|Say|Do you know) (another|a different) word for {w}(|?|.)", "(What|Which) word means the same as {w}?",
             "What is a synonym (of|for) {w}?", "What can I say instead of {w}?", *about("another word for {w}")),
    "past": ("What is the past (tense |)of {w}?", "What is the past form of {w}?", "What is {w} in the past?", *about("the past tense of {w}")),
    "plural": ("What is the plural of {w}?", "(What|How) is the plural of {w}?", "What do you say for more than one {w}?", "What is {w} in the plural?",
               "One {w}, two what?", *about("the plural of {w}", "what the plural of {w} is")),
    "color": ("(What|Which) (color|colour) is {w}?", "(What|Which) (color|colour) does {w} have?", "What is the (color|colour) of {w}?",
              *about("what (color|colour) {w} is", "which (color|colour) {w} has")),
    "made": ("What is {w} made (of|from)?", "(What|Which) (things|materials) (is {w} made of|do I need for {w})?", "What do (I|you|we) need (for|to make) {w}?",
             "How is {w} made?", "What is in {w}?", *about("what {w} is made of", "how {w} is made"))}


def words(a: Asker) -> list[Turn]:
    kind, w, v = a.r.choice(WORDS)
    if kind == "same" and a.r.random() < 0.5:
        w, v = v, w
    reply = {"same": f"Another word for {w} is {v}.", "past": f"The past of {w} is {v}.", "plural": f"The plural of {w} is {v}.",
             "color": f"{capital(w)} is {v}.", "made": f"{capital(w)} {'are' if w == 'pancakes' else 'is'} made of {v}."}[kind]
    patterns = _WORD_ASKS[kind]
    if w == "pancakes":
        patterns = [p.replace("is {w}", "are {w}").replace("{w} is", "{w} are") for p in patterns]
    return a.turn(patterns, reply, w=w)


_OPPOSITE = ("What is the opposite of {w}?", "(Tell me|Give me|Name|Say) the opposite of {w}.", "What's the opposite of {w}?",
             "(What|Which) word is the opposite of {w}?", "What is the contrary of {w}?", "The opposite of {w} is what?", *about("the opposite of {w}", "what the opposite of {w} is"))


def opposites(a: Asker) -> list[Turn]:
    pairs = dict(reversed(lex.OPPOSITES))
    w = a.r.choice(tuple(pairs))
    turns = a.turn(_OPPOSITE, f"The opposite of {w} is {pairs[w]}.", w=w)
    if turns and a.r.random() < 0.2 and not a.held:
        v = a.r.choice(tuple(pairs))
        turns += a.turn(("And of {w}?", "And the opposite of {w}?"), f"The opposite of {v} is {pairs[v]}.", w=v)
    return turns


_SCALES = (("faster", "slower", ("a snail", "a turtle", "a person", "a bicycle", "a horse", "a car", "a train", "an airplane", "a rocket")),
           ("heavier", "lighter", ("a feather", "a letter", "an apple", "a book", "a chair", "a person", "a horse", "a car", "an elephant", "a truck", "a ship")),
           ("bigger", "smaller", ("an ant", "a bee", "a mouse", "a cat", "a dog", "a sheep", "a horse", "a car", "an elephant", "a house", "a whale", "a mountain", "the moon", "the earth", "the sun")),
           ("hotter", "colder", ("ice", "cold water", "hot tea", "fire", "the sun")),
           ("longer", "shorter", ("a second", "a minute", "an hour", "a day", "a week", "a month", "a year")),
           ("older", "younger", ("a baby", "a child", "a father", "a grandmother")))
_COMPARE = ("(Which|What|Which one) is {w}, {x} or {y}?", "(Which|What) is {w}: {x} or {y}?", "Is {x} or {y} {w}?", "What of both is {w}, {x} or {y}?",
            *about("(which|what) is {w}, {x} or {y}"))


def compare(a: Asker) -> list[Turn]:
    up, down, scale = a.r.choice(_SCALES)
    i, j = sorted(a.r.sample(range(len(scale)), 2))
    low, high = scale[i], scale[j]
    pair = [low, high]
    a.r.shuffle(pair)
    rising = a.r.random() < 0.7
    word, winner, loser = (up, high, low) if rising else (down, low, high)
    if a.r.random() < 0.25:
        reply = f"Yes, {pair[0]} is {word} than {pair[1]}." if pair[0] == winner else f"No, {pair[1]} is {word} than {pair[0]}."
        return a.turn(("Is {x} {w} than {y}?", *about("if {x} is {w} than {y}")), reply, w=word, x=pair[0], y=pair[1])
    return a.turn(_COMPARE, f"{capital(winner)} is {word} than {loser}.", w=word, x=pair[0], y=pair[1])
