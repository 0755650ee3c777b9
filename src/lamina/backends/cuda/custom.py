"""Custom ops: their own kernels, or their Python function."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda.elementwise.pointwise import elementwise_op, expression_of
from lamina.backends.cuda.launch.program import (
    Argument,
    Launch,
    Number,
    Program,
    c_type,
    kernel_plan,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.backends.custom import run_plan
from lamina.ops.custom import CudaKernel, CustomOp
from lamina.runtime import Device
from lamina.spec import Policy, Spec

_NUMBERS: dict[type, str] = {
    bool: "i32",
    int: "i64",
    float: "f64",
    np.int32: "i32",
    np.uint32: "u32",
    np.int64: "i64",
    np.uint64: "u64",
    np.float32: "f32",
    np.float64: "f64",
}


@kernels(CustomOp, source="own")
def custom(op: CustomOp, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """By its expression, its kernels or its Python function, whichever of these comes first."""
    op.infer(*specs)
    if op.elementwise and expression_of(op) is not None:
        return elementwise_op(op, specs, device, policy)
    found = op.cuda(*(s.open for s in specs))
    if found is not None:
        return _kernel_plan(op, [found] if isinstance(found, CudaKernel) else list(found), specs, device)
    if op.has_run:
        return run_plan(op, specs, device)
    raise NoKernel(
        f"cuda has no kernel for {op.name} ({', '.join(map(str, specs))}): give the class "
        f"{type(op).__name__} a method expression (if it is elementwise), cuda or run"
    )


def _kernel_plan(op: CustomOp, given: Sequence[CudaKernel], specs: Sequence[Spec], device: Device) -> Plan:
    """The kernels one after the other, on row-major operands."""
    inputs = [s.open.fixed for s in specs]
    outputs = [s.open.fixed for s in op.infer(*inputs)]
    nbytes = max((k.scratch for k in given), default=0)
    places = [*(source(i) for i in range(len(inputs))), *(target(i) for i in range(len(outputs)))]
    if nbytes:
        places.append(scratch())
    types = _typedefs(inputs, outputs)
    empty = not any(s.numel for s in outputs)
    steps = [] if empty else [_launch(op, k, types, places) for k in given]
    return kernel_plan(device, inputs, outputs, steps, label=op.name, workspace=nbytes)


def _typedefs(inputs: Sequence[Spec], outputs: Sequence[Spec]) -> str:
    named = [*((f"In{i}", s) for i, s in enumerate(inputs)), *((f"Out{i}", s) for i, s in enumerate(outputs))]
    return "".join(f"typedef {c_type(s.dtype)} {name};\n" for name, s in named)


def _launch(op: CustomOp, kernel: CudaKernel, types: str, places: Sequence[Argument]) -> Launch:
    text = f'{types}#line 1 "{op.name}.{kernel.name}"\n{kernel.source}'
    block = kernel.block if isinstance(kernel.block, tuple) else (kernel.block,)
    arguments = (*places, *(_number(op, x) for x in kernel.numbers))
    return Launch(Program(kernel.name, text=text), kernel.blocks, block, arguments, kernel.shared)


def _number(op: CustomOp, value: Any) -> Number:
    """A number as the kernel's parameter. Raises TypeError for another type."""
    kind = _NUMBERS.get(type(value))
    if kind is None:
        known = ", ".join(t.__name__ for t in _NUMBERS)
        raise TypeError(f"{op.name}: numbers of a CudaKernel are {known}, got {value!r}")
    return Number(value.item() if isinstance(value, np.generic) else value, kind)
