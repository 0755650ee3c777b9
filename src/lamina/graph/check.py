"""An op checked with its own samples: values against its reference, gradients against finite differences."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from lamina import ops
from lamina.backends.reference import run_reference
from lamina.graph.transforms.derivatives import grad
from lamina.ops.arguments import checked
from lamina.ops.core import Array, Op, Sample, bind
from lamina.runtime import Device
from lamina.spec import DType, Spec, as_dtype, float64
from lamina.tensors import as_tensor, tensor

#: Tolerance against the float64 reference, relative to the largest element, by the dtype's size in bytes.
_TOLERANCE = {8: 1e-9, 4: 1e-4, 2: 2e-2, 1: 0.15}
_STEP = 1e-6


class OpCheckError(AssertionError):
    """An op violates its definition; the message names sample, dtype, output or input, and both numbers."""


@checked
def check_op(op: type[Op], device: Device | str = "cpu", seed: int = 0) -> int:
    """Check an op class with its `samples`; returns the number of comparisons.

    In every dtype the outputs on a device are compared with `reference` in float64, and shapes and dtypes with
    `infer`. If the op is differentiable, `vjp` is compared with central differences of `reference`, in float64 on the
    CPU, along a random direction for each input. Raises OpCheckError for the first mismatch, ValueError for a class
    without samples.
    """
    rng, count = np.random.default_rng(seed), 0
    for sample in op.samples():
        for dtype in sample.dtypes or op.dtypes:
            _check_values(sample, dtype, device, rng)
            count += 1
            if dtype == float64 and op.differentiable:
                count += _check_gradients(sample, rng)
    if not count:
        raise ValueError(f"check_op: {op.__name__}.samples gives nothing to check")
    return count


def _check_values(sample: Sample, dtype: DType, device: Device | str, rng: np.random.Generator) -> None:
    arrays = sample.draw(rng, dtype)
    specs = sample.op.infer(*(Spec(a.shape, as_dtype(a.dtype)) for a in arrays))
    wanted = run_reference(sample.op, arrays, float64)
    found = bind(sample.op, *(tensor(np.asarray(a), device=device) for a in arrays))
    for i, (y, ref, spec) in enumerate(zip(found, wanted, specs, strict=True)):
        where = f"{sample} in {dtype} on {device}: output {i}"
        if y.spec.open != spec.open:
            raise OpCheckError(f"{where} is {y.spec.open}, infer says {spec.open}")
        apart = _apart(y.numpy(), ref)
        if apart > _TOLERANCE[dtype.itemsize]:
            raise OpCheckError(
                f"{where} is {apart:.1e} (relative to its largest element) away from reference"
            )


def _apart(found: Array, wanted: Array) -> float:
    """The largest difference, relative to the largest element; infinite if NaN or infinities differ."""
    a, b = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(a[~finite], b[~finite], equal_nan=True) or not np.isfinite(a[finite]).all():
        return np.inf
    return float(np.max(np.abs(a - b)[finite], initial=0) / max(1, np.max(np.abs(b[finite]), initial=0)))


def _check_gradients(sample: Sample, rng: np.random.Generator) -> int:
    """Compare each input's gradient; returns their number."""
    arrays = sample.draw(rng, float64)
    weights = [rng.standard_normal(y.shape) for y in run_reference(sample.op, arrays)]

    def loss(*xs: Any) -> Any:
        pairs = zip(bind(sample.op, *xs), weights, strict=True)
        return sum(ops.sum(y.cast(float64) * w) for y, w in pairs if y.dtype.is_float)

    varied = list(_varied(sample, arrays))
    for i in varied:
        slope = grad(loss, i)(*map(np.asarray, arrays)).numpy()
        direction = rng.standard_normal(arrays[i].shape)
        ends = []
        for step in (_STEP, -_STEP):
            moved = [*arrays[:i], np.asarray(arrays[i] + step * direction), *arrays[i + 1 :]]
            ends.append(float(loss(*map(as_tensor, moved))))
        finite, analytic = (ends[0] - ends[1]) / (2 * _STEP), float(np.sum(slope * direction))
        if abs(finite - analytic) > 1e-5 + 1e-3 * abs(finite):
            raise OpCheckError(
                f"{sample}: the gradient in input {i} along a direction is {analytic:.6g} by vjp, and "
                f"{finite:.6g} by differences of reference"
            )
    return len(varied)


def _varied(sample: Sample, arrays: list[Array]) -> Iterator[int]:
    """The inputs that have a gradient."""
    for i, (arg, x) in enumerate(zip(sample.args, arrays, strict=True)):
        if arg.differentiable and x.dtype == np.float64 and not arg.integers and arg.value is None:
            yield i
