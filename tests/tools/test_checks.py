"""The repository's own checks see what they are there to see: each test plants one fault in a small tree."""
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))
import check_headers  # noqa: E402
import check_layers  # noqa: E402
import check_tree  # noqa: E402


def make_tree(root, files):
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


GOOD = {
    "src/base/result.h": "#pragma once\n#include <fmt/format.h>\n#include <string>\n",
    "src/base/log.cc": '#include "base/result.h"\n#include <spdlog/spdlog.h>\n',
    "src/kernels/ops.h": '#pragma once\n#include "base/result.h"\n',
    "src/kernels/cpu/cpu.h": '#pragma once\n#include "kernels/ops.h"\n',
    "src/model/forward.cc": '#include "kernels/ops.h"\n',
    "src/codec/tokens.h": "#pragma once\n",
    "src/codec/api/chat.h": "#pragma once\n",
    "src/engine/api.h": '#pragma once\n#include "codec/tokens.h"\n',
    "src/engine/step.h": "#pragma once\n",
    "src/server/http.cc": '#include <boost/asio.hpp>\n#include <sys/socket.h>\n#include "engine/api.h"\n',
    "src/cli/main.cc": '#include <CLI/CLI.hpp>\n#include "kernels/cpu/cpu.h"\n#include "server/http.h"\n',
    "src/server/http.h": "#pragma once\n",
}


def test_a_good_tree_passes(tmp_path):
    make_tree(tmp_path, GOOD)
    assert list(check_layers.check(tmp_path)) == []


@pytest.mark.parametrize("name, line, said", [
    ("src/base/result.h", '#include "codec/tokens.h"', "base may include nothing of another room"),
    ("src/model/forward.cc", '#include "kernels/cpu/cpu.h"', "model may include"),
    ("src/engine/api.h", '#include "codec/api/chat.h"', "engine may include"),
    ("src/server/http.cc", '#include "engine/step.h"', "server may include"),
    ("src/server/http.cc", '#include "http.h"', "is no file below src/"),
    ("src/codec/tokens.h", '  #  include "server/http.h"', "codec may include"),
    ("src/attic/old.cc", '#include "base/result.h"', "room attic is not in the table"),
    ("src/server/http.h", "#include <boost/beast.hpp>", "Asio and Beast"),
    ("src/engine/step.h", "#include <boost/asio.hpp>", "Asio and Beast"),
    ("src/engine/step.h", "#include <CLI/CLI.hpp>", "cli only"),
    ("src/codec/x.cc", "#include <spdlog/spdlog.h>", "base/log.cc only"),
    ("src/base/result.h", "#include <simdjson.h>", ".cc files only"),
    ("src/model/forward.cc", "#include <cuda_runtime.h>", "CUDA"),
    ("src/device/ascend/x.cc", "#include <cuda_fp8.h>", "CUDA"),
    ("src/model/forward.cc", "#include <acl/acl.h>", "CANN"),
    ("src/model/forward.cc", "#include <gtest/gtest.h>", "no place below src/"),
    ("src/model/forward.cc", "#include <torch/torch.h>", "does not know"),
    ("src/kernels/cuda/a.cu", '#include "base/result.h"', "nvcc cannot compile"),
    ("src/kernels/cuda/a.cuh", '#include "kernels/ops.h"', "nvcc cannot compile"),
])
def test_a_wrong_include_is_seen(tmp_path, name, line, said):
    make_tree(tmp_path, {**GOOD, name: GOOD.get(name, "") + line + "\n"})
    found = [violation for violation in check_layers.check(tmp_path) if name in violation]
    assert any(said in violation for violation in found), found


def test_a_cycle_is_seen(tmp_path):
    make_tree(tmp_path, {**GOOD, "src/kv/a.h": '#include "kv/b.h"\n', "src/kv/b.h": '#include "kv/c.h"\n',
                         "src/kv/c.h": '#include "kv/a.h"\n'})
    assert list(check_layers.check(tmp_path)) == [
        "include cycle: src/kv/a.h -> src/kv/b.h -> src/kv/c.h -> src/kv/a.h"]


def test_the_exit_status_says_it(tmp_path):
    make_tree(tmp_path, GOOD)
    command = [sys.executable, str(ROOT / "tools/check_layers.py"), str(tmp_path)]
    assert subprocess.run(command).returncode == 0
    make_tree(tmp_path, {"src/base/bad.cc": '#include "cli/main.h"\n'})
    assert subprocess.run(command, capture_output=True).returncode == 1


def in_parts(*parts):
    """Text that must not stand in this file as a whole, or the check would find it here."""
    return "".join(parts)


@pytest.mark.parametrize("name, text, said", [
    ("src/base/a.cc", in_parts("// TO", "DO later\n"), "a leftover"),
    ("docs/a.md", in_parts("see /wo", "rk/main\n"), "a path of one machine"),
    ("tools/a.sh", in_parts("curl https://py", "pi.org/simple\n"), "the host name of a registry"),
    ("README.md", in_parts("Written by an ", "AI.\n"), "how the code was made"),
    ("src/base/a.cc", in_parts("// Copy", "right 2020 Somebody\n"), "the licence is in LICENSE"),
    ("src/base/a.cc", "int f() { throw 1; }\n", "errors are values"),
    ("src/engine/a.cc", 'auto* e = std::getenv("X");\n', "src/cli only"),
    ("tests/engine/a_test.cc", "std::this_thread::sleep_for(1s);\n", "wait on the event"),
    ("src/engine/a.cc", "thread.detach();\n", "no detached threads"),
    ("tests/base/a_test.cc", in_parts("EXPECT_TRUE(", "true);\n"), "asserts nothing"),
    ("tests/base/a_test.cc", in_parts("GTEST_SK", "IP();\n"), "says why"),
    ("src/base/a.h", "int f();\n", "no #pragma once"),
    ("src/base/a.cc", "\n" * 601, "over 600"),
    ("src/base/a.cc", "// long because of a reason\n" + "\n" * 1001, "at most 1000"),
    ("src/base/a.cc", "void f() {\n" + "  g();\n" * 81 + "}\n", "function of 83 lines"),
    ("docs/a.md", "[there](nowhere.md)\n", "does not exist"),
    ("tools/a.json", "{", "Expecting property name"),
    ("tools/a.py", "def f(:\n", "invalid syntax"),
    ("src/base/a.cc", "\xff", None),
    ("cmake/Deps.cmake", "di_find(x libmystery-dev)\n", "does not install"),
    ("test", "#!/bin/sh\n", "not executable"),
])
def test_a_fault_in_the_tree_is_seen(tmp_path, name, text, said):
    make_tree(tmp_path, {"tools/install.sh": "libfmt-dev\n", name: text})
    found = [violation for violation in check_tree.check(tmp_path) if violation.startswith(name)]
    if said is None:
        assert found == []
    else:
        assert any(said in violation for violation in found), found


@pytest.mark.parametrize("name, text", [
    ("src/base/a.cc", "// may throw away the rest\nconst char* k = \"throw\";\n"),
    ("src/cli/a.cc", 'auto* e = std::getenv("X");\n'),
    ("src/base/unicode_table.cc", "\n" * 5000),
    ("docs/a.md", "[here](a.md#top) [out](https://example.org/x)\n```\n[no](link)\n```\n"),
    ("src/kernels/cpu/a.cc", "void f() {\n" + "  g();\n" * 90 + "}\n"),
])
def test_what_is_allowed_passes(tmp_path, name, text):
    make_tree(tmp_path, {name: text})
    assert [violation for violation in check_tree.check(tmp_path) if violation.startswith(name)] == []


def test_a_header_that_no_source_includes_first_is_compiled_alone(tmp_path):
    make_tree(tmp_path, {
        "src/base/own.h": "#pragma once\n",
        "src/base/own.cc": '// why\n#include "base/own.h"\n\n#include "base/second.h"\n',
        "src/base/second.h": "#pragma once\n#include <string>\ninline std::string s() { return {}; }\n",
        "src/base/needs.h": "#pragma once\ninline std::string t() { return {}; }\n",
        "src/base/part.inl.h": "not C++\n",
        "src/kernels/cuda/device.h": "#include <cuda.h>\n",
    })
    assert check_headers.unproved(tmp_path, [tmp_path / "src/base/own.cc"]) == ["base/needs.h", "base/second.h"]
    command = ["g++", "-std=c++20", "-o", "x.o", "-c", "x.cc"]
    assert check_headers.compile_alone(tmp_path, command, str(tmp_path), "base/second.h") == ""
    assert "string" in check_headers.compile_alone(tmp_path, command, str(tmp_path), "base/needs.h")
