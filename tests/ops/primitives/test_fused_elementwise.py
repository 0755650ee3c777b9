"""Expressions: what they compute, how they print, what they refuse, and their gradients."""

from typing import Any

import numpy as np
import pytest

from lamina.ops.core import call
from lamina.ops.primitives import Abs, Add, Cast, Exp, FusedElementwise, Gt, Matmul, Mul, Reduce, Slice, Where
from lamina.spec import ShapeError, Spec, bfloat16, bool_, float32
from tests.helpers.functions import run

X = Spec((2, 3), float32)


def test_steps_read_inputs_and_each_other() -> None:
    op = FusedElementwise((Mul(), Abs(), Add()), ((0, 1), (~0,), (~1, ~0)))
    x, y = np.array([1.0, -2.0]), np.array([3.0, 4.0])
    assert run(lambda *a: call(op, *a), x, y).tolist() == [6, 0]
    assert str(op) == "fused_elementwise(mul()[x0, x1]; abs()[s0]; add()[s1, s0])"
    assert [v.tolist() for v in op.running_values(x, y)] == [[3, -8], [3, 8], [6, 0]]


def test_dtypes_and_shapes_follow_the_steps() -> None:
    choice = FusedElementwise((Gt(), Where(), Reduce("sum", (1,))), ((0, 1), (~0, 0, 1), (~1,)))
    assert choice.infer(X, Spec((3,), float32)) == (Spec((2,), float32),)
    assert FusedElementwise((Gt(),), ((0, 0),)).infer(X) == (Spec((2, 3), bool_),)


def test_casts_round_in_between() -> None:
    op = FusedElementwise((Cast(bfloat16), Cast(float32), Exp()), ((0,), (~0,), (~1,)))
    x = np.linspace(0, 1, 7, dtype=np.float32)
    np.testing.assert_allclose(
        op.reference(x)[0], np.exp(x.astype(bfloat16.numpy).astype(np.float32)), rtol=1e-6
    )


@pytest.mark.parametrize(
    ("ops", "reads", "message"),
    [
        ((), (), "needs elementwise steps"),
        ((Matmul(),), ((0, 0),), "needs elementwise steps"),
        ((Reduce("sum", (0,)), Abs()), ((0,), (~0,)), "needs elementwise steps"),
        ((Abs(), Abs()), ((0,),), "needs elementwise steps"),
        ((Abs(), Mul()), ((0,), (~0,)), r"step 1, mul\(\), cannot read \(-1,\) of 1 inputs"),
        ((Abs(),), ((~0,),), r"step 0, abs\(\), cannot read \(-1,\)"),
        ((Abs(),), ((1,),), r"cannot read \(1,\) of 1 inputs"),
        ((Slice((0, 0), (9, 1), (1, 1)),), ((0,),), "is outside axis 0"),
    ],
)
def test_errors(ops: Any, reads: Any, message: str) -> None:
    with pytest.raises(ShapeError, match=message):
        FusedElementwise(ops, reads).infer(X)
