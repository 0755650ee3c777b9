"""8-bit convolutions and products: cuDNN graphs with the scale and an epilogue, or an own kernel.

Hopper's tensor cores take int8 (sums in int32) and float8 (sums in float32), channels last. A product
is a convolution of images of one pixel. The own kernel takes any address.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache

from lamina.backends import Plan
from lamina.backends.cuda.conv.direct import direct
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.cudnn_graphs.epilogue import Epilogue, split
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.launch.program import Fill, Launch, Place, Program, kernel_plan, source, target
from lamina.backends.cuda.registry import kernels
from lamina.backends.cuda.select.formulations import Formulation, Problem, choose, nothing_to_do
from lamina.cudnn import Graph
from lamina.ops.core import Op
from lamina.ops.primitives.conv import Conv
from lamina.ops.primitives.pointwise import Div
from lamina.ops.primitives.quantize import Quantize, QuantizedConv, QuantizedMatmul
from lamina.ops.primitives.window import Window
from lamina.runtime import Device
from lamina.spec import Layout, Policy, Shape, Spec, channels_last, float32, int8

QuantizedOp = QuantizedConv | QuantizedMatmul
_POINT = Window((1, 1), ((0, 0), (0, 0)), (1, 1))


@kernels(QuantizedConv, QuantizedMatmul, source="cudnn")
def eight_bits(op: QuantizedOp, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """y from x, the weights and the scale."""
    return eights_plan(op, specs, (), device)


def eights_plan(op: QuantizedOp, specs: Sequence[Spec], steps: Sequence[Op], device: Device) -> Plan:
    """y, with an epilogue. Engines are chosen by cuDNN's heuristics."""
    return _cached(op, tuple(s.open for s in specs), tuple(steps), device)


@lru_cache(maxsize=1024)
def _cached(op: QuantizedOp, specs: tuple[Spec, ...], steps: tuple[Op, ...], device: Device) -> Plan:
    (out,) = op.infer(*specs[:3])
    if steps and isinstance(steps[-1], Quantize):
        out = Spec(out.shape, steps[-1].dtype)
        steps = (*steps[:-1], Div())  # cuDNN rounds and saturates when it writes
    epilogue = split(steps, specs, 3)
    x, w, y = (full(s, channels_last(s.shape)) for s in (*specs[:2], out))
    problem = eights_problem(op, x, w, y, epilogue)
    if y.numel == 0:
        return nothing_to_do(problem.inputs, problem.outputs, device, op.name)
    if 0 in (x.numel, w.numel) and not epilogue.steps:
        return kernel_plan(
            device, problem.inputs, problem.outputs, [Fill(target(), 0, y.nbytes)], label=op.name
        )
    return choose(problem, device, Policy())


def eights_problem(op: QuantizedOp, x: Spec, w: Spec, y: Spec, epilogue: Epilogue) -> Problem:
    """cuDNN's graph, then the own kernel if there is no epilogue."""
    window = op.window if isinstance(op, QuantizedConv) else _POINT
    o = Operands(_planar(window), *(_image(s) for s in (x, w, y)))
    steps = "".join(f" > {step}" for step in epilogue.steps)
    plain = () if epilogue.steps else (_direct(o),)
    extras = epilogue.arranged(y.shape, y.physical)
    graph = Formulation("plain", lambda: _graph(o, y, epilogue))
    return Problem(
        key=f"{op} x={x} w={w} y={y}{steps} {', '.join(map(str, extras))}".strip(),
        label=op.name + ("+" + "+".join(s.name for s in epilogue.steps) if epilogue.steps else ""),
        inputs=(x, w, Spec((w.shape[0],), float32).fixed, *extras),
        outputs=(y,),
        formulations=(graph, *((Formulation("direct", steps=plain),) if plain else ())),
        flops=o.flops,
        plain=plain,
    )


def _planar(window: Window) -> Window:
    """A window over one axis as one over two."""
    if window.rank != 1:
        return window
    return replace(
        window,
        stride=(1, *window.stride),
        padding=((0, 0), *window.padding),
        dilation=(1, *window.dilation),
    )


def _image(spec: Spec) -> Spec:
    """A matrix or a line of pixels as an image in the same memory."""
    shape, strides = _axes(spec.shape, spec.physical.strides)
    return Spec(shape, spec.dtype, Layout(strides))


def _axes(shape: Shape, strides: Shape) -> tuple[Shape, Shape]:
    """[M, K] as [M, K, 1, 1] and [N, C, W] as [N, C, 1, W], with the strides of a dense tensor, channels last."""
    if len(shape) == 2:
        row = max(1, shape[1] * strides[1])
        return (*shape, 1, 1), (*strides, row, row)
    if len(shape) == 3:
        return (*shape[:2], 1, shape[2]), (*strides[:2], shape[2] * strides[2], strides[2])
    return shape, strides


def _graph(o: Operands, result: Spec, epilogue: Epilogue) -> tuple[Graph, Mapping[int, Place]]:
    """Convolution, scale, epilogue. result: the op's y."""
    sums = "int32" if o.x.dtype == int8 else "float32"
    graph = Graph("float32")
    x, w = (graph.tensor(s.shape, s.physical.strides, s.dtype.name) for s in (o.x, o.w))
    y = graph.tensor(o.y.shape, o.y.physical.strides, sums, virtual=True)
    out = graph.tensor(o.y.shape, o.y.physical.strides, o.y.dtype.name)
    scale = graph.packed((1, o.y.shape[1], *(1,) * o.window.rank), "float32", channels_last=True)
    win = o.window
    graph.compute = sums
    graph.conv(
        x,
        w,
        y,
        stride=win.stride,
        pre=tuple(lo for lo, _ in win.padding),
        post=tuple(hi for _, hi in win.padding),
        dilation=win.dilation,
        flip=win.flip,
    )
    graph.compute = "float32"
    value = graph.pointwise("mul", y, scale, None if epilogue.steps else out)
    places = {x.uid: source(0), w.uid: source(1), scale.uid: source(2), out.uid: target()}
    if epilogue.steps:
        places |= epilogue.attach(graph, value, out, result.shape, result.physical, _axes)
    return graph, places


def _direct(o: Operands) -> Launch:
    """The own kernel."""
    launch = direct(Conv, o)
    sums = "i32" if o.x.dtype == int8 else "f32"
    program = Program("quantized_conv", launch.program.file, f"#define SUM {sums}\n{launch.program.text}")
    return replace(launch, program=program, arguments=(source(0), source(1), source(2), target()))
