"""The fast transform of frames in the emulator: even and odd sizes, factors, types, values that are not finite."""

import shutil
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends import NoKernel
from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.graph import compile
from lamina.graph.ir.graph import traced_for
from lamina.ops.primitives.spectral import ShortTimeSpectra, fast_factors
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, bfloat16, float16, float32, float64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import contrary, run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)


def _drawn(batch: int, length: int, size: int, dtype: DType) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(dtype.numpy) for shape in ((batch, length), (size,))]


@pytest.mark.parametrize("dtype", [float64, float32, float16, bfloat16])
@pytest.mark.parametrize(
    ("size", "hop", "batch", "length"),
    [
        (400, 160, 2, 1000),
        (1, 3, 2, 8),
        (2, 1, 1, 7),
        (3, 2, 2, 8),
        (16, 5, 1, 40),
        (2 * 7 * 11 * 13, 700, 1, 2800),
        (45, 100, 2, 250),
        (3072, 1000, 1, 4100),
    ],
)
def test_values(size: int, hop: int, batch: int, length: int, dtype: DType) -> None:
    op, arrays = ShortTimeSpectra(size, hop, 0.5), _drawn(batch, length, size, dtype)
    plan = CUDA.plan(op, [Spec(a.shape, dtype) for a in arrays], Policy())
    (wanted,) = run_reference(op, arrays, float64)
    for misaligned in (False, True):
        (found,) = run_plan(plan, arrays, misaligned=misaligned)
        assert found.shape == (batch, 1 + (length - size) // hop, size // 2 + 1, 2)
        assert not mismatch(found, wanted, dtype)
        real = [0] if size % 2 else [0, -1]
        np.testing.assert_array_equal(found[:, :, real, 1].astype(np.float64), 0)
    with contrary():
        np.testing.assert_array_equal(run_plan(plan, arrays)[0], found)


def test_what_is_not_finite_stays_in_its_frame() -> None:
    x, weights = _drawn(2, 30, 10, float32)
    x[0, 7] = np.inf
    plan = CUDA.plan(ShortTimeSpectra(10, 10), [Spec((2, 30), float32), Spec((10,), float32)], Policy())
    (found,) = run_plan(plan, [x, weights])
    np.testing.assert_array_equal(np.isfinite(found).all((2, 3)), [[False, True, True], [True, True, True]])


def test_factors() -> None:
    assert fast_factors(400) == (5, 5, 4, 2)
    assert fast_factors(45) == (5, 3, 3)
    assert fast_factors(3072) == (4,) * 4 + (3, 2)
    assert (fast_factors(34), fast_factors(3074), fast_factors(1537)) == ((), (), ())
    with pytest.raises(NoKernel, match="short_time_spectra has no fast transform of 34 samples"):
        CUDA.plan(ShortTimeSpectra(34, 1), [Spec((1, 99), float32), Spec((34,), float32)], Policy())


@pytest.mark.parametrize(("size", "kernel"), [(400, True), (402, False)])
def test_stft_for_a_gpu(size: int, kernel: bool) -> None:
    """One kernel where the size has small factors; values and gradients are those of one product."""
    x = np.random.default_rng(0).standard_normal((2, 1600))
    window = np.hanning(size)

    def spectra(x: Any) -> Any:
        return ops.stft(x, size, 160, window=window)

    def energy(x: Any) -> Any:
        return ops.sum(ops.square(spectra(x)) * np.arange(11)[:, None])

    wanted, (value, slope) = spectra(lm.tensor(x)), lm.value_and_grad(energy)(lm.tensor(x))
    with traced_for(H200):
        graphs = [lm.trace(f, Spec((2, 1600), float64)) for f in (spectra, lm.value_and_grad(energy))]
    assert any(isinstance(n.op, ShortTimeSpectra) for n in graphs[0].nodes) == kernel
    for graph, results in zip(graphs, ([wanted], [value, slope]), strict=True):
        found = compile(graph, Device("cpu"))(x)
        for a, b in zip(found if isinstance(found, tuple) else (found,), results, strict=True):
            np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-9, atol=1e-9)
        compile(graph, H200)


def test_the_kernel_compiles() -> None:
    for size, dtype in ((400, float32), (1001, bfloat16), (3072, float64)):
        plan = CUDA.plan(ShortTimeSpectra(size, 9), [Spec((3, 9999), dtype), Spec((size,), dtype)], Policy())
        programs = (*plan.make.programs, *plan.make.plain_programs)
        assert all(program.cubin("sm_90") for program in programs)
