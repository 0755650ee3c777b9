"""In-place initialization of parameters. Names and defaults are those of torch.nn.init.

`skipped()` disables it, for networks whose weights are loaded next.

Each call draws from its own stream, numbered in call order since `manual_seed`; a NumPy generator may be given
instead. Values are drawn on the host in float32, so every device starts from the same ones.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import partial, wraps
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from lamina._lazy import listing
from lamina._renamed import renamed
from lamina.nn.random import PART, streams
from lamina.ops.arguments import checked
from lamina.ops.core import recorder
from lamina.runtime import usable_cores
from lamina.spec import Shape, ShapeError, float32
from lamina.tensors import Tensor

__all__ = [
    "Layer",
    "calculate_gain",
    "constant_",
    "dirac_",
    "eye_",
    "fans",
    "he_",
    "he_out_",
    "initialize",
    "kaiming_normal_",
    "kaiming_uniform_",
    "lecun_",
    "normal_",
    "ones_",
    "orthogonal_",
    "scheme",
    "skipped",
    "small_",
    "sparse_",
    "torch_",
    "trunc_normal_",
    "truncated",
    "uniform_",
    "xavier_normal_",
    "xavier_uniform_",
    "zeros_",
]
__dir__ = listing(__all__)


T = TypeVar("T", bound=Tensor)
W = TypeVar("W", bound=Callable[..., Any])
_skipped: ContextVar[bool] = ContextVar("lamina_init_skipped", default=False)

#: Deviations from the mode beyond which nothing is drawn: there the density is e^-72 of the highest.
_FAR = 12.0


@contextmanager
def skipped() -> Iterator[None]:
    """Within the block the functions of this module do nothing: tensors keep their values.

    For networks whose weights are loaded next: until then they hold arbitrary values.
    """
    token = _skipped.set(True)
    try:
        yield
    finally:
        _skipped.reset(token)


def _skippable(write: W) -> W:
    """A function that initializes a tensor, except within `skipped`."""

    @wraps(write)
    def call(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        return tensor if _skipped.get() else write(tensor, *args, **kwargs)

    return cast(W, call)


class Layer(Protocol):
    """A layer with a weight and possibly a bias."""

    weight: Any
    bias: Any


@checked
def fans(shape: Shape) -> tuple[int, int]:
    """(fan_in, fan_out) of a weight of shape (out, in, *kernel). Raises ShapeError below rank 2."""
    if len(shape) < 2:
        raise ShapeError(f"init: fan in and out need a weight of rank 2 or more, got shape {shape}")
    field = math.prod(shape[2:])
    return shape[1] * field, shape[0] * field


#: Nonlinearities with a gain of 1 in `calculate_gain`.
_LINEAR = ("linear", "sigmoid", *(f"conv{t}{n}d" for t in ("", "_transpose") for n in (1, 2, 3)))


@checked
def calculate_gain(nonlinearity: str = "linear", param: float | None = None) -> float:
    """The gain that preserves the variance through a nonlinearity.

    nonlinearity: "linear", "conv2d" and the like, "sigmoid", "tanh", "relu", "selu", or "leaky_relu", whose slope is
    param (0.01). Raises ValueError for others.
    """
    slope = 0.01 if param is None else param
    known = {
        **dict.fromkeys(_LINEAR, 1.0),
        "tanh": 5 / 3,
        "relu": math.sqrt(2),
        "leaky_relu": math.sqrt(2 / (1 + slope**2)),
        "selu": 0.75,
    }
    if nonlinearity not in known:
        raise ValueError(f"init: unknown nonlinearity {nonlinearity!r}; known: {', '.join(known)}")
    return known[nonlinearity]


Numbers = np.random.Generator | None


@renamed(low="a", high="b", rng="generator")
@_skippable
@checked
def uniform_(tensor: T, a: float = 0.0, b: float = 1.0, generator: Numbers = None) -> T:
    """Uniform between a and b."""
    return _filled(tensor, _scaled("random", a, b - a), generator)


@renamed(rng="generator")
@_skippable
@checked
def normal_(tensor: T, mean: float = 0.0, std: float = 1.0, generator: Numbers = None) -> T:
    """Normal with this mean and standard deviation."""
    return _filled(tensor, _scaled("standard_normal", mean, std), generator)


@_skippable
@checked
def trunc_normal_(
    tensor: T, mean: float = 0.0, std: float = 1.0, a: float = -2.0, b: float = 2.0, generator: Numbers = None
) -> T:
    """Normal with this mean and standard deviation, redrawn outside [a, b]; a and b may be infinite.

    Raises ValueError unless a < b, std > 0, and mean and std are finite.
    """
    if not a < b or not 0 < std < math.inf or not math.isfinite(mean):
        raise ValueError(
            "init.trunc_normal_: needs a < b, std > 0, and finite mean and std, "
            f"got mean={mean}, std={std}, a={a}, b={b}"
        )
    within = (math.erf((b - mean) / std / math.sqrt(2)) - math.erf((a - mean) / std / math.sqrt(2))) / 2
    if within > 0.3:
        normal = _scaled("standard_normal", mean, std)

        def draw(rng: np.random.Generator, values: Any) -> Any:
            normal(rng, values)
            return (values >= np.float32(a)) & (values <= np.float32(b))

    else:  # rejection sampling from uniform candidates; within the bounds the density peaks at `mode`
        mode = min(max(mean, a), b)
        low, high = max(a, mode - _FAR * std), min(b, mode + _FAR * std)
        uniform = _scaled("random", low, high - low)

        def draw(rng: np.random.Generator, values: Any) -> Any:
            uniform(rng, values)
            height = ((mode - mean) ** 2 - (values.astype(np.float64) - mean) ** 2) / (2 * std**2)
            return rng.random(len(values)) < np.exp(height)

    def fill(rng: np.random.Generator, values: Any) -> None:
        pending = np.flatnonzero(~draw(rng, values))
        while pending.size:
            again = np.empty(pending.size, np.float32)
            kept = draw(rng, again)
            values[pending] = again
            pending = pending[~kept]

    return _filled(tensor, fill, generator)


@renamed(value="val")
@_skippable
@checked
def constant_(tensor: T, val: float) -> T:
    """The same value everywhere."""
    return tensor.copy_(np.full(tensor.shape, val, np.float32))


@checked
def zeros_(tensor: T) -> T:
    """Zeros."""
    return constant_(tensor, 0.0)


@checked
def ones_(tensor: T) -> T:
    """Ones."""
    return constant_(tensor, 1.0)


@_skippable
@checked
def eye_(tensor: T) -> T:
    """The identity, truncated to a matrix of any size. Raises ShapeError for another rank."""
    _check_rank("eye_", tensor, (2,))
    return tensor.copy_(np.eye(*tensor.shape, dtype=np.float32))


@_skippable
@checked
def dirac_(tensor: T, groups: int = 1) -> T:
    """A convolution weight (out, in / groups, *kernel) that passes the input's channels through, as many as fit.

    1 at the kernel's center from each channel of a group to the output channel of the same number. Raises ShapeError
    unless the rank is 3 to 5 and out a multiple of groups.
    """
    _check_rank("dirac_", tensor, (3, 4, 5))
    if groups < 1 or tensor.shape[0] % groups:
        raise ShapeError(f"init.dirac_: shape {tensor.shape} cannot be shared by {groups} groups")
    values = np.zeros(tensor.shape, np.float32)
    outputs = tensor.shape[0] // groups
    channels = np.arange(min(outputs, tensor.shape[1]))
    taps = values.reshape(*tensor.shape[:2], -1)
    middle = np.ravel_multi_index([size // 2 for size in tensor.shape[2:]], tensor.shape[2:])
    for first in range(0, tensor.shape[0], outputs or 1):
        taps[first + channels, channels, middle] = 1
    return tensor.copy_(values)


@_skippable
@checked
def orthogonal_(tensor: T, gain: float = 1.0, generator: Numbers = None) -> T:
    """gain times a matrix with orthonormal rows or columns, whichever are fewer, of shape (rows, all other axes).

    Uniformly distributed among these (Saxe et al. 2014). Raises ShapeError below rank 2.
    """
    if len(tensor.shape) < 2:
        raise ShapeError(f"init.orthogonal_: needs a rank of 2 or more, got shape {tensor.shape}")
    rng, rows = generator or streams.next(), tensor.shape[0]
    if 0 in tensor.shape:
        return tensor
    drawn = rng.standard_normal((rows, math.prod(tensor.shape[1:])))
    tall = drawn if drawn.shape[0] >= drawn.shape[1] else drawn.T
    q, r = np.linalg.qr(tall)
    q = q * np.where(np.diag(r) < 0, -1.0, 1.0)  # the signs make the distribution uniform
    found = q if tall is drawn else q.T
    return tensor.copy_((gain * found).astype(np.float32).reshape(tensor.shape))


@_skippable
@checked
def sparse_(tensor: T, sparsity: float, std: float = 0.01, generator: Numbers = None) -> T:
    """Normal with mean 0, and in each column ⌈sparsity · rows⌉ zeros (Martens 2010).

    Raises ShapeError unless it is a matrix, ValueError for a sparsity outside [0, 1].
    """
    _check_rank("sparse_", tensor, (2,))
    if not 0 <= sparsity <= 1:
        raise ValueError(f"init.sparse_: sparsity must be in [0, 1], got {sparsity}")
    rng = generator or streams.next()
    values = _drawn(tensor.shape, _scaled("standard_normal", 0.0, std), rng)
    order = rng.permuted(np.broadcast_to(np.arange(tensor.shape[0])[:, None], tensor.shape), axis=0)
    zeros = order[: math.ceil(sparsity * tensor.shape[0])]
    np.put_along_axis(values, zeros, 0.0, axis=0)
    return tensor.copy_(values)


@renamed(rng="generator")
@checked
def kaiming_uniform_(
    tensor: T,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Numbers = None,
) -> T:
    """Uniform with standard deviation gain / √fan (He et al. 2015)."""
    bound = math.sqrt(3.0) * calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode))
    return uniform_(tensor, -bound, bound, generator)


@renamed(rng="generator")
@checked
def kaiming_normal_(
    tensor: T,
    a: float = 0.0,
    mode: str = "fan_in",
    nonlinearity: str = "leaky_relu",
    generator: Numbers = None,
) -> T:
    """Normal with standard deviation gain / √fan (He et al. 2015)."""
    return normal_(tensor, 0.0, calculate_gain(nonlinearity, a) / math.sqrt(_fan(tensor, mode)), generator)


@renamed(rng="generator")
@checked
def xavier_uniform_(tensor: T, gain: float = 1.0, generator: Numbers = None) -> T:
    """Uniform with standard deviation gain · √(2 / (fan_in + fan_out)) (Glorot & Bengio 2010)."""
    bound = gain * math.sqrt(6.0 / sum(fans(tensor.shape)))
    return uniform_(tensor, -bound, bound, generator)


@renamed(rng="generator")
@checked
def xavier_normal_(tensor: T, gain: float = 1.0, generator: Numbers = None) -> T:
    """Normal with standard deviation gain · √(2 / (fan_in + fan_out)) (Glorot & Bengio 2010)."""
    return normal_(tensor, 0.0, gain * math.sqrt(2.0 / sum(fans(tensor.shape))), generator)


@checked
def torch_(layer: Layer) -> None:
    """torch's default for convolutions and linear layers: weight and bias uniform within 1/√fan_in."""
    weight, bias = layer.weight, layer.bias
    kaiming_uniform_(weight, a=math.sqrt(5))
    if bias is not None:
        bound = 1 / math.sqrt(fans(weight.shape)[0])
        uniform_(bias, -bound, bound)


@checked
def he_(layer: Layer) -> None:
    """Weights from He's normal distribution for layers followed by a ReLU, biases zero."""
    kaiming_normal_(layer.weight, nonlinearity="relu")
    if layer.bias is not None:
        zeros_(layer.bias)


@checked
def he_out_(layer: Layer) -> None:
    """Weights from He's normal distribution by fan out, biases zero: torchvision's convolutions."""
    kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    if layer.bias is not None:
        zeros_(layer.bias)


@checked
def small_(layer: Layer) -> None:
    """Weights normal with standard deviation 0.01, biases zero: torchvision's classifiers after convolutions."""
    normal_(layer.weight, 0.0, 0.01)
    if layer.bias is not None:
        zeros_(layer.bias)


@checked
def truncated(std: float) -> Callable[[Layer], None]:
    """A scheme: weights normal with standard deviation std, redrawn beyond ±2, biases zero."""

    def write(layer: Layer) -> None:
        trunc_normal_(layer.weight, std=std)
        if layer.bias is not None:
            zeros_(layer.bias)

    return write


@checked
def lecun_(layer: Layer) -> None:
    """Weights normal with standard deviation 1 / √fan_in, biases zero (LeCun, Bottou, Orr & Müller 1998)."""
    normal_(layer.weight, 0.0, 1 / math.sqrt(fans(layer.weight.shape)[0]))
    if layer.bias is not None:
        zeros_(layer.bias)


_scheme: ContextVar[Callable[[Layer], None]] = ContextVar("lamina_init", default=torch_)


@contextmanager
@checked
def scheme(initialize: Callable[[Layer], None]) -> Iterator[None]:
    """Layers constructed within the block are initialized by `initialize`."""
    token = _scheme.set(initialize)
    try:
        yield
    finally:
        _scheme.reset(token)


@checked
def initialize(layer: Layer) -> None:
    """Initialize a new layer by the scheme in force."""
    _scheme.get()(layer)


def _fan(tensor: Tensor, mode: str) -> int:
    if mode not in ("fan_in", "fan_out"):
        raise ValueError(f"init: mode must be 'fan_in' or 'fan_out', got {mode!r}")
    return max(fans(tensor.shape)[mode == "fan_out"], 1)


#: Numbers drawn at a time: they are scaled and shifted while they are in the cache.
_BLOCK = 1 << 14
#: Fills a block of values with draws.
_Fill = Callable[[np.random.Generator, np.ndarray[Any, Any]], None]


def _scaled(distribution: str, shift: float, scale: float) -> _Fill:
    """shift + scale * the draws of a generator's method of this name."""

    def fill(rng: np.random.Generator, values: np.ndarray[Any, Any]) -> None:
        getattr(rng, distribution)(dtype=np.float32, out=values)
        values *= np.float32(scale)
        values += np.float32(shift)

    return fill


def _filled(tensor: T, fill: _Fill, generator: Numbers) -> T:
    """The draws, directly in the tensor's memory if that is float32 on the host."""
    if tensor.device.kind != "cpu" or tensor.dtype != float32 or recorder() is not None:
        return tensor.copy_(_drawn(tensor.shape, fill, generator))
    if tensor.read_only or not tensor.is_contiguous():
        return tensor.copy_(_drawn(tensor.shape, fill, generator))
    _draw_into(tensor.numpy().reshape(-1), fill, generator)
    return tensor


def _drawn(shape: Shape, fill: _Fill, generator: Numbers) -> np.ndarray[Any, Any]:
    values = np.empty(shape, np.float32)
    _draw_into(values.reshape(-1), fill, generator)
    return values


def _draw_into(values: np.ndarray[Any, Any], fill: _Fill, generator: Numbers) -> None:
    """Fill values from a given generator, or from the next stream, whose parts several threads draw."""

    def part(rng: np.random.Generator, start: int, count: int) -> None:
        for at in range(start, min(start + count, len(values)), _BLOCK):
            fill(rng, values[at : min(at + _BLOCK, start + count)])

    if generator is not None or len(values) <= PART:
        return part(generator or streams.next(), 0, len(values))
    starts = range(0, len(values), PART)
    with ThreadPoolExecutor(min(len(starts), usable_cores())) as threads:
        done = threads.map(partial(part, count=PART), streams.parts(len(starts)), starts)
        deque(done, maxlen=0)  # re-raises their exceptions
    return None


def _check_rank(name: str, tensor: Tensor, ranks: tuple[int, ...]) -> None:
    if len(tensor.shape) not in ranks:
        raise ShapeError(f"init.{name}: needs rank {' or '.join(map(str, ranks))}, got shape {tensor.shape}")
