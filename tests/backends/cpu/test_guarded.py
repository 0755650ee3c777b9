"""What a guarded kernel may run on, and what NumPy does instead."""

import numpy as np
import pytest

from lamina import backends
from lamina.backends.cpu.guarded import above_minus_infinity, below_infinity, finite, no_nan
from lamina.backends.reference import run_reference
from lamina.ops.core import Array
from lamina.ops.primitives import ClippedRelu, Exp, MaxPool, Relu
from lamina.ops.primitives.window import window
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, bfloat16, float16, float32
from tests.helpers.eager import execute

CPU = backends.get(Device("cpu"), "cpu")
#: What is among the elements -> which of the four allow it.
ALLOWED = {
    (1.0, -2.0): (True, True, True, True),
    (1.0, np.nan): (False, False, False, False),
    (1.0, -np.nan): (False, False, False, False),
    (1.0, np.inf): (True, False, False, True),
    (1.0, -np.inf): (False, True, False, True),
    (np.nan, np.inf, -np.inf): (False, False, False, False),
}


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("values", ALLOWED, ids=str)
def test_what_is_allowed(values: tuple[float, ...], dtype: DType) -> None:
    x = np.zeros(70, dtype.numpy)
    x[3 : 3 + len(values)] = np.array(values).astype(dtype.numpy)
    if any(np.signbit(v) and np.isnan(v) for v in values):
        x[4] = np.copysign(x[4], dtype.numpy.type(-1))
    assert tuple(f(x) for f in (above_minus_infinity, below_infinity, finite, no_nan)) == ALLOWED[values]


@pytest.mark.parametrize(
    "op", [Relu(), ClippedRelu(6.0), Exp(), MaxPool((2, 2), window("pool", (2, 2), 2))], ids=str
)
@pytest.mark.parametrize("tag", ["abcd", "acdb", "aBcd16b"])
def test_in_any_layout(op: Relu | ClippedRelu | Exp | MaxPool, tag: str) -> None:
    """NaN stays where it is, with blocks and their padding too; the next run without NaN is the kernel's again."""
    clean = np.random.default_rng(0).standard_normal((2, 19, 4, 6)).astype(np.float32)
    plan = CPU.plan(op, [Spec(clean.shape, float32).with_tag(tag)], Policy())
    odd = clean.copy()
    odd[1, 18, 3, 5] = odd[0, 0, 0, 0] = np.nan
    for x in (odd, clean):
        found: tuple[Array, ...] = execute(CPU.device, plan, [x])
        for y, wanted in zip(found, run_reference(op, [x]), strict=True):
            np.testing.assert_allclose(y, wanted, rtol=1e-5, atol=1e-6)
