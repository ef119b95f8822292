"""Random walks through masks end in texts that python-jsonschema finds valid. `make soak` walks 10,000 pairs; here are some."""
import json
import os
import pathlib

import pytest

pytest.importorskip("deepinfer.structured", reason="the Python module is not built (python3-dev, pybind11-dev)")
pytest.importorskip("jsonschema")
pytest.importorskip("numpy")

import schema_maker
import structured_walks as walks

VECTORS = pathlib.Path(os.environ.get("DEEPINFER_VECTORS") or pathlib.Path(__file__).resolve().parents[2] / "../shared/vectors")


@pytest.fixture(scope="module")
def walker():
    return walks.Walker(walks.load_vocabulary(VECTORS))


def test_schemas_made_at_random(walker):
    totals = walks.Totals()
    for seed in range(60):
        walks.run_schema(walker, totals, f"made {seed}", json.dumps(schema_maker.make_schema(seed), ensure_ascii=False), [seed, seed + 1], 40)
    print(totals.text())
    assert not totals.failures, totals.text()
    assert totals.walked > 90 and sum(totals.not_judged.values()) < 10, totals.text()


def test_schemas_of_the_vectors(walker):
    known = walks.vectors_of(VECTORS)
    if not known:
        pytest.skip(f"reference vectors are absent: {VECTORS}")
    totals = walks.Totals()
    for number, (name, text) in enumerate(known[::20]):
        walks.run_schema(walker, totals, name, text, [number], 40)
    print(totals.text())
    assert not totals.failures, totals.text()
    assert totals.walked > 40 and sum(totals.not_judged.values()) < 5, totals.text()


SCHEMA = {"type": "object", "properties": {"n": {"type": "integer", "maximum": 10**22}, "d": {"multipleOf": 0.1}, "w": {"format": "time"},
                                           "p": {"pattern": "^\\w+$"}, "r": {"format": "relative-json-pointer"}}, "required": ["n"], "additionalProperties": False}


@pytest.mark.parametrize("text, fits", [
    ('{"n": 10000000000000000000000}', True), ('{"n": 10000000000000000000001}', False), ('{"n": 1, "d": 0.3}', True), ('{"n": 1, "d": 0.35}', False),
    ('{"n": 1, "w": "00:00:00z"}', True), ('{"n": 1, "w": "24:00:00Z"}', False), ('{"n": 1, "p": "a\\n"}', False), ('{"n": 1, "p": "\u00e9"}', False),
    ('{"n": 1, "r": "100/a"}', True), ('{"n": 1, "r": "01/a"}', False), ('{"n": 1, "r": "1/~2"}', False), ('{"n": NaN}', False), ('{"n": 1, "n": 2}', False), ('{"n": 1', False)])
def test_the_judge_is_exact(text, fits):
    """Where the validator alone would be wrong: big and decimal numbers, ECMA's patterns, small letters in times, repeated names."""
    assert (walks.judge(walks.parse(json.dumps(SCHEMA)), text) is None) == fits


def test_the_walk_finds_faults(walker):
    """A text that the masks of one schema allow does not fit another: the walk says so."""
    constraint = walks.structured.Constraint(walker.vocabulary, "json_schema", {"type": "integer", "minimum": 100})
    found, wrong = walker.walk(constraint, 5, 0)
    assert wrong is None
    assert walks.judge({"type": "integer", "maximum": 99}, found.decode()).startswith("maximum")
