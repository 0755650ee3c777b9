"""Each op of AlexNet's training step on a GPU: time, and fraction of the roofline.

    python benchmarks/cuda_ops.py [--batch 128 1024] [--dtype bfloat16] [--policy fastest] [--only conv] [--json FILE]

The limit of an op is the larger of its arithmetic over the matrix units' rate and its bytes (each input read once,
each output written once) over the memory's rate. Times are medians of runs captured in one CUDA graph, on random
data; for the relevant sizes all buffers together are larger than the cache.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from math import prod
from pathlib import Path
from statistics import median

from lamina.backends import Call, NoKernel, Plan
from lamina.backends.cuda import backend
from lamina.backends.cuda.select.autotune import contest
from lamina.cudnn.contest import Contest
from lamina.ops import primitives
from lamina.ops.core import Op
from lamina.runtime import Device, DeviceError, Event
from lamina.runtime import device as find
from lamina.spec import DType, Policy, Shape, Spec, as_dtype, bool_, channels_last, float32, int64, uint8

#: Convolutions of the 10-class, 1-channel AlexNet: input, filter, stride, padding.
CONVS = {
    "conv1": ((1, 224, 224), (96, 1, 11, 11), 4, 0),
    "conv2": ((96, 26, 26), (256, 96, 5, 5), 1, 2),
    "conv3": ((256, 12, 12), (384, 256, 3, 3), 1, 1),
    "conv4": ((384, 12, 12), (384, 384, 3, 3), 1, 1),
    "conv5": ((384, 12, 12), (256, 384, 3, 3), 1, 1),
}
POOLS = {"pool1": (96, 54, 54), "pool2": (256, 26, 26), "pool5": (256, 12, 12)}
LINEARS = {"fc1": (6400, 4096), "fc2": (4096, 4096), "fc3": (4096, 10)}


@dataclass(frozen=True)
class Case:
    """One op on operands of given specs, and its amount of arithmetic."""

    name: str
    op: Op
    specs: tuple[Spec, ...]
    flops: float = 0.0


@dataclass
class Result:
    """The measurements."""

    batch: int
    name: str
    milliseconds: float
    limit: float
    teraflops: float
    terabytes: float
    label: str

    @property
    def fraction(self) -> float:
        """Of the roofline: 1 is the hardware limit."""
        return self.limit / self.milliseconds


def last(shape: Shape, dtype: DType) -> Spec:
    return Spec(shape, dtype, channels_last(shape))


def cases(n: int, dtype: DType) -> Iterator[Case]:
    yield from convolutions(n, dtype)
    yield from pools(n, dtype)
    yield from linears(n, dtype)
    yield from rest(n, dtype)


def convolutions(n: int, dtype: DType) -> Iterator[Case]:
    for name, (image, w, stride, pad) in CONVS.items():
        win = primitives.Window((stride, stride), ((pad, pad), (pad, pad)), (1, 1))
        x = (n, *image)
        y = (n, w[0], *win.output(x[2:], w[2:]))
        flops = 2.0 * prod(y) * prod(w[1:])
        xs, ws, ys = last(x, dtype), last(w, dtype), last(y, dtype)
        bias = Spec((1, w[0], 1, 1), dtype)
        yield Case(f"{name} forward", primitives.Conv(win), (xs, ws), flops)
        fused = primitives.Fused((primitives.Conv(win), primitives.Add(), primitives.Relu()))
        yield Case(f"{name} forward+bias+relu", fused, (xs, ws, bias), flops)
        yield Case(f"{name} filter gradient", primitives.ConvFilterGrad(win, w[2:]), (xs, ys), flops)
        if name != "conv1":
            yield Case(f"{name} data gradient", primitives.ConvDataGrad(win, x[2:]), (ys, ws), flops)
        yield Case(f"{name} bias gradient", primitives.Reduce("sum", (0, 2, 3)), (ys,))
        yield Case(f"{name} relu gradient", primitives.ReluGrad(), (ys, ys))


def pools(n: int, dtype: DType) -> Iterator[Case]:
    win = primitives.Window((2, 2), ((0, 0), (0, 0)), (1, 1))
    for name, image in POOLS.items():
        x = last((n, *image), dtype)
        y = last((n, image[0], *win.output(image[1:], (3, 3))), dtype)
        yield Case(f"{name} forward", primitives.MaxPool((3, 3), win, True), (x,))
        gradient = primitives.MaxPoolGrad((3, 3), win, image[1:])
        yield Case(f"{name} gradient", gradient, (y, Spec(y.shape, uint8, y.layout)))
    features = last((n, 256, 5, 5), dtype)
    yield Case("features to rows", primitives.Reshape((n, 6400)), (features,))


def linears(n: int, dtype: DType) -> Iterator[Case]:
    for name, (inputs, outputs) in LINEARS.items():
        flops = 2.0 * n * inputs * outputs
        x, w, y = (Spec(s, dtype).fixed for s in ((n, inputs), (outputs, inputs), (n, outputs)))
        bias = Spec((outputs,), dtype)
        yield Case(f"{name} forward", primitives.Matmul(False, True), (x, w), flops)
        fused = primitives.Fused((primitives.Matmul(False, True), primitives.Add(), primitives.Relu()))
        yield Case(f"{name} forward+bias+relu", fused, (x, w, bias), flops)
        yield Case(f"{name} data gradient", primitives.Matmul(), (y, w), flops)
        yield Case(f"{name} weight gradient", primitives.Matmul(True), (y, x), flops)
        yield Case(f"{name} bias gradient", primitives.Reduce("sum", (0,)), (y,))
        master = Spec(w.shape, float32).fixed
        update = primitives.SgdUpdate(momentum=0.9)
        yield Case(f"{name} update", update, (master, w, master, Spec((), float32)))
        yield Case(f"{name} weight to {dtype.short}", primitives.Cast(dtype), (master,))


def rest(n: int, dtype: DType) -> Iterator[Case]:
    hidden, logits = Spec((n, 4096), dtype).fixed, Spec((n, 10), dtype).fixed
    state, labels = Spec((2,), int64).fixed, Spec((n,), int64).fixed
    yield Case("dropout", primitives.Dropout(0.5), (hidden, state))
    yield Case("dropout gradient", primitives.DropoutGrad(0.5), (hidden, Spec(hidden.shape, bool_).fixed))
    yield Case("loss", primitives.CrossEntropy(), (logits, labels))
    yield Case(
        "loss gradient", primitives.CrossEntropyGrad(), (logits, labels, Spec((n,), dtype.compute).fixed)
    )


def measure(case: Case, batch: int, where: Device, policy: Policy) -> Result:
    """Plan, run and time one case."""
    plan = backend(where).plan(case.op, case.specs, policy)
    if plan.view:
        plan = backend(where).reorder(case.specs[0], plan.inputs[0])
    operands = contest(where, plan.inputs, plan.outputs, 1.0)  # random operands
    scratch = where.allocate(plan.workspace)
    milliseconds = time(plan, operands, scratch.pointer, where)
    nbytes = sum(s.nbytes for s in (*plan.inputs, *plan.outputs))
    limit = where.machine.seconds(case.flops, nbytes, "bfloat16") * 1e3
    return Result(
        batch,
        case.name,
        milliseconds,
        limit,
        case.flops / milliseconds / 1e9,
        nbytes / milliseconds / 1e9,
        plan.label,
    )


def time(plan: Plan, operands: Contest, scratch: int, where: Device) -> float:
    """Milliseconds per run: the median of five launches of a graph of some runs."""
    with where.stream() as stream:
        inputs, outputs = (tuple(b.pointer for b in side) for side in (operands.inputs, operands.outputs))
        where.synchronize()
        run = plan.bind(Call(inputs, outputs, scratch, stream.handle))
        start, end = Event(timing=True), Event(timing=True)
        for _ in range(2):  # the first one loads modules
            stream.record(start)
            run()
            stream.record(end)
            once = start.elapsed(end)
        repeats = max(1, min(100, int(5.0 / max(once, 1e-3))))
        with stream.capture() as graph:
            for _ in range(repeats):
                run()
        graph.launch(stream)
        times = []
        for _ in range(5):
            stream.record(start)
            graph.launch(stream)
            stream.record(end)
            times.append(start.elapsed(end) / repeats)
        stream.synchronize()
        graph.close()
    return median(times)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--policy", default="fastest", choices=["fastest", "heuristic", "fallback"])
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--json", type=Path, help="write the figures here")
    options = parser.parse_args()
    where, dtype = find("cuda:0"), as_dtype(options.dtype)
    results = []
    print(f"{where.name}, {dtype}, {options.policy}; {where.machine}")
    for batch in options.batch:
        print(
            f"\nbatch {batch}\n{'op':34} {'ms':>9} {'limit':>9} {'of it':>6} {'TFLOP/s':>8} {'TB/s':>6}  plan"
        )
        for case in cases(batch, dtype):
            if options.only not in case.name:
                continue
            try:
                found = measure(case, batch, where, Policy(algorithm=options.policy))
            except (NoKernel, DeviceError) as error:
                print(f"{case.name:34} {str(error).splitlines()[0]}")
                continue
            results.append(found)
            print(
                f"{case.name:34} {found.milliseconds:9.4f} {found.limit:9.4f} {found.fraction:6.1%} "
                f"{found.teraflops:8.1f} {found.terabytes:6.2f}  {found.label}",
                flush=True,
            )
    if options.json:
        rows = [asdict(r) | {"fraction": r.fraction} for r in results]
        options.json.write_text(
            json.dumps({"device": where.name, "dtype": str(dtype), "results": rows}, indent=1)
        )


if __name__ == "__main__":
    main()
