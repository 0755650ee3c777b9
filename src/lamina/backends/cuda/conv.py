"""Convolution and its gradients: cuDNN graph plans in several formulations.

    plain    the operation as it is
    padded   few channels padded to a multiple of 8 first, so that tensor-core engines take them (half types)
    deep     space to depth by the stride: blocks of places become channels, and the convolution has stride 1
    wide     half types as float32 (TF32 holds all of their bits), for what engines refuse in the half type

Half types and TF32 lie channels last; float32 and float64, whose engines prefer it, row-major. Own direct kernels do
what no engine takes, and check engines where the arithmetic is little.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod
from typing import Any

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda.choice import Problem, Way, choose, nothing_to_do
from lamina.backends.cuda.epilogue import NONE, Epilogue
from lamina.backends.cuda.indexing import memory_order
from lamina.backends.cuda.pointwise import Operand, Value, elementwise, full
from lamina.backends.cuda.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Fill,
    Launch,
    Place,
    Program,
    Step,
    blocks_for,
    c_type,
    constants,
    kernel_plan,
    round_up,
    scratch,
    source,
    target,
    wide_type,
)
from lamina.backends.cuda.split import split_way
from lamina.backends.cuda.table import kernels
from lamina.cudnn import Graph
from lamina.ops.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.ops.window import Window
from lamina.runtime import Device
from lamina.spec import Policy, Shape, Spec, bfloat16, channels_last, contiguous, float16, float32

#: Channels that tensor-core engines want a multiple of, for half types.
_CHANNELS = 8
#: Deep channels beyond which space to depth is not worth it.
_MOST_DEEP = 64
_AXES = ("D", "H", "W")


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


Direction = str  # "conv", "conv_data_grad", "conv_filter_grad"


# ----------------------------------------------------------------------------------------------------- cards


@kernels(Conv, source="cudnn")
def conv(op: Conv, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """y from x and the filter."""
    return forward_plan(op, specs, NONE, device, policy)


def forward_plan(op: Conv, specs: Sequence[Spec], epilogue: Epilogue, device: Device, policy: Policy) -> Plan:
    """y from x and the filter, and steps on it."""
    (y,) = op.infer(*specs[:2])
    return _plan("conv", op.window, (specs[0], specs[1], y), epilogue, device, policy)


@kernels(ConvDataGrad, source="cudnn")
def conv_data_grad(op: ConvDataGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The gradient of x from that of y and the filter."""
    return data_grad_plan(op, specs, NONE, device, policy)


def data_grad_plan(
    op: ConvDataGrad, specs: Sequence[Spec], epilogue: Epilogue, device: Device, policy: Policy
) -> Plan:
    """The gradient of x, and steps on it."""
    (x,) = op.infer(*specs[:2])
    return _plan("conv_data_grad", op.window, (x, specs[1], specs[0]), epilogue, device, policy)


@kernels(ConvFilterGrad, source="cudnn")
def conv_filter_grad(op: ConvFilterGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The gradient of the filter from x and the gradient of y."""
    (w,) = op.infer(*specs)
    return _plan("conv_filter_grad", op.window, (specs[0], w, specs[1]), NONE, device, policy)


def _plan(
    direction: Direction,
    window: Window,
    specs: tuple[Spec, Spec, Spec],
    epilogue: Epilogue,
    device: Device,
    policy: Policy,
) -> Plan:
    opened = tuple(s.open for s in specs)
    return _cached(direction, window, opened, _opened(epilogue), device, policy.of(direction))


def _opened(epilogue: Epilogue) -> Epilogue:
    return replace(epilogue, extras=tuple(e.open for e in epilogue.extras))


@lru_cache(maxsize=1024)
def _cached(
    direction: Direction,
    window: Window,
    specs: tuple[Spec, Spec, Spec],
    epilogue: Epilogue,
    device: Device,
    policy: Policy,
) -> Plan:
    """Plans are made once: the layouts that they want do not depend on where operands lie now."""
    arrange = channels_last if _prefers_channels_last(specs[0], policy) else contiguous
    x, w, y = (full(s, arrange(s.shape)) for s in specs)
    problem = conv_problem(direction, Operands(window, x, w, y), epilogue)
    if problem.outputs[0].numel == 0:
        return nothing_to_do(problem.inputs, problem.outputs, device, direction)
    if 0 in (x.numel, w.numel, y.numel):
        if epilogue.steps:
            raise NoKernel(f"{direction}: steps on a result of no elements are left to their own kernels")
        fill = Fill(target(), 0, problem.outputs[0].nbytes)
        return kernel_plan(device, problem.inputs, problem.outputs, [fill], label=direction)
    if epilogue.steps and (policy.algorithm == "fastest" or policy.named):
        head = _cached(direction, window, specs, NONE, device, policy)
        out, extras = problem.outputs[0], problem.inputs[2:]
        way = split_way(head, epilogue.steps, out, extras, epilogue.first)
        problem = replace(problem, ways=(way,) if policy.named else (*problem.ways, way))
        policy = replace(policy, algorithm="heuristic") if policy.named else policy
    return choose(problem, device, policy)


def _prefers_channels_last(spec: Spec, policy: Policy) -> bool:
    return spec.dtype in (float16, bfloat16) or (spec.dtype == float32 and policy.tf32)


# --------------------------------------------------------------------------------------------------- problems


def conv_problem(direction: Direction, o: Operands, epilogue: Epilogue = NONE) -> Problem:
    """The ways to compute one direction, the most promising first."""
    result, operands = _sides(direction, o)
    extras = epilogue.arranged(result.shape, result.physical)
    steps = "".join(f" > {step}" for step in epilogue.steps)
    ways = _ways(direction, o, epilogue)
    plain = () if epilogue.steps else (direct(direction, o),)
    if plain:
        ways += [wide_way(direction, o)] if o.x.dtype in (float16, bfloat16) else []
        ways.append(Way("direct", steps=plain))
    return Problem(
        family=f"{direction}({o.window}) {o.w} {o.x.dtype}{steps}",
        key=f"{direction}({o.window}) x={o.x} w={o.w} y={o.y}{steps} {', '.join(map(str, extras))}".strip(),
        label=direction + ("+" + "+".join(s.name for s in epilogue.steps) if epilogue.steps else ""),
        inputs=(*operands, *extras),
        outputs=(result,),
        ways=tuple(ways),
        flops=o.flops,
        plain=plain,
    )


def _sides(direction: Direction, o: Operands) -> tuple[Spec, tuple[Spec, Spec]]:
    """(what is computed, from what)."""
    if direction == "conv":
        return o.y, (o.x, o.w)
    return (o.x, (o.y, o.w)) if direction == "conv_data_grad" else (o.w, (o.x, o.y))


def _ways(direction: Direction, o: Operands, epilogue: Epilogue) -> list[Way]:
    """The most promising first: that is what a policy without timing takes."""
    plain = plain_way(direction, o, epilogue)
    if not _is_channels_last(o):
        return [plain]
    ways = []
    if direction != "conv_data_grad" and deepens(o):
        ways.append(deep_way(direction, o, epilogue))
    if pads(o) and not (direction == "conv_data_grad" and epilogue.steps):
        ways.append(padded_way(direction, o, epilogue))
    return [*ways, plain] if o.x.shape[1] < _CHANNELS or pads(o) else [plain, *ways]


def _is_channels_last(o: Operands) -> bool:
    """Deep and padded operands lie channels last, and so must what stays as it is."""
    return o.y.physical == channels_last(o.y.shape)


def pads(o: Operands) -> bool:
    """Whether channels are few enough of a half type that padding them may pay."""
    half = o.x.dtype in (float16, bfloat16)
    return half and o.window.groups == 1 and o.window.rank == 2 and o.x.shape[1] % _CHANNELS != 0


def deepens(o: Operands) -> bool:
    """Whether space to depth applies: a strided, undilated 2-D window over few channels."""
    win = o.window
    if win.rank != 2 or win.groups != 1 or win.flip or max(win.dilation) > 1 or max(win.stride) == 1:
        return False
    return o.x.shape[1] * prod(win.stride) <= _MOST_DEEP


def plain_way(direction: Direction, o: Operands, epilogue: Epilogue) -> Way:
    """The operation as it is."""
    places = _places(direction)

    def graph() -> tuple[Graph, Mapping[int, Place]]:
        return conv_graph(direction, o, places, epilogue)

    return Way("plain", graph)


def _places(direction: Direction) -> tuple[Place, Place, Place]:
    """Where x, filter and y lie in a call."""
    if direction == "conv":
        return source(0), source(1), target()
    if direction == "conv_data_grad":
        return target(), source(1), source(0)
    return source(0), target(), source(1)


def conv_graph(
    direction: Direction, o: Operands, places: Sequence[Place], epilogue: Epilogue = NONE
) -> tuple[Graph, dict[int, Place]]:
    """The cuDNN graph of one direction, and which address each uid has."""
    graph = Graph(o.x.dtype.compute.name)
    axes = _planes if o.window.rank == 1 else _as_they_are
    tensors, pointers = {}, {}
    result = _sides(direction, o)[0]
    for name, spec, place in zip("xwy", (o.x, o.w, o.y), places, strict=True):
        virtual = bool(epilogue.steps) and spec is result
        kind = spec.dtype.compute if virtual else spec.dtype
        sizes, steps = axes(spec.shape, spec.physical.strides)
        tensors[name] = graph.tensor(sizes, steps, kind.name, virtual=virtual)
        if not virtual:
            pointers[tensors[name].uid] = place
    window = _window(o.window)
    x, w, y = tensors["x"], tensors["w"], tensors["y"]
    if direction == "conv":
        value = graph.conv(x, w, y, **window)
    elif direction == "conv_data_grad":
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


def _window(win: Window) -> dict[str, Any]:
    pre, post = tuple(lo for lo, _ in win.padding), tuple(hi for _, hi in win.padding)
    stride, dilation = win.stride, win.dilation
    if win.rank == 1:
        pre, post, stride, dilation = (0, *pre), (0, *post), (1, *stride), (1, *dilation)
    return {"stride": stride, "pre": pre, "post": post, "dilation": dilation, "flip": win.flip}


# --------------------------------------------------------------------------------- deep channels, padded channels


@dataclass(frozen=True)
class Deep:
    """A convolution over deep channels: operands that stand in for those of the original one.

    block: places that become channels, per axis. Padding of channels alone is a block of (1, 1).
    """

    block: tuple[int, int]
    original: Operands
    deep: Operands

    @property
    def text(self) -> str:
        """The constants of depth.cu."""
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
        kind = "i32" if reach < 2**31 - 2**26 else "i64"
        return f"typedef {kind} Index;\ntypedef {c_type(x.dtype)} T;\n{constants(**numbers)}"

    def launch(self, name: str, count: int, origin: Place, to: Place) -> Launch:
        """One of depth.cu's kernels over `count` elements."""
        grid = (blocks_for(count, 256) * 4,)
        return Launch(Program(name, "depth.cu", self.text), grid, (256,), (origin, to))


def deepened(o: Operands) -> Deep:
    """Space to depth by the stride: stride-1 operands with ceil(kernel / stride) taps and no padding."""
    block = (o.window.stride[0], o.window.stride[1])
    taps = tuple(-(-k // b) for k, b in zip(o.w.shape[2:], block, strict=True))
    channels = round_up(o.x.shape[1] * prod(block), _CHANNELS)
    places = tuple(n + t - 1 for n, t in zip(o.y.shape[2:], taps, strict=True))
    x = Spec((o.x.shape[0], channels, *places), o.x.dtype)
    w = Spec((o.w.shape[0], channels, *taps), o.x.dtype)
    window = Window((1, 1), ((0, 0), (0, 0)), (1, 1))
    return Deep(block, o, Operands(window, _last(x), _last(w), _last(o.y)))


def padded(o: Operands) -> Deep:
    """Channels padded to a multiple of 8."""
    channels = round_up(o.x.shape[1], _CHANNELS)
    x = Spec((o.x.shape[0], channels, *o.x.shape[2:]), o.x.dtype)
    w = Spec((o.w.shape[0], channels, *o.w.shape[2:]), o.x.dtype)
    return Deep((1, 1), o, Operands(o.window, _last(x), _last(w), _last(o.y)))


def _last(spec: Spec) -> Spec:
    return full(spec, channels_last(spec.shape))


def deep_way(direction: Direction, o: Operands, epilogue: Epilogue) -> Way:
    """Space to depth, then a convolution of stride 1. Only where y lies channels last."""
    return _transformed("deep", deepened(o), direction, epilogue)


def padded_way(direction: Direction, o: Operands, epilogue: Epilogue) -> Way:
    """Padded channels, then the convolution as it is."""
    return _transformed("padded", padded(o), direction, epilogue)


def _transformed(name: str, d: Deep, direction: Direction, epilogue: Epilogue) -> Way:
    """Own kernels bring x and filter into deep form (or back, for gradients); y is as it was."""
    deep_x, deep_w = scratch(0), scratch(round_up(d.deep.x.nbytes, WORKSPACE_ALIGNMENT))
    size = round_up(d.deep.x.nbytes, WORKSPACE_ALIGNMENT) + d.deep.w.nbytes
    x, w, y = _places(direction)
    before: list[Step] = []
    after: list[Step] = []
    if direction == "conv_data_grad":
        after.append(d.launch("depth_to_space", prod(d.original.x.shape), deep_x, x))
    else:
        chunks = prod(d.deep.x.shape) // (VECTOR // d.deep.x.dtype.itemsize)
        before.append(d.launch("space_to_depth", chunks, x, deep_x))
    if direction == "conv_filter_grad":
        after.append(d.launch("depth_to_filter", prod(d.original.w.shape), deep_w, w))
    else:
        before.append(d.launch("filter_to_depth", prod(d.deep.w.shape), w, deep_w))

    def graph() -> tuple[Graph, Mapping[int, Place]]:
        return conv_graph(direction, d.deep, (deep_x, deep_w, y), epilogue)

    return Way(name, graph, tuple(before), tuple(after), scratch=size)


def wide_way(direction: Direction, o: Operands) -> Way:
    """Operands as float32 in scratch memory, the convolution, and its result rounded."""
    result, _ = _sides(direction, o)
    wide = [replace(spec, dtype=float32) for spec in (o.x, o.w, o.y)]
    places, size = [], 0
    for spec in wide:
        places.append(scratch(size))
        size += round_up(spec.nbytes, WORKSPACE_ALIGNMENT)
    before: list[Step] = []
    after: list[Step] = []
    for spec, half, place, held in zip(wide, (o.x, o.w, o.y), places, _places(direction), strict=True):
        if half is result:
            after.append(_converted(spec, half, place, held))
        else:
            before.append(_converted(half, spec, held, place))

    def graph() -> tuple[Graph, Mapping[int, Place]]:
        return conv_graph(direction, Operands(o.window, *wide), places)

    return Way("wide", graph, tuple(before), tuple(after), scratch=size, spare=True)


def _converted(origin: Spec, to: Spec, source_place: Place, target_place: Place) -> Launch:
    """The launch that converts elements to another type; both lie alike."""
    strides = to.physical.strides
    read = Operand(origin.dtype, strides, source_place)
    written = Operand(to.dtype, strides, target_place)
    body = [Value("y", wide_type(to.dtype), "a0")]
    return elementwise(to.shape, memory_order(to.shape, strides), [read], [written], body, ["y"])


# ---------------------------------------------------------------------------------------------- direct kernels


def direct(direction: Direction, o: Operands) -> Launch:
    """The own kernel of one direction."""
    win, rank = o.window, o.window.rank
    lead = (1,) * (3 - rank)
    numbers: dict[str, int | str | float] = {
        "N": o.x.shape[0],
        "CHANNELS": o.x.shape[1],
        "FILTERS": o.w.shape[0],
        "GROUPS": win.groups,
        "FLIP": int(win.flip),
    }
    groups: dict[str, Sequence[int]] = {
        "": lead + o.x.shape[2:],
        "O": lead + o.y.shape[2:],
        "K": lead + o.w.shape[2:],
        "S": lead + win.stride,
        "P": (0,) * (3 - rank) + tuple(lo for lo, _ in win.padding),
        "J": lead + win.dilation,
    }
    for prefix, values in groups.items():
        numbers |= {f"{prefix}{axis}": value for axis, value in zip(_AXES, values, strict=True)}
    for prefix, spec, names in (("X", o.x, "NC"), ("W", o.w, "KC"), ("Y", o.y, "NK")):
        strides = spec.physical.strides
        own = (*strides[:2], *((0,) * (3 - rank)), *strides[2:])
        numbers |= {f"{prefix}_{axis}": s for axis, s in zip((*names, *_AXES), own, strict=True)}
    reach = max(spec.nbytes // spec.dtype.itemsize for spec in (o.x, o.w, o.y))
    kind = "i32" if reach < 2**31 - 2**26 else "i64"
    text = f"typedef {kind} Index;\ntypedef {c_type(o.x.dtype)} T;\n{constants(**numbers)}"
    count = prod(_sides(direction, o)[0].shape)
    threads = count * 256 if direction == "conv_filter_grad" else count
    x, w, y = _places(direction)
    arguments = {"conv": (x, w, y), "conv_data_grad": (y, w, x), "conv_filter_grad": (x, y, w)}[direction]
    grid = (blocks_for(threads, 256) * 4,)
    return Launch(Program(direction, "conv.cu", text), grid, (256,), arguments)
