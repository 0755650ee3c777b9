"""Half types in float32 between casts, where the processor has no kernel of its own."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from lamina import backends, onednn
from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.library import Chain, at_input, at_output
from lamina.backends.cpu.widened import HALF, in_float32
from lamina.backends.reference import run_reference
from lamina.ops.core import Array, Op
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.pointwise import Add, Relu
from lamina.ops.primitives.pool import MaxPool
from lamina.ops.primitives.window import Window
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, as_dtype, float16
from tests.helpers.eager import execute
from tests.helpers.loops import needs_llvm

pytestmark = [pytest.mark.skipif(not onednn.available(), reason="oneDNN is built for x86-64"), needs_llvm]

CPU = Device("cpu")
BACKEND = backends.get(CPU, "cpu")
RNG = np.random.default_rng(0)
SAME = Window((1, 1), ((1, 1), (1, 1)), (1, 1))
GROUPED = Window((2, 1), ((1, 1), (0, 1)), (1, 1), 8)


def numbers(*shape: int) -> Array:
    return RNG.normal(size=shape).astype(np.float32)


CASES: dict[str, tuple[Op, list[Array]]] = {
    "conv": (Conv(SAME), [numbers(2, 16, 20, 20), numbers(24, 16, 3, 3)]),
    "conv of groups": (Conv(GROUPED), [numbers(2, 16, 9, 8), numbers(8, 2, 3, 2)]),
    "gradient of images": (ConvDataGrad(SAME, (20, 20)), [numbers(2, 24, 20, 20), numbers(24, 16, 3, 3)]),
    "gradient of filters": (ConvFilterGrad(SAME, (3, 3)), [numbers(2, 16, 20, 20), numbers(2, 24, 20, 20)]),
    "product": (Matmul(False, True), [numbers(3, 33, 40), numbers(3, 17, 40)]),
    "product, bias, relu": (
        Fused((Matmul(False, False), Add(), Relu())), [numbers(33, 40), numbers(40, 17), numbers(17)]
    ),
    "pool": (MaxPool((2, 2), Window((2, 2), ((0, 0), (0, 0)), (1, 1))), [numbers(2, 16, 20, 20)]),
}  # fmt: skip


def plan(op: Op, arrays: Sequence[Array]) -> Plan:
    """As the backend makes it for a processor that has no kernel in the arrays' half type."""
    return in_float32(op, [Spec(a.shape, as_dtype(a.dtype)) for a in arrays], BACKEND, Policy())


def in_half(arrays: Sequence[Array], dtype: DType) -> list[Any]:
    return [a.astype(dtype.numpy) for a in arrays]


def near(found: Array, wanted: Array, dtype: DType) -> None:
    """Rounded once to the half type: half a unit of the largest number, and float32's own error."""
    unit = 2.0**-11 if dtype == float16 else 2.0**-8
    scale = np.abs(wanted).max()
    np.testing.assert_allclose(found.astype(np.float64), wanted, rtol=unit, atol=1e-5 * scale)


@pytest.mark.parametrize("dtype", HALF, ids=str)
@pytest.mark.parametrize("name", CASES)
def test_values_are_those_of_float64_rounded_once(name: str, dtype: DType) -> None:
    op, arrays = CASES[name]
    given = in_half(arrays, dtype)
    made = plan(op, given)
    assert made.label.endswith("in float32")
    assert [s.dtype for s in made.outputs] == [
        s.dtype for s in op.infer(*(Spec(a.shape, dtype) for a in given))
    ]
    wanted = run_reference(op, [a.astype(np.float64) for a in given])
    near(execute(CPU, made, given)[0], wanted[0], dtype)


@pytest.mark.parametrize("name", ["conv", "conv of groups", "product"])
def test_weights_that_stay_are_cast_once(name: str) -> None:
    """The prepared plan reads them in float32, as its kernel wants them, and gives the same bits."""
    op, arrays = CASES[name]
    given = in_half(arrays, float16)
    made = plan(op, given)
    packed = made.packed
    assert packed is not None
    assert packed.index == 1
    assert packed.plan.inputs[0].dtype == float16
    assert packed.plan.inputs[1] == packed.pack.outputs[0]
    wanted = run_reference(op, [a.astype(np.float64) for a in given])[0]
    chained = _after(packed.pack, packed.plan)
    near(execute(CPU, chained, given)[0], wanted, float16)


def _after(pack: Plan, ready: Plan) -> Plan:
    """Both as one plan of the op's own operands."""
    chain = Chain([ready.inputs[0], pack.inputs[0]], list(ready.outputs))
    place = chain.temporary(pack.outputs[0].nbytes)
    chain.follow(pack, [at_input(1)], [place])
    chain.follow(ready, [at_input(0), place], [at_output()])
    return chain.plan()


def test_what_does_not_pay_is_left_alone() -> None:
    small, wide = numbers(4, 4).astype(np.float16), numbers(200, 200)
    with pytest.raises(NoKernel, match="nothing to compute in float32"):
        plan(Relu(), [numbers(200, 200).astype(np.float16)])  # loops have it
    with pytest.raises(NoKernel, match="nothing to compute in float32"):
        plan(Matmul(False, False), [wide, wide])
    with pytest.raises(NoKernel, match="nothing to compute in float32"):
        plan(MaxPool((2, 2), Window((2, 2), ((0, 0), (0, 0)), (1, 1))), [small[None, None]])


@pytest.mark.parametrize("name", CASES)
def test_no_half_type_is_left_to_numpy(name: str) -> None:
    """By a kernel of its own where the processor has one, else in float32."""
    op, arrays = CASES[name]
    given = in_half(arrays, float16)
    made = BACKEND.choose(op, [Spec(a.shape, float16) for a in given], Policy())
    assert "numpy" not in made.label
