"""Backend `reference`: every op by its NumPy reference, on host memory. The oracle of the tests.

Half types are computed in float32 and rounded once, at the end; with `dtype=float64` everything is computed, and
returned, in float64.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np

from lamina.backends import Backend, Call, Meaning, NoKernel, Plan, PlanTape, Run, passing_plan
from lamina.backends.collective import host_plan
from lamina.backends.quiet import Quiet
from lamina.ops.core import Array, Op, inferred
from lamina.ops.primitives.collective import Collective
from lamina.ops.primitives.shape import After, Reshape
from lamina.runtime import Device, host_array
from lamina.spec import DType, Policy, Shape, ShapeError, Spec, as_dtype, contiguous, pack, unpack
from lamina.spec.layout import refined


def run_reference(op: Op, arrays: Sequence[Array], dtype: DType | None = None) -> tuple[Array, ...]:
    """The outputs of op on NumPy arrays.

    dtype: None for the dtypes that `infer` names, computed in their compute type; float64 (or float32) to compute in
        it and to return float outputs in it.
    Raises what `infer` raises, and DTypeError for arrays of a dtype that Lamina does not have.
    """
    outputs = inferred(op, *(Spec(a.shape, as_dtype(a.dtype)) for a in arrays))
    return _compute(op, arrays, [Spec(s.shape, _kept(s.dtype, dtype)) for s in outputs], dtype)


def _kept(found: DType, asked: DType | None) -> DType:
    return asked if asked is not None and found.is_float else found


def _compute(
    op: Op, arrays: Sequence[Array], outputs: Sequence[Spec], dtype: DType | None = None
) -> tuple[Array, ...]:
    wide = [_widen(a, dtype) for a in arrays]
    with np.errstate(all="ignore"):
        found = op.reference(*wide)
        _check_results(op, found, outputs)
        return tuple(
            np.asarray(y).astype(s.dtype.numpy, copy=False) for y, s in zip(found, outputs, strict=True)
        )


def _check_results(op: Op, found: Any, outputs: Sequence[Spec]) -> None:
    """Raise TypeError or ShapeError where the results of `reference` differ from `infer`."""
    if not isinstance(found, tuple) or len(found) != len(outputs):
        what = f"{len(found)} of them" if isinstance(found, tuple) else f"a {type(found).__name__}"
        raise TypeError(
            f"{op.name}.reference must give a tuple of arrays, one for each of its {len(outputs)} outputs, got {what}"
        )
    for i, (y, spec) in enumerate(zip(found, outputs, strict=True)):
        if np.shape(y) != spec.shape:
            raise ShapeError(
                f"{op.name}.reference gave shape {np.shape(y)} for output {i}, {op.name}.infer says {spec.shape}"
            )


def _widen(array: Array, dtype: DType | None) -> Array:
    """Floats in the compute type; other arrays unchanged."""
    wide = _wide(array.dtype, dtype)
    return array if wide is None else array.astype(wide, copy=False)


@lru_cache(maxsize=256)
def _wide(kind: np.dtype[Any], asked: DType | None) -> np.dtype[Any] | None:
    """The compute type of an array of a type; None: its own."""
    own = as_dtype(kind)
    wide = (asked or own.compute).numpy if own.is_float else kind
    return None if wide == kind else wide


def array_at(address: int, spec: Spec) -> Array:
    """The host memory at an address as an array of the spec's shape: a view, a copy for blocked layouts."""
    layout = spec.physical
    if not layout.blocks:
        strides = tuple(s * spec.dtype.itemsize for s in layout.strides)
        return host_array(address, spec.shape, spec.dtype.numpy, strides)
    flat = host_array(address, (spec.nbytes // spec.dtype.itemsize,), spec.dtype.numpy)
    return unpack(flat, layout, spec.shape)


def as_plain(spec: Spec) -> Spec:
    """The spec as far as NumPy can express it: its own strides, row-major where open or blocked."""
    if spec.layout is None or spec.layout.is_blocked:
        return Spec(spec.shape, spec.dtype, contiguous(spec.shape))
    return spec


def numpy_plan(op: Op, specs: Sequence[Spec], label: str = "numpy") -> Plan:
    """The plan that runs `op.reference`. Raises what `infer` raises."""
    if isinstance(op, After):
        return passing_plan(specs, op.name)
    if isinstance(op, Collective):
        return host_plan(op, specs)
    inputs = tuple(as_plain(spec) for spec in specs)
    outputs = tuple(spec.fixed for spec in inferred(op, *inputs))
    if isinstance(op, Reshape) and inputs[0].is_contiguous:
        return Plan(inputs, outputs, lambda call: _nothing, view=True, label="view")
    make = Numpy(op, inputs, outputs)
    return Plan(inputs, outputs, make, aliases=in_place(op, inputs, outputs), label=f"{label} {op.name}")


def in_place(op: Op, inputs: Sequence[Spec], outputs: Sequence[Spec]) -> dict[int, int]:
    """The op's in-place outputs that have exactly their input's spec: output index -> input index."""
    return {o: i for o, i in op.inplace.items() if inputs[i].same_memory(outputs[o])}


def by_numpy(op: Op, inputs: Sequence[Spec], outputs: Sequence[Spec], call: Call) -> Run:
    """Run the op's NumPy reference on memory in the layouts of the specs, blocked ones included."""

    def run() -> None:
        arrays = [array_at(p, s) for p, s in zip(call.inputs, inputs, strict=True)]
        for address, spec, y in zip(call.outputs, outputs, run_reference(op, arrays), strict=True):
            _write(address, spec, y)

    return run


def _write(address: int, spec: Spec, values: Array) -> None:
    """Write values to an address in the layout of the spec."""
    if spec.physical.is_blocked:
        flat = host_array(address, (spec.nbytes // spec.dtype.itemsize,), spec.dtype.numpy)
        flat[...] = pack(values, spec.physical)
    else:
        array_at(address, spec)[...] = values


@dataclass(frozen=True, eq=False)
class Numpy:
    """An op's reference on memory that NumPy can see; called with a `Call` it binds it."""

    op: Op
    inputs: tuple[Spec, ...]
    outputs: tuple[Spec, ...]

    def __call__(self, call: Call) -> Run:
        """Bind to addresses."""
        arrays = [array_at(p, s) for p, s in zip(call.inputs, self.inputs, strict=True)]
        targets = [array_at(p, s) for p, s in zip(call.outputs, self.outputs, strict=True)]
        outputs, repeated = self.outputs, _repeated(self.op.reference, arrays, targets)
        as_they_are = all(_widen(a, None) is a for a in arrays)
        checked = False

        def run() -> None:
            nonlocal checked
            if checked:  # small arrays: the general path would cost more than the call itself
                return repeated()
            for target, values in zip(targets, _compute(self.op, arrays, outputs), strict=True):
                target[...] = values
            checked = as_they_are
            return None

        return Quiet(run)

    def recorded(self, call: Call, tape: PlanTape) -> list[Any]:
        """As data."""
        return [Meaning(self.op, self.inputs, self.outputs, call)]


def _repeated(reference: Any, arrays: Sequence[Array], targets: Sequence[Array]) -> Run:
    """A call whose results are known to be as `infer` says."""
    if len(targets) == 1:
        (only,) = targets

        def one() -> None:
            only[...] = reference(*arrays)[0]

        return one

    def several() -> None:
        for target, values in zip(targets, reference(*arrays), strict=True):
            target[...] = values

    return several


def _nothing() -> None:
    """A view runs nothing."""


def reorder_plan(source: Spec, target: Spec, label: str = "numpy reorder") -> Plan:
    """The plan that copies from one layout to another, blocked ones included (their padding becomes zero).

    Raises NoKernel when shapes or dtypes differ.
    """
    given, wanted = source.fixed, target.fixed
    if given.shape != wanted.shape or given.dtype != wanted.dtype:
        raise NoKernel(f"reorder: {source} and {target} differ in more than layout")
    return Plan((given,), (wanted,), partial(_bind_reorder, given, wanted), label=label)


#: The type in which bits are moved, by bytes: the larger, the fewer moves.
_MOVED = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


def _bind_reorder(source: Spec, target: Spec, call: Call) -> Run:
    """One strided copy of bits, if no block of either layout is partly padding."""
    parts = refined(source.shape, (source.physical, target.physical))
    if parts is None:
        return lambda: _write(call.outputs[0], target, array_at(call.inputs[0], source))
    shape, rows, size = _in_pieces(*parts, source.dtype.itemsize)
    moved = np.dtype(_MOVED[size])
    old, new = (
        host_array(place, shape, moved, tuple(s * size for s in row))
        for place, row in zip((*call.inputs, *call.outputs), rows, strict=True)
    )
    return lambda: np.copyto(new, old)


def _in_pieces(
    shape: Shape, rows: Sequence[Sequence[int]], size: int
) -> tuple[Shape, Sequence[Sequence[int]], int]:
    """A copy of elements as one of larger words that are contiguous in both arrays, such as a block's 8 channels:
    their shape, their strides, in words, and bytes."""
    for axis, count in enumerate(shape):
        others = [row[a] for row in rows for a, n in enumerate(shape) if a != axis and n > 1]
        together = count > 1 and all(row[axis] == 1 for row in rows)
        if together and count * size in _MOVED and not any(s % count for s in others):
            kept = [a for a in range(len(shape)) if a != axis]
            strides = [[row[a] // count for a in kept] for row in rows]
            return tuple(shape[a] for a in kept), strides, count * size
    return shape, rows, size


class Reference(Backend):
    """Runs each op's `reference` on host memory."""

    name = "reference"

    def choose(self, op: Op, specs: Sequence[Spec], policy: Policy) -> Plan:
        """NumPy on inputs of any strides; blocked inputs are requested row-major."""
        return numpy_plan(op, specs, "reference")

    def reorder(self, source: Spec, target: Spec) -> Plan:
        """A copy by NumPy, blocked layouts included."""
        return reorder_plan(source, target)

    def supports(self, op: type[Op]) -> str:
        """All ops: "numpy"."""
        return "numpy"


def backend(device: Device) -> Reference:
    """The reference backend. Raises ValueError for a device whose memory the host cannot access."""
    if device.kind != "cpu":
        raise ValueError(f"the reference backend runs on the cpu, not on {device}")
    return Reference(device)
