#!/usr/bin/env python3
"""Checks of the repository as text: sizes, leftovers, rules of CONTRIBUTING.md that a search can decide.

    tools/check_tree.py [ROOT]        prints one line per violation, exit status 1 when there is one

Looks at the files git tracks or would track, or, outside git, at all files.
"""
import json
import pathlib
import re
import subprocess
import sys
import tomllib

MAX_TRACKED_BYTES = 16 << 20
MAX_LINES, HARD_MAX_LINES = 600, 1000
MAX_FUNCTION_LINES = 80
CODE = r".*\.(cc|h|cu|cuh|c|py|sh|cmake)|run|test|(.*/)?CMakeLists\.txt|Makefile"
CPP = r".*\.(cc|h|cu|cuh)"

# (what must not appear, in which files, except in which, why). Comments count too, except for rules marked code-only.
# The patterns are written so that this file does not match itself.
FORBIDDEN = [
    (r"(?<![A-Za-z_])(TOD[O]|FIXM[E]|XX[X]|HAC[K])(?![A-Za-z_])", r"(src|tests|tools|bench|cmake|docs)/.*|[^/]*", r"", "a leftover; finish it or file it"),
    (r"(?<![\w.:/])/(wor[k]|roo[t]|hom[e])/[A-Za-z]", r".*", r"", "a path of one machine"),
    (r"(deb\.debia[n]|pypi\.or[g]|pythonhoste[d]|huggingface\.c[o]/)", r".*", r"", "the host name of a registry"),
    (r"(?i)(written|generated|produced|created|authored)[ -](by|with)[ -](an? )?(AI\b|LLM|language model|assistan[t]|Claud[e]|ChatGP[T]|Copilo[t])", r".*", r"", "how the code was made"),
    (r"(?i)Co-Authored-B[y]|(?<![A-Za-z])[Ii]ssue #?[0-9]", r".*", r"", "history belongs to git"),
    (r"(?i)copyrigh[t] (\(c\)|©|[0-9]{4})|SPDX-Licens[e]", r".*", r"LICENSE|NOTICE|web/vendor/.*|tests/data/.*", "the licence is in LICENSE alone (docs/decisions/0001)"),
    (r"\bthrow\b(?! *\(\))", r"src/" + CPP, r"src/python/.*", "errors are values (code only)"),
    (r"\bgetenv *\(", r"src/" + CPP, r"src/cli/.*", "environment variables are read in src/cli only (code only)"),
    (r"\bthis_thread::sleep_|\b(usleep|nanosleep|sleep) *\(", r"(src|tests)/" + CPP, r"(src|tests)/(base|cli)/.*", "wait on the event or use the clock of base/ (code only)"),
    (r"\.detach *\(\)", r"(src|tests)/" + CPP, r"", "no detached threads (code only)"),
    (r"\bdynamic_cast *<|\btypeid *\(", r"src/" + CPP, r"", "no RTTI (code only)"),
    (r"\bco_await\b[^;]*\bDI_CO_TRY *\(|DI_CO_TRY *\([^;]*\bco_await\b", r"src/" + CPP, r"", "co_await inside DI_CO_TRY stops g++ 12 (code only)"),
    (r"#[ \t]*define +(?!DI_(TRY|CO_TRY|CHECK|LOG)\b)DI_[A-Z]", r"src/" + CPP, r"src/kernels/(cpu|cuda)/.*", "the macros are DI_TRY, DI_CO_TRY, DI_CHECK and DI_LOG (code only)"),
    (r"\b(EXPECT_TRUE|ASSERT_TRUE) *\( *true *\)|\bSUCCEED *\(", r"tests/.*", r"", "a test that asserts nothing (code only)"),
    (r"\bGTEST_SKIP *\( *\) *;", r"tests/.*", r"", "a skipped test says why (code only)"),
    (r"\bDISABLE[D]_", r"tests/.*", r"", "a test that does not run"),
    (r"\bFetchConten[t]\b|ExternalProjec[t]_Add|git submodul[e]", r".*\.(cmake|txt|sh)|run|test", r"", "nothing is fetched at configure time"),
]
COMMENT_OR_STRING = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(\w*)\(.*?\)\1"|"(?:[^"\\\n]|\\.)*"'
    r"|(?<![0-9A-Za-z_])'(?:[^'\\\n]|\\.)+'", re.S)


def tracked(root):
    listed = subprocess.run(["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            capture_output=True)
    if listed.returncode == 0:
        names = [name for name in listed.stdout.decode().split("\0") if name]
    else:
        names = [path.relative_to(root).as_posix() for path in sorted(root.rglob("*"))]
    return [name for name in names if (root / name).is_file() and not (root / name).is_symlink()]


def code_only(text):
    """The text with comments and strings blanked, line numbers kept."""
    return COMMENT_OR_STRING.sub(lambda m: "\n" * m.group().count("\n") or '""', text)


def check_forbidden(name, text):
    for pattern, where, except_where, why in FORBIDDEN:
        if not re.fullmatch(where, name) or re.fullmatch(except_where, name):
            continue
        searched = code_only(text) if why.endswith("(code only)") and re.fullmatch(CPP, name) else text
        for match in re.finditer(pattern, searched):
            line = searched.count("\n", 0, match.start()) + 1
            yield f"{name}:{line}: {match.group().strip()!r}: {why}"


def check_length(name, text):
    if not re.fullmatch(CODE, name) or re.fullmatch(r".*_table\.cc", name):
        return
    lines = text.count("\n")
    if lines > HARD_MAX_LINES:
        yield f"{name}: {lines} lines, at most {HARD_MAX_LINES}"
    elif lines > MAX_LINES and "long because" not in text[:1500]:
        yield f"{name}: {lines} lines; over {MAX_LINES} the first comment says 'long because …'"


def functions(text):
    """(first line, last line) of each function body that is not inside another."""
    code = re.sub(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", lambda m: "\n" * m.group().count("\n"), code_only(text), flags=re.M)
    open_blocks, header_start, line = [], 0, 1
    for at, char in enumerate(code):
        if char == "\n":
            line += 1
        elif char == "{":
            header = code[header_start:at].strip()
            inside = any(is_function for is_function, _ in open_blocks)
            is_function = (not inside and ")" in header and not header.endswith("=")
                           and not re.match(r"(namespace|extern|class|struct|enum|union)\b", header))
            open_blocks.append((is_function, line - code[header_start:at].lstrip(' \t\n"').count("\n")))
        elif char == "}" and open_blocks:
            is_function, first = open_blocks.pop()
            if is_function:
                yield first, line
        if char in ";{}":
            header_start = at + 1


def check_functions(name, text):
    """The forward pass and the kernels may be longer."""
    if not re.fullmatch(r"src/.*\.(cc|h)", name) or re.match(r"src/(kernels/|model/forward)", name):
        return
    lines = text.splitlines()
    for first, last in functions(text):
        if last - first + 1 > MAX_FUNCTION_LINES and "long because" not in "\n".join(lines[max(0, first - 6):first]):
            yield (f"{name}:{first}: function of {last - first + 1} lines, at most {MAX_FUNCTION_LINES} "
                   "or a comment 'long because …' above it")


def check_markdown_links(root, name, text):
    text = re.sub(r"```.*?```|`[^`\n]*`", "", text, flags=re.S)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        path = target.split("#")[0]
        if re.match(r"[a-z]+:", target) or not path:
            continue
        if not (root / name).parent.joinpath(path).exists():
            yield f"{name}: link to {target}, which does not exist"


def check_header_guard(name, text):
    if re.fullmatch(r"(src|tests)/.*\.(h|cuh)", name) and not name.endswith(("-inl.h", ".inl.h")) and "#pragma once" not in text:
        yield f"{name}: no #pragma once"


def check_parses(name, text):
    try:
        if name.endswith(".json") and not name.startswith("tests/"):
            json.loads(text)
        elif name.endswith(".toml"):
            tomllib.loads(text)
        elif name.endswith(".py"):
            compile(text, name, "exec")
    except (ValueError, SyntaxError) as error:
        yield f"{name}: {error}"


def check_file(root, name):
    path = root / name
    size = path.stat().st_size
    if size > MAX_TRACKED_BYTES:
        yield f"{name}: {size} bytes, at most {MAX_TRACKED_BYTES}"
    data = path.read_bytes()
    if b"\0" in data[:8192] or re.fullmatch(r"(models|tests/data|tests/fuzz/corpus)/.*\.(safetensors|zst|bin|jsonl?)", name):
        return
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        if not name.startswith("tests/fuzz/corpus/"):
            yield f"{name}: not UTF-8: {error}"
        return
    if name.startswith("tests/fuzz/corpus/"):
        return
    yield from check_forbidden(name, text)
    yield from check_length(name, text)
    yield from check_functions(name, text)
    yield from check_header_guard(name, text)
    yield from check_parses(name, text)
    if name.endswith(".md"):
        yield from check_markdown_links(root, name, text)


def check_whole(root, names):
    """What concerns the repository as one thing."""
    for name, needles in (("README.md", ["./run", "./test"]), (".ci/run", ["./test"]), ("LICENSE", ["Apache License"])):
        text = (root / name).read_text(encoding="utf-8") if name in names else ""
        for needle in needles:
            if needle not in text:
                yield f"{name}: does not hold '{needle}'"
    for name in ("run", "test", ".ci/run"):
        if name in names and not (root / name).stat().st_mode & 0o100:
            yield f"{name}: not executable"
    if "cmake/Deps.cmake" in names:
        deps = (root / "cmake/Deps.cmake").read_text(encoding="utf-8")
        installer = (root / "tools/install.sh").read_text(encoding="utf-8")
        for package in set(re.findall(r"\blib[a-z0-9.+-]+-dev\b|\b[a-z0-9-]+-dev\b", deps)):
            if not re.search(rf"(?<![\w.+-]){re.escape(package)}(?![\w.+-])", installer):
                yield f"cmake/Deps.cmake: names {package}, which tools/install.sh does not install"


def check(root):
    root = pathlib.Path(root)
    names = tracked(root)
    for name in names:
        yield from check_file(root, name)
    yield from check_whole(root, set(names))


def main():
    violations = list(check(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).resolve().parent.parent))
    for line in violations:
        print(line)
    sys.exit(1 if violations else 0)


if __name__ == "__main__":
    main()
