"""A data parallel step: computation, overlapped communication, and waiting times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist
from typing import Any

from lamina.ops.arguments import checked, whole, within
from lamina.simulate.links import Cluster
from lamina.simulate.workload import Gradient, Workload


@dataclass(frozen=True)
class Prediction:
    """A step on a number of GPUs, in seconds: its parts add up to the whole.

    compute: the step of one GPU. contention: its slowdown by concurrent communication. exposed: communication that
        does not overlap with computation. stragglers: waiting for the slowest GPU. input: waiting for data.
    communication: of all buckets, hidden or not; it is no part of the sum.
    """

    gpus: int
    samples: int
    compute: float
    contention: float
    exposed: float
    stragglers: float
    input: float
    communication: float

    @property
    def seconds(self) -> float:
        """Seconds of the step."""
        return self.compute + self.contention + self.exposed + self.stragglers + self.input

    @property
    def samples_per_second(self) -> float:
        """Of all GPUs together."""
        return self.samples / self.seconds

    @property
    def speedup(self) -> float:
        """The speedup over one GPU whose data are loaded in time."""
        return self.gpus * self.compute / self.seconds

    @property
    def record(self) -> dict[str, Any]:
        """As JSON, times in milliseconds."""
        parts = ("compute", "contention", "exposed", "stragglers", "input", "communication")
        found = {f"{name}_ms": round(1e3 * getattr(self, name), 6) for name in parts}
        return {
            "gpus": self.gpus,
            "step_ms": round(1e3 * self.seconds, 6),
            **found,
            "samples_per_second": round(self.samples_per_second, 1),
            "speedup": round(self.speedup, 4),
        }


@checked
def simulate(
    workload: Workload,
    cluster: Cluster,
    gpus: int,
    *,
    bucket_bytes: float = 25 << 20,
    scale_bytes: float = 1.0,
    contention: float = 0.0,
    spread: float = 0.0,
    node_samples_per_second: float = math.inf,
) -> Prediction:
    """A step of data parallel training on `gpus` GPUs, each with the workload's batch (weak scaling).

    Gradients are reduced in buckets, one after the other, each as soon as it is complete and the previous one is
    done, overlapping with the backward pass; updates follow bucket by bucket.

    bucket_bytes: gradients are joined up to this size. scale_bytes: bytes sent per byte of gradients: 0.5 for float32
        gradients sent in bfloat16.
    contention: the fraction of a GPU that communication takes from concurrent computation.
    spread: the standard deviation of a GPU's step time, as a fraction of it: all wait for the slowest, whose time is
        the expected maximum of as many normal variables.
    node_samples_per_second: the throughput of a node's input pipeline.
    Raises ValueError for numbers out of range and GPUs that do not fill nodes.
    """
    for name, value, high in (("contention", contention, 1.0), ("spread", spread, math.inf)):
        within("simulate", name, value, 0, high)
    for name, value in (("bucket_bytes", bucket_bytes), ("scale_bytes", scale_bytes)):
        within("simulate", name, value, 0, open=True)
    within("simulate", "node_samples_per_second", node_samples_per_second, 0, open=True)
    nodes = cluster.nodes(gpus)
    buckets = workload.buckets(bucket_bytes / scale_bytes)
    times = [cluster.all_reduce(b.nbytes * scale_bytes, gpus) for b in buckets]
    exposed = max(0.0, _end(workload, buckets, times) - workload.seconds)
    slower = contention * max(0.0, sum(times) - exposed)
    late = expected_maximum(gpus) * spread * workload.seconds
    wanted = workload.samples * (gpus // nodes) / node_samples_per_second
    waiting = max(0.0, wanted - workload.seconds - slower - exposed - late)
    return Prediction(
        gpus, workload.samples * gpus, workload.seconds, slower, exposed, late, waiting, sum(times)
    )


def _end(workload: Workload, buckets: Sequence[Gradient], times: Sequence[float]) -> float:
    """The end of the last update: each runs once its bucket has arrived, after all earlier ones. Later computation
    waits for an update in any case, so that faster links never lengthen a step.
    """
    updates = [workload.update * b.nbytes / max(workload.nbytes, 1) for b in buckets]
    end, sent, done, left = workload.seconds, 0.0, 0.0, sum(updates)
    for bucket, time, update in zip(buckets, times, updates, strict=True):
        sent = max(sent, bucket.ready + done) + time
        end = max(end, sent + left)
        done, left = done + update, left - update
    return end


@lru_cache
def expected_maximum(count: int) -> float:
    """The expected maximum of `count` independent standard normal variables.

    E = ∫ 1 - Φ(x)^n - Φ(-x)^n dx over x > 0, by the trapezoidal rule. Raises ValueError for fewer than one.
    """
    whole("expected_maximum", "count", count)
    normal, width, points = NormalDist(), 10.0, 4000
    values = []
    for i in range(points + 1):
        x = width * i / points
        values.append(-math.expm1(count * math.log1p(-normal.cdf(-x))) - normal.cdf(-x) ** count)
    return width / points * (sum(values) - (values[0] + values[-1]) / 2)
