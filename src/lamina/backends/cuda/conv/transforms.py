"""Formulations of a convolution: rewrites to another convolution or a product, with own kernels around it.

padded             few channels padded to a multiple of 8 first, so that tensor-core engines take them (half types)
space to depth     by the stride: blocks of positions become channels, and the convolution has stride 1
upcast             half types as float32 (TF32 holds all of their bits), where engines refuse the half type
layout             the other memory format: row-major operands channels last, or the reverse
swapped direction  stride 1: forward as the data gradient of the mirrored, transposed filter, the data gradient as a
                   forward convolution, the filter gradient with x and the gradient exchanged
product            filters of one tap: a matrix product [N * positions, C], of every stride-th position only
few rows           the same for few images of one position each, by an own kernel

In reports and stored plans space to depth is "deep", upcast "wide", layout "relaid" and swapped direction "turned".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

from lamina.backends.cuda.cudnn_graphs.conv import Direction, Operands, conv_graph, places_of, sides
from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue, Vector
from lamina.backends.cuda.cudnn_graphs.matmul import Product, matmul_graph
from lamina.backends.cuda.elementwise.loop import KernelOperand, Statement, elementwise
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.elementwise.shape import strided_copy
from lamina.backends.cuda.launch.indexing import index_type, memory_order
from lamina.backends.cuda.launch.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Bindable,
    Fill,
    Launch,
    Place,
    Program,
    c_type,
    constants,
    looping,
    round_up,
    scratch,
    wide_type,
)
from lamina.backends.cuda.matmul.cublaslt import cublaslt_formulations
from lamina.backends.cuda.matmul.few_rows import few_rows
from lamina.backends.cuda.matmul.small import small_product
from lamina.backends.cuda.select.formulations import Formulation
from lamina.cudnn import Graph
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.ops.primitives.window import Window
from lamina.runtime import Device
from lamina.spec import Policy, Shape, Spec, bfloat16, channels_last, contiguous, float16, float32

#: Tensor-core engines need a multiple of this many channels in half types.
CHANNELS = 8
#: The most channels after space to depth for which it pays.
_MOST_CHANNELS = 64


def pads(o: Operands) -> bool:
    """Whether a half type has so few channels that padding them may pay."""
    half = o.x.dtype in (float16, bfloat16)
    return half and o.window.groups == 1 and o.window.rank == 2 and o.x.shape[1] % CHANNELS != 0


def takes_space_to_depth(o: Operands) -> bool:
    """Whether space to depth applies: a strided, undilated 2-D window over few channels."""
    win = o.window
    if win.rank != 2 or win.groups != 1 or win.flip or max(win.dilation) > 1 or max(win.stride) == 1:
        return False
    return o.x.shape[1] * prod(win.stride) <= _MOST_CHANNELS


@dataclass(frozen=True)
class SpaceToDepth:
    """A convolution over more channels: operands that replace those of the original one.

    block: positions that become channels, per axis. Padding of channels alone is a block of (1, 1).
    """

    block: tuple[int, int]
    original: Operands
    deep: Operands

    @property
    def text(self) -> str:
        """The constants of space_to_depth.cu."""
        x, w = self.original.x, self.original.w
        deep, filter_ = self.deep.x, self.deep.w
        pad = [lo for lo, _ in self.original.window.padding] if self.block != (1, 1) else [0, 0]
        channels = deep.shape[1]
        width = VECTOR // x.dtype.itemsize
        while channels % width:
            width //= 2
        numbers: dict[str, int | str | float] = {
            "V": width,
            "N": x.shape[0],
            "C": x.shape[1],
            "H": x.shape[2],
            "W": x.shape[3],
            "PH": pad[0],
            "PW": pad[1],
            "BH": self.block[0],
            "BW": self.block[1],
            "U": deep.shape[2],
            "V_": deep.shape[3],
            "DEEP": channels,
            "K": w.shape[0],
            "KH": w.shape[2],
            "KW": w.shape[3],
            "DH": filter_.shape[2],
            "DW": filter_.shape[3],
        }
        for prefix, spec, names in (("X", x, "NCHW"), ("W", w, "KCHW")):
            numbers |= {f"{prefix}_{n}": s for n, s in zip(names, spec.physical.strides, strict=True)}
        reach = max(prod(deep.shape), x.nbytes // x.dtype.itemsize)
        kind = index_type(reach)
        return f"typedef {kind} Index;\ntypedef {c_type(x.dtype)} T;\n{constants(**numbers)}"

    def launch(self, name: str, count: int, origin: Place, to: Place) -> Launch:
        """One of space_to_depth.cu's kernels over `count` elements."""
        return looping(Program(name, "conv/space_to_depth.cu", self.text), count, (origin, to), each=4)


def space_to_depth(o: Operands) -> SpaceToDepth:
    """Space to depth by the stride: stride-1 operands with ceil(kernel / stride) taps and no padding."""
    block = (o.window.stride[0], o.window.stride[1])
    taps = tuple(-(-k // b) for k, b in zip(o.w.shape[2:], block, strict=True))
    channels = round_up(o.x.shape[1] * prod(block), CHANNELS)
    places = tuple(n + t - 1 for n, t in zip(o.y.shape[2:], taps, strict=True))
    x = Spec((o.x.shape[0], channels, *places), o.x.dtype)
    w = Spec((o.w.shape[0], channels, *taps), o.x.dtype)
    window = Window((1, 1), ((0, 0), (0, 0)), (1, 1))
    return SpaceToDepth(block, o, Operands(window, _last(x), _last(w), _last(o.y)))


def padded(o: Operands) -> SpaceToDepth:
    """Channels padded to a multiple of 8."""
    channels = round_up(o.x.shape[1], CHANNELS)
    x = Spec((o.x.shape[0], channels, *o.x.shape[2:]), o.x.dtype)
    w = Spec((o.w.shape[0], channels, *o.w.shape[2:]), o.x.dtype)
    return SpaceToDepth((1, 1), o, Operands(o.window, _last(x), _last(w), _last(o.y)))


def _last(spec: Spec) -> Spec:
    return full(spec, channels_last(spec.shape))


def space_to_depth_formulation(direction: Direction, o: Operands, epilogue: Epilogue) -> Formulation:
    """Space to depth, then a convolution of stride 1. Only where y is channels last."""
    return transformed("deep", space_to_depth(o), direction, epilogue)


def padded_formulation(direction: Direction, o: Operands, epilogue: Epilogue) -> Formulation:
    """Padded channels, then the original convolution."""
    return transformed("padded", padded(o), direction, epilogue)


def transformed(name: str, d: SpaceToDepth, direction: Direction, epilogue: Epilogue) -> Formulation:
    """Own kernels transform x and the filter into the blocked form (or back, for gradients); y is unchanged."""
    blocked_x, blocked_w = scratch(0), scratch(round_up(d.deep.x.nbytes, WORKSPACE_ALIGNMENT))
    size = round_up(d.deep.x.nbytes, WORKSPACE_ALIGNMENT) + d.deep.w.nbytes
    x, w, y = places_of(direction)
    before: list[Bindable] = []
    after: list[Bindable] = []
    if direction is ConvDataGrad:
        after.append(d.launch("depth_to_space", prod(d.original.x.shape), blocked_x, x))
    else:
        chunks = prod(d.deep.x.shape) // (VECTOR // d.deep.x.dtype.itemsize)
        before.append(d.launch("space_to_depth", chunks, x, blocked_x))
    if direction is ConvFilterGrad:
        after.append(d.launch("depth_to_filter", prod(d.original.w.shape), blocked_w, w))
    else:
        before.append(d.launch("filter_to_depth", prod(d.deep.w.shape), w, blocked_w))

    def graph() -> tuple[Graph, Mapping[int, Place]]:
        return conv_graph(direction, d.deep, (blocked_x, blocked_w, y), epilogue)

    return Formulation(name, graph, tuple(before), tuple(after), scratch=size)


def upcast_formulation(direction: Direction, o: Operands) -> Formulation:
    """Operands as float32 in scratch memory, the convolution, and its rounded result."""
    wide = [replace(spec, dtype=float32) for spec in (o.x, o.w, o.y)]
    return _in_scratch("wide", direction, o, wide, _converted, spare=True)


def layout_formulation(direction: Direction, o: Operands) -> Formulation:
    """The other layout: row-major operands channels last, or the reverse (for half types a fallback formulation)."""
    arrange = contiguous if o.x.physical == channels_last(o.x.shape) else channels_last
    others = [full(Spec(s.shape, s.dtype), arrange(s.shape)) for s in (o.x, o.w, o.y)]
    return _in_scratch("relaid", direction, o, others, _reordered, spare=o.x.dtype in (float16, bfloat16))


def _in_scratch(
    name: str,
    direction: Direction,
    o: Operands,
    others: Sequence[Spec],
    bring: Callable[[Spec, Spec, Place, Place], Launch],
    *,
    spare: bool,
) -> Formulation:
    """All three operands in scratch memory as other specs; `bring` makes the launch from one to the other."""
    result, _ = sides(direction, o)
    places, size = [], 0
    for spec in others:
        places.append(scratch(size))
        size += round_up(spec.nbytes, WORKSPACE_ALIGNMENT)
    before: list[Bindable] = []
    after: list[Bindable] = []
    for other, own, place, held in zip(others, (o.x, o.w, o.y), places, places_of(direction), strict=True):
        if own is result:
            after.append(bring(other, own, place, held))
        else:
            before.append(bring(own, other, held, place))

    def graph() -> tuple[Graph, Mapping[int, Place]]:
        return conv_graph(direction, Operands(o.window, *others), places)

    return Formulation(name, graph, tuple(before), tuple(after), scratch=size, spare=spare)


def _reordered(origin: Spec, to: Spec, source_place: Place, target_place: Place) -> Launch:
    """The launch that copies elements to another layout."""
    strides = origin.physical.strides, to.physical.strides
    return strided_copy(to.shape, to, *strides, source_place, target_place)


def _converted(origin: Spec, to: Spec, source_place: Place, target_place: Place) -> Launch:
    """The launch that converts elements to another type in the same layout."""
    strides = to.physical.strides
    read = KernelOperand(origin.dtype, strides, source_place)
    written = KernelOperand(to.dtype, strides, target_place)
    body = [Statement("y", wide_type(to.dtype), "a0")]
    return elementwise(to.shape, memory_order(to.shape, strides), [read], [written], body, ["y"])


# -------------------------------------------------------------------------------- swapped direction, product


def can_swap(o: Operands) -> bool:
    """Whether the swapped direction exists: stride 1, one group, and padding that stays within the filter's reach."""
    win = o.window
    reach = (n - 1 for n in win.span(o.w.shape[2:]))
    inside = all(max(pair) <= r for pair, r in zip(win.padding, reach, strict=True))
    return win.groups == 1 and max(win.stride) == 1 and inside and max(o.w.shape[2:]) > 1


def swapped(o: Operands) -> Operands:
    """x and y swapped; the filter [C, K, *taps] is mirrored, the padding complements that of a full convolution."""
    reach = [n - 1 for n in o.window.span(o.w.shape[2:])]
    padding = tuple((r - lo, r - hi) for r, (lo, hi) in zip(reach, o.window.padding, strict=True))
    w = Spec((o.w.shape[1], o.w.shape[0], *o.w.shape[2:]), o.w.dtype)
    arrange = channels_last if o.w.physical == channels_last(o.w.shape) else None
    w = full(w, arrange(w.shape)) if arrange else w.fixed
    return Operands(replace(o.window, padding=padding), o.y, w, o.x)


_SWAPPED = {
    Conv: ConvDataGrad,
    ConvDataGrad: Conv,
    ConvFilterGrad: ConvFilterGrad,
}


def swapped_direction_formulation(direction: Direction, o: Operands, epilogue: Epilogue) -> Formulation:
    """The other direction over a filter that a small kernel mirrors and transposes."""
    other, filter_ = swapped(o), scratch()
    x, w, y = places_of(direction)
    backwards = direction is ConvFilterGrad
    step = mirror(o.w, w, other.w, filter_, back=backwards)

    def graph() -> tuple[Graph, Mapping[int, Place]]:
        return conv_graph(_SWAPPED[direction], other, (y, filter_, x), epilogue)

    before, after = ((), (step,)) if backwards else ((step,), ())
    return Formulation("turned", graph, before, after, scratch=other.w.nbytes)


def mirror(w: Spec, place: Place, other: Spec, other_place: Place, *, back: bool = False) -> Launch:
    """swapped[c, k, t] = w[k, c, T - 1 - t], or the reverse."""
    strides = w.physical.strides
    end = sum((n - 1) * s for n, s in zip(w.shape[2:], strides[2:], strict=True))
    there = (strides[1], strides[0], *(-s for s in strides[2:]))
    from_end = replace(place, offset=place.offset + end * w.dtype.itemsize)
    mirrored = other.physical.strides
    if back:
        return strided_copy(other.shape, w, mirrored, there, other_place, from_end)
    return strided_copy(other.shape, w, there, mirrored, from_end, other_place)


def multiplies(o: Operands) -> bool:
    """Whether the convolution is a product: filters of one tap, no padding, channels last."""
    win = o.window
    single = prod(o.w.shape[2:]) == 1 and win.groups == 1 and not any(map(any, win.padding))
    return single and o.x.physical == channels_last(o.x.shape)


def squeezed_formulations(
    direction: Direction, o: Operands, epilogue: Epilogue, device: Device
) -> list[tuple[Formulation, bool]]:
    """Own kernels for images of one position each, such as after a global mean, and whether each is expected to be
    faster than engines; the best one last."""
    images, (filters, channels) = o.x.shape[0], o.w.shape[:2]
    if not multiplies(o) or max(*o.x.shape[2:], *o.y.shape[2:]) > 1:
        return []
    x, w, y = places_of(direction)
    if direction is Conv:
        p, places, c = Product(1, images, filters, channels, False, True), (x, w, y), o.y
    elif direction is ConvDataGrad:
        p, places, c = Product(1, images, channels, filters, False, False), (y, w, x), o.x
    else:
        p, places, c = Product(1, filters, channels, images, True, False), (y, x, w), o.w
    few = None if direction is ConvFilterGrad else few_rows(p, places, (0, 1))
    small = small_product(p, places, (0, 1))
    rows = None if few is None else few.formulation(c, epilogue, device.machine)
    tiles = None if small is None else small.formulation(c, epilogue)
    found = [] if tiles is None else [(tiles, True)]
    if few is not None and rows is not None:
        found.append((rows, few.pays))
    return found


def product_formulations(
    direction: Direction, o: Operands, vector: Vector | None, device: Device, policy: Policy
) -> list[Formulation]:
    """A filter of one tap as a product: cuDNN's matmul, and cuBLASLt's algorithms."""
    rows, (filters, channels) = o.y.numel // o.y.shape[1], o.w.shape[:2]
    x, w, y = places_of(direction)
    dense, before, after, size = _every(direction, o, x)
    if direction is Conv:
        p, places = Product(1, rows, filters, channels, False, True), (dense, w, y)
    elif direction is ConvDataGrad:
        p, places = Product(1, rows, channels, filters, False, False), (y, w, dense)
    else:
        p, places = Product(1, filters, channels, rows, True, False), (y, dense, w)
    if direction is ConvDataGrad and after and vector not in (None, Vector()):
        return []  # the epilogue would have to run at the skipped positions as well
    formulations = []
    if vector == Vector():
        graph = Formulation(
            "product", lambda: matmul_graph(p, o.x.dtype, places), before, after, scratch=size
        )
        formulations.append(graph)
    offset = round_up(size, WORKSPACE_ALIGNMENT)
    around = {"before": before, "after": after}
    return formulations + cublaslt_formulations(
        p, o.x.dtype, places, device, policy, vector, offset=offset, **around
    )


def _every(
    direction: Direction, o: Operands, x: Place
) -> tuple[Place, tuple[Bindable, ...], tuple[Bindable, ...], int]:
    """(place of the rows of x in the product, kernels before it, kernels after it, bytes of scratch).

    With a stride the rows are gathered to scratch memory first; for the data gradient, scattered from there among
    zeros.
    """
    if max(o.window.stride) == 1:
        return x, (), (), 0
    shape: Shape = (*o.x.shape[:2], *o.y.shape[2:])
    dense = full(Spec(shape, o.x.dtype), channels_last(shape))
    strides = o.x.physical.strides
    apart = (*strides[:2], *(s * n for s, n in zip(strides[2:], o.window.stride, strict=True)))
    packed = dense.physical.strides
    if direction is ConvDataGrad:
        spread = strided_copy(shape, o.x, packed, apart, scratch(), x)
        return scratch(), (), (Fill(x, 0, o.x.nbytes), spread), dense.nbytes
    return scratch(), (strided_copy(shape, o.x, apart, packed, x, scratch()),), (), dense.nbytes
