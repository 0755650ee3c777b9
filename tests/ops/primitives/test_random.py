"""Philox against its published answers; dropout's mask, word by word; the distributions."""

from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina._philox import _CHUNK, philox4x32, words
from lamina.ops import primitives
from lamina.ops.core import bind, call
from lamina.ops.primitives import random
from lamina.ops.primitives.dropout import threshold
from lamina.spec import ShapeError
from tests.helpers.eager import Eager
from tests.helpers.functions import grad, run

#: (counter, key, answer) of philox4x32 with ten rounds, as published with Random123.
KNOWN = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    ((0xFFFFFFFF,) * 4, (0xFFFFFFFF,) * 2, (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]


@pytest.mark.parametrize(("counter", "key", "answer"), KNOWN)
def test_known_answers(counter: Any, key: Any, answer: Any) -> None:
    assert philox4x32(np.array(counter, np.uint32), key).tolist() == list(answer)
    both = philox4x32(np.array([counter, counter], np.uint32), key)
    assert both.tolist() == [list(answer)] * 2


def _word(seed: int, counter: int, i: int) -> int:
    """Word i of a stream with Python's integers, as the definition says it."""
    low, block = 2**32 - 1, (counter + i // 4) % 2**64
    c, k = [block & low, block >> 32, 0, 0], [seed & low, (seed >> 32) & low]
    for _ in range(10):
        p, q = c[0] * 0xD2511F53, c[2] * 0xCD9E8D57
        c = [(q >> 32) ^ c[1] ^ k[0], q & low, (p >> 32) ^ c[3] ^ k[1], p & low]
        k = [(k[0] + 0x9E3779B9) & low, (k[1] + 0xBB67AE85) & low]
    return c[i % 4]


STATES = [(0, 0), (1, 5), (-7, 2**32 - 1), (2**40 + 9, 2**33 + 1), (3, -1), (2**63 - 1, 2**63 - 1)]


@pytest.mark.parametrize(("seed", "counter"), STATES)
def test_words_by_their_definition(seed: int, counter: int) -> None:
    assert random.words(seed, counter, 11).tolist() == [_word(seed, counter, i) for i in range(11)]


@pytest.mark.parametrize(("seed", "counter"), STATES)
def test_many_words_are_those_of_their_blocks(seed: int, counter: int) -> None:
    """They are drawn in chunks of blocks; around each chunk's ends the words are those that a block alone gives."""
    found = words(seed, counter, 8 * _CHUNK + 7)
    assert (found.shape, found.dtype) == ((8 * _CHUNK + 7,), np.uint32)
    for block in (0, _CHUNK - 1, _CHUNK, _CHUNK + 1, 2 * _CHUNK - 1, 2 * _CHUNK):
        wanted = [_word(seed, counter + block, i) for i in range(4)]
        assert found[4 * block : 4 * block + 4].tolist() == wanted
    for count in (0, 1, 4, 5):
        np.testing.assert_array_equal(words(seed, counter, count), found[:count])


def _dropout(x: Any, state: Any, p: float = 0.5) -> Any:
    return ops.dropout(x, p, state=state)


@pytest.mark.feature("F063")
@pytest.mark.parametrize(("seed", "counter"), STATES)
@pytest.mark.parametrize("p", [0.0, 0.25, 0.5, 1.0])
def test_dropout_by_its_definition(seed: int, counter: int, p: float) -> None:
    x = np.arange(1.0, 23).reshape(2, 11)
    y, mask, state = run(_dropout, x, np.array([seed, counter]), p)
    kept = np.array([_word(seed, counter, i) >= int(p * 2**32) for i in range(22)]).reshape(2, 11)
    assert mask.tolist() == kept.tolist()
    np.testing.assert_allclose(y, np.where(kept, x / (1 - p) if p < 1 else 0, 0))
    moved = (counter + 6) % 2**64
    assert state.tolist() == [seed, moved - 2**64 if moved >= 2**63 else moved]


@pytest.mark.feature("F063")
def test_dropout_drops_what_it_should() -> None:
    x, state = np.ones((200, 300)), np.array([42, 0])
    for p in (0.1, 0.5, 0.8):
        y, mask, after = run(_dropout, x, state, p)
        assert abs(mask.mean() - (1 - p)) < 0.006
        assert abs(y.mean() - 1) < 0.02
        assert (run(_dropout, x, state, p)[1] == mask).all()  # the same state gives the same mask
        assert (run(_dropout, x, after, p)[1] != mask).mean() > p * (1 - p)  # the next one another
    assert after.tolist() == [42, 15000]


@pytest.mark.feature("F063")
def test_dropout_gradient_uses_the_mask() -> None:
    x, state = np.ones((5, 7)), np.array([3, 4])
    y, mask, _ = run(_dropout, x, state, 0.3)
    np.testing.assert_allclose(grad(_dropout, x, state, 0.3)[0], mask / 0.7)
    np.testing.assert_allclose(y, mask / 0.7)


def test_threshold() -> None:
    assert [threshold(p) for p in (0.0, 0.5, 0.1, 1.0)] == [0, 2**31, 429496729, 2**32]


def test_uniform_and_normal() -> None:
    u = random.uniform((100, 1000), 7)
    assert u.dtype == np.float32
    assert 0 <= u.min() < 1e-4
    assert 1 - 1e-4 < u.max() < 1
    assert abs(u.mean() - 0.5) < 0.003
    assert abs(u.var() - 1 / 12) < 0.001
    n = random.normal((100, 1000), 7, mean=1.0, std=2.0)
    assert n.dtype == np.float32
    assert np.isfinite(n).all()
    assert abs(n.mean() - 1) < 0.02
    assert abs(n.std() - 2) < 0.02
    assert abs((np.abs(n - 1) < 2).mean() - 0.6827) < 0.005
    assert random.normal(3, 1).shape == (3,)
    np.testing.assert_array_equal(random.uniform(8, 5, 2), random.uniform(16, 5, 0)[8:])  # blocks of four
    assert random.uniform(5, 1, low=-2, high=-1).max() < -1


def test_random_ops_move_the_state_on() -> None:
    state = np.array([11, 0])
    a, state1 = run(ops.random_uniform, state, (5,), -1.0, 1.0)
    b, state2 = run(ops.random_normal, state1, (5,), dtype="float64")
    assert (state1.tolist(), state2.tolist()) == ([11, 2], [11, 4])
    np.testing.assert_array_equal(a, random.uniform(5, 11, 0, -1, 1))
    np.testing.assert_array_equal(b, random.normal(5, 11, 2).astype(np.float64))


@pytest.mark.feature("F118")
def test_errors() -> None:
    x = np.ones(3)
    with pytest.raises(ValueError, match=r"dropout: p must be in \[0, 1\], got 1.5"):
        run(_dropout, x, np.array([0, 0]), 1.5)
    with pytest.raises(ValueError, match=r"dropout: p must be in \[0, 1\], got -1"):
        bind(primitives.Dropout(-1.0), Eager(x), Eager(np.array([0, 0])))
    with pytest.raises(ShapeError, match=r"state must be int64\[2\] \(seed, counter\), got i64\[3\]"):
        run(_dropout, x, np.array([0, 0, 0]))
    with pytest.raises(TypeError, match=r"state must be int64\[2\] \(seed, counter\), got f64\[2\]"):
        run(_dropout, x, np.zeros(2))
    with pytest.raises(TypeError, match=r"dropout_grad: mask must be bool, got f64\[3\]"):
        call(primitives.DropoutGrad(0.5), Eager(x), Eager(x))
    with pytest.raises(ShapeError, match="must have the shape of the gradient"):
        call(primitives.DropoutGrad(0.5), Eager(x), Eager(np.ones(2, bool)))
    with pytest.raises(TypeError, match="random_uniform: dtype must be a float, got int32"):
        run(ops.random_uniform, np.array([0, 0]), (3,), dtype="int32")
