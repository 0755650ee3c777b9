"""Random tensors with torch's names, from a generator whose state advances: by default the default one.

Draws depend only on the generator's seed and counter: the same on every device, and from run to run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, SupportsIndex

import numpy as np

from lamina.ops.arguments import DTypeLike, checked, one_by_one, shown, within
from lamina.ops.core import DeviceLike, bind, operand
from lamina.ops.in_place import with_inplace
from lamina.ops.primitives.cast import cast
from lamina.ops.primitives.gather import gather
from lamina.ops.primitives.generator import GeneratorLike
from lamina.ops.primitives.generator import drawn as drawn_by
from lamina.ops.primitives.loss import one_hot
from lamina.ops.primitives.marker import stop_gradient
from lamina.ops.primitives.pointwise import floor, leaky_relu, log, where
from lamina.ops.primitives.random import RandomNormal, RandomUniform, drawn
from lamina.ops.primitives.scan import cumsum
from lamina.ops.primitives.softmax import softmax
from lamina.ops.primitives.sort import argsort, topk
from lamina.spec import (
    DType,
    DTypeError,
    Shape,
    ShapeError,
    as_dtype,
    as_shape,
    float32,
    float64,
    int64,
    normalize_axis,
)

#: Two draws of 24 bits are combined into 48.
_FINE = 2.0**-24
#: Weights of categories are rounded up to multiples of this fraction of the largest one: their float64 sums are
#: exact.
_PARTS = 2.0**28


def _uniform(
    shape: Shape,
    dtype: DType,
    generator: Any,
    beside: Any,
    low: float = 0.0,
    high: float = 1.0,
    outer: Shape = (),
) -> Any:
    """[*outer, *shape], where each of the ranks of a data-parallel run has its part along the first axis of shape."""

    def draw(state: Any, sizes: Shape) -> Any:
        return bind(RandomUniform(sizes, dtype, low, high), state)

    return drawn_by(lambda held: drawn(held, shape, draw, outer), generator, beside)


def _normal(
    shape: Shape, dtype: DType, generator: Any, beside: Any, mean: float = 0.0, std: float = 1.0
) -> Any:
    def draw(state: Any, sizes: Shape) -> Any:
        return bind(RandomNormal(sizes, dtype, mean, std), state)

    return drawn_by(lambda held: drawn(held, shape, draw), generator, beside)


def _fine(shape: Shape, generator: Any, beside: Any, outer: Shape = ()) -> Any:
    """float64 [*outer, *shape] in [0, 1), multiples of 2^-48."""
    both = _uniform(shape, float64, generator, beside, outer=(2, *outer))
    return both[0] + both[1] * _FINE


def _float(what: str, dtype: DTypeLike) -> DType:
    kind = as_dtype(dtype)
    if not kind.is_float:
        raise DTypeError(f"{what}: dtype must be a float, got {kind}")
    return kind


def _size(what: str, size: tuple[Any, ...]) -> Shape:
    """A size as separate ints, or as one sequence."""
    given = size[0] if len(size) == 1 and not isinstance(size[0], (int, np.integer)) else size
    return as_shape(given, f"{what}: size")


@one_by_one
@checked
def rand(
    *size: SupportsIndex | Sequence[SupportsIndex],
    generator: GeneratorLike | None = None,
    dtype: DTypeLike = float32,
    device: DeviceLike | str | None = None,
) -> Any:
    """Uniform numbers in [0, 1), as torch.rand. generator: an nn.Generator, by default the default one."""
    return _uniform(_size("rand", size), _float("rand", dtype), generator, device)


@one_by_one
@checked
def randn(
    *size: SupportsIndex | Sequence[SupportsIndex],
    generator: GeneratorLike | None = None,
    dtype: DTypeLike = float32,
    device: DeviceLike | str | None = None,
) -> Any:
    """Standard normal numbers, as torch.randn; generator as in `rand`."""
    return _normal(_size("randn", size), _float("randn", dtype), generator, device)


@checked
def rand_like(
    input: Any,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | str | None = None,
) -> Any:
    """`rand` with input's size, on its device and in its dtype unless one is given."""
    x = operand(input, "rand_like")
    return _uniform(x.shape, _float("rand_like", dtype or x.dtype), generator, device or x)


@checked
def randn_like(
    input: Any,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | str | None = None,
) -> Any:
    """`randn` with input's size, on its device and in its dtype unless one is given."""
    x = operand(input, "randn_like")
    return _normal(x.shape, _float("randn_like", dtype or x.dtype), generator, device or x)


@checked
def normal(
    mean: Any = 0.0,
    std: Any = 1.0,
    size: Sequence[SupportsIndex] | None = None,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | str | None = None,
) -> Any:
    """Normally distributed numbers, as torch.normal: mean and std are tensors that broadcast or (with size) numbers.

    Differentiable in mean and std, for fixed draws. Raises ShapeError without a size or a tensor.
    """
    tensors = [x for x in (mean, std) if not isinstance(x, (int, float, np.generic))]
    if size is not None and tensors:
        raise ShapeError("normal: size belongs to a mean and a std that are numbers; tensors have theirs")
    if size is None and not tensors:
        raise ShapeError(f"normal: mean {shown(mean)} and std {shown(std)} are numbers: give a size")
    if size is not None:
        kind = _float("normal", dtype or float32)
        shape = as_shape(size, "normal: size")
        within("normal", "std", std, 0)
        return _normal(shape, kind, generator, device, float(mean), float(std))
    centre = operand(mean, "normal", "mean") + operand(std, "normal", "std") * 0
    return centre + operand(std) * randn_like(centre, generator=generator, dtype=dtype)


@checked
def bernoulli(input: Any, p: float | None = None, *, generator: GeneratorLike | None = None) -> Any:
    """1 with the probability given by each element of input, else 0, in input's dtype; as torch.bernoulli.

    p: one probability for all; input then only gives size and dtype. Raises DTypeError for probabilities that are not
    floats, ValueError for p outside [0, 1].
    """
    x = operand(input, "bernoulli")
    if p is not None:
        within("bernoulli", "p", p, 0, 1)
        return cast(_uniform(x.shape, float32, generator, x) < p, x.dtype)
    if not x.dtype.is_float:
        raise DTypeError(f"bernoulli: input must be probabilities, got {x.spec}; cast with ops.cast")
    kind = x.dtype.compute
    return cast(_uniform(x.shape, kind, generator, x) < cast(stop_gradient(x), kind), x.dtype)


@checked
def randint(
    low: int,
    high: Any = None,
    size: Any = None,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike = int64,
    device: DeviceLike | str | None = None,
) -> Any:
    """Integers in low … high - 1, uniformly, as torch.randint: (low, high, size), or (high, size) from 0.

    Raises ValueError unless low < high, at most 2^48 apart.
    """
    if size is None:
        low, high, size = 0, low, high
    if not isinstance(high, (int, np.integer)) or size is None:
        raise TypeError(
            f"randint: needs (low, high, size) or (high, size), got high {shown(high)}, size {shown(size)}"
        )
    if not low < high or high - low > 2**48:
        raise ValueError(f"randint: low must be < high, at most 2^48 apart, got {low} and {high}")
    unit = _fine(as_shape(size, "randint: size"), generator, device)
    return cast(cast(floor(unit * float(high - low)), int64) + int(low), as_dtype(dtype))


@checked
def randint_like(
    input: Any,
    low: int,
    high: int | None = None,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike | None = None,
    device: DeviceLike | str | None = None,
) -> Any:
    """`randint` with input's size, on its device and in its dtype unless one is given: (input, high) from 0."""
    x = operand(input, "randint_like")
    first, last = (0, low) if high is None else (low, high)
    return randint(first, last, x.shape, generator=generator, dtype=dtype or x.dtype, device=device or x)


@checked
def randperm(
    n: int,
    *,
    generator: GeneratorLike | None = None,
    dtype: DTypeLike = int64,
    device: DeviceLike | str | None = None,
) -> Any:
    """A uniformly random permutation of 0 … n - 1, as torch.randperm. Raises ValueError for n < 0."""
    within("randperm", "n", n, 0)
    return cast(argsort(_fine((), generator, device, outer=(n,))), as_dtype(dtype))


@checked
def multinomial(
    input: Any, num_samples: int, replacement: bool = False, *, generator: GeneratorLike | None = None
) -> Any:
    """int64 [..., num_samples]: categories drawn with weights input [..., C]; as torch.multinomial.

    input: [C] or [B, C], nonnegative weights that need not sum to 1; categories of weight 0 are not drawn.
    replacement: a category may be drawn again; without, num_samples is at most C, and if fewer have a positive weight
    the rest are zero-weight ones.
    """
    weights = operand(input, "multinomial")
    if not weights.dtype.is_float:
        raise DTypeError(f"multinomial: input must be floats, got {weights.spec}; cast with ops.cast")
    if weights.ndim not in (1, 2) or not weights.shape[-1]:
        raise ShapeError(f"multinomial: input must be weights [C] or [B, C], got {weights.spec}")
    within("multinomial", "num_samples", num_samples, 1, float("inf") if replacement else weights.shape[-1])
    wide = cast(stop_gradient(weights), float64)
    if weights.ndim == 1:
        return multinomial(wide.unsqueeze(0), num_samples, replacement, generator=generator).squeeze(0)
    return (_again if replacement else _once)(wide, int(num_samples), generator)


def _again(weights: Any, count: int, generator: Any) -> Any:
    """[B, count] from float64 weights [B, C]: the positions of uniform numbers up to the sum in the partial sums.

    Weights become integers first, so that the sums are exact and no category of weight 0 is drawn.
    """
    rows, classes = weights.shape
    whole = -floor(-weights * (_PARTS / weights.amax(1, keepdim=True)))
    sums = cumsum(whole, 1)
    at = floor(_fine((rows, count), generator, weights) * sums[:, -1:]) + 1
    found, step = at.cast(int64) * 0, 1 << (classes - 1).bit_length()
    while step:  # binary search: how many sums are below
        probe = found + (step - 1)
        inside = probe < classes
        below = gather(sums, 1, where(inside, probe, 0)) < at
        found = where(inside & below, found + step, found)
        step //= 2
    return found


def _once(weights: Any, count: int, generator: Any) -> Any:
    """[B, count] from weights [B, C]: the largest of weight / exponential (Efraimidis & Spirakis 2006)."""
    _rows, _classes = weights.shape
    return topk(weights / exponential(weights, generator), count, 1).indices


def exponential(like: Any, generator: Any) -> Any:
    """Exponentially distributed numbers with the size of `like`, in its compute dtype; never 0."""
    kind = like.dtype.compute
    return -log(_uniform(like.shape, kind, generator, like, _FINE, 1.0))


@checked
def gumbel_softmax(
    logits: Any,
    tau: float = 1.0,
    hard: bool = False,
    eps: float = 1e-10,
    dim: int = -1,
    *,
    generator: GeneratorLike | None = None,
) -> Any:
    """Samples of the Gumbel-softmax distribution (Jang et al. 2017), as torch.nn.functional.gumbel_softmax.

    It is softmax((logits + g) / tau) along dim, with g Gumbel-distributed; hard: one-hot in the largest, with the
    gradient of the soft samples. eps is unused, as in torch. Raises ValueError for tau <= 0.
    """
    within("gumbel_softmax", "tau", tau, 0, open=True)
    x = operand(logits, "gumbel_softmax", "logits")
    if not x.dtype.is_float:
        raise DTypeError(f"gumbel_softmax: logits must be floats, got {x.spec}; cast with ops.cast")
    axis = normalize_axis(dim, x.ndim, "gumbel_softmax")
    y = softmax((x - cast(log(exponential(x, generator)), x.dtype)) * (1 / tau), axis)
    if not hard:
        return y
    chosen = one_hot(y.argmax(axis), x.shape[axis], dtype=x.dtype, dim=axis)
    return chosen + (y - stop_gradient(y))


@checked
@with_inplace
def rrelu(
    input: Any,
    lower: float = 1 / 8,
    upper: float = 1 / 3,
    training: bool = False,
    inplace: bool = False,
    *,
    generator: GeneratorLike | None = None,
) -> Any:
    """x where x > 0, slope · x elsewhere: slopes uniform in [lower, upper) in training, else their mean.

    As torch.nn.functional.rrelu (Xu et al. 2015). inplace: write the result over input, too. generator: an
    nn.Generator, by default the default one. Raises ValueError unless lower <= upper.
    """
    if not lower <= upper:
        raise ValueError(f"rrelu: lower must be at most upper, got {lower} and {upper}")
    x = operand(input, "rrelu")
    if not training:
        return leaky_relu(x, (lower + upper) / 2)
    return where(x > 0, x, x * _uniform(x.shape, x.dtype, generator, x, lower, upper))
