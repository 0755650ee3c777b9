"""Convolutions along the first spatial axes alone, over images whose last ones have size 1: these are moved in front.

oneDNN's kernels go along the last axis, and are slow where it has one element. An axis of size 1 may lie anywhere in
the same memory, so that only names change: [N, C, H, 1] is described as [N, C, 1, H].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from lamina.backends import Plan
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.ops.primitives.window import Window
from lamina.spec import Layout, Shape, Spec

Convolution = Conv | ConvDataGrad | ConvFilterGrad
#: Plans a convolution.
Planned = Callable[[Any, Sequence[Spec], Sequence[Spec]], Plan]


def in_front(op: Convolution, specs: Sequence[Spec], extra: Sequence[Spec], planned: Planned) -> Plan | None:
    """The plan of planned(op, specs, extra) with the flat axes in front of the others; None if that changes nothing.

    specs: the two operands. extra: those of fused steps.
    """
    x, w = (s.shape[2:] for s in specs)
    x = op.shape if isinstance(op, ConvDataGrad) else x
    w = op.shape if isinstance(op, ConvFilterGrad) else w
    flat, rank = _flat(op.window, x, w), specs[0].ndim
    if not flat or any(s.ndim not in (0, rank) for s in extra):
        return None

    def turned(items: Sequence[Any]) -> tuple[Any, ...]:
        return (*items[-flat:], *items[:-flat])

    window = op.window
    moved: dict[str, Any] = {
        "window": replace(
            window,
            stride=turned(window.stride),
            padding=turned(window.padding),
            dilation=turned(window.dilation),
        )
    }
    if not isinstance(op, Conv):
        moved["shape"] = turned(op.shape)

    def described(spec: Spec) -> Spec:
        return (
            Spec((*spec.shape[:2], *turned(spec.shape[2:])), spec.dtype) if spec.ndim == rank else spec.open
        )

    plan = planned(replace(op, **moved), [described(s) for s in specs], [described(s) for s in extra])
    return _behind(plan, flat, rank)


def _flat(window: Window, x: Shape, w: Shape) -> int:
    """The number of last axes along which input and filter have one element; 0 if there are no others."""
    axes = zip(x[::-1], w[::-1], window.padding[::-1], strict=True)
    wide = (i for i, (size, taps, pads) in enumerate(axes) if size != 1 or taps != 1 or any(pads))
    return next(wide, 0)


def _behind(plan: Plan, flat: int, rank: int) -> Plan:
    """The same kernel, with the flat axes of its operands behind the others."""
    order = (0, 1, *range(2 + flat, rank), *range(2, 2 + flat))

    def named(spec: Spec) -> Spec:
        if spec.ndim != rank:
            return spec
        layout = spec.physical
        strides = [layout.strides[axis] for axis in order]
        strides[-flat:] = [strides[-flat - 1]] * flat  # as of a dense layout
        blocks = tuple((order.index(axis), size) for axis, size in layout.blocks)
        return Spec(tuple(spec.shape[axis] for axis in order), spec.dtype, Layout(tuple(strides), blocks))

    packed = plan.packed
    if packed is not None:
        packed = replace(packed, pack=_behind(packed.pack, flat, rank), plan=_behind(packed.plan, flat, rank))
    return replace(
        plan,
        inputs=tuple(map(named, plan.inputs)),
        outputs=tuple(map(named, plan.outputs)),
        packed=packed,
    )
