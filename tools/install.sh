#!/usr/bin/env bash
# Installs what building, serving and testing need, from Debian packages (and, for the tests, a Python virtual
# environment in .venv). Idempotent; when nothing is missing it only asks dpkg and returns.
#
#   tools/install.sh --run          what ./run needs: compiler, build tools, libraries, curl
#   tools/install.sh --test         the same, and what ./test needs: clang 19, test libraries, Python clients
#   tools/install.sh --list run|test   prints the package names and installs nothing
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

run_packages=(
  # tools
  ca-certificates ccache cmake curl g++-12 mold ninja-build pkg-config
  # libraries, each found by cmake/Deps.cmake
  libboost1.81-dev libcli11-dev libfmt-dev libgif-dev libhwy-dev libjpeg-dev libmimalloc-dev libpng-dev libsimdjson-dev libspdlog-dev libssl-dev libtomlplusplus-dev
  libutf8proc-dev libwebp-dev libxxhash-dev libzstd-dev prometheus-cpp-dev zlib1g-dev
)
test_packages=(
  pybind11-dev python3-dev
  clang-19 clang-format-19 clang-tidy-19 libclang-rt-19-dev
  libgmock-dev libgtest-dev libpcre2-dev librapidcheck-dev nlohmann-json3-dev
  git make openssl procps python3 python3-venv shellcheck zstd
  chromium fonts-dejavu-core
)

fail() { printf 'install: %s\n' "$*" >&2; exit 1; }

# Names of the given packages that dpkg does not report as installed, one call for all of them.
missing_of() {
  local name state
  declare -A have=()
  while read -r name state; do
    if [[ $state == installed ]]; then have[$name]=1; fi
  done < <(dpkg-query -W -f '${Package} ${db:Status-Status}\n' "$@" 2>/dev/null || true)
  for name in "$@"; do
    if [[ -z ${have[$name]:-} ]]; then echo "$name"; fi
  done
}

install_packages() {
  command -v dpkg-query >/dev/null || fail "this is not a Debian system (no dpkg): install the counterparts of: $*"
  local missing=() id='' version=''
  mapfile -t missing < <(missing_of "$@")
  if (( ${#missing[@]} == 0 )); then return; fi
  if [[ -r /etc/os-release ]]; then
    id=$(sed -n 's/^ID=//p' /etc/os-release | tr -d '"')
    version=$(sed -n 's/^VERSION_ID=//p' /etc/os-release | tr -d '"')
  fi
  [[ $id == debian && $version == 12 ]] ||
    fail "expected Debian 12, found '${id:-unknown} ${version:-}'; missing packages: ${missing[*]}"
  (( EUID == 0 )) || fail "not root, and packages are missing; as root: apt-get install --no-install-recommends ${missing[*]}"

  local log=build/install.log started=$SECONDS
  mkdir -p build
  printf 'install: %d packages: %s\n' "${#missing[@]}" "${missing[*]}" >&2
  local apt=(apt-get -q -y -o Dpkg::Use-Pty=0 -o DPkg::Lock::Timeout=600)
  export DEBIAN_FRONTEND=noninteractive
  # A source that cannot be reached is no reason to stop as long as the others hold the packages, so the verdict is the
  # install step's.
  "${apt[@]}" update </dev/null >"$log" 2>&1 || true
  if ! "${apt[@]}" install --no-install-recommends "${missing[@]}" </dev/null >>"$log" 2>&1; then
    tail -n 25 "$log" >&2
    fail "apt-get could not install: ${missing[*]} (whole output: $log)"
  fi
  printf 'install: packages done in %d s\n' $((SECONDS - started)) >&2
}

# The virtual environment is made again when the requirements change or when it was made by another interpreter or at
# another place (its scripts hold absolute paths).
install_venv() {
  local want have='' stamp=.venv/installed-from started=$SECONDS python=/usr/bin/python3
  want="$PWD $($python -V) $(sha256sum <tools/requirements-test.txt)"
  if [[ -r $stamp ]]; then have=$(<"$stamp"); fi
  if [[ $want == "$have" ]]; then return; fi
  local log=build/install-python.log
  mkdir -p build
  echo "install: Python packages for the tests (.venv)" >&2
  rm -rf .venv
  if ! { $python -m venv .venv &&
    .venv/bin/python -m pip install --disable-pip-version-check --no-input -q -r tools/requirements-test.txt; } \
    </dev/null >"$log" 2>&1; then
    tail -n 25 "$log" >&2
    fail "the Python packages of tools/requirements-test.txt could not be installed (whole output: $log)"
  fi
  echo "$want" >"$stamp"
  printf 'install: Python packages done in %d s\n' $((SECONDS - started)) >&2
}

case "${1:-} ${2:-}" in
  '--run ') install_packages "${run_packages[@]}" ;;
  '--test ') install_packages "${run_packages[@]}" "${test_packages[@]}"; install_venv ;;
  '--list run') printf '%s\n' "${run_packages[@]}" ;;
  '--list test') printf '%s\n' "${run_packages[@]}" "${test_packages[@]}" ;;
  *) fail "usage: tools/install.sh --run | --test | --list run|test" ;;
esac
