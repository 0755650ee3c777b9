"""Values, loops and memory of kernels, beside NumPy."""

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from lamina.backends import NoKernel
from lamina.backends.cpu.loops.code import FUNCTIONS, Code, Scalar, literal
from lamina.backends.cpu.loops.compiler import compiled
from lamina.ops.core import Array
from lamina.spec import as_dtype, bfloat16, float8_e4m3fn, float32, int64
from tests.helpers.loops import needs_llvm

FLOATS = np.array([0.0, -0.0, 1.5, -2.5, 0.5, 3.7, 1e30, np.inf, -np.inf, np.nan, -7.0, 2.0])


def run(
    write: Callable[..., Any],
    *arrays: Array,
    out: Any = None,
    count: int | None = None,
    doubt: Array | None = None,
) -> Array:
    """An element of the result for each step: `write` of the arrays' elements. doubt: 1 where the kernel tells it."""
    code = Code()
    given = [code.array(as_dtype(a.dtype)) for a in arrays]
    y = np.zeros(count or len(arrays[0]), out or arrays[0].dtype)
    result = code.array(as_dtype(y.dtype))
    first, last = code.share()
    with code.loop(first, last, independent=True) as i:
        result[i] = write(*(x[i] for x in given))
    told = [] if doubt is None else [doubt.ctypes.data]
    words = np.array([*(a.ctypes.data for a in arrays), y.ctypes.data, *told])
    compiled(code.text())(words.ctypes.data, 0, len(y))
    return y


UNARY: Sequence[tuple[str, Callable[[Any], Any]]] = [
    (name, getattr(np, name))
    for name in (
        "negative", "absolute", "sign", "floor", "ceil", "trunc", "rint", "sqrt", "square", "reciprocal", "positive",
        "nan_to_num",
    )
]  # fmt: skip
BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "fmax", "fmin", "copysign")
TESTS = ("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "logical_and", "logical_or")


@needs_llvm
@pytest.mark.parametrize("kind", [np.float32])
def test_functions_of_floats_are_numpys(kind: Any) -> None:
    a = FLOATS.astype(kind)
    b = np.roll(a, 5)
    with np.errstate(all="ignore"):
        for name, f in UNARY:
            np.testing.assert_array_equal(run(f, a), f(a), err_msg=name)
        for name in BINARY:
            f = getattr(np, name)
            np.testing.assert_array_equal(run(f, a, b), f(a, b), err_msg=name)
        for name in TESTS:
            f = getattr(np, name)
            np.testing.assert_array_equal(run(f, a, b, out=np.bool_), f(a, b), err_msg=name)
        for f in (np.isnan, np.isfinite, np.logical_not):
            np.testing.assert_array_equal(run(f, a, out=np.bool_), f(a))
        np.testing.assert_array_equal(
            run(lambda x, y: np.where(x > y, x, 2 * y), a, b), np.where(a > b, a, 2 * b)
        )
        np.testing.assert_array_equal(run(lambda x: np.clip(x, -1, 2), a), np.clip(a, -1, 2))


@needs_llvm
@pytest.mark.parametrize("kind", [np.int64, np.uint8])
def test_functions_of_integers_are_numpys(kind: Any) -> None:
    limits = np.iinfo(kind)
    a = np.array([limits.min, limits.max, 0, 1, 5, 100, 3, 2], kind)
    b = np.roll(a, 3)
    with np.errstate(all="ignore"):
        for name in (
            "add",
            "subtract",
            "multiply",
            "maximum",
            "minimum",
            "bitwise_and",
            "bitwise_or",
            "bitwise_xor",
        ):
            f = getattr(np, name)
            np.testing.assert_array_equal(run(f, a, b), f(a, b), err_msg=name)
        for name in TESTS:
            f = getattr(np, name)
            np.testing.assert_array_equal(run(f, a, b, out=np.bool_), f(a, b), err_msg=name)
        for f in (np.negative, np.absolute, np.sign, np.square):
            np.testing.assert_array_equal(run(f, a), f(a), err_msg=f.__name__)
    for f in (np.left_shift, np.right_shift):
        for by in (0, 1, limits.bits - 1):  # signs stay
            places = np.full_like(a, by)
            np.testing.assert_array_equal(run(f, a, places), f(a, places), err_msg=f.__name__)


@needs_llvm
def test_conversions_are_numpys() -> None:
    whole = np.array([0, 1, -1, 127, -128, 77], np.int8)
    for kind in (np.float32, np.float64, np.int64, np.int16, np.uint8, np.bool_):
        np.testing.assert_array_equal(run(lambda x, k=kind: x.astype(k), whole, out=kind), whole.astype(kind))
    near = np.array([0.0, 1.9, -1.9, 126.5, -127.5, 0.4], np.float32)
    for kind in (np.float64, np.int64, np.int32, np.int8, np.bool_):
        np.testing.assert_array_equal(run(lambda x, k=kind: x.astype(k), near, out=kind), near.astype(kind))


@needs_llvm
@pytest.mark.parametrize("kind", [np.float16, ml_dtypes.bfloat16], ids=["float16", "bfloat16"])
def test_half_types_are_computed_in_float32_and_rounded_once(kind: Any) -> None:
    x = np.random.default_rng(0).integers(0, 1 << 16, 4096, np.uint16).view(kind)
    with np.errstate(all="ignore"):
        wanted = (x.astype(np.float32) * np.float32(1.1) + np.float32(1e-3)).astype(kind)
    found = run(lambda v: v * 1.1 + 1e-3, x)
    np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


@needs_llvm
def test_sums_scratch_and_conditions() -> None:
    """Rows of a matrix, each summed where its first element is positive; scratch memory holds the row."""
    code = Code()
    x, y, width = code.array(float32), code.array(float32), code.size()
    first, last = code.share()
    kept = code.scratch(float32, width)
    with code.loop(first, last) as row:
        with code.loop(0, width, independent=True) as i:
            kept[i] = x[row * width + i]
        total = code.variable(0.0, np.float32)
        with code.loop(0, width) as i:
            total.add(kept[i])
        y[row] = -1.0
        with code.when(x[row * width] > 0):
            y[row] = total.get()
    values = np.random.default_rng(0).standard_normal((9, 33)).astype(np.float32)
    found = np.zeros(9, np.float32)
    words = np.array([values.ctypes.data, found.ctypes.data, 33])
    compiled(code.text())(words.ctypes.data, 2, 9)
    wanted = np.where(values[:, 0] > 0, values.sum(1), -1)
    wanted[:2] = 0  # other calls do the first two steps
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


def test_what_has_no_instructions_is_refused() -> None:
    code = Code()
    x = code.array(float32)[0]
    with pytest.raises(NoKernel, match="no arctan2"):
        np.arctan2(x, x)
    with pytest.raises(NoKernel, match=r"no add\.reduce"):
        np.add.reduce(x)
    with pytest.raises(NoKernel, match="only when it runs"):
        bool(x > 0)
    with pytest.raises(NoKernel, match="only when it runs"):
        np.asarray(x)
    with pytest.raises(NoKernel, match="no axes"):
        x + np.ones(3, np.float32)
    with pytest.raises(NoKernel, match="float8"):
        code.array(float8_e4m3fn)
    assert (x.astype(bfloat16.numpy) + 1.0).dtype == np.float32  # rounded, and kept wide


def test_values_have_numpys_dtypes() -> None:
    code = Code()
    x, i = code.array(float32)[0], code.array(int64)[0]
    assert (x + 1).dtype == (2.0 * x).dtype == np.float32
    assert (x + np.float64(1)).dtype == (x + i).dtype == np.float64
    assert (x > i).dtype == np.bool_
    assert isinstance(np.where(x > 0, x, 0), Scalar)
    assert "add" in FUNCTIONS


def test_numbers_are_written_by_their_bits() -> None:
    assert literal(np.float32(0.1)) == "0x3FB99999A0000000"
    assert literal(np.float64(-np.inf)) == "0xFFF0000000000000"
    assert (literal(np.int8(-3)), literal(np.bool_(True))) == ("-3", "true")


@pytest.mark.parametrize("dtype", [np.float32, ml_dtypes.bfloat16, np.int64, np.bool_])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 100])
def test_copies_of_neighbours(dtype: Any, count: int) -> None:
    code = Code()
    x, y = (code.array(as_dtype(dtype)) for _ in range(2))
    length = code.size()
    code.copy(y, 3, x, code.value(2), length)
    given, made = (np.arange(130) % 5).astype(dtype), np.zeros(130, dtype)
    words = np.array([given.ctypes.data, made.ctypes.data, count])
    compiled(code.text())(words.ctypes.data, 0, 1)
    wanted = np.zeros(130, dtype)
    wanted[3 : 3 + count] = given[2 : 2 + count]
    np.testing.assert_array_equal(made, wanted)


FLOATS_ALONE = (
    "floor", "ceil", "trunc", "rint", "sqrt", "fabs", "reciprocal", "copysign", "fmod", "remainder", "nan_to_num",
    "exp", "exp2", "expm1", "log", "log2", "log1p", "tanh",
)  # fmt: skip


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.bool_])
def test_functions_of_floats_take_no_integers(dtype: Any) -> None:
    code = Code()
    x = code.array(as_dtype(dtype))[0]
    for name in FLOATS_ALONE:
        given = (x, x) if name in ("copysign", "fmod", "remainder") else (x,)
        with pytest.raises(NoKernel, match=f"a kernel has no {name} of {np.dtype(dtype)}"):
            code.call(name, given)
        assert code.call(name, tuple(v.astype(np.float32) for v in given)).dtype == np.float32


def test_bits_are_of_integers_and_larger_ones_of_numbers() -> None:
    code = Code()
    x, b = code.array(float32)[0], code.array(as_dtype(np.bool_))[0]
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        with pytest.raises(NoKernel, match=f"a kernel has no {name} of float32"):
            code.call(name, (x, x))
        assert code.call(name, (b, b)).dtype == np.bool_
    for name in ("left_shift", "right_shift"):
        for value in (x, b):
            with pytest.raises(NoKernel, match=f"a kernel has no {name} of {value.dtype}"):
                code.call(name, (value, value))
    for name in ("maximum", "minimum", "fmax", "fmin"):
        with pytest.raises(NoKernel, match=f"a kernel has no {name} of bool"):
            code.call(name, (b, b))
    for name in ("logical_and", "logical_or"):
        assert code.call(name, (x, b)).dtype == np.bool_


@needs_llvm
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_remainders_are_numpys(kind: Any) -> None:
    """Of any two numbers, by powers of two, which are faster, and by others."""
    rng = np.random.default_rng(0)
    a = np.concatenate([FLOATS, rng.uniform(-20, 20, 200), [6.0, -6.0, 0.5, -0.5, 4.0, -4.0]]).astype(kind)
    for b in (2.0, 0.5, 8.0, 1.0):
        with np.errstate(all="ignore"):
            wanted = np.remainder(a, kind(b))
        usual = np.isfinite(a) & (np.abs(a) < 1e6)
        np.testing.assert_array_equal(run(lambda x, b=b: np.remainder(x, b), a)[usual], wanted[usual])
    for b in (3.0, -2.0, -0.75, 2.0):
        for f in (np.fmod, np.remainder):
            other, doubt = np.full_like(a, b), np.zeros(1, np.int64)
            with np.errstate(all="ignore"):
                wanted = f(a, other)
            found = run(f, a, other, doubt=doubt)
            usual = np.abs(a) < 1e6
            np.testing.assert_array_equal(found[usual], wanted[usual], err_msg=f.__name__)
            np.testing.assert_array_equal(np.signbit(found[usual]), np.signbit(wanted[usual]))
            assert doubt.tolist() == [1]  # 1e30 by so little


@needs_llvm
def test_only_quotients_that_are_too_large_are_in_doubt() -> None:
    b = np.array([3.0, 3.0, 2.0, 0.0, np.inf], np.float32)
    for large, told in ((2.0**23, 0), (3 * 2.0**23, 1), (np.inf, 0)):
        a, doubt = np.array([5.0, large, -7.0, 1.0, 9.0], np.float32), np.zeros(2, np.int64)
        run(np.fmod, a, b, doubt=doubt)
        assert doubt.tolist() == [told, 0]


@needs_llvm
@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_quotients_that_are_rounded_up_leave_what_is_left(kind: Any) -> None:
    """Numbers right below a multiple: the quotient is that multiple's once it is rounded."""
    rng = np.random.default_rng(0)
    y = rng.uniform(1, 2, 500).astype(kind)
    x = np.nextafter(y * rng.integers(3, 1000, 500).astype(kind), kind(0)) * rng.choice([-1, 1], 500).astype(
        kind
    )
    assert (np.abs(np.trunc(x / y)) * y.astype(np.longdouble) > np.abs(x)).sum() > 10  # there are such ones
    for f in (np.fmod, np.remainder):
        np.testing.assert_array_equal(run(f, x, y, doubt=np.zeros(1, np.int64)), f(x, y), err_msg=f.__name__)
