"""Shared by the op tests: an operand that computes by the reference and records, and backends run on arrays."""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Self

import ml_dtypes
import numpy as np

from lamina import backends
from lamina.backends.reference import run_reference
from lamina.ops.core import Array, Op
from lamina.ops.operators import Operators
from lamina.runtime import Device, from_host, to_host
from lamina.spec import (
    DType,
    Policy,
    Spec,
    as_dtype,
    bfloat16,
    float8_e4m3fn,
    float16,
    float32,
    float64,
    pack,
    unpack,
)
from lamina.spec.layout import view


class Eager(Operators["Eager"]):
    """A NumPy array whose ops run their references at once; it keeps the op that produced it."""

    __slots__ = ("made_by", "value")
    bind_priority: ClassVar[int] = 9

    def __init__(self, value: Any, made_by: tuple[Op, list["Eager"], list["Eager"]] | None = None) -> None:
        self.value = np.asarray(value)
        self.made_by = made_by

    @property
    def spec(self) -> Spec:
        return Spec(self.value.shape, as_dtype(self.value.dtype))

    @classmethod
    def bind_op(cls, op: Op, operands: Sequence[Any]) -> tuple[Self, ...]:
        inputs = [x if isinstance(x, Eager) else cls(x) for x in operands]
        results = [cls(y) for y in run_reference(op, [x.value for x in inputs])]
        made = (op, inputs, list[Eager](results))  # one record for all outputs: a gradient walks it once
        for y in results:
            y.made_by = made
        return tuple(results)


def gradients(outputs: Sequence[Eager], arriving: Sequence[Any], wrt: Sequence[Eager]) -> list[Eager | None]:
    """Reverse-mode differentiation of the outputs: the gradient of sum(output * arriving) in each of `wrt`."""
    grads: dict[int, Any] = {}
    for y, g in zip(outputs, arriving, strict=True):
        _add(grads, y, g)
    for op, inputs, results in reversed(_history(outputs)):
        found = [grads.get(id(y)) for y in results]
        if op.differentiable and any(g is not None for g in found):
            for x, g in zip(inputs, op.vjp(found, inputs, results), strict=True):
                if g is not None:
                    assert (g.shape, g.dtype) == (x.shape, x.dtype), f"{op}: gradient {g.spec} for {x.spec}"
                    _add(grads, x, g)
    return [grads.get(id(x)) for x in wrt]


def _add(grads: dict[int, Any], x: Eager, g: Any) -> None:
    grads[id(x)] = g if id(x) not in grads else grads[id(x)] + g


def _history(outputs: Sequence[Eager]) -> list[Any]:
    """The calls that produced the outputs, in topological order."""
    order: list[Any] = []
    seen: set[int] = set()

    def visit(x: Eager) -> None:
        if x.made_by is None or id(x.made_by) in seen:
            return
        seen.add(id(x.made_by))
        for y in x.made_by[1]:
            visit(y)
        order.append(x.made_by)

    for y in outputs:
        visit(y)
    return order


def numeric(f: Callable[[Array], float], x: Array, direction: Array, eps: float = 1e-6) -> float:
    """The derivative of f at x along a direction, by central differences."""
    return (f(x + eps * direction) - f(x - eps * direction)) / (2 * eps)


# ---- backends on arrays


def run_on(
    backend: backends.Backend,
    op: Op,
    arrays: Sequence[Array],
    layouts: Sequence[Spec] | None = None,
    policy: Policy | None = None,
) -> tuple[Array, ...]:
    """The outputs of a backend's plan for op; inputs are in the plan's layouts (row-major if it has no
    preference)."""
    specs = layouts or [Spec(a.shape, as_dtype(a.dtype)).fixed for a in arrays]
    plan = backend.plan(op, specs, policy or Policy())
    return execute(backend.device, plan, arrays)


def execute(
    device: Device, plan: backends.Plan, arrays: Sequence[Array], *, in_place: bool = False
) -> tuple[Array, ...]:
    """Put the arrays into the plan's layouts, run it, and bring the outputs back.

    in_place: put each output over the input that the plan says it may overwrite. Other outputs are filled with NaN
    before, which must vanish, even in padded blocks: their readers rely on zeros there.
    """
    inputs = [_upload(device, a, s) for a, s in zip(arrays, plan.inputs, strict=True)]
    outputs = [inputs[0]] if plan.view else [_poisoned(device, s) for s in plan.outputs]
    if in_place:
        outputs = [inputs[plan.aliases[o]] if o in plan.aliases else b for o, b in enumerate(outputs)]
    scratch = device.allocate(plan.workspace)
    stream = device.default_stream
    pointers = tuple(b.pointer for b in inputs), tuple(b.pointer for b in outputs)
    plan.bind(backends.Call(*pointers, scratch.pointer, stream.handle))()
    stream.synchronize()
    if all(
        np.isfinite(a).all() for a in arrays if as_dtype(a.dtype).is_float
    ):  # else zeros times these are NaN
        for buffer, spec in zip(outputs, plan.outputs, strict=True):
            _check_padding(buffer, spec)
    return tuple(_download(b, s) for b, s in zip(outputs, plan.outputs, strict=True))


def _check_padding(buffer: Any, spec: Spec) -> None:
    """Partially filled blocks of an axis hold zeros behind the data; gaps between runs are undefined."""
    if spec.physical.is_blocked:
        flat = to_host(buffer)[: spec.nbytes].view(spec.dtype.numpy)
        values = pack(unpack(flat, spec.physical, spec.shape), spec.physical)
        wrong = flat.view(np.uint8) != values.view(np.uint8)
        assert not wrong.any(), f"the padding of {spec} holds other than zeros"


def _upload(device: Device, array: Array, spec: Spec) -> Any:
    assert (array.shape, as_dtype(array.dtype)) == (spec.shape, spec.dtype), f"{array.shape} for {spec}"
    flat = pack(array, spec.physical)
    if spec.tag is None and not spec.overlaps:  # gaps do not belong to the tensor: NaN in every float type
        flat.view(np.uint8)[...] = 0xFF
        view(flat, spec.physical, spec.shape)[...] = array
    return from_host(flat.view(np.uint8), device)


def _poisoned(device: Device, spec: Spec) -> Any:
    """Memory with all bits set: NaN in every float type."""
    return from_host(np.full(spec.nbytes, 0xFF, np.uint8), device)


def _download(buffer: Any, spec: Spec) -> Array:
    flat = to_host(buffer)[: spec.nbytes].view(spec.dtype.numpy)
    return unpack(flat, spec.physical, spec.shape) if spec.numel else np.empty(spec.shape, spec.dtype.numpy)


#: Permitted error by dtype, relative to an element's size and the mean size of all.
TOLERANCE = {float64: 1e-11, float32: 2e-5, float16: 3e-3, bfloat16: 2e-2, float8_e4m3fn: 0.07}


def mismatch(found: Array, wanted: Array, dtype: DType) -> str:
    """The mismatch of `found`, "" if it is close enough to `wanted` (exact for integers and booleans)."""
    if found.shape != wanted.shape:
        return f"shape {found.shape}, wanted {wanted.shape}"
    if not dtype.is_float:
        wrong = np.argwhere(found != wanted)
        return f"{len(wrong)} of {found.size} differ, first at {wrong[0]}" if len(wrong) else ""
    y, ref = found.astype(np.float64), wanted.astype(np.float64)
    finite = np.isfinite(ref)
    if not np.array_equal(np.where(finite, 0, y), np.where(finite, 0, ref), equal_nan=True):
        return "infinities or NaNs stand elsewhere"
    size = np.abs(np.where(finite, ref, 0))
    allowed = TOLERANCE[dtype] * (size + (size.mean() if size.size else 0) + 0.05)
    error = np.abs(np.where(finite, y, 0) - np.where(finite, ref, 0))
    bad = ~(error <= allowed)
    if not bad.any():
        return ""
    at = np.unravel_index(np.argmax(np.where(bad, error / allowed, 0)), bad.shape)
    return f"{bad.sum()} of {bad.size} differ, most at {at}: {y[at]!r}, wanted {ref[at]!r}"


def apart(found: Array, wanted: Array, dtype: DType, roundings: int) -> str:
    """The mismatch of `found`, "" if the norm of its error is small enough: for results that are rounded to a
    half type `roundings` times in a row on their way.

    Independent roundings of eps / 2 add up by their squares, to eps / 2 * sqrt(roundings) of the norm; twice as much
    is allowed. Single elements may be further off: sums that cancel keep the error of their terms.
    """
    norm, error = np.linalg.norm(wanted), np.linalg.norm(found.astype(np.float64) - wanted)
    allowed = float(ml_dtypes.finfo(dtype.numpy).eps) * float(np.sqrt(roundings))
    fine = found.shape == wanted.shape and error <= allowed * norm
    return "" if fine else f"norm of the error {error / norm:.2e} of the result's, allowed {allowed:.2e}"
