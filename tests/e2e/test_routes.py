"""Every route beside chat, the rules common to all, and the metrics."""
import json
import re

import pytest
from harness import CHAT, check_envelope, get, post


def test_the_list_of_models(server):
    models = server.json("GET", "/v1/models")
    assert models["object"] == "list" and models["data"]
    for model in models["data"]:
        assert model["object"] == "model" and model["owned_by"] == "deepinfer" and isinstance(model["created"], int)
        assert model["max_model_len"] > 0
        one = server.json("GET", "/v1/models/" + model["id"])
        assert one["id"] == model["id"]
    status, _, data = server.request("GET", "/v1/models/no-such-model")
    assert status == 404 and check_envelope(data)["code"] == "model_not_found"


@pytest.mark.parametrize("path", ["/livez", "/readyz"])
def test_health(server, path):
    assert server.request("GET", path)[0] == 200
    with server.connect() as connection:
        connection.send(get(path, "HEAD"))
        assert connection.read_response(head_request=True).status == 200
        connection.send(get(path))
        assert connection.read_response().status == 200


def test_paths_have_their_aliases(server):
    for path in ("/v1/models", "/models", "/beta/models"):
        assert server.request("GET", path)[0] == 200, path
    for path in (CHAT, "/chat/completions", "/beta/chat/completions"):
        assert server.request("POST", path, server.body(max_tokens=2))[0] == 200, path


def test_unknown_paths(server):
    for path in ("/", "/v1", "/v1/chat", "/v1/chat/completions/x", "/v2/models", "/V1/models", "/v1/embeddings", "/.env", "/?x=1"):
        status, _, data = server.request("GET", path)
        if path.split("?")[0] == "/" and status == 200:
            continue  # a page for people may stand here
        assert status == 404, path
        assert check_envelope(data)["type"] == "not_found_error"


def test_paths_that_change_by_normalisation(server):
    for path in ("//v1/models", "/v1//models", "/v1/./models", "/v1/x/../models", "/v1/%6dodels", "/v1/models/", "/../v1/models", "/v1/models%00"):
        response = server.exchange(get(path))
        assert response.status == 404, path
        check_envelope(response.body)


def test_query_strings_are_no_part_of_the_path(server):
    assert server.request("GET", "/v1/models?limit=5")[0] == 200
    assert server.request("GET", "/livez?verbose")[0] == 200


@pytest.mark.parametrize("method, path, allowed", [
    ("GET", CHAT, "POST"), ("DELETE", CHAT, "POST"), ("PUT", CHAT, "POST"), ("POST", "/v1/models", "GET"), ("POST", "/livez", "GET"),
    ("PATCH", "/metrics", "GET"), ("OPTIONS", CHAT, "POST"), ("BREW", CHAT, "POST")])
def test_wrong_methods(server, method, path, allowed):
    status, headers, data = server.request(method, path)
    assert status == 405
    assert allowed in re.split(r",\s*", headers["allow"])
    assert check_envelope(data)["code"] == "method_not_allowed"


def test_request_ids(server):
    for path, body in (("/livez", None), ("/v1/models", None), ("/nowhere", None), (CHAT, server.body(max_tokens=2)), (CHAT, {})):
        method = "GET" if body is None else "POST"
        _, headers, _ = server.request(method, path, body, {"X-Request-Id": "my-id.7_A"})
        assert headers["x-request-id"] == "my-id.7_A" and headers["request-id"] == "my-id.7_A"
        assert headers["x-deepinfer-version"]
        for ignored in ("x" * 129, "a b", "é".encode("utf-8").decode("latin-1"), ""):
            _, headers, _ = server.request(method, path, body, {"X-Request-Id": ignored})
            assert re.fullmatch(r"[0-9a-f]{32}", headers["x-request-id"]), headers["x-request-id"]


def test_ids_are_never_given_twice(server):
    ids = {server.json("POST", CHAT, server.body(max_tokens=1))["id"] for _ in range(20)}
    assert len(ids) == 20 and all(re.fullmatch(r"chatcmpl-[0-9a-f]{32}", one) for one in ids)


def test_metrics_are_in_the_text_format(server):
    status, headers, _ = server.request("GET", "/metrics")
    assert status == 200 and headers["content-type"].startswith("text/plain; version=0.0.4")
    names = {name for name, _, _ in server.metrics()}
    assert {"vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc", "vllm:prompt_tokens_total",
            "vllm:generation_tokens_total", "vllm:request_success_total", "vllm:time_to_first_token_seconds_bucket",
            "vllm:e2e_request_latency_seconds_count", "deepinfer:http_requests_total", "deepinfer:requests_aborted_total"} <= names


def test_metrics_of_the_engine_are_there(server):
    """engine.md §9; the kinds of a step's time and the ends of a choice have one series each."""
    server.answer(max_tokens=2)
    samples = server.metrics()
    names = {name for name, _, _ in samples}
    assert {"deepinfer:steps_per_second", "deepinfer:prompt_tokens_per_second", "deepinfer:generated_tokens_per_second",
            "deepinfer:batch_fill", "deepinfer:num_requests_chunked", "deepinfer:state_slots_used", "deepinfer:state_slots",
            "deepinfer:ttft_seconds_mean", "deepinfer:ttft_seconds_max", "deepinfer:input_tokens_mean", "deepinfer:output_tokens_mean",
            "deepinfer:gpu_idle_ratio", "deepinfer:bubble_seconds_total", "deepinfer:mfu", "deepinfer:model_flops_total",
            "deepinfer:spec_confidence_error", "vllm:num_preemptions_total"} <= names
    assert {labels["phase"] for name, labels, _ in samples if name == "deepinfer:step_seconds_count"} == {
        "schedule", "post", "wait", "prepare", "forward", "sample"}
    assert {labels["end"] for name, labels, _ in samples if name == "deepinfer:choices_total"} == {"finished", "aborted", "failed"}
    assert server.metric("deepinfer:ttft_seconds_max") > 0 and server.metric("deepinfer:output_tokens_mean") > 0
    assert 0 <= server.metric("deepinfer:gpu_idle_ratio") <= 1


def test_traffic_classes(server):
    for name in ("chat", "agent", "batch", "pin"):  # without keys everybody is an admin
        assert server.request("POST", CHAT, server.body(traffic_class=name, max_tokens=1))[0] == 200
    status, error = server.error(server.body(traffic_class="express"))
    assert status == 400 and error["param"] == "traffic_class"
    assert error["message"] == "traffic_class is `express`, expected chat, agent, batch or pin"
    status, error = server.error({"model": server.model, "prompt": "x", "traffic_class": "express"}, "/v1/completions")
    assert status == 400 and error["param"] == "traffic_class"


def test_metrics_count(server):
    def values():
        return {"prompt": server.metric("vllm:prompt_tokens_total"), "output": server.metric("vllm:generation_tokens_total"),
                "done": server.metric("vllm:request_success_total"), "length": server.metric("vllm:request_success_total", finished_reason="length"),
                "latency": server.metric("vllm:e2e_request_latency_seconds_count"),
                "first": server.metric("vllm:time_to_first_token_seconds_count")}
    before = values()
    usage = server.json("POST", CHAT, server.body("Tell me a long story.", max_tokens=3, ignore_eos=True))["usage"]
    server.error({})
    after = values()
    assert {key: after[key] - before[key] for key in after} == {
        "prompt": usage["prompt_tokens"], "output": 3, "done": 1, "length": 1, "latency": 1, "first": 1}


def test_buckets_grow_to_the_count(server):
    server.answer(max_tokens=2)
    samples = server.metrics()
    buckets = [(float(labels["le"]), value) for name, labels, value in samples if name == "vllm:time_to_first_token_seconds_bucket"]
    assert buckets == sorted(buckets) and buckets[-1][0] == float("inf")
    assert buckets[-1][1] == server.metric("vllm:time_to_first_token_seconds_count")
    assert {0.001, 0.1, 1.0, 2560.0} <= {bound for bound, _ in buckets}


def test_nothing_of_a_prompt_is_logged(server):
    secret = "xyzzy-plugh-4711"
    server.answer(secret, max_tokens=2)
    status, error = server.error(server.body(secret, temperature="hot"))
    assert status == 400 and secret not in error["message"]
    assert server.error({**server.body(), "model": 7, secret: 1})[0] == 400
    assert server.exchange(post(CHAT, '{"model": "' + secret)).status == 400
    assert secret not in server.log()


def test_each_request_has_one_access_line(server):
    request_id = "access-line-0815"
    status, _, data = server.request("POST", CHAT, server.body(max_tokens=2), {"X-Request-Id": request_id})
    assert status == 200 and json.loads(data)["id"]
    assert server.log().count(request_id) == 1
