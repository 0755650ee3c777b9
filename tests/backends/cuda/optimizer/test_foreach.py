"""Which ops many tensors are given to at once."""

import pytest

from lamina.backends import NoKernel
from lamina.backends.cuda.optimizer.foreach import foreach
from lamina.ops.core import Op
from lamina.ops.primitives import Add, Cast, Foreach, Matmul
from lamina.spec import Policy, Shape, Spec, bfloat16, float32
from tests.helpers.planned import H200


@pytest.mark.parametrize(
    ("op", "shape"), [(Add(), ()), (Add(), (1,)), (Cast(bfloat16), (5,)), (Cast(bfloat16), ())]
)
def test_one_launch_for_many(op: Op, shape: Shape) -> None:
    count = 2 if isinstance(op, Add) else 1
    plan = foreach(Foreach(op, 3), (Spec(shape, float32),) * 3 * count, H200, Policy())
    assert len(plan.make.steps) == 1


@pytest.mark.parametrize(("op", "shape"), [(Add(), (2,)), (Matmul(), (1, 1)), (Matmul(), (4, 4))])
def test_what_is_no_update_is_refused_but_for_single_elements(op: Op, shape: Shape) -> None:
    with pytest.raises(NoKernel, match=f"no kernel for many of {op.name}, but for tensors of one element"):
        foreach(Foreach(op, 3), (Spec(shape, float32),) * 6, H200, Policy())
