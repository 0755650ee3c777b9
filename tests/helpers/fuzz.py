"""Random convolutions, pools, products, sums, gathers and scatters of small integers, against their definitions.

    python -m tests.helpers.fuzz --backend cpu --count 1000
    python -m tests.helpers.fuzz --backend cpu --seed 3 --only 417        one case again

Sums of such small integers are exact in float32, so results must be equal, not close. Averages, which divide, are
equal within one rounding; convolutions by Winograd's algorithm, whose transforms divide, after rounding.
Prints one line per mismatch, with the command that reproduces it.
"""

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from operator import add, mul
from pathlib import Path
from typing import get_args

import ml_dtypes
import numpy as np

from lamina import backends
from lamina.ops.core import Array, Op
from lamina.ops.primitives import (
    AvgPool,
    AvgPoolGrad,
    Conv,
    ConvDataGrad,
    ConvFilterGrad,
    Gather,
    Matmul,
    MaxPool,
    MaxPoolGrad,
    Reduce,
    Scatter,
    Window,
)
from lamina.ops.primitives.gather import ScatterMode
from lamina.ops.primitives.pool import index_dtype
from lamina.runtime import Device
from lamina.spec import DType, Shape, Spec, as_dtype, channels_last, contiguous, float32
from tests.helpers import definitions
from tests.helpers.eager import run_on

SHAPES = Path(__file__).with_name("network_convolutions.txt")


@dataclass(frozen=True)
class Case:
    """An op, its inputs, its expected outputs, and the tolerance (0: equal)."""

    op: Op
    arrays: list[Array]
    wanted: list[Array]
    tolerance: float = 0.0
    #: Whether a float32 result must only round to the expected whole number.
    rounds: bool = False

    def __str__(self) -> str:
        return f"{self.op} on {' '.join(str(list(a.shape)).replace(' ', '') for a in self.arrays)}"


def _ints(rng: np.random.Generator, shape: Sequence[int], size: int = 2) -> Array:
    return rng.integers(-size, size + 1, tuple(shape)).astype(np.float64)


def _sizes(rng: np.random.Generator, rank: int, low: int, high: int) -> Shape:
    return tuple(int(n) for n in rng.integers(low, high + 1, rank))


def _window(rng: np.random.Generator, rank: int, kernel: Shape, *, pool: bool = False) -> Window:
    dilation = _sizes(rng, rank, 1, 3) if rng.random() < 0.3 else (1,) * rank
    reach = [d * (k - 1) + 1 for k, d in zip(kernel, dilation, strict=True)]
    most = [min(4, r - 1) if pool else 4 for r in reach]
    padding = tuple((int(rng.integers(0, m + 1)), int(rng.integers(0, m + 1))) for m in most)
    if rng.random() < 0.4:
        padding = ((0, 0),) * rank
    elif rng.random() < 0.5:
        padding = tuple((lo, lo) for lo, _ in padding)
    return Window(_sizes(rng, rank, 1, 4), padding, dilation)


def _space(rng: np.random.Generator, window: Window, kernel: Shape) -> Shape:
    """Spatial sizes at least as large as the kernel."""
    pads = (lo + hi for lo, hi in window.padding)
    least = [max(1, s - p) for s, p in zip(window.span(kernel), pads, strict=True)]
    extra = 13 if window.rank == 1 else 8 if window.rank == 2 else 3
    return tuple(n + int(rng.integers(0, extra)) for n in least)


def _conv_parts(rng: np.random.Generator) -> tuple[Window, Shape, Shape]:
    """A window, the shape of x and the shape of w."""
    if rng.random() < 0.5:
        return _network_parts(rng)
    rank = int(rng.choice([1, 2, 2, 2, 3]))
    kernel = _sizes(rng, rank, 1, 5 if rank < 3 else 3)
    plain = _window(rng, rank, kernel)
    groups = int(rng.choice([1, 1, 1, 2, 3, 8]))
    window = Window(plain.stride, plain.padding, plain.dilation, groups, bool(rng.random() < 0.2))
    channels, filters = (int(rng.choice([1, 2, 3, 4, 7, 8, 16, 17])) for _ in range(2))
    if groups > 3:
        channels = filters = 1
    batch = int(rng.integers(1, 4))
    space = _space(rng, window, kernel)
    return window, (batch, channels * groups, *space), (filters * groups, channels, *kernel)


@cache
def network_convolutions() -> tuple[tuple[Window, Shape, Shape], ...]:
    """Windows with the shapes of x (one image) and w of convolutions of published networks.

    Each line of the file: groups, channels, filters, image, kernel, stride, padding, dilation; sizes of 1500 of the
    configurations in oneDNN's benchdnn (tests/benchdnn/inputs/conv) of at most 4e8 multiplications per image.
    """
    return tuple(map(_network, SHAPES.read_text(encoding="utf-8").splitlines()))


def _network(line: str) -> tuple[Window, Shape, Shape]:
    groups, channels, filters, *rest = line.split()
    image, kernel, stride, padding, dilation = (part.split("x") for part in rest)
    pairs = tuple((int(lo), int(hi)) for lo, hi in (p.split(":") for p in padding))
    sizes = [tuple(map(int, part)) for part in (image, kernel, stride, dilation)]
    window = Window(sizes[2], pairs, sizes[3], int(groups))
    return window, (1, int(channels), *sizes[0]), (int(filters), int(channels) // int(groups), *sizes[1])


def _network_parts(rng: np.random.Generator) -> tuple[Window, Shape, Shape]:
    """One of the published configurations, of one image or, where they are small, a few."""
    found = network_convolutions()
    window, xs, ws = found[int(rng.integers(len(found)))]
    batch = int(rng.integers(1, 4)) if np.prod(xs) < 1e5 else 1
    return window, (batch, *xs[1:]), ws


def _conv(rng: np.random.Generator) -> Case:
    window, xs, ws = _conv_parts(rng)
    x, w = _ints(rng, xs), _ints(rng, ws)
    return Case(Conv(window), [x, w], [definitions.conv(window, x, w)], rounds=True)


def _conv_data_grad(rng: np.random.Generator) -> Case:
    window, xs, ws = _conv_parts(rng)
    g, w = _ints(rng, (xs[0], ws[0], *window.output(xs[2:], ws[2:]))), _ints(rng, ws)
    return Case(
        ConvDataGrad(window, xs[2:]), [g, w], [definitions.conv_data_grad(window, g, w, xs[2:])], rounds=True
    )


def _conv_filter_grad(rng: np.random.Generator) -> Case:
    window, xs, ws = _conv_parts(rng)
    x, g = _ints(rng, xs), _ints(rng, (xs[0], ws[0], *window.output(xs[2:], ws[2:])))
    return Case(
        ConvFilterGrad(window, ws[2:]),
        [x, g],
        [definitions.conv_filter_grad(window, x, g, ws[2:])],
        rounds=True,
    )


def _pool_parts(rng: np.random.Generator) -> tuple[Window, Shape, Shape]:
    rank = int(rng.choice([1, 2, 2, 2, 3]))
    kernel = _sizes(rng, rank, 1, 4)
    window = _window(rng, rank, kernel, pool=True)
    channels = int(rng.choice([1, 3, 8, 16, 17]))
    return window, kernel, (int(rng.integers(1, 4)), channels, *_space(rng, window, kernel))


def _max_pool(rng: np.random.Generator) -> Case:
    window, kernel, shape = _pool_parts(rng)
    x = _ints(rng, shape, 3)  # many ties: the first maximum counts
    y, index = definitions.max_pool(window, kernel, x)
    if rng.random() < 0.5:
        return Case(MaxPool(kernel, window, False), [x], [y])
    wanted = [y, index.astype(index_dtype(kernel).numpy)]
    if not _covered(window, kernel, shape[2:]):
        return Case(MaxPool(kernel, window, False), [x], [y])
    return Case(MaxPool(kernel, window, True), [x], wanted)


def _covered(window: Window, kernel: Shape, space: Shape) -> bool:
    """Whether each window meets the input: with dilation one may step over it, and its index is undefined."""
    ones = np.ones((1, 1, *space))
    return bool((definitions.avg_pool(window, kernel, ones, "sum") > 0).all())


def _max_pool_grad(rng: np.random.Generator) -> Case:
    window, kernel, shape = _pool_parts(rng)
    y, index = definitions.max_pool(window, kernel, _ints(rng, shape, 3))
    g = _ints(rng, y.shape)
    op = MaxPoolGrad(kernel, window, shape[2:])
    wanted = definitions.max_pool_grad(window, kernel, g, index, shape[2:])
    return Case(op, [g, index.astype(index_dtype(kernel).numpy)], [wanted])


def _avg_pool(rng: np.random.Generator) -> Case:
    window, kernel, shape = _pool_parts(rng)
    mode = str(rng.choice(["include", "exclude", "sum"]))
    x = _ints(rng, shape)
    wanted = definitions.avg_pool(window, kernel, x, mode)
    return Case(AvgPool(kernel, window, mode), [x], [wanted], 0.0 if mode == "sum" else 1e-6)


def _avg_pool_grad(rng: np.random.Generator) -> Case:
    window, kernel, shape = _pool_parts(rng)
    mode = str(rng.choice(["include", "exclude", "sum"]))
    g = _ints(rng, (*shape[:2], *window.output(shape[2:], kernel)))
    wanted = definitions.avg_pool_grad(window, kernel, g, mode, shape[2:])
    return Case(AvgPoolGrad(kernel, window, mode, shape[2:]), [g], [wanted], 0.0 if mode == "sum" else 1e-6)


def _matmul(rng: np.random.Generator) -> Case:
    batch = _sizes(rng, int(rng.integers(0, 3)), 1, 3)
    m, n, k = (int(v) for v in rng.integers(1, 70, 3))
    ta, tb = bool(rng.random() < 0.5), bool(rng.random() < 0.5)
    a, b = _ints(rng, (*batch, m, k)), _ints(rng, (*batch, k, n))
    wanted = np.einsum("...mk,...kn->...mn", a, b)
    given = [
        np.ascontiguousarray(a.swapaxes(-1, -2)) if ta else a,
        np.ascontiguousarray(b.swapaxes(-1, -2)) if tb else b,
    ]
    return Case(Matmul(ta, tb), given, [wanted])


def _reduce(rng: np.random.Generator) -> Case:
    rank = int(rng.integers(1, 5))
    shape = _sizes(rng, rank, 1, 40 if rank < 3 else 11)
    axes = tuple(sorted(int(a) for a in rng.permutation(rank)[: rng.integers(1, rank + 1)]))
    kind, keep = str(rng.choice(["sum", "max", "min", "norm1", "amax"])), bool(rng.random() < 0.5)
    x = _ints(rng, shape, 3)
    given = np.abs(x) if kind in ("norm1", "amax") else x
    define = {"sum": np.sum, "norm1": np.sum, "min": np.min}.get(kind, np.max)
    return Case(Reduce(kind, axes, keep), [x], [define(given, axis=axes, keepdims=keep)])


def _indexed(rng: np.random.Generator) -> tuple[Array, Array, int]:
    """(x, an index of its rank, the axis); negative numbers count from the end."""
    rank = int(rng.integers(1, 4))
    shape, axis = _sizes(rng, rank, 1, 13), int(rng.integers(rank))
    lines = (*shape[:axis], int(rng.integers(1, 20)), *shape[axis + 1 :])
    index = rng.integers(-shape[axis], shape[axis], lines)
    return _ints(rng, shape, 100), index, axis


def _gather(rng: np.random.Generator) -> Case:
    x, index, axis = _indexed(rng)
    wanted = np.empty(index.shape)
    for place in np.ndindex(index.shape):
        wanted[place] = x[(*place[:axis], index[place], *place[axis + 1 :])]
    return Case(Gather(axis), [x, index], [wanted])


def _scatter(rng: np.random.Generator) -> Case:
    mode: ScatterMode = get_args(ScatterMode)[rng.integers(5)]
    x, index, axis = _indexed(rng)
    source = _ints(rng, index.shape, 2)
    wanted = x.copy()
    combine = {"set": lambda a, b: b, "add": add, "mul": mul, "min": min, "max": max}[mode]
    for place in np.ndindex(index.shape):
        target = (*place[:axis], index[place], *place[axis + 1 :])
        wanted[target] = combine(wanted[target], source[place])
    return Case(Scatter(axis, mode), [x, index, source], [wanted])


MAKERS: tuple[Callable[[np.random.Generator], Case], ...] = (
    _conv, _conv_data_grad, _conv_filter_grad, _max_pool, _max_pool_grad, _avg_pool, _avg_pool_grad, _matmul, _reduce,
    _gather, _scatter,
)  # fmt: skip


def make(seed: int, k: int) -> tuple[Case, np.random.Generator]:
    """Case k of a seed, independent of the cases before it, and the generator for further random choices."""
    rng = np.random.default_rng((seed, k))
    return MAKERS[k % len(MAKERS)](rng), rng


def check(backend: backends.Backend, seed: int, k: int, dtype: DType = float32) -> str:
    """The mismatch of case k on a backend, "" if there is none."""
    case, rng = make(seed, k)
    arrays = [a.astype(dtype.numpy) if a.dtype.kind == "f" else a for a in case.arrays]
    layouts = [_layout(rng, a) for a in arrays]
    try:
        found = run_on(backend, case.op, arrays, layouts)
    except Exception as error:
        return f"{case}: {type(error).__name__}: {error}"
    problems = (_compare(y, w, case, dtype) for y, w in zip(found, case.wanted, strict=True))
    return next((f"{case} from {layouts}: {p}" for p in problems if p), "")


def _layout(rng: np.random.Generator, array: Array) -> Spec:
    """Row-major or channels-last: backends take both."""
    chosen = channels_last if array.ndim > 2 and rng.random() < 0.4 else contiguous
    return Spec(array.shape, as_dtype(array.dtype), chosen(array.shape))


def _compare(found: Array, wanted: Array, case: Case, dtype: DType) -> str:
    if found.shape != wanted.shape:
        return f"shape {found.shape}, wanted {wanted.shape}"
    rounded = wanted.astype(dtype.numpy) if wanted.dtype.kind == "f" else wanted
    wide, ref = found.astype(np.float64), rounded.astype(np.float64)
    slack = 0.25 if case.rounds and dtype == float32 else 0.0
    if case.tolerance:
        slack = max(case.tolerance, float(ml_dtypes.finfo(dtype.numpy).eps)) * (1 + np.abs(ref))
    with np.errstate(invalid="ignore"):  # the maximum of a dilated window of only padding is -inf
        bad = ~((wide == ref) | (np.abs(wide - ref) <= slack))
    return f"{bad.sum()} of {bad.size} elements differ" if bad.any() else ""


def failures(
    backend: backends.Backend, seed: int, cases: Sequence[int], dtype: DType = float32
) -> Iterator[str]:
    """One line per failing case, with the command that reproduces it."""
    for k in cases:
        problem = check(backend, seed, k, dtype)
        if problem:
            again = f"python -m tests.helpers.fuzz --backend {backend.name} --dtype {dtype} --seed {seed} --only {k}"
            yield f"{again}   # {problem}"


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; the exit status is 1 when a case fails."""
    parser = argparse.ArgumentParser(prog="python -m tests.helpers.fuzz", description=__doc__.splitlines()[0])
    parser.add_argument("--backend", default="cpu", help="reference, cpu or cuda")
    parser.add_argument("--dtype", default="float32", type=as_dtype)
    parser.add_argument("--seed", default=0, type=int)
    parser.add_argument("--count", default=1000, type=int, help="number of cases")
    parser.add_argument("--first", default=0, type=int, help="number of the first case")
    parser.add_argument("--only", type=int, help="this case alone")
    options = parser.parse_args(arguments)
    device = Device("cuda:0" if options.backend == "cuda" else "cpu")
    backend = backends.get(device, options.backend)
    first = options.first
    cases = range(first, first + options.count) if options.only is None else [options.only]
    wrong = 0
    for line in failures(backend, options.seed, cases, options.dtype):
        wrong += 1
        print(line, flush=True)
    print(f"{len(cases)} cases on {options.backend} in {options.dtype}, {wrong} mismatches")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
