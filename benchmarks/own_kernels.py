"""Lamina's memory-bound kernels at networks' shapes on a GPU: norms, sums, depthwise convolutions, copies, pools.

    python -m benchmarks.own_kernels [--only norm] [--out FOLDER]
    python -m benchmarks.own_kernels --against ../other-checkout         both, in turns, each in processes of its own

Times are medians of runs captured in one CUDA graph, on random data; the rate counts each operand and result once.
With `--against` a line gives both times, the smallest of each checkout's rounds, and their ratio: below 1 this one is
faster.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.common import versions, write
from benchmarks.cuda_ops import time
from lamina.backends import Plan
from lamina.backends.cuda import backend
from lamina.backends.cuda.conv.depthwise import depthwise_formulation
from lamina.backends.cuda.cudnn_graphs.conv import Operands, sides
from lamina.backends.cuda.launch.program import kernel_plan
from lamina.backends.cuda.norm import batch_persistent
from lamina.backends.cuda.norm.norm import activation
from lamina.backends.cuda.select.autotune import contest
from lamina.ops import primitives
from lamina.ops.core import Op
from lamina.runtime import Device
from lamina.runtime import device as find
from lamina.spec import Policy, Spec, bfloat16, channels_last, float32, uint8

#: Batch, channels, height and width of batch norms' inputs: ResNet-50, DenseNet-121, EfficientNet-B0.
NORMS = (
    (128, 64, 112, 112),
    (128, 256, 56, 56),
    (128, 512, 28, 28),
    (128, 1024, 14, 14),
    (128, 2048, 7, 7),
    (64, 128, 56, 56),
    (64, 352, 28, 28),
    (64, 992, 14, 14),
    (64, 736, 7, 7),
    (128, 96, 112, 112),
    (128, 40, 28, 28),
    (128, 1152, 7, 7),
)
#: Batch, channels, height or width and stride of depthwise convolutions of 3 by 3.
DEPTHWISE = (
    (128, 32, 112, 1),
    (128, 96, 112, 2),
    (128, 144, 56, 1),
    (128, 240, 28, 2),
    (128, 480, 14, 1),
    (128, 1152, 7, 1),
)
ROUNDS = 3


def image(*shape: int) -> Spec:
    return Spec(shape, bfloat16, channels_last(shape))


def cases(device: Device) -> Iterator[tuple[str, Plan]]:
    """Names, and plans for a device."""
    for family in (batch_norms, rows, sums, depthwise, copies, pools):
        yield from family(device)


def planned(device: Device, op: Op, *specs: Spec) -> Plan:
    return backend(device).plan(op, specs, Policy(algorithm="heuristic"))


def batch_norms(device: Device) -> Iterator[tuple[str, Plan]]:
    """In one launch; for x larger than the cache, also in passes."""
    for shape in NORMS:
        x, channel = image(*shape), Spec((shape[1],), float32).fixed
        for residual in (False, True):
            norm = primitives.BatchNorm(1e-5, 0.1, True, residual)
            grad = primitives.BatchNormGrad(True, residual)
            name = f"{'x'.join(map(str, shape))}{' + residual' * residual}"
            forward = (x, *(channel,) * 4, *(x,) * residual)
            backward = (x, x, *(channel,) * 3, x if residual else channel)
            for what, op, specs, make in (
                ("norm", norm, forward, batch_persistent.forward),
                ("norm gradient", grad, backward, batch_persistent.backward),
            ):
                found = make(op, x, activation(op), (), 0, device.machine)
                assert found is not None
                made = [x if s.shape == x.shape else s.fixed for s in op.infer(*specs)]
                steps, label = found.steps, found.name
                plan = kernel_plan(device, specs, made, steps, label=label, workspace=found.scratch)
                yield f"{what} at once, {name}", plan
                if x.nbytes > device.machine.l2_bytes * 2:
                    yield f"{what} in passes, {name}", planned(device, op, *specs)


def rows(device: Device) -> Iterator[tuple[str, Plan]]:
    for count, columns in ((8192, 768), (200704, 96), (50176, 192), (3136, 768), (4096, 4096)):
        x, scale = Spec((count, columns), bfloat16).fixed, Spec((columns,), float32).fixed
        number = Spec((count,), float32).fixed
        yield (
            f"layer norm, {count}x{columns}",
            planned(device, primitives.LayerNorm(1, 1e-5), x, scale, scale),
        )
        grad = planned(device, primitives.LayerNormGrad(1), x, x, scale, number, number)
        yield f"layer norm gradient, {count}x{columns}", grad


def sums(device: Device) -> Iterator[tuple[str, Plan]]:
    for shape in (
        (128, 32, 112, 112),
        (128, 144, 56, 56),
        (128, 672, 14, 14),
        (128, 1152, 7, 7),
        (64, 1024, 7, 7),
    ):
        name = "x".join(map(str, shape))
        yield (
            f"mean of each image's channels, {name}",
            planned(device, primitives.Reduce("mean", (2, 3)), image(*shape)),
        )
        yield (
            f"sum of each channel, {name}",
            planned(device, primitives.Reduce("sum", (0, 2, 3)), image(*shape)),
        )
    for count, columns in ((8192, 768), (8192, 3072), (200704, 96), (256, 50257)):
        x = Spec((count, columns), bfloat16).fixed
        yield f"sums of columns, {count}x{columns}", planned(device, primitives.Reduce("sum", (0,)), x)
        yield f"sums of rows, {count}x{columns}", planned(device, primitives.Reduce("sum", (1,)), x)


def depthwise(device: Device) -> Iterator[tuple[str, Plan]]:
    for n, channels, size, stride in DEPTHWISE:
        win = primitives.Window((stride, stride), ((1, 1), (1, 1)), (1, 1), channels)
        x, y = image(n, channels, size, size), image(n, channels, size // stride, size // stride)
        o = Operands(win, x, Spec((channels, 1, 3, 3), bfloat16).fixed, y)
        for direction in (primitives.Conv, primitives.ConvDataGrad, primitives.ConvFilterGrad):
            result, given = sides(direction, o)
            found = depthwise_formulation(direction, o, None, device.machine)
            plan = kernel_plan(
                device, given, [result], found.steps, label=found.name, workspace=found.scratch
            )
            yield f"depthwise {direction.name}, {n}x{channels}x{size}x{size} by {stride}", plan


def copies(device: Device) -> Iterator[tuple[str, Plan]]:
    for shape in ((128, 64, 56, 56), (128, 256, 14, 14), (64, 96, 112, 112)):
        plain, last = Spec(shape, bfloat16).fixed, image(*shape)
        name = "x".join(map(str, shape))
        yield f"to channels last, {name}", backend(device).reorder(plain, last)
        yield f"from channels last, {name}", backend(device).reorder(last, plain)


def pools(device: Device) -> Iterator[tuple[str, Plan]]:
    for shape, kernel, pad in (((128, 64, 112, 112), 3, 1), ((16, 128, 128, 128), 2, 0)):
        win = primitives.Window((2, 2), ((pad, pad), (pad, pad)), (1, 1))
        x = image(*shape)
        forward = planned(device, primitives.MaxPool((kernel, kernel), win, True), x)
        y = forward.outputs[0]
        index = Spec(y.shape, uint8, y.layout)
        grad = primitives.MaxPoolGrad((kernel, kernel), win, shape[2:])
        name = f"{'x'.join(map(str, shape))} by {kernel}"
        yield f"max pool, {name}", forward
        yield f"max pool gradient, {name}", planned(device, grad, y, index)
    win = primitives.Window((2, 2), ((0, 0), (0, 0)), (1, 1))
    x = image(64, 128, 56, 56)
    yield "average pool, 64x128x56x56", planned(device, primitives.AvgPool((2, 2), win), x)


def measured(only: str) -> dict[str, dict[str, float]]:
    """Each case on the GPU."""
    where, found = find("cuda:0"), {}
    for name, plan in cases(where):
        if only not in name:
            continue
        operands, scratch = contest(where, plan.inputs, plan.outputs, 1.0), where.allocate(plan.workspace)
        ms = time(plan, operands, scratch.pointer, where)
        nbytes = sum(s.nbytes for s in (*plan.inputs, *plan.outputs))
        found[name] = {"ms": ms, "terabytes_per_s": nbytes / ms / 1e9}
    return found


def apart(checkout: Path, only: str) -> dict[str, dict[str, float]]:
    """Each case with the package of a checkout, in a process of its own."""
    here = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join((str(checkout / "src"), str(here)))}
    command = [sys.executable, "-m", "benchmarks.own_kernels", "--here", "--only", only]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"{checkout}: {done.stderr}")
    result: dict[str, dict[str, float]] = json.loads(done.stdout.splitlines()[-1])
    return result


def compared(other: Path, only: str) -> dict[str, dict[str, float]]:
    """The best of some rounds of both checkouts, run alternately."""
    here, found = Path(__file__).parents[1], dict[str, dict[str, float]]()
    for _ in range(ROUNDS):
        for side, checkout in (("other_ms", other), ("ms", here)):
            for name, one in apart(checkout, only).items():
                row = found.setdefault(name, {})
                row[side] = min(one["ms"], row.get(side, one["ms"]))
    for row in found.values():
        row["ratio"] = row["ms"] / row["other_ms"]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="only cases whose name contains this")
    parser.add_argument("--against", type=Path, help="another checkout")
    parser.add_argument("--here", action="store_true", help="in this process, the result as JSON")
    parser.add_argument("--out", type=Path, help="folder for a result file")
    options = parser.parse_args(arguments)
    if options.here:
        print(json.dumps(measured(options.only)))
        return 0
    found = compared(options.against, options.only) if options.against else measured(options.only)
    for name, row in found.items():
        print(f"{name:64} " + "  ".join(f"{key} {value:8.4f}" for key, value in row.items()))
    if options.out:
        head = {"device": find("cuda:0").name, "versions": versions(["lamina", "cuda-core"])}
        write("own_kernels", head | {"results": found}, options.out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
