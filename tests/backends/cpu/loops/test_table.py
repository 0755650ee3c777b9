"""Which ops have loops, and when."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest

import lamina as lm
from lamina import backends, ops
from lamina.backends import NoKernel
from lamina.backends.cpu.loops.table import LEAST, answers, is_elementwise, worthwhile
from lamina.ops.core import Array, call
from lamina.ops.custom import CustomOp
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


@dataclass(frozen=True)
class CountedDouble(CustomOp, abstract=True):
    """2 x, by a Python function that counts how often it ran."""

    elementwise = True
    ran: ClassVar[list[int]] = []

    def infer(self, x: Spec) -> tuple[Spec]:
        return (x.open,)

    def reference(self, x: Array) -> tuple[Array]:
        return (2 * x,)

    def run(self, inputs: Sequence[Any], outputs: Sequence[Any], stream: int) -> None:
        self.ran.append(1)
        outputs[0][...] = 2 * inputs[0]


@needs_llvm
def test_an_own_op_runs_its_own_function() -> None:
    """Neither alone nor among elementwise steps does a kernel of its meaning take its place."""
    x = np.linspace(-1, 1, 20000, dtype=np.float32)
    assert not is_elementwise(CountedDouble())
    assert not is_elementwise(Fused((Add(), CountedDouble())))
    f = lm.jit(lambda v: ops.exp(call(CountedDouble(), v + 1.0)) * v)
    CountedDouble.ran.clear()
    np.testing.assert_allclose(f(x).numpy(), np.exp(2 * (x + 1)) * x, rtol=1e-5)
    assert CountedDouble.ran == [1]
