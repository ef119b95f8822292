"""Everyday questions of people in many wordings (family `chat`): lists, yes and no, what to do when, how to do
something, small talk, what is not known; with everyday_facts.py and everyday_words.py."""
from __future__ import annotations

from . import chat, handtyped, knowledge
from . import lexicon as lex
from .base import UNKNOWN, Source, answer, article, capital, conversation, listing, user
from .chat import Turn
from .everyday_facts import animal_talk, animals, countries, jobs, places, thing_talk, uses, needs, which_animal
from .everyday_tables import ANIMALS_BY_NAME, HOW_TO, LISTS, SAYINGS, SITUATIONS, THINGS, Asker
from .everyday_words import compare, opposites, words
from .phrasing import about

# ------------------------------------------------------------------ lists, kinds, yes and no
_COUNTS = ("one", "two", "three", "four", "five")
_NAME = ("(Name|List|Tell me|Give me|Say) {k} {c}(| please|, please).", "(Can|Could) you (name|list|tell me|give me) {k} {c}(| please|, please)?",
         "I need {k} {c}.", "(Please|Hey,|Now) (name|list|tell me|give me) {k} {c}.", "(Which|What) {k} {c} do you know?", "(Name|List) {k} (examples of|kinds of) {c}.",
         "What are {k} {c}?", "Write down {k} {c}.", "Think of {k} {c}.", "Do you know {k} {c}?", "Give {k} examples of {c}.")
_SOME = ("(Name|List|Tell me|Give me) (some|a few|examples of|several) {c}(| please).", "(Which|What) {c} (do you know|are there)?",
         "What are (some|examples of|typical) {c}?", "(Can|Could) you (name|list) (some|a few) {c}?")
_ONE = ("(Name|Tell me|Give me|Say) (one of the {c}|{o})(| please).", "(Can|Could) you (name|tell me) {o}?", "What is an example of {o}?",
        "Give me an example of {o}.", "I need {o}.", "Do you know {o}?", "What is {o}, for example?")


def lists(a: Asker) -> list[Turn]:
    c, o, members = a.r.choice(LISTS)
    roll = a.r.random()
    proper = members[0][0].isupper() or members[0].startswith("the ")
    if roll < 0.15:
        first = members[0] if proper or members[0] in _UNCOUNTED else article(members[0])
        return a.turn(_ONE, f"{capital(first)} is {o}.", c=c, o=o)
    k = 3 if roll < 0.3 else a.r.randint(2, min(5, len(members)))
    reply = f"{capital(listing(members[:k]))} are {c}."
    if roll < 0.3:
        return a.turn(_SOME, reply, c=c)
    return a.turn(_NAME, reply, k=_COUNTS[k - 1] if a.r.random() < 0.8 else str(k), c=c)


_UNCOUNTED = frozenset("water milk tea coffee juice bread cheese rice soup pasta chocolate honey iron gold silver copper steel wood glass "
                       "paper football tennis swimming running basketball chess cards reading painting dancing cooking gardening spring "
                       "summer autumn winter joy love anger fear sadness math music history art science rain snow wind towel soap "
                       "red blue green yellow black one two three four five".split()) - {"towel"}
# Kinds that exclude each other, with the wider kinds that hold too.
_KINDS = {"a bird": ("an animal",), "a fish": ("an animal",), "an insect": ("an animal",), "an animal": (), "a fruit": (), "a vegetable": (),
          "a drink": (), "a vehicle": (), "a musical instrument": ("an instrument",), "a piece of furniture": (), "a piece of clothing": (),
          "a building": (), "a metal": ("a material",), "a sport": (), "a season": (), "a tool": (), "a person with a job": ("a person",),
          "a feeling": (), "a body part": (), "an organ": ()}
_MANY = {"a person with a job": "people with a job", "a fish": "fish", "a piece of furniture": "pieces of furniture",
         "a piece of clothing": "pieces of clothing", "a body part": "body parts"}
_IS_IT = ("Is {n} {k}?", "Is {n} really {k}?", "Is it true that {n} is {k}?", "Do you think (that |){n} is {k}?", "Would you say (that |){n} is {k}?",
          "Is {n} {k} or not?", "{n} is {k}, right?", "Are {m} {ks}?", "(Could|Can) you say that {n} is {k}?", "Does {n} belong to the {ks}?",
          *about("if {n} is {k}", "whether {n} is {k}"))
_EITHER = ("Is {n} {k} or {j}?", "What is {n}, {k} or {j}?", *about("if {n} is {k} or {j}"))
_OF_KIND = [t for t in lex.KNOWLEDGE + lex.KNOWLEDGE_MORE if t.kind in _KINDS and t.name.startswith(("a ", "an "))]


def _kinds_many(kind: str) -> str:
    return _MANY.get(kind) or kind.split(" ", 1)[1] + "s"


def is_it(a: Asker) -> list[Turn]:
    t = a.r.choice(_OF_KIND)
    wider = _KINDS[t.kind]
    wrong = a.r.choice([k for k in _KINDS if k not in (t.kind, "a person with a job", "a feeling", *wider)
                        and not (t.kind == "an animal" and k in ("a bird", "a fish", "an insect") and a.r.random() < 0.5)
                        and {k, t.kind} != {"an organ", "a body part"}])
    slots = {"n": t.name, "m": chat.plural(t)}
    roll = a.r.random()
    if roll < 0.15:
        pair = [t.kind, wrong]
        a.r.shuffle(pair)
        return a.turn(_EITHER, f"{capital(t.name)} is {t.kind}.", k=pair[0], j=pair[1], **slots)
    if roll < 0.6:
        kind = a.r.choice((t.kind, t.kind, *wider))
        return a.turn(_IS_IT, f"Yes, {t.name} is {kind}.", k=kind, ks=_kinds_many(kind), **slots)
    return a.turn(_IS_IT, f"No, {t.name} is not {wrong}. It is {t.kind}.", k=wrong, ks=_kinds_many(wrong), **slots)


_WHAT_IS = ("What {be} {n}?", "(What|Who) exactly {be} {n}?", "What do you (know about|call) {n}?", "What does (the word |){b} mean?", "Define {b}.",
            "(Describe|Explain) {n}(| to me| in one sentence| briefly).", "(Tell me|Say) (something |)about {n}.", "What is meant by {n}?",
            "I (do not|don't) know what {n} {be}.", "What {be} {n} in simple words?", "Give me a short (definition|description|explanation) of {n}.",
            "Write a sentence (about|with|using) (the word |){b}.", "Make a sentence with {b}.", *about("what {n} {be}", "something about {n}"))
_WHERE_IS = ("Where (can|do|could|would|will) (I|you|we|people) (find|see|get|meet) {n}?", "Where {be} {n} (usually |)(found|kept|seen)?",
             "In (which|what) place (can|do) I find {n}?", *about("where I can (find|see) {n}"))
_DOES_IT = ("What does {n} do?", "(Explain|Say) what {n} does.", "What is the (job|purpose|task) of {n}?", "(Please |)(explain|describe) what {n} (does|can do).",
            *about("what {n} does"))


def things(a: Asker) -> list[Turn]:
    t = a.r.choice(tuple(THINGS.values()))
    slots = {"n": t.name, "b": t.bare, "be": knowledge.be(t)}
    roll = a.r.random()
    if roll < 0.25 and t.name not in ANIMALS_BY_NAME:
        return a.turn(_WHERE_IS, f"You can find {t.name} in or near {t.where}.", **slots)
    verb = t.that.removeprefix("that ")
    if roll < 0.5 and not t.plural and verb.split()[0] not in ("is", "are", "can", "has", "protected", "we", "you", "people"):
        return a.turn(_DOES_IT, f"{capital(t.name)} {verb}.", **slots)
    return a.turn(_WHAT_IS, knowledge.core(t), **slots)


# ------------------------------------------------------------------ what to do, how to do it
_TOPICS = {
    "take": ("{S}(.|!) What (should|can|must|do) I (take|bring|pack)(| with me| along)?", "What (should|do|must) I (take|bring|pack)(| with me) (when|if) {s}?",
             "(When|If) {s}, what (should|do) I take(| with me)?", "{S}. (Do I need|Should I take|Should I bring) (something|anything)?", "{S}. What do I need(| with me)?"),
    "wear": ("{S}(.|!) What (should|can|must|do) I (wear|put on)(| today| now)?", "What (should|do|can) (I|we|people) (wear|put on) (when|if) {s}?",
             "(When|If) {s}, what (should|do) I (wear|put on)?", "{S}. (Which|What) clothes (should I wear|do I need|are good)?"),
    "do": ("{S}(.|!) What (should|can|must|do|could) I do(| now| about it| then)?", "What (should|can|do|could) (I|we|you) do (when|if) {s}?", "(When|If) {s}, what (should|can) I do?",
           "{S}. (Any ideas|Any advice|Any tips|What now|Can you help me|Help me|What would you do|Please help me)(?|)", "{S}, (what now|any ideas|any advice|what can I do|what should I do)?",
           "{S}(.|!|)", "{S}. Do you have (an idea|some advice|a tip)(| for me)?", "What is the best thing to do (when|if) {s}?"),
    "eat": ("{S}(.|!) What (should|can|could) I (eat|have|cook)(| now)?", "What (should|can) I eat (when|if) {s}?"),
    "drink": ("{S}(.|!) What (should|can|could) I drink(| now)?", "What (should|can) I drink (when|if) {s}?"),
    "say": ("{S}(.|!|)", "{S}(.|!) (What do you say|Imagine that)(.|!)", "(You know what|Guess what|Hello|Hi)? {S}(.|!)")}


def situations(a: Asker) -> list[Turn]:
    says, topic, reply = a.r.choice(SITUATIONS)
    text = a.r.choice(says)
    if text.startswith("it is ") and a.r.random() < 0.2:
        text = "it's" + text[5:]
    elif text.startswith("I am ") and a.r.random() < 0.3:
        text = "I'm" + text[4:]
    if a.r.random() < 0.3 and not text.endswith(("outside", "now", "tomorrow", "again")):
        text += a.r.choice((" today", " now", " outside", " today") if text.startswith(("it", "there", "the sun")) else (" today", " now"))
    return a.turn(_TOPICS[topic], reply, s=text, S=capital(text))


_HOW = ("How (do|can|should|could|would|must) (I|you|we|one|people) {w}?", "What is the (best|easiest|right|fastest|normal) way to {w}?", "What's (a good|the best|an easy) way to {w}?",
        "What do (I|you|we) (do|have to do|need to do|must do) to {w}?", "(Tell me|Show me|Explain to me|Explain|Teach me|Describe) how (to|I can|you) {w}(| please| step by step).",
        "I (want|would like|need|have|am trying) to {w}. (How does that work|How do I do that|What do I do|Can you help me|What are the steps|How|Please help)?",
        "(Give me|List|Write down|I need) (the |)steps to {w}.", "How to {w}?", "(Can|Could|Would) you (tell|show|explain to|teach) me how to {w}?", "What are the steps to {w}?",
        "(Please |)help me (to |){w}.", "Is there an easy way to {w}?", "(Do|Would) you know how to {w}?", "I (do not|don't) know how to {w}.", "What is the (trick|secret|first step) to {w}?")


def how_to(a: Asker) -> list[Turn]:
    names, steps = a.r.choice(HOW_TO)
    what = names[0] if a.r.random() < 0.25 else a.r.choice(names)
    listed = "\n".join(f"{i}. {step}" for i, step in enumerate(steps, 1))
    patterns = [p for p in _HOW if "first step" not in p] if a.r.random() < 0.9 else _HOW
    return a.turn(patterns, f"Here is how to {names[0]}:\n{listed}", w=what)


def sayings(a: Asker) -> list[Turn]:
    asks, reply = a.r.choice(SAYINGS)
    return a.turn(asks, reply)


def known_facts(a: Asker) -> list[Turn]:
    asks, reply = a.r.choice(chat.FACTS)
    return a.turn(asks, reply)


# ------------------------------------------------------------------ sums, the user's own facts, what is not known
_THINGS_COUNTED = ("apples", "pears", "coins", "books", "balls", "cookies", "nuts", "eggs", "cards", "marbles")


def sums(a: Asker) -> list[Turn]:
    r = a.r
    x, y, what = r.randint(2, 60), r.randint(2, 30), r.choice(_THINGS_COUNTED)
    if r.random() < 0.5:
        word, sign, value = r.choice((("plus", "+", x + y), ("minus", "-", x + y - y)))
        left = x if sign == "+" else x + y
        return a.turn(("(What is|What's|How much is|Calculate) {x} {word} {y}(|?)", "{x} {word} {y}?", "{x} {s} {y}?", *about("what {x} {word} {y} is", "how much {x} {word} {y} is")),
                      f"{left} {sign} {y} = {value}.", x=str(left), y=str(y), word=word, s=sign)
    x, y = max(x, y) + 1, min(x, y)
    if r.random() < 0.5:
        verb, gone = r.choice((("eat", "left"), ("lose", "left"), ("give away", "left"), ("sell", "left")))
        return a.turn(("If I have {x} {w} and {v} {y}, how many (are left|do I have)?", "I have {x} {w} and {v} {y}(| of them). How many (are left|do I have now|are there)?",
                       "I had {x} {w}. I {v} {y}. How many {w} are left?"),
                      f"{x} - {y} = {x - y}, so {x - y} {what} are {gone}.", x=str(x), y=str(y), w=what, v=verb)
    return a.turn(("If I have {x} {w} and (get|buy|find) {y} more, how many do I have?", "I have {x} {w} and (get|buy|find) {y} more. How many {w} (do I have|are there)(| now)?"),
                  f"{x} + {y} = {x + y}, so you have {x + y} {what}.", x=str(x), y=str(y), w=what)


_NAME_SAID = ("My name is {n}.", "I am {n}.", "I'm {n}.", "(Hello|Hi|Hey)(,|!) (my name is|I am|I'm) {n}.", "(You can call|Call|Please call) me {n}.", "People call me {n}.", "This is {n}.")
_NAME_ASKED = ("What is my name?", "(What's|Tell me|Do you know|Do you remember|Say) my name(?|.)", "Who am I?", "What did I say my name was?", "What am I called?",
               "How (do people call me|am I called)?", *about("what my name is", "who I am"))


def my_facts(a: Asker) -> list[list[Turn]]:
    """What the user says of himself and the question on it, which may come later."""
    r, s = a.r, a.s
    name, city, animal, color = s.name(), s.city(), s.animal(), s.color()
    kin, thing, food, n = r.choice(lex.RELATIONS), s.object(), s.fruit(), str(r.randint(6, 90))
    pairs = (
        (_NAME_SAID, f"Nice to meet you, {name}!", _NAME_ASKED, f"Your name is {name}."),
        (("I have a {k} (named|called) {n}.", "My {k} is (named|called) {n}.", "The name of my {k} is {n}.", "(Hello|Hi), I have a {k}. (His|Her|Its) name is {n}."),
         f"{name} is a nice name.", ("What is (the name of my {k}|my {k} called|my {k}'s name)?", "How is my {k} called?", "(Who is|What do I call) my {k}?",
                                     "Do you remember the name of my {k}?", *about("what my {k} is called")), f"Your {animal} is named {name}."),
        (("I live in {c}.", "I am from {c}.", "My home is in {c}.", "I come from {c}."), f"{city} sounds nice!",
         ("Where do I live?", "Where is my home?", "In which city do I live?", "Where am I from?", *about("where I live")), f"You live in {city}."),
        (("My favorite color is {o}.", "I like the color {o} (best|most).", "The color I like best is {o}."), f"{capital(color)} is a nice color.",
         ("What is my favorite color?", "(Which|What) color do I like(| best| most)?", *about("my favorite color")), f"Your favorite color is {color}."),
        (("I like {f}.", "I love {f}.", "I like to eat {f}.", "My favorite food is {f}."), f"Good to know that you like {food}.",
         ("What do I like(| to eat)?", "What is my favorite food?", *about("what I like")), f"You like {food}."),
        (("I am {y} years old.", "I'm {y} years old.", "My age is {y}.", "I am {y}."), "Thank you for telling me.", ("How old am I?", "What is my age?", *about("how old I am")), f"You are {n} years old."),
        (("I bought (a|the) {t} (today|yesterday).", "I have a new {t}.", "I got a {t} (as a gift|for my birthday)."), f"Enjoy your {thing}!",
         ("What did I (buy|get)?", "What is new?", "What do I have?", *about("what I (bought|got)")), f"You have a new {thing}."),
        (("My {r} is (named|called) {n}.", "The name of my {r} is {n}.", "I have a {r} (named|called) {n}."), f"{name} is a nice name.",
         ("What is (the name of my {r}|my {r} called|my {r}'s name)?", "Who is my {r}?", *about("what my {r} is called")), f"Your {kin} is named {name}."))
    said, reply, asked, known = pairs[0] if r.random() < 0.3 else r.choice(pairs)
    slots = {"n": name, "k": animal, "c": city, "o": color, "f": food, "y": n, "t": thing, "r": kin}
    return [a.turn(said, reply, **slots), a.turn(asked, known, **slots)]


def unknown(a: Asker) -> list[Turn]:
    """Words and people that do not exist."""
    word = a.s.pseudo_word()
    name, thing = capital(word), article(word)
    patterns, reply = a.r.choice((
        (("What is {t}?", "Tell me (about|something about) {t}.", "(Describe|Explain) {t}.", *about("what {t} is")), f"I do not know what {thing} is."),
        (("What do I need {t} for?", "What is {t} (used |good |)for?", "What can I do with {t}?"), f"I do not know what {thing} is."),
        (("Where does {t} live?", "What does {t} eat?", "Can {t} fly?", "How many legs does {t} have?"), f"I do not know what {thing} is."),
        (("Is {t} (an animal|a fruit|a tool|a bird|a vehicle|a musical instrument)?",), f"I do not know what {thing} is."),
        (("Who is {n}?", "Do you know {n}?", "Tell me who {n} is.", *about("who {n} is")), f"I do not know who {name} is."),
        (("What is the capital of {n}?", "(Tell me|Name) the capital of {n}."), f"I do not know the capital of {name}."),
        (("What is the opposite of {w}?", "(Tell me|Give me) the opposite of {w}."), f"I do not know the opposite of {word}."),
        (("How (do|can) I {w}(| a house| an egg| my dog)?", "What happens when I {w}?", "Why do people {w}?", "When was {n} born?", "Who wrote {n}?"), UNKNOWN)))
    return a.turn(patterns, reply, t=thing, n=name, w=word)


FORMS = ((animals, 3.0), (animal_talk, 1.2), (which_animal, 0.3), (uses, 2.5), (needs, 1.3), (thing_talk, 1.0), (jobs, 1.5), (places, 1.0),
         (countries, 1.5), (lists, 2.5), (is_it, 2.5), (things, 2.5), (words, 1.6), (opposites, 0.6), (compare, 1.2), (situations, 2.8),
         (how_to, 2.0), (sayings, 5.0), (known_facts, 2.0), (sums, 0.7), (unknown, 0.8))

_OPENINGS = ("Hello! ", "Hi, ", "Hi! ", "Hey, ", "Please tell me: ", "I have a question. ", "One more question: ", "Quick question: ", "Tell me, ", "Okay, ",
             "So, ", "And ", "My son asked me: ", "My daughter wants to know: ", "For school: ", "Just wondering: ", "Sorry, but ", "Good morning! ",
             "Thanks. ", "Now something else. ", "Next question: ", "I am learning English. ", "Answer this: ", "Please answer: ", "Hmm, ", "By the way, ")
_CLOSINGS = (" Please.", " Thank you!", " Thanks!", " Please answer in one sentence.", " I want to know.", " Please explain.", " Answer briefly.", " I am not sure.", " Do you know that?")


def typed(s: Source, text: str) -> str:
    """With words around the question, or as people type."""
    r, roll = s.r, s.r.random()
    if roll < 0.62:
        return text
    if roll < 0.76:
        if r.random() < 0.6 and not text.startswith(("I ", "I'")):
            text = text[0].lower() + text[1:]
        return text.rstrip(".?!") if r.random() < 0.7 else text
    if roll < 0.92:
        opening = r.choice(_OPENINGS)
        if opening[-2] in ",dt" and not text.startswith(("I ", "I'")):
            text = text[0].lower() + text[1:]
        return opening + text
    if text.endswith("?") and r.random() < 0.5:
        return text[:-1] + r.choice((" please?", ", please?", "??", " ?"))
    return text + r.choice(_CLOSINGS) if text[-1] in ".?!" else text


def _pick(r, forms):
    return r.choices([f for f, _ in forms], [w for _, w in forms])[0]


def document(s: Source) -> dict:
    """1 to 7 exchanges; in a quarter of them the user says something of himself and asks for it later."""
    a, r = Asker(s), s.r
    turns: list[list[Turn]] = []
    for _ in range(r.choice((1, 1, 2, 2, 3, 3, 4, 5, 6))):
        made = _pick(r, FORMS)(a)
        if made:
            turns.append([(typed(s, made[0][0]), made[0][1]), *made[1:]])
    if r.random() < 0.22 or not turns:
        said, asked = my_facts(a)
        if said and asked:
            first = r.randint(0, len(turns))
            turns.insert(first, said)
            turns.insert(r.randint(first + 1, len(turns)), asked)
    turns = [[t for t in turn if handtyped.normal(t[0]) not in handtyped.LAST] for turn in turns]
    messages = [m for turn in turns for q, reply in turn for m in (user(q), answer(reply, exact=False))]
    return conversation("chat", s.system(messages)) if messages else document(s)


def held(s: Source) -> dict | None:
    """One exchange whose wording is kept back."""
    made = _pick(s.r, [(f, w) for f, w in FORMS if f not in (animal_talk, thing_talk)])(Asker(s, held=True))
    if not made or handtyped.normal(made[0][0]) in handtyped.LAST:
        return None
    return conversation("chat", [user(made[0][0]), answer(made[0][1])])
