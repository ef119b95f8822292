#!/usr/bin/env python3
"""Writes docs/structured-keywords.md from the cases of tests/python/keyword_cases.py, each of them run.

    tools/structured_keywords.py [--check]      --check: says whether the page is current, writes nothing

Needs the module deepinfer.structured (PYTHONPATH=build/release/python). A case that does not hold is an error, and nothing is
written.
"""
import json
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/python"))

import keyword_cases  # noqa: E402
from deepinfer import structured  # noqa: E402

PAGE = ROOT / "docs/structured-keywords.md"
HEAD = """# JSON Schema keywords

Made by `tools/structured_keywords.py` from cases that it runs (tests/python/keyword_cases.py); not edited by hand. *fit* and *do not*
count the texts that a schema with the keyword accepts and refuses, *refused* gives the codes that schemas are refused with. A keyword that
cannot be enforced where it stands is such a refusal, never left out, unless a lenient reading is asked for. Unknown keywords are annotations.

| keyword | what is enforced | fit | do not | refused |
|---|---|---|---|---|
"""


def load_vocabulary():
    return structured.Vocabulary.load(str(ROOT / "models/tiny"))


def takes(vocabulary, constraint, text):
    matcher = structured.Matcher(constraint)
    ids = vocabulary.encode_greedy(text)
    return matcher.accept(ids) == len(ids) and matcher.accept(vocabulary.eos) == 1


def faults_of(vocabulary, schema, *wanted):
    """What does not hold of a case, in words."""
    try:
        constraint = structured.Constraint(vocabulary, "json_schema", json.dumps(schema))
    except structured.ConstraintError as error:
        return [] if wanted[0] == error.code else [f"{json.dumps(schema)}: expected {wanted[0]}, found {error}"]
    if isinstance(wanted[0], str):
        return [f"{json.dumps(schema)}: expected {wanted[0]}, found that it compiles"]
    fit, unfit = wanted
    return [f"{json.dumps(schema)}: {text} is {'refused' if text in fit else 'accepted'}"
            for text in [*fit, *unfit] if takes(vocabulary, constraint, text) != (text in fit)]


def format_cases():
    for name, fit, unfit in keyword_cases.FORMATS:
        yield name, [({"type": "string", "format": name}, [f'"{text}"' for text in fit], [f'"{text}"' for text in unfit])]


def faults(vocabulary):
    found = [fault for _, _, cases in keyword_cases.KEYWORDS for case in cases for fault in faults_of(vocabulary, *case)]
    found += [fault for _, cases in format_cases() for case in cases for fault in faults_of(vocabulary, *case)]
    for name in keyword_cases.ANNOTATED:
        warnings = structured.Constraint(vocabulary, "json_schema", {"type": "string", "format": name}).warnings
        if not any(name in warning for warning in warnings):
            found.append(f"format {name}: expected a warning that names it, found {warnings}")
    return found


def page():
    out = HEAD
    for keyword, rule, cases in keyword_cases.KEYWORDS:
        codes = sorted({case[1] for case in cases if isinstance(case[1], str)})
        texts = [case for case in cases if not isinstance(case[1], str)]
        names = ", ".join(f"`{name}`" for name in keyword.split(", "))
        out += (f"| {names} | {rule} | {sum(len(case[1]) for case in texts)} | {sum(len(case[2]) for case in texts)} | "
                + ", ".join(f"`{code}`" for code in codes) + " |\n")
    out += "\n## Formats\n\nEnforced, on the decoded string:\n\n| format | fits | does not |\n|---|---|---|\n"
    for name, fit, unfit in keyword_cases.FORMATS:
        show = [", ".join(f"`{json.loads(chr(34) + text + chr(34))}`" if text else "(empty)" for text in texts) for texts in (fit, unfit)]
        out += f"| `{name}` | {show[0]} | {show[1]} |\n"
    known = ", ".join(f"`{name}`" for name in keyword_cases.ANNOTATED[:-1])
    return out + (f"\nAnnotations, with a warning: {known}, and names that are not known. With `numeric_formats` `int32` and `int64` bound integers. Of "
                  "`regex`, `idn-email` and `idn-hostname` a part is written that is sure to be well-formed: expressions with groups at most five deep, "
                  "names whose ASCII form is short enough whatever their letters are.\n")


def main():
    wrong = faults(load_vocabulary())
    for fault in wrong:
        print(fault)
    current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page()
    if not wrong and "--check" not in sys.argv[1:]:
        PAGE.write_text(page(), encoding="utf-8")
    elif not current:
        print(f"{PAGE.relative_to(ROOT)} is not current: run tools/structured_keywords.py")
        return 1
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
