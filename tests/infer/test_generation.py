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
        ([[1]], {"temperature": -1.0}, "temperature must be at least 0, got -1.0"),
        ([[1]], {"temperature": float("nan")}, "temperature must be at least 0, got nan"),
        ([[1]], {"top_k": 0}, "top_k must be at least 1, got 0"),
        ([[1]], {"top_p": 1.5}, r"top_p must be in \(0, 1\], got 1.5"),
        ([[1]], {"repetition_penalty": 0.0}, "repetition_penalty must be above 0, got 0.0"),
        ([[1]], {"min_new_tokens": -1}, "min_new_tokens must be at least 0, got -1"),
        (
            [[1, 2]],
            {"attention_mask": [[1]]},
            r"attention_mask must have the prompt's shape \(1, 2\), got \(1, 1\)",
        ),
        ([[1, 2]], {"attention_mask": [[1, 0]]}, "pad shorter prompts on the left"),
        ([[1, 2]], {"attention_mask": [[0, 0]]}, "1 from its first token on"),
        ([[1]], {"streamer": 3}, "streamer must be a function of tokens, or have put and end, got int"),
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


def test_padded_prompts_give_the_texts_of_each_alone() -> None:
    net = small()
    padded = np.array([[0, 0, 4], [1, 2, 3]])
    found = infer.generate(net, padded, 6, attention_mask=[[0, 0, 1], [1, 1, 1]])
    np.testing.assert_array_equal(found[:1, 2:], infer.generate(net, [[4]], 6))
    np.testing.assert_array_equal(found[1:], infer.generate(net, [[1, 2, 3]], 6))
    other = infer.generate(net, padded, 6, attention_mask=[[0, 1, 1], [1, 1, 1]])  # by the same programs
    np.testing.assert_array_equal(other[:1, 1:], infer.generate(net, [[0, 4]], 6))


def test_a_text_ends_with_a_token_and_is_filled() -> None:
    net = small()
    whole = infer.generate(net, PROMPT, 8)
    ends = next(int(t) for t in whole[0, 3:] if t not in whole[1, 3:])
    at = 3 + int(np.argmax(whole[0, 3:] == ends))
    found = infer.generate(net, PROMPT, 8, eos_token_id=ends, pad_token_id=7)
    np.testing.assert_array_equal(found[0, : at + 1], whole[0, : at + 1])
    assert (found[0, at + 1 :] == 7).all()
    np.testing.assert_array_equal(found[1], whole[1])
    alone = infer.generate(net, PROMPT[:1], 8, eos_token_id=[ends, 10**6])
    np.testing.assert_array_equal(alone[0], whole[0, : at + 1])  # all have ended
    later = infer.generate(net, PROMPT[:1], 8, eos_token_id=ends, min_new_tokens=8)
    assert ends not in later[0, 3:]
    assert later.shape == (1, 11)


def test_who_streams_gets_each_token() -> None:
    class Streamer:
        def __init__(self) -> None:
            self.parts: list[Any] = []

        def put(self, tokens: Any) -> None:
            self.parts.append(tokens.copy())

        def end(self) -> None:
            self.parts.append("end")

    streamer, called = Streamer(), list[Any]()
    found = infer.generate(small(), PROMPT, 4, streamer=streamer)
    prompt, *tokens, end = streamer.parts
    np.testing.assert_array_equal(prompt, PROMPT)
    np.testing.assert_array_equal(np.stack(tokens, 1), found[:, 3:])
    assert end == "end"
    infer.generate(small(), PROMPT, 4, streamer=called.append)
    np.testing.assert_array_equal(np.stack(called, 1), found[:, 3:])


def test_what_a_draw_is_asked_for_by() -> None:
    net = small()
    greedy = infer.generate(net, PROMPT, 5)
    np.testing.assert_array_equal(infer.generate(net, PROMPT, 5, do_sample=False, temperature=3.0), greedy)
    np.testing.assert_array_equal(infer.generate(net, PROMPT, 5, temperature=0.0), greedy)
    np.testing.assert_array_equal(infer.generate(net, PROMPT, 5, do_sample=True, top_k=1), greedy)
    np.testing.assert_array_equal(infer.generate(net, PROMPT, 5, do_sample=True, top_p=1e-6), greedy)
    one, two = (
        infer.generate(net, PROMPT, 5, seed=2, **o) for o in ({"do_sample": True}, {"temperature": 1.0})
    )
    np.testing.assert_array_equal(one, two)


def test_repeated_tokens_become_unlikely() -> None:
    net = small()
    assert len(set(infer.generate(net, [[1]], 5, repetition_penalty=1e6)[0])) == 6


def test_a_network_that_generates_while_it_generates() -> None:
    net, inner = small(), list[Any]()
    expected = infer.generate(net, PROMPT, 4)
    found = infer.generate(net, PROMPT, 4, streamer=lambda _: inner.append(infer.generate(net, PROMPT, 4)))
    for text in (found, *inner):
        np.testing.assert_array_equal(text, expected)


def test_a_network_that_is_halved_generates_in_its_new_type() -> None:
    net = small()
    infer.generate(net, PROMPT, 4)
    net.to(dtype="float64")
    found = infer.generate(net, PROMPT, 4)
    other = small().to(dtype="float64")
    np.testing.assert_array_equal(found, infer.generate(other, PROMPT, 4))
