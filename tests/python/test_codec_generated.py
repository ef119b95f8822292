"""Requests and model outputs made at random (codec_cases.py) through the codec and through the reference package: nothing may
differ. A few hundred of each in a run; DEEPINFER_SOAK=1 makes it tens of thousands."""
import os
import random

import pytest

import test_codec
from test_codec import codec, needs_reference, needs_vectors, ours, outcome, theirs  # noqa: F401  (fixtures)

import codec_cases

ROUNDS = 10_000 if os.environ.get("DEEPINFER_SOAK") else 60
SEED = int(os.environ.get("DEEPINFER_SEED", "0"))
APIS = ("chat", "responses", "messages")
# The wording of the reference's schema validator is no goal (recipe.md §8): that a schema is refused is.
SCHEMA = ("Invalid schema for function", "Invalid json schema")


def same_refusal(mine, other):
    if other[1] is None:  # a body that could not be read: the reference has a message only
        mine = mine[0], None, None
    if mine == other or test_codec.pending_in_any_order(mine[0], other[0]):
        return True
    return any(mine[0].startswith(start) and other[0].startswith(start) for start in SCHEMA)


def difference(api, body, options, ours, theirs):
    mine = outcome(codec.Request, api, body, codec.Options(**options))
    other = outcome(test_codec.reference.Request, api, body, test_codec.reference.options_of(options))
    if isinstance(mine, tuple) or isinstance(other, tuple):
        if isinstance(mine, tuple) and isinstance(other, tuple):
            return None if same_refusal(mine, other) else f"{mine} instead of {other}"
        return f"{mine if isinstance(mine, tuple) else 'accepted'} instead of {other if isinstance(other, tuple) else 'accepted'}"
    if test_codec.comparable(mine.describe()) != test_codec.comparable(other.describe()):
        return "description"
    rendered, expected = mine.render(), other.encoding().render_conversation(other.inner.conversation)
    if rendered.text != expected.prompt:
        return "prompt"
    if rendered.image_sources != [test_codec.reference.describe_source(source) for source in expected.image_sources]:
        return "images"
    version = mine.model_version
    if mine.encode(ours[version]) != other.encoding(theirs[version]).encode(other.inner.conversation):
        return "ids"
    for prompt_tokens, limit in ((0, 100), (50, 100), (100, 100), (10, 1 << 20), ((1 << 32) - 1, (1 << 32) - 1)):
        if outcome(mine.resolve_max_tokens, prompt_tokens, limit) != outcome(other.inner.resolve_max_tokens, prompt_tokens, limit):
            return f"resolve_max_tokens({prompt_tokens}, {limit})"
    return None


@needs_vectors
@needs_reference
@pytest.mark.parametrize("api", APIS)
def test_generated_requests_are_read_as_by_the_reference(api, ours, theirs):
    differences = []
    for number in range(SEED, SEED + ROUNDS):
        rng = random.Random(f"{api}{number}")
        body, options = codec_cases.request(rng, api, 0.4), codec_cases.options(rng)
        found = difference(api, body, options, ours, theirs)
        if found is not None:
            differences.append(f"{api}{number}: {found}")
    test_codec.report(differences, ROUNDS)


@needs_vectors
@needs_reference
@pytest.mark.parametrize("api", APIS)
def test_generated_streams_are_those_of_the_reference(api, ours, theirs):
    def version_of(api, body, options):
        request = outcome(codec.Request, api, body, codec.Options(**options))
        return None if isinstance(request, tuple) else request.model_version

    differences, compared = [], 0
    for number in range(SEED, SEED + 2 * ROUNDS):
        case = codec_cases.stream(random.Random(f"stream {api}{number}"), api, ours, version_of)
        if case is None:
            continue
        compared += 1
        mine, other = test_codec.run_ours(case, ours), test_codec.run_theirs(case, theirs)
        if mine != other:
            differences.append(f"{api}{number}: {test_codec.first_difference(mine, other)}")
    test_codec.report(differences, compared)
