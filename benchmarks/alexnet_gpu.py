"""AlexNet on an NVIDIA GPU: one training step, Lamina against PyTorch, in one process and one run.

Times are medians over many steps, by CUDA events around each step. Inputs are random and lie on the device.
PyTorch runs eagerly, channels-last, with fused SGD, in two forms: automatic mixed precision (float32 master weights,
as Lamina keeps them) and everything in bfloat16; the faster one counts. `--compile` adds torch.compile, `--jax` JAX.

    python -m benchmarks.alexnet_gpu [--batch 128 1024] [--json] [--out FOLDER]
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import lamina as lm
from benchmarks.alexnet_torch import Trainer
from benchmarks.common import versions, write
from lamina import nn, optim
from lamina.graph import profile

#: Multiply-adds of one image's forward pass, times two: convolutions and linear layers.
FORWARD_FLOPS = 2 * sum(
    (
        54 * 54 * 96 * 121,
        26 * 26 * 256 * 96 * 25,
        12 * 12 * 384 * 256 * 9,
        12 * 12 * 384 * 384 * 9,
        12 * 12 * 256 * 384 * 9,
        6400 * 4096 + 4096 * 4096 + 4096 * 10,
    )
)


def _event_times(run: Callable[[], Any], stream: Any, repeats: int) -> list[float]:
    """Milliseconds of each call, by events on the stream that the calls use."""
    with torch.cuda.stream(stream):
        marks = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
        marks[0].record(stream)
        for mark in marks[1:]:
            run()
            mark.record(stream)
    torch.cuda.synchronize()
    return [a.elapsed_time(b) for a, b in itertools.pairwise(marks)]


def _lamina(batch: int, repeats: int, precision: str) -> tuple[list[float], Any]:
    net = nn.AlexNet(in_channels=1, classes=10)
    sgd = optim.SGD(lr=0.01, momentum=0.9)
    with lm.policy(algorithm="fastest"):
        step = lm.train_step(net, lm.ops.cross_entropy, sgd, device="cuda:0", precision=precision)
        x = lm.from_dlpack(torch.randn(batch, 1, 224, 224, device="cuda"))
        labels = lm.from_dlpack(torch.randint(0, 10, (batch,), device="cuda"))
        for _ in range(5):
            step(x, labels)
    stream = torch.cuda.ExternalStream(lm.device("cuda:0").default_stream.handle)
    return _event_times(lambda: step(x, labels), stream, repeats), step


def _torch(batch: int, repeats: int, *, amp: bool, compiled: bool = False) -> list[float]:
    trainer = Trainer(
        "cuda",
        channels_last=True,
        dtype=torch.float32 if amp else torch.bfloat16,
        autocast=torch.bfloat16 if amp else None,
    )
    torch.backends.cudnn.benchmark = True
    x, labels = trainer.inputs(batch)
    if compiled:
        trainer.net.compile(mode="max-autotune-no-cudagraphs")
    for _ in range(10):
        trainer.step(x, labels)
    torch.cuda.synchronize()
    return _event_times(lambda: trainer.step(x, labels), torch.cuda.current_stream(), repeats)


def _case(batch: int, options: argparse.Namespace) -> dict[str, Any]:
    times: dict[str, list[float]] = {}
    times["torch eager amp"] = _torch(batch, options.repeats, amp=True)
    times["torch eager bf16"] = _torch(batch, options.repeats, amp=False)
    if options.compile:
        times["torch compile amp"] = _torch(batch, options.repeats, amp=True, compiled=True)
    torch.cuda.empty_cache()
    times["lamina bf16"], step = _lamina(batch, options.repeats, "bf16")
    medians = {k: statistics.median(v) for k, v in times.items()}
    eager = min(v for k, v in medians.items() if k.startswith("torch eager"))
    tflops = 3 * FORWARD_FLOPS * batch / (medians["lamina bf16"] * 1e-3) / 1e12
    for name, value in medians.items():
        print(f"batch {batch:5d}  {name:20s} {value:8.3f} ms  {value / eager:5.2f} of torch eager")
    executable = step.executable
    print(f"batch {batch:5d}  one CUDA graph: {executable.is_captured}; {tflops:.0f} TFLOP/s")
    if options.report:
        print(profile(executable).text())
    return {
        "batch": batch,
        "median_ms": medians,
        "ratio_to_torch_eager": medians["lamina bf16"] / eager,
        "tflops": tflops,
        "fraction_of_790_tflops": tflops / 790,
        "captured": executable.is_captured,
        "planned_bytes": executable.peak_bytes,
        "unplanned_bytes": executable.unplanned_bytes,
    }


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[128, 1024])
    parser.add_argument("--repeats", type=int, default=30)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--report", action="store_true", help="print the kernels")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--out", type=Path, default=None, help="folder for the result file")
    options = parser.parse_args()
    cases = [_case(batch, options) for batch in options.batch]
    if options.json:
        record = {
            "what": "AlexNet 1x224x224 training step, bf16, SGD momentum; medians in ms by CUDA events",
            "device": torch.cuda.get_device_name(),
            "cudnn": torch.backends.cudnn.version(),
            "versions": versions(["lamina", "torch", "jax", "cuda-core", "nvidia-cudnn-cu13"]),
            "cases": cases,
        }
        print(write("alexnet_gpu", record, options.out))


if __name__ == "__main__":
    _main()
