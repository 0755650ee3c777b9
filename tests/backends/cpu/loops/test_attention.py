"""Attention with generated kernels between its products: values of every sample, rows that see nothing."""

import numpy as np
import pytest

from lamina import backends
from lamina.backends.cpu.loops import compiler
from lamina.backends.reference import run_reference
from lamina.ops.core import REGISTRY
from lamina.ops.primitives import Attention
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, as_dtype, bfloat16, float16, float32
from tests.helpers.eager import mismatch, run_on
from tests.helpers.loops import needs_llvm

CPU = backends.get(Device("cpu"), "cpu")


@pytest.mark.parametrize("name", ["attention", "attention_grad"])
def test_both_forms_give_the_reference(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With generated kernels, and with oneDNN's and NumPy's steps where LLVM is absent."""
    samples = [s for s in REGISTRY[name].samples() if float32 in (s.dtypes or s.op.dtypes)]
    for number, sample in enumerate(samples):
        arrays = sample.draw(np.random.default_rng(number), float32)
        wanted = run_reference(sample.op, arrays)
        for there in {compiler.available(), False}:
            with monkeypatch.context() as context:
                context.setattr(compiler, "available", lambda there=there: there)
                found = run_on(CPU, sample.op, arrays)
            for y, w in zip(found, wanted, strict=True):
                assert mismatch(y, w, float32) == "", f"{sample.op}, with LLVM: {there}"


@needs_llvm
def test_rows_that_see_nothing_are_zeros() -> None:
    q, k, v = (np.random.default_rng(i).standard_normal((2, 3, 5, 4)).astype(np.float32) for i in range(3))
    bias = np.zeros((1, 3, 5, 5), np.float32)
    bias[0, 1, 2] = -np.inf
    o, stats = run_on(CPU, Attention(0.5, False, stats=True), [q, k, v, bias])
    assert (o[:, 1, 2] == 0).all()
    assert (stats[:, 1, 2] == np.inf).all()
    assert np.isfinite(stats[:, 1, 3]).all()


@pytest.mark.parametrize("dtype", [bfloat16, float16], ids=str)
@pytest.mark.parametrize("name", ["attention", "attention_grad"])
def test_half_types_are_computed_in_float32(name: str, dtype: DType) -> None:
    """Every sample: one plan, between casts of what is of a half type (the statistics are not)."""
    samples = [s for s in REGISTRY[name].samples() if dtype in (s.dtypes or s.op.dtypes)]
    assert samples
    for number, sample in enumerate(samples):
        arrays = sample.draw(np.random.default_rng(number), dtype)
        plan = CPU.plan(sample.op, [Spec(a.shape, as_dtype(a.dtype)) for a in arrays], Policy())
        assert plan.label.endswith(" in float32")
        wanted = run_reference(sample.op, arrays)
        for y, w in zip(run_on(CPU, sample.op, arrays), wanted, strict=True):
            assert mismatch(y, w, as_dtype(y.dtype)) == "", f"{sample.op}"
