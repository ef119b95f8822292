#!/usr/bin/env bash
# The CPU operators on another machine: whether its instruction sets are found, right and fast. Two minutes on four cores.
#
#   tools/device_cpu.sh pack              here: builds (preset release) and packs the programs with their libraries and the
#                                         peers of the benchmark into .carry/cpu.tar.xz (ignored by git)
#   tools/device_cpu.sh run LOG [PART…]   there: runs these parts of what was packed (all), writes LOG and ends with one
#                                         line per part; the exit status is 0 when none failed
#
# Parts: processor tests model gemm1 gemm4 gemv1 gemv4 moe llama before
# `before` is llama with the table that a processor without AMX has. A part that fails or exceeds its time does not end
# the run.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
carry=.carry/cpu
programs=(deepinfer-conformance kernels_tests bench_kernels)
peers=(libopenblas.so.0 libblis.so.4 libdnnl.so.2)  # loaded by bench_kernels where they are found

pack() {
  tools/build.sh release "${programs[@]}" || return
  local program library name files=() built=()
  for program in "${programs[@]}"; do
    name=$(find build/release -name "$program" -type f -perm -u+x | head -n 1)
    built+=("$name")
  done
  for name in "${peers[@]}"; do
    library=$(ldconfig -p | awk -v name="$name" '$1 == name {print $NF; exit}')
    if [[ -n $library ]]; then files+=("$library"); else echo "without the peer $name: not installed here"; fi
  done
  rm -rf "$carry"
  mkdir -p "$carry/lib" "$carry/libc"
  for program in "${built[@]}"; do strip -o "$carry/$(basename "$program")" "$program" || return; done
  for library in "${files[@]}"; do cp -L "$library" "$carry/lib/$(basename "$library")"; done
  # The C library goes apart: it is used only where the machine's own is older.
  for program in "${built[@]}" "${files[@]}"; do ldd "$program"; done |
    awk '/=> \//{print $3} /^[[:space:]]*\/lib/{print $1}' | sort -u | while read -r library; do
    name=$(basename "$library")
    case $name in
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
    rm -rf "$carry"
    tar -C "$(dirname "$carry")" -xJf "$carry.tar.xz" || return
    touch "$carry"
  fi
  local libraries=$PWD/$carry/lib
  start=(env "LD_LIBRARY_PATH=$libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}")
  if "${start[@]}" "$carry/kernels_tests" --gtest_list_tests >/dev/null 2>&1; then return; fi
  echo "the machine's C library does not start the programs; with the packed one:"
  start=("$PWD/$carry/libc/ld-linux-x86-64.so.2" --library-path "$PWD/$carry/libc:$libraries:/usr/lib/x86_64-linux-gnu")
  "${start[@]}" "$carry/kernels_tests" --gtest_list_tests >/dev/null
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
    124 | 137) failed=1 summary+=("$name: ended after $limit s") ;;
    *) failed=1 summary+=("$name: FAILED, status $status ($((SECONDS - begun)) s)") ;;
  esac
}

run() {
  local log=${1:-bench/device/cpu.log}
  shift
  wanted=("$@")
  mkdir -p "$(dirname "$log")"
  exec > >(tee "$log") 2>&1
  date -u
  choose_start || { echo "the packed programs do not start here"; exit 1; }
  local bench=("${start[@]}" "$carry/bench_kernels") isa=avx512bf16
  # 1: the table is there and no group of that name; 2: it is not, and the message says why
  "${bench[@]}" none --isa amx >/dev/null
  if (( $? == 1 )); then isa=amx; fi
  echo "table: $isa"
  part processor 10 bash -c 'lscpu | grep -E "Model name|^CPU\(s\)|Thread|L1d|L2|L3"; uname -r; grep -m 1 -o -w -E "amx_[a-z0-9]+" /proc/cpuinfo | sort -u | tr "\n" " "; grep -E "Mems_allowed_list|Cpus_allowed_list" /proc/self/status'
  part tests 90 "${start[@]}" "$carry/kernels_tests" --gtest_brief=1 \
    --gtest_filter="Amx.*:Linear.*:*/cpu_amx*linear*:*/cpu_amx*moe*:*Edge*/cpu_amx-*emulated*"
  part model 60 "${start[@]}" "$carry/deepinfer-conformance" model tests/data/model
  part gemm1 60 "${bench[@]}" gemm --isa "$isa" --threads 1 --repetitions 5
  part gemm4 60 "${bench[@]}" gemm --isa "$isa" --threads 4 --repetitions 5
  part gemv1 60 "${bench[@]}" gemv --isa "$isa" --threads 1 --repetitions 3
  part gemv4 60 "${bench[@]}" gemv --isa "$isa" --threads 4 --repetitions 5
  part moe 60 "${bench[@]}" operators --isa "$isa" --threads 4 --repetitions 3
  part llama 60 "${bench[@]}" llama --isa "$isa" --threads 4 --repetitions 3
  if [[ $isa == amx ]]; then part before 60 "${bench[@]}" llama --isa avx512bf16 --threads 4 --repetitions 3; fi
  printf '\n==== summary\n'
  printf '%s\n' "${summary[@]}"
  exit "$failed"
}

case ${1:-} in
  pack) pack ;;
  run) shift; run "$@" ;;
  *) sed -n '2,/^set/{/^set/d;s/^# \{0,1\}//;p}' "$0" >&2; exit 2 ;;
esac
