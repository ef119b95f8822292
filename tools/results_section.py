#!/usr/bin/env python3
"""Puts what stands on standard input into one section of a Markdown file, in place of what the section held.

    COMMAND | tools/results_section.py FILE TITLE COMMAND_AS_TEXT
"""
import pathlib
import re
import sys

HEAD = "# Measured results\n\nEach section is written by the command it names and replaced when that runs again.\n"


def replaced(text, title, command, body):
    section = f"## {title}\n\n`{command}`\n\n```\n{body.strip()}\n```\n"
    pattern = re.compile(rf"^## {re.escape(title)}\n.*?(?=^## |\Z)", re.M | re.S)
    if pattern.search(text):
        return pattern.sub(lambda _: section + "\n", text).rstrip("\n") + "\n"
    return text.rstrip("\n") + "\n\n" + section


def main():
    path = pathlib.Path(sys.argv[1])
    text = path.read_text(encoding="utf-8") if path.exists() else HEAD
    path.write_text(replaced(text, sys.argv[2], sys.argv[3], sys.stdin.read()), encoding="utf-8")


if __name__ == "__main__":
    main()
