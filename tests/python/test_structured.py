"""The Python module of structured output: every call of it, on the bundled vocabulary and on one made here."""
import array
import json
import pathlib
import random
import threading

import pytest

structured = pytest.importorskip("deepinfer.structured", reason="the Python module is not built (python3-dev, pybind11-dev)")

ROOT = pathlib.Path(__file__).resolve().parents[2]
PERSON = {"type": "object", "properties": {"name": {"type": "string", "minLength": 1}, "age": {"type": "integer", "minimum": 0}},
          "required": ["name", "age"], "additionalProperties": False}


@pytest.fixture(scope="module")
def vocabulary():
    return structured.Vocabulary.load(str(ROOT / "models/tiny"))


@pytest.fixture
def letters():
    """a, b, ab, an unused row, the end, </think>."""
    return structured.Vocabulary([b"a", b"b", b"ab", b"", b"<e>", b"</t>"], special=[4, 5], roles=[("eos", 4), ("think_end", 5)])


def ids_in(mask):
    return [8 * at + bit for at, byte in enumerate(mask) for bit in range(8) if byte >> bit & 1]


def takes(constraint, vocabulary, text):
    matcher = structured.Matcher(constraint)
    ids = vocabulary.encode_greedy(text)
    return matcher.accept(ids) == len(ids) and matcher.accept(vocabulary.eos) == 1 and matcher.terminated


def test_a_vocabulary_has_its_rows(vocabulary, letters):
    assert len(letters) == 6 and letters.mask_words == 1 and letters.eos == 4
    assert letters.token_bytes(2) == b"ab" and letters.token_bytes(3) == b"" and letters.token_bytes(-1) == b""
    assert letters.is_special(4) and not letters.is_special(0) and letters.special_id("<e>") == 4 and letters.special_id("x") == -1
    assert letters.encode_greedy("abba") == [2, 1, 0] and letters.encode_greedy("c") == []
    assert letters.encode_greedy("a<e>", True) == [0, 4]
    text = (ROOT / "models/tiny/tokenizer.json").read_bytes()
    again = structured.Vocabulary.from_json(text)
    assert len(again) == len(vocabulary) > 256
    assert again.token_bytes(400) == vocabulary.token_bytes(400)
    with pytest.raises(ValueError, match="/nonexistent"):
        structured.Vocabulary.load("/nonexistent")
    with pytest.raises(ValueError, match="model.vocab"):
        structured.Vocabulary.from_json("{}")
    with pytest.raises(ValueError, match="out of range"):
        structured.Vocabulary([b"a"], special=[1])
    with pytest.raises(ValueError, match="roles"):
        structured.Vocabulary([b"a"], roles=[("end", 0)])
    with pytest.raises(ValueError, match="out of range"):
        structured.Vocabulary([b"a"], roles=[("eos", 7)])


def test_masks_of_a_small_vocabulary(letters):
    matcher = structured.Matcher(structured.Constraint(letters, "regex", "ab*"))
    assert ids_in(matcher.mask()) == [0, 2]
    assert matcher.accept(1) == 0 and matcher.tokens == 0
    assert matcher.validate([2, 1, 4]) == 3 and matcher.tokens == 0
    prefix, masks = matcher.masks_along([2, 0, 1])
    assert prefix == 1 and [ids_in(mask) for mask in masks] == [[0, 2], [1, 4]]
    assert matcher.accept([2, 1, 4, 1]) == 3 and matcher.terminated and matcher.mask() == bytes(4)
    assert not matcher.rollback(9) and matcher.rollback(2) and not matcher.terminated and matcher.accepting
    other = matcher.clone()
    assert other.state == matcher.state and other.accept(1) == 1 and (other.tokens, matcher.tokens) == (2, 1)
    matcher.reset()
    assert matcher.tokens == 0 and not matcher.accepting and matcher.forced_text(9) == b"a" and not matcher.failed
    also = structured.Matcher(structured.Constraint(letters, "regex", "ab"), stop_tokens=[5])
    assert also.accept_bytes("ab") and not also.accept_bytes(b"b") and ids_in(also.mask()) == [4, 5]


def test_masks_go_into_any_buffer_of_words(vocabulary):
    numpy = pytest.importorskip("numpy")
    matcher = structured.Matcher(structured.Constraint(vocabulary, "json_schema", PERSON))
    mask = matcher.mask()
    assert len(mask) == 4 * vocabulary.mask_words
    row = numpy.full(vocabulary.mask_words + 1, -1, numpy.int32)
    matcher.fill_mask(row)
    assert row[:-1].tobytes() == mask and row[-1] == 0
    words = array.array("I", bytes(len(mask)))
    matcher.fill_mask(words)
    assert words.tobytes() == mask
    with pytest.raises(ValueError, match="32-bit words"):
        matcher.fill_mask(bytearray(4))
    with pytest.raises(ValueError, match="contiguous"):
        matcher.fill_mask(numpy.zeros(4 * vocabulary.mask_words, numpy.uint32)[::2])
    with pytest.raises(BufferError):
        matcher.fill_mask(mask)


@pytest.mark.parametrize("kind, payload, options, taken, refused", [
    ("json_object", None, {}, ['{}', '{"a": [1]}'], ['[]', '1']),
    ("json_schema", PERSON, {}, ['{"name": "x", "age": 3}'], ['{"age": 3, "name": "x"}', '{"name": ""}']),
    ("json_schema", json.dumps(PERSON), {"property_order": "any"}, ['{"age": 3, "name": "x"}'], ['{"age": 3}']),
    ("json_schema", PERSON, {"whitespace": "compact"}, ['{"name":"x","age":3}'], ['{"name": "x", "age": 3}']),
    ("json_schema", PERSON, {"whitespace_pattern": "_?"}, ['{"name":_"x","age":3}'], ['{"name": "x", "age": 3}']),
    ("json_schema", {"type": "object"}, {"close_objects": True}, ['{}'], ['{"a": 1}']),
    ("json_schema", {"type": "integer", "format": "int32"}, {"numeric_formats": True}, ['7'], ['2147483648']),
    ("regex", "[0-9]{2}", {}, ['42'], ['4', '421']),
    ("choice", ["red", "green"], {}, ['red'], ['blue', 'gre']),
    ("ebnf", 'root ::= "x"{2,3}', {}, ['xx'], ['x']),
    ("lark", 'start: "x" "y"?', {}, ['x', 'xy'], ['y']),
    ("grammar", 'start: "x"', {}, ['x'], ['y']),
    ("structural_tag", {"type": "structural_tag", "format": {"type": "const_string", "value": "ok"}}, {}, ['ok'], ['no']),
])
def test_every_kind_constrains(vocabulary, kind, payload, options, taken, refused):
    constraint = structured.Constraint(vocabulary, kind, payload, **options)
    assert constraint.warnings == [] and constraint.memory_bytes > 0
    for text in taken:
        assert takes(constraint, vocabulary, text), text
    for text in refused:
        assert not takes(constraint, vocabulary, text), text


def test_calls_of_tools(vocabulary):
    tools = [{"type": "function", "function": {"name": "add", "strict": True, "parameters": {
        "type": "object", "properties": {"x": {"type": "integer"}}, "required": ["x"], "additionalProperties": False}}}]
    dsml = "\uff5cDSML\uff5c"
    call = (f'\n\n<{dsml} calls>\n<{dsml} invoke name="add">\n<{dsml} parameter name="x" string="false">3</{dsml} parameter>\n'
            f"</{dsml} invoke>\n</{dsml} calls>")
    for options, text, fits in [({"tool_choice": "required"}, call, True), ({"tool_choice": "required"}, "Three.", False),
                                ({"tool_choice": "none"}, call, False), ({}, "Three." + call, True),
                                ({"tool_name": "add", "tool_choice": "required"}, call, True),
                                ({"tool_choice": "required"}, call.replace(">3<", ">true<"), False)]:
        constraint = structured.Constraint(vocabulary, "tool_calls", tools, **options)
        matcher = structured.Matcher(constraint)
        ids = vocabulary.encode_greedy(text, True)
        assert ids and (matcher.accept([*ids, vocabulary.eos]) == len(ids) + 1) == fits, (options, text)
    both = structured.Constraint(vocabulary, "json_schema", PERSON, or_tools=tools)
    assert takes(both, vocabulary, '{"name": "x", "age": 3}')
    assert structured.Matcher(both).validate(vocabulary.encode_greedy("Well." + call, True)) > 10


def test_thinking_comes_first_and_is_free(vocabulary):
    constraint = structured.Constraint(vocabulary, "choice", ["yes"], reasoning=True)
    matcher = structured.Matcher(constraint)
    assert not matcher.needs_mask and matcher.accept(vocabulary.encode_greedy("Any {text")) > 0
    assert matcher.accept(vocabulary.special_id("</think>")) == 1
    assert matcher.needs_mask and matcher.forced_text(10) == b"yes"


@pytest.mark.parametrize("kind, payload, options, code, pointer, keyword", [
    ("json_schema", '{"properties":{"a":{"$ref":"http://example.com/x"}}}', {}, "unresolvable_ref", "/properties/a", "$ref"),
    ("json_schema", "{", {}, "invalid_json_schema", "", ""),
    ("json_schema", {"type": "integer", "minimum": 2, "maximum": 1}, {}, "unsatisfiable_schema", "", None),
    ("json_schema", {"format": "shoe-size"}, {"refuse_unknown_formats": True}, "unsupported_schema_feature", "", "format"),
    ("regex", "(a", {}, "invalid_regex", "", ""),
    ("ebnf", "root ::= x", {}, "invalid_grammar", "", ""),
    ("regex", "aaaa", {"limits": {"max_regex_bytes": 3}}, "constraint_too_large", "", ""),
])
def test_refusals_say_where_and_why(vocabulary, kind, payload, options, code, pointer, keyword):
    with pytest.raises(structured.ConstraintError) as caught:
        structured.Constraint(vocabulary, kind, payload, **options)
    assert isinstance(caught.value, ValueError)
    assert (caught.value.code, caught.value.pointer) == (code, pointer), str(caught.value)
    assert keyword is None or caught.value.keyword == keyword, str(caught.value)
    assert code in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize("kind, options, message", [
    ("xml", {}, "kind: expected one of json_object"), ("json_object", {"spaces": 1}, "`spaces`"),
    ("json_object", {"whitespace": "wide"}, "flexible, compact, any"), ("json_object", {"lenient": 1}, "true or false"),
    ("json_object", {"limits": {"max_fun": 1}}, "`max_fun`"), ("json_object", {"limits": {"max_items": 0}}, "positive"),
    ("json_object", {"limits": {"max_items": 2**40}}, "limits.max_items"), ("json_object", {"or_tools": "x"}, "a list of tools"),
    ("json_object", {"whitespace_pattern": 1}, "a string"), ("json_object", {"tool_choice": "maybe"}, "auto, required, none"),
])
def test_wrong_arguments_are_value_errors(vocabulary, kind, options, message):
    with pytest.raises(ValueError, match=message) as caught:
        structured.Constraint(vocabulary, kind, **options)
    assert not isinstance(caught.value, structured.ConstraintError)


def test_lenient_constraints_warn(vocabulary):
    schema = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
    (warning,) = structured.Constraint(vocabulary, "json_schema", schema, lenient=True).warnings
    assert "uniqueItems" in warning
    (warning,) = structured.Constraint(vocabulary, "json_schema", {"type": "string", "format": "shoe-size"}).warnings
    assert "shoe-size" in warning


def test_a_limit_reached_while_masks_are_made_raises(vocabulary):
    constraint = structured.Constraint(vocabulary, "json_schema", {"type": "object"}, limits={"max_states": 3})
    matcher = structured.Matcher(constraint)
    with pytest.raises(RuntimeError, match="constraint_failed"):
        for piece in ['{"', "a", '": [', "[1", "2, {", '"b', '": null']:
            matcher.mask()
            matcher.accept_bytes(piece)
    assert matcher.failed


def test_one_constraint_serves_many_threads(vocabulary):
    """Each thread walks at random; what it saw must be what a single thread sees."""
    constraint = structured.Constraint(vocabulary, "json_schema", PERSON)
    found = {}

    def walk(seed, constraint):
        random_ = random.Random(seed)
        matcher = structured.Matcher(constraint)
        masks = []
        for _ in range(12):
            masks.append(matcher.mask())
            if matcher.terminated:
                break
            assert matcher.accept(random_.choice(ids_in(masks[-1]))) == 1
        return masks

    def work(seed):
        found[seed] = walk(seed, constraint)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    alone = structured.Constraint(vocabulary, "json_schema", PERSON)
    assert len(found) == 8
    for seed, masks in found.items():
        assert masks == walk(seed, alone)
