#!/usr/bin/env bash
# The compatibility matrix (docs/clients.md): installs the public client libraries into an environment of their own
# (build/clients, or the one that CLIENTS_VENV names) and runs them, and schemathesis over /openapi.json, against the built
# server. With LOAD_VENV, an environment for the load generators guidellm and aiperf (6.5 GB, made when missing), these too; with
# VLLM_VENV (9.5 GB) that of vLLM.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment() {  # folder, requirements
  [[ -x $1/bin/python ]] || python3 -m venv "$1"
  "$1/bin/python" -m pip install --quiet --disable-pip-version-check -r "$2"
}

venv=${CLIENTS_VENV:-build/clients}
environment "$venv" tests/e2e/requirements-clients.txt
tests=(tests/e2e/test_clients.py tests/e2e/test_openapi.py)
if [[ -n ${LOAD_VENV:-} ]]; then
  environment "$LOAD_VENV" tests/e2e/requirements-load.txt
fi
if [[ -n ${VLLM_VENV:-} ]]; then environment "$VLLM_VENV" tests/e2e/requirements-vllm.txt; fi
if [[ -n ${LOAD_VENV:-}${VLLM_VENV:-} ]]; then tests+=(tests/e2e/test_load_tools.py); fi
exec "$venv/bin/python" -m pytest -q "${tests[@]}" "$@"
