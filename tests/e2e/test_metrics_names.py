"""Every metric of server.md §10 and kv-cache.md §10 is either on /metrics, with the labels given there, or in the list of docs/server.md of what
waits for a part that is not there."""
import re

from harness import ROOT

# Family -> labels beside model_name, engine and le: a label's values as far as they are given, None: any.
THERE = {
    **{f"vllm:{name}": {} for name in """num_requests_running num_requests_waiting kv_cache_usage_perc num_preemptions_total prompt_tokens_total
        prompt_tokens_cached_total generation_tokens_total prefix_cache_queries_total prefix_cache_hits_total external_prefix_cache_queries_total
        external_prefix_cache_hits_total mm_cache_queries_total mm_cache_hits_total corrupted_requests_total spec_decode_num_drafts_total
        spec_decode_num_draft_tokens_total spec_decode_num_accepted_tokens_total time_to_first_token_seconds inter_token_latency_seconds
        request_time_per_output_token_seconds e2e_request_latency_seconds request_queue_time_seconds request_inference_time_seconds
        request_prefill_time_seconds request_decode_time_seconds request_prompt_tokens request_generation_tokens
        request_max_num_generation_tokens request_params_n request_params_max_tokens iteration_tokens_total request_num_preemptions
        request_prefill_kv_computed_tokens kv_block_lifetime_seconds kv_block_idle_before_evict_seconds kv_block_reuse_gap_seconds""".split()},
    "vllm:num_requests_waiting_by_reason": {"reason": {"capacity", "deferred"}},
    "vllm:cache_config_info": {"block_size": None, "num_gpu_blocks": None, "cache_dtype": None, "enable_prefix_caching": None},
    "vllm:engine_sleep_state": {"sleep_state": {"awake"}},
    "vllm:prompt_tokens_by_source_total": {"source": {"local_compute", "local_cache_hit", "external_kv_transfer"}},
    "vllm:prompt_tokens_cached_by_source_total": {"source": {"device", "host", "p2p", "disk", "external_unspecified"}},
    "vllm:request_success_total": {"finished_reason": {"stop", "length", "abort", "error", "repetition"}},
    "vllm:admission_rejections_total": {"reason": None},
    "vllm:spec_decode_num_accepted_tokens_per_pos_total": {"position": None},
    **{f"deepinfer:{name}": {} for name in """http_connections tool_call_parse_failures_total grammar_compile_seconds swa_replay_tokens_total
        swa_entry_age_seconds kv_blocks_leased pd_transfer_bytes_total spec_verify_len spec_accept_len gpu_idle_ratio model_load_progress unknown_request_fields_total""".split()},
    "deepinfer:http_requests_total": {"route": None, "code": None},
    "deepinfer:http_request_duration_seconds": {"route": None},
    "deepinfer:frontend_stage_seconds": {"stage": {"parse", "render", "tokenize", "queue", "detokenize", "serialize"}},
    "deepinfer:requests_aborted_total": {"phase": {"queue", "prefill", "decode"}, "reason": None},
    "deepinfer:errors_total": {"code": None},
    "deepinfer:grammar_cache_total": {"result": {"hit", "miss"}},
    "deepinfer:kv_bytes": {"tier": {"device", "host"}, "kind": {"block", "swa"}, "state": {"used", "free"}},
    "deepinfer:kv_hits_tokens_total": {"tier": None, "kind": None},
    "deepinfer:kv_io_seconds": {"tier": {"host"}, "op": {"read", "write"}},
    "deepinfer:kv_io_bytes_total": {"tier": {"host"}, "op": {"read", "write"}},
    "deepinfer:swa_requests_total": {"result": {"hit", "hit_lower", "miss"}},
    "deepinfer:step_seconds": {"phase": {"schedule", "forward", "sample", "wait"}},
    "deepinfer:startup_seconds": {"stage": None},
    "deepinfer:build_info": {"version": None},
    "kv_swa_lookup_total": {"result": {"hit", "hit_lower", "miss"}},
    "kv_swa_evicted_total": {"reason": {"ttl", "lru"}},
    **{name: {} for name in """kv_swa_bytes kv_swa_entries kv_swa_age_at_hit_seconds kv_replay_total kv_replay_tokens_total
        process_resident_memory_bytes process_cpu_seconds_total process_open_fds process_start_time_seconds""".split()},
}
# Of parts that are not there. A `*` stands for the rest of a family's name.
WAITING = """deepinfer:kv_corrupt_total deepinfer:stale_transfer_events_total deepinfer:pd_transfer_seconds
    deepinfer:pd_queue deepinfer:pool_replicas deepinfer:planner_decisions_total deepinfer:planner_target
    deepinfer:eplb_rebalances_total deepinfer:eplb_seconds_since_last_rebalance deepinfer:eplb_imbalance deepinfer:expert_load
    deepinfer:router_decision_seconds deepinfer:router_worker_health deepinfer:router_retries_total kv_store_* kv_index_* kv_lease_active
    kv_xfer_*""".split()


def families(text):
    return set(re.findall(r"^# TYPE (\S+) ", text, re.M))


def labels_of(samples, family):
    """Values of each label over the samples of a family."""
    out = {}
    for name, labels, _ in samples:
        if name in (family, f"{family}_bucket", f"{family}_count", f"{family}_sum"):
            for key, value in labels.items():
                out.setdefault(key, set()).add(value)
    return out


def test_every_metric_of_the_specification(server):
    server.answer(max_tokens=2)
    text = server.request("GET", "/metrics")[2].decode()
    samples = server.metrics()
    assert sorted(set(THERE) - families(text)) == []
    for family, wanted in THERE.items():
        found = labels_of(samples, family)
        for label, values in wanted.items():
            assert label in found, (family, label, found)
            assert values is None or values <= found[label], (family, label, found[label])
        if family.startswith("vllm:"):
            assert {"model_name", "engine"} <= set(found), (family, found)


def test_what_waits_is_listed_and_not_there(server):
    here = families(server.request("GET", "/metrics")[2].decode())
    listed = (ROOT / "docs/server.md").read_text(encoding="utf-8")
    for one in WAITING:
        assert f"`{one}`" in listed, one
        pattern = re.escape(one).replace(r"\*", ".*")
        assert not [name for name in here if re.fullmatch(pattern, name)], f"{one} is no longer waiting"


def test_bytes_of_kv_add_up(server):
    """Used and free are the whole, and what runs shows in it."""
    def value(**labels):
        return server.metric("deepinfer:kv_bytes", **labels)
    blocks = value(tier="device", kind="block", state="used") + value(tier="device", kind="block", state="free")
    slots = value(tier="device", kind="swa", state="used") + value(tier="device", kind="swa", state="free")
    assert blocks > 0 and slots > 0
    assert value(tier="host", kind="swa", state="used") == server.metric("kv_swa_bytes")
    usage = server.metric("vllm:kv_cache_usage_perc")
    assert abs(value(tier="device", kind="block", state="used") - usage * blocks) <= blocks / 50
    # A prompt of several blocks leaves windows in host memory: they are written there, and read when it comes again.
    long = "river boat people water " * 200
    server.answer(long, max_tokens=1)
    written = server.metric("deepinfer:kv_io_bytes_total", tier="host", op="write")
    assert written > 0 and server.metric("deepinfer:kv_io_seconds_count", tier="host", op="write") > 0
    server.answer(long, max_tokens=1)
    assert server.metric("deepinfer:kv_io_bytes_total", tier="host", op="read") > 0
    assert server.metric("kv_swa_age_at_hit_seconds_count") > 0
