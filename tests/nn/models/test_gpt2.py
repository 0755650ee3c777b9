"""GPT-2: keys, values and gradients as in transformers, padding, the cache, training."""

from functools import partial

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from tests.helpers.nn.twins import check, learns, same_weights, shapes
from tests.judges import published

RNG = np.random.default_rng(0)
IDS = RNG.integers(0, 50, (3, 9))


def small(**options: float) -> nn.GPT2LMHeadModel:
    return nn.GPT2LMHeadModel(**published.GPT2, **options)


@pytest.mark.feature("B021")
@pytest.mark.parametrize("name", ["GPT2Model", "GPT2LMHeadModel"])
def test_keys_are_those_of_transformers(name: str) -> None:
    net = getattr(nn, name)(**published.GPT2)
    assert shapes(net.state_dict()) == published.table()[name]


def test_the_published_size() -> None:
    with nn.init.skipped():
        net = nn.GPT2LMHeadModel()
    assert sum(p.numel() for p in net.parameters()) == 124_439_808


@pytest.mark.slow
@pytest.mark.torch
@pytest.mark.parametrize("padded", [False, True])
def test_values_and_gradients_are_those_of_transformers(padded: bool) -> None:
    pytest.importorskip("transformers")
    theirs, ours = published.transformers_network("GPT2LMHeadModel").eval(), small().eval()
    same_weights(theirs, ours)
    mask = np.ones_like(IDS)
    if padded:
        mask[1, 6:], mask[2, :4] = 0, 0
    rows = mask[..., None].astype(np.float32)
    if padded:
        check(lambda i, m: theirs(i, attention_mask=m).logits, ours, (IDS, mask), weights=rows, of=theirs)
    else:
        check(lambda i: theirs(i).logits, ours, (IDS,), of=theirs)


def test_padding_changes_nothing_and_a_row_of_padding_alone_is_finite() -> None:
    net = small().eval()
    mask = np.ones_like(IDS)
    mask[0, 6:], mask[1, :] = 0, 0
    whole, cut = net(IDS, mask).numpy(), net(IDS[:, :6]).numpy()
    np.testing.assert_allclose(whole[0, :6], cut[0], rtol=1e-4, atol=1e-6)
    assert np.isfinite(whole).all()
    behind = IDS.copy()
    behind[:, 6:] = 1
    np.testing.assert_allclose(net(behind).numpy()[:, :6], cut, rtol=1e-4, atol=1e-6)


def test_the_cache_gives_what_the_whole_text_gives() -> None:
    net = small().eval()
    expected = net(IDS).numpy()
    step, cache, found = lm.jit(net.continued), net.empty_cache(3, 12), []
    for first, last in ((0, 4), (4, 5), (5, 6), (6, 9)):
        logits, cache = step(IDS[:, first:last], cache, np.array(first))
        found.append(logits.numpy())
    np.testing.assert_allclose(np.concatenate(found, 1), expected, rtol=1e-4, atol=1e-6)


def test_heads_may_have_weights_of_their_own() -> None:
    tied, free = small(), small(tie_word_embeddings=False)
    assert len(list(free.parameters())) == len(list(tied.parameters())) + 1
    assert tied.lm_head.weight is tied.transformer.wte.weight


def test_it_learns_with_dropout() -> None:
    nn.manual_seed(0)
    net = small()
    learns(net, nn.next_token_loss, IDS, IDS, 20)
    state = net.eval()(IDS).numpy()
    np.testing.assert_array_equal(state, net(IDS).numpy())


def test_errors_say_what_does_not_fit() -> None:
    net = small()
    with pytest.raises(lm.ShapeError, match=r"input_ids must be \(B, L\) with L at most n_positions=24"):
        net(np.zeros((1, 25), np.int64))
    with pytest.raises(lm.ShapeError, match="a cache of 25 tokens"):
        net.empty_cache(1, 25)
    with pytest.raises(ValueError, match="n_head=3 must divide n_embd=16"):
        nn.GPT2Model(n_embd=16, n_head=3)


@pytest.mark.parametrize("batch", [1, 4])
def test_any_number_of_texts(batch: int) -> None:
    run = partial(small().eval())
    assert run(IDS[:1].repeat(batch, 0)).shape == (batch, 9, 50)
