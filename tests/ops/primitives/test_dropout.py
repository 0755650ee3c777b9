"""Dropout of channels and for SELU networks: what is drawn, the statistics that are kept, gradients, errors."""

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.ops.core import bind
from lamina.ops.primitives import Dropout, DropoutMask
from lamina.ops.primitives.dropout import dropout_mask
from lamina.ops.primitives.random import part_of_batch
from lamina.spec import DType, DTypeError, Spec, bfloat16, float32, float64, int64

STATE = np.array([5, 9], np.int64)


@pytest.mark.feature("F058")
@pytest.mark.parametrize(
    ("name", "shape", "mask_shape"),
    [
        ("dropout1d", (4, 8, 5), (4, 8, 1)),
        ("dropout1d", (8, 5), (8, 1)),
        ("dropout2d", (4, 8, 3, 5), (4, 8, 1, 1)),
        ("dropout2d", (4, 8, 5), (4, 8, 1)),  # three axes are [N, C, L], as in torch
        ("dropout3d", (4, 8, 3, 5, 2), (4, 8, 1, 1, 1)),
        ("dropout3d", (8, 3, 5, 2), (8, 1, 1, 1)),
        ("dropout2d", (0, 8, 3, 5), (0, 8, 1, 1)),
    ],
)
def test_whole_channels_are_dropped(name: str, shape: tuple[int, ...], mask_shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape)
    y, mask, state = getattr(ops, name)(x, 0.25, state=STATE)
    assert mask.shape == mask_shape
    np.testing.assert_allclose(y.numpy(), np.where(mask.numpy(), x / 0.75, 0), rtol=1e-15)
    drawn, _, after = ops.dropout(np.ones(mask_shape), 0.25, state=STATE)
    np.testing.assert_array_equal(mask.numpy(), drawn.numpy() != 0)
    np.testing.assert_array_equal(state.numpy(), after.numpy())


@pytest.mark.parametrize("name", ["dropout2d", "alpha_dropout", "feature_alpha_dropout"])
def test_inference_changes_nothing(name: str) -> None:
    x = lm.ones((2, 3, 4, 5))
    y, _, state = getattr(ops, name)(x, 0.5, False, state=STATE)
    assert y is x
    np.testing.assert_array_equal(state.numpy(), STATE)
    if name != "dropout2d":  # as torch's functions
        assert getattr(ops, name)(x, 0.5, state=STATE)[0] is x


@pytest.mark.parametrize("name", ["alpha_dropout", "feature_alpha_dropout"])
def test_alpha_dropout_keeps_mean_and_variance(name: str) -> None:
    shape = (400, 300) if name == "alpha_dropout" else (400, 300, 3)
    x = np.random.default_rng(0).standard_normal(shape)
    y, mask, _ = getattr(ops, name)(x, 0.2, True, state=STATE)
    found = y.numpy()
    assert abs(found.mean()) < 0.01
    assert abs(found.std() - 1) < 0.01
    low, factor = -1.7580993408473766, (0.8 * (1 + 0.2 * 1.7580993408473766**2)) ** -0.5
    kept = np.broadcast_to(mask.numpy(), shape)
    np.testing.assert_allclose(found, (np.where(kept, x, low) - low * 0.2) * factor, atol=1e-14)
    assert len(np.unique(found[~kept])) == 1
    assert not getattr(ops, name)(x, 1.0, True, state=STATE)[0].numpy().any()


def test_gradients_are_those_of_what_is_kept() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 5))
    for name in ("dropout1d", "alpha_dropout", "feature_alpha_dropout"):

        def total(v: object, name: str = name) -> object:
            return (getattr(ops, name)(v, 0.5, True, state=STATE)[0] * x).sum()

        _, mask, _ = getattr(ops, name)(x, 0.5, True, state=STATE)
        factor = 2.0 if name == "dropout1d" else (0.5 * (1 + 0.5 * 1.7580993408473766**2)) ** -0.5
        grad = lm.grad(total)(lm.tensor(x)).numpy()
        np.testing.assert_allclose(grad, np.where(mask.numpy(), x * factor, 0), rtol=1e-12)


def test_errors() -> None:
    with pytest.raises(lm.ShapeError, match=r"dropout2d: input must be of rank 4 or 3, got f32\[2,3\]"):
        ops.dropout2d(lm.ones((2, 3)), state=STATE)
    with pytest.raises(lm.ShapeError, match="dropout1d: input must be of rank 3 or 2"):
        ops.dropout1d(lm.ones((2, 3, 4, 5)), state=STATE)
    with pytest.raises(lm.DTypeError, match="dropout3d: input must be of a float dtype, got i64"):
        ops.dropout3d(np.ones((2, 3, 4, 5), np.int64), state=STATE)
    with pytest.raises(ValueError, match=r"p must be in \[0, 1\], got 1.5"):
        ops.alpha_dropout(lm.ones((2, 3)), 1.5, state=STATE)
    with pytest.raises(lm.ShapeError, match=r"feature_alpha_dropout: input must be \[N, C, \*S\]"):
        ops.feature_alpha_dropout(lm.ones(3), state=STATE)


@pytest.mark.parametrize("p", [-1e-9, 1 + 1e-9, 2.0])
def test_the_op_itself_takes_a_probability(p: float) -> None:
    """Saved graphs hold it."""
    with pytest.raises(ValueError, match=rf"dropout: p must be in \[0, 1\], got {p}"):
        Dropout(p).infer(Spec((3,), float32), Spec((2,), int64))
    for edge in (0.0, 1.0):
        assert Dropout(edge).infer(Spec((3,), float32), Spec((2,), int64))[0].shape == (3,)


@pytest.mark.parametrize("dtype", [float64, bfloat16], ids=str)
def test_a_mask_is_what_dropout_keeps_from_the_same_state(dtype: DType) -> None:
    state = np.array([2**40 + 3, 2**32 - 2], np.int64)
    mask, after = bind(DropoutMask((3, 5, 7), dtype, 0.3), lm.tensor(state))
    _, kept, wanted = ops.dropout(np.ones((3, 5, 7)), 0.3, state=state)
    assert mask.dtype == dtype
    np.testing.assert_array_equal(mask.numpy().astype(bool), kept.numpy())
    np.testing.assert_array_equal(after.numpy(), wanted.numpy())
    with pytest.raises(ValueError, match=r"p must be in \[0, 1\], got 1.5"):
        DropoutMask((3,), dtype, 1.5).infer(Spec((2,), int64))
    with pytest.raises(DTypeError, match="dtype must be a float, got int64"):
        DropoutMask((3,), int64, 0.5).infer(Spec((2,), int64))


@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5), (1, 3, 3, 5)]
)  # whole blocks of four draws, and parts of them
def test_ranks_draw_their_parts_of_a_mask(shape: tuple[int, ...]) -> None:
    """Together they drop what one rank drops with the whole batch."""
    like = lm.tensor(np.zeros(1, np.float32))
    nn.manual_seed(7)
    whole = dropout_mask((2 * shape[0], *shape[1:]), 0.5, like).numpy()
    parts = []
    for rank in range(2):
        nn.manual_seed(7)
        with part_of_batch(rank, 2):
            parts.append(dropout_mask(shape, 0.5, like).numpy())
    np.testing.assert_array_equal(np.concatenate(parts), whole)


@pytest.mark.parametrize("shape", [(2, 4, 4), (1, 3, 3)])
@pytest.mark.parametrize("name", ["dropout", "dropout1d", "alpha_dropout", "feature_alpha_dropout"])
def test_ranks_drop_of_their_parts_what_one_drops_of_the_whole(name: str, shape: tuple[int, ...]) -> None:
    function, state = getattr(ops, name), np.array([7, 3], np.int64)
    x = np.random.default_rng(0).standard_normal((2 * shape[0], *shape[1:])).astype(np.float32)
    wanted = function(x, 0.5, True, state=state)
    parts = []
    for rank, part in enumerate(np.split(x, 2)):
        with part_of_batch(rank, 2):
            parts.append(function(part, 0.5, True, state=state))
    for whole, *pieces in zip(wanted[:-1], *(p[:-1] for p in parts), strict=True):
        np.testing.assert_array_equal(np.concatenate([p.numpy() for p in pieces]), whole.numpy())
    for part in parts:
        np.testing.assert_array_equal(part[-1].numpy(), wanted[-1].numpy())


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("dropout", 1),
        ("dropout1d", 3),
        ("dropout2d", 4),
        ("dropout3d", 5),
        ("alpha_dropout", 1),
        ("feature_alpha_dropout", 3),
    ],
)
def test_inplace_writes_what_is_left_over_the_input(name: str, rank: int) -> None:
    function, x = getattr(ops, name), lm.ones((8,) * rank)
    assert function(x, 0.5, False, True) is x
    assert (x == 1).all()
    lm.manual_seed(3)
    expected = function(x, 0.5, training=True)
    lm.manual_seed(3)
    assert function(x, 0.5, training=True, inplace=True) is x
    np.testing.assert_array_equal(x.numpy(), expected.numpy())
    assert not (x == 1).all()
