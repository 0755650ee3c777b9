"""Generated text: the likeliest tokens, draws, and what is refused."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import infer, nn

PROMPT = np.array([[1, 2, 3], [4, 5, 6]])


def small() -> nn.GPT2LMHeadModel:
    nn.manual_seed(0)
    net = nn.GPT2LMHeadModel(11, n_embd=8, n_layer=2, n_head=2, n_positions=16)
    for p in net.parameters():  # so that logits differ
        p.copy_(p.numpy() * 10)
    return net


def test_the_likeliest_tokens_are_those_of_the_whole_text() -> None:
    net = small()
    found = infer.generate(net, PROMPT, 6)
    assert net.training
    text = PROMPT
    for _ in range(6):
        text = np.concatenate([text, net.eval()(text).numpy()[:, -1].argmax(1)[:, None]], 1)
    np.testing.assert_array_equal(found, text)


def test_draws_follow_the_probabilities() -> None:
    net = small()
    rows = PROMPT[:1].repeat(4000, 0)
    found = infer.generate(net, rows, 1, temperature=2.0, seed=1)[:, -1]
    logits = net.eval()(PROMPT[:1]).numpy()[0, -1] / 2
    expected = np.exp(logits - logits.max()) / np.exp(logits - logits.max()).sum()
    np.testing.assert_allclose(np.bincount(found, minlength=11) / 4000, expected, atol=0.03)
    best = infer.generate(net, rows, 1, temperature=2.0, top_k=3)[:, -1]
    assert set(best) == set(np.argsort(logits)[-3:])


def test_a_seed_gives_the_same_text() -> None:
    first, second = (infer.generate(small(), PROMPT, 5, temperature=1.0, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("prompt", "options", "message"),
    [
        ([1, 2], {}, r"prompt must be \(B, L\) with a token at least, got shape \(2,\)"),
        ([[]], {}, r"got shape \(1, 0\)"),
        ([[1]], {"temperature": -1.0}, "a temperature of at least 0, got 4, None and -1.0"),
        ([[1]], {"temperature": float("nan")}, "a temperature of at least 0, got 4, None and nan"),
        ([[1]], {"top_k": 0}, "top_k of at least 1"),
        ([[1.5]], {}, "prompt must be whole numbers, got float64"),
        ([[1] * 13], {}, "a cache of 17 tokens, but n_positions is 16"),
    ],
)
def test_what_does_not_fit_is_refused(prompt: Any, options: Any, message: str) -> None:
    with pytest.raises((lm.ShapeError, TypeError, ValueError), match=message):
        infer.generate(small(), prompt, 4, **options)


def test_later_calls_find_the_programs_again_and_the_network_as_it_is() -> None:
    net, traced = small(), []
    net.transformer.wpe.register_forward_hook(lambda m, inputs, y: traced.append(y.shape))
    first = infer.generate(net, PROMPT, 6)
    assert [shape[-2] for shape in traced] == [3, 1]  # the prompt, and a token
    np.testing.assert_array_equal(infer.generate(net, PROMPT, 6), first)
    assert len(traced) == 2
    for p in net.parameters():
        p.copy_(-p.numpy())
    changed = infer.generate(net, PROMPT, 6)
    assert len(traced) == 2
    assert (changed != first).any()
    other = small()
    other.load_state_dict(net.state_dict())
    np.testing.assert_array_equal(infer.generate(other, PROMPT, 6), changed)


def test_a_network_that_generated_is_let_go() -> None:
    net = small()
    infer.generate(net, PROMPT, 2)
    there = weakref.ref(net)
    del net
    gc.collect()
    assert there() is None
