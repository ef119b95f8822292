"""The loss of an answer is measured through the running server, and switching a part of the model off shows."""
import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parents[2]))

from tools.train.eval.loss import item_loss  # noqa: E402

OWL = {"id": "chat-0", "family": "chat", "thinking": False, "match": "exact",
       "messages": [{"role": "user", "content": "What is an owl?"}],
       "answer": {"role": "assistant", "content": "An owl is a bird that hunts at night."}}


@pytest.mark.release_only
def test_engram_off_worsens_the_loss(server, start):
    base = f"http://127.0.0.1:{server.port}/v1"
    whole = item_loss(base, OWL, "deepinfer-tiny")
    assert whole.tokens == 11 and whole.items == 1
    without = start("--ablate", "engram")
    worse = item_loss(f"http://127.0.0.1:{without.port}/v1", OWL, "deepinfer-tiny")
    assert worse.tokens == whole.tokens
    assert worse.nll > whole.nll + 1
