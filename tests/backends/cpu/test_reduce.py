"""Sums and means by products with ones: which are oneDNN's, and their values."""

import numpy as np
import pytest

from lamina import backends
from lamina.backends.cpu.library import PrimitiveStage, Stages
from lamina.ops.primitives import Reduce
from lamina.runtime import Device
from lamina.spec import Policy, Spec, float32
from tests.helpers.eager import execute
from tests.helpers.loops import needs_llvm

CPU = Device("cpu")
BACKEND = backends.get(CPU)


def by_onednn(x: Spec, op: Reduce) -> bool:
    make = BACKEND.plan(op, [x], Policy()).make
    return isinstance(make, Stages) and all(isinstance(s, PrimitiveStage) for s in make.stages)


@pytest.mark.parametrize("kind", ["sum", "mean"])
@pytest.mark.parametrize(
    ("shape", "tag", "axes"),
    [((3, 64, 7, 7), "acdb", (2, 3)), ((40, 50, 60), "abc", (0,)), ((5, 40, 60), "abc", (1,))],
)
def test_axes_side_by_side_are_summed_by_a_product(
    kind: str, shape: tuple[int, ...], tag: str, axes: tuple[int, ...]
) -> None:
    """Outermost in memory, or between others."""
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    spec, op = Spec(shape, float32).with_tag(tag), Reduce(kind, axes)
    assert by_onednn(spec, op)
    (found,) = execute(CPU, BACKEND.plan(op, [spec], Policy()), [x])
    wanted = getattr(x.astype(np.float64), kind)(axes)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)


@needs_llvm
def test_large_sums_between_other_axes_are_left_to_loops() -> None:
    assert by_onednn(Spec((3, 512, 7, 7), float32).with_tag("acdb"), Reduce("mean", (2, 3)))
    assert not by_onednn(Spec((64, 512, 7, 7), float32).with_tag("acdb"), Reduce("mean", (2, 3)))
