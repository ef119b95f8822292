#!/usr/bin/env bash
# `make deploy-check`: the files of deploy/ and what /metrics says, read by the programs they are for: Prometheus' promtool (from
# Debian's package, unpacked here and not installed) and Kubernetes' own schemas (kubernetes-validate), in build/deploy-check.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

dir=$PWD/build/deploy-check
mkdir -p "$dir"
if ! command -v promtool >/dev/null && [[ ! -x $dir/prometheus/usr/bin/promtool ]]; then
  (cd "$dir" && apt-get -q download prometheus >download.log 2>&1 && dpkg -x prometheus_*.deb prometheus && rm prometheus_*.deb) ||
    { cat "$dir/download.log" >&2; exit 1; }
fi
[[ -x $dir/venv/bin/python ]] || python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install --quiet --disable-pip-version-check -r tests/e2e/requirements-deploy.txt
PATH=$dir/prometheus/usr/bin:$PATH exec "$dir/venv/bin/python" -m pytest -q -rs tests/e2e/test_deploy.py "$@"
