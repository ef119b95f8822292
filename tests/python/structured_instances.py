#!/usr/bin/env python3
"""Schemas and instances made at random: a text is accepted exactly when python-jsonschema finds it valid.

    tests/python/structured_instances.py [--schemas N] [--first SEED]

Instances are made along their schema and often a little wrong; members stand in any order. Texts are canonical (structured-output.md
§4.6), so that a refusal of a valid one is a fault too.
"""
import argparse
import collections
import decimal
import json
import random
import re
import sys

from deepinfer import structured

import schema_maker
import structured_walks as walks

TEXTS = ["", "a", "ab", "abc", "abb", "x", "q", "wxy", "xyz", "zzz", "xwz", "1", "12.5", "0.25", "-7", "1234", "007", "\u00e9", "\u00ffz", "a@b", "a@b.c", "\"",
         "a\"b", "\\", "red", "gray", "grey", "A", "x.json", "y.yml", "json", "2024-02-29", "2023-02-29", "2024-01-01T00:00:00+01:30", "12:00:00Z", "24:00:00Z",
         "P1D", "PT36H", "P", "P4W", "a.b@example.com", "x-1.example.com", "-a", "127.0.0.1", "256.1.1.1", "::", "1:2:3:4:5:6:7:8", "::ffff:1.2.3.4",
         "123e4567-E89B-12d3-a456-426614174000", "http://a.b/c?d#e", "urn:x:y", "/a", "#c", "/a~1b/~0", "/~2", "0#", "1/a", "01/a", "\u00c4bc", "Abc",
         "\u65e5\u672c", "line\nend", "tab\t", "\U0001f989", "\u2028", "\x7f", "\x01", "\u00a0", "   ", "two words", "aaaaaaa", "q" * 50, "q" * 210]
NAMES = [*schema_maker.NAMES, "extra", "x-a", "y_id", "12", "value", "more", "kind", "v", "zz"]


class InstanceMaker:
    def __init__(self, seed, root):
        self.random, self.root = random.Random(seed), root

    def number(self):
        draw = self.random
        return draw.choice([draw.randint(-12, 12), draw.randint(-1000, 1000), draw.randint(-10**13, 10**13), draw.randint(-10**26, 10**26), 0, 1, -1,
                            decimal.Decimal(draw.randint(-600_000, 600_000)) / 1000, decimal.Decimal(draw.randint(-40, 40)) / 4])

    def anything(self, depth):
        kind = self.random.random()
        if kind < 0.35:
            return self.random.choice(TEXTS)
        if kind < 0.6:
            return self.number()
        if kind < 0.75 or depth <= 0:
            return self.random.choice([None, True, False, [], {}])
        if kind < 0.87:
            return [self.anything(depth - 1) for _ in range(self.random.randint(0, 4))]
        return {self.random.choice(NAMES): self.anything(depth - 1) for _ in range(self.random.randint(0, 4))}

    def make(self, schema, depth=6):
        if self.random.random() < 0.04 or depth <= 0 or not isinstance(schema, dict):
            return self.anything(1)
        if "$ref" in schema:
            target = self.root
            for part in schema["$ref"][2:].split("/"):
                target = target[part]
            return self.make(target, depth - 1)
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return self.random.choice(schema["enum"])
        own = {key: value for key, value in schema.items() if key not in ("anyOf", "oneOf", "allOf")}
        for key in ("anyOf", "oneOf", "allOf"):
            if key not in schema:
                continue
            parts = schema[key] if key == "allOf" else [self.random.choice(schema[key])]
            made = [self.make(part, depth - 1) for part in parts]
            if {"properties", "required", "minProperties"} & own.keys():
                made.append(self.make({**own, "type": "object"}, depth - 1))
            return {name: value for part in made for name, value in part.items()} if all(isinstance(part, dict) for part in made) else made[0]
        kinds = schema.get("type")
        kind = self.random.choice(kinds) if isinstance(kinds, list) else kinds
        if kind is None:
            hints = [("object", ("properties", "required", "patternProperties")), ("array", ("items", "prefixItems", "contains")),
                     ("string", ("pattern", "minLength", "format")), ("number", ("minimum", "maximum", "multipleOf"))]
            kind = next((name for name, keys in hints if any(key in schema for key in keys)), None)
        return {"null": lambda *_: None, "boolean": lambda *_: self.random.random() < 0.5, "string": lambda *_: self.random.choice(TEXTS),
                "integer": self.numeric, "number": self.numeric, "array": self.array, "object": self.object,
                None: lambda *_: self.anything(2)}[kind](schema, depth)

    def numeric(self, schema, depth):
        bounds = [schema.get(key) for key in ("minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum")]
        bounds = [decimal.Decimal(str(bound)) for bound in bounds if bound is not None and not isinstance(bound, bool)]
        value = decimal.Decimal(self.number())
        if bounds and self.random.random() < 0.8:
            value = self.random.choice(bounds) + self.random.choice([0, 1, -1, 2, decimal.Decimal("0.01"), decimal.Decimal("-0.125")])
        if "multipleOf" in schema and self.random.random() < 0.8:
            step = decimal.Decimal(str(schema["multipleOf"]))
            value = (value / step).to_integral_value() * step
        return value.to_integral_value() if schema.get("type") == "integer" and self.random.random() < 0.9 else value

    def array(self, schema, depth):
        listed = isinstance(schema.get("items"), list)
        prefix = schema["items"] if listed else schema.get("prefixItems", [])
        rest = schema.get("additionalItems", True) if listed else schema.get("items", True)
        out = []
        for place in range(self.random.randint(0, max(schema.get("minItems", 0), len(prefix)) + 3)):
            item = prefix[place] if place < len(prefix) else rest
            if item is False:
                break
            out.append(self.make(schema["contains"] if "contains" in schema and self.random.random() < 0.3 else item, depth - 1))
        return out

    def object(self, schema, depth):
        declared, required = schema.get("properties", {}), schema.get("required", [])
        keep = self.random.random()
        out = {name: self.make(declared.get(name, True), depth - 1) for name in dict.fromkeys([*declared, *required])
               if self.random.random() < (0.95 if name in required else keep)}
        for pattern, inner in schema.get("patternProperties", {}).items():
            out |= {name: self.make(inner, depth - 1) for name in NAMES if re.search(pattern, name) and name not in out and self.random.random() < 0.2}
        more = schema.get("additionalProperties", True)
        if more is not False or self.random.random() < 0.1:
            for _ in range(self.random.choice([0, 0, 1, 2])):
                out.setdefault(self.random.choice(NAMES), self.make(more, depth - 1))
        members = list(out.items())
        self.random.shuffle(members)
        return dict(members)


def combined(seed):
    """Keywords beside each other that schema_maker has alone or not at all."""
    maker = schema_maker.Maker(seed)
    draw = maker.random

    def members():
        return {name: maker.any(1) for name in maker.some(NAMES[:8], 4)}
    made = draw.choice([
        lambda: {"type": "array", "items": [maker.any(0), maker.any(0)], "additionalItems": draw.choice([False, maker.any(0)]),
                 "$schema": "http://json-schema.org/draft-07/schema#"},
        lambda: {"type": "array", "items": {"type": ["integer", "string"]}, "contains": {"type": "integer"}, "minContains": draw.randint(0, 2),
                 "maxContains": draw.randint(2, 3), "maxItems": draw.randint(2, 6)},
        lambda: {"type": "array", "items": {"enum": [1, 2, "a"]}, "uniqueItems": True, "minItems": draw.randint(0, 3)},
        lambda: {"type": "object", "properties": members(), "patternProperties": {"a": maker.any(1), "^[a-n]": {"type": ["integer", "string"]}},
                 "additionalProperties": draw.choice([False, True])},
        lambda: {"type": "object", "properties": {"a": {"type": "integer"}, "id": {"type": "string"}, "name": {}}, "additionalProperties": draw.choice([False, True]),
                 draw.choice(["anyOf", "oneOf"]): [{"required": ["a"]}, {"required": ["id"]}, {"required": ["name", "a"]}][:draw.randint(2, 3)],
                 "maxProperties": draw.randint(1, 3)},
        lambda: {"type": "object", "properties": {"a": {"type": "integer"}, "id": maker.any(1), "v": {"type": "string"}}, "not": {"required": ["a", "v"]}},
        lambda: {"type": "object", "properties": members(), **draw.choice([{}, {"additionalProperties": {"type": ["integer", "string"]}}, {"maxProperties": 2}]),
                 "not": draw.choice([{"additionalProperties": {"type": "integer"}}, {"patternProperties": {"a": {"type": "string"}}}, {"propertyNames": {"pattern": "^[a-n]"}},
                                     {"properties": {"a": {"type": "integer"}}, "additionalProperties": False}, {"not": {"required": ["a"]}}])},
        lambda: {"type": "integer", "multipleOf": draw.choice([86400, 1000003, 10**12]), "minimum": draw.randint(-10**9, 10**9), "maximum": draw.randint(2 * 10**9, 10**15)},
        lambda: {"type": "object", "properties": {"kind": {"enum": ["a", "b", 1]}, "v": maker.any(1)}, "if": {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},
                 "then": {"required": ["v"]}, "else": {"properties": {"v": {"type": "integer"}}}},
        lambda: {"type": "object", "properties": {"a": maker.any(0), "id": maker.any(0), "v": maker.any(0)}, "additionalProperties": False,
                 "dependencies": {"a": ["id"], "v": {"properties": {"id": {"type": "string"}}}}, "$schema": "http://json-schema.org/draft-07/schema#"},
        lambda: {"allOf": [{"anyOf": [{"type": "string", "minLength": 2}, {"type": "number", "minimum": 3}]}, {"not": {"enum": ["abc", 4]}}, {"maxLength": 5, "maximum": 9}]},
        lambda: {"type": "object", "properties": members(), "unevaluatedProperties": draw.choice([False, {"type": "integer"}]),
                 "allOf": [{"properties": {"x-1": {"type": "boolean"}}}]},
        lambda: {"oneOf": [{"type": "integer", "multipleOf": 2}, {"type": "integer", "minimum": 5}, {"type": "string", "pattern": "^a"}, {"type": "string", "maxLength": 2}]},
        lambda: {"type": "object", "propertyNames": draw.choice([{"pattern": "^[a-z]+$"}, {"not": {"enum": ["a", "id"]}}, {"maxLength": 2}]), "properties": members(),
                 "minProperties": draw.randint(0, 2), "maxProperties": draw.randint(2, 4)},
    ])()
    return {**made, "$defs": maker.defs} if maker.defs else made


def exact(value):
    if isinstance(value, float):
        return decimal.Decimal(str(value))
    if isinstance(value, list):
        return [exact(item) for item in value]
    return {name: exact(item) for name, item in value.items()} if isinstance(value, dict) else value


def canonical(value):
    if isinstance(value, decimal.Decimal):
        text = format(value, "f")
        text = text.rstrip("0").rstrip(".") if "." in text else text
        return "0" if text in ("-0", "") else text
    if isinstance(value, list):
        return "[" + ", ".join(map(canonical, value)) + "]"
    if isinstance(value, dict):
        return "{" + ", ".join(json.dumps(name, ensure_ascii=False) + ": " + canonical(item) for name, item in value.items()) + "}"
    return json.dumps(value, ensure_ascii=False)


def compare(vocabulary, schema, seed, totals, instances=30):
    """Counts into totals; [(text, what the validator says)] of the texts about which the two differ."""
    try:
        constraint = structured.Constraint(vocabulary, "json_schema", schema, property_order="any", limits={"mask_cpu_ms": 60_000})
    except structured.ConstraintError as error:
        totals[error.code] += 1
        if error.code != "unsatisfiable_schema":
            return []
        constraint = None
    judged, maker, differences = exact(schema), InstanceMaker(seed, schema), []
    for text in dict.fromkeys(canonical(exact(maker.make(schema))) for _ in range(instances)):
        try:
            wrong = walks.judge(judged, text)
        except walks.NotJudged:
            totals["not judged"] += 1
            continue
        matcher = structured.Matcher(constraint) if constraint else None
        accepted = matcher is not None and matcher.accept_bytes(text.encode()) and matcher.accepting
        totals[("valid" if wrong is None else "invalid") + (" accepted" if accepted else " refused")] += 1
        if accepted != (wrong is None):
            differences.append((text, wrong or "valid"))
    return differences


def schemas(first, count):
    for seed in range(first, first + count):
        yield seed, combined(seed) if seed % 2 else schema_maker.make_schema(seed)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--schemas", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0)
    arguments = parser.parse_args()
    vocabulary, totals = walks.load_vocabulary(walks.ROOT / "../shared/vectors"), collections.Counter()
    for seed, schema in schemas(arguments.first, arguments.schemas):
        for text, said in compare(vocabulary, schema, seed, totals):
            print(f"{json.dumps(schema, ensure_ascii=False)[:600]}\n  {text[:200]}: {said}", flush=True)
    print(dict(totals))
    return 1 if totals["invalid accepted"] else 0


if __name__ == "__main__":
    sys.exit(main())
