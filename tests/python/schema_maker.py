"""Random JSON Schemas for tests: every keyword that can be enforced occurs, alone and beside others. Equal seeds give
equal schemas."""
import random

PATTERNS = ["^[a-z]{2,5}$", "^\\d+(\\.\\d{1,2})?$", "ab?c", "^(?!x)[w-z]{3}$", "[\\u00e0-\\u00ff]$", "^$|^\\S+@\\S+$", "^[^\"\\\\]{0,4}$",
            "^(?:red|gr[ae]y|\\x41)$", "\\.(?:json|yml)$", "^.{3}$", "^\\p{Lu}\\p{Ll}*$", "^-?[1-9]\\d{0,3}$"]
FORMATS = ["date", "date-time", "time", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri", "uri-reference", "json-pointer",
           "relative-json-pointer"]
NAMES = ["a", "id", "name", "\u00fcber", "two words", "x-1", "quote\"d", "back\\slash", "tab\t", "\U0001f989", "", "type"]
VALUES = [None, True, False, 0, -1, 17, 2.5, -0.125, "", "x", "a\"b", "\u65e5\u672c", "line\nend", [], [1, "b"], {}, {"k": [None]}]


class Maker:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.defs = {}

    def chance(self, part):
        return self.random.random() < part

    def some(self, values, most):
        return self.random.sample(values, self.random.randint(0, min(most, len(values))))

    def number_range(self, schema, low, high, integer):
        draw = (lambda: self.random.randint(low, high)) if integer else (lambda: round(self.random.uniform(low, high), self.random.randint(0, 3)))
        a, b = sorted((draw(), draw()))
        if self.chance(0.6):
            schema[self.random.choice(["minimum", "exclusiveMinimum"])] = a
        if self.chance(0.6):
            schema[self.random.choice(["maximum", "exclusiveMaximum"])] = b + 1

    def integer(self, depth):
        schema = {"type": "integer"}
        self.number_range(schema, *self.random.choice([(-9, 9), (-1000, 1000), (0, 10**12), (-(10**25), 10**25)]), True)
        if self.chance(0.3):
            schema["multipleOf"] = self.random.choice([1, 2, 5, 7, 12, 86400, 1000003])
        return schema

    def number(self, depth):
        schema = {"type": "number"}
        self.number_range(schema, *self.random.choice([(-1, 1), (-500, 500)]), False)
        if self.chance(0.3):
            schema["multipleOf"] = self.random.choice([0.5, 0.01, 0.25, 3])
        return schema

    def string(self, depth):
        schema = {"type": "string"}
        kind = self.random.random()
        if kind < 0.35:
            schema["pattern"] = self.random.choice(PATTERNS)
        elif kind < 0.6:
            schema["format"] = self.random.choice(FORMATS)
        elif kind < 0.85:
            if self.chance(0.7):
                schema["minLength"] = self.random.randint(0, 6)
            if self.chance(0.7):
                schema["maxLength"] = schema.get("minLength", 0) + self.random.randint(0, 200)
        return schema

    def enumeration(self, depth):
        if self.chance(0.4):
            return {"const": self.random.choice(VALUES)}
        return {"enum": self.random.sample(VALUES, self.random.randint(1, 5))}

    def array(self, depth):
        schema = {"type": "array"}
        if self.chance(0.25):
            schema.update(items={"enum": self.random.sample(VALUES[:10], 5)}, uniqueItems=True)
        else:
            if self.chance(0.4):
                schema["prefixItems"] = [self.any(depth - 1) for _ in range(self.random.randint(1, 3))]
            if self.chance(0.8):
                schema["items"] = self.random.choice([False, self.any(depth - 1), self.any(depth - 1)])
        if self.chance(0.4):
            schema["minItems"] = self.random.randint(0, 3)
        if self.chance(0.5):
            schema["maxItems"] = schema.get("minItems", 0) + self.random.randint(0, 4)
        if self.chance(0.1):
            schema["contains"] = schema.get("items", {})
        return schema

    def object(self, depth):
        schema = {"type": "object"}
        names = self.some(NAMES, 4)
        if names:
            schema["properties"] = {name: self.any(depth - 1) for name in names}
        required = [name for name in names if self.chance(0.5)] + (["extra"] if self.chance(0.1) else [])
        if required:
            schema["required"] = required
        if self.chance(0.6):
            schema["additionalProperties"] = self.random.choice([False, False, self.any(depth - 1)])
        if self.chance(0.15):
            schema["patternProperties"] = {self.random.choice(["^x-", "_id$", "^[0-9]+$", "a"]): self.any(depth - 1)}
        if self.chance(0.1):
            schema["propertyNames"] = self.random.choice([{"pattern": "^[a-z\u00fc]"}, {"maxLength": 4}, {"minLength": 1}, {"enum": NAMES[:5]}])
        if self.chance(0.15):
            schema["minProperties"] = self.random.randint(0, 2)
        if self.chance(0.15):
            schema["maxProperties"] = self.random.randint(2, 5)
        if len(names) >= 2 and self.chance(0.15):
            schema["dependentRequired"] = {names[0]: [names[1]]}
        if len(names) >= 2 and self.chance(0.1):
            schema["dependentSchemas"] = {names[0]: {"required": [names[1]]}}
        return schema

    def union(self, depth):
        branches = [self.any(depth - 1) for _ in range(self.random.randint(2, 3))]
        kind = self.random.random()
        if kind < 0.5:
            return {"anyOf": branches}
        if kind < 0.8:
            return {"oneOf": self.random.choice([branches, [{"type": "integer", "minimum": 3}, {"type": "string"}, {"type": "null"}],
                                                 [{"type": "integer", "multipleOf": 3}, {"type": "integer", "multipleOf": 5}]])}
        return {"allOf": [self.object(depth - 1), self.object(depth - 1)]}

    def negation(self, depth):
        kind = self.random.random()
        if kind < 0.3:
            return {"type": ["string", "integer", "null"], "not": self.enumeration(depth)}
        if kind < 0.6:
            return {"type": "string", "not": {"pattern": self.random.choice(PATTERNS)}}
        if kind < 0.8:
            return {"not": {"type": self.random.sample(["string", "object", "array", "boolean"], 2)}}
        if kind < 0.9:
            broken = self.random.choice([{"additionalProperties": {"type": "integer"}}, {"propertyNames": {"pattern": "^[a-m]"}}, {"patternProperties": {"a": {"type": "string"}}}])
            return {"type": "object", "properties": {"kind": self.integer(depth)}, "not": broken}
        return {"type": "object", "properties": {"kind": {"enum": ["a", "b"]}, "v": {}}, "required": ["kind", "v"],
                "if": {"properties": {"kind": {"const": "a"}}},
                "then": {"properties": {"v": self.integer(depth)}}, "else": {"properties": {"v": self.string(depth)}}}

    def reference(self, depth):
        name = self.random.choice(["one", "two"])
        if name not in self.defs:
            self.defs[name] = True  # what it refers to while it is made
            body = {"type": "object", "properties": {"value": self.any(1), "more": {"$ref": f"#/$defs/{name}"}}, "additionalProperties": False}
            self.defs[name] = body
        return {"$ref": f"#/$defs/{name}"}

    def any(self, depth):
        simple = [self.integer, self.number, self.string, self.string, self.enumeration, lambda _: {"type": "boolean"}, lambda _: {"type": "null"}]
        nested = [self.array, self.object, self.object, self.union, self.negation, self.reference, lambda _: self.random.choice([True, {}])]
        if depth > 0 and self.chance(0.6):
            return self.random.choice(nested)(depth)
        return self.random.choice(simple)(depth)


def make_schema(seed):
    maker = Maker(seed)
    schema = maker.random.choice([maker.object, maker.object, maker.array, maker.union, maker.any])(3)
    if maker.defs and isinstance(schema, dict):
        schema = {**schema, "$defs": maker.defs}
    return schema
