#!/usr/bin/env bash
# `make fresh`: what a newcomer sees. Clones the committed tree into an empty folder and there runs ./run --once and then
# ./test, with no build folder, an empty ccache, no package lists and the system's PATH only; prints the times and keeps
# them in bench/RESULTS.md.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

top=$(mktemp -d)
chmod 755 "$top"  # apt fetches as a user of its own
trap 'rm -rf "$top"' EXIT
git clone -q --no-hardlinks . "$top/deepinfer"
mkdir -p "$top/home" "$top/lists/partial"
printf 'Dir::State::Lists "%s";\n' "$top/lists" >"$top/apt.conf"
clean=(env -i HOME="$top/home" LANG=C.UTF-8 TERM="${TERM:-dumb}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
  CCACHE_DIR="$top/ccache" APT_CONFIG="$top/apt.conf")
# What the machine needs to reach package archives at all belongs to it and not to the checkout.
for name in $(compgen -e); do
  case $name in
    *_proxy | *_PROXY | PIP_* | SSL_CERT_* | *_CA_BUNDLE) clean+=("$name=${!name}") ;;
  esac
done
vectors=${DEEPINFER_VECTORS:-$PWD/../shared/vectors}
if [[ -d $vectors ]]; then clean+=(DEEPINFER_VECTORS="$(realpath "$vectors")"); fi

log=$top/log
status=0
timed() {
  local name=$1 begun=$SECONDS code=0
  shift
  printf '$ %s\n' "$name" | tee -a "$log"
  (cd "$top/deepinfer" && "${clean[@]}" "$@") </dev/null 2>&1 | tee -a "$log" || code=$?
  printf '[%s: %d s, exit status %d]\n\n' "$name" $((SECONDS - begun)) "$code" | tee -a "$log"
  if (( code != 0 )); then status=1; fi
}

{
  printf 'commit %s\n' "$(git rev-parse --short HEAD)"
  printf '%s, %d cores, %s GiB\n\n' "$(sed -n 's/^model name\s*: //p' /proc/cpuinfo | head -n 1)" "$(nproc)" \
    "$(awk '/MemTotal/ {printf "%.0f", $2 / 1048576}' /proc/meminfo)"
} | tee "$log"
timed './run --once' ./run --once
timed './run --once (again)' ./run --once
timed './test' ./test
# Lines of the build's own progress and paths of the temporary folder say nothing to a reader of the results.
sed -e "s|$top/||g" -e '/^\[[0-9]*\/[0-9]*\] /d' "$log" |
  python3 tools/results_section.py bench/RESULTS.md 'From a clean clone' 'make fresh'
exit "$status"
