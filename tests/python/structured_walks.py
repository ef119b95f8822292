#!/usr/bin/env python3
"""Random walks through masks: whatever they end in must be valid for python-jsonschema, which knows nothing of masks.

    tests/python/structured_walks.py [--pairs N] [--first SEED] [--vectors DIR]

A pair is a schema and a seed. Schemas are those of the reference vectors (real.jsonl, jsts.jsonl), where they are there, and
those of schema_maker. The vocabulary is the one of the vectors, else that of models/tiny. At each step one of the allowed
tokens is drawn; after some steps the shortest way to the end that is easily found is taken.
"""
import argparse
import collections
import decimal
import itertools
import json
import pathlib
import random
import re
import sys
import time

import jsonschema
import numpy
import referencing.exceptions
from deepinfer import structured

import schema_maker

ROOT = pathlib.Path(__file__).resolve().parents[2]
decimal.getcontext().prec = 2000
# Those of structured-output.md §4.4 that are enforced.
FORMATS = [*schema_maker.FORMATS]
REFUSALS = {"invalid_json_schema", "unsupported_schema_feature", "unsatisfiable_schema", "unresolvable_ref", "ref_cycle", "invalid_regex",
            "unsupported_regex_feature", "constraint_too_large", "constraint_too_complex"}


class Members(dict):
    """An object that knows which of its names came twice; it holds the last of their values."""

    def __init__(self, items):
        super().__init__(items)
        self.repeated = {name for name, count in collections.Counter(name for name, _ in items).items() if count > 1}


class NotJudged(Exception):
    """The validator itself cannot decide."""


def parse(text):
    def constant(word):
        raise ValueError(f"{word} is not JSON")
    return json.loads(text, parse_float=decimal.Decimal, parse_constant=constant, object_pairs_hook=Members)


# --- the validator ---

def python_pattern(pattern):
    """ECMA's meaning in the words of Python's re."""
    out, inside = [], False
    for piece in re.findall(r"\\(?:u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|u\{[0-9a-fA-F]+\}|[pP]\{[^}]*\}|.)|.", pattern, re.S):
        if piece[:2] in ("\\p", "\\P"):
            raise NotJudged("\\p")
        elif piece.startswith("\\u{"):
            piece = re.escape(chr(int(piece[3:-1], 16)))
        elif piece == "\\d":
            piece = "0-9" if inside else "[0-9]"
        elif piece == "\\w":
            piece = "A-Za-z0-9_" if inside else "[A-Za-z0-9_]"
        elif piece in ("\\D", "\\W"):
            if inside:
                raise NotJudged(piece + " in a class")
            piece = "[^0-9]" if piece == "\\D" else "[^A-Za-z0-9_]"
        elif piece in ("\\s", "\\S"):
            space = "\\t\\n\\v\\f\\r \\u00a0\\u1680\\u2000-\\u200a\\u2028\\u2029\\u202f\\u205f\\u3000\\ufeff"
            if inside and piece == "\\S":
                raise NotJudged("\\S in a class")
            piece = space if inside else "[" + ("^" if piece == "\\S" else "") + space + "]"
        elif piece in ("\\-", "\\/") or (len(piece) == 2 and piece[1] in "@#%&=:;,'\"<>~`! _"):
            piece = re.escape(piece[1])
        elif piece == "$" and not inside:
            piece = "\\Z"
        elif piece == "." and not inside:
            piece = "[^\\n\\r\\u2028\\u2029]"
        elif piece == "[":
            piece, inside = ("\\[" if inside else "["), True
        elif piece == "]":
            inside = False
        out.append(piece)
    text = "".join(out).replace("(?<", "(?P<").replace("(?P<=", "(?<=").replace("(?P<!", "(?<!")
    return re.sub(r"\[\^\]", r"[\\s\\S]", text)


compiled_patterns = {}


def matches(pattern, text):
    if pattern not in compiled_patterns:
        try:
            compiled_patterns[pattern] = re.compile(python_pattern(pattern))
        except (re.error, NotJudged) as error:
            compiled_patterns[pattern] = NotJudged(f"pattern {pattern}: {error}")
    found = compiled_patterns[pattern]
    if isinstance(found, NotJudged):
        raise found
    return found.search(text) is not None


def check_pattern(validator, pattern, instance, schema):
    if validator.is_type(instance, "string") and not matches(pattern, instance):
        yield jsonschema.ValidationError(f"{instance!r} does not match {pattern!r}")


def check_pattern_properties(validator, patterns, instance, schema):
    if validator.is_type(instance, "object"):
        for pattern, inner in patterns.items():
            for name, value in instance.items():
                if matches(pattern, name):
                    yield from validator.descend(value, inner, path=name, schema_path=pattern)


def check_additional_properties(validator, inner, instance, schema):
    if not validator.is_type(instance, "object"):
        return
    patterns = schema.get("patternProperties", {})
    for name, value in instance.items():
        if name not in schema.get("properties", {}) and not any(matches(pattern, name) for pattern in patterns):
            yield from validator.descend(value, inner, path=name)


def is_integer(_, value):
    if isinstance(value, bool):
        return False
    return isinstance(value, int) or (isinstance(value, decimal.Decimal) and value == value.to_integral_value())


def once(inner):
    """The rule `properties`, which a declared name that comes twice breaks (structured-output.md §4.5)."""
    def check(validator, properties, instance, schema):
        for name in getattr(instance, "repeated", set()) & set(properties):
            yield jsonschema.ValidationError(f"{name!r} comes twice")
        yield from inner(validator, properties, instance, schema)
    return check


validators = {}


def format_checker():
    """Those of the formats that the validator knows. Its readers of times want years from 1 on and capital letters; the one of
    relative pointers refuses a 0 inside a number."""
    known = jsonschema.Draft202012Validator.FORMAT_CHECKER.checkers
    checker = jsonschema.FormatChecker(formats=())
    checker.checkers = {name: known[name] for name in FORMATS}
    for name in ("date", "date-time", "time"):
        inner, raises = checker.checkers[name]

        def check(text, inner=inner):
            return inner(re.sub(r"^0000(?=-)", "0004", text.upper()) if isinstance(text, str) else text)
        checker.checkers[name] = (check, raises)

    def check_relative(text):
        match = re.match(r"(?:0|[1-9][0-9]*)(#\Z|(?=/)|\Z)", text) if isinstance(text, str) else None
        return not isinstance(text, str) or (match is not None and (match[1] == "#" or known["json-pointer"][0](text[match.end():])))
    checker.checkers["relative-json-pointer"] = (check_relative, known["json-pointer"][1])
    return checker


def validator_for(schema):
    """python-jsonschema with exact numbers, ECMA's patterns and the formats that are enforced."""
    base = jsonschema.validators.validator_for(schema, default=jsonschema.Draft202012Validator)
    if base not in validators:
        rules = {"pattern": check_pattern, "patternProperties": check_pattern_properties,
                 "additionalProperties": check_additional_properties, "properties": once(base.VALIDATORS["properties"])}
        types = base.TYPE_CHECKER.redefine("integer", is_integer)
        validators[base] = jsonschema.validators.extend(base, rules, type_checker=types), format_checker()
    kind, formats = validators[base]
    return kind(schema, format_checker=formats)


def nodes_of(schema):
    rest = [schema]
    while rest:
        node = rest.pop()
        if isinstance(node, dict):
            yield node
            rest.extend(node.values())
        elif isinstance(node, list):
            rest.extend(node)


def required_names(schema):
    """As they are written, with the quote behind them."""
    lists = [node["required"] for node in nodes_of(schema) if isinstance(node.get("required"), list)]
    names = sorted({name for names in lists for name in names if isinstance(name, str)})
    return [json.dumps(name, ensure_ascii=False)[1:].encode("utf-8", "replace") for name in names[:200]]


def judge(schema, text):
    """None, or what is wrong with the text."""
    try:
        value = parse(text)
    except ValueError as error:
        return f"no JSON: {error}"
    try:
        error = next(validator_for(schema).iter_errors(value), None)
    except (RecursionError, referencing.exceptions.Unresolvable, jsonschema.exceptions.UnknownType) as error:
        raise NotJudged(f"{type(error).__name__}: {str(error)[:80]}") from None
    except (AttributeError, TypeError, KeyError) as error:  # keywords of another dialect than the schema says
        raise NotJudged(f"{type(error).__name__}: {str(error)[:80]}") from None
    if error is None:
        return None
    if error.validator != "properties" and any(isinstance(node, Members) and node.repeated for node in nodes_of(value)):
        raise NotJudged("additional names come twice")  # of which the validator sees the last alone
    return f"{error.validator}: {error.message[:200]}"


# --- the walk ---

class Walker:
    def __init__(self, vocabulary):
        self.vocabulary = vocabulary
        self.bytes = [vocabulary.token_bytes(id) for id in range(len(vocabulary))]
        single = {text: id for id, text in enumerate(self.bytes) if len(text) == 1 and not vocabulary.is_special(id)}
        self.by_byte = [single[bytes([b])] for b in range(256)]
        self.single = numpy.zeros(len(vocabulary), bool)
        self.single[self.by_byte] = True
        self.single[vocabulary.eos] = True
        self.row = numpy.zeros(vocabulary.mask_words, numpy.uint32)
        first = b'"}]0123456789ntf' + bytes(range(ord("a"), ord("z") + 1)) + bytes(range(ord("A"), ord("Z") + 1)) + b"-,: .@/{["
        self.in_text = [bytes([b]) for b in (*first, *(b for b in range(0x21, 0x7f) if b not in first), *range(0x80, 0x100))]
        self.in_structure = [b"}", b"]", *(piece for piece in self.in_text if piece not in (b"}", b"]"))]
        self.letter = self.by_byte[ord("q")]

    def allowed(self, matcher):
        matcher.fill_mask(self.row)
        return numpy.flatnonzero(numpy.unpackbits(self.row.view(numpy.uint8), bitorder="little"))

    def walk(self, constraint, seed, steps, names=()):
        """The bytes of a finished text, or None and what went wrong."""
        chance = random.Random(seed)
        matcher = structured.Matcher(constraint)
        out = []
        narrow = seed % 2 == 1  # half of the steps take single bytes: texts with more structure
        for _ in range(chance.randint(0, steps)):
            ids = self.allowed(matcher)
            if len(ids) == 0:
                return None, "no token is allowed"
            if narrow and chance.random() < 0.5:
                few = ids[self.single[ids]]
                ids = few if len(few) else ids
            token = int(ids[chance.randrange(len(ids))])
            other = chance.randrange(len(self.bytes))
            bit = bool(self.row[other >> 5] >> numpy.uint32(other & 31) & numpy.uint32(1))
            if matcher.allowed(other) != bit:
                return None, f"mask and matcher differ about token {other}"
            if matcher.accept(token) != 1:
                return None, f"token {token} is in the mask and refused"
            if matcher.terminated:
                return b"".join(out), None
            out.append(self.bytes[token])
        return self.finish(matcher, b"".join(out), names)

    def finish(self, matcher, text, names):
        """The text completed, with no deeper nesting than it needs."""
        for steps, depth in [(1500, 1), (1500, 3), (1500, 8), (6000, 0), (6000, 2), (6000, 200), (40_000, 0), (40_000, 8), (40_000, 200)]:
            done, wrong = self.complete(matcher.clone(), bytearray(text), names, steps, depth)
            if wrong is None:
                return done, None
        return None, wrong

    def complete(self, matcher, done, names, steps, depth):
        """Piece by piece towards the end, no state entered twice; where that leads nowhere, back."""
        seen, taken = {matcher.state}, []  # taken: (length of done before, nesting before, what is left to try)
        nesting, left = 0, self.ways(matcher, done, names)
        for _ in range(steps):
            if matcher.accept(self.vocabulary.eos):
                return bytes(done), None
            in_structure = not matcher.allowed(self.letter)
            for piece in left:
                if nesting >= depth and piece in (b"{", b"["):
                    continue
                if not matcher.accept_bytes(piece):
                    continue
                if matcher.state in seen:
                    matcher.rollback(1)
                    continue
                seen.add(matcher.state)
                taken.append((len(done), nesting, left))
                done += piece
                if in_structure or len(piece) > 1:
                    outside = re.sub(rb'"[^"]*"?', b"", piece)
                    nesting += sum(map(outside.count, b"{[")) - sum(map(outside.count, b"}]"))
                left = self.ways(matcher, done, names)
                break
            else:
                if not taken:
                    return None, "no way leads to the end"
                matcher.rollback(1)
                length, nesting, left = taken.pop()
                del done[length:]
        return None, f"no end was found in {steps} steps"

    def ways(self, matcher, done, names):
        """What to try here, the likely first: names that are required, ends of strings, of objects, of arrays."""
        forced = matcher.forced_text(1 << 12)
        if forced:
            return iter([forced])
        if not matcher.allowed(self.letter):
            return iter(self.in_structure)
        if done.endswith(b'"') and done[:-1].rstrip()[-1:] in (b"{", b","):
            return iter([*sorted(names, key=lambda name: b'"' + name in done), *self.in_text])
        return iter(self.in_text)


# --- schemas and pairs ---

def vectors_of(folder):
    """[(name, schema as text)] of the reference cases."""
    out = []
    for name in ("real", "jsts"):
        path = folder / "structured" / f"{name}.jsonl"
        if path.is_file():
            for line in path.open(encoding="utf-8"):
                begin = re.search(r'"schema": ?', line).end()  # as it is written, numbers too
                end = json.JSONDecoder().raw_decode(line, begin)[1]
                out.append((json.loads(line)["id"], line[begin:end]))
    return out


def load_vocabulary(folder):
    path = folder / "recipe" / "tokenizer.json"
    return structured.Vocabulary.load(str(path if path.is_file() else ROOT / "models/tiny"))


class Totals:
    def __init__(self):
        self.walked = 0
        self.tokens = 0
        self.refused = collections.Counter()
        self.not_judged = collections.Counter()
        self.unfinished = 0  # the search for an end gave up, which says nothing about the masks
        self.failures = []

    def text(self):
        lines = [f"{self.walked} pairs walked to the end, {len(self.failures)} failures; schemas refused: {sum(self.refused.values())}"
                 f"; texts that the validator cannot judge: {sum(self.not_judged.values())}; ends not found: {self.unfinished}"]
        lines += [f"  refused {count}: {code}" for code, count in self.refused.most_common()]
        lines += [f"  not judged {count}: {reason}" for reason, count in self.not_judged.most_common(8)]
        lines += [f"  FAILED {failure}" for failure in self.failures[:20]]
        return "\n".join(lines)


def run_schema(walker, totals, name, text, seeds, steps):
    try:
        constraint = structured.Constraint(walker.vocabulary, "json_schema", text, limits={"mask_cpu_ms": 60_000})
    except structured.ConstraintError as error:
        totals.refused[error.code] += 1
        if error.code not in REFUSALS:
            totals.failures.append(f"{name}: refused with {error}")
        return
    schema = parse(text)
    names = required_names(schema)
    for seed in seeds:
        found, wrong = walker.walk(constraint, seed, steps, names)
        if wrong is not None and wrong.startswith("no end was found"):
            totals.unfinished += 1
            continue
        if wrong is None:
            try:
                wrong = judge(schema, found.decode("utf-8"))
            except UnicodeDecodeError as error:
                wrong = str(error)
            except NotJudged as error:
                totals.not_judged[str(error)[:60]] += 1
                continue
        if wrong is not None:
            totals.failures.append(f"{name}, seed {seed}: {wrong}; schema {text[:400]}; text {(found or b'')[:300]!r}")
        totals.walked += 1


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=10_000)
    parser.add_argument("--first", type=int, default=0, help="number of the first schema")
    parser.add_argument("--steps", type=int, default=60, help="most random tokens of a walk")
    parser.add_argument("--vectors", type=pathlib.Path, default=ROOT / "../shared/vectors")
    arguments = parser.parse_args()
    walker, totals = Walker(load_vocabulary(arguments.vectors)), Totals()
    begun, shown = time.monotonic(), 0
    known = vectors_of(arguments.vectors)
    for number in itertools.count(arguments.first):
        if totals.walked >= arguments.pairs:
            break
        # The vectors' schemas in turn with as many made ones, two seeds each.
        if known and number % 2 == 0:
            at = number // 2
            name, text = known[at % len(known)]
            seeds = [2 * (at // len(known)), 2 * (at // len(known)) + 1]
        else:
            name, text, seeds = f"made {number}", json.dumps(schema_maker.make_schema(number), ensure_ascii=False), [number, number + 1]
        before = len(totals.failures)
        run_schema(walker, totals, name, text, seeds, arguments.steps)
        for failure in totals.failures[before:]:
            print("FAILED " + failure, flush=True)
        if totals.walked - shown >= 1000:
            shown = totals.walked
            print(f"{shown} pairs, {len(totals.failures)} failures, {time.monotonic() - begun:.0f} s", flush=True)
    print(totals.text())
    return 1 if totals.failures or totals.unfinished > arguments.pairs // 200 else 0


if __name__ == "__main__":
    sys.exit(main())
