"""Every formulation of convolutions and products on a GPU, side by side: the best time of each.

    python -m benchmarks.cuda_ways [--cases stem depthwise many_taps large alexnet transformer resnet] [--only TEXT]

Candidates (formulations x engines x knobs) run as under the policy "fastest": on random data, checked, timed in
turns. A line gives for each formulation its best candidate's milliseconds and its fraction of the roofline: the
larger of the arithmetic over the matrix units' rate and of the bytes over the memory's. Nothing is cached.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cuda_ops import last
from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE, Epilogue
from lamina.backends.cuda.cudnn_graphs.matmul import Product
from lamina.backends.cuda.matmul.matmul import matmul_problem
from lamina.backends.cuda.select import formulations
from lamina.backends.cuda.select.formulations import Candidate, Problem
from lamina.cudnn import handle_of
from lamina.ops.core import Op
from lamina.ops.primitives import Add, ClippedRelu, Conv, ConvDataGrad, ConvFilterGrad, GeluTanh, Relu, Window
from lamina.runtime import Device
from lamina.runtime import device as find
from lamina.spec import DType, Layout, Policy, Shape, Spec, as_dtype

_LETTERS = {"forward": Conv, "data": ConvDataGrad, "filter": ConvFilterGrad}
Cases = Iterator[tuple[str, Problem]]


@dataclass(frozen=True)
class Maker:
    """The device and dtype for which problems are made."""

    device: Device
    policy: Policy
    dtype: DType

    def conv(
        self,
        name: str,
        x: Shape,
        w: Shape,
        stride: int = 1,
        pad: int = 0,
        groups: int = 1,
        *,
        directions: str = "forward data filter",
        steps: tuple[Op, ...] = (),
    ) -> Cases:
        """A convolution in some directions; steps: epilogue of forward, with a bias."""
        window = Window((stride, stride), ((pad, pad), (pad, pad)), (1, 1), groups)
        y = (x[0], w[0], *window.output(x[2:], w[2:]))
        o = Operands(window, *(last(s, self.dtype) for s in (x, w, y)))
        for direction in directions.split():
            fused = steps and direction == "forward"
            epilogue = Epilogue(steps, (Spec((1, w[0], 1, 1), self.dtype),), 2) if fused else NONE
            title = f"{name} {direction}{'+' + steps[-1].name if fused else ''}"
            yield title, conv_problem(_LETTERS[direction], o, self.device, epilogue, self.policy)

    def matmul(
        self,
        name: str,
        m: int,
        n: int,
        k: int,
        batch: int = 1,
        transposed: str = "",
        steps: tuple[Op, ...] = (),
    ) -> Cases:
        """C [m, n]; transposed: which of "a" and "b" are stored transposed. steps: epilogue, with a bias first."""
        p = Product(batch, m, n, k, "a" in transposed, "b" in transposed)
        lead = (batch,) if batch > 1 else ()
        a, b, c = (
            Spec((*lead, *size), self.dtype, Layout(strides if lead else strides[1:]))
            for size, strides in (((m, k), p.a_strides), ((k, n), p.b_strides), ((m, n), p.c_strides))
        )
        epilogue = Epilogue(steps, (Spec((n,), self.dtype),), 2) if steps else NONE
        yield name, matmul_problem(p, a, b, c, epilogue, self.policy, self.device)


def stem(make: Maker) -> Cases:
    """First layers: AlexNet's with one channel, ResNet's, MobileNet's."""
    both = "forward filter"
    yield from make.conv(
        "alexnet stem", (1024, 1, 224, 224), (96, 1, 11, 11), 4, directions=both, steps=(Add(), Relu())
    )
    yield from make.conv("resnet stem", (128, 3, 224, 224), (64, 3, 7, 7), 2, 3, directions=both)
    yield from make.conv("mobilenet stem", (128, 3, 224, 224), (32, 3, 3, 3), 2, 1, directions=both)


def depthwise(make: Maker) -> Cases:
    """MobileNetV2's."""
    for size, channels, stride in (
        (112, 32, 1),
        (112, 96, 2),
        (56, 144, 1),
        (28, 192, 2),
        (14, 384, 1),
        (7, 960, 1),
    ):
        steps = (Add(), ClippedRelu(6.0)) if channels == 32 else ()
        name = f"depthwise {channels} of {size} by {stride}"
        shape = (128, channels, size, size)
        yield from make.conv(name, shape, (channels, 1, 3, 3), stride, 1, channels, steps=steps)
    yield from make.conv("32 groups", (128, 128, 56, 56), (128, 4, 3, 3), 1, 1, 32)


def many_taps(make: Maker) -> Cases:
    """Depthwise convolutions of EfficientNet and ConvNeXt."""
    for size, channels, taps, stride in (
        (7, 768, 7, 1),
        (28, 240, 5, 1),
        (56, 72, 5, 2),
        (7, 1152, 5, 1),
        (56, 96, 7, 1),
    ):
        name = f"depthwise {taps}x{taps} {channels} of {size} by {stride}"
        shape = (128, channels, size, size)
        yield from make.conv(name, shape, (channels, 1, taps, taps), stride, taps // 2, channels)


def resnet(make: Maker) -> Cases:
    """ResNet-50's convolutions, one of each kind."""
    for name, channels, filters, size, taps, stride in (
        ("1x1", 64, 256, 56, 1, 1),
        ("1x1", 256, 64, 56, 1, 1),
        ("3x3", 64, 64, 56, 3, 1),
        ("1x1/2", 256, 512, 56, 1, 2),
        ("3x3/2", 128, 128, 56, 3, 2),
        ("1x1", 1024, 256, 14, 1, 1),
        ("3x3", 512, 512, 7, 3, 1),
    ):
        shape = (128, channels, size, size)
        title = f"{name} {channels} to {filters} of {size}"
        yield from make.conv(title, shape, (filters, channels, taps, taps), stride, taps // 2)


def large(make: Maker) -> Cases:
    """7 x 7 filters over 128 channels: 1.29 TFLOP."""
    yield from make.conv("7x7 128 to 128 of 112", (64, 128, 112, 112), (128, 128, 7, 7), 1, 3)


def transformer(make: Maker) -> Cases:
    """An encoder of width 512 over 32 sequences of 512."""
    rows = 32 * 512
    yield from make.matmul("projection", rows, 512, 512, transposed="b")
    yield from make.matmul("projection data", rows, 512, 512)
    yield from make.matmul("projection weight", 512, 512, rows, transposed="a")
    yield from make.matmul(
        "feed forward+bias+gelu", rows, 2048, 512, transposed="b", steps=(Add(), GeluTanh())
    )
    yield from make.matmul("feed forward back+bias", rows, 512, 2048, transposed="b", steps=(Add(),))
    yield from make.matmul("scores, batched", 512, 512, 64, batch=256, transposed="b")


def alexnet(make: Maker) -> Cases:
    """AlexNet's linear layers and second convolution at batch 1024."""
    yield from make.matmul("fc1+bias+relu", 1024, 4096, 6400, transposed="b", steps=(Add(), Relu()))
    yield from make.matmul("fc1 data", 1024, 6400, 4096)
    yield from make.matmul("fc1 weight", 4096, 6400, 1024, transposed="a")
    yield from make.matmul("fc2 data", 1024, 4096, 4096)
    yield from make.matmul("fc2 weight", 4096, 4096, 1024, transposed="a")
    yield from make.conv("conv2", (1024, 96, 26, 26), (256, 96, 5, 5), 1, 2)


CASES: dict[str, Callable[[Maker], Cases]] = {
    f.__name__: f for f in (stem, depthwise, many_taps, large, alexnet, transformer, resnet)
}


def times(problem: Problem, make: Maker, refusals: list[str]) -> dict[str, tuple[float, str]]:
    """Formulation -> (milliseconds, label) of its best candidate; cuBLASLt's algorithms count as one formulation."""
    handle = handle_of(make.device)
    entries = formulations._entries(problem, handle, make.policy, refusals)
    grouped: dict[str, list[Candidate]] = {}
    for entry in entries:
        grouped.setdefault(entry.formulation.name.partition(":")[0], []).append(entry)
    found = {}
    for name, group in grouped.items():
        best = formulations._contest(problem, make.device, group, make.policy, refusals, [])
        if best is None:
            continue
        if problem.flops >= 1e12:
            more = formulations._neighbours(problem, best[0], handle, make.policy, refusals)
            best = (
                formulations._contest(problem, make.device, [best[0], *more], make.policy, refusals, [])
                or best
            )
        found[name] = (best[1], best[0].label)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--seconds", type=float, default=220.0, help="begin no case after this time")
    parser.add_argument("--refusals", action="store_true", help="print why candidates are out")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    make = Maker(find("cuda:0"), Policy(algorithm="fastest"), as_dtype(options.dtype))
    began, rows = time.perf_counter(), []
    for kind in options.cases:
        for name, problem in CASES[kind](make):
            if options.only not in name:
                continue
            if time.perf_counter() - began > options.seconds:
                print(f"{name}: left out, {options.seconds:.0f} seconds are over")
                continue
            refusals: list[str] = []
            found = times(problem, make, refusals)
            nbytes = sum(s.nbytes for s in (*problem.inputs, *problem.outputs))
            limit = make.device.machine.seconds(problem.flops, nbytes, "bfloat16") * 1e3
            print(f"{name}  limit {limit:.4f} ms  ({time.perf_counter() - began:.0f} s)", flush=True)
            for formulation, (milliseconds, label) in sorted(found.items(), key=lambda item: item[1]):
                print(
                    f"    {milliseconds:9.4f} ms {limit / milliseconds:6.1%}  {formulation:14} {label}",
                    flush=True,
                )
                rows.append(
                    {"case": name, "way": formulation, "ms": milliseconds, "limit": limit, "label": label}
                )
            wrong = [r for r in refusals if "wrong" in r or "Error" in r]
            for reason in refusals if options.refusals else wrong:
                print(f"    out: {reason[:160]}")
    if options.json:
        options.json.write_text(json.dumps({"device": make.device.name, "results": rows}, indent=1))


if __name__ == "__main__":
    main()
