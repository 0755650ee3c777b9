"""Relu of small arrays, in one pass."""

import numpy as np
import pytest

from lamina import backends
from lamina.backends.cpu.pointwise import LEAST, SmallRelu
from lamina.backends.reference import run_reference
from lamina.ops.primitives import ClippedRelu, Relu
from lamina.runtime import Device
from lamina.spec import Policy, Spec, float32
from tests.helpers.eager import execute

CPU = backends.get(Device("cpu"), "cpu")


@pytest.mark.parametrize("op", [Relu(), ClippedRelu(6.0)], ids=str)
@pytest.mark.parametrize("shape", [(), (1, 128), (2, 3, 5, 7), (LEAST,)], ids=str)
def test_what_is_no_number_stays(op: Relu | ClippedRelu, shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32) * 9
    plan = CPU.plan(op, [Spec(shape, float32)], Policy())
    for odd in (np.nan, -np.inf, np.inf):
        x.flat[-1] = odd
        np.testing.assert_array_equal(execute(CPU.device, plan, [x])[0], run_reference(op, [x])[0])


def test_small_arrays_take_one_pass_and_keep_their_layout() -> None:
    plan = CPU.plan(Relu(), [Spec((2, 3, 5, 7), float32).with_tag("acdb")], Policy())
    assert isinstance(plan.make, SmallRelu)
    assert plan.inputs == plan.outputs
    assert plan.inputs[0].tag == "acdb"
    assert plan.aliases == {0: 0}
    for other in (Spec((LEAST,), float32), Spec((1, 16, 2, 2), float32).with_tag("aBcd8b")):
        assert not isinstance(CPU.plan(Relu(), [other], Policy()).make, SmallRelu)
