"""Copying, reversing, sorting, counting and picking from lists (family `algo`)."""
from __future__ import annotations

from .base import Source, answer, conversation, user
from .story import Story

_NTH = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")
Task = tuple[str, str]


def _items(s: Source, n: int) -> list[str]:
    """Words, numbers or names, half of them words."""
    r = s.r
    kind = r.randrange(4)
    if kind < 2:
        if s.novel and s.chance(0.15):
            return [s.code() for _ in range(n)]
        return [s.word() for _ in range(n)]
    if kind == 2:
        top = r.choice((99, 9999, 99999)) if s.new() else 999
        return [str(r.randint(0, top)) for _ in range(n)]
    return s.distinct(s.name, n)


def _copy(s: Source) -> Task:
    r = s.r
    n = r.randint(3, 29)
    if s.novel and s.chance(0.4):
        n = r.randint(1, 12)
    text = " ".join(_items(s, n))
    order = r.choice(("Repeat this exactly", "Say this again", "Copy the following text"))
    if s.extra(0.15):
        order = r.choice(("Repeat", "Repeat after me", "Copy this", "Please repeat this",
                          "Write this again", "Echo this text", "Repeat the following"))
    return f"{order}: {text}", text


def _copy_sentences(s: Source) -> Task:
    text = " ".join(Story(s).sentences[:s.r.randint(1, 4)])
    return "Repeat the text.\n\n" + text, text


def _copy_any(s: Source) -> Task:
    """Free word strings with signs and capitals."""
    r = s.r
    words = [s.r.choice((s.pseudo_word, s.word, s.name, s.code))() for _ in range(r.randint(2, 10))]
    text = words[0]
    for word in words[1:]:
        text += r.choice((" ", " ", " ", ", ", ". ", " - ", "-", "/")) + word
    text = text + r.choice(("", "", ".", "!", "?"))
    if r.random() < 0.3:
        text = text[0].upper() + text[1:]
    order = r.choice(("Repeat this exactly", "Say this again", "Copy the following text"))
    return f"{order}: {text}", text


def _reverse(s: Source) -> Task:
    items = _items(s, s.r.randint(2, 8))
    return "Reverse this list: " + ", ".join(items), ", ".join(reversed(items))


def _lines(s: Source) -> Task:
    items = _items(s, s.r.randint(2, 8))
    return "Write one item per line: " + ", ".join(items), "\n".join(items)


def _count_up(s: Source) -> Task:
    r = s.r
    a = r.randint(0, 60) if not s.extra(0.15) else r.randint(0, 900)
    b = a + r.randint(3, 14)
    return f"Count from {a} to {b}.", ", ".join(map(str, range(a, b + 1)))


def _sort_words(s: Source) -> Task:
    items = s.distinct(s.word, s.r.randint(2, 8))
    return "Sort these words: " + ", ".join(items), ", ".join(sorted(items))


def _sort_numbers(s: Source) -> Task:
    r = s.r
    top = 99 if not s.extra(0.15) else 999
    items = [r.randint(0, top) for _ in range(r.randint(2, 8))]
    return ("Sort these numbers: " + ", ".join(map(str, items)),
            ", ".join(map(str, sorted(items))))


def _how_many(s: Source) -> Task:
    n = s.r.randint(2, 11)
    draw = s.word if s.extra(0.15) else s.fruit
    return ("How many items are in this list? " + ", ".join(draw() for _ in range(n)),
            f"There are {n} items.")


def _nth(s: Source) -> Task:
    r = s.r
    items = _items(s, r.randint(3, 8))
    if s.extra(0.12):
        return f"What is the last word of this list? {', '.join(items)}", items[-1]
    k = r.randrange(len(items))
    return f"What is the {_NTH[k]} word of this list? {', '.join(items)}", items[k]


def _spell(s: Source) -> Task:
    word = s.word() if s.chance(0.5) else s.pseudo_word()
    return (s.r.choice((f"Spell the word {word}.", f"How do you spell {word}?")),
            "-".join(word))


def _member(s: Source) -> Task:
    items = s.distinct(s.word, s.r.randint(3, 9))
    if s.chance(0.5):
        word = s.r.choice(items)
    else:
        word = s.word()
    listed = ", ".join(items)
    if word in items:
        return f"Is {word} in this list? {listed}", f"Yes, {word} is in the list."
    return f"Is {word} in this list? {listed}", f"No, {word} is not in the list."


def _upper(s: Source) -> Task:
    text = " ".join(_items(s, s.r.randint(1, 6)))
    if s.chance(0.5):
        return f"Write this in capital letters: {text}", text.upper()
    return f"Write this in small letters: {text.upper()}", text.lower()


_TASKS = (_copy, _copy_sentences, _reverse, _lines, _count_up, _sort_words, _sort_numbers,
          _how_many, _nth)
_MORE_TASKS = (_copy_any, _copy_any, _copy, _sort_words, _spell, _member, _upper)


def document(s: Source) -> dict:
    """1 to 3 tasks, more in a part of the documents."""
    r = s.r
    n = r.randint(1, 3) if not s.extra(0.3) else r.randint(3, 6)
    messages = []
    for _ in range(n):
        question, reply = r.choice(_MORE_TASKS if s.extra(0.2) else _TASKS)(s)
        messages += [user(question), answer(reply)]
    return conversation("algo", s.system(messages))
