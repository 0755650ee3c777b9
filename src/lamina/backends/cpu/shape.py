"""Ops that move no elements."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends import Call, Plan, Run
from lamina.backends.cpu.library import kernels
from lamina.ops.primitives.pointwise import Identity
from lamina.ops.primitives.shape import Reshape, Transpose
from lamina.runtime import Device
from lamina.spec import Layout, Policy, Spec


@kernels(Reshape, source="view")
def reshape(op: Reshape, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """The same memory under another shape."""
    return _view(*specs[0].reshaped(op.shape))


@kernels(Transpose, source="view")
def transpose(op: Transpose, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """The same memory; strides and blocks are permuted."""
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
    """A view runs nothing."""
