"""Group, layer and RMS norm and their gradients."""

import numpy as np
import pytest

from lamina.backends import NoKernel
from lamina.backends.cpu.loops import table
from lamina.backends.cpu.loops.norm import rows_of
from lamina.ops.core import REGISTRY
from lamina.ops.primitives.norm import BatchNormInfer, GroupNorm, LayerNorm
from lamina.runtime import Device
from lamina.spec import DType, Spec, bfloat16, float16, float32, float64
from tests.helpers.eager import execute, mismatch
from tests.helpers.loops import check_samples, needs_llvm, plan

pytestmark = needs_llvm
NAMES = [f"{kind}_norm{part}" for kind in ("group", "layer", "rms") for part in ("", "_grad")]


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


@pytest.mark.parametrize("name", NAMES)
def test_values(name: str) -> None:
    assert check_samples(REGISTRY[name], dtypes=1, samples=2) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_values_of_all_dtypes(name: str) -> None:
    check_samples(REGISTRY[name], dtypes=9, samples=99)


def test_rows_are_what_shares_statistics() -> None:
    x = Spec((4, 6, 5, 7), float32)
    assert rows_of(GroupNorm(3, 1e-5).frame(x)) == (4, 3, 2, 35)
    assert rows_of(LayerNorm(2, 1e-5).frame(x)) == (24, 1, 35, 1)


@pytest.mark.parametrize("dtype", [float32, float64, float16, bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 7, 9), (2, 19), (4, 1, 33)])
def test_batch_norm_of_known_statistics(shape: tuple[int, ...], dtype: DType) -> None:
    """Channel by channel; what is not finite stays in its channel, and elements that overflow are infinite."""
    op, rng = BatchNormInfer(1e-3), np.random.default_rng(0)
    x = rng.standard_normal(shape).astype(dtype.numpy)
    x[0, -1], x[1, 0] = np.nan, -np.inf
    wide, count = dtype.compute, shape[1]
    small = [rng.uniform(0.5, 2, count).astype(wide.numpy) for _ in range(4)]
    specs = [Spec(shape, dtype).fixed, *(Spec((count,), wide).fixed for _ in small)]
    found = plan(op, specs)
    (y,) = execute(Device("cpu"), found, [x, *small])
    wanted = op.reference(*(a.astype(np.float64) for a in (x, *small)))[0].astype(dtype.numpy)
    assert mismatch(y, wanted, dtype) == ""


def test_what_follows_a_batch_norm_is_left_to_others() -> None:
    specs = [Spec((2, 3, 4), float32).fixed, *[Spec((3,), float32).fixed] * 4]
    with pytest.raises(NoKernel, match="left to others"):
        plan(BatchNormInfer(1e-5, relu=True), specs)
