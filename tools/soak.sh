#!/usr/bin/env bash
# `make soak`: what takes too long for ./test. Each fuzzer for DEEPINFER_SOAK_SECONDS (600) seconds from its stored inputs, then
# faults that tests must notice, the Python package installed by pip and tested, walks through masks against an independent validator, answers
# under a schema, mixed traffic over HTTP, the C++ tests labelled slow under the address sanitizer.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

seconds=${DEEPINFER_SOAK_SECONDS:-600}
tools/install.sh --test
tools/build.sh asan all
if compgen -G 'tests/fuzz/*_fuzz.cc' >/dev/null; then
  for program in build/asan/*_fuzz; do
    name=${program##*/}
    found=build/soak/$name
    mkdir -p "$found"
    echo "== $name"
    # New inputs go to build/soak; a crashing one stays there too and belongs into tests/fuzz/corpus once it is fixed.
    "$program" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -artifact_prefix="$found/" "$found" "tests/fuzz/corpus/${name%_fuzz}"
  done
fi
echo "== field reports with their faults put back"
tools/faults.sh
echo "== pip install ."
.venv/bin/python -m pip install --disable-pip-version-check -q --upgrade --target build/soak/python .
PYTHONPATH=build/soak/python .venv/bin/python -m pytest -p no:cacheprovider -q tests/python
echo "== 10,000 random walks through masks"
PYTHONPATH=build/soak/python .venv/bin/python tests/python/structured_walks.py --pairs 10000
echo "== 1,000 answers under a schema, with speculation and without"
tools/build.sh release deepinfer
.venv/bin/python bench/structured/answers.py --requests 1000 --rounds 0
echo "== mixed traffic, and SIGTERM in the middle"
DEEPINFER_SOAK_SECONDS=$seconds .venv/bin/python -m pytest -p no:cacheprovider -q -s tests/e2e/test_traffic.py
DEEPINFER_SOAK=1 build/asan/codec_tests
DEEPINFER_SOAK=1 build/asan/structured_tests --gtest_filter='Masks.*'
ctest --test-dir build/asan --output-on-failure -L slow
DEEPINFER_SOAK_SECONDS=$seconds build/asan/engine_tests --gtest_filter='EngineFuzz.*'
