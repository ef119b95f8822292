"""Tool calls and answers from their results (family `tool`)."""
from __future__ import annotations

import json
from typing import Callable, NamedTuple

from . import knowledge
from . import lexicon as lex
from .base import Source, answer, article, capital, conversation, user

_ROOMS = ("attic", "bedroom", "cellar", "garden", "kitchen", "office", "workshop")
_WARM_ROOMS = ("bedroom", "kitchen", "office", "workshop", "greenhouse")
_MORE_ROOMS = ("bathroom", "garage", "hall", "living room", "library", "studio")
_MONEY = ("dollars", "euros", "francs", "pounds", "yen")
_MORE_MONEY = ("pesos", "rupees", "crowns", "lira", "won")
_TOPICS = ("rivers", "ships", "gardens", "stars", "bread", "horses", "music", "kings")
_MORE_TOPICS = ("trains", "birds", "castles", "computers", "cooking", "history", "oceans", "chess")
_EVENTS = ("a concert", "a lesson", "a meeting", "a walk", "lunch")
_MORE_EVENTS = ("a party", "dinner", "an exam", "a picnic", "an interview", "training")
_CONDITIONS = ("cloudy", "rainy", "snowy", "sunny", "windy")
_WAYS = ("bus", "car", "plane", "train")
_ENDINGS = ("txt", "json", "png")
_MORE_ENDINGS = ("csv", "md", "pdf", "log", "py")

OK = {"ok": True}


class Use(NamedTuple):
    """One request: what the user says, the arguments, the result, the answer from the result."""
    request: str
    arguments: dict
    result: object
    reply: str


class Tool(NamedTuple):
    name: str
    description: str
    properties: dict
    use: Callable[[Source], Use]

    @property
    def definition(self) -> dict:
        return {"name": self.name, "description": self.description,
                "parameters": {"type": "object", "properties": self.properties,
                               "required": list(self.properties)}}


def _types(**kinds: str) -> dict:
    names = {"s": "string", "i": "integer", "b": "boolean", "n": "number"}
    return {k: ({"type": "array", "items": {"type": "string"}} if t == "a" else {"type": names[t]})
            for k, t in kinds.items()}


def _path(s: Source) -> str:
    ending = s.r.choice(_MORE_ENDINGS) if s.new() else s.r.choice(_ENDINGS)
    return f"{s.word()}/{s.word()}.{ending}"


def _room(s: Source, known) -> str:
    return s.r.choice(_MORE_ROOMS) if s.new() else s.r.choice(known)


def _weather(s: Source) -> Use:
    city, t, sky = s.city(), s.r.randint(-5, 35), s.r.choice(_CONDITIONS)
    ask = s.r.choice((f"What is the weather in {city}?", f"Will I need a coat in {city}?",
                      f"How is the weather in {city} today?"))
    return Use(ask, {"city": city}, {"temperature": t, "condition": sky},
               f"It is {sky} in {city} with {t} degrees.")


def _time(s: Source) -> Use:
    city, t = s.city(), f"{s.r.randint(0, 23):02d}:{s.r.randint(0, 59):02d}"
    ask = s.r.choice((f"Tell me the time in {city}.", f"What time is it in {city}?"))
    return Use(ask, {"city": city}, {"time": t}, f"It is {t} in {city}.")


def _event(s: Source) -> Use:
    r = s.r
    title = r.choice(_MORE_EVENTS) if s.new() else r.choice(_EVENTS)
    if s.new() and s.chance(0.3):
        title = article(s.pseudo_word())
    day, hour, number = r.choice(lex.DAYS), r.randint(8, 20), r.randint(100, 999)
    ask = r.choice((f"Please plan {title} for {day} at {hour}.",
                    f"Add {title} to my calendar on {day} at {hour}."))
    return Use(ask, {"title": title, "day": day, "hour": hour}, {"id": number},
               f"I added {title} on {day} at {hour} with the id {number}.")


def _message(s: Source) -> Use:
    r = s.r
    to = s.name()
    text = r.choice(("Happy birthday!", "I will be late.", f"Meet me at {r.randint(1, 12)} o'clock.",
                     f"The {s.object()} is ready.", f"See you at the {s.place()}.",
                     f"Please bring some {s.fruit()}."))
    if s.new() and s.chance(0.4):
        text = capital(" ".join(s.word() for _ in range(r.randint(2, 7)))) + r.choice(".!?")
    ask = r.choice((f"Send {to} this message: {text}", f"Tell {to}: {text}",
                    f"Write to {to}: {text}"))
    return Use(ask, {"to": to, "text": text}, {"status": "sent"}, f"I sent the message to {to}.")


def _note(s: Source) -> Use:
    r = s.r
    text = r.choice((f"call {s.name()}", f"buy {r.randint(2, 20)} {s.fruit()}",
                     f"the code is {r.randint(1000, 9999)}",
                     f"bring the {s.color()} {s.object()} to the {s.place()}"))
    if s.new() and s.chance(0.4):
        text = " ".join(s.word() for _ in range(r.randint(2, 8)))
    ask = r.choice((f"Make a note: {text}", f"Note this down: {text}"))
    return Use(ask, {"text": text}, {"saved": True}, "I saved the note.")


def _light(s: Source) -> Use:
    room, on = _room(s, _ROOMS), s.r.random() < 0.5
    word = "on" if on else "off"
    ask = s.r.choice((f"Turn {word} the light in the {room}.", f"Switch the {room} light {word}."))
    return Use(ask, {"room": room, "on": on}, OK, f"The light in the {room} is {word} now.")


def _temperature(s: Source) -> Use:
    room, degrees = _room(s, _WARM_ROOMS), s.r.randint(15, 27)
    ask = s.r.choice((f"Set the {room} to {degrees} degrees.",
                      f"Make the {room} {degrees} degrees warm."))
    return Use(ask, {"room": room, "degrees": degrees}, OK,
               f"The {room} is set to {degrees} degrees.")


def _stock(s: Source) -> Use:
    item, n = s.object(), s.r.randint(0, 300)
    ask = s.r.choice((f"Check the stock of the {item}.", f"How many of the {item}s do we have?"))
    return Use(ask, {"item": item}, {"count": n}, f"There are {n} in stock.")


def _music(s: Source) -> Use:
    song, artist = f"{capital(s.color())} {capital(s.object())}", s.name()
    if s.new() and s.chance(0.5):
        song = " ".join(capital(s.word()) for _ in range(s.r.randint(1, 3)))
    ask = s.r.choice((f"Play {song} by {artist}.", f"I want to hear {song} by {artist}."))
    return Use(ask, {"song": song, "artist": artist}, {"status": "playing"},
               f"Now playing {song} by {artist}.")


def _currency(s: Source) -> Use:
    r = s.r
    amount, result = r.randint(5, 900), r.randint(5, 2000)
    a, b = s.distinct(lambda: r.choice(_MORE_MONEY) if s.new() else r.choice(_MONEY), 2)
    ask = r.choice((f"How much is {amount} {a} in {b}?", f"Convert {amount} {a} to {b}."))
    return Use(ask, {"amount": amount, "from_currency": a, "to_currency": b}, {"result": result},
               f"{amount} {a} is {result} {b}.")


def _timer(s: Source) -> Use:
    n = s.r.randint(1, 120)
    ask = s.r.choice((f"Set a timer for {n} minutes.", f"Start a {n} minute timer."))
    return Use(ask, {"minutes": n}, {"status": "started"}, f"The timer is set for {n} minutes.")


def _books(s: Source) -> Use:
    r = s.r
    query, limit = (r.choice(_MORE_TOPICS) if s.new() else r.choice(_TOPICS)), r.randint(2, 8)
    if s.new() and s.chance(0.4):
        query = s.word()
    found = [f"The {s.color()} {s.object()}" for _ in range(2)]
    ask = r.choice((f"Find {limit} books about {query}.",
                    f"Search the library for {limit} books on {query}."))
    return Use(ask, {"query": query, "limit": limit}, {"found": found},
               f"I found {found[0]} and {found[1]}.")


def _route(s: Source) -> Use:
    start, end = s.distinct(s.city, 2)
    km, way = s.r.randint(50, 3000), s.r.choice(_WAYS)
    ask = s.r.choice((f"Find a route from {start} to {end}.", f"How do I get from {start} to {end}?"))
    return Use(ask, {"start": start, "end": end}, {"km": km, "by": way},
               f"Take the {way} from {start} to {end}. It is {km} km.")


def _read(s: Source) -> Use:
    path = _path(s)
    text = " ".join(s.word() for _ in range(4))
    ask = s.r.choice((f"What is in the file {path}?", f"Read {path} for me."))
    return Use(ask, {"path": path}, {"content": text}, f"The file contains: {text}")


def _delete(s: Source) -> Use:
    path = _path(s)
    ask = s.r.choice((f"Delete the file {path}.", f"Remove {path}."))
    return Use(ask, {"path": path}, OK, f"I deleted {path}.")


TOOLS = (
    Tool("get_weather", "Get the weather of a city.", _types(city="s"), _weather),
    Tool("get_time", "Get the local time of a city.", _types(city="s"), _time),
    Tool("add_event", "Add an event to the calendar.", _types(title="s", day="s", hour="i"),
         _event),
    Tool("send_message", "Send a text message to a person.", _types(to="s", text="s"), _message),
    Tool("create_note", "Save a note.", _types(text="s"), _note),
    Tool("set_light", "Turn the light of a room on or off.", _types(room="s", on="b"), _light),
    Tool("set_temperature", "Set the temperature of a room.", _types(room="s", degrees="i"),
         _temperature),
    Tool("get_stock", "Look up how many pieces of an item are in stock.", _types(item="s"), _stock),
    Tool("play_music", "Play a song.", _types(song="s", artist="s"), _music),
    Tool("convert_currency", "Convert an amount of money.",
         _types(amount="i", from_currency="s", to_currency="s"), _currency),
    Tool("set_timer", "Start a timer.", _types(minutes="i"), _timer),
    Tool("search_books", "Search the library for books.", _types(query="s", limit="i"), _books),
    Tool("find_route", "Find a way between two cities.", _types(start="s", end="s"), _route),
    Tool("read_file", "Read a file.", _types(path="s"), _read),
    Tool("delete_file", "Delete a file.", _types(path="s"), _delete))


# ------------------------------------------------------------------ tools beyond the reference
def _add_numbers(s: Source) -> Use:
    a, b = s.r.randint(0, 9999), s.r.randint(0, 9999)
    return Use(s.r.choice((f"Use the calculator to add {a} and {b}.", f"Compute {a} plus {b}.")),
               {"a": a, "b": b}, {"sum": a + b}, f"The sum is {a + b}.")


def _user_lookup(s: Source) -> Use:
    name, mail = s.name(), f"{s.pseudo_word()}@{s.pseudo_word()}.com"
    return Use(s.r.choice((f"What is the email of {name}?", f"Look up the email of {name}.")),
               {"name": name}, {"email": mail}, f"The email of {name} is {mail}.")


def _invite(s: Source) -> Use:
    people = s.distinct(s.name, s.r.randint(2, 4))
    place = s.place()
    return Use(f"Invite {', '.join(people[:-1])} and {people[-1]} to the {place}.",
               {"people": people, "place": place}, {"invited": len(people)},
               f"I invited {len(people)} people to the {place}.")


def _volume(s: Source) -> Use:
    level = s.r.randint(0, 100)
    return Use(s.r.choice((f"Set the volume to {level}.", f"Turn the volume to {level}.")),
               {"level": level}, OK, f"The volume is {level} now.")


def _door(s: Source) -> Use:
    door, locked = s.place(), s.r.random() < 0.5
    word = "Lock" if locked else "Unlock"
    return Use(f"{word} the door of the {door}.", {"door": door, "locked": locked}, OK,
               f"The door of the {door} is {'locked' if locked else 'unlocked'} now.")


def _price(s: Source) -> Use:
    item, price = s.object(), s.r.randint(1, 9999) / 100
    return Use(s.r.choice((f"How much does the {item} cost?", f"What is the price of the {item}?")),
               {"item": item}, {"price": price}, f"The {item} costs {price} coins.")


def _order(s: Source) -> Use:
    item, n, code = s.fruit(), s.r.randint(1, 50), s.code()
    return Use(s.r.choice((f"Order {n} {item}.", f"Please order {n} {item} for me.")),
               {"item": item, "count": n}, {"order": code}, f"I ordered {n} {item}. "
               f"The order code is {code}.")


def _run_code(s: Source) -> Use:
    code = s.code()
    status = s.word()
    return Use(f"What is the status of job {code}?", {"job": code}, {"status": status},
               f"The status of job {code} is {status}.")


def _search_web(s: Source) -> Use:
    query = " ".join(s.word() for _ in range(s.r.randint(1, 4)))
    title = capital(" ".join(s.word() for _ in range(3)))
    return Use(s.r.choice((f"Search the web for {query}.", f"Look up {query} on the web.")),
               {"query": query}, {"title": title}, f"I found this page: {title}.")


def _translate(s: Source) -> Use:
    text, language = s.word(), s.r.choice(("French", "German", "Spanish", "Italian", "Polish"))
    result = s.pseudo_word()
    return Use(f"Translate {text} into {language}.", {"text": text, "language": language},
               {"translation": result}, f"In {language}, {text} is {result}.")


MORE_TOOLS = (
    Tool("add_numbers", "Add two numbers.", _types(a="i", b="i"), _add_numbers),
    Tool("find_user", "Find the email address of a person.", _types(name="s"), _user_lookup),
    Tool("invite", "Invite people to a place.", _types(people="a", place="s"), _invite),
    Tool("set_volume", "Set the volume of the speaker.", _types(level="i"), _volume),
    Tool("lock_door", "Lock or unlock a door.", _types(door="s", locked="b"), _door),
    Tool("get_price", "Get the price of an item.", _types(item="s"), _price),
    Tool("order_items", "Order items from the shop.", _types(item="s", count="i"), _order),
    Tool("job_status", "Get the status of a job.", _types(job="s"), _run_code),
    Tool("web_search", "Search the web.", _types(query="s"), _search_web),
    Tool("translate", "Translate a word.", _types(text="s", language="s"), _translate))


def _invented(s: Source) -> Tool:
    """A tool with an invented name, parameters and request, to be read from its schema."""
    r = s.r
    verb, noun = s.pseudo_word(), s.word()
    keys = s.distinct(s.word, r.randint(1, 3))
    kinds = {k: r.choice("sssib") for k in keys}

    def use(s: Source) -> Use:
        arguments, parts = {}, []
        for key, kind in kinds.items():
            value = (s.r.randint(0, 999) if kind == "i" else s.r.random() < 0.5 if kind == "b"
                     else s.r.choice((s.word, s.name, s.code, s.pseudo_word))())
            shown = value if not isinstance(value, bool) else "true" if value else "false"
            arguments[key] = value
            parts.append(f"{key} {shown}")
        result = s.code()
        return Use(f"{capital(verb)} the {noun} with {' and '.join(parts)}.", arguments,
                   {"result": result}, f"The result is {result}.")

    return Tool(f"{verb}_{noun}", f"{capital(verb)} the {noun}.", _types(**kinds), use)


ONE = "The user wants to use {}. I call the tool."
BOTH = "The user wants to use {} and to use {}. I call both tools."
DONE = "The tool has answered. I tell the user the result."
WORD = "This is a question about a word. I do not need a tool."


def _turn(s: Source, tools: list[Tool], thinking: bool, calls: bool) -> list[dict]:
    r = s.r

    def said(content: str, reasoning: str, exact: bool = True) -> dict:
        return answer(content, exact, reasoning if thinking else None)

    if not calls or r.random() < 0.06:
        t = knowledge.thing(s)
        return [user(knowledge.question(s, t)), said(knowledge.define(s, t), WORD, False)]
    two = len(tools) > 1 and r.random() < 0.2
    chosen = r.sample(tools, 2 if two else 1)
    uses = [tool.use(s) for tool in chosen]
    call = said("", (BOTH if two else ONE).format(*(t.name for t in chosen)))
    call["tool_calls"] = [{"name": t.name, "arguments": u.arguments}
                          for t, u in zip(chosen, uses)]
    ask = " ".join(u.request for u in uses)
    if s.extra(0.08):
        ask = r.choice(("Please help: ", "Hi! ", "Can you do this? ", "Now: ")) + ask
    messages = [user(ask), call]
    messages += [{"role": "tool", "content": json.dumps(u.result, ensure_ascii=False)}
                 for u in uses]
    messages.append(said(" ".join(u.reply for u in uses), DONE))
    return messages


def document(s: Source, thinking: bool | None = None) -> dict:
    r = s.r
    if thinking is None:
        thinking = r.random() < 0.5
    tools = r.sample(TOOLS, r.randint(1, 4))
    if s.extra(0.3):
        pool = list(TOOLS + MORE_TOOLS) + [_invented(s) for _ in range(12)]
        tools = r.sample(pool, r.randint(1, 5))
    calls = r.random() >= 0.2
    messages: list[dict] = []
    for _ in range(r.choice((1, 1, 2, 3))):
        messages += _turn(s, tools, thinking, calls)
    return conversation("tool", s.system(messages), thinking,
                        tools=[t.definition for t in tools])
