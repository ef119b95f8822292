"""Small talk, definitions, how-to lists, capitals, opposites and what the user said about himself
(family `chat`). The reference's forms first; the rest widens the wording so that hand-typed English
gets an answer on its subject (tiny-model.md §9.1)."""
from __future__ import annotations

from pathlib import Path

from . import knowledge
from . import lexicon as lex
from .base import UNKNOWN, Source, answer, article, capital, conversation, listing, user
from .lexicon import Thing

_GREETINGS = ("Hi", "Hey", "Hello!", "Hi there!", "Good morning", "Good evening!",
              "Hello, how are you?", "Hi, can you help me?")
_GREETING_REPLIES = ("Hello! How can I help you today?", "Hi! What can I do for you?",
                     "Hello! I am happy to help. What would you like to know?",
                     "Hi there! Ask me anything.")
_THANKS = ("Thank you!", "Thank you!", "Thanks!", "Great, thanks.")
_FIXED = (("How are you?", "I am fine, thank you. How can I help you?"),
          ("Who are you?", "I am deepinfer-tiny, a small language model."),
          ("What is your name?", "My name is deepinfer-tiny."),
          ("What can you do?", "I can tell stories, answer simple questions, remember facts from a "
           "text, do small sums, write JSON and call tools."),
          ("Are you a human?", "No, I am a small language model."),
          ("How large are you?", "I am very small: I fit into less than forty megabytes."),
          ("Goodbye", "Goodbye! Have a nice day."))
_NUMBERS = ("two", "three", "four")
_MONTHS = ("January", "February", "March", "April", "May", "June", "July", "August", "September",
           "October", "November", "December")
Turn = tuple[str, str]


def _lines(name: str) -> list[str]:
    text = (Path(__file__).parent / name).read_text(encoding="utf-8")
    return [line for line in text.splitlines() if line]


def _facts() -> tuple[tuple[tuple[str, ...], str], ...]:
    pairs = (line.rsplit(" | ", 1) for line in _lines("facts.txt"))
    return tuple((tuple(q.split(" / ")), a) for q, a in pairs)


FACTS = _facts()
HOW_TO_MORE = tuple((line.split("|")[0], tuple(line.split("|")[1:]))
                    for line in _lines("howto_more.txt"))


def _by_kind(table) -> dict[str, list[Thing]]:
    kinds: dict[str, list[Thing]] = {}
    for t in table:
        kinds.setdefault(t.kind, []).append(t)
    return {k: v for k, v in kinds.items() if len(v) >= 5}


KINDS = _by_kind(lex.KNOWLEDGE)
KINDS_MORE = _by_kind(lex.KNOWLEDGE + lex.KNOWLEDGE_MORE)
_EXAMPLE_KINDS = tuple(k for k in KINDS if k != "a person with a job")


# ------------------------------------------------------------------ forms of the reference
def _greet(s: Source) -> list[Turn]:
    return [(s.r.choice(_GREETINGS), s.r.choice(_GREETING_REPLIES))]


def _thanks(s: Source) -> list[Turn]:
    return [(s.r.choice(_THANKS), "You are welcome!")]


def _fixed(s: Source) -> list[Turn]:
    return [s.r.choice(_FIXED)]


def _define(s: Source) -> list[Turn]:
    t = knowledge.thing(s)
    return [(s.r.choice((f"What {knowledge.be(t)} {t.name}?", f"Define {t.bare}.",
                         f"Can you tell me about {t.name}?",
                         f"Explain what {t.name} {knowledge.be(t)}.")), knowledge.define(s, t))]


def _define_and_more(s: Source) -> list[Turn]:
    t = knowledge.thing(s)
    return [(knowledge.question(s, t), knowledge.core(t)),
            ("Tell me more.", f"A typical feature is {t.feature}. "
             f"You can find {'them' if t.plural else 'it'} in or near {t.where}.")]


def _kind(s: Source) -> list[Turn]:
    t = knowledge.thing(s)
    return [(f"What kind of thing {knowledge.be(t)} {t.name}?",
             f"{capital(t.name)} {knowledge.be(t)} {t.kind}.")]


def _where(s: Source) -> list[Turn]:
    t = knowledge.thing(s)
    return [(f"Where can I find {t.name}?", f"You can find {t.name} in or near {t.where}.")]


def _verb(t: Thing) -> str:
    """The relative clause as a predicate: `that gives milk` -> `gives milk`."""
    return t.that.removeprefix("that ")


def _difference(s: Source) -> list[Turn]:
    a, b = s.distinct(lambda: knowledge.thing(s), 2)
    return [(f"What is the difference between {a.name} and {b.name}?",
             f"{capital(a.name)} {knowledge.be(a)} {a.kind}, but {b.name} {knowledge.be(b)} "
             f"{b.kind}. {capital(a.name)} {_verb(a)}, while {b.name} {_verb(b)}.")]


def _examples(s: Source) -> list[Turn]:
    r = s.r
    kind = r.choice(_EXAMPLE_KINDS)
    n = r.randrange(3)
    names = [t.bare for t in r.sample(KINDS[kind], n + 2)]
    return [(f"Name {_NUMBERS[n]} examples of {kind}.",
             f"{capital(listing(names))} are examples of {kind}.")]


def _capital(s: Source) -> list[Turn]:
    country, city = s.r.choice(lex.CAPITALS)
    return [(s.r.choice((f"What is the capital of {country}?",
                         f"Which city is the capital of {country}?")),
             f"The capital of {country} is {city}.")]


def _opposite(s: Source) -> list[Turn]:
    word, other = s.r.choice(lex.OPPOSITES)
    return [(f"What is the opposite of {word}?", f"The opposite of {word} is {other}.")]


def _day(s: Source) -> list[Turn]:
    k = s.r.randrange(7)
    return [(f"Which day comes after {lex.DAYS[k]}?",
             f"After {lex.DAYS[k]} comes {lex.DAYS[(k + 1) % 7]}.")]


def _how_to(s: Source) -> list[Turn]:
    what, steps = s.r.choice(HOW_TO_MORE if s.extra(0.4) else lex.HOW_TO)
    ask = s.r.choice((f"How do I {what}?", f"How can I {what}?", f"Give me steps to {what}."))
    if s.extra(0.2):
        ask = s.r.choice((f"How do you {what}?", f"Tell me how to {what}.", f"How to {what}?",
                          f"Explain how to {what}.", f"What is the best way to {what}?",
                          f"I want to {what}. How?"))
    listed = "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1))
    return [(ask, f"Here is how to {what}:\n{listed}")]


_FORMS = (_greet, _greet, _thanks, _fixed, _fixed, _define, _define, _define, _define, _kind,
          _where, _difference, _examples, _capital, _opposite, _day, _how_to, _define_and_more)


# ------------------------------------------------------------------ wider wording
def _any(s: Source) -> Thing:
    return s.r.choice(s.r.choice((lex.KNOWLEDGE, lex.KNOWLEDGE_MORE)))


def _define_wide(s: Source) -> list[Turn]:
    t = _any(s)
    be = knowledge.be(t)
    ask = s.r.choice((
        f"Tell me about {t.name}.", f"Tell me something about {t.name}.",
        f"Do you know what {t.name} {be}?", f"Can you explain what {t.name} {be}?",
        f"Please explain {t.name}.", f"What do you know about {t.name}?",
        f"Describe {t.name}.", f"Explain {t.bare}.", f"What exactly {be} {t.name}?",
        f"I want to know what {t.name} {be}.", f"Could you tell me what {t.name} {be}?",
        f"What can you tell me about {t.name}?", f"Explain {t.name} to me.",
        f"Write a sentence about {t.name}.", f"Say something about {t.name}.",
        f"What does the word {t.bare} mean?", f"What is the meaning of {t.bare}?",
        f"Give me a definition of {t.bare}.", f"What's {t.name}?", f"{capital(t.bare)}?"))
    return [(ask, knowledge.core(t) if "sentence" in ask else knowledge.define(s, t))]


def _does(s: Source) -> list[Turn]:
    t = _any(s)
    verb = _verb(t)
    if t.plural or verb.split()[0] in ("is", "are", "can", "has", "protected", "we", "you", "people"):
        return _feature(s)
    asks = [f"What does {t.name} do?", f"What is special about {t.name}?",
            f"What is {t.name} good for?", f"Explain what {t.name} does.",
            f"What can {t.name} do?", f"Tell me what {t.name} does."]
    if t.name.startswith(("a ", "an ")):
        many = plural(t)
        asks += [f"What do {many} do?", f"Tell me what {many} do.", f"Why are there {many}?"]
    ask = s.r.choice(asks)
    return [(ask, f"{capital(t.name)} {verb}.")]


_IRREGULAR = {"mouse": "mice", "goose": "geese", "sheep": "sheep", "fish": "fish", "deer": "deer",
              "salmon": "salmon", "foot": "feet", "tooth": "teeth", "child": "children",
              "wolf": "wolves", "leaf": "leaves", "knife": "knives", "shelf": "shelves",
              "scarf": "scarves", "potato": "potatoes", "tomato": "tomatoes", "cactus": "cacti",
              "mango": "mangoes", "mosquito": "mosquitoes", "volcano": "volcanoes"}


def plural(t: Thing) -> str:
    """`dogs`; words without a or an stay as they are."""
    if not t.name.startswith(("a ", "an ")):
        return t.bare
    head, _, last = t.bare.rpartition(" ")
    if last in _IRREGULAR:
        last = _IRREGULAR[last]
    elif last.endswith("y") and last[-2] not in "aeiou":
        last = last[:-1] + "ies"
    elif last.endswith(("s", "x", "ch", "sh")):
        last += "es"
    else:
        last += "s"
    return f"{head} {last}".strip()


def _many(s: Source) -> list[Turn]:
    """Questions on a thing in the plural."""
    t = _any(s)
    if t.plural or not t.name.startswith(("a ", "an ")):
        return _define_wide(s)
    many = plural(t)
    return [s.r.choice((
        (f"Where can I find {many}?", f"You can find {many} in or near {t.where}."),
        (f"Where can I see {many}?", f"You can see {many} in or near {t.where}."),
        (f"Where are {many}?", f"You can find {many} in or near {t.where}."),
        (f"What are {many}?", knowledge.core(t)),
        (f"Tell me about {many}.", knowledge.define(s, t)),
        (f"What do you know about {many}?", knowledge.define(s, t)),
        (f"I like {many}.", "That is nice. " + knowledge.core(t)),
        (f"Do you like {many}?", "I am a program and have no taste. " + knowledge.core(t)),
        (f"What is special about {many}?", f"A typical feature of {t.name} is {t.feature}.")))]


def _follow_up(s: Source) -> list[Turn]:
    """A definition and a short question that refers to it."""
    t, other = s.distinct(lambda: _any(s), 2)
    it = "them" if t.plural else "it"
    first = (s.r.choice((f"What {knowledge.be(t)} {t.name}?", f"Tell me about {t.name}.")),
             knowledge.core(t))
    return [first, s.r.choice((
        (f"Where can I find {it}?", f"You can find {it} in or near {t.where}."),
        ("What is typical of it?", f"A typical feature of {t.name} is {t.feature}."),
        ("What does it look like?", f"A typical feature of {t.name} is {t.feature}."),
        (f"And {other.name}?", knowledge.core(other)),
        (f"What about {other.name}?", knowledge.core(other)),
        ("What else do you know?", f"A typical feature is {t.feature}. "
         f"You can find {it} in or near {t.where}."),
        ("Anything else?", f"A typical feature is {t.feature}. "
         f"You can find {it} in or near {t.where}."),
        ("Is that all?", f"A typical feature is {t.feature}. "
         f"You can find {it} in or near {t.where}.")))]


# From small to large.
_SIZES = ("an ant", "a bee", "a coin", "a mouse", "a frog", "a bird", "a rabbit", "a cat", "a dog",
          "a sheep", "a pig", "a lion", "a horse", "a car", "an elephant", "a bus", "a house",
          "a whale", "a ship", "a mountain", "the moon", "the earth",
          "the sun")


def _size(s: Source) -> list[Turn]:
    r = s.r
    small, large = sorted(r.sample(range(len(_SIZES)), 2))
    small, large = _SIZES[small], _SIZES[large]
    pair = [small, large]
    r.shuffle(pair)
    one, two = pair
    up = r.random() < 0.6
    word = r.choice(("bigger", "larger")) if up else "smaller"
    winner, loser = (large, small) if up else (small, large)
    if r.random() < 0.25:
        yes = one == winner
        reply = f"Yes, {one} is {word} than {two}." if yes else \
            f"No, {two} is {word} than {one}."
        return [(f"Is {one} {word} than {two}?", reply)]
    return [(r.choice((f"Which is {word}, {one} or {two}?", f"What is {word}, {one} or {two}?",
                       f"Which one is {word}: {one} or {two}?")),
             f"{capital(winner)} is {word} than {loser}.")]


_SEASONS = ("spring", "summer", "autumn", "winter")


def _season(s: Source) -> list[Turn]:
    k = s.r.randrange(4)
    after, before = _SEASONS[(k + 1) % 4], _SEASONS[k - 1]
    return [s.r.choice((
        (f"Which season comes after {_SEASONS[k]}?", f"After {_SEASONS[k]} comes {after}."),
        (f"What comes after {_SEASONS[k]}?", f"After {_SEASONS[k]} comes {after}."),
        (f"Which season is before {_SEASONS[k]}?", f"Before {_SEASONS[k]} comes {before}.")))]


def _feature(s: Source) -> list[Turn]:
    t = _any(s)
    ask = s.r.choice((f"What does {t.name} look like?", f"What is a typical feature of {t.name}?",
                      f"What does {t.name} have?", f"How can I recognize {t.name}?"))
    if t.plural:
        ask = f"What is a typical feature of {t.name}?"
    return [(ask, f"A typical feature of {t.name} is {t.feature}.")]


def _which(s: Source) -> list[Turn]:
    t = _any(s)
    if t.plural:
        return _feature(s)
    noun = t.kind.split(" ", 1)[1] if t.kind.startswith(("a ", "an ")) else "thing"
    return [(s.r.choice((f"Which {noun} {_verb(t)}?", f"What {noun} {_verb(t)}?",
                         f"I am looking for {article(noun)} {t.that}.")),
             f"{capital(t.name)} {_verb(t)}.")]


def _is_it(s: Source) -> list[Turn]:
    t = _any(s)
    if t.plural:
        return _kind(s)
    if s.chance(0.5):
        return [(f"Is {t.name} {t.kind}?", f"Yes, {t.name} is {t.kind}.")]
    other = _any(s)
    if other.kind.split()[-1] in t.kind or t.kind.split()[-1] in other.kind:
        return [(f"Is {t.name} {t.kind}?", f"Yes, {t.name} is {t.kind}.")]
    return [(f"Is {t.name} {other.kind}?",
             f"No, {t.name} is not {other.kind}. It is {t.kind}.")]


def _like(s: Source) -> list[Turn]:
    t = _any(s)
    ask = s.r.choice((f"I saw {t.name} today.", f"I am thinking about {t.name}.",
                      f"Let us talk about {t.name}.", f"I would like to learn about {t.name}."))
    return [(ask, s.r.choice(("That is interesting. ", "Sure. ")) + knowledge.core(t))]


def _fact(s: Source) -> list[Turn]:
    asks, reply = s.r.choice(FACTS)
    return [(s.r.choice(asks), reply)]


def _examples_wide(s: Source) -> list[Turn]:
    r = s.r
    kind = r.choice(tuple(KINDS_MORE))
    things = r.sample(KINDS_MORE[kind], 3)
    if s.chance(0.5):
        noun = kind.split(" ", 1)[1]
        return [(r.choice((f"Give me an example of {kind}.", f"Name {kind}.",
                           f"What is an example of {kind}?", f"Name one {noun}.",
                           f"Tell me one {noun}.", f"Do you know {kind}?")),
                 f"{capital(things[0].name)} is {kind}.")]
    return [(r.choice((f"Can you name some examples of {kind}?",
                       f"Give me three examples of {kind}.", f"List examples of {kind}.")),
             f"{capital(listing([t.bare for t in things]))} are examples of {kind}.")]


def _capital_wide(s: Source) -> list[Turn]:
    r = s.r
    country, city = r.choice(lex.CAPITALS)
    other = r.choice(lex.CAPITALS)[1]
    form = r.randrange(5)
    if form == 0:
        return [(f"Is {city} the capital of {country}?",
                 f"Yes, {city} is the capital of {country}.")]
    if form == 1 and other != city:
        return [(f"Is {other} the capital of {country}?",
                 f"No, the capital of {country} is {city}.")]
    if form == 2:
        return [(r.choice((f"Where is {city}?", f"In which country is {city}?")),
                 f"{city} is in {country}.")]
    return [(r.choice((f"Tell me the capital of {country}.", f"Capital of {country}?",
                       f"What's the capital of {country}?", f"Name the capital of {country}.",
                       f"Do you know the capital of {country}?")),
             f"The capital of {country} is {city}.")]


def _opposite_wide(s: Source) -> list[Turn]:
    word, other = s.r.choice(lex.OPPOSITES)
    return [(s.r.choice((f"What's the opposite of {word}?", f"Opposite of {word}?",
                         f"Tell me the opposite of {word}.", f"Name the opposite of {word}.")),
             f"The opposite of {word} is {other}.")]


def _calendar(s: Source) -> list[Turn]:
    k = s.r.randrange(7)
    m = s.r.randrange(12)
    return [s.r.choice((
        (f"Which day comes before {lex.DAYS[k]}?",
         f"Before {lex.DAYS[k]} comes {lex.DAYS[k - 1]}."),
        (f"What day is after {lex.DAYS[k]}?", f"After {lex.DAYS[k]} comes {lex.DAYS[(k + 1) % 7]}."),
        (f"Which month comes after {_MONTHS[m]}?",
         f"After {_MONTHS[m]} comes {_MONTHS[(m + 1) % 12]}."),
        (f"Which month comes before {_MONTHS[m]}?",
         f"Before {_MONTHS[m]} comes {_MONTHS[m - 1]}."),
        (f"If today is {lex.DAYS[k]}, what day is tomorrow?",
         f"Tomorrow is {lex.DAYS[(k + 1) % 7]}.")))]


def _unknown(s: Source) -> list[Turn]:
    """Things that do not exist: say so instead of naming the nearest known thing."""
    word = s.pseudo_word()
    name = capital(word)
    return [s.r.choice((
        (f"What is {article(word)}?", f"I do not know what {article(word)} is."),
        (f"What is {word}?", f"I do not know what {word} is."),
        (f"Tell me about {article(word)}.", f"I do not know what {article(word)} is."),
        (f"Who is {name}?", f"I do not know who {name} is."),
        (f"Where is {name}?", f"I do not know where {name} is."),
        (f"What is the capital of {name}?", f"I do not know the capital of {name}."),
        (f"How old is {name}?", UNKNOWN), (f"Where does {name} live?", UNKNOWN),
        (f"Define {word}.", f"I do not know what {word} is."),
        (f"What is the opposite of {word}?", f"I do not know the opposite of {word}."),
        (f"How do I {word} a {s.word()}?", UNKNOWN),
        ("What is my name?", UNKNOWN)))]


_WIDE = (_define_wide, _define_wide, _define_wide, _define_wide, _does, _feature, _which, _is_it,
         _like, _fact, _fact, _fact, _fact, _fact, _fact, _fact, _fact, _examples_wide,
         _capital_wide, _opposite_wide, _calendar, _unknown, _how_to, _many, _many, _follow_up,
         _follow_up, _size, _season)


_OPENINGS = ("Hello! ", "Hi, ", "Hi! ", "Hello, ", "Hey, ", "Please tell me: ", "Can you tell me: ",
             "I have a question. ", "One more question: ", "I am curious. ", "Quick question: ",
             "I would like to know: ", "Tell me, ", "Please help me. ", "My question is: ",
             "I am new here. ", "Good morning! ", "Thanks! ", "Okay, ", "So, ", "And ")
_CLOSINGS = (" Please tell me.", " Thank you!", " Thanks!", " Please answer in one sentence.",
             " I want to know.", " Can you help me?", " Please explain.")


def _wrapped(s: Source, ask: str) -> str:
    """With a greeting or a polite word around it."""
    if s.r.random() < 0.7:
        opening = s.r.choice(_OPENINGS)
        if opening[-2] in ",d" and not ask.startswith(("I ", "I'")):
            ask = ask[0].lower() + ask[1:]
        return opening + ask
    if s.r.random() < 0.4 and ask.endswith("?"):
        return ask[:-1] + ", please?"
    return ask + s.r.choice(_CLOSINGS)


def _typed(s: Source, ask: str) -> str:
    """As people type: small first letter, no final sign."""
    if s.r.random() < 0.5 and not ask.startswith("I "):
        ask = ask[0].lower() + ask[1:]
    return ask.rstrip(".?!") if s.r.random() < 0.7 else ask


# ------------------------------------------------------------------ what the user says of himself
def _my_name(s: Source, wide: bool) -> tuple[Turn, Turn]:
    name = s.name()
    said, asked = f"My name is {name}.", "What is my name?"
    if wide:
        said = s.r.choice((f"My name is {name}.", f"I am {name}.", f"Hi, I am {name}.",
                           f"Call me {name}.", f"Hello, my name is {name}.", f"I'm {name}.",
                           f"my name is {name}"))
        asked = s.r.choice(("What is my name?", "What's my name?", "Do you remember my name?",
                            "Tell me my name.", "Who am I?", "what is my name",
                            "Do you know my name?", "Could you tell me my name?",
                            "What was my name again?"))
    return (said, f"Nice to meet you, {name}!"), (asked, f"Your name is {name}.")


def _my_fact(s: Source) -> tuple[Turn, Turn]:
    r = s.r
    city, word, color, job, name = s.city(), s.fruit(), s.color(), s.job(), s.name()
    n, animal = r.randint(6, 90), s.animal()
    return r.choice((
        ((f"I live in {city}.", f"{city} sounds nice!"),
         ("Where do I live?", f"You live in {city}.")),
        ((f"I like {word}.", f"Good to know that you like {word}."),
         ("What do I like?", f"You like {word}.")),
        ((f"My favorite color is {color}.", f"{capital(color)} is a nice color."),
         ("What is my favorite color?", f"Your favorite color is {color}.")),
        ((f"I am {n} years old.", "Thank you for telling me."),
         ("How old am I?", f"You are {n} years old.")),
        ((f"I work as {article(job)}.", "That sounds interesting."),
         ("What is my job?", f"You work as {article(job)}.")),
        ((f"I have {article(animal)} named {name}.", f"{name} is a nice name."),
         (f"What is the name of my {animal}?", f"Your {animal} is named {name}."))))


def reference_turn(s: Source) -> list[Turn]:
    """An exchange of the reference's forms."""
    return s.r.choice(_FORMS)(s)


def document(s: Source) -> dict:
    """1 to 8 exchanges; in a part of them the user gives his name and asks for it later."""
    r = s.r
    wide = s.extra(0.55)
    turns: list[list[Turn]] = []
    for _ in range(r.randint(1, 6)):
        turn = r.choice(_WIDE)(s) if wide and r.random() < 0.7 else reference_turn(s)
        if wide and r.random() < 0.3:
            change = _typed if r.random() < 0.5 else _wrapped
            turn = [(change(s, turn[0][0]), turn[0][1]), *turn[1:]]
        turns.append(turn)
    exact: set[int] = set()
    if r.random() < 0.28:
        if s.extra(0.4):
            s.novel = max(s.novel, 0.7)
        said, asked = _my_name(s, wide and s.chance(0.6))
        first = r.randint(0, len(turns))
        turns.insert(first, [said])
        turns.insert(r.randint(first + 1, len(turns)), [asked])
        exact.add(id(asked))
    if wide and r.random() < 0.2:
        said, asked = _my_fact(s)
        first = r.randint(0, len(turns))
        turns.insert(first, [said])
        turns.insert(r.randint(first + 1, len(turns)), [asked])
        exact.add(id(asked))
    if exact:   # the answer to "what is my name" is known here
        turns = [[t for t in turn if t[1] != UNKNOWN] for turn in turns]
    messages = []
    for turn in turns:
        for pair in turn:
            messages += [user(pair[0]), answer(pair[1], id(pair) in exact)]
    return conversation("chat", s.system(messages))
