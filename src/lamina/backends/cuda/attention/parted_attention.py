"""Plans of attention on parts of other tensors: kernels read these where they lie, or copies of them.

A part is given by ops that take it (slices, reshapes, transpositions), of which strides and an offset are left. Its
lines of features must begin at multiples of an access.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda.attention.attention import Term, chosen, like_q
from lamina.backends.cuda.attention.parted_attention_fusion import PartedAttention
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.elementwise.shape import strided_copy
from lamina.backends.cuda.launch.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Bindable,
    Place,
    SubPlan,
    kernel_plan,
    round_up,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.core import Op
from lamina.ops.primitives.attention import Attention
from lamina.runtime import Device
from lamina.spec import Layout, Policy, Shape, Spec, dense


@kernels(PartedAttention, source="cudnn")
def parted_attention(op: PartedAttention, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Attention or its gradient on parts of tensors, which are read where they lie if a kernel can."""
    op.infer(*specs)
    wholes = [_with_readable_parts(op, number, s) for number, s in enumerate(specs[: op.count])]
    parts = [_part(ops, wholes[i], i) for i, ops in zip(op.wholes, op.ways, strict=True)]
    more = [s.open.fixed for s in specs[op.count :]]
    try:
        return _in_place(op, wholes, [part for part in parts if part is not None], more, device, policy)
    except NoKernel:
        return _copied(op, [s.open.fixed for s in specs[: op.count]], more, device, policy)


def _in_place(
    op: PartedAttention,
    wholes: Sequence[Spec],
    parts: Sequence[Term],
    more: Sequence[Spec],
    device: Device,
    policy: Policy,
) -> Plan:
    """The plan for q, k and v as parts of tensors in the layouts of their specs. more: the further operands.

    o and its gradient lie like q, without gaps, and the gradients of q, k and v like these.
    """
    if len(parts) < 3:
        raise NoKernel(f"{op.name}: no part of {wholes} has aligned lines of features: {op}")
    found, count = op.infer(*wholes, *more), 1
    (q, _), _, _ = parts
    if not isinstance(op.unfused, Attention):
        o = like_q(more[0], q)
        count, more = 3, [o, more[1], o, *more[3:]]
    outputs = [like_q(s, part) for s, (part, _) in zip(found[:count], parts, strict=False)]
    outputs += [s.fixed for s in found[count:]]
    terms = [*parts, *((s, source(op.count + i)) for i, s in enumerate(more))]
    targets = [(s, target(i)) for i, s in enumerate(outputs)]
    return chosen(op, [*wholes, *more], outputs, terms, targets, device, policy)


def _copied(
    op: PartedAttention, wholes: Sequence[Spec], more: Sequence[Spec], device: Device, policy: Policy
) -> Plan:
    """Copies of the parts of row-major tensors, and attention on these: no better than ops one by one."""
    steps: list[Bindable] = []
    specs, places, size = list[Spec](), list[Place](), 0
    for number, ops in zip(op.wholes, op.ways, strict=True):
        lie = _lie(ops, wholes[number])
        if lie is None:
            raise NoKernel(f"{op.name}: {ops} take no view of {wholes[number]}")
        part = Spec(lie.shape, wholes[number].dtype).fixed
        begin, at = source(number, lie.first * part.dtype.itemsize), scratch(size)
        if part.numel:
            steps.append(strided_copy(part.shape, part, lie.strides, part.physical.strides, begin, at))
        size += round_up(part.nbytes, WORKSPACE_ALIGNMENT)
        specs.append(part)
        places.append(at)
    plan = kernels.plan(op.unfused, [*specs, *more], device, policy)
    inputs = (*places, *(source(op.count + i) for i in range(len(more))))
    outputs = [s.fixed for s in op.infer(*wholes, *more)]
    steps.append(SubPlan(plan, inputs, tuple(target(i) for i in range(len(outputs))), size))
    made = kernel_plan(
        device, [*wholes, *more], outputs, steps, label=op.name, workspace=size + plan.workspace
    )
    return replace(made, parts=(plan,))


# --------------------------------------------------------------------------------------------------------- layouts


class _Lie(NamedTuple):
    """Where the elements of a part are in a tensor. first: the offset of its first element."""

    shape: Shape
    strides: Shape
    first: int


def _lie(ops: Sequence[Op], whole: Spec) -> _Lie | None:
    """Where the elements that ops take from a tensor are; None if they would have to be copied in between."""
    found = _Lie(whole.shape, whole.physical.strides, 0)
    for op in ops:
        (made,) = op.infer(Spec(found.shape, whole.dtype))
        strides = op.strides_within(found.shape, found.strides)
        if strides is None:
            return None
        found = _Lie(made.shape, strides, found.first + op.first_within(found.strides))
    return found


def _part(ops: Sequence[Op], whole: Spec, number: int) -> Term | None:
    """A part [B, H, S, D] of input `number`; None if it cannot be read there: features are not adjacent, or the part
    begins between the addresses of accesses."""
    lie = _lie(ops, whole)
    if lie is None or (lie.strides[3] != 1 and lie.shape[3] > 1) or lie.first * whole.dtype.itemsize % VECTOR:
        return None
    part = full(Spec(lie.shape, whole.dtype), Layout((*lie.strides[:3], 1)))
    return part, source(number, lie.first * whole.dtype.itemsize)


def _with_readable_parts(op: PartedAttention, number: int, whole: Spec) -> Spec:
    """A tensor in a layout in which its parts can be read: its own, row-major, or one with another axis innermost."""
    taken = [ops for i, ops in zip(op.wholes, op.ways, strict=True) if i == number]
    own = [whole.fixed] if whole.tag is not None and not whole.physical.is_blocked else []
    axes = range(whole.ndim)
    orders = [(*(a for a in axes if a != last), last) for last in axes]
    for lies in (*own, whole.open.fixed, *(full(whole, dense(whole.shape, order)) for order in orders)):
        if all(_part(ops, lies, number) is not None for ops in taken):
            return lies
    return whole.open.fixed
