#!/usr/bin/env bash
# Everything that is to be seen on an NVIDIA device, in runs of less than nine minutes each, every one with one log.
#
#   tools/device_check.sh pack              here: builds (preset hopper) and packs the programs with their libraries into
#                                           .carry/device.tar.xz (some 15 MiB; ignored by git)
#   tools/device_check.sh run LOG [PART…]   there: runs these parts of what was packed (all), writes LOG and ends with
#                                           one line per part; the exit status is 0 when none failed
#   tools/device_check.sh dry               here: every part, where there is no device: each must say that it skips
#
# Parts in order of value, and the runs that stay within nine minutes:
#   first    device operators model greedy racecheck memcheck
#   second   bench calls serve toggles faults
#   loading  loading                    24 GB of weights: page cache, bus, disk, device
#   third    layers8 layers40
#   ranks    topology ranks one two      on a machine with two devices: expert parallelism (docs/expert-parallel.md)
# A part that fails or exceeds its time does not end the run; the log is written as it goes.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
carry=.carry/device
programs=(deepinfer deepinfer-conformance kernels_cuda_tests greedy_compare ranks_compare bench_kernels_cuda)
declare -A runs=(
  [first]="device operators model greedy racecheck memcheck"
  [second]="bench calls serve toggles faults"
  [third]="layers8 layers40"
  [loading]="loading"
  [ranks]="topology ranks one two"
)

pack() {
  tools/build.sh hopper "${programs[@]}" || return
  local program library name packed=("${programs[@]}")
  if tools/build.sh hopper api_calls faults; then packed+=(libapi_calls.so libfaults.so); else echo "without the parts calls and faults: no CUPTI here"; fi
  rm -rf "$carry"
  mkdir -p "$carry/lib" "$carry/libc"
  for program in "${packed[@]}"; do
    strip -o "$carry/$program" "build/hopper/$program" || return
  done
  # The C library goes apart: it is used only where the machine's own is older. The toolkit's libraries are there.
  for program in "${packed[@]}"; do ldd "build/hopper/$program"; done |
    awk '/=> \//{print $3} /^[[:space:]]*\/lib/{print $1}' | sort -u | while read -r library; do
    name=$(basename "$library")
    case $name in
      libcublas* | libcudart* | libcuda.*) ;;
      ld-linux* | libc.so* | libm.so* | libpthread* | libdl.so* | librt.so* | libresolv*) cp -L "$library" "$carry/libc/" ;;
      *) cp -L "$library" "$carry/lib/" ;;
    esac
  done
  strip "$carry"/lib/* 2>/dev/null
  tar -C "$(dirname "$carry")" -cf - "$(basename "$carry")" | xz --lzma2=preset=1,dict=64MiB -c >"$carry.tar.xz" && du -sh "$carry.tar.xz"
}

start=("env")
# Chooses how the packed programs start on this machine.
choose_start() {
  if [[ $carry.tar.xz -nt $carry ]]; then
    mkdir -p "$carry"
    tar -C "$(dirname "$carry")" -xJf "$carry.tar.xz" || return
  fi
  local libraries=$PWD/$carry/lib:/usr/local/cuda/lib64 nccl
  # NCCL is the machine's own: that of the toolkit, of the system, or of a Python package.
  nccl=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0] + "/lib")' 2>/dev/null)
  if [[ -n $nccl ]]; then libraries+=:$nccl; fi
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
  local shown=$*
  printf '\n==== %s: %s\n' "$name" "${shown##*$'\n'}"  # of functions their call
  timeout -k 10 "$limit" "$@" || status=$?
  case $status in
    0) summary+=("$name: passed ($((SECONDS - begun)) s)") ;;
    77) summary+=("$name: skipped") ;;
    124 | 137) failed=1 summary+=("$name: ended after $limit s") ;;
    *) failed=1 summary+=("$name: FAILED, status $status ($((SECONDS - begun)) s)") ;;
  esac
}

# Few, small cases: the tools make a kernel tens of times slower.
sanitized() {
  local tool=$1 sanitizer
  sanitizer=$(command -v compute-sanitizer || echo /usr/local/cuda/bin/compute-sanitizer)
  if ! [[ -x $sanitizer ]]; then
    echo "skipped: compute-sanitizer is not installed"
    return 77
  fi
  # A machine whose runtime refuses the tool says so; that is no finding about the kernels.
  local output=$carry/$tool.log status=0
  "${start[@]}" "$sanitizer" --tool "$tool" --error-exitcode 9 --print-limit 20 \
    "$carry/kernels_cuda_tests" --gtest_filter="Operators/Cuda.Sanitized/*" >"$output" 2>&1 &
  local pid=$!
  tail -f --pid="$pid" -n +1 "$output"  # so that an ended part has been seen as far as it came
  wait "$pid" || status=$?
  if grep -qE 'Device not supported|SKIPPED' "$output"; then return 77; fi
  return "$status"
}

# What a decode step calls: the difference of two runs of a small model that differ by 100 steps, over 100. No call that
# allocates or copies from pageable memory may stand in it, and one only that waits: for the step's logits, at its end.
calls() {
  local steps output
  for steps in 10 110; do
    output=$(env CUDA_INJECTION64_PATH="$PWD/$carry/libapi_calls.so" "${start[@]}" "$carry/deepinfer" bench model \
      --device cuda:0 --shape v41 --layers 6 --experts 8 --prefill 16 --batches 4 --contexts 1024 --steps "$steps" 2>&1) || return
    printf '%s\n' "$output" | awk '$1 == "api" {print $2, $3}' | sort >"$carry/calls.$steps"
  done
  if ! [[ -s $carry/calls.110 ]]; then
    echo "skipped: CUPTI is refused here"
    return 77
  fi
  join -a 2 -e 0 -o 0,1.2,2.2 "$carry/calls.10" "$carry/calls.110" |
    awk '$3 != $2 {printf "%-44s %8.2f a step\n", $1, ($3 - $2) / 100}'
}

# The bundled model behind the server at 64 requests at once: throughput, time to the first token, time per token, and the
# share of time in which the device waited for the next step.
serve() {
  local server status=0 port=8123 i
  "${start[@]}" "$carry/deepinfer" serve models/tiny --device cuda:0 --port $port --max-num-seqs 64 >"$carry/serve.log" 2>&1 &
  server=$!
  for ((i = 0; i < 300; ++i)); do
    if curl -sf "http://127.0.0.1:$port/readyz" >/dev/null; then break; fi
    sleep 0.1
  done
  "${start[@]}" "$carry/deepinfer" bench serve --base-url "http://127.0.0.1:$port" --tokenizer models/tiny --input-len 512 \
    --output-len 128 --num-prompts 512 --max-concurrency 64 --num-warmups 64 --ignore-eos || status=$?
  curl -s "http://127.0.0.1:$port/metrics" | grep -E '^deepinfer:?_?[a-z_]*(idle|step_seconds|spec_decode)[a-z_]*(_sum|_count|_total)?[ {]' | head -n 20
  kill -TERM "$server"
  wait "$server" || status=$?
  grep -v '"message":"request"' "$carry/serve.log" | tail -n 5
  return "$status"
}

# A server whose device runs out of memory while it serves, and whose device then fails (bench/device/faults.cc).
faults() {
  local server status=0 port=8125 i code url
  url=http://127.0.0.1:$port
  : >"$carry/fault"
  env CUDA_INJECTION64_PATH="$PWD/$carry/libfaults.so" DI_FAULTS="$PWD/$carry/fault" "${start[@]}" "$carry/deepinfer" serve models/tiny \
    --device cuda:0 --port $port --max-num-batched-tokens 16384 --prefix-cache off >"$carry/faults.log" 2>&1 &
  server=$!
  for ((i = 0; i < 300; ++i)); do
    if curl -sf "$url/readyz" >/dev/null; then break; fi
    sleep 0.1
  done
  ask() { # NAME WORDS EXPECTED
    local body
    body=$(printf '{"model": "deepinfer-tiny", "max_tokens": 8, "temperature": 0, "messages": [{"role": "user", "content": "%s"}]}' \
      "$(yes lamp | head -n "$2" | tr '\n' ' ')")
    code=$(curl -s -m 20 -o "$carry/answer" -w '%{http_code}' -H 'Content-Type: application/json' -d "$body" "$url/v1/chat/completions")
    echo "$1: status $code: $(head -c 240 "$carry/answer")"
    [[ $code == "$3" ]] || status=1
  }
  ask "a short prompt" 20 200
  echo fill >"$carry/fault"
  sleep 1
  ask "a long prompt, no memory left" 9000 503
  ask "a short prompt beside it" 20 200
  echo free >"$carry/fault"
  sleep 1
  ask "the long prompt again" 9000 200
  echo trap >"$carry/fault"
  sleep 0.5
  ask "a prompt after the device has failed" 20 503
  wait "$server"
  code=$?
  echo "the server ended with status $code"
  [[ $code == 1 ]] || status=1
  grep -E '"level":"error"|deepinfer serve:|faults:' "$carry/faults.log"
  return "$status"
}

# The layers at their real widths, with the ceilings of the kernel benchmark if it ran.
layers() {
  local ceilings=() read_gbs matrix
  read_gbs=$(sed -n 's/^ceilings: read \([0-9]*\) GB.*/\1/p' bench/device/*.log 2>/dev/null | tail -n 1)
  matrix=$(sed -n 's/^ceilings: .*fp8 \([0-9]*\) TFLOP.*/\1/p' bench/device/*.log 2>/dev/null | tail -n 1)
  if [[ -n $read_gbs && -n $matrix ]]; then ceilings=(--read-gbs "$read_gbs" --matrix-tflops "$matrix"); fi
  "${start[@]}" "$carry/deepinfer" bench model --device cuda:0 "${ceilings[@]}" "$@"
}

# A program on two devices.
pair() {
  if (( $(nvidia-smi -L | wc -l) < 2 )); then
    echo "skipped: there is one device"
    return 77
  fi
  "${start[@]}" "$carry/$1" "${@:2}"
}

run() {
  local log=${1:-bench/device/check.log} name
  shift
  wanted=()
  for name in "$@"; do
    # shellcheck disable=SC2206
    wanted+=(${runs[$name]:-$name})
  done
  mkdir -p "$(dirname "$log")"
  exec > >(tee "$log") 2>&1
  date -u
  nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.sm,clocks.mem,power.limit --format=csv || true
  choose_start || { echo "the packed programs do not start here"; exit 1; }
  local definitions
  definitions=$(declare -p start carry; declare -f sanitized serve calls faults layers pair)
  part device 60 "${start[@]}" "$carry/deepinfer" run --device cuda:0 --temperature 0 --max-tokens 16 models/tiny "Once upon a time"
  part operators 200 "${start[@]}" "$carry/kernels_cuda_tests" --gtest_brief=1 --gtest_filter=-*Sanitized*
  part model 60 "${start[@]}" "$carry/deepinfer-conformance" model tests/data/model --device cuda:0
  part greedy 90 "${start[@]}" "$carry/greedy_compare" models/tiny bench/device/prompts.txt 200 24
  part racecheck 60 bash -c "$definitions"$'\nsanitized racecheck'
  part memcheck 60 bash -c "$definitions"$'\nsanitized memcheck'
  part bench 360 "${start[@]}" "$carry/bench_kernels_cuda"
  part calls 60 bash -c "$definitions"$'\ncalls'
  part serve 60 bash -c "$definitions"$'\nserve'
  part toggles 200 tools/toggles_check.py "$carry/deepinfer" --device cuda:0 --start "${start[@]}"
  part faults 90 bash -c "$definitions"$'\nfaults'
  part layers8 150 bash -c "$definitions"$'\nlayers --layers 8 --experts 384'
  part layers40 200 bash -c "$definitions"$'\nlayers --layers 40 --experts 48'
  part loading 300 "${start[@]}" "$carry/deepinfer" bench loading models/tiny --device cuda:0 --size 24GB --cold
  # Multicast over NVLink stays off where it was not asked for: it needs a fabric manager that shared hosts lack.
  export NCCL_NVLS_ENABLE=${NCCL_NVLS_ENABLE:-0} NCCL_DEBUG=${NCCL_DEBUG:-WARN}
  part topology 30 nvidia-smi topo -m
  local shape="--layers 8 --experts 96 --prefill 4096 --batches 8,64,256 --contexts 1024"
  part ranks 200 bash -c "$definitions"$'\npair ranks_compare models/tiny bench/device/prompts.txt cuda:0,cuda:1 200 24'
  part one 100 bash -c "$definitions"$'\n'"layers $shape"
  part two 120 bash -c "$definitions"$'\n'"pair deepinfer bench model --device cuda:0,cuda:1 $shape"
  printf '\n==== summary\n'
  printf '%s\n' "${summary[@]}"
  exit "$failed"
}

# Without a device no part may do anything but say so.
dry() {
  local out said status=0
  choose_start || return
  for out in \
    "$carry/kernels_cuda_tests --gtest_brief=1" \
    "$carry/bench_kernels_cuda" \
    "$carry/greedy_compare models/tiny bench/device/prompts.txt 1 1" \
    "$carry/ranks_compare models/tiny bench/device/prompts.txt cuda:0,cuda:1 1 1" \
    "$carry/deepinfer-conformance model tests/data/model --device cuda:0" \
    "$carry/deepinfer bench model --device cuda:0" \
    "$carry/deepinfer run --device cuda:0 models/tiny x"; do
    # shellcheck disable=SC2086
    said=$("${start[@]}" $out 2>&1)
    if grep -qiE 'skipped|no NVIDIA device can be used here' <<<"$said"; then
      echo "no device, and says so: $out"
    else
      echo "FAILED without a device: $out"
      status=1
    fi
  done
  return "$status"
}

case ${1:-} in
  pack) pack ;;
  run) shift; run "$@" ;;
  dry) dry ;;
  *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
esac
