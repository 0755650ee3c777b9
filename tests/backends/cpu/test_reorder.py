"""Copies between layouts: whose they are."""

import pytest

from lamina import backends
from lamina.backends.cpu.library import Stages
from lamina.backends.cpu.loops.kernel import LoopKernel
from lamina.runtime import Device
from lamina.spec import DType, Spec, float32, int64
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
