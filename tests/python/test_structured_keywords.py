"""The cases behind docs/structured-keywords.md hold, and the page is what they make."""
import pathlib
import sys

import pytest

pytest.importorskip("deepinfer.structured", reason="the Python module is not built (python3-dev, pybind11-dev)")
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "tools"))
import structured_keywords


@pytest.fixture(scope="module")
def vocabulary():
    return structured_keywords.load_vocabulary()


def test_every_case_holds(vocabulary):
    assert not structured_keywords.faults(vocabulary)


def test_the_page_is_current():
    assert structured_keywords.PAGE.read_text(encoding="utf-8") == structured_keywords.page(), "run tools/structured_keywords.py"


def test_a_case_that_does_not_hold_is_found(vocabulary):
    assert structured_keywords.faults_of(vocabulary, {"type": "null"}, ["null"], ["1"]) == []
    assert structured_keywords.faults_of(vocabulary, {"type": "null"}, ["1"], ["null"]) == [
        '{"type": "null"}: 1 is refused', '{"type": "null"}: null is accepted']
    assert "compiles" in structured_keywords.faults_of(vocabulary, {"type": "null"}, "ref_cycle")[0]
    assert "unresolvable_ref" in structured_keywords.faults_of(vocabulary, {"$ref": "#/x"}, ["1"], [])[0]
