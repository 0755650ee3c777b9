"""Ops that move no elements."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from lamina.backends import Call, Plan, Run
from lamina.backends.cpu.library import kernels
from lamina.ops.primitives.pointwise import Identity
from lamina.ops.primitives.shape import Reshape, Transpose
from lamina.runtime import Device
from lamina.spec import Layout, Policy, Shape, Spec
from lamina.spec.layout import dense


@kernels(Reshape, source="view")
def reshape(op: Reshape, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """The same memory under another shape: axes that are split or merged lie row-major beside each other, and the
    groups of these in the order in which they lay.
    """
    x, (y,) = specs[0], op.infer(specs[0].open)
    groups = _groups(x.shape, y.shape)
    if x.layout is None or x.layout.is_blocked or not groups:
        return _view(x.open.fixed, y.fixed)
    order = _lying(x, [old for old, _ in groups])
    if order is None:
        return _view(x.open.fixed, y.fixed)
    lies, becomes = (tuple(a for g in order for a in groups[g][side]) for side in (0, 1))
    given, made = dense(x.shape, lies), dense(y.shape, becomes)
    return _view(Spec(x.shape, x.dtype, given), Spec(y.shape, y.dtype, made))


def _lying(x: Spec, groups: Sequence[Sequence[int]]) -> list[int] | None:
    """The groups of axes from outer to inner as they lie; None where axes of one lie around those of another."""
    strides = x.physical.strides
    of = {axis: g for g, axes in enumerate(groups) for axis in axes if x.shape[axis] > 1}
    runs = [g for g, _ in groupby(of[axis] for axis in sorted(of, key=lambda axis: (-strides[axis], axis)))]
    if len(runs) != len(set(runs)):
        return None
    return [*(g for g in range(len(groups)) if g not in runs), *runs]


def _groups(old: Shape, new: Shape) -> list[tuple[list[int], list[int]]]:
    """The smallest runs of axes of two shapes that hold equally many elements; none where there are no elements."""
    if 0 in old:
        return []
    found: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        group: tuple[list[int], list[int]] = ([], [])
        a = b = 1
        while a != b or not (group[0] or group[1]):
            if j == len(new) or (i < len(old) and a <= b):
                a, i = a * old[i], i + 1
                group[0].append(i - 1)
            else:
                b, j = b * new[j], j + 1
                group[1].append(j - 1)
        found.append(group)
    return found


@kernels(Transpose, source="view")
def transpose(op: Transpose, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """The same memory; strides and blocks change places."""
    x = specs[0].fixed
    layout = x.physical
    blocks = tuple((op.order.index(axis), size) for axis, size in layout.blocks)
    moved = Layout(tuple(layout.strides[axis] for axis in op.order), blocks)
    return _view(x, Spec(op.infer(x)[0].shape, x.dtype, moved))


@kernels(Identity, source="view")
def identity(op: Identity, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """The same memory."""
    return _view(specs[0].fixed, specs[0].fixed)


def _view(x: Spec, y: Spec) -> Plan:
    return Plan((x,), (y,), _bind, view=True, label="view")


def _bind(call: Call) -> Run:
    return _nothing


def _nothing() -> None:
    """What a view runs."""
