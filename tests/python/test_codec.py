"""The Python module of the codec against the reference package deepseek-recipe 0.2.0 and the recorded vectors: every
request, refusal, encoding and stream of the vectors goes through both, and nothing may differ."""
import json
import os
import pathlib
import re
import struct

import pytest

codec = pytest.importorskip("deepinfer.codec", reason="the Python module is not built (python3-dev, pybind11-dev)")

VECTORS = pathlib.Path(os.environ.get("DEEPINFER_VECTORS") or
                       pathlib.Path(__file__).resolve().parents[2] / "../shared/vectors") / "recipe"
needs_vectors = pytest.mark.skipif(not VECTORS.is_dir(), reason=f"reference vectors are absent: {VECTORS}")
try:
    import reference
except ImportError as error:
    reference, missing = None, str(error)
needs_reference = pytest.mark.skipif(reference is None, reason="deepseek-recipe 0.2.0 is not installed")


def lines(*names):
    for name in names:
        with open(VECTORS / f"{name}.jsonl", encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)


@pytest.fixture(scope="module")
def ours():
    renames = json.loads((VECTORS / "tokenizer_v41_patch.json").read_text(encoding="utf-8"))["rename_added_tokens"]
    return {"v4": codec.Tokenizer.load(str(VECTORS)),
            "v41": codec.Tokenizer.load(str(VECTORS), {int(key): value for key, value in renames.items()})}


@pytest.fixture(scope="module")
def theirs():
    return reference.load_tokenizers(VECTORS)


def f32(number):
    return None if number is None else struct.unpack("f", struct.pack("f", number))[0]


def comparable(described):
    """The part of a description that both sides have; numbers of 32 bits as such."""
    out = {key: described[key] for key in ("model_version", "stream", "conversation", "inference_options", "parsing_options")}
    for key in ("temperature", "top_p"):
        out["inference_options"][key] = f32(out["inference_options"][key])
    return json.dumps(out)


def report(differences, compared):
    print(f"{compared} compared, {len(differences)} differences")
    assert compared > 0
    assert not differences, f"{len(differences)} of {compared} differ, first: " + " | ".join(differences[:3])


@needs_vectors
@needs_reference
def test_texts_encode_and_decode_as_the_reference(ours, theirs):
    differences, compared = [], 0
    for case in lines("tokenizer_encode"):
        compared += 1
        ids = ours["v4"].encode(case["text"])
        if ids != theirs["v4"].encode(case["text"]) or ours["v4"].decode(ids) != case["text"]:
            differences.append(case["id"])
    for case in lines("tokenizer_decode"):
        compared += 1
        if ours["v4"].decode(case["ids"]) != case["text"] or ours["v4"].decode(case["ids"], True) != case["text_skip_special"]:
            differences.append(case["id"])
    report(differences, compared)


@needs_vectors
@needs_reference
def test_requests_convert_render_and_encode_as_the_reference(ours, theirs):
    differences, compared = [], 0
    for case in lines("requests", "fuzz_requests"):
        compared += 1
        mine = codec.Request(case["api"], case["body"], codec.Options(**case["options"]))
        other = reference.Request(case["api"], case["body"], reference.options_of(case["options"]))
        if comparable(mine.describe()) != comparable(other.describe()):
            differences.append(f"{case['id']}: description")
        rendered, expected = mine.render(), other.encoding().render_conversation(other.inner.conversation)
        if rendered.text != expected.prompt:
            differences.append(f"{case['id']}: prompt")
        utf8 = rendered.text.encode()
        ranges = [(len(utf8[:begin].decode()), len(utf8[:end].decode())) for begin, end in rendered.special_byte_ranges]
        if ranges != list(expected.special_ranges):
            differences.append(f"{case['id']}: special ranges")
        if rendered.image_sources != [reference.describe_source(source) for source in expected.image_sources]:
            differences.append(f"{case['id']}: images")
        tokenizer = theirs[mine.model_version]
        ids = mine.encode(ours[mine.model_version])
        if ids != other.encoding(tokenizer).encode(other.inner.conversation) or ids != case["result"]["ids"]:
            differences.append(f"{case['id']}: ids")
        for prompt_tokens, limit, _, _ in case["result"].get("resolve_max_tokens", []):
            if outcome(mine.resolve_max_tokens, prompt_tokens, limit) != outcome(other.inner.resolve_max_tokens, prompt_tokens, limit):
                differences.append(f"{case['id']}: resolve_max_tokens({prompt_tokens}, {limit})")
    report(differences, compared)


def outcome(function, *arguments):
    """The value, or what the error says: (message, status, body)."""
    try:
        return function(*arguments)
    except ValueError as error:
        return str(error), getattr(error, "status_code", None), getattr(error, "body", None)
    except Exception as error:  # the reference's own ConversionError is no ValueError
        return str(error), error.status_code, error.body


@needs_vectors
@needs_reference
def test_refusals_are_worded_as_by_the_reference():
    differences, compared = [], 0
    for case in lines("rejected", "fuzz_rejected"):
        compared += 1
        options = codec.Options(**case["options"])
        mine = outcome(codec.Request, case["api"], case["body"], options)
        other = outcome(reference.Request, case["api"], case["body"], reference.options_of(case["options"]))
        if other[1] is None:  # a body that could not be read: the reference has a message only
            mine = mine[0], None, None
        if "hash-set order" in case.get("note", "") or pending_in_any_order(mine[0], other[0]):
            continue
        if mine != other:
            differences.append(f"{case['id']}: {mine} instead of {other}")
    report(differences, compared)


def pending_in_any_order(mine, other):
    """With several unanswered calls the reference names one in the order of a hash set."""
    pattern = r"No tool output found for tool call .*\."
    return mine != other and re.fullmatch(pattern, mine) and re.fullmatch(pattern, other)


def run_ours(case, tokenizers):
    request = codec.Request(case["api"], case["request"], codec.Options(**case["options"]))
    tokenizer = tokenizers[request.model_version] if case.get("with_tokenizer", True) else None
    settings = {key: case[key] for key in ("signature",) if key in case}
    output = codec.Output(request, tokenizer, id=case["response_id"], model=case["model"], **settings)
    events = []
    try:
        for entry in case["inputs"]:
            if output.done:
                break
            kind, value = entry[0], entry[1]
            if kind == "ready":
                events += output.ready(**value)
            elif kind == "tokens":
                events += output.tokens(value, reference.logprobs_of(entry))
            elif kind == "text":
                events += output.text(value, entry[2])
            else:
                events += output.finish(value)
        events += output.close()
    except RuntimeError as error:
        return [(name, reference.mask(data)) for name, data in events], str(error), None
    return [(name, reference.mask(data)) for name, data in events], reference.mask(output.body()), output.end_of_stream


def run_theirs(case, tokenizers):
    request = reference.Request(case["api"], case["request"], reference.options_of(case["options"]))
    tokenizer = tokenizers[request.version] if case.get("with_tokenizer", True) else None
    processor = request.processor(tokenizer, case["response_id"], case["model"], case.get("signature"))
    usage = next((entry[1] for entry in case["inputs"] if entry[0] == "ready"), {})
    kind = reference.RESPONSES[case["api"]]
    response = kind(case["response_id"], case["model"], 0, usage.get("prompt_tokens", 0), usage.get("prompt_cache_hit_tokens", 0))
    events = []

    def take(chunks):
        for chunk in chunks:
            events.append((kind.sse_event_name(chunk), reference.mask(chunk.to_json())))
            response.accumulate(chunk)

    try:
        for entry in case["inputs"]:
            if processor.finished:
                break
            take(processor.push(reference.chunk_of(entry)))
        take(processor.finish())
    except RuntimeError as error:
        return events, str(error), None
    return events, reference.mask(response.to_json()), kind.sse_done_data()


@needs_vectors
@needs_reference
def test_streams_are_those_of_the_reference(ours, theirs):
    differences, compared = [], 0
    for case in lines("streams", "fuzz_streams"):
        compared += 1
        mine, other = run_ours(case, ours), run_theirs(case, theirs)
        if mine != other:
            differences.append(f"{case['id']}: {first_difference(mine, other)}")
    report(differences, compared)


def first_difference(mine, other):
    for a, b in zip(mine[0], other[0]):
        if a != b:
            return f"{a} instead of {b}"
    return f"{len(mine[0])} events, {mine[1:]} instead of {len(other[0])} events, {other[1:]}"


def test_errors_are_python_errors(tmp_path):
    with pytest.raises(ValueError, match="cannot be read"):
        codec.Tokenizer.load(str(tmp_path / "absent.json"))
    with pytest.raises(ValueError, match="no option of the codec"):
        codec.Options(colour="red")
    with pytest.raises(ValueError, match="expected chat, responses or messages"):
        codec.Request("completions", "{}")
    with pytest.raises(codec.ConversionError) as refused:
        codec.Request("chat", {"model": "DeepSeek-V4.1-Flash", "messages": []})
    assert refused.value.stage == "convert" and refused.value.status_code == 400
    assert json.loads(refused.value.body)["error"]["message"] == str(refused.value) == "Empty input messages"
    request = codec.Request("chat", {"model": "DeepSeek-V4.1-Flash", "messages": [{"role": "user", "content": "x"}]})
    output = codec.Output(request)
    with pytest.raises(RuntimeError, match="token chunk received without a tokenizer"):
        output.tokens([1])
    with pytest.raises(ValueError, match="out of range"):
        output.tokens([1 << 40])
    assert codec.image_token_count(978, 479) == 302
