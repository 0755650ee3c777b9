"""GRUs in inference by oneDNN's primitive: beside the reference, of one and two directions and layers."""

import numpy as np
import pytest

from lamina import backends, onednn
from lamina.backends.reference import run_reference
from lamina.ops.primitives.rnn import Rnn, Sizes
from lamina.runtime import Device
from lamina.spec import Policy, Spec, float32
from tests.helpers.eager import execute

pytestmark = pytest.mark.skipif(not onednn.available(), reason="oneDNN is built for x86-64")
CPU = Device("cpu")


@pytest.mark.feature("F068")
@pytest.mark.parametrize(
    ("layers", "bidirectional", "bias"), [(1, False, True), (2, True, True), (2, True, False)]
)
def test_values(layers: int, bidirectional: bool, bias: bool) -> None:
    op, sizes = Rnn("gru", 24, layers, bidirectional, 0, bias), Sizes(7, 3, 10)
    rng = np.random.default_rng(0)
    shapes = [tuple(sizes), *op.state_shapes(sizes.batch)]
    for layer in range(layers):
        width = 24 * op.directions if layer else sizes.inputs
        shapes += [(72, width), (72, 24), *([(72,)] * 2 * bias)] * op.directions
    arrays = [(rng.standard_normal(s) * 0.5).astype(np.float32) for s in shapes]
    plan = backends.get(CPU, "cpu").plan(op, [Spec(a.shape, float32) for a in arrays], Policy())
    assert plan.label == "onednn gru"
    for found, wanted in zip(execute(CPU, plan, arrays), run_reference(op, arrays), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=2e-6)


def test_training_keeps_its_own_steps() -> None:
    """Its tape is what the gradient reads."""
    op = Rnn("gru", 4, reserve=True)
    specs = [Spec(s, float32) for s in ((3, 2, 5), (1, 2, 4), (12, 5), (12, 4), (12,), (12,))]
    assert "numpy cells" in backends.get(CPU, "cpu").plan(op, specs, Policy()).label
