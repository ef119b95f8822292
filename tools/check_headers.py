#!/usr/bin/env python3
"""Every header compiles alone.

A header that some compiled source includes before anything else is known to, since that source compiles. Each of the
others is compiled by itself here, with the options of a source of its room, as many at a time as there are processors.
Left out are headers made to be included several times (-inl.h, .inl.h) and those of the CUDA backend, which need a toolkit.

    tools/check_headers.py BUILD_FOLDER      (reads its compile_commands.json)
"""

import concurrent.futures
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)', re.MULTILINE)


def first_include(source: Path) -> str | None:
    """The header that the source includes before anything else, as written, or None where that is none of ours."""
    found = INCLUDE.search(source.read_text(encoding="utf-8"))
    return found[2] if found and found[1] == '"' else None


def unproved(root: Path, sources: list[Path]) -> list[str]:
    """The headers below src that no source includes first."""
    headers = {
        str(header.relative_to(root / "src"))
        for header in (root / "src").rglob("*.h")
        if not re.search(r"[-.]inl\.h$", header.name) and "cuda" not in header.parts
    }
    return sorted(headers - {first_include(source) for source in sources})


def compile_alone(root: Path, command: list[str], folder: str, header: str) -> str:
    """What the compiler has to say of a file that includes the header only; empty when it compiles."""
    if Path(command[0]).name == "ccache":
        command = command[1:]
    out = command.index("-o")
    command = command[:out] + command[out + 2 :]
    command = command[: command.index("-c")] + ["-I", str(root / "src"), "-fsyntax-only", "-x", "c++", "-"]
    run = subprocess.run(
        command, cwd=folder, input=f'#include "{header}"\n', capture_output=True, text=True, check=False
    )
    return run.stderr if run.returncode else ""


def main(folder: str) -> int:
    root = Path(__file__).resolve().parent.parent
    entries = json.loads((Path(folder) / "compile_commands.json").read_text())
    entries = [entry for entry in entries if entry["file"].endswith(".cc")]
    sources = [Path(entry["file"]) for entry in entries if Path(entry["file"]).is_file()]
    of_room = {}
    for entry in entries:
        path = Path(entry["file"])
        if path.is_relative_to(root / "src"):
            of_room.setdefault(path.relative_to(root / "src").parts[0], entry)
    headers = unproved(root, sources)
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        said = list(
            pool.map(
                lambda header: compile_alone(
                    root,
                    shlex.split(of_room[header.split("/")[0]]["command"]),
                    of_room[header.split("/")[0]]["directory"],
                    header,
                ),
                headers,
            )
        )
    for header, text in zip(headers, said):
        if text:
            print(f"src/{header} does not compile alone:\n{text}")
    print(f"{len(headers)} headers compiled, the others are the first include of a source")
    return 1 if any(said) else 0


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    sys.exit(main(sys.argv[1]))
