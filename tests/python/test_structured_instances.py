"""Texts are accepted exactly when python-jsonschema finds them valid. `tests/python/structured_instances.py` alone tries more."""
import collections
import os
import pathlib

import pytest

pytest.importorskip("deepinfer.structured", reason="the Python module is not built (python3-dev, pybind11-dev)")
pytest.importorskip("jsonschema")
pytest.importorskip("numpy")

import structured_instances as instances
import structured_walks as walks

VECTORS = pathlib.Path(os.environ.get("DEEPINFER_VECTORS") or pathlib.Path(__file__).resolve().parents[2] / "../shared/vectors")


@pytest.fixture(scope="module")
def vocabulary():
    return walks.load_vocabulary(VECTORS)


def test_accepted_exactly_when_valid(vocabulary):
    totals = collections.Counter()
    for seed, schema in instances.schemas(0, 160):
        assert instances.compare(vocabulary, schema, seed, totals, 20) == [], f"seed {seed}: {schema}"
    print(dict(totals))
    assert totals["valid accepted"] > 600 and totals["invalid refused"] > 1200 and totals["unsupported_schema_feature"] < 10


def test_a_difference_is_found(vocabulary, monkeypatch):
    """The validator is asked about another bound than the one that is compiled."""
    monkeypatch.setattr(instances, "exact", lambda value: {"type": "integer", "minimum": 4} if isinstance(value, dict) else value)
    found = instances.compare(vocabulary, {"type": "integer", "minimum": 3}, 1, collections.Counter(), 200)
    assert found and {text for text, _ in found} == {"3"}
