#!/usr/bin/env bash
# The compatibility matrix: installs the public client libraries into an environment of their own (build/clients, or the
# one that CLIENTS_VENV names) and runs them, and schemathesis over /openapi.json, against the built server.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

venv=${CLIENTS_VENV:-build/clients}
[[ -x $venv/bin/python ]] || python3 -m venv "$venv"
"$venv/bin/python" -m pip install --quiet --disable-pip-version-check -r tests/e2e/requirements-clients.txt
exec "$venv/bin/python" -m pytest -q tests/e2e/test_clients.py tests/e2e/test_openapi.py "$@"
