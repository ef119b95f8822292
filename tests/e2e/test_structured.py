"""Structured output through the running program: every answer fits what was asked for, every refusal says where and why."""
import json
import threading
import time

import harness
import jsonschema
import pytest
from harness import CHAT

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["new", "old", 3]}, "maxItems": 3},
        "note": {"anyOf": [{"type": "null"}, {"type": "string", "maxLength": 8}]},
    },
    "required": ["name", "age", "tags", "note"],
    "additionalProperties": False,
}
SCHEMAS = [
    PERSON,
    {"type": "object", "properties": {"when": {"type": "string", "format": "date"}, "part": {"type": "number", "minimum": 0, "maximum": 1}},
     "required": ["when", "part"], "additionalProperties": False},
    {"type": "array", "items": {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}, "minItems": 1, "maxItems": 3},
    {"oneOf": [{"type": "object", "properties": {"kind": {"const": "a"}, "x": {"type": "integer", "multipleOf": 7, "minimum": 0, "maximum": 99}},
                "required": ["kind", "x"], "additionalProperties": False},
               {"type": "object", "properties": {"kind": {"const": "b"}, "y": {"type": "string", "pattern": "^[A-F]{2,4}$"}},
                "required": ["kind", "y"], "additionalProperties": False}]},
    {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {"v": {"type": "integer", "minimum": 0, "maximum": 9}, "next": {"$ref": "#/$defs/tree"}},
                                                "required": ["v"], "additionalProperties": False, "maxProperties": 1}}},
]
WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "The weather of a place.", "strict": True,
    "parameters": {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9},
                                                    "unit": {"enum": ["C", "F"]}},
                   "required": ["city", "days", "unit"], "additionalProperties": False}}}


def schema_format(schema, **more):
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True, **more}}


def choice_of(server, text, **fields):
    return server.json("POST", CHAT, server.body(text, max_tokens=300, **fields))["choices"][0]


@pytest.mark.parametrize("number", range(len(SCHEMAS)))
@pytest.mark.parametrize("stream", [False, True])
def test_answers_fit_their_schema(server, number, stream):
    schema = SCHEMAS[number]
    for seed in range(3):
        fields = dict(response_format=schema_format(schema), temperature=1.3, seed=seed, max_tokens=400)
        if stream:
            _, _, data = server.request("POST", CHAT, server.body("Describe something.", stream=True, **fields))
            chunks = [json.loads(event) for event in harness.sse_events(data) if event != "[DONE]"]
            text = "".join(c["choices"][0]["delta"].get("content") or "" for c in chunks if c["choices"])
            finish = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]][-1]
        else:
            choice = choice_of(server, "Describe something.", **{k: v for k, v in fields.items() if k != "max_tokens"})
            text, finish = choice["message"]["content"], choice["finish_reason"]
        assert finish == "stop", text
        jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker()).validate(json.loads(text))


def test_every_choice_and_thinking_part(server):
    body = {**server.body("Describe a person.", response_format=schema_format(PERSON), max_tokens=500, n=4, temperature=1.0),
            "thinking": {"type": "enabled"}}
    choices = server.json("POST", CHAT, body)["choices"]
    assert len(choices) == 4
    done = [c for c in choices if c["finish_reason"] == "stop"]
    assert done
    for choice in done:
        jsonschema.validate(json.loads(choice["message"]["content"]), PERSON)
        assert choice["message"]["reasoning_content"]


def test_strict_tool_calls_parse(server):
    parameters = WEATHER["function"]["parameters"]
    for seed in range(4):
        for thinking in ("disabled", "enabled"):
            body = {**server.body("What is the weather in Rome?", tools=[WEATHER], tool_choice="required", parallel_tool_calls=False,
                                  max_tokens=500, temperature=1.2, seed=seed), "thinking": {"type": thinking}}
            choice = server.json("POST", CHAT, body)["choices"][0]
            if choice["finish_reason"] == "length" and thinking == "enabled":
                continue
            assert choice["finish_reason"] == "tool_calls", choice
            (call,) = choice["message"]["tool_calls"]
            assert call["function"]["name"] == "get_weather"
            jsonschema.validate(json.loads(call["function"]["arguments"]), parameters)


def test_tools_that_must_not_be_called_are_not(server):
    choice = choice_of(server, "What is the weather in Rome?", tools=[WEATHER], tool_choice="none")
    assert not choice["message"].get("tool_calls")


@pytest.mark.parametrize("fields, fits", [
    ({"response_format": {"type": "json_object"}}, lambda t: isinstance(json.loads(t), dict)),
    ({"response_format": {"type": "regex", "regex": "[0-9]{3}-[a-f]{2}"}}, lambda t: len(t) == 6 and t[3] == "-"),
    ({"structured_outputs": {"choice": ["red", "green"]}}, lambda t: t in ("red", "green")),
    ({"structured_outputs": {"json": PERSON, "disable_any_whitespace": True}}, lambda t: not jsonschema.validate(json.loads(t), PERSON) and '": ' not in t),
    ({"structured_outputs": {"json": json.dumps(PERSON)}}, lambda t: not jsonschema.validate(json.loads(t), PERSON)),
    ({"structured_outputs": {"grammar": 'root ::= ("x" | "y"){4}'}}, lambda t: len(t) == 4 and set(t) <= {"x", "y"}),
    ({"guided_json": PERSON}, lambda t: not jsonschema.validate(json.loads(t), PERSON)),
    ({"guided_regex": "a{2,5}b"}, lambda t: t.rstrip("b") in ("aa", "aaa", "aaaa", "aaaaa")),
    ({"guided_choice": ["1", "2"]}, lambda t: t in ("1", "2")),
    ({"guided_grammar": "start: A\nA: /[pq]{3}/"}, lambda t: len(t) == 3 and set(t) <= {"p", "q"}),
    ({"regex": "k{3}"}, lambda t: t == "kkk"),
    ({"ebnf": 'root ::= "m" "n"'}, lambda t: t == "mn"),
    ({"grammar": 'root ::= [u-w]{2}'}, lambda t: len(t) == 2 and set(t) <= set("uvw")),
    ({"json_schema": json.dumps(PERSON)}, lambda t: not jsonschema.validate(json.loads(t), PERSON)),
    ({"response_format": {"type": "structural_tag", "format": {"type": "const_string", "value": "abc"}}}, lambda t: t == "abc"),
    ({"structural_tag": {"type": "structural_tag", "format": {"type": "regex", "pattern": "[rs]{3}"}}}, lambda t: len(t) == 3 and set(t) <= {"r", "s"}),
    ({"response_format": schema_format(PERSON), "deepinfer": {"whitespace": "compact", "property_order": "any"}},
     lambda t: not jsonschema.validate(json.loads(t), PERSON) and '": ' not in t),
])
def test_every_field_of_the_clients_constrains(server, fields, fits):
    choice = choice_of(server, "Answer in json.", **fields)
    text = choice["message"]["content"]
    if fields.get("response_format", {}).get("type") == "json_object" and choice["finish_reason"] == "length":
        return  # free JSON has no bound of its own
    assert choice["finish_reason"] == "stop", text
    assert fits(text), text


@pytest.mark.parametrize("fields, code, param, parts", [
    ({"response_format": schema_format({"type": "object", "properties": {"a": {"type": "array", "items": {}, "uniqueItems": True}}})},
     "unsupported_schema_feature", "response_format.json_schema.schema#/properties/a", ["uniqueItems"]),
    ({"response_format": schema_format({"type": "object", "properties": {"a": {"type": "string", "pattern": "(a"}}})},
     "invalid_regex", "response_format.json_schema.schema#/properties/a", ["pattern", "offset 0"]),
    ({"response_format": schema_format({"type": "object", "properties": {"a": {"$ref": "http://example.com/x"}}})},
     "unresolvable_ref", "response_format.json_schema.schema#/properties/a", ["$ref"]),
    ({"structured_outputs": {"json": {"type": "integer", "minimum": 3, "maximum": 2}}}, "unsatisfiable_schema", None, []),
    ({"structured_outputs": {"regex": "(?<=a)(b"}}, "invalid_regex", "structured_outputs.regex", []),
    ({"structured_outputs": {"regex": "(a)\\1"}}, "unsupported_regex_feature", "structured_outputs.regex", []),
    ({"guided_grammar": "root ::= nothing"}, "invalid_grammar", "guided_grammar", ["nothing"]),
    ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "conflicting_constraints", "structured_outputs.choice", []),
    ({"response_format": {"type": "json_object"}, "regex": "a"}, "conflicting_constraints", "regex", []),
    ({"structured_outputs": {}}, "invalid_value", "structured_outputs", []),
    ({"guided_choice": "x"}, "invalid_type", "guided_choice", []),
    ({"regex": "a", "deepinfer": {"whitespace": "wide"}}, "invalid_type", "deepinfer.whitespace", ["flexible"]),
])
@pytest.mark.parametrize("stream", [False, True])
def test_refusals_name_the_place_and_the_reason(server, fields, code, param, parts, stream):
    status, error = server.error(server.body("Answer in json.", stream=stream, **fields))
    assert (status, error["code"]) == (400, code), error
    if param is not None:
        assert error["param"] == param, error
    for part in parts:
        assert part in error["message"], error


def test_lenient_schemas_are_loosened_only_when_not_strict(server):
    schema = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 3, "uniqueItems": True}},
              "required": ["a"], "additionalProperties": False}
    text = choice_of(server, "Json, please.", response_format=schema_format(schema, strict=False))["message"]["content"]
    assert isinstance(json.loads(text)["a"], list)


def test_a_constraint_that_compiles_slowly_delays_nobody(start):
    server = start("--threads", "1")
    slow = server.body("Hi", guided_regex="(?=.*a.{14}b)(?=.*c.{14}d)(?=.*e.{14}f)(?!.*g.{14}h).*")
    result = {}

    def ask():
        began = time.monotonic()
        result["status"], result["error"] = server.error(slow)
        result["seconds"] = time.monotonic() - began

    thread = threading.Thread(target=ask)
    thread.start()
    answered = 0
    while thread.is_alive():
        assert server.answer(max_tokens=2)
        answered += 1
    thread.join()
    assert result["status"] == 400, result
    assert result["error"]["code"] in ("constraint_compile_timeout", "constraint_too_complex"), result
    assert answered > 3, (answered, result["seconds"])
    # Known by now: refused at once.
    began = time.monotonic()
    assert server.error(slow)[0] == 400
    assert time.monotonic() - began < result["seconds"] / 2
    assert server.metric("deepinfer:grammar_cache_total", result="hit") == 1
    assert server.metric("deepinfer:grammar_cache_total", result="miss") == 1
