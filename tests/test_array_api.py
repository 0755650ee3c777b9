"""The array API's names for what exists: signatures and values as the standard's strict implementation has them."""

import inspect

import numpy as np
import pytest

import lamina as lm
from lamina import array_api as xp

strict = pytest.importorskip("array_api_strict")

A = np.linspace(-2, 2, 24, dtype=np.float32).reshape(2, 3, 4)
B = np.abs(A[::-1].copy()) + 0.5
SHARED = sorted(n for n in xp.__all__ if hasattr(strict, n) and inspect.isfunction(getattr(strict, n)))
#: Names of one array, of two, and calls with the standard's keywords.
UNARY = [
    "abs", "ceil", "cos", "exp", "floor", "negative", "positive", "sign", "sin", "square", "tan", "tanh", "trunc",
    "atan", "sinh", "cosh", "asinh", "expm1", "isnan", "isinf", "isfinite", "signbit", "round",
]  # fmt: skip
BINARY = [
    "add", "subtract", "multiply", "divide", "maximum", "minimum", "equal", "not_equal", "less", "less_equal",
    "greater", "greater_equal", "atan2", "hypot", "copysign", "floor_divide", "remainder", "logaddexp",
]  # fmt: skip
CALLS = [
    lambda p, a, b: p.log(b), lambda p, a, b: p.sqrt(b), lambda p, a, b: p.reciprocal(b), lambda p, a, b: p.pow(b, a),
    lambda p, a, b: p.sum(a, axis=(0, 2), keepdims=True), lambda p, a, b: p.prod(b, axis=1),
    lambda p, a, b: p.max(a),
    lambda p, a, b: p.mean(a, axis=-1), lambda p, a, b: p.min(a, axis=(0, 1)), lambda p, a, b: p.argmax(a, axis=1),
    lambda p, a, b: p.var(a, axis=0, correction=1.0), lambda p, a, b: p.std(a), lambda p, a, b: p.argmin(a, axis=2),
    lambda p, a, b: p.reshape(a, (6, 4)), lambda p, a, b: p.permute_dims(a, (2, 0, 1)), lambda p, a, b: p.flip(a),
    lambda p, a, b: p.matrix_transpose(a), lambda p, a, b: p.expand_dims(a, axis=1),
    lambda p, a, b: p.flip(a, axis=1),
    lambda p, a, b: p.concat([a, b], axis=1), lambda p, a, b: p.concat([a, b], axis=None),
    lambda p, a, b: p.stack([a, b], axis=-1), lambda p, a, b: p.unstack(a, axis=1)[2],
    lambda p, a, b: p.broadcast_to(a, (2, 2, 3, 4)), lambda p, a, b: p.where(p.greater(a, b), a, b),
    lambda p, a, b: p.clip(a, -1.0, 1.0), lambda p, a, b: p.matmul(a, p.matrix_transpose(b)),
    lambda p, a, b: p.astype(a, p.int32), lambda p, a, b: p.zeros_like(a), lambda p, a, b: p.full_like(a, 3),
    lambda p, a, b: p.full((2,), 3), lambda p, a, b: p.full((2,), True),
    lambda p, a, b: p.eye(3, 4, k=1, dtype=p.float32),
    lambda p, a, b: p.arange(2, 9, 3), lambda p, a, b: p.linspace(0.0, 1.0, 5, dtype=p.float32),
    lambda p, a, b: p.squeeze(p.expand_dims(a, axis=0), 0), lambda p, a, b: p.logical_not(p.less(a, b)),
    lambda p, a, b: p.log1p(b), lambda p, a, b: p.log2(b), lambda p, a, b: p.log10(b), lambda p, a, b: p.acosh(b + 1),
    lambda p, a, b: p.asin(a / 3), lambda p, a, b: p.acos(a / 3), lambda p, a, b: p.atanh(a / 3),
    lambda p, a, b: p.bitwise_and(N(p), 3), lambda p, a, b: p.bitwise_or(N(p), N(p)),
    lambda p, a, b: p.bitwise_xor(N(p), N(p)), lambda p, a, b: p.bitwise_invert(N(p)),
    lambda p, a, b: p.bitwise_left_shift(N(p), p.ones_like(N(p))), lambda p, a, b: p.all(p.less(a, b), axis=1),
    lambda p, a, b: p.bitwise_right_shift(N(p), p.ones_like(N(p))), lambda p, a, b: p.any(a, axis=(0, 1)),
    lambda p, a, b: p.logical_xor(p.less(a, b), p.less(a, -a)), lambda p, a, b: p.count_nonzero(N(p), axis=0),
    lambda p, a, b: p.cumulative_sum(a, axis=1, include_initial=True), lambda p, a, b: p.cumulative_prod(b, axis=-1),
    lambda p, a, b: p.diff(a, axis=0), lambda p, a, b: p.diff(a, n=2), lambda p, a, b: p.sort(-a, axis=1),
    lambda p, a, b: p.argsort(a, axis=0, descending=True), lambda p, a, b: p.roll(a, (1, 2), axis=(0, 2)),
    lambda p, a, b: p.searchsorted(p.arange(9), N(p)[0, :], side="right"), lambda p, a, b: p.nonzero(N(p))[1],
    lambda p, a, b: p.isin(N(p), p.arange(3)), lambda p, a, b: p.take(a, p.asarray([2, 0]), axis=1),
    lambda p, a, b: p.take_along_axis(a, p.argsort(b, axis=1), axis=1), lambda p, a, b: p.unique_values(N(p)),
    lambda p, a, b: p.unique_all(N(p)).indices, lambda p, a, b: p.unique_counts(N(p)).counts,
    lambda p, a, b: p.unique_inverse(N(p)).inverse_indices, lambda p, a, b: p.moveaxis(a, 0, 2),
    lambda p, a, b: p.repeat(a, 2, axis=1), lambda p, a, b: p.tile(a, (2, 1)), lambda p, a, b: p.tril(a, k=1),
    lambda p, a, b: p.triu(a, k=-1), lambda p, a, b: p.meshgrid(p.arange(3), p.arange(2))[0],
    lambda p, a, b: p.tensordot(a, b, axes=((0, 2), (0, 2))), lambda p, a, b: p.vecdot(a, b, axis=-2),
    lambda p, a, b: p.asarray([1.0, 2.0], dtype=p.float64), lambda p, a, b: p.broadcast_arrays(a, b)[1],
]  # fmt: skip


def N(p):  # type: ignore[no-untyped-def]
    """Whole numbers, of a namespace."""
    return p.asarray(np.array([[3, 1, 0, 4], [1, 0, 7, 1]]))


def check(found: lm.Tensor, wanted: object) -> None:
    theirs = np.asarray(wanted)
    assert (found.shape, found.dtype.numpy) == (theirs.shape, theirs.dtype)
    np.testing.assert_allclose(found.numpy(), theirs, rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("name", UNARY + BINARY)
def test_elementwise(name: str) -> None:
    given = (A,) if name in UNARY else (A, B)
    wanted = getattr(strict, name)(*map(strict.asarray, given))
    check(getattr(xp, name)(*map(lm.tensor, given)), wanted)


@pytest.mark.parametrize("call", CALLS)
def test_calls(call) -> None:  # type: ignore[no-untyped-def]
    wanted = call(strict, strict.asarray(A), strict.asarray(B))
    check(call(xp, lm.tensor(A), lm.tensor(B)), wanted)


@pytest.mark.parametrize("name", SHARED)
def test_the_standards_keywords_are_taken(name: str) -> None:
    theirs, ours = (inspect.signature(getattr(p, name)).parameters.values() for p in (strict, xp))
    keywords = {p.name for p in theirs if p.kind is p.KEYWORD_ONLY}
    assert keywords <= {p.name for p in ours}


def test_how_many_names_there_are() -> None:
    assert len(SHARED) >= 115


def test_tensors_and_traced_values_give_it() -> None:
    assert lm.ones(2).__array_namespace__() is xp
    assert lm.ones(2).__array_namespace__(api_version="2024.12") is xp
    with pytest.raises(ValueError, match=r"api_version is 2024.12, got '2021.12'"):
        lm.ones(2).__array_namespace__(api_version="2021.12")

    def norm(x):  # type: ignore[no-untyped-def]
        p = x.__array_namespace__()
        return p.sqrt(p.sum(p.square(x), axis=-1, keepdims=True))

    np.testing.assert_allclose(lm.jit(norm)(A).numpy(), np.sqrt((A**2).sum(-1, keepdims=True)), rtol=1e-6)


def test_kinds_of_dtypes() -> None:
    for dtype in ("float32", "int8", "uint8", "int64", "float64", "bool"):
        for kind in ("bool", "signed integer", "unsigned integer", "integral", "real floating", "numeric"):
            assert xp.isdtype(getattr(xp, dtype), kind) == strict.isdtype(getattr(strict, dtype), kind)
    with pytest.raises(ValueError, match="isdtype: kind must be"):
        xp.isdtype(xp.int8, "number")


def test_sizes_of_squeezed_axes_are_checked() -> None:
    with pytest.raises(ValueError, match="are not all of size 1"):
        xp.squeeze(lm.ones((2, 3)), 0)


def test_what_dtypes_hold() -> None:
    for name in ("float32", "float64"):
        found, wanted = xp.finfo(getattr(xp, name)), strict.finfo(getattr(strict, name))
        for field in ("bits", "eps", "max", "min", "smallest_normal"):
            assert getattr(found, field) == getattr(wanted, field)
    for name in ("int8", "int64", "uint8"):
        found, wanted = xp.iinfo(getattr(xp, name)), strict.iinfo(getattr(strict, name))
        assert (found.bits, found.max, found.min) == (wanted.bits, wanted.max, wanted.min)
    assert xp.result_type(lm.ones(2), xp.float64) == lm.float64
    assert [xp.can_cast(xp.int8, xp.int64), xp.can_cast(xp.int64, xp.int8)] == [True, False]
    assert xp.broadcast_shapes((3, 1), (1, 4)) == (3, 4)


@pytest.mark.parametrize("name", ["zeros", "ones", "empty", "full"])
@pytest.mark.parametrize("like", [False, True])
def test_what_is_made_has_the_shape_and_dtype_that_the_standard_says(name: str, like: bool) -> None:
    values = {"zeros": 0, "ones": 1, "full": 3}
    filled = (3,) if name == "full" else ()
    shape = xp.asarray(np.zeros((2, 3), np.int32)) if like else (2, 3)
    make = getattr(xp, f"{name}_like" if like else name)
    default = xp.int32 if like else xp.int64 if name == "full" else xp.float32
    for dtype in (None, xp.float64, xp.int32):
        found = make(shape, *filled, dtype=dtype, device="cpu")
        assert (found.shape, found.dtype) == ((2, 3), dtype or default)
        if name in values:
            assert (found.numpy() == values[name]).all()


def test_signs_of_nan_are_nan() -> None:
    found = xp.sign(xp.asarray([float("nan"), -2.0, 0.0]))
    np.testing.assert_array_equal(np.asarray(found), [np.nan, -1, 0])
