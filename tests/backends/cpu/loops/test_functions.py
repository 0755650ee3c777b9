"""exp, log and their relatives beside wider arithmetic, over the whole range of their arguments."""

import math

import numpy as np
import pytest

from lamina.backends.cpu.loops.code import Code
from lamina.backends.cpu.loops.compiler import compiled
from lamina.backends.cpu.loops.functions import ERF_ULPS, ULPS
from lamina.ops.core import Array
from lamina.spec import DType, float32, float64
from tests.helpers.loops import needs_llvm

pytestmark = needs_llvm
WIDE = {float32: np.float64, float64: np.longdouble}
ENDS = (0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0)


def arguments(dtype: DType, count: int = 1 << 14) -> Array:
    """Random bits, numbers of all sizes, those around 1, and the ends."""
    kind, rng = dtype.numpy.type, np.random.default_rng(0)
    words = rng.integers(0, 256, count * dtype.itemsize, np.uint8).view(kind)
    sizes = rng.uniform(-1, 1, count) * np.exp(rng.uniform(-40, 7, count))
    limits = np.finfo(kind)
    ends = [*ENDS, limits.tiny, limits.smallest_subnormal, limits.max, -limits.max]
    with np.errstate(all="ignore"):
        return np.concatenate([words, sizes, 1 + rng.uniform(-0.5, 0.5, count), ends]).astype(kind)


def computed(name: str, x: Array, dtype: DType) -> Array:
    """A function of NumPy on x, by a kernel; of two numbers on x and -x / 4."""
    code = Code()
    given, result = code.array(dtype), code.array(dtype)
    first, last = code.share()
    with code.loop(first, last, independent=True) as i:
        more = (given[i] * -0.25,) if name == "logaddexp" else ()
        result[i] = code.call(name, (given[i], *more))
    y = np.empty_like(x)
    words = np.array([x.ctypes.data, y.ctypes.data])
    compiled(code.text())(words.ctypes.data, 0, len(x))
    return y


@pytest.mark.parametrize("dtype", [float32, float64], ids=str)
@pytest.mark.parametrize("name", sorted(ULPS))
def test_errors_are_within_their_bound(name: str, dtype: DType) -> None:
    x, wide = arguments(dtype), WIDE[dtype]
    y = computed(name, x, dtype)
    with np.errstate(all="ignore"):
        more = ((x * dtype.numpy.type(-0.25)).astype(wide),) if name == "logaddexp" else ()
        exact = getattr(np, name)(x.astype(wide), *more)
        rounded = exact.astype(dtype.numpy)
        finite = np.isfinite(rounded)
        unit = np.spacing(np.maximum(np.abs(rounded), np.finfo(dtype.numpy).tiny)).astype(wide)
        error = np.where(finite, np.abs(y.astype(wide) - exact) / unit, 0)
    np.testing.assert_array_equal(y[~finite], rounded[~finite])
    np.testing.assert_array_equal(np.signbit(y[rounded == 0]), np.signbit(rounded[rounded == 0]))
    worst = int(np.argmax(error))
    assert error[worst] <= ULPS[name], f"{name}({x[worst]!r}) is {y[worst]!r}, {error[worst]:.2f} units off"


def test_errors_of_erf_are_within_their_bound() -> None:
    """Of float32 by polynomials, which meet at 1 and end at 4."""
    x = np.concatenate([arguments(float32), np.linspace(-4.5, 4.5, 1 << 15, dtype=np.float32)])
    y = computed("erf_numpy", x, float32)
    exact = np.array([math.erf(v) for v in x])
    unit = np.spacing(np.maximum(np.abs(exact.astype(np.float32)), np.finfo(np.float32).tiny))
    nan = np.isnan(x)
    np.testing.assert_array_equal(np.isnan(y), nan)
    np.testing.assert_array_equal(np.signbit(y[~nan]), np.signbit(x[~nan]))
    error = np.where(nan, 0, np.abs(y - exact) / unit)
    worst = int(np.argmax(error))
    assert error[worst] <= ERF_ULPS, f"erf({x[worst]!r}) is {y[worst]!r}, {error[worst]:.2f} units off"
