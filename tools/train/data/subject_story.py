"""Stories about what the user asked for: the subject is the hero, the object, the place or the plot (family `story`)."""
from __future__ import annotations

from . import handtyped
from . import lexicon as lex
from .base import Source, answer, article, conversation, user
from .phrasing import ask
from .story import PLOTS, Story, pick

_ASKS = ("(Write|Tell me|Please tell me|Tell|Please write|Give me|I want|I would like|Make up|Invent|Please invent|Think of) (a|a short|a little|a small|a nice|a new|one) (story|tale) about {}.",
         "(Can|Could|Would|Will) you (please |)(write|tell me|tell|make up|invent|give me) (a|a short|a little|a nice) (story|tale) about {}(|, please)?",
         "(Write|Tell me|Make|Give me) a (bedtime |short |)story (with|about) {}(| in it).", "(A|A short|One) story about {}(|, please|!|.)", "Do you know a (|short )story about {}?",
         "(Let me hear|I want to hear|I would like to hear|I love) a story about {}.", "(My son|My daughter|My child) wants a story about {}.", "Story about {}(|.)",
         "Write (something|a text|a few sentences) about {} as a story.", "Once upon a time there was {}. (Go on.|Tell the story.|Continue.)", "(Once|Now) tell me (the |a )story of {}.")
_LOOKS = ("small", "little", "big", "old", "young", "lonely", "happy", "sad", "funny", "lazy", "tired", "strange", "lucky", "poor", "wise", "friendly")
_THING_LOOKS = ("old", "new", "small", "big", "magic", "shiny", "wooden", "heavy", "tiny", "beautiful", "strange", "lost", "broken")
_BEINGS = ("girl", "boy", "king", "queen", "princess", "prince", "knight", "dragon", "robot", "witch", "pirate", "ghost", "unicorn", "wizard", "dinosaur", "giant", "fairy", "monster",
           "student", "man", "woman", "grandmother", "grandfather", "astronaut", "dwarf")
_ANIMALS = tuple(lex.ANIMALS) + ("lion", "tiger", "monkey", "wolf", "cow", "pig", "deer", "swan", "camel", "penguin", "goose", "beaver", "otter", "crow", "panda", "seal", "elephant", "eagle",
                                 "snake", "bee", "butterfly", "kitten", "puppy", "pony", "whale", "dolphin", "chicken", "crab", "snail", "giraffe", "zebra", "kangaroo", "ant", "spider")
_THINGS = tuple(lex.OBJECTS) + ("kite", "balloon", "boat", "toy", "sword", "crown", "stick", "phone", "bicycle", "car", "guitar", "chest", "painting", "robot", "puzzle")
_PLACES = tuple(lex.PLACES) + ("zoo", "island", "desert", "mountain", "jungle", "sea", "hospital", "airport", "hotel", "valley", "pond", "city", "castle")
_THEMES = {"lost": ("help", "a search", "asking for help", "something that was lost"), "broken": ("working together", "a repair", "something that broke"),
           "hungry": ("kindness", "being kind", "a kind act", "hunger"), "storm": ("friendship", "a storm", "the rain", "two friends and a storm", "two friends", "good friends", "bad weather", "thunder"),
           "trade": ("a gift", "a trade", "a seller", "a shop"), "race": ("a race", "winning", "helping others", "sports", "a competition", "losing"),
           "map": ("a treasure", "an old map", "sharing", "a treasure map", "a chest", "a secret", "an adventure", "pirates and a treasure")}

THEME_WORDS = frozenset(word for themes in _THEMES.values() for theme in themes for word in theme.split())


def _subject(s: Source) -> tuple[str, dict[str, str]]:
    """The words of the request and the part of the state that they fix."""
    r = s.r
    kind = r.randrange(14)
    being = s.r.choice(_ANIMALS if r.random() < 0.6 else _BEINGS if r.random() < 0.6 else lex.JOBS)
    trait = r.choice(lex.TRAITS if r.random() < 0.6 else _LOOKS)
    thing, color = r.choice(_THINGS), r.choice(lex.COLORS if r.random() < 0.6 else _THING_LOOKS)
    name = s.name()
    if kind < 3:
        return article(being), {"job": being}
    if kind < 5:
        return article(f"{trait} {being}"), {"job": being, "trait": trait}
    if kind == 5:
        return (f"{article(being)} {r.choice(('named', 'called'))} {name}", {"job": being, "hero": name}) if r.random() < 0.6 else \
            (f"{name} the {being}", {"job": being, "hero": name})
    if kind == 6:
        return r.choice((f"{article(being)} and {article(thing)}", f"{article(being)} with {article(thing)}", f"{article(being)} who has {article(thing)}")), {"job": being, "object": thing}
    if kind == 7:
        return f"{article(being)} {r.choice(('named', 'called'))} {name} and {article(f'{color} {thing}')}", \
            {"job": being, "hero": name, "object": thing, "color": color}
    if kind == 8:
        other = r.choice([x for x in _ANIMALS if x != being])
        return f"{article(being)} and {article(other)}", {"job": being, "animal": other, "plot": r.choice(("lost", "hungry", "race"))}
    if kind == 9:
        how = r.choice(("lost", "broken"))
        return r.choice((article(f"{how} {thing}"), f"{article(being)} and {article(f'{how} {thing}')}", f"{article(being)} who {'lost' if how == 'lost' else 'broke'} {article(thing)}")), \
            {"object": thing, "plot": how, "job": being}
    if kind == 10:
        return article(f"{color} {thing}"), {"object": thing, "color": color, **({"plot": color} if color in ("lost", "broken") else {})}
    if kind == 11:
        place = r.choice(_PLACES)
        return r.choice((f"the {place}", article(place), f"a day at the {place}", f"{article(being)} at the {place}", f"{article(being)} in the {place}")), {"goal": place, "job": being}
    if kind == 12:
        animal = r.choice(_ANIMALS)
        how, plot = r.choice((("hungry", "hungry"), ("tired", "hungry"), ("helpful", "lost")))
        return article(f"{how} {animal}"), {"animal": animal, "plot": plot}
    plot = r.choice(PLOTS)
    theme = r.choice(_THEMES[plot])
    fixed = {"plot": plot}
    if theme.startswith(("a ", "an ", "two", "good")) and r.random() < 0.4:
        return f"{article(being)} and {theme}" if not theme.startswith(("two", "good")) else theme, {**fixed, "job": being}
    return theme, fixed


def document(s: Source) -> dict:
    """The story that was asked for, and 0 to 3 questions on it."""
    if s.chance(0.7):
        s.novel = 0.0
    subject, fixed = _subject(s)
    if fixed.get("color") in ("lost", "broken"):
        fixed["color"] = s.r.choice(lex.COLORS)
    story = Story(s, hero=fixed.get("hero"), fixed_partners=s.chance(0.7), fixed=fixed)
    prompt = None
    while prompt is None or handtyped.normal(prompt) in handtyped.LAST:
        prompt = ask(s, [p.replace("{}", "{x}") for p in _ASKS], x=subject)
    messages = [user(prompt), answer(story.text, exact=False)]
    for question, reply in pick(s, [story], s.r.randint(0, 3)):
        if not question.startswith("What kind of person"):
            messages += [user(question), answer(reply)]
    return conversation("story", s.system(messages))
