"""Short-time spectra: a fast Fourier transform of each frame, where it lies, in shared memory."""

from __future__ import annotations

from functools import lru_cache
from math import prod

import numpy as np

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    LOOPING,
    DeviceTable,
    Launch,
    Program,
    c_type,
    constants,
    kernel_plan,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.spectral import ShortTimeSpectra, fast_factors
from lamina.runtime import Device
from lamina.spec import Policy, Spec

#: The most threads of a block.
_THREADS = 256


@kernels(ShortTimeSpectra, source="kernel")
def short_time_spectra(op: ShortTimeSpectra, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Row-major signals; both parts of a number at once, or one by one where an address is not aligned.

    Raises NoKernel for sizes with large prime factors.
    """
    x, weights = inputs = [s.open.fixed for s in specs]
    y = op.infer(x, weights)[0].fixed
    factors = fast_factors(op.size)
    points, wide = prod(factors), x.dtype.compute
    if op.size > 2 and not factors:
        raise NoKernel(f"cuda: {op.name} has no fast transform of {op.size} samples")
    if not y.numel:
        return kernel_plan(device, inputs, [y], [], label=op.name)
    kind = index_type(max(x.numel, y.numel))
    text = f"typedef {kind} Index;\ntypedef {c_type(x.dtype)} T;\n"
    threads = min(_THREADS, -(-points // 128) * 32)
    stages, parts = [], 1
    for factor in factors:
        stages.append(f"STAGE({factor}, {points // parts}, {parts})")
        parts *= factor
    text += constants(
        BATCH=x.shape[0], LENGTH=x.shape[1], COUNT=y.shape[1], SIZE=op.size, HOP=op.hop, POINTS=points,
        BINS=y.shape[2], SCALE=repr(op.scale), THREADS=threads, STAGES=" ".join(stages),
    )  # fmt: skip
    places, frames = (source(0), source(1), target(), _waves(op.size, wide.name)), x.shape[0] * y.shape[1]

    def launches(width: int) -> tuple[Launch, ...]:
        program = Program(op.name, "sampling/spectra.cu", text + constants(V=width))
        return (Launch(program, (frames,), (threads,), places, waves=2 * LOOPING),)

    return kernel_plan(device, inputs, [y], launches(2), label=op.name, plain=lambda: launches(1))


@lru_cache(maxsize=64)
def _waves(size: int, dtype: str) -> DeviceTable:
    """The cosines of one turn in `size` steps, then the negative sines; exact at quarter turns."""
    angle = 2 * np.pi * np.arange(size) / size
    table = np.stack([np.cos(angle), -np.sin(angle)])
    table[np.abs(table) < 1 / (4 * size)] = 0
    return DeviceTable(table.reshape(-1).astype(dtype))
