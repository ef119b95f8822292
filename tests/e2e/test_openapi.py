"""schemathesis over /openapi.json: what is described is what is served, and nothing answers with a fault of the server.
Runs where schemathesis is installed (make clients)."""
import json

import pytest
from wire import MODEL

schemathesis = pytest.importorskip("schemathesis")

# Requests that end the server, or that say on purpose that something is missing.
NOT_CALLED = {"/admin/drain", "/admin/undrain", "/admin/log_level"}
PER_ROUTE = 15


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    import harness
    server = harness.Server(tmp_path_factory.mktemp("openapi"), "--engine", "mock:tokens=4", "--responses-store", 4)
    server.model = MODEL
    yield server
    assert server.stop() == 0


def test_no_request_that_fits_the_description_fails(server):
    import hypothesis
    from schemathesis.specs.openapi.checks import content_type_conformance, response_schema_conformance, status_code_conformance
    checks = [schemathesis.checks.not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{server.port}/openapi.json")
    called = set()
    for operation in schema.get_all_operations():
        operation = operation.ok()
        if operation.path in NOT_CALLED:
            continue
        called.add(operation.path)

        @hypothesis.settings(max_examples=PER_ROUTE, deadline=None, derandomize=True, database=None,
                             suppress_health_check=list(hypothesis.HealthCheck))
        @hypothesis.given(case=operation.as_strategy())
        def run(case):
            if isinstance(case.body, dict) and "model" in case.body:
                case.body["model"] = MODEL
                case.body.pop("stream", None)
                for bound in ("max_tokens", "max_output_tokens"):
                    if case.body.get(bound):
                        case.body[bound] = min(case.body[bound], 50)
            if isinstance(case.body, dict) and case.body.get("seconds"):
                case.body["seconds"] = min(case.body["seconds"], .05)  # it waits that long
            case.call_and_validate(checks=checks)

        run()
    assert {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/tokenize", "/v1/models"} <= called
    assert server.metric("deepinfer:http_requests_total", route="/v1/chat/completions", code="200") > 0
    assert json.loads(server.request("GET", "/readyz")[2])["status"] == "ready"
