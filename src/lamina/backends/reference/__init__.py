"""Backend `reference`: every op by its own NumPy meaning, on host memory. The oracle of the tests.

Half types are computed in float32 and rounded once, at the end; with `dtype=float64` everything is computed,
and left, in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np

from lamina.backends import Backend, Call, NoKernel, Plan, Run
from lamina.ops.core import Array, Op
from lamina.ops.primitives.shape import Reshape
from lamina.runtime import Device, host_array
from lamina.spec import DType, Policy, Spec, as_dtype, contiguous, pack, unpack


def run_reference(op: Op, arrays: Sequence[Array], dtype: DType | None = None) -> tuple[Array, ...]:
    """The outputs of op on NumPy arrays.

    dtype: None for the dtypes that `infer` names, computed in their compute type; float64 (or float32) to
    compute in it and to leave float outputs in it.
    Raises what `infer` raises, and DTypeError for arrays of a dtype that Lamina does not have.
    """
    outputs = op.infer(*(Spec(a.shape, as_dtype(a.dtype)) for a in arrays))
    return _compute(op, arrays, [_kept(spec.dtype, dtype) for spec in outputs], dtype)


def _kept(found: DType, asked: DType | None) -> DType:
    return asked if asked is not None and found.is_float else found


def _compute(
    op: Op, arrays: Sequence[Array], dtypes: Sequence[DType], dtype: DType | None = None
) -> tuple[Array, ...]:
    wide = [_widen(a, dtype) for a in arrays]
    with np.errstate(all="ignore"):
        found = op.reference(*wide)
        return tuple(np.asarray(y).astype(d.numpy, copy=False) for y, d in zip(found, dtypes, strict=True))


def _widen(array: Array, dtype: DType | None) -> Array:
    """Floats in the type that is computed in; the rest as it is."""
    own = as_dtype(array.dtype)
    return array.astype((dtype or own.compute).numpy, copy=False) if own.is_float else array


def array_at(address: int, spec: Spec) -> Array:
    """The host memory at an address as an array of the spec's shape: a view, a copy for blocked layouts."""
    layout = spec.physical
    if not layout.blocks:
        strides = tuple(s * spec.dtype.itemsize for s in layout.strides)
        return host_array(address, spec.shape, spec.dtype.numpy, strides)
    flat = host_array(address, (spec.nbytes // spec.dtype.itemsize,), spec.dtype.numpy)
    return unpack(flat, layout, spec.shape)


def as_plain(spec: Spec) -> Spec:
    """The spec as NumPy can see it: its own strides, row-major where open or blocked."""
    if spec.layout is None or spec.layout.is_blocked:
        return Spec(spec.shape, spec.dtype, contiguous(spec.shape))
    return spec


def numpy_plan(op: Op, specs: Sequence[Spec], label: str = "numpy") -> Plan:
    """The plan that runs `op.reference`. Raises what `infer` raises."""
    inputs = tuple(as_plain(spec) for spec in specs)
    outputs = tuple(spec.fixed for spec in op.infer(*inputs))
    if isinstance(op, Reshape) and inputs[0].is_contiguous:
        return Plan(inputs, outputs, lambda call: _nothing, view=True, label="view")
    make = partial(_bind, op, inputs, outputs)
    return Plan(inputs, outputs, make, aliases=in_place(op, inputs, outputs), label=f"{label} {op.name}")


def in_place(op: Op, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> dict[int, int]:
    """Those of the op's in-place outputs that fit exactly over their input: output index -> input index."""
    return {o: i for o, i in op.inplace.items() if inputs[i].same_memory(outputs[o])}


def _bind(op: Op, inputs: Sequence[Spec], outputs: Sequence[Spec], call: Call) -> Run:
    arrays = [array_at(p, s) for p, s in zip(call.inputs, inputs, strict=True)]
    targets = [array_at(p, s) for p, s in zip(call.outputs, outputs, strict=True)]
    dtypes = [spec.dtype for spec in outputs]

    def run() -> None:
        for target, values in zip(targets, _compute(op, arrays, dtypes), strict=True):
            target[...] = values

    return run


def _nothing() -> None:
    """What a view runs."""


def reorder_plan(source: Spec, target: Spec, label: str = "numpy reorder") -> Plan:
    """The plan that copies from one layout to another, blocked ones included (their padding becomes zero).

    Raises NoKernel when shapes or dtypes differ.
    """
    given, wanted = source.fixed, target.fixed
    if given.shape != wanted.shape or given.dtype != wanted.dtype:
        raise NoKernel(f"reorder: {source} and {target} differ in more than layout")
    return Plan((given,), (wanted,), partial(_bind_reorder, given, wanted), label=label)


def _bind_reorder(source: Spec, target: Spec, call: Call) -> Run:
    address = call.outputs[0]

    def run() -> None:
        values = array_at(call.inputs[0], source)
        if target.physical.is_blocked:
            flat = host_array(address, (target.nbytes // target.dtype.itemsize,), target.dtype.numpy)
            flat[...] = pack(values, target.physical)
        else:
            array_at(address, target)[...] = values

    return run


class Reference(Backend):
    """Runs each op's `reference` on host memory."""

    name = "reference"

    def plan(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        """NumPy on inputs of any strides; blocked inputs are asked for row-major."""
        return numpy_plan(op, specs, "reference")

    def reorder(self, source: Spec, target: Spec) -> Plan:
        """A copy by NumPy, blocked layouts included."""
        return reorder_plan(source, target)

    def supports(self, op: type[Op]) -> str:
        """All ops: "numpy"."""
        return "numpy"


def backend(device: Device) -> Reference:
    """The reference backend. Raises ValueError for a device whose memory the host does not see."""
    if device.kind != "cpu":
        raise ValueError(f"the reference backend runs on the cpu, not on {device}")
    return Reference(device)
