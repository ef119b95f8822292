"""What `--api-policy extended` adds to the official rules, each over the wire: taken there, refused or ignored under
`official`."""
import json

import pytest
from harness import CHAT, scripted_server, write_script
from wire import APIS, MODEL, PATHS, ask, body, send, sse, tool

CALL = ("\n\n<{0} calls>\n<{0} invoke name=\"f\">\n<{0} parameter name=\"x\" string=\"true\">here</{0} parameter>\n</{0} invoke>\n"
        "</{0} calls>")
SCRIPT = [
    {"match": "Kforced", "text": "I think so.</think>" + CALL.format("｜DSML｜")},
    {"match": "Kunwilling", "text": "I think not.</think>There is nothing to be done."},
    {"match": "Kbars", "text": "Look." + CALL.format("|DSML|"), "split": True},
    {"match": "Kcount", "text": "one two three four five six seven eight nine ten"},
    {"match": "Kobject", "text": '{"a": 1}'},
    {"match": "Ksure", "text": "alpha beta", "logprobs": [{"logprob": -1e-6, "top": [[300, -14.0]]}, -1e-6]},
    {"match": "Kbias", "text": "alpha beta", "logprobs": [{"logprob": -0.25, "top": [[300, -2.0]]}, -0.5]},
    {"text": "ok"},
]
USER = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def script_file(tmp_path_factory):
    return write_script(tmp_path_factory.mktemp("extended"), SCRIPT)


@pytest.fixture(scope="module")
def extended(script_file):
    with scripted_server(script_file) as server:
        yield server


@pytest.fixture(scope="module")
def official(script_file):
    with scripted_server(script_file, "--api-policy", "official") as server:
        yield server


def status(server, api, request):
    return server.request("POST", PATHS[api], request)[0]


def forced(api, name=None):
    if api == "messages":
        return {"type": "tool", "name": name} if name else {"type": "any"}
    if name is None:
        return "required"
    return {"type": "function", "function": {"name": name}} if api == "chat" else {"type": "function", "name": name}


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("name", [None, "f"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("key", ["Kforced", "Kunwilling"])
def test_a_forced_call_while_thinking(extended, official, api, name, stream, key):
    tools = [tool(api, "f", x="string"), tool(api, "g")]
    request = body(api, key, thinking=True, stream=stream, tools=tools, tool_choice=forced(api, name), max_tokens=400)
    answer = send(extended, api, request)
    assert answer.reasoning.startswith("I think"), "the model thinks first"
    assert len(answer.calls) >= 1 and answer.text == ""
    assert all(call == "f" or (name is None and call == "g") for call, _, _ in answer.calls)
    if key == "Kforced":
        assert [(call, json.loads(arguments)) for call, arguments, _ in answer.calls] == [("f", {"x": "here"})]
    # Officially refused, but `any`, which counts as auto there.
    assert status(official, api, request) == (200 if api == "messages" and name is None else 400)


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [False, True])
def test_calls_whose_marks_are_spelled_out(extended, official, api, stream):
    answer = ask(extended, api, "Kbars", stream=stream, tools=[tool(api, "f", x="string")])
    assert [(call, json.loads(arguments)) for call, arguments, _ in answer.calls] == [("f", {"x": "here"})]
    assert answer.text == "Look."
    answer = ask(official, api, "Kbars", stream=stream, tools=[tool(api, "f", x="string")])
    assert answer.calls == [] and answer.text == "Look." + CALL.format("|DSML|")


def test_max_completion_tokens(extended, official):
    request = {key: value for key, value in body("chat", "Kcount").items() if key != "max_tokens"} | {"max_completion_tokens": 3}
    answer = send(extended, "chat", request)
    assert answer.finish == "length" and answer.usage["completion_tokens"] == 3
    assert send(official, "chat", request).finish == "stop", "an unknown field there"
    code, error = extended.error(request | {"max_tokens": 4})
    assert code == 400 and error["param"] == "max_completion_tokens"


def test_developers_are_the_system(extended, official):
    prompt = lambda role: extended.json("POST", "/v1/render", {"model": MODEL, "messages": [{"role": role, "content": "Rules."}, *USER]})["prompt"]
    assert prompt("developer") == prompt("system") and "Rules." in prompt("system")
    request = {"model": MODEL, "messages": [{"role": "developer", "content": "Rules."}, *USER]}
    assert status(extended, "chat", request) == 200
    code, error = official.error(request)
    assert code == 400 and "unknown variant `developer`" in error["message"]


@pytest.mark.parametrize("api, fields", [("chat", lambda n: {"messages": USER, "reasoning_effort": n}),
                                         ("responses", lambda n: {"input": "hi", "reasoning": {"effort": n}}),
                                         ("messages", lambda n: {"messages": USER, "system": "s", "output_config": {"effort": n}})])
def test_effort_as_a_number(extended, official, api, fields):
    for number in (1, 40, 100):
        request = {"model": MODEL} | fields(number)
        assert f"Reasoning Effort: {number} " in extended.json("POST", "/v1/render", request)["prompt"]
        assert status(extended, api, request) == 200
        assert status(official, api, request) == 400
    for number in (0, 101, -1, 1.5):
        assert status(extended, api, {"model": MODEL} | fields(number)) == 400


def test_tokens_are_counted_without_a_run(extended):
    before = extended.metric("vllm:prompt_tokens_total"), extended.metric("vllm:request_success_total")
    words = "word " * 500
    assert extended.json("POST", "/v1/messages/count_tokens", {"model": MODEL, "messages": [{"role": "user", "content": words}]})["input_tokens"] > 500
    assert extended.json("POST", "/v1/responses/input_tokens", {"model": MODEL, "input": words})["input_tokens"] > 500
    assert extended.json("POST", "/tokenize", {"messages": [{"role": "user", "content": words}]})["count"] > 500
    assert (extended.metric("vllm:prompt_tokens_total"), extended.metric("vllm:request_success_total")) == before



@pytest.mark.parametrize("api, fields, refused", [
    ("chat", {"n": 2}, True),
    ("chat", {"max_tokens": 4.0}, True),
    ("responses", {"max_output_tokens": 4.0}, True),
    ("messages", {"max_tokens": 4.0}, True),
    ("chat", {"response_format": {"type": "json_object"}}, True),
    ("responses", {"text": {"format": {"type": "json_object"}}}, True),
    ("messages", {"tools": [{"type": "custom", "name": "f", "input_schema": {"type": "object"}}]}, True),
    ("messages", {"messages": [*USER, {"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "y"}]},
                               {"role": "user", "content": "go on"}]}, True),
    ("chat", {"chat_template": "x"}, None),
], ids=lambda value: json.dumps(value)[:40])
def test_what_else_is_taken(extended, official, api, fields, refused):
    request = body(api, "Kobject") | fields
    assert status(extended, api, request) == (400 if refused is None else 200)
    assert status(official, api, request) == (400 if refused else 200)


@pytest.mark.parametrize("api", APIS)
def test_strict_schemas_beyond_the_official_subset(extended, official, api):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"], "additionalProperties": False}
    form = {"type": "json_schema", "name": "s", "strict": True, "schema": schema}
    if api == "chat":
        request = body(api, "Kobject") | {"response_format": {"type": "json_schema", "json_schema": {key: form[key] for key in ("name", "strict", "schema")}}}
    elif api == "responses":
        request = body(api, "Kobject") | {"text": {"format": form}}
    else:
        request = body(api, "Kobject") | {"output_config": {"format": {"type": "json_schema", "schema": schema}}}
    answer = send(extended, api, request)
    assert json.loads(answer.text) == {"a": 1}
    assert status(official, api, request) == (400 if api != "messages" else 200), "Messages ignores the format officially"


def test_sampling_outside_thinking(extended, official):
    request = body("chat", "Kcount", logit_bias={"300": -100}, top_k=5, min_p=0.1, presence_penalty=1.5, frequency_penalty=-1.0)
    assert status(extended, "chat", request) == 200 and status(official, "chat", request) == 200
    first = extended.json("POST", "/tokenize", {"prompt": "alpha beta", "add_special_tokens": False})["tokens"][0]
    banned = body("chat", "Kbias", logit_bias={str(first): -100}, temperature=0)
    assert not send(extended, "chat", banned).text.startswith("alp")
    assert send(official, "chat", banned).text == "alpha beta", "an unknown field there"
    for field, value in (("top_k", -2), ("min_p", 1.5), ("logit_bias", {"x": 1})):
        assert status(extended, "chat", request | {field: value}) == 400 and status(official, "chat", request | {field: value}) == 200


@pytest.mark.parametrize("api", APIS)
def test_sampling_fields_of_every_api(extended, official, api):
    """Responses and Messages take what vLLM's clients send to Chat; officially these are unknown fields."""
    first = extended.json("POST", "/tokenize", {"prompt": "alpha beta", "add_special_tokens": False})["tokens"][0]
    banned = body(api, "Kbias", logit_bias={str(first): -100}, temperature=0, top_k=5, min_p=0.1, seed=7)
    assert not send(extended, api, banned).text.startswith("alp")
    assert send(official, api, banned).text == "alpha beta"
    for field, value in (("top_k", -2), ("min_p", 1.5), ("seed", -1), ("presence_penalty", 3)):
        assert status(extended, api, banned | {field: value}) == 400, field


def test_open_sampling(script_file, extended):
    """Temperature 0 while thinking: fixed at 1 by the service's rules, so a banned token shows only there."""
    first = extended.json("POST", "/tokenize", {"prompt": "alpha beta", "add_special_tokens": False})["tokens"][0]
    request = {"model": MODEL, "messages": [{"role": "user", "content": "Ksure"}], "logit_bias": {str(first): -100}, "max_tokens": 9}
    assert send(extended, "chat", request).reasoning.startswith("alp"), "ignored while thinking"
    with scripted_server(script_file, "--sampling-policy", "open") as server:
        assert not send(server, "chat", request).reasoning.startswith("alp")
        rendered = server.json("POST", "/v1/render", request | {"temperature": 0.25, "top_p": 0.5})["inference_options"]
        assert (rendered["temperature"], rendered["top_p"]) == (0.25, 0.5)
    assert extended.json("POST", "/v1/render", request | {"temperature": 0.25, "top_p": 0.5})["inference_options"]["top_p"] > 0.9


def test_continuing_the_last_message(extended, official):
    started = [*USER, {"role": "assistant", "content": "It is"}]
    request = {"model": MODEL, "messages": started, "thinking": {"type": "disabled"}, "continue_final_message": True}
    prompt = extended.json("POST", "/v1/render", request)["prompt"]
    assert prompt.endswith("It is")
    marked = [*USER, {"role": "assistant", "content": "It is", "prefix": True}]
    plain = {key: value for key, value in request.items() if key != "continue_final_message"}
    assert prompt == extended.json("POST", "/v1/render", plain | {"messages": marked})["prompt"]
    assert prompt == extended.json("POST", "/v1/render", request | {"add_generation_prompt": False})["prompt"]
    assert not official.json("POST", "/v1/render", request)["prompt"].endswith("It is"), "an unknown field there"
    for wrong in (request | {"messages": USER}, request | {"add_generation_prompt": True}, plain | {"add_generation_prompt": False}):
        code, error = extended.error(wrong)
        assert code == 400 and error["param"] in ("continue_final_message", "add_generation_prompt"), error


def test_usage_in_every_chunk(extended):
    request = body("chat", "Kcount", stream=True, stream_options={"include_usage": True, "continuous_usage_stats": True})
    answer = send(extended, "chat", request)
    counts = [event["usage"]["completion_tokens"] for event in answer.events]
    assert counts == sorted(counts) and counts[0] == 0 and counts[-1] == answer.usage["completion_tokens"] > 3
    assert len(set(counts)) > 3 and len({event["usage"]["prompt_tokens"] for event in answer.events}) == 1
    assert extended.error(body("chat", "Kcount", stream_options={"continuous_usage_stats": True}))[0] == 400


def test_messages_thinking_between_tools(extended, official):
    request = body("messages", "hi") | {"thinking": {"type": "between_tools", "budget_tokens": 2000}}
    assert status(extended, "messages", request) == 200 and status(official, "messages", request) == 400
    assert extended.json("POST", "/v1/render", request | {"system": "s"})["prompt"].endswith("<think>")


@pytest.mark.parametrize("api", APIS)
@pytest.mark.parametrize("stream", [False, True])
def test_members_beside_the_official_ones(extended, official, api, stream):
    usage = {one: send(one, api, body(api, "Kforced", thinking=True, stream=stream)).usage for one in (extended, official)}
    if api == "messages":
        thought = usage[extended]["output_tokens_details"]["thinking_tokens"]
        assert 1 < thought < usage[extended]["output_tokens"] and "output_tokens_details" not in usage[official]
    else:
        details = "prompt_tokens_details" if api == "chat" else "input_tokens_details"
        assert usage[extended][details]["cache_write_tokens"] == 0 and "cache_write_tokens" not in usage[official][details]


@pytest.mark.parametrize("api", ["chat", "messages", "completions"])
@pytest.mark.parametrize("stream", [False, True])
def test_stop_strings_can_stay(extended, api, stream):
    def text(stay):
        extra = {"include_stop_str_in_output": stay}
        if api != "completions":
            return send(extended, api, body(api, "Kcount", stream=stream, stop=["ve si"], **extra)).text
        request = {"model": MODEL, "prompt": "Kcount", "max_tokens": 50, "stop": "ve si", "stream": stream, **extra}
        _, _, data = extended.request("POST", "/v1/completions", request)
        chunks = [json.loads(one) for _, one in sse(data) if one != "[DONE]"] if stream else [json.loads(data)]
        return "".join(choice["text"] for chunk in chunks for choice in chunk["choices"])

    assert text(False) == "one two three four fi" and text(True) == "one two three four five si"
