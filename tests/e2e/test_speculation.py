"""Drafts change nothing but the speed: answers with all five drafts verified, with a variable number and without any are
the same, whatever else a request asks for. Greedy ones are, and sampled ones whose request names a seed; while the model
thinks, it always samples (the API ignores the temperature then). What the drafts were worth is in /metrics and, on
demand, in each answer's usage."""
import concurrent.futures
import json

import pytest
from harness import CHAT

PERSON = {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150}},
          "required": ["name", "age"], "additionalProperties": False}
WEATHER = {"type": "function", "function": {"name": "get_weather", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 12}}, "required": ["city"], "additionalProperties": False}}}
STORY = "Tell me a story about a lost dog."
THINK = {"thinking": {"type": "enabled"}, "seed": 11}
SAMPLED = {"temperature": 1, "seed": 3}
SCHEMA = {"response_format": {"type": "json_schema", "json_schema": {"name": "person", "schema": PERSON, "strict": True}}}
CASES = {
    "plain": dict(text=STORY),
    "thinking": dict(text="Add 856 and 771.", **THINK),
    "stop string": dict(text=STORY, stop=["dog", "market"]),
    "short": dict(text=STORY, max_tokens=7),
    "penalties": dict(text=STORY, frequency_penalty=0.4, presence_penalty=0.3, repetition_penalty=1.1),
    "bias": dict(text=STORY, logit_bias={"16": -100}),
    "logprobs": dict(text=STORY, logprobs=True, top_logprobs=2),
    "choices": dict(text=STORY, n=3),
    "schema": dict(text="Describe a person.", **SCHEMA),
    "schema after thinking": dict(text="Describe a person.", **SCHEMA, **THINK),
    "regex": dict(text="What is your number?", structured_outputs={"regex": "[0-9]{3}-[a-f]{4,9}( ok)?"}),
    "strict tool": dict(text="What is the weather in Oslo?", tools=[WEATHER], tool_choice="required"),
    "strict tool after thinking": dict(text="What is the weather in Oslo?", tools=[WEATHER], tool_choice="required", **THINK),
    "sampled": dict(text=STORY, **SAMPLED),
    "sampled hotly": dict(text=STORY, temperature=2, seed=7, ignore_eos=True),
    "sampled from the best": dict(text=STORY, **SAMPLED, top_p=0.9, logprobs=True, top_logprobs=2),
    "sampled choices": dict(text=STORY, **SAMPLED, n=3),
    "sampled with penalties": dict(text=STORY, **SAMPLED, frequency_penalty=0.4, repetition_penalty=1.1),
    "sampled schema": dict(text="Describe a person.", **SCHEMA, **SAMPLED),
    "long prompt": dict(text="The code of Nora is 4821. " + "The owl hunts at night. " * 150 + "What is the code of Nora?"),
}


@pytest.fixture(scope="module")
def servers(tmp_path_factory):
    import harness
    folder = tmp_path_factory.mktemp("speculation")
    made = {spec: harness.Server(folder, "--spec", spec, *(["--usage-details"] if spec != "dspark" else []))
            for spec in ("off", "5", "dspark")}
    yield made
    for server in made.values():
        assert server.stop() == 0


def answer(server, text, **fields):
    """What the model said: messages, ends and log-probabilities, without ids and times."""
    body = server.body(text, **{"max_tokens": 120, **fields})
    choices = server.json("POST", CHAT, body)["choices"]
    for choice in choices:
        for call in choice["message"].get("tool_calls") or []:
            del call["id"]
        for entry in (choice.get("logprobs") or {}).get("content") or []:
            entry["logprob"] = round(entry["logprob"], 3)
            entry["top_logprobs"] = [(top["token"], round(top["logprob"], 3)) for top in entry["top_logprobs"]]
    return json.dumps(choices, sort_keys=True)


def verified(server):
    return server.metric("vllm:spec_decode_num_draft_tokens_total")


@pytest.mark.parametrize("case", CASES)
def test_the_same_answer_with_and_without_drafts(servers, case):
    before = verified(servers["5"])
    expected = answer(servers["off"], **CASES[case])
    assert answer(servers["5"], **CASES[case]) == expected
    assert verified(servers["5"]) > before
    assert answer(servers["dspark"], **CASES[case]) == expected
    # Once more, now that the beginning is in the prefix cache.
    assert answer(servers["5"], **CASES[case]) == expected


def test_together_they_are_the_same_too(servers):
    expected = {case: answer(servers["off"], **CASES[case]) for case in CASES}
    for spec in ("5", "dspark"):
        before = verified(servers[spec])
        with concurrent.futures.ThreadPoolExecutor(len(CASES)) as pool:
            got = dict(zip(CASES, pool.map(lambda case: answer(servers[spec], **CASES[case]), CASES)))
        assert got == expected
        assert spec == "dspark" or verified(servers[spec]) > before


def test_metrics_tell_what_was_verified(servers):
    server = servers["5"]
    before = {position: server.metric("deepinfer:spec_verified_tokens_per_pos_total", position=str(position)) for position in range(5)}
    answer(server, STORY)
    rounds = server.metric("vllm:spec_decode_num_drafts_total")
    looked_at, accepted = verified(server), server.metric("vllm:spec_decode_num_accepted_tokens_total")
    assert looked_at >= accepted > 0 and rounds > 0
    by_position = [(server.metric("deepinfer:spec_verified_tokens_per_pos_total", position=str(k)),
                    server.metric("vllm:spec_decode_num_accepted_tokens_per_pos_total", position=str(k))) for k in range(5)]
    assert sum(n for n, _ in by_position) == looked_at and sum(n for _, n in by_position) == accepted
    assert all(n >= kept > 0 for n, kept in by_position) and by_position[0][0] > before[0]
    assert all(earlier[1] >= later[0] for earlier, later in zip(by_position, by_position[1:])), "looked at behind a refused draft"
    for lengths in ("deepinfer:spec_verify_len", "deepinfer:spec_accept_len"):
        assert server.metric(lengths + "_count") == rounds == server.metric(lengths + "_bucket", le="+Inf")
    assert server.metric("deepinfer:spec_accept_len_sum") == accepted
    assert server.metric("deepinfer:spec_accept_len_sum") <= server.metric("deepinfer:spec_verify_len_sum") <= 5 * rounds
    assert 0 < server.metric("deepinfer:spec_calibration_error") < 1
    assert 0 < server.metric("deepinfer:spec_confidence_error") < 1
    assert server.metric("deepinfer:spec_draft_seconds_total") > 0
    assert server.metric("deepinfer:spec_active", reason="active") == 1
    # The estimate compares with the cost curve, which only the variable length has.
    assert servers["dspark"].metric("deepinfer:spec_speedup") > 0
    assert "decode steps of n rows take (n:ms) 1:" in servers["dspark"].log()


def test_off_verifies_nothing_and_says_so(servers):
    answer(servers["off"], STORY)
    assert verified(servers["off"]) == 0
    assert servers["off"].metric("deepinfer:spec_active", reason="off") == 0


def test_usage_tells_the_drafts_on_demand(servers):
    def usage(spec, path, body):
        return servers[spec].json("POST", path, {"model": servers[spec].model, "temperature": 0, **body})["usage"]

    chat = {"messages": [{"role": "user", "content": STORY}], "max_tokens": 60, "thinking": {"type": "disabled"}}
    for path, body, details in ((CHAT, chat, "completion_tokens_details"),
                                (CHAT, {**chat, "n": 2}, "completion_tokens_details"),
                                ("/v1/completions", {"prompt": "Once upon a time", "max_tokens": 60}, "completion_tokens_details"),
                                ("/v1/responses", {"input": STORY, "max_output_tokens": 60}, "output_tokens_details"),
                                ("/v1/messages", {"messages": chat["messages"], "max_tokens": 60}, None)):
        before, kept = verified(servers["5"]), servers["5"].metric("vllm:spec_decode_num_accepted_tokens_total")
        told = usage("5", path, body)
        told = told[details] if details else told
        assert told["spec_verified_tokens"] == verified(servers["5"]) - before > 0, path
        assert told["spec_accepted_tokens"] == servers["5"].metric("vllm:spec_decode_num_accepted_tokens_total") - kept > 0, path
        none = usage("off", path, body)
        assert (none[details] if details else none)["spec_verified_tokens"] == 0
        assert "spec_" not in json.dumps(usage("dspark", path, body))  # started without --usage-details
    server = servers["5"]
    _, _, data = server.request("POST", CHAT, server.body(STORY, max_tokens=60, stream=True, stream_options={"include_usage": True}))
    events = [json.loads(line[6:]) for line in data.decode().split("\n") if line.startswith("data: {")]
    assert events[-1]["usage"]["completion_tokens_details"]["spec_accepted_tokens"] > 0


def test_the_cost_of_steps_is_kept_for_the_next_start(start, tmp_path):
    kept = tmp_path / "curves"

    def costs(*options, cache=kept):
        server = start("--spec-curve-cache", str(cache), *options)
        line, = (line for line in server.log().split("\n") if "decode steps of n rows take" in line)
        assert server.answer(max_tokens=4)
        return line

    first = costs()
    assert "(measured in " in first and len(list(kept.iterdir())) == 1
    second = costs()
    assert "(measured by an earlier start" in second
    assert second.split("take ")[1].split(" (m")[0] == first.split("take ")[1].split(" (m")[0]
    assert "(measured in " in costs("--max-num-seqs", "4") and len(list(kept.iterdir())) == 2  # other steps
    assert "(measured in " in costs(cache="none")
