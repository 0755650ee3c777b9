"""The simulator's predictions for published runs and absent machines; the table of docs/scaling.md.

    python -m benchmarks.simulated step           plans ResNet-50's step for an H200 (no GPU is needed), and stores it
    python -m benchmarks.simulated predict        predicts from it

The shares of the kernels are those of their least times on the machine, the total is the measured one
(benchmarks/results/suite_gpu-2026-11-22-1.json: resnet50-train-256, bf16).
"""

from __future__ import annotations

import argparse
import json
from functools import partial
from pathlib import Path
from typing import Any

from lamina import nn, ops, optim
from lamina.nn import init
from lamina.runtime import Machine
from lamina.simulate import LINKS, Cluster, Workload, expected_maximum, simulate, workload_of
from lamina.spec import Spec, float32, int64
from lamina.train import train_step

RESULTS = Path(__file__).parent / "results"
STEP = RESULTS / "resnet50_step-2026-11-23.json"
SUITE = RESULTS / "suite_gpu-2026-11-22-1.json"
BATCH = 256
GPUS = (1, 2, 4, 8, 16, 64, 256, 1024, 4096)
#: Images per second of NVIDIA's MXNet on A100s, 256 per GPU (DeepLearningExamples, ResNet-50 v1.5, AMP).
MXNET = {1: 3411, 8: 26674}
#: MLPerf Training 4.0, NVIDIA: 8 H200; includes JPEG decoding, LARS and the all-reduce.
MLPERF = {8: 63600}


def measured_seconds() -> float:
    """Of the step on one H200."""
    cases = json.loads(SUITE.read_text())["cases"]
    (case,) = [c for c in cases if c["name"] == "resnet50-train-256"]
    return float(case["results"]["lamina"]["median_ms"]) / 1e3


def step() -> dict[str, Any]:
    """ResNet-50's training step in bf16, as planned."""
    with init.skipped():
        net = nn.models.resnet50()
    loss = partial(ops.cross_entropy, ignore_index=None)
    made = train_step(net, loss, optim.SGD(0.1, momentum=0.9), device="cpu", precision="bf16", backend="null")
    images = Spec((BATCH, 3, 224, 224), float32)
    program = made.program(images, Spec((BATCH,), int64)).executable
    return workload_of(program, BATCH, Machine.named("h200"), measured_seconds()).record


def predictions() -> dict[str, Any]:
    """Predictions from the stored step."""
    work = Workload.of_record(json.loads(STEP.read_text()))
    h200 = Cluster(LINKS["nvlink4"], 8, LINKS["infiniband-ndr"], switch=True)
    return {
        "gradient_bytes": work.nbytes,
        "h200": [simulate(work, h200, n).record for n in GPUS],
        "h200_spread_1_percent": [simulate(work, h200, n, spread=0.01).record for n in GPUS],
        "mlperf_8_h200": against_mlperf(work, h200),
        "mxnet_8_a100": against_mxnet(work),
    }


def against_mlperf(work: Workload, cluster: Cluster) -> dict[str, Any]:
    """The gap between the prediction and NVIDIA's result: JPEGs, LARS and other kernels are not in the step."""
    found = simulate(work, cluster, 8, spread=0.01)
    published = 8 * BATCH / MLPERF[8]
    rest = published - found.seconds
    return {
        **found.record,
        "published_samples_per_second": MLPERF[8],
        "published_step_ms": 1e3 * published,
        "not_explained_ms": 1e3 * rest,
        "not_explained": rest / published,
    }


def against_mxnet(work: Workload) -> dict[str, Any]:
    """A step of ResNet-50 with the time of MXNet's on one A100: the loss to communication, and the rest."""
    one = work.in_time(BATCH / MXNET[1])
    found = simulate(one, Cluster(LINKS["nvlink3"], 8), 8)
    rest = 8 * BATCH / MXNET[8] - found.seconds
    return {
        **found.record,
        "published_speedup": MXNET[8] / MXNET[1],
        "not_explained_ms": 1e3 * rest,
        "spread_that_explains_it": rest / (expected_maximum(8) * found.compute),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("step", "predict"))
    if parser.parse_args().what == "step":
        STEP.write_text(json.dumps(step(), indent=1) + "\n")
        return
    out = RESULTS / "simulated-2026-11-23.json"
    out.write_text(json.dumps(predictions(), indent=1) + "\n")


if __name__ == "__main__":
    main()
