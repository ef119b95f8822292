"""Questions on animals, things and their use, jobs, places and countries, alone and in a row."""
from __future__ import annotations

from . import knowledge
from . import lexicon as lex
from .base import capital, listing
from .chat import Turn
from .everyday_tables import ANIMALS, ANIMALS_BY_NAME, COUNTRIES, JOBS, PLACES, THINGS, USES, Asker
from .phrasing import about

# ------------------------------------------------------------------ animals
_LIVES = ("Where does {n} live?", "Where do {m} live?", "In (what|which) (kind of |)place does {n} live?",
          "(Where|What) is the home of {n}?", "Where (can|could|would|do) (I|you|we|people) (find|see|meet) {n}?",
          "Where (can|could|would|do) (I|you|we|people) (find|see|meet) {m}?", "Where are {m} (found|at home)?",
          "Where do you find {m}?", *about("where {n} lives", "where {m} live", "where I can find {m}"))
_EATS = ("What does {n} eat?", "What do {m} eat?", "What (is|could be) the food of {n}?", "What do {m} (like to eat|feed on)?",
         "What (can|should|do) I (feed|give) {n}?", "What does {n} (like to eat|feed on)?",
         *about("what {n} eats", "what {m} eat"))
_YOUNG = ("What is a (baby|young) {b} called?", "(What|How) do you call a (baby|young) {b}?", "What is the (name|word) (of|for) a (young|baby) {b}?",
          "What is the (young|baby) of {n} called?", *about("what a (young|baby) {b} is called"))
_SOUND = ("What sound does {n} make?", "What noise does {n} make?", "What does {n} say?", "What sounds do {m} make?",
          *about("what sound {n} makes"))
_LEGS = ("How many legs does {n} have?", "How many legs do {m} have?", "How many legs has {n}?",
         *about("how many legs {n} has", "how many legs {m} have"))
_COLOR = ("(What|Which) color is {n}?", "(What|Which) color does {n} have?", "What is the color of {n}?", "(What|Which) color are {m}?",
          *about("what color {n} is", "which color {m} have"))
_FLY = ("Can {n} fly?", "Can {m} fly?", "Is {n} able to fly?", "Do {m} fly?", "Are {m} able to fly?", "Does {n} fly?",
        *about("if {n} can fly", "whether {m} can fly"))
_SWIM = ("Can {n} swim?", "Can {m} swim?", "Is {n} able to swim?", "Are {m} good at swimming?", *about("if {n} can swim"))
_IT = {"lives": ("(And |)(where|Where) does it live?", "Where can I find it?", "Where is its home?", "(So |And |)where does it live?"),
       "eats": ("(And |)(what|What) does it eat?", "What can I feed it?", "What does it like to eat?", "(And |)what is its food?"),
       "young": ("What is its (baby|young) called?", "(And |)what do you call a young one?", "What are the young called?"),
       "sound": ("What sound does it make?", "(And |)what noise does it make?"),
       "legs": ("How many legs does it have?", "(And |)how many legs does it have?"),
       "color": ("(What|Which) color is it?", "(And |)what color does it have?"),
       "fly": ("Can it fly?", "Is it able to fly?", "Does it fly?", "(And |)can it fly?"),
       "swim": ("Can it swim?", "(And |)can it swim?")}


def _animal(a: Asker, row: list[str]) -> dict[str, tuple[tuple[str, ...], str, str]]:
    """attribute -> (wordings, answer in the singular, answer in the plural)"""
    n, m, lives, eats, move, young, sound, legs, color = row
    bare = n.split(" ", 1)[1]
    one, many = capital(n), capital(m)
    found = {"lives": (_LIVES, f"{one} lives {lives.replace('build nests', 'builds nests')}.", f"{many} live {lives}."),
             "eats": (_EATS, f"{one} eats {eats}.", f"{many} eat {eats}."),
             "legs": (_LEGS, f"{one} has {legs} legs.", f"{many} have {legs} legs."),
             "fly": (_FLY, *((f"Yes, {n} can fly.", f"Yes, {m} can fly.") if move == "fly" else
                             (f"No, {n} cannot fly.", f"No, {m} cannot fly.")))}
    if color != "many colors":
        found["color"] = (_COLOR, f"{one} is {color}.", f"{many} are {color}.")
    if move == "swim":
        found["swim"] = (_SWIM, f"Yes, {n} can swim.", f"Yes, {m} can swim.")
    if young != "-":
        found["young"] = (_YOUNG, f"A young {bare} is called {young}.", f"A young {bare} is called {young}.")
    if sound not in ("-", "talk", "sing"):
        verb = sound + ("es" if sound.endswith(("sh", "ss")) else "s")
        found["sound"] = (_SOUND, f"{one} {verb}.", f"{many} {sound}.")
    return found


def animals(a: Asker) -> list[Turn]:
    row = a.r.choice(ANIMALS)
    n, m = row[:2]
    found = _animal(a, row)
    patterns, one, many = found[a.r.choice(("lives", "lives", "eats", *found))]
    turns = a.turn(patterns, one, n=n, m=m, b=n.split(" ", 1)[1])
    if not turns:
        return []
    if n != m and f" {m.lower()} " in f" {turns[0][0].lower().rstrip('.?')} ":
        turns = [(turns[0][0], many)]
    return turns + _more_of_animal(a, row, turns[0][1]) if a.r.random() < 0.3 and not a.held else turns


def _more_of_animal(a: Asker, row: list[str], said: str) -> list[Turn]:
    found = [(key, one) for key, (_, one, many) in _animal(a, row).items() if said not in (one, many)]
    a.r.shuffle(found)
    turns: list[Turn] = []
    for key, reply in found[:a.r.randint(1, 3)]:
        turns += a.turn(_IT[key], reply)
    return turns


_ABOUT = ("What is {n}?", "Tell me (about|something about) {n}.", "What do you know about {n}?", "Do you know {n}?")


def animal_talk(a: Asker) -> list[Turn]:
    """What is an otter? Where does it live? And a whale?"""
    things = [t for t in lex.KNOWLEDGE + lex.KNOWLEDGE_MORE if t.name in ANIMALS_BY_NAME]
    t, other = a.r.sample(things, 2)
    turns = a.turn(_ABOUT, knowledge.core(t), n=t.name)
    turns += _more_of_animal(a, ANIMALS_BY_NAME[t.name], "")
    if a.r.random() < 0.5:
        turns += a.turn(("And {n}?", "What about {n}?", "And what is {n}?"), knowledge.core(other), n=other.name)
        turns += _more_of_animal(a, ANIMALS_BY_NAME[other.name], "")
    return turns


_WHICH_ANIMAL = ("(Which|What) animal {does}?", *about("which animal {does}"))


def which_animal(a: Asker) -> list[Turn]:
    row = a.r.choice([row for row in ANIMALS if row[6] not in ("-", "buzz", "bark", "cluck", "growl", "squeak", "roar", "talk", "sing")])
    verb = row[6] + ("es" if row[6].endswith(("sh", "ss")) else "s")
    return a.turn(_WHICH_ANIMAL, f"{capital(row[0])} {verb}.", does=verb)


# ------------------------------------------------------------------ things and what they are for
_FOR = ("What do (I|you|we|people) (need|use) {x} for?", "What {be} {x} (used |good |)for?", "What (can|could) (I|you|we|one) do with {x}?",
        "Why (do|would|should) (I|you|we|people) (need|use|have|want|buy) {x}?", "What is the (use|purpose|point) of {x}?",
        "For what (do|can) (I|you|we|people) use {x}?", "When do (I|you|we|people) (need|use) {x}?", "What would (I|you) (need|use) {x} for?",
        "What do (people|you) do with {x}?", "What should I (do|use) {x} for?", "What does one (need|use) {x} for?", "How {be} {x} (useful|helpful)?",
        *about("what {x} {be} (good |used |)for", "what I need {x} for", "why people (need|use) {x}", "what (you|people) use {x} for"))
_NEED = ("What do (I|you|we) (need|use) to {do}?", "What (can|should|could) I (use|take) to {do}?",
         "I (want|need|have|would like) to {do}. What (do I need|should I use|can I use|should I take|do I use)?",
         "With what (can|do) (I|you|we) {do}?", "What (is used|can be used|do people use) to {do}?", "What helps (me|us|people) to {do}?",
         "Which thing (helps|do I need) to {do}?", *about("what I (need|should use) to {do}", "what people use to {do}"))
_IT_FOR = ("What do I need {it} for?", "What {be} {it} (good |used |)for?", "What can I do with {it}?", "Why do people need {it}?", "When do I use {it}?")
_PLURAL = ("glasses", "gloves", "boots", "shoes", "scissors")


def _is(x: str) -> str:
    return "are" if x in _PLURAL else "is"


def uses(a: Asker) -> list[Turn]:
    x, do = a.r.choice(USES)
    name = x
    if a.r.random() < 0.15 and x.startswith(("a ", "an ")):
        name = a.r.choice(("my ", "the ")) + x.split(" ", 1)[1]
    return a.turn(_FOR, f"You use {x} to {do}.", x=name, be=_is(x))


def needs(a: Asker) -> list[Turn]:
    x, do = a.r.choice(USES)
    first = next(name for name, use in USES if use == do)   # the same use has one answer
    return a.turn(_NEED, f"You need {first} to {do}.", do=do)


def thing_talk(a: Asker) -> list[Turn]:
    """What is a map? What do I need it for? And a compass?"""
    rows = [row for row in USES if row[0] in THINGS]
    turns: list[Turn] = []
    for k, (x, do) in enumerate(a.r.sample(rows, a.r.randint(1, 3))):
        t = THINGS[x]
        patterns = ("And {n}?", "What about {n}?", "And what {be} {n}?") if k else ("What {be} {n}?", "Tell me what {n} {be}.")
        turns += a.turn(patterns, knowledge.core(t), n=x, be=_is(x))
        if a.r.random() < 0.6:
            turns += a.turn(_IT_FOR, f"You use {x} to {do}.", it="them" if x in _PLURAL else "it", be=_is(x))
    return turns


# ------------------------------------------------------------------ jobs, places, countries
_DOES = ("What does {n} do?", "What is the (job|work|task) of {n}?", "What do {m} do?", "What does {n} do (all day|at work|for a living)?",
         "What kind of work does {n} do?", *about("what {n} does", "what the job of {n} is"))
_WORKS = ("Where does {n} work?", "Where do {m} work?", "What is the work place of {n}?", *about("where {n} works"))
_TAKES = ("What does {n} need(| for work| for the job| to work)?", "What (tools|things) does {n} (need|use)?", "What does {n} (use|work with)?",
          *about("what {n} needs for work"))
_WHO = ("Who {does}?", "(Which|What) (person|job) {does}?", "What do you call (a person|somebody|someone) who {does}?", *about("who {does}"))
_WHO_WORKS = ("Who works {where}?", "Which people work {where}?", *about("who works {where}"))


def jobs(a: Asker) -> list[Turn]:
    n, does, where, needs_ = a.r.choice(JOBS)
    one = capital(n)
    slots = {"n": n, "m": (n.split(" ", 1)[1] + "s").replace("mans", "men"), "does": does, "where": where}
    kind = a.r.randrange(6)
    if kind == 0:
        return a.turn(_WORKS, f"{one} works {where}.", **slots)
    if kind == 1:
        return a.turn(_TAKES, f"{one} needs {needs_}.", **slots)
    if kind == 2:
        return a.turn(_WHO, f"{one} {does}.", **slots)
    if kind == 3:
        there = [row[0] for row in JOBS if row[2] == where][:2]
        return a.turn(_WHO_WORKS, f"{capital(listing(there))} {'works' if len(there) == 1 else 'work'} {where}.", **slots)
    turns = a.turn(_DOES, f"{one} {does}.", **slots)
    if turns and a.r.random() < 0.3 and not a.held:
        turns += a.turn(("Where does (he|she|this person) work?", "And where?"), f"{one} works {where}.")
        turns += a.turn(("What does (he|she|this person) need?",), f"{one} needs {needs_}.")
    return turns


_DO_AT = ("What (can|do) (I|you|we|people) do {at} {n}?", "Why do people go to {n}?", "What is {n} (good |used |)for?",
          "What happens {at} {n}?", *about("what people do {at} {n}", "what {n} is for"))
_FIND_AT = ("What (can|do|will|would) (I|you|we) (find|see) {at} {n}?", "What is {at} {n}?", "What things are {at} {n}?",
            *about("what I can find {at} {n}"))
_WHERE_DO = ("Where (can|do|could|should) (I|you|we|people) {do}?", "I want to {do}. Where (can|should) I go?", "Where should I go to {do}?",
             "Which place is good to {do}?", *about("where I can {do}", "where people {do}"))


def places(a: Asker) -> list[Turn]:
    n, do, there = a.r.choice(PLACES)
    at = "on" if n in ("a mountain", "a farm", "a playground") else "at" if n.split()[-1] in ("beach", "station", "airport", "harbor", "market", "bank", "post", "office") else "in"
    kind = a.r.randrange(3)
    if kind == 0:
        return a.turn(_DO_AT, f"People {do} {at} {n}.", n=n, at=at)
    if kind == 1:
        return a.turn(_FIND_AT, f"You can find {there} {at} {n}.", n=n, at=at)
    if "they" in do:
        return []
    return a.turn(_WHERE_DO, f"You can {do} {at} {n}.", do=do)


_CAPITAL = ("What is the capital(| city) of {n}?", "(Which|What) city is the capital of {n}?", "(Tell me|Name|Give me) the capital of {n}.",
            "What's the capital of {n}?", "How is the capital of {n} called?", "(Do you know|Can you tell me) the capital of {n}?",
            "What is {n}'s capital?", *about("what the capital of {n} is", "which city is the capital of {n}"))
_CONTINENT = ("(On|In) (which|what) continent is {n}?", "(Which|What) continent is {n} (on|in)?", "Where is {n}?", "In which part of the world is {n}?",
              "Where (can I find|do I find) {n} on a map?", *about("where {n} is", "on which continent {n} is"))
_LANGUAGE = ("(What|Which) language (is spoken|do people speak|do they speak) in {n}?", "What do people speak in {n}?",
             "(What|Which) language does one speak in {n}?", "What is the language of {n}?", "How do people talk in {n}?",
             *about("what language people speak in {n}", "which language they speak in {n}"))
_COUNTRY = ("(In |)(which|what) country is {c}(| in)?", "{c} is the capital of which country?", "Of which country is {c} the capital?", "Where is {c}?",
            "(What|Which) country has the capital {c}?", *about("where {c} is", "in which country {c} is"))
_THERE = {0: ("What is (its|the) capital?", "And the capital?", "And what is its capital?"),
          1: ("Where is it?", "On which continent is it?", "And where is it?"),
          2: ("What language do (people|they) speak there?", "And (which|what) language?", "What do people speak there?")}


def countries(a: Asker) -> list[Turn]:
    n, city, land, language = a.r.choice(COUNTRIES)
    one = capital(n)
    be = "are" if n.startswith("the ") else "is"
    if a.r.random() < 0.2:
        return a.turn(_COUNTRY, f"{city} is in {n}.", c=city)
    replies = (f"The capital of {n} is {city}.", f"{one} {be} in {land}.", f"People in {n} speak {language}.")
    k = a.r.randrange(3)
    patterns = [p.replace("is {n}", be + " {n}") for p in _CONTINENT] if k == 1 else (_CAPITAL, (), _LANGUAGE)[k]
    turns = a.turn(patterns, replies[k], n=n)
    if turns and a.r.random() < 0.35 and not a.held:
        for k in a.r.sample([i for i in range(3) if i != k], a.r.randint(1, 2)):
            turns += a.turn(_THERE[k], replies[k])
        if a.r.random() < 0.5:
            other, its = a.r.choice(COUNTRIES)[:2]
            turns += a.turn(("And what is the capital of {n}?",), f"The capital of {other} is {its}.", n=other)
    return turns
