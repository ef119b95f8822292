"""Each field report is a test whose name has its id, and those that are not say which part of the system they wait for."""
import pathlib
import re

TESTS = pathlib.Path(__file__).resolve().parents[1]
# The reports of field-reports.md that can be tested with what there is.
REPORTS = """B001 B002 B005 B008 B009 B010 B012 B013 B014 B015 B016 B017 B018 B020 B022 B023 B024 B026 B027 B028 B029 B030 B032 B033 B034
B035 B036 B037 B039 B041 B042 B043 B044 B045 B046 B047 B049 B050 B052 B054 B056 B057 B058 B059 B060 B061 B069 B070 B071 B072 B073 B074 B075 B076 B077 B078
B079 B081 B082 B083""".split()
# Those about parts that are not there.
WAITING = {
    "B048": "ranks that sample together",
    "B053": "KV on disk",
    "B063": "moving experts between ranks", "B064": "the same", "B065": "the same", "B066": "the same",
    "B067": "a planner", "B068": "a planner",
}


def named():
    """Ids in the names of tests, Python's and C++'s."""
    found = {}
    for path in sorted([*TESTS.rglob("test_*.py"), *TESTS.rglob("*_test.cc")]):
        text = path.read_text(encoding="utf-8")
        names = re.findall(r"^def (test_\w+)", text, re.M) + [b for _, b in re.findall(r"^TEST(?:_[FP])?\((\w+),\s*(\w+)\)", text, re.M)]
        for name in names:
            for one in re.findall(r"B\d{3}", name):
                found.setdefault(one, []).append(f"{path.relative_to(TESTS)}: {name}")
    return found


def test_every_report_is_a_test():
    found = named()
    assert len(REPORTS) + len(WAITING) == 68 and not set(REPORTS) & set(WAITING)
    assert [one for one in REPORTS if one not in found] == []
    assert [one for one in WAITING if one in found] == [], "it is no longer waiting"
