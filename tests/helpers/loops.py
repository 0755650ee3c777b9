"""Shared by the tests of generated loops: plans by loops only, and an op's samples compared with its reference."""

from collections.abc import Sequence

import numpy as np
import pytest

from lamina.backends import NoKernel, Plan
from lamina.backends.cpu.loops import compiler
from lamina.backends.cpu.loops.table import answers, loops
from lamina.backends.reference import run_reference
from lamina.ops.core import Array, Op, Sample
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, as_dtype, float64
from tests.helpers.eager import execute, mismatch

needs_llvm = pytest.mark.skipif(not compiler.available(), reason="llvmlite is not installed")


def plan(op: Op, specs: Sequence[Spec]) -> Plan:
    """The plan by loops. Raises NoKernel."""
    if not answers(op):
        raise NoKernel(f"no loops for {op}")
    return loops.plan(op, specs, Device("cpu"), Policy())


def reference_of(op: Op, arrays: Sequence[Array]) -> tuple[Array, ...]:
    """In float64."""
    return run_reference(op, arrays, float64)


def check_samples(op_class: type[Op], *, dtypes: int, samples: int) -> int:
    """Compare samples of an op that loops support with the reference; returns their number, `samples` at most.

    dtypes: the number of their types to test, float32 first. The first sample is compared in all of these, each other
    one in the first of them and one more in turn: how elements are read and written depends only on their type.
    """
    checked = 0
    for number, sample in enumerate(op_class.samples()):
        known = sorted(sample.dtypes or sample.op.dtypes, key=lambda d: d.name != "float32")[:dtypes]
        if checked and len(known) > 2:
            known = [known[0], known[1 + number % (len(known) - 1)]]
        done = [_is_right(sample, np.random.default_rng(number), dtype) for dtype in known]
        checked += any(done)
        if checked == samples:
            break
    return checked


def _is_right(sample: Sample, rng: np.random.Generator, dtype: DType) -> bool:
    """Whether loops support the sample; fails if they are wrong."""
    arrays = sample.draw(rng, dtype)
    try:
        found = plan(sample.op, [Spec(a.shape, as_dtype(a.dtype)).fixed for a in arrays])
    except NoKernel:
        return False
    results = execute(Device("cpu"), found, arrays)
    for y, wanted in zip(results, reference_of(sample.op, arrays), strict=True):
        wrong = mismatch(y, wanted.astype(y.dtype), as_dtype(y.dtype))
        assert wrong == "", f"{sample.op} {dtype}, shapes {[a.shape for a in arrays]}: {wrong}"
    return True
