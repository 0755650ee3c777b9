"""Activations and arithmetic against the textbook formula, broadcasting, numbers, and errors."""

import math
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.graph import gradients, trace
from lamina.ops import primitives
from lamina.ops.core import bind
from lamina.ops.primitives.pointwise import erf_numpy
from lamina.spec import ShapeError
from tests.helpers.eager import Eager
from tests.helpers.functions import grad, run

X = np.array([-30.0, -3.0, -1.0, -0.2, 0.0, 0.3, 1.0, 2.5, 7.0, 40.0])


def _each(f: Any) -> Any:
    return np.array([f(float(v)) for v in X])


def _phi(v: float) -> float:
    return 0.5 * math.erfc(-v / math.sqrt(2))


def _sigmoid(v: float) -> float:
    return 1 / (1 + math.exp(-v)) if v > -700 else 0.0


@pytest.mark.feature("F056")
@pytest.mark.parametrize(
    ("function", "formula"),
    [
        (ops.sigmoid, _sigmoid),
        (ops.relu, lambda v: max(v, 0.0)),
        (ops.tanh, math.tanh),
        (lambda x: ops.clipped_relu(x, 2.0), lambda v: min(max(v, 0.0), 2.0)),
        (ops.relu6, lambda v: min(max(v, 0.0), 6.0)),
        (lambda x: ops.elu(x, 0.7), lambda v: v if v > 0 else 0.7 * math.expm1(v)),
        (ops.identity, lambda v: v),
    ],
)
def test_activations(function: Any, formula: Any) -> None:
    np.testing.assert_allclose(run(function, X), _each(formula), rtol=1e-14, atol=1e-15)


@pytest.mark.feature("F057")
@pytest.mark.parametrize(
    ("function", "formula"),
    [
        (lambda x: ops.leaky_relu(x, 0.2), lambda v: v if v > 0 else 0.2 * v),
        (lambda x: ops.threshold(x, 0.5, -9.0), lambda v: v if v > 0.5 else -9.0),
        (ops.silu, lambda v: v * _sigmoid(v)),
        (lambda x: ops.swish(x, 1.5), lambda v: v * _sigmoid(1.5 * v)),
        (ops.softplus, lambda v: math.log1p(math.exp(-abs(v))) + max(v, 0.0)),
        (lambda x: ops.softplus(x, 2.0), lambda v: (math.log1p(math.exp(-abs(2 * v))) + max(2 * v, 0.0)) / 2),
        (ops.gelu, lambda v: v * _phi(v)),
        (
            lambda x: ops.gelu(x, approximate="tanh"),
            lambda v: 0.5 * v * (1 + math.tanh(math.sqrt(2 / math.pi) * (v + 0.044715 * v**3))),
        ),
        (ops.hardsigmoid, lambda v: min(max(v + 3, 0.0), 6.0) / 6),
        (ops.hardswish, lambda v: v * min(max(v + 3, 0.0), 6.0) / 6),
        (ops.hardtanh, lambda v: min(max(v, -1.0), 1.0)),
    ],
)
def test_more_activations(function: Any, formula: Any) -> None:
    np.testing.assert_allclose(run(function, X), _each(formula), rtol=1e-12, atol=1e-15)


@pytest.mark.feature("F057")
@pytest.mark.parametrize(
    ("function", "op"),
    [
        (ops.gelu, primitives.GeluGrad()),
        (lambda v: ops.gelu(v, "tanh"), primitives.GeluGrad("tanh")),
        (ops.silu, primitives.SiluGrad()),
    ],
    ids=["gelu", "gelu_tanh", "silu"],
)
def test_the_gradient_by_an_activations_input_is_one_op(function: Any, op: Any) -> None:
    """Its own gradient by the input is the activation's second derivative."""

    def once(v: Any, g: Any) -> Any:
        return gradients(function(v), [v], [g])

    def twice(v: Any, g: Any) -> Any:
        return gradients(ops.sum(once(v, g)[0]), [v])

    arrays = [np.linspace(-4, 4, 33), np.full(33, 2.0)]
    graph = trace(once, *arrays)
    assert [node.op for node in graph.nodes] == [op]
    step = 1e-5
    below, above = (graph(arrays[0] + d, arrays[1])[0].numpy() for d in (-step, step))
    (found,) = trace(twice, *arrays)(*arrays)
    np.testing.assert_allclose(found.numpy(), (above - below) / (2 * step), rtol=1e-7, atol=1e-8)


def test_prelu_has_a_slope_per_channel() -> None:
    x = np.array([[[-2.0, 3.0], [-4.0, 5.0]]])
    slopes = np.array([0.5, 0.25])
    assert run(ops.prelu, x, slopes).tolist() == [[[-1.0, 3.0], [-1.0, 5.0]]]
    assert run(ops.prelu, x, np.array([0.1])).tolist() == [[[-0.2, 3.0], [-0.4, 5.0]]]
    dx, dslope = grad(ops.prelu, x, slopes)
    assert dx.tolist() == [[[0.5, 1.0], [0.25, 1.0]]]
    assert dslope.tolist() == [-2.0, -4.0]


@pytest.mark.feature("F064")
def test_op_tensor_arithmetic() -> None:
    a, b = np.array([1.0, -2.0, 4.0]), np.array([3.0, 0.5, 4.0])
    assert run(ops.add, a, b).tolist() == [4, -1.5, 8]
    assert run(ops.mul, a, b).tolist() == [3, -1, 16]
    assert run(ops.minimum, a, b).tolist() == [1, -2, 4]
    assert run(ops.maximum, a, b).tolist() == [3, 0.5, 4]
    assert run(ops.sqrt, b * b).tolist() == [3, 0.5, 4]
    assert run(lambda x: 1 - x, a).tolist() == [0, 3, -3]  # cuDNN's NOT
    assert run(ops.logical_not, a > 0).tolist() == [False, True, False]


@pytest.mark.feature("F044", "F066")
def test_scalars_take_the_dtype_of_the_tensor() -> None:
    for dtype in ("float64", "float32", "float16", "bfloat16"):
        x = Eager(np.array([1, 2], ops.cast(Eager(np.zeros(1)), dtype).dtype.numpy))
        for y in (x + 1, 2 * x, x / 3, 1 - x, x**2, x**3.0, 2**x, ops.maximum(x, 0.5), x + np.float64(2)):
            assert y.dtype == x.dtype
    whole = Eager(np.array([3, 4], np.int32))
    assert (whole * 2 + 1).value.tolist() == [7, 9]
    assert (whole == 4).value.tolist() == [False, True]


@pytest.mark.feature("F066")
def test_elementwise_functions() -> None:
    x = np.array([0.5, 1.0, 2.0])
    for ours, theirs in [
        (ops.exp, np.exp), (ops.log, np.log), (ops.sqrt, np.sqrt), (ops.sin, np.sin), (ops.cos, np.cos),
        (ops.tan, np.tan), (ops.neg, np.negative), (ops.floor, np.floor), (ops.ceil, np.ceil),
        (ops.square, np.square), (ops.reciprocal, np.reciprocal),
    ]:  # fmt: skip
        np.testing.assert_allclose(run(ours, x), theirs(x), rtol=1e-15)
    np.testing.assert_allclose(run(ops.rsqrt, x), x**-0.5, rtol=1e-15)
    assert run(ops.abs, -x).tolist() == x.tolist()
    assert run(ops.sign, np.array([-2.0, 0.0, 3.0])).tolist() == [-1, 0, 1]
    np.testing.assert_allclose(run(ops.pow, x, np.array([3.0, -1.0, 0.5])), [0.125, 1, 2**0.5])
    assert run(ops.clamp, x, 0.7, 1.5).tolist() == [0.7, 1.0, 1.5]


@pytest.mark.parametrize("exponent", [0, 1, 2, 3, 0.5, -0.5, -1, -2.5])
def test_powers(exponent: float) -> None:
    x = np.array([0.3, 1.0, 4.0])
    np.testing.assert_allclose(run(ops.pow, x, exponent), x**exponent, rtol=1e-14)
    np.testing.assert_allclose(grad(ops.pow, x, exponent)[0], exponent * x ** (exponent - 1), rtol=1e-12)


def test_powers_at_zero() -> None:
    """x^0 is constant and x^3 flat at 0; negative bases have whole powers."""
    zero = np.array([0.0, -2.0])
    assert grad(lambda x: ops.pow(x, 0.0), zero)[0].tolist() == [0, 0]
    assert grad(lambda x: ops.pow(x, 3.0), zero)[0].tolist() == [0, 12]
    assert run(ops.pow, zero, 3.0).tolist() == [0, -8]


def test_erf_is_exact_to_the_last_digits() -> None:
    x = np.linspace(-7, 7, 20001)
    wanted = np.array([math.erf(v) for v in x])
    np.testing.assert_allclose(erf_numpy(x), wanted, rtol=4e-16, atol=1e-18)
    special = erf_numpy(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1e-300]))
    np.testing.assert_array_equal(special[2:5], [1, -1, np.nan])
    assert not np.signbit(special[0])
    assert np.signbit(special[1])


def test_special_values() -> None:
    odd = np.array([np.nan, np.inf, -np.inf])
    np.testing.assert_array_equal(run(ops.relu, odd), [np.nan, np.inf, 0])
    np.testing.assert_array_equal(run(ops.sigmoid, odd), [np.nan, 1, 0])
    np.testing.assert_array_equal(run(ops.maximum, odd, 0.0), [np.nan, np.inf, 0])
    np.testing.assert_array_equal(run(ops.softplus, odd), [np.nan, np.inf, 0])
    assert run(ops.eq, odd, odd).tolist() == [False, True, True]
    assert run(ops.ne, odd, odd).tolist() == [True, False, False]


def test_equal_operands_share_the_gradient() -> None:
    a, b = np.array([1.0, 2.0, 3.0]), np.array([3.0, 2.0, 1.0])
    for function, wanted in ((ops.maximum, [0, 0.5, 1]), (ops.minimum, [1, 0.5, 0])):
        da, db = grad(function, a, b)
        assert da.tolist() == wanted
        assert db.tolist() == wanted[::-1]


def test_broadcast_gradients_are_summed() -> None:
    a, b = np.ones((2, 1, 3)), np.full((4, 1), 2.0)
    da, db = grad(ops.mul, a, b)
    assert (da == 8).all()
    assert (db == 6).all()
    assert (da.shape, db.shape) == (a.shape, b.shape)


def test_comparisons_and_where() -> None:
    a, b = np.array([1, 2, 3]), np.array([3, 2, 1])
    found = [run(f, a, b).tolist() for f in (ops.lt, ops.le, ops.gt, ops.ge, ops.eq, ops.ne)]
    assert found == [(a < b).tolist(), (a <= b).tolist(), (a > b).tolist(), (a >= b).tolist(), *(
        (a == b).tolist(), (a != b).tolist()
    )]  # fmt: skip
    assert run(ops.where, a > 1, 7, b).tolist() == [3, 7, 7]
    assert run(ops.where, a > 1, a, -1).tolist() == [-1, 2, 3]
    assert run(ops.logical_and, a > 1, b > 1).tolist() == [False, True, False]
    assert run(ops.logical_or, a > 2, b > 2).tolist() == [True, False, True]


@pytest.mark.feature("F118")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda x: x + Eager(np.ones(3)), ShapeError, r"add: shapes \(2, 2\) and \(3,\) do not broadcast"),
        (
            lambda x: bind(primitives.Add(), x, Eager(np.ones(2, np.float32))),
            TypeError,
            "add: input 1 is float32 but input 0 is float64",
        ),
        (lambda x: ops.add(x, "1"), TypeError, "add: other must be a tensor, an array or a number, got '1'"),
        (
            lambda x: ops.add(ops.cast(x, "int32"), 1, alpha=0.5),
            TypeError,
            "add: alpha must be an int for integer",
        ),
        (lambda x: ops.clamp(x), ValueError, "clamp: min and max are both None"),
        (
            lambda x: ops.pow(ops.cast(x, "int32"), -1),
            ValueError,
            "pow: integers to the power of -1 are not whole",
        ),
        (lambda x: ops.cast(x, "uint8") + 300, TypeError, "add: 300 is outside uint8"),
        (lambda x: ops.cast(x, "uint8") - -1, TypeError, "sub: -1 is outside uint8"),
        (lambda x: (x > 0) - (x > 0), TypeError, "sub: dtype bool is not among float64"),
        (
            lambda x: ops.where(x, x, x),
            TypeError,
            "where: needs a boolean condition and two tensors of one dtype",
        ),
        (
            lambda x: ops.gelu(x, approximate="erf"),
            ValueError,
            "must be one of 'none', 'tanh', got 'erf'",
        ),
        (lambda x: ops.clipped_relu(x, 0), ValueError, "hi must be > 0, got 0"),
        (lambda x: bind(primitives.Add(), x), TypeError, "add: takes 2 operands, got 1"),
    ],
)
def test_errors(call: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call(Eager(np.ones((2, 2))))


@pytest.mark.filterwarnings("error")
def test_references_do_not_warn() -> None:
    """Overflow and division by zero are values, not warnings."""
    x = np.array([0.0, -1.0, 1e300])
    assert run(ops.log, x)[0] == -np.inf
    assert run(ops.exp, x)[2] == np.inf
    assert run(ops.div, x, 0.0)[2] == np.inf


def test_gradients_at_bounds() -> None:
    """At a bound of clamp the gradient is the input's, of hardtanh nobody's; equal operands of maximum share it."""
    import lamina as lm
    from lamina import ops

    x = lm.tensor(np.array([-1.0, 0.0, 1.0, 2.0], np.float32))
    low, high = (lm.tensor(np.full(4, v, np.float32)) for v in (-1.0, 1.0))

    def slopes(fn: Any) -> list[float]:
        found: list[float] = lm.grad(lambda x: ops.sum(fn(x)))(x).tolist()
        return found

    assert slopes(lambda x: ops.clamp(x, -1.0, 1.0)) == [1, 1, 1, 0]
    assert slopes(lambda x: ops.clamp(x, low, high)) == [1, 1, 1, 0]
    assert slopes(lambda x: ops.hardtanh(x)) == [0, 1, 0, 0]
    assert slopes(lambda x: ops.maximum(x, high)) == [0, 0, 0.5, 1]
    assert slopes(lambda x: ops.fmax(x, high)) == [0, 0, 1, 1]
    assert slopes(lambda x: ops.fmin(low, x)) == [0, 0, 0, 0]
    assert lm.grad(lambda b: ops.sum(ops.clamp(x, b, None)))(low).tolist() == [0, 0, 0, 0]


def test_gradients_where_a_function_is_zero() -> None:
    import lamina as lm
    from lamina import ops

    flat, zero = lm.ones(2, 3), lm.zeros(2)
    assert lm.grad(lambda x: ops.sum(ops.std(x, 1)))(flat).tolist() == [[0, 0, 0], [0, 0, 0]]
    found = lm.grad(lambda x: ops.sum(ops.xlogy(x, lm.tensor(np.array([np.e, 0.0], np.float32)))))(zero)
    np.testing.assert_allclose(found.numpy(), [1, 0], rtol=1e-5)


def test_arithmetic_of_booleans_is_logic_and_numbers_make_it_whole() -> None:
    a, b = lm.tensor([True, True, False, False]), lm.tensor([True, False, True, False])
    both, one = [True, False, False, False], [True, True, True, False]
    for found, expected in (
        (a * b, both), (ops.minimum(a, b), both), (b * True, b.tolist()), (a * b * a, both),
        (a + b, one), (ops.maximum(a, b), one),
        (lm.jit(lambda a, b: a * b + b * b)(a, b), b.tolist()),
    ):  # fmt: skip
        assert found.tolist() == expected
    assert (a * b).dtype == (a + b).dtype == (a + True).dtype == lm.bool_
    assert (a + 1).tolist() == [2, 2, 1, 1]
    assert (a + 1).dtype == (a * b.to(dtype="int64")).dtype == lm.int64
    a *= b
    assert a.tolist() == both


def test_booleans_are_compared_as_0_and_1() -> None:
    a, b = lm.tensor([True, True, False, False]), lm.tensor([True, False, True, False])
    for found, expected in (
        (a > b, [False, True, False, False]), (a >= b, [True, True, False, True]),
        (a < b, [False, False, True, False]), (a <= b, [True, False, True, True]),
        (a > True, [False] * 4), (a >= True, a.tolist()), (a > 0.5, a.tolist()), (a < 2, [True] * 4),
        (lm.jit(lambda a, b: ops.gt(a, b))(a, b), [False, True, False, False]),
    ):  # fmt: skip
        assert found.tolist() == expected
        assert found.dtype == lm.bool_


@pytest.mark.parametrize("exponent", [0, 0.0, "tensor"])
def test_the_gradient_of_a_constant_power_is_0_everywhere(exponent: Any) -> None:
    x = lm.tensor([np.inf, -np.inf, np.nan, 0.0, 2.0, -3.0])
    b: Any = lm.zeros(6) if exponent == "tensor" else exponent
    slope = lm.grad(lambda x: (x**b).sum())
    assert slope(x).tolist() == lm.jit(slope)(x).tolist() == [0] * 6


def test_hardtanh_from_zero_is_the_clipped_relu_that_norms_take_in() -> None:
    """PyTorch's graphs write relu6 so; values, and gradients at and beyond both bounds, are those of other bounds."""
    x = lm.tensor([-1.0, 0.0, 3.0, 6.0, 7.0])
    y, slope = ops.hardtanh(x, 0.0, 6.0), lm.grad(lambda x: ops.sum(ops.hardtanh(x, 0.0, 6.0)))(x)
    assert [n.op.name for n in lm.trace(lambda x: ops.hardtanh(x, 0.0, 6.0), x.spec).nodes] == [
        "clipped_relu"
    ]
    assert y.tolist() == [0.0, 0.0, 3.0, 6.0, 6.0]
    assert slope.tolist() == [0.0, 0.0, 1.0, 0.0, 0.0]
    assert ops.hardtanh(lm.tensor([-2, 3, 9]), 0, 6).tolist() == [0, 3, 6]
    assert ops.hardtanh(x, 0.0, float("inf")).tolist() == [0.0, 0.0, 3.0, 6.0, 7.0]


def test_the_gradient_of_hardswish_is_0_below_its_bend_and_what_came_above_it() -> None:
    """Infinite gradients too, as PyTorch's."""
    x = np.array([-np.inf, -9.0, -3.0, -1.0, 0.0, 2.0, 3.0, 9.0, np.inf])
    slope = np.array([0, 0, 0, -1 / 3 + 0.5, 0.5, 2 / 3 + 0.5, 1, 1, 1])
    for g in (2.0, np.inf):
        expected = np.array([0.0 if s == 0 else g * s for s in slope])
        (found,) = grad(lambda v, g=g: (ops.hardswish(v) * g).sum(), x)
        np.testing.assert_allclose(found, expected, rtol=1e-14)


@pytest.mark.parametrize("dtype", ["int64", "int32", "int8", "uint8"])
def test_relu_of_integers(dtype: str) -> None:
    x = np.array([-3, 0, 2]).astype(dtype)
    for way in (ops.relu, lm.jit(ops.relu), lm.nn.ReLU()):
        found = way(lm.tensor(x))
        assert found.numpy().dtype == dtype
        np.testing.assert_array_equal(found.numpy(), np.maximum(x, 0))


def test_bounds_of_integers_are_whole() -> None:
    x = np.array([-7, -2, 0, 3, 9], np.int32)
    np.testing.assert_array_equal(run(ops.hardtanh, x, -2.7, 3.9), [-2, -2, 0, 3, 3])
    np.testing.assert_array_equal(run(ops.relu6, x), [0, 0, 0, 3, 6])
    assert lm.tensor(x).int().dtype == ops.hardtanh(x).dtype == ops.relu6(x).dtype == lm.int32
    assert ops.hardtanh(x, -np.inf, 2.5).tolist() == [-7.0, -2.0, 0.0, 2.5, 2.5]


def test_the_sign_of_a_boolean_is_itself() -> None:
    x = lm.tensor([True, False])
    assert ops.sign(x).tolist() == ops.sgn(x).tolist() == [True, False]


@pytest.mark.parametrize(
    "name",
    [
        "celu",
        "elu",
        "hardsigmoid",
        "hardswish",
        "hardtanh",
        "leaky_relu",
        "mish",
        "relu",
        "relu6",
        "selu",
        "silu",
    ],
)
def test_inplace_writes_the_result_over_the_input(name: str) -> None:
    function, x = getattr(ops, name), lm.tensor([-2.0, 7.0])
    expected = function(x)
    assert function(x, inplace=True) is x
    assert x.tolist() == expected.tolist()
    assert ops.threshold(input=lm.tensor([-2.0, 7.0]), threshold=0.0, value=1.0, inplace=True).tolist() == [
        1,
        7,
    ]


@pytest.mark.torch
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["maximum", "minimum", "clamp", "clamp_min", "clamp_max", "hardtanh"])
def test_gradients_of_extremes_at_nan_are_torchs(name: str, compiled: bool) -> None:
    torch = pytest.importorskip("torch")
    nan = float("nan")
    every = [[1, 2, 3, nan, 1, nan, 2, nan], [2, 1, 3, 1, nan, nan, 2, nan], [3, 3, 3, 3, 3, 3, nan, nan]]
    arrays = [np.array(x, np.float32) for x in every[: {"clamp": 3, "hardtanh": 1}.get(name, 2)]]
    theirs = [torch.tensor(x, requires_grad=True) for x in arrays]
    function = torch.nn.functional.hardtanh if name == "hardtanh" else getattr(torch, name)
    weights = np.arange(1, 9, dtype=np.float32)
    function(*theirs).backward(torch.tensor(weights))

    def slopes(*xs: Any) -> Any:
        whole = lm.grad(lambda *xs: ops.sum(getattr(ops, name)(*xs) * weights), argnums=tuple(range(len(xs))))
        return whole(*xs)

    found = (lm.jit(slopes) if compiled else slopes)(*map(lm.tensor, arrays))
    for own, wanted in zip(found, theirs, strict=True):
        np.testing.assert_array_equal(own.numpy(), wanted.grad.numpy())
