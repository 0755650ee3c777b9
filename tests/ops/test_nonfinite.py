"""Every op on NaN, infinities and the largest numbers, on every backend, beside its NumPy meaning.

What an input that is not finite does to outputs is the reference's: where that gives NaN or an infinity, a backend
never gives a finite number. It may spread further (a masked product, a padded sum): louder, not silent.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from itertools import islice

import ml_dtypes
import numpy as np
import pytest

from lamina import backends
from lamina.backends.cuda import backend as cuda
from lamina.backends.cuda.attention.joint_attention_fusion import JointAttentionGrad
from lamina.backends.reference import run_reference
from lamina.ops.core import REGISTRY, Array, Op
from lamina.ops.primitives import (
    Attention,
    AttentionGrad,
    Conv,
    ConvDataGrad,
    ConvFilterGrad,
    Fused,
    Gelu,
    GeluTanh,
    QuantizedConv,
    Silu,
)
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec, as_dtype, float16, float32, float64
from tests.helpers.eager import run_on
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200
from tests.helpers.registered import registered

NAMES = registered()
#: Ops whose kernels choose by numbers what they read or leave out, and how many cases of each are emulated.
CHOOSING = {
    "cholesky_factor": 9,
    "cofactors": 9,
    "determinant": 6,
    "ctc_loss": 6,
    "ctc_loss_grad": 3,
    "grid_sample_grid_grad": 3,
    "linear_solve": 9,
    "log_determinant": 6,
    "orthogonal_factor": 6,
    "pivoted_factor": 6,
    "roi_align": 3,
    "roi_align_grad": 3,
    "triangular_solve": 16,
}
needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
#: Products of the first two inputs over a window: what lies in the padding multiplies nothing on a device.
CONVOLUTIONS = (Conv, ConvDataGrad, ConvFilterGrad, QuantizedConv)


#: cuDNN 9.19's engine 47 writes 0 in place of -inf in float16 (seen on an H200: inf becomes inf, -inf becomes 0).
LOSES_MINUS_INFINITY = "eng47"


def _label(backend: backends.Backend, op: Op, arrays: list[Array]) -> str:
    """What runs: the library's engines are part of it."""
    return _labels(backend.plan(op, _specs(arrays), Policy()))


def _labels(plan: backends.Plan) -> str:
    return " ".join([plan.label, *map(_labels, plan.parts)])


def _specs(arrays: list[Array]) -> list[Spec]:
    return [Spec(a.shape, as_dtype(a.dtype)).fixed for a in arrays]


def _placed(arrays: list[Array], index: int, value: float, rng: np.random.Generator) -> list[Array]:
    """The arrays with `value` in one random place of one of them."""
    changed = [a.copy() for a in arrays]
    changed[index].reshape(-1)[rng.integers(arrays[index].size)] = value
    return changed


def _cases(op: type[Op], values: tuple[float, ...]) -> Iterator[tuple[Op, DType, list[Array], int]]:
    """(op, dtype, inputs, which of them holds the value): every input of every sample, in float32 and a half type."""
    for number, sample in enumerate(op.samples()):
        known = [d for d in (sample.dtypes or op.dtypes) if d.is_float and d != float64]
        for dtype in known[:2] if number < 2 else known[:1]:
            rng = np.random.default_rng(number)
            arrays = sample.draw(rng, dtype)
            for i, array in enumerate(arrays):
                mask = (
                    isinstance(sample.op, Attention | AttentionGrad)
                    and sample.op.keep < 1
                    and i + 1 == len(arrays)
                )
                if array.size and as_dtype(array.dtype).is_float and not mask:  # of zeros and ones
                    few = values if number < 2 else values[:1]
                    for value in few:
                        yield sample.op, dtype, _fitting(sample.op, _placed(arrays, i, value, rng), i), i


def _fitting(op: Op, arrays: list[Array], index: int) -> list[Array]:
    """With what the forward pass gives for such operands, where a gradient reads that, too."""
    joint = isinstance(op, JointAttentionGrad)
    first = 1 if joint else 3
    if (joint or isinstance(op, AttentionGrad)) and index not in (first, first + 1):
        given = [*arrays[0], *arrays[4:]] if joint else [*arrays[:3], *arrays[6:]]
        made = run_reference(Attention(op.scale, op.causal, stats=True, keep=op.keep), given)
        pairs = zip(made, arrays[first : first + 2], strict=True)
        arrays[first : first + 2] = [y.astype(old.dtype) for y, old in pairs]
    return arrays


def _reached(op: Op, arrays: list[Array], index: int) -> list[Array]:
    """Where outputs must not be finite: where the reference is not, and convolutions multiply real elements."""
    found = [~np.isfinite(_wide(y)) for y in run_reference(op, arrays)]
    head = op.ops[0] if isinstance(op, Fused) else op
    if not isinstance(head, CONVOLUTIONS) or index > 1:
        return found
    ones = [np.ones(a.shape, np.float64) for a in arrays[:2]]
    ones[index] = (~np.isfinite(_wide(arrays[index]))).astype(np.float64)
    plain = Conv(head.window) if isinstance(head, QuantizedConv) else head
    (multiplied,) = run_reference(plain, ones)
    return [y & (multiplied > 0.5) for y in found]


def _wide(x: Array) -> Array:
    return x.astype(np.float64)


def _lost(backend: backends.Backend, op: Op, arrays: list[Array], index: int) -> str:
    """What became finite, "" where nothing did, or where the backend leaves the op to others."""
    try:
        found = run_on(backend, op, arrays)
    except backends.NoKernel:
        return ""
    infinite = as_dtype(arrays[0].dtype) == float16 and np.isinf(_wide(arrays[index])).any()
    if infinite and LOSES_MINUS_INFINITY in _label(backend, op, arrays):
        return ""
    return _finite(found, op, arrays, index)


def _finite(found: Sequence[Array], op: Op, arrays: list[Array], index: int) -> str:
    """What became finite in results, "" where nothing did."""
    for number, (y, must) in enumerate(zip(found, _reached(op, arrays, index), strict=True)):
        if as_dtype(y.dtype).is_float and (np.isfinite(_wide(y)) & must).any():
            at = tuple(int(n) for n in np.argwhere(np.isfinite(_wide(y)) & must)[0])
            return f"output {number} at {at} is {y[at]}"
    return ""


def _check(backend: backends.Backend, name: str) -> None:
    lost = [
        f"{op} {dtype}, input {i}: {problem}"
        for op, dtype, arrays, i in _cases(REGISTRY[name], (np.nan, np.inf, -np.inf))
        if (problem := _lost(backend, op, arrays, i))
    ]
    assert not lost, "\n".join(lost)


@pytest.mark.feature("F056", "F117")
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "foreach")) for n in NAMES]
)  # foreach is of ops that are here themselves
def test_nothing_is_lost_on_cpu(name: str) -> None:
    _check(backends.get(Device("cpu"), "cpu"), name)


@needs_compiler
@pytest.mark.parametrize("name", CHOOSING)
def test_kernels_that_choose_lose_nothing(name: str) -> None:
    """In the emulator, in float32."""
    values = (np.nan,) if name == "ctc_loss" else (np.nan, np.inf, -np.inf)
    cases = (c for c in _cases(REGISTRY[name], values) if c[1] == float32)
    for op, _, arrays, i in islice(cases, CHOOSING[name]):
        plan = cuda(H200).plan(op, _specs(arrays), Policy())
        problem = _finite(run_plan(plan, arrays), op, arrays, i)
        assert not problem, f"{op}, input {i}: {problem}"


@pytest.mark.gpu
@pytest.mark.feature("F056", "F117")
@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_lost_on_cuda(name: str) -> None:
    _check(backends.get(Device("cuda:0"), "cuda"), name)


#: oneDNN multiplies before it halves, and its erf of an infinity is NaN; x * sigmoid(x) likewise on other devices.
OVERFLOWING = (Gelu, GeluTanh, Silu)
ELEMENTWISE = [n for n in NAMES if REGISTRY[n].elementwise and REGISTRY[n].arity == 1]


def _kind(x: Array) -> Array:
    """0 for finite numbers, 1 and -1 for infinities, 2 for NaN."""
    wide = _wide(x)
    return np.where(np.isnan(wide), 2, np.where(np.isinf(wide), np.sign(wide), 0))


def _check_kinds(backend: backends.Backend, name: str) -> None:
    """NaN, both infinities and the largest numbers give what the reference gives, element by element."""
    op = REGISTRY[name]
    for sample in op.samples():
        for dtype in [d for d in (sample.dtypes or op.dtypes) if d.is_float and d != float64][:2]:
            top = float(ml_dtypes.finfo(dtype.numpy).max)
            array = sample.draw(np.random.default_rng(0), dtype)[0]
            values = [np.nan, np.inf, -np.inf] + [top, -top] * (not issubclass(op, OVERFLOWING))
            for value in values if array.size else ():
                changed = _placed([array], 0, value, np.random.default_rng(1))
                (y,), (wanted,) = run_on(backend, sample.op, changed), run_reference(sample.op, changed)
                if issubclass(op, OVERFLOWING):
                    y, wanted = (np.where(np.isfinite(_wide(a)), 0.0, 1.0) for a in (y, wanted))
                if as_dtype(y.dtype).is_float:
                    assert np.array_equal(_kind(y), _kind(wanted)), f"{sample.op} {dtype} of {value}"


@pytest.mark.feature("F056", "F117")
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_kinds_on_cpu(name: str) -> None:
    _check_kinds(backends.get(Device("cpu"), "cpu"), name)


@pytest.mark.gpu
@pytest.mark.feature("F056", "F117")
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise_kinds_on_cuda(name: str) -> None:
    _check_kinds(backends.get(Device("cuda:0"), "cuda"), name)


def test_infinities_and_masked_rows() -> None:
    """Windows and rows of -inf alone; a max-pool's index beside NaN."""
    cpu = backends.get(Device("cpu"), "cpu")
    for name in ("max_pool", "softmax", "log_softmax"):
        for sample in REGISTRY[name].samples():
            arrays = sample.draw(np.random.default_rng(0), float32)
            arrays[0][...] = -np.inf
            for y, wanted in zip(
                run_on(cpu, sample.op, arrays), run_reference(sample.op, arrays), strict=True
            ):
                assert np.array_equal(y, wanted, equal_nan=y.dtype.kind == "f"), sample
