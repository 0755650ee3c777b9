"""What NumPy does where a guarded kernel may not run."""

import numpy as np
import pytest

from lamina import backends
from lamina.backends.reference import run_reference
from lamina.ops.core import Array
from lamina.ops.primitives import ClippedRelu, ClippedReluGrad, Exp, MaxPool, Relu, ReluGrad
from lamina.ops.primitives.window import window
from lamina.runtime import Device
from lamina.spec import Policy, Spec, float32
from tests.helpers.eager import execute

CPU = backends.get(Device("cpu"), "cpu")


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


@pytest.mark.parametrize("op", [ReluGrad(), ClippedReluGrad(1.5)], ids=str)
@pytest.mark.parametrize("shape", [(3,), (4, 40, 9, 9)], ids=str)
def test_where_relu_is_0_its_gradient_is_0_whatever_arrives(
    op: ReluGrad | ClippedReluGrad, shape: tuple[int, ...]
) -> None:
    """As behind sqrt(relu(x)), whose slope at 0 is infinite. What is not a number in y is nobody's business."""
    y = np.maximum(np.random.default_rng(0).standard_normal(shape), 0).astype(np.float32)
    g = np.where(y == 0, np.float32(np.inf), 1).astype(np.float32)
    y.flat[0], g.flat[0], g.flat[1] = 0, np.nan, -np.inf
    plan = CPU.plan(op, [Spec(shape, float32)] * 2, Policy())
    (found,) = execute(CPU.device, plan, [y, g])
    np.testing.assert_array_equal(found, run_reference(op, [y, g])[0])
    assert found.flat[0] == 0
