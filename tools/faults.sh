#!/usr/bin/env bash
# Shows that tests of field reports notice the fault they are named after: each tests/faults/ID.patch puts it back in a
# temporary copy of HEAD, and there the tests whose names contain the id must pass without the patch and fail with it.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

root=$PWD
copy=$(mktemp -d)
trap 'git worktree remove --force "$copy/tree"; rm -rf "$copy"' EXIT
git worktree add --quiet --detach "$copy/tree" HEAD

cd "$copy/tree"
binary=build/dev/deepinfer
tests() {
  DEEPINFER_BINARY=$binary "$root/.venv/bin/python" -m pytest -p no:cacheprovider -q -x -k "$1" tests/e2e/test_field_reports.py \
    tests/e2e/test_field_reports_engine.py >"$copy/log" 2>&1
}

tools/build.sh dev deepinfer
for patch in tests/faults/*.patch; do
  id=$(basename "$patch" .patch)
  tests "$id" || { cat "$copy/log"; echo "$id: fails without the fault"; exit 1; }
done
for patch in tests/faults/*.patch; do
  id=$(basename "$patch" .patch)
  git apply "$patch"
  tools/build.sh dev deepinfer
  status=0
  tests "$id" || status=$?
  git apply --reverse "$patch"
  # 1 is pytest's status of failed tests; others are no tests, or no run at all.
  if [[ $status != 1 ]]; then
    cat "$copy/log"
    echo "$id: the tests do not notice the fault (status $status)"
    exit 1
  fi
  echo "$id: $(tail -n 1 "$copy/log")"
done
