"""Every optimizer's kernel: compiled for a GPU, and run on the CPU over one tensor and over many."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.ops.core import REGISTRY, Sample
from lamina.ops.primitives import Foreach
from lamina.ops.primitives.update import Update
from lamina.spec import DType, Policy, Spec, bfloat16, float16, float32, float64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.own_programs import hasty_cubin
from tests.helpers.planned import H200

CUDA = backend(H200)
UPDATES = [op for op in REGISTRY.values() if issubclass(op, Update)]
DTYPES = [
    (float32, float32), (float32, float16), (float32, bfloat16), (float32, float64),
    (float64, float64), (float64, float32), (float64, bfloat16),
]  # fmt: skip


def sample_of(op: Update, parameter: DType, gradient: DType, shapes: list[tuple[int, ...]]) -> Sample:
    args = tuple(a for i, s in enumerate(shapes) for a in op._arguments(s, gradient, i))
    many = Foreach(op, len(shapes)) if len(shapes) > 1 else op
    return Sample(many, args, (parameter,))


@pytest.mark.feature("F111")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("op_class", UPDATES, ids=lambda c: c.name)
@pytest.mark.parametrize(("parameter", "gradient"), DTYPES, ids=str)
def test_values_of_any_dtype(op_class: type[Update], parameter: DType, gradient: DType) -> None:
    """One tensor with a rest behind the last full access, and several in one launch; other dtypes in the latter."""
    rng = np.random.default_rng(3)
    ops = op_class.variants() if parameter is gradient is float32 else op_class.variants()[2:3]
    for i, op in enumerate(ops):
        shapes: list[tuple[int, ...]] = [(37,)] if i % 2 else [(3, 5), (), (0,), (1030,)]
        sample = sample_of(op, parameter, gradient, shapes)
        arrays = sample.draw(rng, parameter)
        plan = CUDA.plan(sample.op, [Spec(a.shape, a.dtype or parameter) for a in sample.args], Policy())
        wanted = run_reference(sample.op, arrays, float64)
        for found, ref, spec in zip(run_plan(plan, arrays), wanted, plan.outputs, strict=True):
            assert not mismatch(found, ref, spec.dtype), str(op)


@pytest.mark.feature("F111")
@pytest.mark.parametrize("op_class", UPDATES, ids=lambda c: c.name)
@pytest.mark.parametrize("count", [1, 3])
def test_kernels_compile(op_class: type[Update], count: int) -> None:
    """The rule of each variant in one of the two kernels, of the first in both."""
    first, *others = op_class.variants()
    for op in (first, *others[count // 2 :: 2]):
        sample = sample_of(op, float32, bfloat16, [(64,)] * count)
        plan = CUDA.plan(sample.op, [Spec(a.shape, a.dtype or float32) for a in sample.args], Policy())
        for program in plan.make.programs:  # type: ignore[attr-defined]
            assert hasty_cubin(program, "sm_90")[:4] == b"\x7fELF"


@pytest.mark.parametrize("op_class", UPDATES, ids=lambda c: c.name)
def test_state_is_updated_in_place(op_class: type[Update]) -> None:
    sample = sample_of(op_class.variants()[0], float32, float32, [(64,), (64,)])
    plan = CUDA.plan(sample.op, [Spec(a.shape, a.dtype or float32) for a in sample.args], Policy())
    kept, given = 1 + len(op_class.kept()), 3 + len(op_class.kept())
    first = {0: 0} | {i: i + 1 for i in range(1, kept)}
    assert plan.aliases == first | {kept + o: given + i for o, i in first.items()}
