"""Copies between layouts: whose they are."""

import numpy as np
import pytest

import lamina as lm
from lamina import backends, ops
from lamina.backends.cpu.library import Stages
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.runtime import Device
from lamina.spec import DType, Spec, bfloat16, float16, float32, int64
from tests.helpers.eager import execute
from tests.helpers.loops import needs_llvm

BACKEND = backends.get(Device("cpu"))


@needs_llvm
@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((32, 100, 256), float32, Stages),
        ((32, 100, 256), int64, LoopKernel),  # a type that oneDNN lacks
        ((100, 512, 1000), float32, LoopKernel),  # more than caches hold
    ],
)
def test_runs_are_copied_by_loops_where_onednn_generates_no_code_or_slower_one(
    shape: tuple[int, ...], dtype: DType, kind: type
) -> None:
    """oneDNN's code is there in a tenth of a millisecond, LLVM's in fifty."""
    spec = Spec(shape, dtype)
    assert isinstance(BACKEND.reorder(spec.fixed, spec.with_tag("bac")).make, kind)


WINDOWS = np.lib.stride_tricks.sliding_window_view


@pytest.mark.parametrize("dtype", ["float32", "int32", "int64"])
def test_elements_that_overlap_are_copied(dtype: str) -> None:
    rows = np.arange(48).reshape(6, 8).astype(dtype)
    given = (
        WINDOWS(rows[0], 3),
        WINDOWS(rows[:, 0], 3),
        WINDOWS(rows, (2, 3)),
        np.broadcast_to(rows[0], (4, 8)),
    )
    for x in given:
        np.testing.assert_array_equal(lm.tensor(x).numpy(), x)
        np.testing.assert_array_equal(ops.add(x, 1).numpy(), x + 1)


@needs_llvm
@pytest.mark.parametrize("dtype", [bfloat16, float16])
@pytest.mark.parametrize("source", ["abcd", "acdb", "aBcd8b", "aBcd16b"])
@pytest.mark.parametrize("target", ["abcd", "acdb", "aBcd8b", "aBcd4b8b"])
@pytest.mark.parametrize("channels", [64, 20])
def test_half_types_are_not_copied_one_by_one(dtype: DType, source: str, target: str, channels: int) -> None:
    """oneDNN does that where the processor does not compute in them: 50 ns an element."""
    spec = Spec((8, channels, 5, 12), dtype)
    found = BACKEND.reorder(spec.with_tag(source), spec.with_tag(target))
    assert "simple" not in found.label, found.label
    assert (found.inputs[0].tag, found.outputs[0].tag) == (source, target)
    x = np.random.default_rng(0).standard_normal(spec.shape).astype(dtype.numpy)
    (y,) = execute(Device("cpu"), found, [x])
    np.testing.assert_array_equal(y.view(np.int16), x.view(np.int16))
