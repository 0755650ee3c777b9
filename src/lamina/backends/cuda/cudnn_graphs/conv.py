"""A convolution in one of its directions: its operands, and the cuDNN graph of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from lamina.backends.cuda.cudnn_graphs.epilogue import NONE, Epilogue
from lamina.backends.cuda.launch.program import Place, source, target
from lamina.backends.cuda.select.formulations import Formulation
from lamina.cudnn import Graph
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.ops.primitives.window import Window
from lamina.spec import Shape, Spec, channels_last


@dataclass(frozen=True)
class Operands:
    """x, filter and y of a convolution, whatever direction it is computed in; layouts named."""

    window: Window
    x: Spec
    w: Spec
    y: Spec

    @property
    def flops(self) -> float:
        """Multiplications and additions."""
        return 2.0 * prod(self.y.shape) * prod(self.w.shape[1:])


#: A convolution's direction is the class of its op, whose `name` is part of plan keys and labels.
Direction = type[Conv] | type[ConvDataGrad] | type[ConvFilterGrad]


def sides(direction: Direction, o: Operands) -> tuple[Spec, tuple[Spec, Spec]]:
    """(result, operands)."""
    if direction is Conv:
        return o.y, (o.x, o.w)
    return (o.x, (o.y, o.w)) if direction is ConvDataGrad else (o.w, (o.x, o.y))


def is_channels_last(o: Operands) -> bool:
    """The layout required by space to depth and padding, for unchanged operands too."""
    return o.y.physical == channels_last(o.y.shape)


def plain_formulation(direction: Direction, o: Operands, epilogue: Epilogue) -> Formulation:
    """The operation as it is."""
    places = places_of(direction)

    def graph() -> tuple[Graph, Mapping[int, Place]]:
        return conv_graph(direction, o, places, epilogue)

    return Formulation("plain", graph)


def places_of(direction: Direction) -> tuple[Place, Place, Place]:
    """The places of x, filter and y in a call."""
    if direction is Conv:
        return source(0), source(1), target()
    if direction is ConvDataGrad:
        return target(), source(1), source(0)
    return source(0), target(), source(1)


def conv_graph(
    direction: Direction, o: Operands, places: Sequence[Place], epilogue: Epilogue = NONE
) -> tuple[Graph, dict[int, Place]]:
    """The cuDNN graph of one direction, and the address of each uid."""
    graph = Graph(o.x.dtype.compute.name)
    axes = _planes if o.window.rank == 1 else _as_they_are
    tensors, pointers = {}, {}
    result = sides(direction, o)[0]
    for name, spec, place in zip("xwy", (o.x, o.w, o.y), places, strict=True):
        virtual = bool(epilogue.steps) and spec is result
        kind = spec.dtype.compute if virtual else spec.dtype
        sizes, steps = axes(spec.shape, spec.physical.strides)
        tensors[name] = graph.tensor(sizes, steps, kind.name, virtual=virtual)
        if not virtual:
            pointers[tensors[name].uid] = place
    window = window_arguments(o.window)
    x, w, y = tensors["x"], tensors["w"], tensors["y"]
    if direction is Conv:
        value = graph.conv(x, w, y, **window)
    elif direction is ConvDataGrad:
        value = graph.conv_data_grad(y, w, x, **window)
    else:
        value = graph.conv_filter_grad(x, y, w, **window)
    if epilogue.steps:
        out = graph.tensor(value.dimensions, value.strides, result.dtype.name)
        pointers[out.uid] = target()
        pointers |= epilogue.attach(graph, value, out, result.shape, result.physical, axes)
    return graph, pointers


def _as_they_are(shape: Shape, strides: Shape) -> tuple[Shape, Shape]:
    return shape, strides


def _planes(shape: Shape, strides: Shape) -> tuple[Shape, Shape]:
    """[N, C, W] as [N, C, 1, W] with the stride that a dense tensor has along the new axis."""
    row = shape[2] * strides[2]
    return (*shape[:2], 1, shape[2]), (*strides[:2], row, strides[2])


def window_arguments(win: Window) -> dict[str, Any]:
    """A window as the graph's convolutions take it."""
    pre, post = tuple(lo for lo, _ in win.padding), tuple(hi for _, hi in win.padding)
    stride, dilation = win.stride, win.dilation
    if win.rank == 1:
        pre, post, stride, dilation = (0, *pre), (0, *post), (1, *stride), (1, *dilation)
    return {"stride": stride, "pre": pre, "post": post, "dilation": dilation, "flip": win.flip}
