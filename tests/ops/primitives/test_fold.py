"""unfold and fold are each other's transposes, and PyTorch's."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops

CASES: list[tuple[tuple[int, ...], dict[str, Any]]] = [
    ((2, 3, 5, 6), {"kernel_size": 2}),
    ((2, 3, 5, 6), {"kernel_size": (3, 2), "padding": (1, 0), "stride": 2}),
    ((1, 2, 7, 8), {"kernel_size": 2, "dilation": (2, 3), "padding": 1, "stride": (1, 2)}),
    ((3, 5, 6), {"kernel_size": 2}),
]


@pytest.mark.parametrize(("shape", "options"), CASES)
def test_fold_is_the_transpose_of_unfold(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(shape)
    columns = ops.unfold(x, **options).numpy()
    g = rng.standard_normal(columns.shape)
    folded = ops.fold(g, shape[-2:], **options).numpy()
    assert folded.shape == shape
    np.testing.assert_allclose((folded * x).sum(), (g * columns).sum())


@pytest.mark.torch
@pytest.mark.parametrize(("shape", "options"), CASES)
def test_as_torch(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    torch = pytest.importorskip("torch")
    x = torch.randn(shape, dtype=torch.float64)
    columns = torch.nn.functional.unfold(x, **options)
    np.testing.assert_array_equal(ops.unfold(x.numpy(), **options).numpy(), columns.numpy())
    wanted = torch.nn.functional.fold(columns, shape[-2:], **options)
    np.testing.assert_allclose(ops.fold(columns.numpy(), shape[-2:], **options).numpy(), wanted.numpy())


def test_volumes() -> None:
    x = np.arange(24.0).reshape(1, 1, 2, 3, 4)
    columns = ops.unfold(x, 2)
    assert columns.shape == (1, 8, 6)
    np.testing.assert_array_equal(columns.numpy()[0, :, 0], x[0, 0, :, :2, :2].reshape(-1))
    assert ops.fold(columns, (2, 3, 4), 2).shape == x.shape


def test_errors() -> None:
    with pytest.raises(
        lm.ShapeError, match=r"fold: a kernel of \(2, 2\) on \(3, 3\) needs columns \[N, C \* 4, 4\]"
    ):
        ops.fold(lm.zeros((1, 4, 5)), 3, 2)
    with pytest.raises(lm.ShapeError, match="fold: .* reaches over 4 elements"):
        ops.fold(lm.zeros((1, 4, 5)), 3, 4)
    with pytest.raises(lm.ShapeError, match="unfold: input must be"):
        ops.unfold(lm.zeros((4, 5)), 2)
