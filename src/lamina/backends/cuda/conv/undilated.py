"""A convolution that is dilated along its only axis with several taps, as one without dilation on the same memory.

With dilation d, the taps of one result read every d-th element: d independent convolutions. Where the axis
has a multiple of d elements, channels last [N, T, C] is [N, T / d, d, C], the taps lie along T / d, and the axis of d
elements has none:

    y[t] = sum_j w[j] x[t + j d - p],  t = u d + r, p = q d   =>   y[u, r] = sum_j w[j] x[u + j - q, r]

Axes of one tap before it count as further samples, those after it stay inside. No element moves, and the sums are the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import prod

from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, conv_graph, places_of
from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.launch.program import Place
from lamina.backends.cuda.select.formulations import Formulation
from lamina.cudnn import Graph
from lamina.ops.primitives.window import Window
from lamina.spec import Shape, Spec, channels_last


@dataclass(frozen=True)
class Undilated:
    """A convolution whose taps lie along one axis (number `axis` of the spatial ones), all operands channels last."""

    original: Operands
    axis: int

    @property
    def operands(self) -> Operands:
        """The same convolution of rank 2 and dilation 1."""
        o, win = self.original, self.original.window
        d = win.dilation[self.axis]
        low, high = win.padding[self.axis]
        window = Window((1, 1), ((low // d, high // d), (0, 0)), (1, 1), win.groups, win.flip)
        w = (*o.w.shape[:2], o.w.shape[2 + self.axis], 1)
        specs = (Spec(shape, o.x.dtype) for shape in (self._viewed(o.x.shape), w, self._viewed(o.y.shape)))
        return Operands(window, *(full(spec, channels_last(spec.shape)) for spec in specs))

    def epilogue(self, epilogue: Epilogue, result: Shape) -> Epilogue | None:
        """The epilogue; None where one of its operands varies along some of the axes only."""
        extras = []
        for spec in epilogue.extras:
            shape = (1,) * (len(result) - spec.ndim) + spec.shape
            along_channels = shape[0] == prod(shape[2:]) == 1
            if shape != result and not along_channels:
                return None
            extras.append(replace(spec, shape=(*shape[:2], 1, 1) if along_channels else self._viewed(shape)))
        return replace(epilogue, extras=tuple(extras))

    def _viewed(self, shape: Shape) -> Shape:
        """[N, C, *before, T, *behind] as [N * before, C, T / d, d * behind]."""
        (samples, channels, *places), d = shape, self.original.window.dilation[self.axis]
        before, behind = places[: self.axis], places[self.axis + 1 :]
        return (samples * prod(before), channels, places[self.axis] // d, d * prod(behind))


def undilated(o: Operands) -> Undilated | None:
    """The undilated form, or None where there is none."""
    win, taps = o.window, o.w.shape[2:]
    if any(spec.physical != channels_last(spec.shape) for spec in (o.x, o.w, o.y)):
        return None
    several = [axis for axis, n in enumerate(taps) if n > 1]
    if len(several) != 1:
        return None
    (axis,) = several
    d = win.dilation[axis]
    idle = all(not any(pair) for number, pair in enumerate(win.padding) if number != axis)
    sizes = (o.x.shape[2 + axis], o.y.shape[2 + axis], win.padding[axis][0])
    if d == 1 or max(win.stride) > 1 or not idle or any(n % d for n in sizes):
        return None
    return Undilated(o, axis)


def undilated_formulation(
    direction: Direction, form: Undilated, epilogue: Epilogue, result: Shape
) -> Formulation | None:
    """The graph of the undilated form; None where the epilogue cannot be fused."""
    steps = form.epilogue(epilogue, result)
    if steps is None:
        return None

    def graph() -> tuple[Graph, Mapping[int, Place]]:
        return conv_graph(direction, form.operands, places_of(direction), steps)

    return Formulation("undilated", graph)
