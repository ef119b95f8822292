#!/usr/bin/env bash
# Builds targets of one preset into build/<preset>: configures where that was not done yet or where the presets changed
# since, then leaves the rest to ninja (a build that is current costs it some tens of milliseconds).
#
#   tools/build.sh PRESET [-DNAME=VALUE…] [TARGET…]     -D options count only when the folder is configured
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

preset=${1:?usage: tools/build.sh PRESET [-DNAME=VALUE…] [TARGET…]}
shift
options=()
while [[ ${1:-} == -D* ]]; do options+=("$1"); shift; done

# One cache for all checkouts: paths below this one are stored relative to it. What a file includes is taken from the
# compiler and not from a preprocessor run of the cache's own, a tenth of the time of a cold build.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1 CCACHE_SLOPPINESS=time_macros CCACHE_DEPEND=1
dir=build/$preset
mkdir -p "$dir"
exec 9>"$dir/.lock"
flock 9  # two runs of ./run and ./test may meet here

configured=$dir/.configured-with
# Whoever needs no tests takes a folder that has them as well.
if [[ "${options[*]-}" == -DDI_TESTS=OFF && -e $configured ]]; then read -ra options <"$configured" || true; fi
if [[ ! -e $dir/build.ninja || CMakePresets.json -nt $configured || "${options[*]-}" != "$(cat "$configured" 2>/dev/null)" ]]; then
  cmake --preset "$preset" -B "$dir" "${options[@]}" >"$dir/configure.log" 2>&1 || { cat "$dir/configure.log" >&2; exit 1; }
  echo "${options[*]-}" >"$configured"
fi
# Progress is for people; a log gets only what a compiler has to say.
if [[ -t 1 ]]; then exec ninja -C "$dir" "$@" 9>&-; fi
{ ninja -C "$dir" --quiet "$@" || exit; } 9>&- | sed '/^ninja: no work to do\.$/d'
