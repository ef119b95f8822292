#!/usr/bin/env bash
# The program with the CUDA backend on a machine without a driver: it starts, and asking for a device is an error that
# names what is missing (exit status 4), in less than ten seconds.
#
#   tools/check_no_device.sh PROGRAM
set -euo pipefail
program=${1:?usage: tools/check_no_device.sh PROGRAM}

"$program" --version
status=0
output=$(timeout 10 "$program" run --device cuda:0 models/tiny hello 2>&1) || status=$?
printf '%s\n' "$output"
if (( status != 4 )); then echo "expected exit status 4, found $status"; exit 1; fi
if [[ $output != *"cuda:0: no NVIDIA device can be used here"* ]]; then echo "the message does not name the device"; exit 1; fi
status=0
output=$(timeout 10 "$program" run --device cuda:x models/tiny hello 2>&1) || status=$?
printf '%s\n' "$output"
if (( status != 2 )) || [[ $output != *"expected cpu, cuda or cuda:N"* ]]; then
  echo "expected exit status 2 and what a device may be, found $status"
  exit 1
fi
