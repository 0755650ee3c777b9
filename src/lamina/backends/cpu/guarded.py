"""Kernels of oneDNN that lose NaN or an infinity: they run where their operand holds none, else NumPy does.

Its max-pooling passes over NaN and gives the lowest finite number for -inf, its softmax gives 0 for NaN and for
+inf, its exp gives inf for NaN. One pass over the operand, the least or the largest element, tells them all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from lamina.backends import Call, Plan, Run
from lamina.backends.reference import array_at, run_reference
from lamina.ops.core import Array, Op
from lamina.runtime import host_array
from lamina.spec import Spec, pack
from lamina.spec.layout import physical_elements

#: Whether a kernel may run on an operand with this least, or largest, element.
Allowed = Callable[[Array], bool]


def above_minus_infinity(x: Array) -> bool:
    """Neither NaN nor -inf is among the elements."""
    if x.dtype.itemsize == 2:
        highest, lowest, infinity = _ends(x)
        return highest <= infinity and lowest < infinity
    return bool(x.min() > -np.inf)


def below_infinity(x: Array) -> bool:
    """Neither NaN nor +inf is among the elements."""
    if x.dtype.itemsize == 2:
        highest, lowest, infinity = _ends(x)
        return highest < infinity and lowest <= infinity
    return bool(x.max() < np.inf)


def finite(x: Array) -> bool:
    """Neither NaN nor an infinity is among the elements (nor numbers whose squares overflow)."""
    if x.dtype.itemsize == 2:
        highest, lowest, infinity = _ends(x)
        return highest < infinity and lowest < infinity
    with np.errstate(over="ignore"):
        return bool(np.isfinite(np.dot(x, x)))


def no_nan(x: Array) -> bool:
    """NaN is not among the elements."""
    if x.dtype.itemsize == 2:
        highest, lowest, infinity = _ends(x)
        return highest <= infinity and lowest <= infinity
    return not bool(np.isnan(x.max()))


def _ends(x: Array) -> tuple[int, int, int]:
    """Of a half type, as bits without the sign: the largest and the lowest element, and infinity; NaN lies beyond it.

    NumPy compares such bits 20 times as fast as the numbers.
    """
    infinity = int(np.array(np.inf, x.dtype).view(np.int16))
    highest, negative = int(x.view(np.int16).max()), int(x.view(np.uint16).max())
    return highest, negative - 0x8000, infinity


def guarded(plan: Plan, op: Op, allowed: Allowed) -> Plan:
    """The plan of `op`, whose inputs are looked at in each run: NumPy computes what is not `allowed`."""
    counts = [physical_elements(spec.physical, spec.shape) for spec in plan.inputs]

    def make(call: Call) -> Run:
        fast, slow = plan.bind(call), by_numpy(op, plan.inputs, plan.outputs, call)
        read = [
            host_array(address, (count,), spec.dtype.numpy)
            for address, count, spec in zip(call.inputs, counts, plan.inputs, strict=True)
        ]

        def run() -> None:
            (fast if all(allowed(x) for x in read) else slow)()

        return run

    return replace(plan, make=make)


def by_numpy(op: Op, inputs: Sequence[Spec], outputs: Sequence[Spec], call: Call) -> Run:
    """The op's NumPy meaning on memory that lies as the specs say, blocks included."""

    def run() -> None:
        arrays = [array_at(p, s) for p, s in zip(call.inputs, inputs, strict=True)]
        for address, spec, y in zip(call.outputs, outputs, run_reference(op, arrays), strict=True):
            _write(address, spec, y)

    return run


def _write(address: int, spec: Spec, values: Array) -> None:
    """Lay values out at an address as the spec says."""
    if spec.physical.is_blocked:
        flat = host_array(address, (spec.nbytes // spec.dtype.itemsize,), spec.dtype.numpy)
        flat[...] = pack(values, spec.physical)
    else:
        array_at(address, spec)[...] = values
