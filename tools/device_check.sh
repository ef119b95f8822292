#!/usr/bin/env bash
# Everything that is to be seen on an NVIDIA device, in one run and one log.
#
#   tools/device_check.sh pack           here: builds (preset cuda) and packs the programs with their libraries into
#                                        .carry/device (some tens of MiB; ignored by git)
#   tools/device_check.sh run [LOG]      there: runs what was packed, writes LOG (bench/device/check.log) and ends with
#                                        one line per part; the exit status is 0 when none failed
#   tools/device_check.sh run [LOG] PART…  only these parts
#
# Parts: device, operators, model, greedy, memcheck, racecheck, bench, serve. Each has a time limit of its own, and the
# log is written as it goes: an ended run keeps what was seen.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
carry=.carry/device
programs=(deepinfer deepinfer-conformance kernels_cuda_tests greedy_compare bench_kernels_cuda)

pack() {
  tools/build.sh cuda "${programs[@]}" || return
  rm -rf "$carry"
  mkdir -p "$carry/lib" "$carry/libc"
  local program library name
  for program in "${programs[@]}"; do
    strip -o "$carry/$program" "build/cuda/$program" || return
  done
  # The C library goes apart: it is used only where the machine's own is older. The toolkit's libraries are there.
  for program in "${programs[@]}"; do ldd "build/cuda/$program"; done | awk '/=> \//{print $3} /^[[:space:]]*\/lib/{print $1}' |
    sort -u | while read -r library; do
      name=$(basename "$library")
      case $name in
        libcublas* | libcudart* | libcuda.*) ;;
        ld-linux* | libc.so* | libm.so* | libpthread* | libdl.so* | librt.so* | libresolv*) cp -L "$library" "$carry/libc/" ;;
        *) cp -L "$library" "$carry/lib/" ;;
      esac
    done
  du -sh "$carry"
}

start=("env")
# Chooses how the packed programs start on this machine.
choose_start() {
  local libraries=$PWD/$carry/lib:/usr/local/cuda/lib64
  start=(env "LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
  if "${start[@]}" "$carry/deepinfer" --version >/dev/null 2>&1; then return; fi
  echo "the machine's C library does not start the programs; with the packed one:"
  start=("$PWD/$carry/libc/ld-linux-x86-64.so.2" --library-path "$PWD/$carry/libc:$libraries:/usr/lib/x86_64-linux-gnu")
  "${start[@]}" "$carry/deepinfer" --version
}

# part NAME SECONDS COMMAND…: runs it into the log and remembers how it ended.
summary=()
failed=0
part() {
  local name=$1 limit=$2 status=0 begun=$SECONDS
  shift 2
  if (( ${#wanted[@]} > 0 )) && [[ " ${wanted[*]} " != *" $name "* ]]; then return; fi
  printf '\n==== %s: %s\n' "$name" "$*"
  timeout -k 10 "$limit" "$@" || status=$?
  case $status in
    0) summary+=("$name: passed ($((SECONDS - begun)) s)") ;;
    77) summary+=("$name: skipped") ;;
    124 | 137) failed=1 summary+=("$name: ended after $limit s") ;;
    *) failed=1 summary+=("$name: FAILED, status $status ($((SECONDS - begun)) s)") ;;
  esac
}

sanitized() {
  local tool=$1 sanitizer
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  if ! [[ -x $sanitizer ]]; then
    echo "skipped: compute-sanitizer is not installed"
    return 77
  fi
  # A machine whose runtime refuses the tool says so; that is no finding about the kernels.
  local output status=0
  output=$("${start[@]}" "$sanitizer" --tool "$tool" --error-exitcode 9 \
    "$carry/kernels_cuda_tests" --gtest_filter="Operators/Cuda.EqualsTheReference/*" 2>&1) || status=$?
  printf '%s\n' "$output" | tail -n 200
  if [[ $output == *"Device not supported"* ]]; then return 77; fi
  return "$status"
}

serve() {
  local log=$carry/serve.log server status=0
  "${start[@]}" "$carry/deepinfer" serve models/tiny --device cuda:0 --host 127.0.0.1 --port 18080 >"$log" 2>&1 &
  server=$!
  for _ in $(seq 100); do
    if curl -sf http://127.0.0.1:18080/readyz >/dev/null; then break; fi
    read -rt 0.2 <> <(:) || true
  done
  curl -sf http://127.0.0.1:18080/v1/chat/completions -H 'content-type: application/json' \
    -d '{"model":"deepinfer-tiny","messages":[{"role":"user","content":"Hello"}],"max_tokens":32,"temperature":0}' || status=1
  echo
  kill -TERM "$server"
  wait "$server" || status=1
  tail -n 20 "$log"
  return "$status"
}

run() {
  local log=${1:-bench/device/check.log}
  wanted=("${@:2}")
  mkdir -p "$(dirname "$log")"
  exec > >(tee "$log") 2>&1
  date -u
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit --format=csv || true
  choose_start || { echo "the packed programs do not start here"; exit 1; }
  part device 60 "${start[@]}" "$carry/deepinfer" run --device cuda:0 --temperature 0 --max-tokens 16 models/tiny "Once upon a time"
  part operators 300 "${start[@]}" "$carry/kernels_cuda_tests" --gtest_brief=1
  part model 240 "${start[@]}" "$carry/deepinfer-conformance" model tests/data/model --device cuda:0
  part greedy 300 "${start[@]}" "$carry/greedy_compare" models/tiny bench/device/prompts.txt 200 24
  part bench 420 "${start[@]}" "$carry/bench_kernels_cuda"
  local definitions
  definitions=$(declare -p start carry; declare -f sanitized serve)
  part serve 90 bash -c "$definitions"$'\nserve'
  part memcheck 300 bash -c "$definitions"$'\nsanitized memcheck'
  part racecheck 300 bash -c "$definitions"$'\nsanitized racecheck'
  printf '\n==== summary\n'
  printf '%s\n' "${summary[@]}"
  exit "$failed"
}

case ${1:-} in
  pack) pack ;;
  run) shift; run "$@" ;;
  *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
esac
