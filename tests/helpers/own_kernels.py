"""Lamina's kernels on their own, each operand in an allocation of its own, for compute-sanitizer.

    compute-sanitizer --tool memcheck --report-api-errors no python -m tests.helpers.own_kernels [KIND …]
    compute-sanitizer --tool racecheck python -m tests.helpers.own_kernels [KIND …]
    python -m tests.helpers.own_kernels --emulated [KIND …]

No library's kernel runs, so all findings are Lamina's (API errors are not: the driver is queried for one
parameter more than a kernel has). Shapes leave tiles, warps and blocks partly filled.
Prints a line for each case, and ends with status 1 if a result is not finite. Emulated on a CPU, operands are between
guard pages, once right after the first and once right before the last; all kinds take ten minutes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from lamina.backends import Call, Plan
from lamina.backends.cuda import backend
from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.conv.direct import direct
from lamina.backends.cuda.conv.fast_fir import fast_fir_formulation
from lamina.backends.cuda.cudnn_graphs.conv import Operands, sides
from lamina.backends.cuda.launch.program import Bindable, Launches, kernel_plan, source, target
from lamina.backends.cuda.norm import batch_persistent, conv_batch_norm
from lamina.backends.cuda.norm.batch_norm_max_pool_fusion import NormPool, PoolNormGrad
from lamina.backends.cuda.norm.conv_batch_norm_fusion import ConvNorm, DataGradNorm
from lamina.backends.cuda.norm.norm import activation
from lamina.ops.core import Op
from lamina.ops.primitives import (
    Add,
    BatchNorm,
    BatchNormGrad,
    Conv,
    ConvDataGrad,
    Fused,
    MaxPool,
    MaxPoolGrad,
    ReluGrad,
    Window,
)
from lamina.ops.primitives.conv import ConvFilterGrad
from lamina.runtime import _cuda, copy, device, from_host, to_host
from lamina.runtime.memory import Buffer
from lamina.spec import (
    DType,
    Policy,
    Shape,
    Spec,
    bfloat16,
    channels_last,
    contiguous,
    float16,
    float32,
    uint8,
)
from tests.helpers.emulator import Fenced, run_steps
from tests.helpers.planned import H200

#: The present GPU, or one to plan for.
DEVICE = device() if device().kind == "cuda" else H200
CUDA = backend(DEVICE)
POINT = Window((1, 1), ((0, 0), (0, 0)), (1, 1))


@dataclass(frozen=True)
class Case:
    """Steps on operands."""

    name: str
    steps: Sequence[Bindable]
    inputs: Sequence[Spec]
    outputs: Sequence[Spec]
    workspace: int


def last(shape: Shape, dtype: DType = bfloat16) -> Spec:
    return Spec(shape, dtype, channels_last(shape))


def by_definition(o: Operands) -> Plan:
    """A convolution by Lamina's kernels only."""
    return kernel_plan(DEVICE, [o.x, o.w], [o.y], [direct(Conv, o)], label="direct")


def numbers(channels: int, count: int) -> list[Spec]:
    """One number per channel, so many times."""
    return [Spec((channels,), float32).fixed] * count


def planned(name: str, op: Op, specs: Sequence[Spec]) -> Case:
    return of_plan(f"{name} {specs[0]}", CUDA.plan(op, specs, Policy()))


def of_plan(name: str, plan: Plan) -> Case:
    assert isinstance(plan.make, Launches)
    return Case(f"{plan.label} {name}", plan.make.steps, plan.inputs, plan.outputs, plan.workspace)


# --------------------------------------------------------------------------------------------------------- cases


def points() -> Iterator[Case]:
    """1x1 convolutions with sums: blocks of two and of four teams, one to four stages, partial tiles."""
    shapes: list[tuple[Shape, int, DType]] = [
        ((3, 64, 13, 11), 512, bfloat16),
        ((3, 256, 9, 13), 64, float16),
        ((2, 256, 23, 17), 1024, bfloat16),
        ((5, 128, 12, 11), 256, bfloat16),
        ((3, 512, 7, 9), 640, float16),
    ]
    for given, channels, dtype in shapes:
        x, y = last(given, dtype), last((given[0], channels, *given[2:]), dtype)
        signs = Spec((given[0], *given[2:], channels // 8), uint8).fixed
        w, turned = (
            Spec((*pair, 1, 1), dtype).fixed for pair in ((channels, given[1]), (given[1], channels))
        )
        for residual in (False, True):
            norm = ConvNorm(Conv(POINT), BatchNorm(1e-3, 0.1, residual, residual), bits=residual)
            inputs = [x, w, *numbers(channels, 4), *[y] * residual]
            places = [target(5), *(source(i) for i in range(2, len(inputs)))]
            (formulation,) = conv_batch_norm.own_formulation(
                norm, Operands(POINT, x, w, y), places, DEVICE.machine
            )
            outputs = [y, *numbers(channels, 4), y, *[signs] * residual]
            yield Case(f"{norm} {x}", formulation.steps, inputs, outputs, formulation.scratch)
        head, join = ConvDataGrad(POINT, given[2:]), (Add(), ReluGrad())
        for steps, relu, bits in ((join, False, True), (join, True, False), ((), True, False)):
            grad = DataGradNorm(Fused((head, *steps)) if steps else head, BatchNormGrad(relu=relu), bits)
            between = [y, signs if bits else y] if steps else []
            inputs = [x, turned, *between, y, *numbers(channels, 3 + relu)]
            sources = [source(i) for i in range(len(inputs))]
            (formulation,) = conv_batch_norm.own_gradient_formulation(
                grad, Operands(POINT, y, turned, x), sources, 2 + len(between), DEVICE.machine
            )
            yield Case(
                f"{grad} {x}", formulation.steps, inputs, [y, *numbers(channels, 2), y], formulation.scratch
            )


def persistent_norms() -> Iterator[Case]:
    """Batch norm in one launch: everything resident, a part of it, idle threads."""
    shapes = [
        last((64, 256, 14, 14)),
        last((3, 2048, 7, 7)),
        last((64, 144, 7, 7), float16),
        last((8, 64, 56, 56), float32),
        last((128, 512, 7, 7)),
    ]
    for x in shapes:
        channels = x.shape[1]
        for relu, residual in ((False, False), (True, False), (True, True)):
            norm, grad = BatchNorm(1e-5, 0.1, relu, residual), BatchNormGrad(relu, residual)
            forward = batch_persistent.forward(norm, x, activation(norm), (), 0, DEVICE.machine)
            backward = batch_persistent.backward(grad, x, activation(grad), (), 0, DEVICE.machine)
            assert forward is not None
            assert backward is not None
            more = [x] * residual
            inputs = [x, *numbers(channels, 4), *more]
            yield Case(f"one launch {norm} {x}", forward.steps, inputs, inputs[:5], forward.scratch)
            inputs = [x, x, *numbers(channels, 3), *(more or numbers(channels, 1) * relu)]
            outputs = [x, *numbers(channels, 2), *more]
            yield Case(f"one launch {grad} {x}", backward.steps, inputs, outputs, backward.scratch)


def norms() -> Iterator[Case]:
    """Batch norm in three launches."""
    for shape in ((8, 1024, 7, 9), (5, 40, 11, 13), (64, 256, 14, 14)):
        for arrange in (channels_last, contiguous):
            x, some = Spec(shape, bfloat16, arrange(shape)), numbers(shape[1], 4)
            yield planned("three launches", BatchNorm(1e-5, 0.1, True, True), [x, *some, x])
            yield planned("three launches", BatchNormGrad(True), [x, x, *some])
            yield planned("three launches", BatchNormGrad(True, True), [x, x, *some[:3], x])


def pools() -> Iterator[Case]:
    """Norm and pooling in one, forward and backward."""
    stem = Window((2, 2), ((1, 1), (1, 1)), (1, 1))
    shapes: list[tuple[Shape, Window, Shape]] = [
        ((3, 3), stem, (4, 64, 56, 56)),
        ((3, 3), stem, (3, 40, 33, 47)),
        ((2, 2), Window((2, 2), ((0, 0), (0, 0)), (1, 1)), (16, 256, 14, 15)),
        ((2, 5), Window((1, 2), ((1, 0), (2, 2)), (1, 1)), (2, 24, 19, 28)),
    ]
    for kernel, window, shape in shapes:
        x, some = last(shape), numbers(shape[1], 4)
        pooled = (*shape[:2], *window.output(shape[2:], kernel))
        forward = NormPool(BatchNorm(1e-5, 0.1, True), MaxPool(kernel, window, True))
        backward = PoolNormGrad(MaxPoolGrad(kernel, window, shape[2:]), BatchNormGrad(True))
        yield planned("", forward, [x, *some])
        yield planned("", backward, [last(pooled), last(pooled, uint8), x, *some])


def small_channels() -> Iterator[Case]:
    """First convolutions and their filters' gradients."""
    shapes: list[tuple[Shape, Shape, int, int]] = [
        ((3, 1, 224, 224), (96, 1, 11, 11), 4, 0),
        ((4, 3, 64, 64), (64, 3, 7, 7), 2, 3),
        ((2, 3, 97, 111), (32, 3, 3, 3), 2, 1),
    ]
    for x, w, stride, pad in shapes:
        window = Window((stride, stride), ((pad, pad), (pad, pad)), (1, 1))
        y = (x[0], w[0], *window.output(x[2:], w[2:]))
        for direction in (Conv, ConvFilterGrad):
            problem = conv_problem(direction, Operands(window, last(x), last(w), last(y)), DEVICE)
            for formulation in problem.formulations:
                if formulation.name.startswith("stem"):
                    yield Case(
                        f"{formulation.name} {problem.key}",
                        formulation.steps,
                        problem.inputs,
                        problem.outputs,
                        formulation.scratch,
                    )


def halves() -> Iterator[Case]:
    """The kernels around the parts of a convolution in halves; the parts by direct kernels."""

    shapes: list[tuple[Shape, Shape, tuple[int, int]]] = [
        ((2, 8, 30, 21), (16, 8, 7, 7), (3, 3)),
        ((1, 40, 33, 17), (24, 40, 5, 3), (2, 1)),
        ((3, 16, 18, 40), (8, 16, 6, 2), (1, 3)),
    ]
    for x, w, pad in shapes:
        window = Window((1, 1), (pad, (1, 1)), (1, 1))
        o = Operands(window, last(x), last(w), last((x[0], w[0], *window.output(x[2:], w[2:]))))
        for direction in (Conv, ConvDataGrad):
            result, given = sides(direction, o)
            formulation = fast_fir_formulation(direction, o, by_definition)
            yield Case(
                f"{direction.name} in halves {o.x}", formulation.steps, given, [result], formulation.scratch
            )


def reorders() -> Iterator[Case]:
    """From row-major to channels-last and back."""
    for dtype, shape in ((bfloat16, (2, 3, 48, 64)), (float32, (3, 64, 33, 31)), (bfloat16, (2, 3, 5, 7))):
        first, behind = Spec(shape, dtype).fixed, last(shape, dtype)
        yield of_plan(f"{first} as {behind}", CUDA.reorder(first, behind))
        yield of_plan(f"{behind} as {first}", CUDA.reorder(behind, first))


KINDS: dict[str, Callable[[], Iterator[Case]]] = {
    "points": points,
    "residents": persistent_norms,
    "norms": norms,
    "pools": pools,
    "stems": small_channels,
    "halves": halves,
    "reorders": reorders,
}


# ------------------------------------------------------------------------------------------------------- running


def drawn(spec: Spec, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """An operand's values: positions in a window, numbers above a half for channels, else normal ones."""
    if spec.dtype == uint8:
        return rng.integers(0, 9, spec.nbytes, np.uint8)
    values = rng.standard_normal(spec.numel, np.float32)
    return (np.abs(values) + 0.5 if spec.ndim == 1 else values).astype(spec.dtype.numpy)


def allocated(nbytes: int) -> Buffer:
    """Memory that is not adjacent to another operand's."""
    return Buffer.borrow(int(_cuda.call("cuMemAlloc", max(nbytes, 1))), nbytes, DEVICE)


def run(case: Case) -> list[int]:
    """Run a case; the numbers of outputs that are not finite."""
    rng, stream = np.random.default_rng(0), DEVICE.default_stream
    with DEVICE.current():
        inputs, outputs = ([allocated(s.nbytes) for s in specs] for specs in (case.inputs, case.outputs))
        workspace = allocated(case.workspace)
        for buffer, spec in zip(inputs, case.inputs, strict=True):
            copy(buffer, from_host(drawn(spec, rng).view(np.uint8), DEVICE))
        given, made = (tuple(b.pointer for b in buffers) for buffers in (inputs, outputs))
        call = Call(given, made, workspace.pointer, stream.handle)
        for step in case.steps:
            step.bind(DEVICE, call)()
        DEVICE.synchronize()
        bad = not_finite([to_host(b) for b in outputs], case.outputs)
        for buffer in (*inputs, *outputs, workspace):
            _cuda.call("cuMemFree", buffer.pointer)
    return bad


def run_emulated(case: Case) -> list[int]:
    """The same on a CPU; an access outside of the operands ends the process."""
    bad: list[int] = []
    for behind in (True, False):
        rng, place = np.random.default_rng(0), partial(Fenced, behind=behind)
        inputs, outputs = ([place(s.nbytes) for s in specs] for specs in (case.inputs, case.outputs))
        workspace = place(case.workspace)
        for memory, spec in zip(inputs, case.inputs, strict=True):
            memory.bytes[:] = drawn(spec, rng).view(np.uint8)
        given, made = (tuple(m.pointer for m in memories) for memories in (inputs, outputs))
        run_steps(case.steps, Call(given, made, workspace.pointer))
        bad += not_finite([m.bytes for m in outputs], case.outputs)
    return bad


def not_finite(results: Sequence[np.ndarray[Any, Any]], specs: Sequence[Spec]) -> list[int]:
    """The results, given as bytes, that are not finite."""
    values = [y.view(s.dtype.numpy).astype(np.float32) for y, s in zip(results, specs, strict=True)]
    return [i for i, y in enumerate(values) if not np.isfinite(y).all()]


def main(arguments: list[str]) -> int:
    """Run the cases of some kinds, or all."""
    bad = 0
    kinds = [kind for kind in arguments if kind != "--emulated"]
    for kind in kinds or KINDS:
        for case in KINDS[kind]():
            wrong = run_emulated(case) if "--emulated" in arguments else run(case)
            bad += bool(wrong)
            print(f"{case.name}: {f'outputs {wrong} are not finite' if wrong else 'done'}", flush=True)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
