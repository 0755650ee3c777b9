"""Bags of rows against loops, their gradients against differences and torch, and what is refused."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.spec import DTypeError, ShapeError
from tests.helpers.functions import numerical

RNG = np.random.default_rng(11)
TABLE = RNG.standard_normal((7, 3))
FLAT = np.array([1, 2, 4, 5, 4, 3, 2, 6, 1])
OFFSETS = np.array([0, 3, 3, 7])
SQUARE = np.array([[1, 2, 2], [4, 5, 2], [2, 2, 2]])


def loop(bags: list[Any], mode: str, factors: Any = None, padding: int | None = None) -> Any:
    """One bag after the other."""
    found = []
    for i, bag in enumerate(bags):
        kept = [n for n, v in enumerate(bag) if v != padding]
        rows = TABLE[[bag[n] for n in kept]] * (1 if factors is None else factors[i][kept][:, None])
        empty = np.zeros(3)
        by = {
            "sum": rows.sum(0),
            "mean": rows.mean(0) if kept else empty,
            "max": rows.max(0) if kept else empty,
        }
        found.append(by[mode])
    return np.stack(found)


def bags_of(flat: Any, offsets: Any) -> list[Any]:
    return np.split(flat, offsets[1:])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2, -5])
def test_values_and_gradients(mode: Any, padding: int | None) -> None:
    at = None if padding is None else padding % 7
    wanted = loop(bags_of(FLAT, OFFSETS), mode, padding=at)
    options: Any = {"mode": mode, "padding_idx": padding}
    found = ops.embedding_bag(FLAT, TABLE, OFFSETS, **options)
    np.testing.assert_allclose(found.numpy(), wanted, atol=1e-12)
    ends = ops.embedding_bag(FLAT, TABLE, np.array([0, 3, 3, 7, 9]), include_last_offset=True, **options)
    np.testing.assert_array_equal(ends.numpy(), found.numpy())
    square = ops.embedding_bag(SQUARE, TABLE, **options)
    np.testing.assert_allclose(square.numpy(), loop(list(SQUARE), mode, padding=at), atol=1e-12)
    for index, offsets in ((FLAT, OFFSETS), (SQUARE, None)):

        def total(table: Any, index: Any = index, offsets: Any = offsets) -> Any:
            y = ops.embedding_bag(index, table, offsets, **options)
            return (y * np.cos(np.arange(3.0))).sum()

        slope = lm.grad(total)(lm.tensor(TABLE)).numpy()
        np.testing.assert_allclose(slope, numerical(total, [TABLE])[0], atol=1e-7)


def test_factors_of_the_rows_have_gradients() -> None:
    factors = RNG.standard_normal(9)
    wanted = loop(bags_of(FLAT, OFFSETS), "sum", bags_of(factors, OFFSETS), 2)

    def total(table: Any, factors: Any) -> Any:
        y = ops.embedding_bag(FLAT, table, OFFSETS, mode="sum", per_sample_weights=factors, padding_idx=2)
        return (y**2).sum()

    y = ops.embedding_bag(FLAT, TABLE, OFFSETS, mode="sum", per_sample_weights=factors, padding_idx=2)
    np.testing.assert_allclose(y.numpy(), wanted, atol=1e-12)
    found = lm.grad(total, (0, 1))(lm.tensor(TABLE), lm.tensor(factors))
    expected = numerical(total, [TABLE, factors])
    expected[0][2] = 0  # the row of padding gets none
    for g, slope in zip(found, expected, strict=True):
        np.testing.assert_allclose(g.numpy(), slope, atol=1e-6)
    square = RNG.standard_normal((3, 3))
    y = ops.embedding_bag(SQUARE, TABLE, mode="sum", per_sample_weights=square)
    np.testing.assert_allclose(y.numpy(), loop(list(SQUARE), "sum", square), atol=1e-12)


def test_gradients_by_frequency() -> None:
    def rows(table: Any, scaled: bool) -> Any:
        return ops.embedding(SQUARE, table, 5, scale_grad_by_freq=scaled).sum()

    plain, scaled = (lm.grad(rows)(lm.tensor(TABLE), flag).numpy() for flag in (False, True))
    times = np.maximum(np.bincount(SQUARE.reshape(-1), minlength=7), 1)[:, None]
    np.testing.assert_allclose(scaled, plain / times)
    assert plain[2, 0] == 6
    assert not scaled[5].any()


def test_no_bags_and_no_rows() -> None:
    none = np.zeros(0, np.int64)
    assert ops.embedding_bag(none, TABLE, none).shape == (0, 3)
    for mode in ("sum", "mean", "max"):
        assert ops.embedding_bag(none, TABLE, np.array([0, 0]), mode=mode).tolist() == [[0.0] * 3] * 2
        assert ops.embedding_bag(np.zeros((2, 0), np.int64), TABLE, mode=mode).tolist() == [[0.0] * 3] * 2


def test_layer_has_the_parameters_of_torch() -> None:
    layer = nn.EmbeddingBag.from_pretrained(TABLE.astype(np.float32), mode="max", padding_idx=2)
    assert list(layer.state_dict()) == ["weight"]
    assert repr(layer) == "EmbeddingBag(7, 3, mode='max', padding_idx=2)"
    np.testing.assert_allclose(
        layer(FLAT, OFFSETS).numpy(), loop(bags_of(FLAT, OFFSETS), "max", padding=2), atol=1e-6
    )
    assert nn.EmbeddingBag(4, 2, padding_idx=-1).weight.numpy()[3].tolist() == [0.0, 0.0]
    assert not layer.weight.requires_grad
    table = nn.Embedding.from_pretrained(TABLE.astype(np.float32), False, scale_grad_by_freq=True)
    assert table.weight.requires_grad
    assert repr(table) == "Embedding(7, 3, scale_grad_by_freq=True)"
    np.testing.assert_array_equal(table(np.array([3, 0])).numpy(), TABLE.astype(np.float32)[[3, 0]])


def test_errors_name_what_is_wrong() -> None:
    with pytest.raises(
        ValueError, match=r"embedding_bag: offsets belong to an input of one axis.*i64\[3,3\]"
    ):
        ops.embedding_bag(SQUARE, TABLE, OFFSETS)
    with pytest.raises(
        ValueError, match="embedding_bag: per_sample_weights belong to mode 'sum', got mode 'mean'"
    ):
        ops.embedding_bag(SQUARE, TABLE, per_sample_weights=np.ones((3, 3)))
    with pytest.raises(
        ShapeError, match=r"per_sample_weights must be as input i64\[9\] in float64, got f64\[8\]"
    ):
        ops.embedding_bag(FLAT, TABLE, OFFSETS, mode="sum", per_sample_weights=np.ones(8))
    with pytest.raises(DTypeError, match="offsets must be integers, got f64"):
        ops.embedding_bag(FLAT, TABLE, np.zeros(2))
    with pytest.raises(IndexError, match="embedding_bag: offsets: index 10 at position 1"):
        ops.embedding_bag(FLAT, TABLE, np.array([0, 10]))
    for function in (ops.embedding, ops.embedding_bag):
        with pytest.raises(ValueError, match="embedding: max_norm must be above 0, got 0.0"):
            function(SQUARE, lm.tensor(TABLE), max_norm=0.0)
        with pytest.raises(
            ValueError, match=f"{function.__name__}: max_norm=1.0 would write .* a traced value"
        ):
            lm.trace(lambda w, of=function: of(SQUARE, w, max_norm=1.0), lm.tensor(TABLE).spec)
    with pytest.raises(ValueError, match="Embedding: max_norm must be above 0, got -2.0"):
        nn.Embedding(3, 2, max_norm=-2.0)
    with pytest.raises(ValueError, match="EmbeddingBag: mode must be one of 'sum', 'mean', 'max', got 'min'"):
        nn.EmbeddingBag(3, 2, mode="min")  # type: ignore[arg-type]
    with pytest.raises(ShapeError, match=r"Embedding: _weight must be \(3, 2\), got f64\[7,3\]"):
        nn.Embedding(3, 2, _weight=TABLE)


@pytest.mark.torch
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("padding", [None, 2])
def test_values_and_gradients_are_those_of_torch(mode: Any, padding: Any) -> None:
    import torch

    table = TABLE.round(0)  # equal elements: the first of them gets a maximum's gradient
    weight = torch.tensor(table, requires_grad=True)
    options: Any = {"mode": mode, "padding_idx": padding}
    for index, offsets in ((FLAT, OFFSETS), (SQUARE, None)):
        theirs = torch.nn.functional.embedding_bag(
            torch.tensor(index), weight, None if offsets is None else torch.tensor(offsets), **options
        )
        scale = np.cos(np.arange(theirs.numel())).reshape(theirs.shape)
        (slope,) = torch.autograd.grad((theirs * torch.tensor(scale)).sum(), weight)

        def total(table: Any, index: Any = index, offsets: Any = offsets, scale: Any = scale) -> Any:
            return (ops.embedding_bag(index, table, offsets, **options) * scale).sum()

        mine = ops.embedding_bag(index, table, offsets, **options).numpy()
        np.testing.assert_allclose(mine, theirs.detach().numpy(), atol=1e-12)
        np.testing.assert_allclose(lm.grad(total)(lm.tensor(table)).numpy(), slope.numpy(), atol=1e-12)


@pytest.mark.torch
def test_gradients_by_frequency_are_those_of_torch() -> None:
    import torch

    weight = torch.tensor(TABLE, requires_grad=True)
    scale = RNG.standard_normal((3, 3, 3))
    theirs = torch.nn.functional.embedding(torch.tensor(SQUARE), weight, 5, scale_grad_by_freq=True)
    (slope,) = torch.autograd.grad((theirs * torch.tensor(scale)).sum(), weight)
    found = lm.grad(lambda t: (ops.embedding(SQUARE, t, 5, scale_grad_by_freq=True) * scale).sum())(
        lm.tensor(TABLE)
    )
    np.testing.assert_allclose(found.numpy(), slope.numpy(), atol=1e-12)
