#!/usr/bin/env bash
# `make bench`: runs the benchmarks of the release build and writes what they print into bench/RESULTS.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

tools/install.sh --run
tools/build.sh release -DDI_TESTS=OFF deepinfer
# Title, then the command.
benches=(
  'CPU operators' 'bench kernels'
)
for (( i = 0; i < ${#benches[@]}; i += 2 )); do
  read -ra command <<<"${benches[i + 1]}"
  echo "== deepinfer ${command[*]}" >&2
  build/release/deepinfer "${command[@]}" | tee /dev/stderr |
    python3 tools/results_section.py bench/RESULTS.md "${benches[i]}" "deepinfer ${command[*]}"
done

# The front end without a model; beside a peer where BENCH_PEER names the Python of an environment with
# bench/server/requirements.txt.
front_end=(bench/server/front_end.py build/release/deepinfer)
if [[ -n ${BENCH_PEER:-} ]]; then front_end+=(--peer "$BENCH_PEER"); fi
echo "== ${front_end[*]}" >&2
python3 "${front_end[@]}" | tee /dev/stderr |
  python3 tools/results_section.py bench/RESULTS.md 'Front end' 'bench/server/front_end.py build/release/deepinfer'
