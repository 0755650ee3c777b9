"""Random numbers: drawn once, at trace time, from the seed in the model (or a fixed one)."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.node import OnnxNode, as_tensor, converts
from lamina.convert.onnx.proto import dtype_of


def _generator(node: OnnxNode) -> np.random.Generator:
    """The node's own generator: the same for the same seed and output."""
    words = np.frombuffer(np.array([node.get("seed", 0.0)], np.float32).tobytes(), np.uint32)
    return np.random.default_rng([int(words[0]), *"".join(node.outputs).encode()])


@converts("RandomNormal", "RandomNormalLike")
def normal(node: OnnxNode) -> Any:
    """Normally distributed numbers."""
    drawn = _generator(node).normal(node.get("mean", 0.0), node.get("scale", 1.0), _shape(node))
    return as_tensor(drawn, _dtype(node))


@converts("RandomUniform", "RandomUniformLike")
def uniform(node: OnnxNode) -> Any:
    """Uniformly distributed numbers."""
    drawn = _generator(node).uniform(node.get("low", 0.0), node.get("high", 1.0), _shape(node))
    return as_tensor(drawn, _dtype(node))


@converts("Bernoulli")
def bernoulli(node: OnnxNode) -> Any:
    """1 with the input's probability, else 0."""
    x = node.input(0)
    drawn = as_tensor(_generator(node).uniform(0, 1, x.shape), x.dtype)
    return ops.cast(ops.lt(drawn, x), _dtype(node))


def _shape(node: OnnxNode) -> tuple[int, ...]:
    given = node.optional(0)
    return tuple(node.needed("shape")) if given is None else given.shape


def _dtype(node: OnnxNode) -> Any:
    code, given = node.get("dtype"), node.optional(0)
    return dtype_of(code) if code else dtype_of(1) if given is None else given.dtype
