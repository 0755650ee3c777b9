"""Which ops have loops, and when."""

import pytest

from lamina import backends
from lamina.backends import NoKernel
from lamina.backends.cpu.loops.table import LEAST, answers, is_elementwise, worthwhile
from lamina.ops.primitives import Add, Conv, Fused, Relu, Softmax, Where, Window
from lamina.runtime import Device
from lamina.spec import Policy, Spec, bool_, float32
from tests.helpers.loops import needs_llvm, plan

CONV = Conv(Window((1, 1), ((0, 0), (0, 0)), (1, 1)))


def test_elementwise_is_a_property_of_ops() -> None:
    assert is_elementwise(Where())
    assert is_elementwise(Fused((Add(), Relu())))
    assert not is_elementwise(Fused((CONV, Relu())))
    assert not is_elementwise(Softmax(1))


@needs_llvm
def test_small_problems_are_left_to_numpy() -> None:
    cpu, op = backends.get(Device("cpu"), "cpu"), Fused((Add(), Relu()))
    assert answers(op)
    small, large = (Spec((LEAST // parts,), float32).fixed for parts in (6, 2))
    with pytest.raises(NoKernel, match="not worth a kernel"):
        plan(op, [small, small])
    assert plan(op, [large, large]).label == "loops add+relu"
    assert cpu.plan(Where(), [Spec(small.shape, bool_).fixed, small, small], Policy()).label == "numpy where"


def test_nothing_to_compute_is_no_work() -> None:
    with pytest.raises(NoKernel, match="0 elements"):
        worthwhile(Add(), [Spec((0, 3), float32)], [Spec((0, 3), float32)])
