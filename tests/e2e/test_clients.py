"""The compatibility matrix of the public client libraries: each reads our answers into its own types, streamed and not,
with warnings turned into errors. Runs where the libraries of requirements-clients.txt are installed (make clients);
openai and anthropic are always there.

Scripted answers stand for the model, so what must come back is known word for word."""
import json

import anthropic
import harness
import openai
import pytest
from test_field_reports import calls, call
from wire import MODEL

strict = pytest.mark.filterwarnings("error")  # a warning is a failure; the frameworks' own warnings are theirs

PERSON = {"type": "object", "properties": {"name": {"type": "string"}, "age": {"type": "integer"}}, "required": ["name", "age"],
          "additionalProperties": False}
WEATHER = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"], "additionalProperties": False}
TURNS = 5


def turn_line(turn):
    """The answer after `turn` tool results are in the prompt: a further call, or the end."""
    if turn == TURNS:
        return {"match": f"result-of-step-{turn - 1}", "text": "all steps are done"}
    line = {"text": f"step {turn}" + calls(call("get_weather", city=f"city-{turn}"))}
    return line | {"match": f"result-of-step-{turn - 1}" if turn else "Kloop"}


SCRIPT = [turn_line(turn) for turn in range(TURNS, -1, -1)] + [
    {"match": "Kperson", "text": "{\"name\": \"Ada\", \"age\": 36}"},
    {"match": "Kthinkweather", "text": "plan</think>" + calls(call("get_weather", city="Oslo"))},
    {"match": "Kthink", "text": "first I think</think>then I answer"},
    {"match": "Kpair", "text": calls(call("get_weather", city="Oslo"), call("get_weather", city="Rome"))},
    {"match": "Kweather", "text": calls(call("get_weather", city="Oslo"))},
    {"text": "Hello there."},
]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    script_file = harness.write_script(tmp_path_factory.mktemp("clients"), SCRIPT)
    with harness.scripted_server(script_file, "--responses-store", 16, "--api-key", "secret:t") as server:
        yield server


@pytest.fixture
def base(server):
    return f"http://127.0.0.1:{server.port}"


@pytest.fixture
def client(base):
    with openai.OpenAI(base_url=base + "/v1", api_key="secret", max_retries=0, timeout=60) as client:
        yield client


OFF = {"thinking": {"type": "disabled"}}


def user(text):
    return [{"role": "user", "content": text}]


FUNCTION = {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}


# ---- openai ----

@strict
def test_openai_chat(client):
    completion = client.chat.completions.create(model=MODEL, messages=user("hi"), extra_body=OFF)
    assert completion.choices[0].message.content == "Hello there." and completion.choices[0].finish_reason == "stop"
    assert completion.usage.prompt_tokens_details.cached_tokens >= 0
    with client.chat.completions.stream(model=MODEL, messages=user("hi"), extra_body=OFF) as stream:
        for _ in stream:
            pass
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "Hello there." and final.choices[0].finish_reason == "stop"
    raw = client.chat.completions.with_raw_response.create(model=MODEL, messages=user("hi"), extra_body=OFF)
    assert raw.headers["x-request-id"] and raw.parse().choices[0].message.content == "Hello there."


@strict
def test_openai_n_logprobs_and_reasoning(client):
    completion = client.chat.completions.create(model=MODEL, messages=user("hi"), n=2, logprobs=True, top_logprobs=2, extra_body=OFF)
    assert [choice.message.content for choice in completion.choices] == ["Hello there."] * 2
    for choice in completion.choices:
        assert "".join(entry.token for entry in choice.logprobs.content) == "Hello there."
        assert all(len(entry.top_logprobs) == 2 for entry in choice.logprobs.content)
    completion = client.chat.completions.create(model=MODEL, messages=user("Kthink"))
    assert completion.choices[0].message.reasoning_content == "first I think"
    assert completion.choices[0].message.content == "then I answer"


@strict
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_openai_tools(client, stream):
    if stream:
        with client.chat.completions.stream(model=MODEL, messages=user("Kpair"), tools=[FUNCTION], extra_body=OFF) as events:
            completion = events.get_final_completion()
    else:
        completion = client.chat.completions.create(model=MODEL, messages=user("Kpair"), tools=[FUNCTION], extra_body=OFF)
    assert completion.choices[0].finish_reason == "tool_calls"
    found = completion.choices[0].message.tool_calls
    assert [json.loads(one.function.arguments) for one in found] == [{"city": "Oslo"}, {"city": "Rome"}]
    assert all(one.type == "function" and one.function.name == "get_weather" and one.id for one in found)


@strict
def test_openai_parsed_types(client):
    import pydantic

    class Person(pydantic.BaseModel):
        name: str
        age: int

    completion = client.chat.completions.parse(model=MODEL, messages=user("Kperson"), response_format=Person, extra_body=OFF)
    assert completion.choices[0].message.parsed == Person(name="Ada", age=36)
    response = client.responses.parse(model=MODEL, input="Kperson", text_format=Person, reasoning={"effort": "none"})
    assert response.output_parsed == Person(name="Ada", age=36)


@strict
def test_openai_completions_and_models(client):
    completion = client.completions.create(model=MODEL, prompt="hi", max_tokens=8)
    assert completion.choices[0].text == "Hello there."
    text = "".join(chunk.choices[0].text for chunk in client.completions.create(model=MODEL, prompt="hi", max_tokens=8, stream=True))
    assert text == "Hello there."
    assert MODEL in [model.id for model in client.models.list()] and client.models.retrieve(MODEL).id == MODEL


@strict
def test_openai_responses(client):
    response = client.responses.create(model=MODEL, input="Kthink")
    assert [item.type for item in response.output] == ["reasoning", "message"] and response.output_text == "then I answer"
    assert response.status == "completed" and response.usage.output_tokens_details.reasoning_tokens > 0
    with client.responses.stream(model=MODEL, input="hi", reasoning={"effort": "none"}) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert kinds[0] == "response.created" and kinds[-1] == "response.completed" and final.output_text == "Hello there."
    tool = {"type": "function", "name": "get_weather", "parameters": WEATHER, "strict": False}
    response = client.responses.create(model=MODEL, input="Kweather", tools=[tool], reasoning={"effort": "none"})
    assert response.output[-1].type == "function_call" and json.loads(response.output[-1].arguments) == {"city": "Oslo"}
    again = client.responses.create(model=MODEL, previous_response_id=response.id, reasoning={"effort": "none"}, tools=[tool],
                                    input=[{"type": "function_call_output", "call_id": response.output[-1].call_id, "output": "result-of-step-4"}])
    assert again.output_text == "all steps are done"
    assert client.responses.retrieve(response.id).id == response.id


@strict
def test_openai_errors(base, client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=[])
    assert refused.value.param == "messages" and refused.value.type == "invalid_request_error"
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="gpt-4", messages=user("hi"))
    with openai.OpenAI(base_url=base + "/v1", api_key="wrong", max_retries=0) as stranger, pytest.raises(openai.AuthenticationError):
        stranger.models.list()


@strict
def test_openai_tool_loop(client):
    messages = user("Kloop")
    for turn in range(TURNS):
        message = client.chat.completions.create(model=MODEL, messages=messages, tools=[FUNCTION], extra_body=OFF).choices[0].message
        asked, = message.tool_calls
        assert json.loads(asked.function.arguments) == {"city": f"city-{turn}"}
        messages += [message.model_dump(exclude_none=True), {"role": "tool", "tool_call_id": asked.id, "content": f"result-of-step-{turn}"}]
    completion = client.chat.completions.create(model=MODEL, messages=messages, tools=[FUNCTION], extra_body=OFF)
    assert completion.choices[0].message.content == "all steps are done"


# ---- anthropic ----

@pytest.fixture
def anthropic_client(base):
    with anthropic.Anthropic(base_url=base, api_key="secret", max_retries=0, timeout=60) as client:
        yield client


NO_THINKING = {"type": "disabled"}


@strict
def test_anthropic_messages(anthropic_client):
    message = anthropic_client.messages.create(model="claude-flash", max_tokens=100, messages=user("hi"), thinking=NO_THINKING)
    assert message.content[0].text == "Hello there." and message.stop_reason == "end_turn" and message.usage.input_tokens > 0
    with anthropic_client.messages.stream(model=MODEL, max_tokens=2000, messages=user("Kthink"), thinking={"type": "enabled", "budget_tokens": 1024}) as stream:
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert final.content[0].thinking == "first I think" and final.content[0].signature and final.content[1].text == "then I answer"
    counted = anthropic_client.messages.count_tokens(model=MODEL, messages=user("hi"), thinking=NO_THINKING)
    assert counted.input_tokens == message.usage.input_tokens + message.usage.cache_read_input_tokens
    assert MODEL in [model.id for model in anthropic_client.models.list()]


@strict
@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_anthropic_tool_loop(anthropic_client, stream):
    tool = {"name": "get_weather", "description": "d", "input_schema": WEATHER}
    messages = user("Kloop")
    for turn in range(TURNS):
        options = {"model": MODEL, "max_tokens": 500, "messages": messages, "tools": [tool], "thinking": NO_THINKING}
        if stream:
            with anthropic_client.messages.stream(**options) as events:
                message = events.get_final_message()
        else:
            message = anthropic_client.messages.create(**options)
        assert message.stop_reason == "tool_use"
        asked = message.content[-1]
        assert asked.type == "tool_use" and asked.input == {"city": f"city-{turn}"}
        messages = messages + [{"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in message.content]},
                               {"role": "user", "content": [{"type": "tool_result", "tool_use_id": asked.id, "content": f"result-of-step-{turn}"}]}]
    message = anthropic_client.messages.create(model=MODEL, max_tokens=500, messages=messages, tools=[tool], thinking=NO_THINKING)
    assert message.content[0].text == "all steps are done"


@strict
def test_anthropic_errors(base, anthropic_client):
    with pytest.raises(anthropic.BadRequestError):
        anthropic_client.messages.create(model=MODEL, max_tokens=10, messages=[])
    with pytest.raises(anthropic.NotFoundError):
        anthropic_client.messages.create(model="gpt-4", max_tokens=10, messages=user("hi"))
    with anthropic.Anthropic(base_url=base, api_key="wrong", max_retries=0) as stranger, pytest.raises(anthropic.AuthenticationError):
        stranger.messages.create(model=MODEL, max_tokens=10, messages=user("hi"))


# ---- frameworks ----

@pytest.mark.parametrize("provider", ["openai", "deepseek", "hosted_vllm", "anthropic"])
def test_litellm(base, provider):
    litellm = pytest.importorskip("litellm")
    root = base if provider == "anthropic" else base + "/v1"
    answer = litellm.completion(model=f"{provider}/{MODEL}", messages=user("hi"), api_base=root, api_key="secret", max_tokens=100)
    assert answer.choices[0].message.content == "Hello there." or answer.choices[0].message.reasoning_content == "Hello there."
    assert answer.usage.total_tokens > 0
    tools = litellm.completion(model=f"{provider}/{MODEL}", messages=user("Kthinkweather"), api_base=root, api_key="secret", tools=[FUNCTION], max_tokens=500)
    assert tools.choices[0].finish_reason == "tool_calls" and tools.choices[0].message.reasoning_content == "plan"
    assert json.loads(tools.choices[0].message.tool_calls[0].function.arguments) == {"city": "Oslo"}


def test_openai_agents(base):
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)
    seen = []

    @agents.function_tool
    def get_weather(city: str) -> str:
        """Weather of a city."""
        seen.append(city)
        return f"result-of-step-{len(seen) - 1}"

    client = openai.AsyncOpenAI(base_url=base + "/v1", api_key="secret", max_retries=0)
    for make in (agents.OpenAIChatCompletionsModel, agents.OpenAIResponsesModel):
        seen.clear()
        agent = agents.Agent(name="a", tools=[get_weather], model=make(model=MODEL, openai_client=client),
                             model_settings=agents.ModelSettings(extra_body={"thinking": {"type": "disabled"}} if make is agents.OpenAIChatCompletionsModel
                                                                 else {"reasoning": {"effort": "none"}}))
        result = agents.Runner.run_sync(agent, "Kloop", max_turns=10)
        assert result.final_output == "all steps are done" and seen == [f"city-{turn}" for turn in range(TURNS)]


def test_pydantic_ai(base):
    pydantic_ai = pytest.importorskip("pydantic_ai")
    from pydantic_ai.models.openai import OpenAIChatModel
    from pydantic_ai.providers.openai import OpenAIProvider
    seen = []
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=base + "/v1", api_key="secret"))
    agent = pydantic_ai.Agent(model, model_settings={"extra_body": {"thinking": {"type": "disabled"}}})

    @agent.tool_plain
    def get_weather(city: str) -> str:
        """Weather of a city."""
        seen.append(city)
        return f"result-of-step-{len(seen) - 1}"

    assert agent.run_sync("Kloop").output == "all steps are done"
    assert seen == [f"city-{turn}" for turn in range(TURNS)]


def test_langchain(base):
    chat_models = pytest.importorskip("langchain_openai")
    model = chat_models.ChatOpenAI(model=MODEL, base_url=base + "/v1", api_key="secret", max_retries=0, extra_body={"thinking": {"type": "disabled"}})
    assert model.invoke("hi").content == "Hello there."
    assert "".join(chunk.content for chunk in model.stream("hi")) == "Hello there."
    bound = model.bind_tools([{"name": "get_weather", "description": "d", "parameters": WEATHER}])
    assert bound.invoke("Kweather").tool_calls[0]["args"] == {"city": "Oslo"}
    assert model.with_structured_output(PERSON | {"title": "Person"}, method="json_schema").invoke("Kperson") == {"name": "Ada", "age": 36}


# ---- wire shapes of agents ----

def test_the_shape_of_claude_code(server):
    """Messages with a system list, cache marks, betas, metadata and streaming; tool ids go round."""
    headers = {"x-api-key": "secret", "anthropic-version": "2023-06-01", "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14"}
    tools = [{"name": "Read", "description": "d", "input_schema": {"type": "object", "properties": {"file_path": {"type": "string"}}}},
             {"name": "get_weather", "description": "d", "input_schema": WEATHER}]
    messages = [{"role": "user", "content": [{"type": "text", "text": "<system-reminder>x</system-reminder>"},
                                             {"type": "text", "text": "Kloop", "cache_control": {"type": "ephemeral"}}]}]
    from wire import read_messages_stream, sse
    reuse = []
    for turn in range(TURNS):
        request = {"model": "claude-sonnet-4-5-20250929", "max_tokens": 32000, "stream": True, "temperature": 1, "thinking": {"type": "disabled"},
                   "system": [{"type": "text", "text": "You are a coding agent. " * 200, "cache_control": {"type": "ephemeral"}}],
                   "metadata": {"user_id": "user_1_account__session_2"}, "messages": messages, "tools": tools,
                   "context_management": {"edits": []}}
        status, _, data = server.request("POST", "/v1/messages?beta=true", request, headers)
        assert status == 200, data[:500]
        answer = read_messages_stream(sse(data))
        (name, arguments, call_id), = answer.calls
        assert json.loads(arguments) == {"city": f"city-{turn}"} and answer.finish == "tool_use"
        usage = answer.usage
        reuse.append(usage["cache_read_input_tokens"] / (usage["cache_read_input_tokens"] + usage["input_tokens"]))
        messages = messages + [
            {"role": "assistant", "content": [{"type": "text", "text": answer.text}, {"type": "tool_use", "id": call_id, "name": name, "input": json.loads(arguments)}]},
            {"role": "user", "content": [{"tool_use_id": call_id, "type": "tool_result", "content": [{"type": "text", "text": f"result-of-step-{turn}"}], "is_error": False}]}]
    assert all(part > 0.6 for part in reuse[1:]), reuse


def test_the_shape_of_codex(server):
    """Responses with instructions, developer messages, custom and built-in tools, include, prompt_cache_key; no store."""
    from wire import read_responses_stream, sse
    items = [{"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "rules"}]},
             {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Kloop"}]}]
    tools = [{"type": "function", "name": "get_weather", "description": "d", "strict": False, "parameters": WEATHER},
             {"type": "custom", "name": "apply_patch", "description": "d", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.*/"}},
             {"type": "web_search"}]
    for turn in range(TURNS):
        request = {"model": MODEL, "instructions": "You are a coding agent.", "input": items, "tools": tools, "tool_choice": "auto",
                   "parallel_tool_calls": False, "reasoning": {"effort": "none", "summary": "auto"}, "store": False, "stream": True,
                   "include": ["reasoning.encrypted_content"], "prompt_cache_key": "session-1"}
        status, _, data = server.request("POST", "/v1/responses", request, {"Authorization": "Bearer secret", "OpenAI-Beta": "responses=v1"})
        assert status == 200, data[:500]
        answer = read_responses_stream(sse(data))
        item = answer.body["output"][-1]
        assert item["type"] == "function_call" and json.loads(item["arguments"]) == {"city": f"city-{turn}"}
        items = items + [{key: item[key] for key in ("type", "name", "arguments", "call_id")},
                         {"type": "function_call_output", "call_id": item["call_id"], "output": f"result-of-step-{turn}"}]
    request = request | {"input": items}
    status, _, data = server.request("POST", "/v1/responses", request, {"Authorization": "Bearer secret"})
    assert status == 200 and read_responses_stream(sse(data)).text == "all steps are done"


def test_the_shape_of_opencode(server):
    """Chat with include_usage, reasoning_effort, parallel calls off, null fields, reasoning handed back."""
    from wire import read_chat_stream, sse
    messages = [{"role": "system", "content": "You are a coding agent."}, {"role": "user", "content": [{"type": "text", "text": "Kloop"}]}]
    for turn in range(TURNS):
        request = {"model": MODEL, "messages": messages, "tools": [FUNCTION], "tool_choice": "auto", "stream": True, "temperature": 0,
                   "stream_options": {"include_usage": True}, "max_tokens": 32000, "top_p": None, "stop": None, "reasoning_effort": "none"}
        status, _, data = server.request("POST", "/v1/chat/completions", request, {"Authorization": "Bearer secret"})
        assert status == 200, data[:500]
        answer = read_chat_stream(sse(data))
        (name, arguments, call_id), = answer.calls
        assert json.loads(arguments) == {"city": f"city-{turn}"} and answer.finish == "tool_calls"
        messages = messages + [{"role": "assistant", "content": answer.text or None, "reasoning_content": "", "tool_calls": [
            {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}]},
            {"role": "tool", "tool_call_id": call_id, "content": f"result-of-step-{turn}"}]


def test_the_shape_of_aider(server):
    """Plain chat without tools: system, examples as turns, a long user text, streaming."""
    from wire import read_chat_stream, sse
    messages = [{"role": "system", "content": "Act as an expert software developer."}]
    for text in ("Change get_factorial()", "Ok."):
        messages.append({"role": "user" if text[0] == "C" else "assistant", "content": text})
    for _ in range(3):
        messages.append({"role": "user", "content": "edit main.py\n```\n" + "x = 1\n" * 200 + "```"})
        request = {"model": "deepseek-chat", "messages": messages, "stream": True, "temperature": 0}
        status, _, data = server.request("POST", "/chat/completions", request, {"Authorization": "Bearer secret"})
        assert status == 200, data[:500]
        answer = read_chat_stream(sse(data))
        assert answer.text == "Hello there." and answer.reasoning == "", "deepseek-chat does not think"
        messages.append({"role": "assistant", "content": answer.text})
    assert answer.usage["prompt_cache_hit_tokens"] > 0.5 * answer.usage["prompt_tokens"]
