#!/usr/bin/env python3
"""Counts what a test run left behind, for ./test: prints failures and reasons of skips, and as the last line
"passed failed skipped".

    tools/test_report.py ctest DIR BUILD_DIR    DIR/ctest.xml, DIR/ctest.log and, for each GoogleTest program, DIR/gtest/*.xml
    tools/test_report.py pytest STEM            STEM.xml and STEM.log

A program that crashed before it could write its own report counts as one failure, as does a missing report.
"""
import collections
import json
import os
import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

TAIL_LINES = 60
CONFORMANCE = re.compile(r"^(\d+) passed, (\d+) failed$", re.M)


class Counts:
    def __init__(self):
        self.passed = self.failed = self.skipped = 0
        self.skip_reasons = collections.Counter()

    def add_case(self, case):
        skip = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            self.failed += 1
        elif skip is not None or case.get("result") == "skipped":
            self.skipped += 1
            message = (skip.get("message") or skip.text or "no reason given") if skip is not None else "no reason given"
            lines = [line for line in message.splitlines() if line.strip() and not re.match(r".*\.cc:\d+$", line)]
            self.skip_reasons[" ".join(lines) or "no reason given"] += 1
        else:
            self.passed += 1

    def print(self):
        for reason, times in self.skip_reasons.most_common():
            print(f"    skipped {times}: {reason}")
        print(self.passed, self.failed, self.skipped)


def cases(path):
    try:
        return list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return None


def print_tail(path, lines=TAIL_LINES):
    try:
        text = pathlib.Path(path).read_text(errors="replace").splitlines()
    except OSError as error:
        text = [str(error)]
    print("\n".join(text[-lines:]))


def programs(build_dir):
    """ctest name -> name of the program it runs."""
    shown = subprocess.run(["ctest", "--test-dir", build_dir, "--show-only=json-v1"], capture_output=True, text=True)
    tests = json.loads(shown.stdout)["tests"] if shown.returncode == 0 else []
    return {test["name"]: os.path.basename(test["command"][0]) for test in tests if test.get("command")}


def report_ctest(out, build_dir):
    counts, out = Counts(), pathlib.Path(out)
    entries = cases(out / "ctest.xml")
    if not entries:
        print(f"    no tests ran in {build_dir}")
        print_tail(out / "ctest.log")
        counts.failed = 1
        return counts
    names = programs(build_dir)
    broken = False
    for entry in entries:
        name, program = entry.get("name"), names.get(entry.get("name"), "")
        own = [case for path in sorted((out / "gtest").glob(f"{program}*.xml")) if re.fullmatch(rf"{re.escape(program)}(_\d+)?\.xml", path.name)
               for case in cases(path) or []]
        before = counts.failed
        failed = entry.get("status") != "run"
        totals = CONFORMANCE.findall(entry.findtext("system-out") or "")
        if own:
            for case in own:
                counts.add_case(case)
        elif totals:  # a conformance program, which counts its own cases
            counts.passed += int(totals[-1][0])
            counts.failed += int(totals[-1][1])
        elif not failed:
            counts.passed += 1
        if failed and counts.failed == before:
            counts.failed += 1
        if counts.failed > before:
            broken = True
            print(f"--- {name} failed")
            for case in own:
                failure = case.find("failure")
                if failure is not None:
                    print(f"    {case.get('classname')}.{case.get('name')}: {(failure.get('message') or '')[:2000]}")
            if counts.failed == before + 1 and not any(case.find("failure") is not None for case in own):
                print("\n".join((entry.findtext("system-out") or "").splitlines()[-TAIL_LINES:]))
    slowest = sorted(entries, key=lambda entry: -float(entry.get("time") or 0))[:3]
    print("    slowest: " + ", ".join(f"{entry.get('name')} {float(entry.get('time') or 0):.1f} s" for entry in slowest))
    if broken:
        print(f"    whole output: {out / 'ctest.log'}")
    return counts


def report_pytest(stem):
    counts = Counts()
    entries = cases(stem + ".xml")
    if not entries:
        counts.failed = 1
    for entry in entries or []:
        counts.add_case(entry)
    if counts.failed:
        print(f"--- {stem} failed")
        print_tail(stem + ".log", 3 * TAIL_LINES)
    return counts


def main():
    if len(sys.argv) == 4 and sys.argv[1] == "ctest":
        report_ctest(sys.argv[2], sys.argv[3]).print()
    elif len(sys.argv) == 3 and sys.argv[1] == "pytest":
        report_pytest(sys.argv[2]).print()
    else:
        sys.exit(__doc__)


if __name__ == "__main__":
    main()
