"""Sums, differences, products, comparisons and word problems, three in four with the steps written
out as reasoning (family `arith`)."""
from __future__ import annotations

from .base import Source, answer, conversation, user

_MORE_THINGS = ("coins", "books", "pencils", "stamps", "shells", "marbles", "flowers", "cards")
Problem = tuple[str, str, str]   # question, answer, reasoning


def add_steps(a: int, b: int) -> str:
    """`800 + 700 = 1500, 50 + 70 = 120, ...`: by digit columns, then the columns added up."""
    columns, parts = [], []
    for k in range(max(len(str(a)), len(str(b))) - 1, -1, -1):
        x, y = a // 10**k % 10 * 10**k, b // 10**k % 10 * 10**k
        if x or y:
            columns.append(x + y)
            parts.append(f"{x} + {y} = {x + y}")
    if not columns:
        return f"{a} + {b} = {a + b}."
    total = columns[0]
    for value in columns[1:]:
        parts.append(f"{total} + {value} = {total + value}")
        total += value
    return ", ".join(parts) + "."


def subtract_steps(a: int, b: int) -> str:
    """Takes away the columns of b, highest first."""
    parts, rest = [], a
    for k in range(len(str(b)) - 1, -1, -1):
        y = b // 10**k % 10 * 10**k
        if y or b == 0:
            parts.append(f"{rest} - {y} = {rest - y}")
            rest -= y
    return ", ".join(parts) + "."


def multiply_steps(a: int, b: int) -> str:
    """Splits a into tens and ones (b has one digit)."""
    if a < 10:
        return f"{a} * {b} = {a * b}."
    tens, ones = a // 10 * 10, a % 10
    return (f"{tens} * {b} = {tens * b}, {ones} * {b} = {ones * b}, "
            f"{tens * b} + {ones * b} = {a * b}.")


def _sum(s: Source) -> Problem:
    r = s.r
    top = r.choice((19, 99, 99, 999)) if not s.extra(0.1) else 9999
    a, b = r.randint(0, top), r.randint(0, top)
    question = r.choice((f"What is {a} + {b}?", f"{a} + {b} = ?", f"Add {a} and {b}."))
    if s.extra(0.1):
        question = r.choice((f"What is the sum of {a} and {b}?", f"How much is {a} plus {b}?",
                             f"{a} plus {b}", f"Calculate {a} + {b}.", f"{a}+{b}", f"{a}+{b}=?"))
    steps = f"{a} + {b} = {a + b}." if a < 20 and b < 20 else add_steps(a, b)
    return question, f"{a} + {b} = {a + b}.", steps


def _difference(s: Source) -> Problem:
    r = s.r
    top = r.choice((19, 99, 99)) if not s.extra(0.15) else 999
    a, b = r.randint(0, top), r.randint(0, top)
    a, b = max(a, b), min(a, b)
    question = r.choice((f"What is {a} - {b}?", f"{a} - {b} = ?", f"Subtract {b} from {a}."))
    if s.extra(0.1):
        question = r.choice((f"How much is {a} minus {b}?", f"{a} minus {b}", f"{a}-{b}",
                             f"Take {b} away from {a}.", f"Calculate {a} - {b}."))
    return question, f"{a} - {b} = {a - b}.", subtract_steps(a, b)


def _product(s: Source) -> Problem:
    r = s.r
    a, b = r.randint(2, 99) if r.random() < 0.5 else r.randint(2, 9), r.randint(2, 9)
    question = r.choice((f"What is {a} times {b}?", f"{a} * {b} = ?", f"Multiply {a} by {b}."))
    if s.extra(0.1):
        question = r.choice((f"How much is {a} times {b}?", f"{a} times {b}", f"{a}*{b}",
                             f"Calculate {a} * {b}.", f"What is {a} x {b}?"))
    return question, f"{a} * {b} = {a * b}.", multiply_steps(a, b)


def _long_product(s: Source) -> Problem:
    """Two digits by two digits: by the tens and the ones of b."""
    a, b = s.r.randint(11, 99), s.r.randint(11, 99)
    tens, ones = b // 10 * 10, b % 10
    parts = [f"{a} * {b // 10} = {a * (b // 10)}", f"{a} * {tens} = {a * tens}"]
    if ones:
        parts += [f"{a} * {ones} = {a * ones}", f"{a * tens} + {a * ones} = {a * b}"]
    return (s.r.choice((f"What is {a} times {b}?", f"Multiply {a} by {b}.", f"{a} * {b} = ?")),
            f"{a} * {b} = {a * b}.", ", ".join(parts) + ".")


def _quotient(s: Source) -> Problem:
    b, q = s.r.randint(2, 12), s.r.randint(2, 12)
    a = b * q
    return (s.r.choice((f"What is {a} divided by {b}?", f"{a} / {b} = ?", f"Divide {a} by {b}.")),
            f"{a} / {b} = {q}.", f"{b} * {q} = {a}, so {a} / {b} = {q}.")


def _compare(s: Source) -> Problem:
    r = s.r
    a = r.randint(1, 999)
    b = r.randint(1, 999)
    if s.extra(0.15):   # close numbers
        b = min(999, max(1, a + r.randint(-20, 20)))
    while a == b:
        b = r.randint(1, 999)
    question = r.choice((f"Which number is larger, {a} or {b}?",
                         f"Compare {a} and {b}. Which one is larger?"))
    word = "greater" if a > b else "less"
    if s.extra(0.1):
        question = r.choice((f"Which number is smaller, {a} or {b}?",
                             f"Compare {a} and {b}. Which one is smaller?"))
        return question, f"{min(a, b)} is smaller.", f"{a} is {word} than {b}."
    return question, f"{max(a, b)} is larger.", f"{a} is {word} than {b}."


def _get(s: Source) -> Problem:
    r = s.r
    a, b = r.randint(2, 49), r.randint(2, 49)
    hero, other = s.distinct(s.name, 2)
    fruit = r.choice(_MORE_THINGS) if s.extra(0.15) else s.fruit()
    return (f"{hero} has {a} {fruit}. {other} gives {hero} {b} more. "
            f"How many {fruit} does {hero} have now?", f"{hero} has {a + b} {fruit}.",
            f"{hero} starts with {a} and gets {b}. {add_steps(a, b)}")


def _give(s: Source) -> Problem:
    r = s.r
    a = r.randint(3, 50)
    b = r.randint(2, a - 1)
    hero, other = s.distinct(s.name, 2)
    fruit = r.choice(_MORE_THINGS) if s.extra(0.15) else s.fruit()
    return (f"{hero} has {a} {fruit} and gives {b} to {other}. How many {fruit} are left?",
            f"{hero} has {a - b} {fruit} left.",
            f"{hero} starts with {a} and loses {b}. {subtract_steps(a, b)}")


def _buy(s: Source) -> Problem:
    r = s.r
    n, price = r.randint(2, 20), r.randint(2, 9)
    hero, fruit = s.name(), s.fruit()
    return (f"{hero} buys {n} {fruit} for {price} coins each. How many coins does {hero} pay?",
            f"{hero} pays {n * price} coins.",
            f"{hero} buys {n} and each costs {price}. {multiply_steps(n, price)}")


def _chain(s: Source) -> Problem:
    """Three numbers, from left to right."""
    r = s.r
    a, b, c = (r.randint(2, 60) for _ in range(3))
    first = a + b
    second = f"{first} + {c} = {first + c}" if r.random() < 0.5 or c > first else None
    if second:
        return (f"What is {a} + {b} + {c}?", f"{a} + {b} + {c} = {first + c}.",
                f"{a} + {b} = {first}, {second}.")
    return (f"What is {a} + {b} - {c}?", f"{a} + {b} - {c} = {first - c}.",
            f"{a} + {b} = {first}, {first} - {c} = {first - c}.")


_PROBLEMS = (_sum, _sum, _difference, _difference, _product, _product, _compare, _compare, _get,
             _give)
_MORE_PROBLEMS = (_long_product, _quotient, _buy, _chain)


def problem(s: Source) -> Problem:
    return s.r.choice(_MORE_PROBLEMS if s.extra(0.08) else _PROBLEMS)(s)


def document(s: Source, thinking: bool | None = None) -> dict:
    """1 to 3 problems; with thinking only the last one is trained (tiny-model.md §4)."""
    r = s.r
    if thinking is None:
        thinking = r.random() < 0.65
    if s.reference or not thinking:
        n = r.choice((1, 1, 2, 3)) if s.reference or s.chance(0.6) else r.randint(3, 8)
    else:
        n = r.choice((1, 1, 1, 1, 2, 3))
    messages = []
    for _ in range(n):
        question, reply, steps = problem(s)
        messages += [user(question), answer(reply, reasoning=steps if thinking else None)]
    return conversation("arith", s.system(messages), thinking)
