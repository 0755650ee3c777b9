"""A machine as a value: the figures from which tilings, block counts, costs and limits are derived.

It is read from a device (`Device.machine`), or from a property file in ``machines/`` for a device that is absent.
GPUs do not report their throughput: it comes from the file of the model, or else is estimated from clocks, units and
the memory bus.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

FILES = Path(__file__).with_name("machines")
#: The property file used if no machine is named and there is no GPU.
USUAL = "h200"
#: FLOP per clock of a multiprocessor in dense matrix products, by the first architecture that has them: half types,
#: float32 rounded to TF32, float32, float64 (the CUDA programming guide's and the architectures' white papers).
#: Workstation models of the 8.6, 8.9 and 12.0 line do twice as much in half types with float32 sums.
_UNITS = {
    70: (1024, 128, 128, 64),
    75: (1024, 128, 128, 4),
    80: (2048, 1024, 128, 128),
    86: (512, 256, 256, 4),
    90: (4096, 2048, 256, 256),
    100: (8192, 4096, 256, 128),
    103: (8192, 4096, 256, 4),
    120: (512, 256, 256, 4),
}
#: Fractions of these rates, and of the memory's, that the best libraries reach: measured where both are known.
_REACHED, _COPIED = 0.75, 0.875
#: Seconds from the end of one kernel of a CUDA graph to the start of the next one's work.
_LAUNCH_SECONDS = 3e-6
#: The origin of a host's rates.
MEASURED = "measured"
#: A host's rates are the best of this many measurements.
_ROUNDS = 5


@dataclass(frozen=True)
class Machine:
    """A kind of machine to plan for.

    name: the model. arch: "sm_90"; of a host "x86_64". multiprocessors: of a host its cores.
    shared_memory: bytes available to one block; multiprocessor_shared_memory: to a multiprocessor;
    reserved_shared_memory: taken by each block in addition to its own.
    registers, threads, blocks: 32-bit registers of a multiprocessor, and its limits of resident threads and blocks.
    l2_bytes, memory_bytes: sizes of the L2 cache and of the memory.
    clock, memory_clock: the maxima, in Hz; bus_bits: of the memory, which transfers twice per clock.
    flops: FLOP/s of a large dense matrix product by type: "bfloat16", "float16", "tf32", "float32", "float64",
        "int8", "float8_e4m3fn". bandwidth: byte/s of a large copy, reads plus writes.
    launch_seconds: from one kernel of a recorded sequence to the next.
    origin: the source of the figures.
    """

    name: str
    arch: str
    multiprocessors: int
    shared_memory: int = 0
    multiprocessor_shared_memory: int = 0
    reserved_shared_memory: int = 0
    registers: int = 0
    threads: int = 0
    blocks: int = 0
    l2_bytes: int = 0
    memory_bytes: int = 0
    clock: int = 0
    memory_clock: int = 0
    bus_bits: int = 0
    flops: Mapping[str, float] = field(default_factory=dict, hash=False)
    bandwidth: float = 0.0
    launch_seconds: float = _LAUNCH_SECONDS
    origin: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.flops:
            object.__setattr__(self, "flops", _estimated(self))
        if not self.bandwidth:
            copied = 2 * self.memory_clock * self.bus_bits / 8 * _COPIED
            object.__setattr__(self, "bandwidth", copied)

    @property
    def capability(self) -> int:
        """The compute capability in one number, 90 for "sm_90"; 0 for a host."""
        return int(self.arch[3:]) if self.arch.startswith("sm_") else 0

    @property
    def target(self) -> str:
        """The compilation target: from 9.0 on with architecture-specific features ("sm_90a")."""
        return f"{self.arch}a" if self.capability >= 90 else self.arch

    def rate(self, dtype: str, *, tf32: bool = False) -> float:
        """FLOP/s of matrix products of a type; unlisted types count as float32. tf32: whether float32 may be rounded
        to it."""
        return self.flops.get("tf32" if tf32 and dtype == "float32" else dtype, self.flops["float32"])

    def seconds(self, flops: float, nbytes: float, dtype: str, *, tf32: bool = False) -> float:
        """The shortest time for this work, with arithmetic and memory traffic overlapped."""
        return max(flops / self.rate(dtype, tf32=tf32), nbytes / self.bandwidth)

    # ---- constructors
    @classmethod
    def from_file(cls, path: str | Path) -> Machine:
        """The machine of a property file: JSON with this class's fields.

        Raises:
            ValueError: no JSON object, a field that is unknown, or one that is missing.
            OSError: the file cannot be read.
        """
        try:
            found = dict(json.loads(Path(path).read_text(encoding="utf-8")))
        except (ValueError, TypeError, RecursionError) as error:
            raise ValueError(
                f"machine: {path} is not a JSON object of a machine's fields: {error}"
            ) from error
        known = {f.name for f in fields(cls)}
        missing = {"name", "arch", "multiprocessors"} - set(found)
        if missing or set(found) - known:
            wrong = ", ".join(sorted(missing or set(found) - known))
            reason = "lacks" if missing else "has no meaning for"
            raise ValueError(f"machine: {path} {reason} {wrong}; the fields are {', '.join(sorted(known))}")
        return cls(**found)

    @classmethod
    def named(cls, name: str = USUAL) -> Machine:
        """The machine of a bundled property file by its short name (`names`), or of any property file by its path.

        Raises ValueError for another name.
        """
        if name in cls.names():
            return _of_file(FILES / f"{name}.json")
        if name.endswith(".json"):
            return cls.from_file(name)
        raise ValueError(
            f"machine: {name!r} is none of {', '.join(cls.names())}, nor a property file (….json)"
        )

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """The short names accepted by `named`."""
        return tuple(sorted(file.stem for file in FILES.glob("*.json")))

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> Machine:
        """The machine for a CUDA device's properties (by their names in `Device.properties`, frequencies in kHz).

        Rates come from the model's file, if there is one.
        """
        like = next((m for m in map(cls.named, cls.names()) if m.name == properties["name"]), None)
        found: dict[str, Any] = {ours: int(properties.get(name, 0)) for ours, name in _PROPERTIES.items()}
        found |= {clock: found[clock] * 1000 for clock in ("clock", "memory_clock")}
        if like is not None and like.multiprocessors == found["multiprocessors"]:
            found |= {name: getattr(like, name) for name in ("flops", "bandwidth", "launch_seconds")}
            found["origin"] = f"read off the device; rates: {like.origin}"
        else:
            found["origin"] = "read off the device; rates estimated from clocks and units"
        return cls(properties["name"], properties["arch"], **found)


_PROPERTIES = {
    "multiprocessors": "multiprocessor_count",
    "shared_memory": "max_shared_memory_per_block_optin",
    "multiprocessor_shared_memory": "max_shared_memory_per_multiprocessor",
    "reserved_shared_memory": "reserved_shared_memory_per_block",
    "registers": "max_registers_per_multiprocessor",
    "threads": "max_threads_per_multiprocessor",
    "blocks": "max_blocks_per_multiprocessor",
    "l2_bytes": "l2_cache_size",
    "memory_bytes": "total_memory",
    "clock": "clock_rate",
    "memory_clock": "memory_clock_rate",
    "bus_bits": "global_memory_bus_width",
}


@cache
def _of_file(path: Path) -> Machine:
    return Machine.from_file(path)


def _estimated(machine: Machine) -> dict[str, float]:
    """Rates by units and clock: of the architecture, or of the newest one before it."""
    older = [first for first in _UNITS if first <= machine.capability]
    units = _UNITS[max(older, default=min(_UNITS))]
    clocks = machine.multiprocessors * machine.clock * _REACHED
    half, tf32, single, double = (n * clocks for n in units)
    eight = 2 * half
    return {
        **{"bfloat16": half, "float16": half, "tf32": tf32, "float32": single, "float64": double},
        **{"int8": eight, "float8_e4m3fn": eight},
    }


# ------------------------------------------------------------------------------------------------------ measuring


def measured(name: str, arch: str, cores: int, memory_bytes: int) -> Machine:
    """The machine that this process runs on, with rates measured by NumPy: a matrix product in each precision, and
    in-place sums on all cores; each the best of a few runs. On a busy machine they are too low.
    """
    single, double = (_product_rate(np.dtype(kind)) for kind in ("float32", "float64"))
    bandwidth = _memory_rate(cores)
    rates = {"float32": single, "float64": double}
    return Machine(
        name, arch, cores, memory_bytes=memory_bytes, flops=rates, bandwidth=bandwidth, origin=MEASURED
    )


def _product_rate(kind: np.dtype[Any], size: int = 768) -> float:
    a = np.ones((size, size), kind)
    out = np.empty_like(a)
    return 2.0 * size**3 / _best(lambda: np.matmul(a, a, out=out))


def _memory_rate(cores: int, size: int = 1 << 23) -> float:
    """Bytes per second that all cores together read and write: a += b, which unlike a copy reads nothing
    needlessly."""
    target, source = np.zeros(size, np.float32), np.ones(size, np.float32)
    pairs = zip(np.array_split(target, cores), np.array_split(source, cores), strict=True)
    parts = [(a, b, a) for a, b in pairs]

    def add() -> None:
        threads = [threading.Thread(target=np.add, args=part) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return 3 * target.nbytes / _best(add)


def _best(run: Callable[[], Any]) -> float:
    times = []
    for _ in range(_ROUNDS):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)
