"""Reading records out of a text as JSON (family `json`): five record kinds, all or some keys, three
forms of the instruction (one of them a response schema), filler around the sentence."""
from __future__ import annotations

import json

from . import knowledge
from . import lexicon as lex
from .base import Source, answer, capital, conversation, listing, user
from .story import fragment

_TITLES = ("Concert", "Game", "Lesson", "Lunch", "Meeting", "Party")
_MORE_TITLES = ("Dinner", "Workshop", "Picnic", "Interview", "Rehearsal", "Exam", "Trip", "Training")
Record = tuple[str, dict, dict]   # the sentence, the values, their schemas

STRING, INTEGER, BOOLEAN = {"type": "string"}, {"type": "integer"}, {"type": "boolean"}
STRINGS = {"type": "array", "items": {"type": "string"}}
ITEMS = {"type": "array", "items": {
    "type": "object", "properties": {"name": STRING, "count": INTEGER},
    "required": ["name", "count"]}}


def _person(s: Source) -> Record:
    r = s.r
    name, city, job, age = s.name(), s.city(), s.job(), r.randint(8, 90)
    an = "an" if age in (8, 11, 18) or 80 <= age < 90 else "a"
    text = r.choice((f"{name} is {an} {age} year old {job} who lives in {city}.",
                     f"{name} works as a {job} in {city} and is {age} years old.",
                     f"In {city} lives {name}, {age}, a {job}."))
    return (text, {"name": name, "age": age, "city": city, "job": job},
            {"name": STRING, "age": INTEGER, "city": STRING, "job": STRING})


def _item(s: Source) -> Record:
    r = s.r
    color, item, price, stock = s.color(), s.object(), r.randint(1, 200), r.random() < 0.5
    if s.new() and s.chance(0.3):
        price = r.randint(1, 99999)
    text = f"The {color} {item} costs {price} coins and is {'available' if stock else 'sold out'}."
    return (text, {"item": item, "color": color, "price": price, "in_stock": stock},
            {"item": STRING, "color": STRING, "price": INTEGER, "in_stock": BOOLEAN})


def _pet(s: Source) -> Record:
    owner, color, animal, name = s.name(), s.color(), s.animal(), s.name()
    return (f"{owner} has a {color} {animal} named {name}.",
            {"animal": animal, "name": name, "color": color, "owner": owner},
            {"animal": STRING, "name": STRING, "color": STRING, "owner": STRING})


def _event(s: Source) -> Record:
    r = s.r
    title = r.choice(_MORE_TITLES) if s.extra(0.15) else r.choice(_TITLES)
    if s.new() and s.chance(0.3):
        title = capital(s.pseudo_word())
    day, hour = r.choice(lex.DAYS), r.randint(8, 20)
    people = sorted(s.distinct(s.name, r.randint(1, 3)))
    return (f"{title} on {day} at {hour}:00 with {listing(people)}.",
            {"title": title, "day": day, "hour": hour, "people": people},
            {"title": STRING, "day": STRING, "hour": INTEGER, "people": STRINGS})


def _order(s: Source) -> Record:
    r = s.r
    number, customer = r.randint(1000, 9999), s.name()
    if s.new() and s.chance(0.3):
        number = r.randint(1, 999999)
    draw = (lambda: s.object() + "s") if s.extra(0.1) else s.fruit
    items = [{"name": draw(), "count": r.randint(1, 20)} for _ in range(r.randint(1, 3))]
    wanted = listing([f"{i['count']} {i['name']}" for i in items])
    return (f"Order {number}: {customer} wants {wanted}.",
            {"order_id": number, "customer": customer, "items": items},
            {"order_id": INTEGER, "customer": STRING, "items": ITEMS})


def _free(s: Source) -> Record:
    """Invented keys: the model must read the structure, not remember five records."""
    r = s.r
    values, schemas, parts = {}, {}, []
    for key in s.distinct(lambda: s.word() if s.chance(0.6) else s.pseudo_word(), r.randint(2, 5)):
        kind = r.randrange(4)
        if kind == 0:
            value, schema = r.randint(0, 9999), INTEGER
        elif kind == 1:
            value, schema = r.random() < 0.5, BOOLEAN
        else:
            value = r.choice((s.word, s.name, s.city, s.code, s.pseudo_word))()
            schema = STRING
        if s.chance(0.25):
            key = key + "_" + s.word()
        values[key], schemas[key] = value, schema
        shown = ("yes" if value else "no") if schema is BOOLEAN else value
        parts.append(r.choice((f"the {key} is {shown}", f"{key}: {shown}", f"{key} = {shown}")))
    text = ", ".join(parts)
    return (capital(text) if text.startswith("the ") else text) + ".", values, schemas


_RECORDS = (_person, _item, _pet, _event, _order)


def _filler(s: Source) -> str:
    """One to eight groups of sentences that have nothing to do with the record."""
    r = s.r
    parts = []
    for _ in range(r.choice((1, 1, 2, 2, 3, 4, 6, 8))):
        parts.append(fragment(s) if r.random() < 0.55 else knowledge.filler(s))
    return " ".join(parts)


def value_text(value) -> str:
    """How a single value is answered: strings bare, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _instruction(s: Source, keys: list[str], schemas: dict, text: str) -> tuple[str, dict]:
    r = s.r
    form = r.randrange(3)
    listed = ", ".join(keys)
    if form == 0:
        return f"Extract the data as JSON with the keys {listed}.\n\n{text}", {}
    if form == 1:
        return f"Text: {text}\n\nReturn a JSON object with these fields: {listed}.", {}
    schema = {"type": "object", "properties": {k: schemas[k] for k in keys}, "required": keys}
    return f"{text}\n\nGive me this as JSON.", {"response_schema": schema}


def document(s: Source) -> dict:
    r = s.r
    text, values, schemas = (_free if s.extra(0.18) else r.choice(_RECORDS))(s)
    keys = list(values)
    if r.random() < 0.5:
        keys = r.sample(keys, r.randint(1, len(keys)))
    if r.random() < 0.5:
        filler = _filler(s)
        text = f"{text} {filler}" if r.random() < 0.5 else f"{filler} {text}"
    prompt, rest = _instruction(s, keys, schemas, text)
    if not rest and s.extra(0.12):
        prompt = r.choice((f"{text}\n\nWrite this as JSON with the keys {', '.join(keys)}.",
                           f"Turn this into JSON ({', '.join(keys)}): {text}",
                           f"{text}\nJSON with {', '.join(keys)}:"))
        if s.chance(0.2):
            rest = {"json_object": True}
    found = {k: values[k] for k in keys}
    messages = [user(prompt), answer(json.dumps(found, ensure_ascii=False))]
    asked = r.sample(keys, min(len(keys), r.randint(2, 3))) if s.extra(0.1) else [r.choice(keys)]
    if r.random() < 0.5:
        for key in asked:
            messages += [user(f'What is the value of "{key}"?'), answer(value_text(found[key]))]
    return conversation("json", s.system(messages), **rest)
