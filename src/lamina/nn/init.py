"""Initial values of parameters, written in place. Names and defaults are those of torch.nn.init.

Each call draws from its own stream, numbered in the order of the calls since `manual_seed`; a generator of
NumPy may be given instead. Values are drawn on the host in float32, so every device starts from the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

import numpy as np

from lamina._lazy import listing
from lamina.nn.random import streams
from lamina.spec import Shape, ShapeError
from lamina.tensors import Tensor

__all__ = [
    "Layer",
    "constant_",
    "fans",
    "gain",
    "he_",
    "he_out_",
    "initialize",
    "kaiming_normal_",
    "kaiming_uniform_",
    "lecun_",
    "normal_",
    "ones_",
    "scheme",
    "small_",
    "torch_",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]
__dir__ = listing(__all__)


T = TypeVar("T", bound=Tensor)


class Layer(Protocol):
    """What has a weight and perhaps a bias."""

    weight: Any
    bias: Any


def fans(shape: Shape) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight of shape (out, in, *kernel). Raises ShapeError below rank 2."""
    if len(shape) < 2:
        raise ShapeError(f"init: fan in and out need a weight of rank 2 or more, got shape {shape}")
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


def gain(nonlinearity: str = "linear", slope: float = 0.01) -> float:
    """The factor that keeps the variance through a nonlinearity: torch.nn.init.calculate_gain."""
    known = {
        "linear": 1.0,
        "conv": 1.0,
        "sigmoid": 1.0,
        "tanh": 5 / 3,
        "relu": math.sqrt(2),
        "leaky_relu": math.sqrt(2 / (1 + slope**2)),
        "selu": 0.75,
    }
    if nonlinearity not in known:
        raise ValueError(f"init: unknown nonlinearity {nonlinearity!r}; known: {', '.join(known)}")
    return known[nonlinearity]


def uniform_(x: T, low: float = 0.0, high: float = 1.0, rng: np.random.Generator | None = None) -> T:
    """Uniform between low and high."""
    drawn = (rng or streams.next()).random(x.shape, np.float32)
    drawn *= np.float32(high - low)
    drawn += np.float32(low)
    return x.copy_(drawn)


def normal_(x: T, mean: float = 0.0, std: float = 1.0, rng: np.random.Generator | None = None) -> T:
    """Normal with this mean and deviation."""
    drawn = (rng or streams.next()).standard_normal(x.shape, np.float32)
    drawn *= np.float32(std)
    drawn += np.float32(mean)
    return x.copy_(drawn)


def constant_(x: T, value: float) -> T:
    """The same value everywhere."""
    return x.copy_(np.full(x.shape, value, np.float32))


def zeros_(x: T) -> T:
    """Zeros."""
    return constant_(x, 0.0)


def ones_(x: T) -> T:
    """Ones."""
    return constant_(x, 1.0)


def kaiming_uniform_(
    x: T, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", rng: Any = None
) -> T:
    """Uniform with deviation gain / √fan (He et al. 2015)."""
    bound = math.sqrt(3.0) * gain(nonlinearity, a) / math.sqrt(_fan(x, mode))
    return uniform_(x, -bound, bound, rng)


def kaiming_normal_(
    x: T, a: float = 0.0, mode: str = "fan_in", nonlinearity: str = "leaky_relu", rng: Any = None
) -> T:
    """Normal with deviation gain / √fan (He et al. 2015)."""
    return normal_(x, 0.0, gain(nonlinearity, a) / math.sqrt(_fan(x, mode)), rng)


def xavier_uniform_(x: T, gain: float = 1.0, rng: np.random.Generator | None = None) -> T:
    """Uniform with deviation gain · √(2 / (fan_in + fan_out)) (Glorot & Bengio 2010)."""
    bound = gain * math.sqrt(6.0 / sum(fans(x.shape)))
    return uniform_(x, -bound, bound, rng)


def xavier_normal_(x: T, gain: float = 1.0, rng: np.random.Generator | None = None) -> T:
    """Normal with deviation gain · √(2 / (fan_in + fan_out)) (Glorot & Bengio 2010)."""
    return normal_(x, 0.0, gain * math.sqrt(2.0 / sum(fans(x.shape))), rng)


def torch_(layer: Layer) -> None:
    """What torch gives convolutions and linear layers: weight and bias uniform within 1/√fan_in."""
    weight, bias = layer.weight, layer.bias
    kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        bound = 1 / math.sqrt(fans(weight.shape)[0])
        uniform_(bias, -bound, bound)


def he_(layer: Layer) -> None:
    """Weights from He's normal distribution for layers that a ReLU follows, biases zero."""
    kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        zeros_(layer.bias)


def he_out_(layer: Layer) -> None:
    """Weights from He's normal distribution by fan out, biases zero: torchvision's convolutions."""
    kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    if layer.bias is not None:
        zeros_(layer.bias)


def small_(layer: Layer) -> None:
    """Weights normal with deviation 0.01, biases zero: torchvision's classifiers after convolutions."""
    normal_(layer.weight, 0.0, 0.01)
    if layer.bias is not None:
        zeros_(layer.bias)


def lecun_(layer: Layer) -> None:
    """Weights normal with deviation 1 / √fan_in, biases zero (LeCun, Bottou, Orr & Müller 1998)."""
    normal_(layer.weight, 0.0, 1 / math.sqrt(fans(layer.weight.shape)[0]))
    if layer.bias is not None:
        zeros_(layer.bias)


_scheme: ContextVar[Callable[[Layer], None]] = ContextVar("lamina_init", default=torch_)


@contextmanager
def scheme(initialize: Callable[[Layer], None]) -> Iterator[None]:
    """Layers that are made within the block start from what `initialize` writes into their parameters."""
    token = _scheme.set(initialize)
    try:
        yield
    finally:
        _scheme.reset(token)


def initialize(layer: Layer) -> None:
    """Give a new layer its initial values, by the scheme in force."""
    _scheme.get()(layer)


def _fan(x: Tensor, mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"init: mode must be 'fan_in' or 'fan_out', got {mode!r}")
    return max(fans(x.shape)[mode == "fan_out"], 1)
