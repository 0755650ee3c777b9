"""Python's operators and methods call the functions; operands keep their identity as keys."""

from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.ops.operators import METHODS, OWN_METHODS, Operators
from tests.helpers.eager import Eager

A, B = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[2.0, 0.5], [1.0, 4.0]])


@pytest.mark.parametrize(
    "expression",
    [
        lambda a, b: a + b, lambda a, b: a - b, lambda a, b: a * b, lambda a, b: a / b, lambda a, b: a**b,
        lambda a, b: a @ b, lambda a, b: -a, lambda a, b: +a, lambda a, b: abs(-a), lambda a, b: 2 - a,
        lambda a, b: 2 / a, lambda a, b: 2**a, lambda a, b: 3 * a + 1, lambda a, b: a == b, lambda a, b: a != b,
        lambda a, b: a < b, lambda a, b: a <= b, lambda a, b: a > b, lambda a, b: a >= b, lambda a, b: a < 2,
        lambda a, b: (a > 1) & (b > 1), lambda a, b: (a > 1) | (b > 1), lambda a, b: ~(a > 1), lambda a, b: a[0],
        lambda a, b: a[:, ::-1], lambda a, b: a.T, lambda a, b: a.sum(0), lambda a, b: a.std() * 0,
        lambda a, b: a.prod(), lambda a, b: a.max(), lambda a, b: a.min(), lambda a, b: a.argmax(1),
        lambda a, b: a.argmin(0), lambda a, b: a.reshape(4), lambda a, b: a.reshape(1, 4),
        lambda a, b: a.reshape((4, 1)), lambda a, b: a.transpose(1, 0), lambda a, b: a.mT,
        lambda a, b: a.flatten(), lambda a, b: a.squeeze(), lambda a, b: np.minimum(a, 3),
        lambda a, b: np.maximum(a, 3), lambda a, b: np.exp(a), lambda a, b: np.subtract(2, a),
    ],
)  # fmt: skip
def test_like_numpy(expression: Any) -> None:
    found = expression(Eager(A), Eager(B))
    np.testing.assert_allclose(found.value, expression(A, B), rtol=1e-14)


def test_methods_without_a_counterpart_in_numpy() -> None:
    x = Eager(A)
    for found, wanted in [
        (x.exp(), np.exp(A)), (x.log(), np.log(A)), (x.sqrt(), np.sqrt(A)), (x.rsqrt(), A**-0.5),
        (x.reciprocal(), 1 / A), (x.sign(), np.sign(A)), (x.sin(), np.sin(A)), (x.cos(), np.cos(A)),
        (x.tan(), np.tan(A)), (x.tanh(), np.tanh(A)), (x.relu(), A), (x.sigmoid(), 1 / (1 + np.exp(-A))),
        (x.softplus(), np.log1p(np.exp(A))), (x.silu(), A / (1 + np.exp(-A))), (x.var(0), A.var(0, ddof=1)),
        (x.softmax(), np.exp(A) / np.exp(A).sum(-1, keepdims=True)), (x.cast("float32"), A),
        (x.log_softmax(0), A - np.log(np.exp(A).sum(0))), (x.unsqueeze(1), A[:, None]),
        (x.expand(3, 2, 2), np.stack([A] * 3)), (x.clamp(2, 3), A.clip(2, 3)),
        (x.mean(1, keepdim=True), A.mean(1)[:, None]), (x.amax(0), A.max(0)), (x.amin(1), A.min(1)),
        (x.max(0).values, A.max(0)), (x.min(1).indices, A.argmin(1)), (x.std(0), A.std(0, ddof=1)),
        (x.chunk(2)[1], A[1:]), (x.transpose(0, 1), A.T), (x.max(x.mT), np.maximum(A, A.T)),
        (x.flip(0), A[::-1]), (x.permute(1, 0), A.T), (x.split(1)[1], A[1:]),
        (x.sum_to((2,)), A.sum(0)), (x.where(x > 2, 0.0), np.where(A > 2, A, 0)), (x.view(4), A.ravel()),
        (x.expand(3, -1, 2), np.stack([A] * 3)), (x.view_as(x.reshape(4)), A.ravel()), (x.float(), A),
        (x.double(), A), (x.half(), A), (x.bfloat16().float(), A), (x.long(), A), (x.int(), A), (x.bool(), A != 0),
        (x.sum(0).expand_as(x), np.stack([A.sum(0)] * 2)), (x.type_as(x > 2), A != 0),
        (x.abs(), A), ((x > 2).logical_not(), A <= 2), (x.erf() + x.gelu() * 0, ops.erf(x).value),
    ]:  # fmt: skip
        np.testing.assert_allclose(found.value, wanted, rtol=1e-6)


def test_operands_are_keys_by_identity() -> None:
    a, b = Eager(A), Eager(A)
    names = {a: "a", b: "b"}
    assert (names[a], names[b], len({a, b, a})) == ("a", "b", 2)


def test_arrays_beside_operands() -> None:
    """NumPy gives way: an array on the left becomes an operand like one on the right."""
    for found in (A + Eager(B), Eager(B) + A, np.float64(1) * Eager(A), Eager(A) * B):
        assert isinstance(found, Eager)
    assert (A - Eager(B)).value.tolist() == (A - B).tolist()


def test_len_and_iteration() -> None:
    x = Eager(A)
    assert len(x) == 2
    with pytest.raises(TypeError, match=r"a tensor of shape \(\) has no length"):
        len(x.sum())
    assert [row.value.tolist() for row in x] == A.tolist()
    first, second = x
    assert (first + second).value.tolist() == [4, 6]
    with pytest.raises(TypeError, match="has no length"):
        list(x.sum())


def test_scalars_from_either_side() -> None:
    x = Eager(np.array([1, 2], np.int32))
    assert ((3 - x).value.tolist(), (x - 3).value.tolist(), (x > 1).value.tolist()) == (
        [2, 1],
        [-2, -1],
        [False, True],
    )
    assert (3 - x).dtype == x.dtype


def test_what_it_is() -> None:
    x = Eager(np.zeros((2, 3), np.int16))
    assert (x.dim(), x.numel(), x.element_size(), x.is_floating_point()) == (2, 6, 2, False)
    assert [y.dtype.name for y in (x.half(), x.float(), x.double(), x.int(), x.long(), x.bool())] == [
        "float16", "float32", "float64", "int32", "int64", "bool",
    ]  # fmt: skip


def test_numpy_functions_without_an_op_say_so() -> None:
    x = Eager(A)
    for call, name in [
        (lambda: np.heaviside(x, 0), "numpy.heaviside"),
        (lambda: np.add.reduce(x), "numpy.add.reduce"),
        (lambda: np.add(A, x, out=A), "numpy.add"),
    ]:
        with pytest.raises(TypeError, match=f"{name} knows no Eager; use lamina.ops"):
            call()


def test_a_method_is_the_function() -> None:
    for name in METHODS + OWN_METHODS:
        assert getattr(Operators, name) is getattr(ops, name)


@pytest.mark.torch
def test_every_function_that_torch_has_as_a_method_is_one() -> None:
    torch = pytest.importorskip("torch")
    unlike = {"unfold"}  # torch's method is a sliding window, its function im2col
    shared = {n for n in ops.__all__ if callable(getattr(torch.Tensor, n, None))} - unlike
    assert sorted(shared - set(vars(Operators))) == []
    assert [n for n in METHODS if not hasattr(torch.Tensor, n)] == []
