"""What a machine can do at most, and the least time that a step of a program takes on it."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from lamina.graph.planning.layout import Step
from lamina.runtime import Device
from lamina.spec import Policy


@dataclass(frozen=True)
class Limits:
    """What a machine can do at most: matrix arithmetic in FLOP/s by element size in bytes, memory in byte/s."""

    half: float
    single: float
    double: float
    tf32: float
    memory: float

    def seconds(self, flops: float, nbytes: float, itemsize: int, *, tf32: bool) -> float:
        """The shortest time for so much work, arithmetic and memory traffic side by side."""
        rates = {1: self.half, 2: self.half, 4: self.tf32 if tf32 else self.single, 8: self.double}
        return max(flops / rates.get(itemsize, self.single), nbytes / self.memory)


#: bf16 products and copies as measured on the device, the other rates by its data sheet.
_KNOWN = {"NVIDIA H200": Limits(790e12, 67e12, 67e12, 395e12, 4.3e12)}


@cache
def limits(device: Device) -> Limits | None:
    """The limits of a device: measured for a CPU, from a table for a GPU (None where it is not listed)."""
    return _measured() if device.kind == "cpu" else _KNOWN.get(device.name)


def _measured() -> Limits:
    """Rates of this CPU by NumPy: a matrix product in each precision, and a copy; each the best of three."""
    single, double = (_product_rate(np.dtype(kind)) for kind in ("float32", "float64"))
    origin = np.ones(1 << 23, np.float32)
    target = np.empty_like(origin)
    return Limits(
        single, single, double, single, 2 * origin.nbytes / _best(lambda: np.copyto(target, origin))
    )


def _product_rate(kind: np.dtype[Any], size: int = 768) -> float:
    a = np.ones((size, size), kind)
    out = np.empty_like(a)
    return 2.0 * size**3 / _best(lambda: np.matmul(a, a, out=out))


def _best(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def work(step: Step) -> tuple[int, int]:
    """FLOP of matrix products, and bytes: inputs and outputs once each."""
    flops = step.node.op.flops(*(s.spec.open for s in step.inputs)) if step.node else 0
    return flops, sum(s.spec.nbytes for s in (*step.inputs, *step.outputs))


def least_seconds(step: Step, known: Limits) -> float:
    """The shortest time for a step's work."""
    flops, nbytes = work(step)
    itemsize = step.inputs[0].spec.dtype.itemsize if step.inputs else 4
    tf32 = (step.node.policy if step.node else Policy()).tf32
    return known.seconds(flops, nbytes, itemsize, tf32=tf32)
