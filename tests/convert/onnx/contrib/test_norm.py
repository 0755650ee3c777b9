"""ONNX Runtime's norms: its numbers, and those that it computes on GPUs alone from their definition."""

from typing import Any

import numpy as np
import pytest

from lamina.convert.onnx import from_onnx
from tests.helpers.onnx_models import beside_onnxruntime, contributed

RNG = np.random.default_rng(0)


def _normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("outputs", [("y",), ("y", "", "", "sum")])
def test_norms_of_sums(outputs: Any) -> None:
    x, skip, vectors = _normal(2, 5, 16), _normal(2, 5, 16), [_normal(16) for _ in range(3)]
    beside_onnxruntime("SkipLayerNormalization", (x, skip, *vectors), outputs, held=(2, 3, 4), epsilon=1e-5)
    beside_onnxruntime("SkipLayerNormalization", (x, skip[0], vectors[0]), outputs)
    for bias in ((), (vectors[1],)):
        beside_onnxruntime("SkipSimplifiedLayerNormalization", (x, skip, vectors[0], *bias), outputs)


def test_what_else_a_norm_gives() -> None:
    x, skip, scale = _normal(2, 5, 16), _normal(2, 5, 16), _normal(16)
    proto, given = contributed("SkipLayerNormalization", (x, skip, scale), ("y", "mean", "inverse"))
    _, mean, inverse = from_onnx(proto)(*given.values())
    np.testing.assert_allclose(mean.numpy(), (x + skip).mean(-1, keepdims=True), atol=1e-6)
    np.testing.assert_allclose(inverse.numpy(), 1 / (x + skip).std(-1, keepdims=True), rtol=1e-5)
    beside_onnxruntime("SimplifiedLayerNormalization", (x, scale), ("y", "inverse"), domain="", axis=-1)


@pytest.mark.parametrize("kind", ["all", "words alone", "no segments", "places given"])
def test_embeddings(kind: str) -> None:
    ids = RNG.integers(0, 20, size=(2, 5)).astype(np.int32)
    segments, mask = ids % 2, np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)
    words, places, kinds, scale, shift = (_normal(n, 16) for n in (20, 9, 2, 1, 1))
    tables: Any = (words, places, kinds, scale[0], shift[0])
    outputs: tuple[str, ...]
    if kind == "all":
        inputs, outputs = (ids, segments, *tables, mask), ("y", "words")
    elif kind == "no segments":
        inputs, outputs = (ids, None, *tables, mask), ("y", "words", "sum")
    elif kind == "words alone":
        inputs, outputs = (ids, None, words, places, None, *tables[3:]), ("y", "words", "sum")
    else:
        inputs, outputs = (
            (ids, segments, *tables, None, np.tile(np.int32([2, 0, 1, 3, 3]), (2, 1))),
            ("y", "", "sum"),
        )
    beside_onnxruntime("EmbedLayerNormalization", inputs, outputs, held=(2, 3, 4, 5, 6))


@pytest.mark.parametrize("operator", ["SkipLayerNormalization", "SkipSimplifiedLayerNormalization"])
def test_what_is_added_to_a_variance_by_default(operator: str) -> None:
    """Of inputs so small that it matters."""
    x = _normal(1, 4, 8) * np.float32(1e-6)
    proto, given = contributed(operator, (x, x * 0, np.ones(8, np.float32)))
    found, wide = from_onnx(proto)(*given.values()), x.astype(np.float64)
    wide -= 0 if "Simplified" in operator else wide.mean(-1, keepdims=True)
    wanted = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-12)
    np.testing.assert_allclose(np.asarray(found[0] if isinstance(found, tuple) else found), wanted, rtol=1e-3)


def test_what_is_added_to_the_variance_of_a_group_by_default() -> None:
    x, ones = _normal(1, 2, 2, 8) * np.float32(3e-3), np.ones(8, np.float32)
    proto, given = contributed("GroupNorm", (x, ones, ones * 0), groups=1, activation=0)
    wide = x.astype(np.float64) - x.mean(dtype=np.float64)
    found = from_onnx(proto)(*given.values()).numpy()
    np.testing.assert_allclose(found, wide / np.sqrt((wide**2).mean() + 1e-5), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("last", [0, 1])
def test_groups_of_channels(last: int) -> None:
    x, skip, scale, shift, bias = (_normal(*s) for s in ((2, 4, 3, 3), (2, 4), (4,), (4,), (4,)))
    order = (0, 2, 3, 1) if last else (0, 1, 2, 3)
    options = {"channels_last": last, "groups": 2, "activation": 1, "epsilon": 1e-5}

    def reference(x: Any) -> Any:
        apart = x.reshape(2, 2, -1).astype(np.float64)
        apart = (apart - apart.mean(-1, keepdims=True)) / np.sqrt(apart.var(-1, keepdims=True) + 1e-5)
        y = apart.reshape(x.shape) * scale[:, None, None] + shift[:, None, None]
        return (y / (1 + np.exp(-y))).transpose(order)

    proto, given = contributed("GroupNorm", (x.transpose(order), scale, shift), **options)
    np.testing.assert_allclose(from_onnx(proto)(*given.values()).numpy(), reference(x), rtol=1e-4, atol=1e-5)
    proto, given = contributed(
        "SkipGroupNorm", (x.transpose(order), scale, shift, skip, bias), ("y", "sum"), **options
    )
    total = x + (skip + bias)[:, :, None, None]
    y, found = (v.numpy() for v in from_onnx(proto)(*given.values()))
    np.testing.assert_allclose(y, reference(total), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found, total.transpose(order), rtol=1e-5, atol=1e-6)
