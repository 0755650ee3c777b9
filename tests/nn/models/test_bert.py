"""BERT: keys, values and gradients as in transformers, padding, training."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from tests.helpers.nn.twins import check, learns, same_weights, shapes
from tests.judges import published

RNG = np.random.default_rng(0)
IDS = RNG.integers(1, 50, (3, 9))
MASK = np.ones_like(IDS)
MASK[1, 5:] = 0
SEGMENTS = (np.arange(9) > 4).astype(np.int64)[None].repeat(3, 0)


@pytest.mark.feature("B021")
@pytest.mark.parametrize("name", ["BertModel", "BertForMaskedLM"])
def test_keys_are_those_of_transformers(name: str) -> None:
    net = getattr(nn, name)(**published.BERT)
    assert shapes(net.state_dict()) == published.table()[name]


def test_the_published_size() -> None:
    with nn.init.skipped():
        net = nn.BertModel()
    assert sum(p.numel() for p in net.parameters()) == 109_482_240


@pytest.mark.slow
@pytest.mark.torch
def test_masked_tokens_are_as_in_transformers() -> None:
    pytest.importorskip("transformers")
    theirs, ours = (
        published.transformers_network("BertForMaskedLM").eval(),
        nn.BertForMaskedLM(**published.BERT).eval(),
    )
    same_weights(theirs, ours)
    check(lambda i, m, s: theirs(i, m, s).logits, ours, (IDS, MASK, SEGMENTS), of=theirs)


@pytest.mark.slow
@pytest.mark.torch
def test_states_and_pooler_are_as_in_transformers() -> None:
    pytest.importorskip("transformers")
    theirs, ours = published.transformers_network("BertModel").eval(), nn.BertModel(**published.BERT).eval()
    same_weights(theirs, ours)

    def run(ids: Any, mask: Any, segments: Any) -> Any:
        found = theirs(ids, mask, segments)
        return found.last_hidden_state, found.pooler_output

    check(run, ours, (IDS, MASK, SEGMENTS), of=theirs, outputs=tuple)


def test_padding_changes_nothing() -> None:
    net = nn.BertModel(**published.BERT, add_pooling_layer=False).eval()
    whole, cut = net(IDS, MASK), net(IDS[:, :5])
    assert whole.pooler_output is None
    np.testing.assert_allclose(
        whole.last_hidden_state.numpy()[1, :5], cut.last_hidden_state.numpy()[1], rtol=1e-4, atol=1e-5
    )


def test_it_learns_masked_tokens() -> None:
    nn.manual_seed(0)
    net = nn.BertForMaskedLM(**published.BERT)
    labels = np.where(RNG.random(IDS.shape) < 0.3, IDS, -100)
    learns(net, nn.token_loss, (np.where(labels >= 0, 3, IDS), MASK), labels, 20)


def test_errors_say_what_does_not_fit() -> None:
    with pytest.raises(lm.ShapeError, match="at most max_position_embeddings=24"):
        nn.BertModel(**published.BERT)(np.zeros((1, 25), np.int64))
    with pytest.raises(ValueError, match="num_attention_heads=3 must divide hidden_size=16"):
        nn.BertModel(50, 16, num_attention_heads=3)
