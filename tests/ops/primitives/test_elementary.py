"""Functions of one and two numbers: their ends, NaN and infinities, integers, dtypes, errors."""

import math
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.ops.primitives.elementary import BINARY, UNARY
from lamina.spec import DTypeError
from tests.helpers.functions import grad, run

#: Functions of floats that torch has under this name.
OF_FLOATS = [n for n, f in BINARY.items() if f.kind in ("float", "number") and n != "trunc_divide"]
SPECIAL = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0])


@pytest.mark.torch
@pytest.mark.parametrize("name", UNARY)
def test_ends_and_gradients_as_torch(name: str) -> None:
    import torch

    x = torch.tensor(SPECIAL, requires_grad=True)
    wanted = getattr(torch, name)(x)
    np.testing.assert_allclose(
        run(getattr(ops, name), SPECIAL), wanted.detach().numpy(), rtol=1e-12, atol=1e-14
    )
    wanted.sum().backward()
    assert x.grad is not None
    finite = (np.abs(x.grad.numpy()) < 1e30) & (
        np.abs(SPECIAL) > 0
    )  # at poles torch's sine of pi is not quite zero
    (found,) = grad(getattr(ops, name), SPECIAL)
    np.testing.assert_allclose(found[finite], x.grad.numpy()[finite], rtol=1e-9, atol=1e-12)


def test_the_angle_of_the_origin_has_the_gradient_0() -> None:
    found = grad(ops.atan2, np.array([0.0, 3.0]), np.array([0.0, 4.0]))
    np.testing.assert_allclose(found, [[0, 4 / 25], [0, -3 / 25]])


@pytest.mark.parametrize("radius", [0.5, 1.0, 2.0])
def test_gradients_of_angles_around_the_circle(radius: float) -> None:
    """On the axes too: of atan2 (x, -y) / r^2, of hypot (y, x) / r."""
    angle = np.arange(16) * (np.pi / 8)
    y, x = (np.round(radius * f(angle), 12) for f in (np.sin, np.cos))
    by_y, by_x = grad(ops.atan2, y, x)
    np.testing.assert_allclose([by_y, by_x], np.array([x, -y]) / radius**2, rtol=1e-9, atol=1e-9)
    by_y, by_x = grad(ops.hypot, y, x)
    np.testing.assert_allclose([by_y, by_x], np.array([y, x]) / radius, rtol=1e-9, atol=1e-9)


@pytest.mark.torch
@pytest.mark.parametrize("name", OF_FLOATS)
def test_pairs_of_ends_as_torch(name: str) -> None:
    import torch

    a, b = (np.ascontiguousarray(v.reshape(-1)) for v in np.meshgrid(SPECIAL, SPECIAL))
    wanted = getattr(torch, name)(torch.tensor(a), torch.tensor(b)).numpy()
    np.testing.assert_allclose(run(getattr(ops, name), a, b), wanted, rtol=1e-12)


@pytest.mark.torch
@pytest.mark.parametrize(
    "name",
    ["fmod", "remainder", "floor_divide", "gcd", "lcm", "bitwise_and", "bitwise_or", "bitwise_xor",
     "bitwise_left_shift", "bitwise_right_shift"],
)  # fmt: skip
@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8"])
def test_integers_stay_integers(name: str, dtype: str) -> None:
    import torch

    rng = np.random.default_rng(0)
    most = 20 if name == "lcm" else 100  # beyond its type torch's sign depends on the version
    a = rng.integers(0 if dtype == "uint8" else -most // 2, most, 200).astype(dtype)
    b = rng.integers(1, 7, 200).astype(dtype)
    wanted = getattr(torch, name)(torch.tensor(a), torch.tensor(b)).numpy()
    found = run(getattr(ops, name), a, b)
    assert found.dtype == a.dtype
    np.testing.assert_array_equal(found, wanted)


def test_whole_numbers_beyond_floats() -> None:
    big = np.array([2**62 + 1, -(2**62) - 1])
    assert run(ops.floor_divide, big, 2).tolist() == [2**61, -(2**61) - 1]
    assert run(ops.remainder, big, 1000).tolist() == [(2**62 + 1) % 1000, (-(2**62) - 1) % 1000]
    assert run(ops.floor_divide, np.array([5, -5]), 0).tolist() == [0, 0]


def test_what_kind_of_number() -> None:
    kinds = {"isnan": [0], "isinf": [1, 2], "isposinf": [1], "isneginf": [2], "signbit": [2, 4, 6, 8]}
    for name, places in kinds.items():
        assert np.flatnonzero(run(getattr(ops, name), SPECIAL)).tolist() == places, name
        assert not run(getattr(ops, name), np.array([1, 2])).any(), name
    assert np.flatnonzero(~run(ops.isfinite, SPECIAL)).tolist() == [0, 1, 2]
    assert run(ops.nan_to_num, SPECIAL[:3].astype(np.float32)).tolist() == [
        0,
        np.finfo("f4").max,
        -np.finfo("f4").max,
    ]
    assert run(ops.nan_to_num, SPECIAL[:3], 1.0, 2.0, 3.0).tolist() == [1, 2, 3]


def test_rounding() -> None:
    assert run(ops.round, np.array([0.5, 1.5, 2.5, -0.5])).tolist() == [0, 2, 2, 0]
    np.testing.assert_allclose(run(ops.round, np.array([1.2345, -9.8765]), decimals=2), [1.23, -9.88])
    assert run(ops.round, np.array([1250.0, 1350.0]), decimals=-2).tolist() == [1200, 1400]
    assert run(ops.frac, np.array([1.25, -1.25])).tolist() == [0.25, -0.25]


@pytest.mark.parametrize("exponent", [-3, -2, -1, -0.5, 0, 0.5, 1, 1.5, 2, 3, 4, 7])
def test_powers_of_floats(exponent: float) -> None:
    """Numbers that are products, roots and quotients, and others."""
    x = np.array([0.25, 0.5, 1.0, 1.75, 3.0])
    for value in (exponent, float(exponent)):
        np.testing.assert_allclose(run(ops.pow, x, value), x**value, rtol=1e-14)
        (found,) = grad(lambda a, by=value: ops.pow(a, by), x)
        np.testing.assert_allclose(found, exponent * x ** (exponent - 1.0), rtol=1e-12)


@pytest.mark.parametrize("exponent", range(8))
def test_whole_powers_of_integers(exponent: int) -> None:
    x = np.array([-3, -1, 0, 1, 2, 5])
    found = run(ops.pow, x, exponent)
    assert (found.dtype, found.tolist()) == (x.dtype, (x**exponent).tolist())


def test_composites() -> None:
    a, b = np.array([1.0, 2.0]), np.array([3.0, 5.0])
    np.testing.assert_allclose(run(ops.lerp, a, b, 0.25), [1.5, 2.75])
    np.testing.assert_allclose(run(ops.lerp, a, b, np.array([0.0, 1.0])), [1, 5])
    np.testing.assert_allclose(run(ops.addcmul, a, a, b, value=2), [7, 22])
    np.testing.assert_allclose(run(ops.addcdiv, a, b, a), [4, 4.5])
    np.testing.assert_allclose(run(ops.addcdiv, a, b, a, value=2), [7, 7])
    np.testing.assert_allclose(run(ops.logit, np.array([0.25, 1.5]), eps=0.1), [math.log(1 / 3), math.log(9)])
    np.testing.assert_allclose(
        run(ops.xlogy, np.array([0.0, 2.0]), np.array([0.0, 3.0])), [0, 2 * math.log(3)]
    )
    assert run(ops.float_power, np.array([2, 3]), 2).dtype == np.float64
    assert run(ops.logical_xor, np.array([0.0, 2.0]), np.array([1.0, 1.0])).tolist() == [True, False]
    assert run(ops.isclose, np.array([1.0, np.inf, np.nan]), np.array([1.0, np.inf, np.nan])).tolist() == [
        True,
        True,
        False,
    ]


def test_operators() -> None:
    x = lm.tensor([7, -7])
    found = [x // 2, x % 3, x & 3, x ^ 1, x << 1, x >> 1, ~x, 1 | x]
    wanted = [[3, -4], [1, 2], [3, 1], [6, -8], [14, -14], [3, -4], [-8, 6], [7, -7]]
    assert [y.tolist() for y in found] == wanted
    assert (~(x > 0) & True).tolist() == [False, True]


@pytest.mark.parametrize(
    ("call", "error", "match"),
    [
        (lambda x: ops.bitwise_and(x, x), DTypeError, "bitwise_and: takes int64"),
        (lambda x: ops.gcd(x, x), DTypeError, "gcd: takes"),
        (lambda x: ops.polygamma(-1, x), ValueError, "polygamma: n must be >= 0"),
        (lambda x: ops.positive(x > 0), DTypeError, "positive: takes numbers"),
        (lambda x: ops.round(x, decimals=0.5), TypeError, "round: decimals must be an int"),
        (lambda x: ops.isclose(x, x.long()), DTypeError, "isclose"),
    ],
)
def test_errors(call: Any, error: type[Exception], match: str) -> None:
    with pytest.raises(error, match=match):
        call(lm.ones(2))


def test_booleans_to_the_power_of_an_int_are_integers() -> None:
    flags = lm.tensor([True, False])
    for power, wanted in ((0, [1, 1]), (2, [1, 0])):
        assert (flags**power).dtype == lm.int64
        assert (flags**power).tolist() == wanted


def test_powers_and_quotients_of_integers() -> None:
    a, b = np.array([3, -2, 5, -1, 1]), np.array([39, 3, -1, -3, -2])
    assert run(ops.pow, a, b).tolist() == [3**39, -8, 0, -1, 1]
    assert run(ops.pow, np.array([2, 3], np.int8), np.array([6, 2], np.int8)).dtype == np.int8
    big = np.array([2**60 + 1, -(2**60) - 1])
    assert run(ops.div, big, 2, rounding_mode="trunc").tolist() == [2**59, -(2**59)]
    assert run(ops.div, big, 2, rounding_mode="floor").tolist() == [2**59, -(2**59) - 1]


def test_comparisons_of_whole_tensors_give_pythons_bools() -> None:
    x = lm.tensor([1.0, 2.0])
    assert ops.allclose(x, x + 1e-6) is True
    assert x.allclose(x + 1e-3) is False
    assert ops.allclose(x, x + 1e-3, atol=0.01) is True
    assert ops.allclose(x * np.nan, x * np.nan) is False
    assert ops.allclose(x * np.nan, x * np.nan, equal_nan=True) is True
    assert x.equal(lm.tensor([1, 2])) is True
    assert ops.equal(x, x * np.nan) is False
    assert ops.equal(x, lm.ones(3)) is False
    assert ops.equal(lm.zeros(0), lm.zeros(0)) is True
    assert (ops.numel(x), ops.empty_like(x, dtype="int64").dtype.name) == (2, "int64")
    copy = ops.clone(x)
    copy.zero_()
    assert x.tolist() == [1, 2]


def test_heaviside_of_nan_is_0() -> None:
    """As torch.heaviside."""
    x = np.array([-1.0, 0.0, 2.0, np.nan])
    np.testing.assert_array_equal(run(ops.heaviside, x, np.full(4, 0.5)), [0, 0.5, 1, 0])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_mantissas_exponents_and_neighbours_of_all_sizes(dtype: Any) -> None:
    """Powers of two and their neighbours, from the smallest number to the largest."""
    info = np.finfo(dtype)
    powers = np.ldexp(dtype(1), np.arange(info.minexp - info.nmant, info.maxexp, 7)).astype(dtype)
    near = np.concatenate([np.nextafter(powers, dtype(0)), powers, np.nextafter(powers, dtype(np.inf))])
    x = np.concatenate([near, -near, [info.max, info.smallest_subnormal, 0.0, 0.5]]).astype(dtype)
    mantissa, exponent = np.frexp(x)
    found = ops.frexp(x)
    np.testing.assert_array_equal(found.mantissa.numpy(), mantissa)
    np.testing.assert_array_equal(found.exponent.numpy(), exponent)
    for to in (-np.inf, 0.0, np.inf):
        with np.errstate(over="ignore", under="ignore"):
            wanted = np.nextafter(x, dtype(to))
        np.testing.assert_array_equal(ops.nextafter(x, dtype(to)).numpy(), wanted)


@pytest.mark.torch
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["sign", "abs", "logit"])
def test_values_and_gradients_at_ends_as_torch(name: str, compiled: bool) -> None:
    import torch

    ends = np.float32(SPECIAL) + np.float32(0)  # without -0, where the pole's sign is nobody's
    x = torch.tensor(ends, requires_grad=True)
    wanted = getattr(torch, name)(x)
    wanted.sum().backward()
    of = getattr(ops, name)
    slope = lm.grad(lambda x: of(x).sum())
    of, slope = (lm.jit(of), lm.jit(slope)) if compiled else (of, slope)
    given = lm.tensor(ends)
    np.testing.assert_allclose(of(given).numpy(), wanted.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(slope(given).numpy(), x.grad.numpy(), rtol=1e-6)  # type: ignore[union-attr]


@pytest.mark.torch
@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_powers_at_ends_as_torch(compiled: bool) -> None:
    import torch

    a, b = (np.float32(v.reshape(-1)) for v in np.meshgrid(SPECIAL, SPECIAL))
    x, y = (torch.tensor(v, requires_grad=True) for v in (a, b))
    torch.pow(x, y).sum().backward()
    slopes = lm.grad(lambda x, y: ops.pow(x, y).sum(), (0, 1))
    found = (lm.jit(slopes) if compiled else slopes)(lm.tensor(a), lm.tensor(b))
    for got, wanted in zip(found, (x.grad, y.grad), strict=True):
        np.testing.assert_allclose(got.numpy(), wanted.numpy(), rtol=1e-5)  # type: ignore[union-attr]


def test_squares_of_booleans_are_integers() -> None:
    found = ops.square(lm.tensor([True, False]))
    assert found.dtype == lm.int64
    assert found.tolist() == [1, 0]


def test_logit_keeps_its_dtype() -> None:
    assert ops.logit(lm.tensor([0.5, 2.0]).half()).dtype == lm.float16
    assert ops.logit(lm.tensor([0.5]).bfloat16(), 1e-3).dtype == lm.bfloat16
    np.testing.assert_array_equal(run(ops.logit, np.array([0.5, 2.0], np.float16)), [0, np.nan])


@pytest.mark.parametrize("other", [-3, 300, lm.tensor(-3), lm.tensor(300), np.float32(2.5)])
def test_integers_become_floats_before_they_meet(other: Any) -> None:
    """A number, or a tensor without axes, that uint8 does not hold."""
    x, y = np.array([2, 6], np.uint8), float(other)
    wide = x.astype(float)
    wanted = {
        "div": wide / y, "atan2": np.arctan2(wide, y), "copysign": np.copysign(wide, y), "hypot": np.hypot(wide, y),
        "logaddexp": np.logaddexp(wide, y), "logaddexp2": np.logaddexp2(wide, y),
        "xlogy": wide * (np.log(y) if y > 0 else np.nan),
    }  # fmt: skip
    for name, value in wanted.items():
        for given in (lm.tensor(x), x):
            found = getattr(ops, name)(given, other)
            assert found.dtype == lm.float32, name
            np.testing.assert_allclose(found.numpy(), value, 1e-5, err_msg=name)
        compiled = lm.jit(lambda x, name=name: getattr(ops, name)(x, other))(lm.tensor(x))
        np.testing.assert_allclose(compiled.numpy(), value, 1e-5, err_msg=name)
    np.testing.assert_allclose((other / lm.tensor(x)).numpy(), y / wide, 1e-6)


def test_halves_are_widened_before_they_are_added() -> None:
    a, b = lm.tensor([1.5, 3.0]), lm.tensor([0.5, 20.0]).half()
    np.testing.assert_allclose(
        ops.logaddexp2(a, b).numpy(), np.logaddexp2([1.5, 3.0], np.float64([0.5, 20.0])), 1e-6
    )
    assert ops.ldexp(b, lm.tensor([1, 2])).dtype == ops.logaddexp2(b, lm.tensor([1, 2])).dtype == lm.float16
    assert ops.ldexp(b, lm.tensor([1, 2])).tolist() == [1.0, 80.0]
