"""Structured output through the running program: every answer fits what was asked for, every refusal says where and why."""
import json
import subprocess
import sys
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
    ({"structured_outputs": {"json_object": True}}, lambda t: isinstance(json.loads(t), dict)),
    ({"structured_outputs": {"json": {"type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["a"]}, "disable_additional_properties": True,
                             "whitespace_pattern": " {2}"}}, lambda t: list(json.loads(t)) == ["a"] and "  " in t),
    ({"structured_outputs": {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": "abc"}}}}, lambda t: t == "abc"),
    ({"structured_outputs": {"structural_tag": '{"type": "structural_tag", "format": {"type": "grammar", "grammar": "root ::= [d-f]{2}"}}'}}, lambda t: len(t) == 2 and set(t) <= set("def")),
    ({"structured_outputs": {"grammar": "start: A\nA: /[pq]{3}/"}}, lambda t: len(t) == 3 and set(t) <= {"p", "q"}),
    ({"guided_json": {"type": "array", "items": {"const": 1}, "minItems": 2, "maxItems": 2}, "guided_whitespace_pattern": "", "guided_decoding_backend": "xgrammar"}, lambda t: t == "[1,1]"),
    ({"sampling_params": {"regex": "k{3}"}}, lambda t: t == "kkk"),
    ({"sampling_params": {"ebnf": 'root ::= "m" "n"'}}, lambda t: t == "mn"),
    ({"sampling_params": {"json_schema": json.dumps(PERSON)}}, lambda t: not jsonschema.validate(json.loads(t), PERSON)),
    ({"sampling_params": {"structural_tag": json.dumps({"type": "structural_tag", "format": {"type": "regex", "pattern": "[rs]{3}"}})}}, lambda t: len(t) == 3 and set(t) <= {"r", "s"}),
    ({"json_schema": PERSON}, lambda t: not jsonschema.validate(json.loads(t), PERSON)),
    ({"response_format": schema_format(PERSON), "deepinfer": {"profile": "default"}}, lambda t: not jsonschema.validate(json.loads(t), PERSON)),
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
    if "json_object" in json.dumps(fields) and choice["finish_reason"] == "length":
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
    ({"response_format": schema_format({**PERSON, "required": ["name"]}), "deepinfer": {"profile": "openai-strict"}},
     "unsupported_schema_feature", "response_format.json_schema.schema", ["required", "age"]),
    ({"response_format": schema_format({"type": "array"}), "deepinfer": {"profile": "openai-strict"}}, "unsupported_schema_feature", "response_format.json_schema.schema", ["type", "root"]),
    ({"regex": "a", "sampling_params": {"ebnf": 'root ::= "a"'}}, "conflicting_constraints", "sampling_params.ebnf", []),
    ({"sampling_params": {"regex": 3}}, "invalid_type", "sampling_params.regex", []),
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


def test_older_names_are_taken_with_a_warning(server):
    _, headers, data = server.request("POST", CHAT, server.body("Go.", guided_choice=["1", "2"]))
    assert json.loads(data)["choices"][0]["message"]["content"] in ("1", "2")
    assert headers["deepinfer-warnings"] == "deprecated_field;guided_choice"
    assert "deepinfer-warnings" not in server.request("POST", CHAT, server.body("Go.", response_format={"type": "text"}))[1]


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


@pytest.mark.release_only
def test_both_ways_of_decoding_give_valid_answers(server, start):
    """`make soak` asks for 1,000 answers of each (bench/structured/answers.py)."""
    sys.path.insert(0, str(harness.ROOT / "bench/structured"))
    import answers
    for running in (server, start("--spec", "off")):
        valid, faults = answers.count_valid(running, 20, 8)
        assert valid == 20, faults


def test_a_prefix_in_the_cache_changes_nothing(server):
    """The same prompt twice, its blocks reused: the constraint begins with the answer, not with the cached part."""
    text = "Describe a person. " * 40
    first, second = (server.json("POST", CHAT, server.body(text, response_format=schema_format(PERSON), max_tokens=300, temperature=0)) for _ in range(2))
    assert second["usage"]["prompt_cache_hit_tokens"] > 0
    assert first["choices"][0]["message"]["content"] == second["choices"][0]["message"]["content"]
    jsonschema.validate(json.loads(second["choices"][0]["message"]["content"]), PERSON)


OFF = {"thinking": {"type": "disabled"}}
RESPONSES = {"input": "Describe a person in json.", "max_output_tokens": 400, "reasoning": {"effort": "none"}}
MESSAGES = {"messages": [{"role": "user", "content": "Describe a person."}], "max_tokens": 400, **OFF}


def output_text(answer):
    return "".join(part["text"] for item in answer["output"] if item["type"] == "message" for part in item["content"])


@pytest.mark.parametrize("strict", [None, True, False])
@pytest.mark.parametrize("stream", [False, True])
def test_responses_text_format(server, strict, stream):
    form = {"type": "json_schema", "name": "person", "schema": PERSON} | ({} if strict is None else {"strict": strict})
    body = {**RESPONSES, "model": server.model, "text": {"format": form}, "stream": stream}
    if stream:
        _, _, data = server.request("POST", "/v1/responses", body)
        (answer,) = [json.loads(line[6:])["response"] for line in data.decode().split("\n")
                     if line.startswith("data: ") and '"type":"response.completed"' in line]
    else:
        answer = server.json("POST", "/v1/responses", body)
    jsonschema.validate(json.loads(output_text(answer)), PERSON)


def test_responses_are_strict_unless_they_say_otherwise(server):
    """Responses: strict by default; Chat: lenient by default (structured-output.md §8)."""
    unique = {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "maxItems": 2, "uniqueItems": True,
                                                     "contains": {"multipleOf": 7}}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "name": "x", "schema": unique}
    body = {**RESPONSES, "model": server.model, "text": {"format": form}}
    status, error = server.error(body, "/v1/responses")
    assert (status, error["code"]) == (400, "unsupported_schema_feature"), error
    assert error["param"].startswith("text.format.schema#/properties/a"), error
    form["strict"] = False
    status, headers, data = server.request("POST", "/v1/responses", body)
    assert status == 200 and "uniqueItems" in {name.lower(): value for name, value in dict(headers).items()}["deepinfer-warnings"]
    assert isinstance(json.loads(output_text(json.loads(data)))["a"], list)


@pytest.mark.parametrize("fields", [{"output_config": {"format": {"type": "json_schema", "schema": PERSON}}},
                                    {"output_format": {"type": "json_schema", "schema": PERSON}}])
def test_messages_output_format(server, fields):
    answer = server.json("POST", "/v1/messages", {**MESSAGES, "model": server.model, **fields})
    (block,) = answer["content"]
    jsonschema.validate(json.loads(block["text"]), PERSON)


@pytest.mark.parametrize("choice", [{"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "get_weather", "disable_parallel_tool_use": True}])
def test_messages_strict_tools(server, choice):
    function = WEATHER["function"]
    tool = {"name": function["name"], "description": function["description"], "input_schema": function["parameters"], "strict": True}
    for seed in range(3):
        answer = server.json("POST", "/v1/messages", {**MESSAGES, "model": server.model, "tools": [tool], "tool_choice": choice, "temperature": 1.0, "seed": seed})
        calls = [block for block in answer["content"] if block["type"] == "tool_use"]
        assert len(calls) == 1 and answer["stop_reason"] == "tool_use", answer
        jsonschema.validate(calls[0]["input"], function["parameters"])


@pytest.mark.parametrize("fields, fits", [
    ({"response_format": schema_format(PERSON)}, lambda t: not jsonschema.validate(json.loads(t), PERSON)),
    ({"structured_outputs": {"regex": "[0-9]{3}"}}, lambda t: len(t) == 3 and t.isdigit()),
    ({"guided_choice": ["red", "green"]}, lambda t: t in ("red", "green")), ({"ebnf": 'root ::= "m" "n"'}, lambda t: t == "mn")])
def test_completions_are_constrained_too(server, fields, fits):
    body = {"model": server.model, "prompt": ["A person:", "Another:"], "n": 2, "max_tokens": 400, "temperature": 1.0, **fields}
    choices = server.json("POST", "/v1/completions", body)["choices"]
    assert len(choices) == 4
    for choice in choices:
        assert choice["finish_reason"] == "stop" and fits(choice["text"]), choice
    status, error = server.error({**body, "regex": "(a"}, "/v1/completions")
    assert status == 400 and error["code"] in ("conflicting_constraints", "invalid_regex"), error
    status, error = server.error({"model": server.model, "prompt": "x", "response_format": {"type": "xml"}}, "/v1/completions")
    assert status == 400 and error["param"] == "response_format", error


@pytest.mark.parametrize("options, fits", [
    (["--json-schema", json.dumps(PERSON)], lambda t: not jsonschema.validate(json.loads(t), PERSON)),
    (["--regex", "[0-9]{3}-[a-f]{2}"], lambda t: len(t) == 6 and t[3] == "-"),
    (["--grammar", 'root ::= ("x" | "y"){4}'], lambda t: len(t) == 4 and set(t) <= {"x", "y"})])
def test_run_takes_constraints(options, fits):
    command = [harness.binary(), "run", harness.model_dir(), "Describe a person.", "--temperature", "1.2", "--max-tokens", "400", *options]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=300, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    assert fits(done.stdout.strip()), done.stdout


def test_run_takes_files_and_says_what_is_wrong(tmp_path):
    schema = tmp_path / "schema.json"
    schema.write_text(json.dumps({"const": "owl"}))

    def run(*options):
        return subprocess.run([str(harness.binary()), "run", str(harness.model_dir()), "A bird?", *options], capture_output=True, text=True, timeout=300,
                              stdin=subprocess.DEVNULL)
    assert run("--json-schema", str(schema)).stdout.strip() == '"owl"'
    for options, status, part in [(("--json-schema", str(tmp_path / "none.json")), 2, "none.json"), (("--json", "--regex", "a"), 2, "at most one"),
                                  (("--grammar", "owl"), 2, "`owl`"), (("--regex", "(a"), 1, "invalid_regex")]:
        done = run(*options)
        assert done.returncode == status and part in done.stderr, (options, done)


def test_chat_and_generate_take_constraints(tmp_path):
    model = str(harness.model_dir())
    talk = subprocess.run([str(harness.binary()), "chat", model, "--regex", "[0-9]{2}"], input="One.\nTwo.\n", capture_output=True, text=True, timeout=300)
    assert talk.returncode == 0, talk.stderr
    assert [len(line) == 2 and line.isdigit() for line in talk.stdout.split()] == [True, True], talk.stdout
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    lines = [{"messages": [{"role": "user", "content": "Number."}], **OFF}, {"messages": [{"role": "user", "content": "Person."}], **OFF, "response_format": schema_format(PERSON)}]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = subprocess.run([str(harness.binary()), "generate", str(source), str(target), model, "--regex", "k{3}"], capture_output=True, text=True, timeout=300,
                          stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr
    found = {line["custom_id"]: line["response"]["body"]["choices"][0]["message"]["content"] for line in map(json.loads, target.read_text().splitlines())}
    assert found["1"] == "kkk"
    jsonschema.validate(json.loads(found["2"]), PERSON)
