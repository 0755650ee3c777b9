"""Lamina's matrix product kernels in the emulator, compared with float64: shared by the tests of several kernels."""

from collections.abc import Sequence

import numpy as np

from lamina.backends import Plan
from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.ops.core import Array, Op
from lamina.spec import DType, Policy, Shape, Spec, float64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

CUDA = backend(H200)


def given(rng: np.random.Generator, dtype: DType, *shapes: Shape) -> list[Array]:
    """Normal numbers whose products have about unit size."""
    return [(rng.standard_normal(shape) / max(1, shape[-1]) ** 0.25).astype(dtype.numpy) for shape in shapes]


def label(op: Op, *shapes: Shape, dtype: DType) -> str:
    """The plan on an H200."""
    return CUDA.plan(op, [Spec(s, dtype) for s in shapes], Policy()).label


def planned(kernel: str, op: Op, specs: Sequence[Spec]) -> Plan:
    """The plan for an H200, which is the formulation of this name."""
    plan = CUDA.plan(op, list(specs), Policy())
    assert plan.label.endswith(f" {kernel}"), plan.label
    return plan


def check(
    kernel: str, op: Op, inputs: list[Array], dtype: DType, specs: Sequence[Spec] | None = None
) -> None:
    """The kernel's values compared with float64's, for any order of the warps."""
    plan = planned(kernel, op, specs or [Spec(x.shape, dtype) for x in inputs])
    (found,) = run_plan(plan, inputs)
    with contrary():
        np.testing.assert_array_equal(run_plan(plan, inputs)[0], found)
    (wanted,) = run_reference(op, inputs, float64)
    assert not mismatch(found, wanted, dtype)
