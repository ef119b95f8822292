"""Chat through the openai client, as its users write it."""
import concurrent.futures
import time

import harness
import openai
import pytest
from harness import wait_until

QUESTIONS = ["What is 9 times 7?", "What is the capital of Austria?", "Who are you?", "What is 12 plus 30?",
             "Name a color.", "What is a newspaper?", "What is the capital of France?", "Say hello."]
NO_THINKING = {"thinking": {"type": "disabled"}}


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


def ask(client, server, text, **options):
    return client.chat.completions.create(model=server.model, messages=[{"role": "user", "content": text}], temperature=0,
                                          extra_body=NO_THINKING, **{"max_tokens": 32, **options})


def test_an_answer_in_one_piece(client, server):
    completion = ask(client, server, "What is 9 times 7?")
    choice = completion.choices[0]
    assert completion.object == "chat.completion" and completion.id.startswith("chatcmpl-")
    assert completion.model == server.model and abs(completion.created - time.time()) < 120
    assert choice.message.role == "assistant" and choice.message.content.strip()
    assert choice.finish_reason in ("stop", "length") and choice.index == 0
    usage = completion.usage
    assert usage.prompt_tokens > 0 and 0 < usage.completion_tokens <= 32
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens


def test_a_streamed_answer_is_the_same_answer(client, server):
    whole = ask(client, server, "What is the capital of Austria?")
    chunks = list(ask(client, server, "What is the capital of Austria?", stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1 and len({chunk.created for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    reasons = [chunk.choices[0].finish_reason for chunk in chunks]
    assert reasons[-1] == whole.choices[0].finish_reason and not any(reasons[:-1])
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_a_stream_arrives_piece_by_piece(client, server):
    stream = client.chat.completions.create(model=server.model, messages=[{"role": "user", "content": "Tell me a story."}],
                                            max_tokens=400, stream=True, temperature=0, extra_body={**NO_THINKING, "ignore_eos": True})
    begun = time.monotonic()
    arrivals = [time.monotonic() - begun for chunk in stream if chunk.choices and chunk.choices[0].delta.content]
    assert len(arrivals) > 20
    assert arrivals[0] < arrivals[-1] / 2, "the first piece came late: the answer was held back"


def test_thinking_is_separate_from_the_answer(client, server):
    options = {"model": server.model, "messages": [{"role": "user", "content": "What is 9 times 7?"}], "max_tokens": 200}
    whole = client.chat.completions.create(**options, extra_body={"thinking": {"type": "enabled"}, "seed": 5})
    message = whole.choices[0].message
    assert "<think>" not in (message.content or "") and "</think>" not in (message.content or "")
    assert message.reasoning_content
    assert whole.usage.completion_tokens_details.reasoning_tokens > 0
    chunks = client.chat.completions.create(**options, stream=True, extra_body={"thinking": {"type": "enabled"}, "seed": 5})
    reasoning, content = "", ""
    for chunk in chunks:
        for choice in chunk.choices:
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            content += choice.delta.content or ""
            assert not content or not getattr(choice.delta, "reasoning_content", None), "reasoning after the answer began"
    assert (reasoning, content) == (message.reasoning_content, message.content or "")


def test_a_seed_repeats_a_sampled_answer(client, server):
    def create(seed):
        messages = [{"role": "user", "content": "Tell me a story."}]
        # Past the end of the answer even a model that is sure of itself has a choice.
        completion = client.chat.completions.create(model=server.model, messages=messages, temperature=2, seed=seed,
                                                    max_tokens=100, extra_body={**NO_THINKING, "ignore_eos": True})
        return completion.choices[0].message.content

    first = create(7)
    assert create(7) == first
    assert any(create(seed) != first for seed in (8, 9, 10, 11))


def test_stop_strings_end_the_answer_and_are_not_in_it(client, server):
    whole = ask(client, server, "What is the capital of Austria?").choices[0].message.content
    stop = whole[len(whole) // 2:][:3]
    cut = ask(client, server, "What is the capital of Austria?", stop=[stop])
    assert cut.choices[0].message.content == whole[:whole.index(stop)]
    assert cut.choices[0].finish_reason == "stop"
    streamed = ask(client, server, "What is the capital of Austria?", stop=[stop], stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in streamed) == cut.choices[0].message.content


def test_max_tokens_cuts_with_the_reason_length(client, server):
    cut = ask(client, server, "Tell me a long story about a ship.", max_tokens=5)
    assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 5


def test_conversations_with_system_and_history(client, server):
    messages = [{"role": "system", "content": "You are a helpful assistant."}, {"role": "user", "content": "Hello!"},
                {"role": "assistant", "content": "Hello! How can I help?"},
                {"role": "user", "content": [{"type": "text", "text": "What is 2 plus 2?"}]}]
    completion = client.chat.completions.create(model=server.model, messages=messages, max_tokens=16, temperature=0,
                                                extra_body=NO_THINKING)
    assert completion.choices[0].message.content


def test_include_usage_adds_one_chunk_without_choices(client, server):
    chunks = list(ask(client, server, "Say hello.", stream=True, stream_options={"include_usage": True}))
    assert chunks[-1].choices == [] and chunks[-1].usage.total_tokens > 0
    assert chunks[-2].choices[0].finish_reason and chunks[-2].usage.total_tokens == chunks[-1].usage.total_tokens
    assert all(chunk.usage is None for chunk in chunks[:-2])


def test_sixteen_at_once_answer_as_if_alone(client, server):
    questions = QUESTIONS * 2
    alone = {question: ask(client, server, question).choices[0].message.content for question in QUESTIONS}

    def streamed(question):
        return "".join(chunk.choices[0].delta.content or "" for chunk in ask(client, server, question, stream=True))

    def whole(question):
        return ask(client, server, question).choices[0].message.content

    with concurrent.futures.ThreadPoolExecutor(16) as pool:
        futures = [pool.submit(streamed if i % 2 else whole, question) for i, question in enumerate(questions)]
        answers = [future.result(timeout=300) for future in futures]
    assert answers == [alone[question] for question in questions]


def test_requests_run_together_and_not_one_after_the_other(server):
    """More than one runs at the same moment, as the server's own gauge says."""
    connections = []
    try:
        for _ in range(4):
            connection = server.connect()
            connections.append(connection)
            connection.send(harness.post(harness.CHAT, server.endless(stream=True)))
        wait_until(lambda: server.metric("vllm:num_requests_running") >= 4, "four requests running")
    finally:
        for connection in connections:
            connection.socket.close()
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0, "aborted requests gone")


@pytest.mark.parametrize("change, status, error_class, code, param", [
    ({"model": "no-such-model"}, 404, openai.NotFoundError, "model_not_found", "model"),
    ({"temperature": 3}, 400, openai.BadRequestError, "invalid_value", "temperature"),
    ({"messages": []}, 400, openai.BadRequestError, None, "messages"),
    ({"max_tokens": 10**9}, 400, openai.BadRequestError, None, None),
])
def test_errors_have_the_clients_own_types(client, server, change, status, error_class, code, param):
    request = {"model": server.model, "messages": [{"role": "user", "content": "x"}], **change}
    with pytest.raises(error_class) as raised:
        client.chat.completions.create(**request)
    assert raised.value.status_code == status
    assert code is None or raised.value.code == code
    assert param is None or param in raised.value.param


def test_a_prompt_beyond_the_context_is_refused(client, server):
    limit = client.models.list().data[0].max_model_len
    with pytest.raises(openai.BadRequestError) as raised:
        ask(client, server, "word " * (limit + 100))
    assert raised.value.code == "context_length_exceeded" and str(limit) in raised.value.message


def test_closing_a_stream_frees_its_slot(start):
    """One slot only: if the abandoned request kept it, the next one would wait for 20,000 tokens."""
    server = start("--max-num-seqs", "1")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as client:
        for _ in range(3):
            stream = client.chat.completions.create(model=server.model, messages=[{"role": "user", "content": "Tell me a story."}],
                                                    max_tokens=20000, stream=True, extra_body={**NO_THINKING, "ignore_eos": True})
            next(iter(stream))
            stream.close()
            begun = time.monotonic()
            assert server.answer(max_tokens=4)
            assert time.monotonic() - begun < 10
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0, "no request left running")
