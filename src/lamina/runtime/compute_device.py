"""Devices as values, found at run time."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, SupportsIndex

from lamina.runtime import _cuda
from lamina.runtime.arena import Statistics
from lamina.runtime.errors import DeviceError, NoGpuError
from lamina.runtime.machine import Machine
from lamina.runtime.memory import Buffer, Supply, allocate
from lamina.runtime.platforms import (
    CudaPlatform,
    HostPlatform,
    MemoryInfo,
    Platform,
    current,
    platform_context,
)
from lamina.runtime.stream import Stream, StreamLike, as_stream

_SPEC = re.compile(r"(cpu|cuda)(?::(\d+))?")
_platforms: dict[Device, Platform] = {}
_lock = threading.RLock()
#: The index of this process among those that share this machine's GPUs, one each.
_place = 0


class Device:
    """A place to compute and keep memory: ``Device("cpu")``, ``Device("cuda:0")``.

    A plain value: equal specs give equal, hashable devices; creating one opens nothing. The hardware is opened
    when it is first used, and then NoGpuError tells if it is missing (`devices` and `device` check first).

    Args:
        spec: "cpu", "cuda:N", or "cuda": this process's GPU, the first one unless ranks share the machine.
        machine: stand for a GPU of this kind that is not present: plans for it can be made and compiled, not run.

    Raises:
        ValueError: an invalid spec, or a CPU that is to stand for another machine.
    """

    __slots__ = ("_hash", "_platform", "index", "kind", "planned")
    kind: str
    index: int
    #: The machine that the device stands for; None for a present device.
    planned: Machine | None
    _hash: int
    _platform: Platform  # once it is opened

    def __init__(self, spec: str | Device = "cpu", *, machine: Machine | None = None) -> None:
        match = _SPEC.fullmatch(str(spec))
        if match is None or (match[1] == "cpu" and match[2] not in (None, "0")):
            raise ValueError(f"device: expected 'cpu', 'cuda' or 'cuda:N', got {spec!r}")
        if match[1] == "cpu" and machine is not None:
            raise ValueError(f"device: a CPU is planned for as it is, got machine={machine.name!r}")
        planned = spec.planned if isinstance(spec, Device) and machine is None else machine
        object.__setattr__(self, "kind", match[1])
        index = _own_gpu() if match[0] == "cuda" and planned is None else int(match[2] or 0)
        object.__setattr__(self, "index", index)
        object.__setattr__(self, "planned", planned)
        object.__setattr__(self, "_hash", hash((self.kind, self.index, planned)))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"a Device is a value: {name} cannot be changed")

    def __reduce__(self) -> tuple[Callable[..., Device], tuple[str, Machine | None]]:
        return _restored, (str(self), self.planned)

    def __eq__(self, other: object) -> bool:
        return self is other or (
            isinstance(other, Device)
            and (self.index, self.kind) == (other.index, other.kind)
            and self.planned == other.planned
        )

    def __hash__(self) -> int:
        return self._hash

    def __str__(self) -> str:
        return self.kind if self.kind == "cpu" else f"{self.kind}:{self.index}"

    def __repr__(self) -> str:
        planned = "" if self.planned is None else f", machine={self.planned.name!r}"
        return f"Device({str(self)!r}{planned})"

    @property
    def type(self) -> str:
        """The kind of device, "cpu" or "cuda", as torch.device.type."""
        return self.kind

    # ---- the hardware
    @property
    def platform(self) -> Platform:
        """The opened hardware behind this value. NoGpuError if there is none."""
        try:
            return self._platform
        except AttributeError:
            if self.planned is not None:
                raise NoGpuError(
                    f"{self!r} stands for a GPU that is not there: plans for it can be made and compiled, not run"
                ) from None
            object.__setattr__(self, "_platform", _open(self))
            return self._platform

    @property
    def machine(self) -> Machine:
        """Sizes and rates of the hardware, from which plans are made."""
        return self.platform.machine() if self.planned is None else self.planned

    @property
    def name(self) -> str:
        """The model, as its vendor names it."""
        return self.platform.name() if self.planned is None else self.planned.name

    @property
    def properties(self) -> dict[str, Any]:
        """The device's attributes; "name", "arch" ("sm_90", "x86_64"), "total_memory" always."""
        return self.platform.properties()

    def make_current(self) -> None:
        """Make this device current for driver calls of this thread (nothing to do on the CPU)."""
        self.platform.make_current()

    def current(self) -> AbstractContextManager[None]:
        """Make this device current for driver calls of this thread inside a ``with`` block.

        A thread that had no device before keeps this one.
        """
        return current(self.platform)

    def synchronize(self) -> None:
        """Wait until all work on the device is done."""
        self.platform.synchronize()

    # ---- streams
    @property
    def default_stream(self) -> Stream:
        """The stream that is used by default: one per device, non-blocking."""
        return self.platform.default_stream

    def stream(self, *, priority: int = 0) -> Stream:
        """A new stream. Lower `priority` runs first (0 is the lowest priority; the CPU has none)."""
        if not hasattr(type(priority), "__index__"):
            raise TypeError(f"stream: priority must be a whole number, got {priority!r}")
        return self.platform.stream(priority)

    @property
    def stream_priorities(self) -> tuple[int, int]:
        """The lowest and the highest priority that a stream can have, e.g. (0, -5); (0, 0) on the CPU."""
        if self.kind == "cpu":
            return (0, 0)
        with self.current():
            low, high = _cuda.call("cuCtxGetStreamPriorityRange")
        return int(low), int(high)

    # ---- memory
    def allocate(self, nbytes: SupportsIndex, *, stream: StreamLike | None = None) -> Buffer:
        """`nbytes` (zero allowed) uninitialized bytes from the device's arena.

        Args:
            nbytes: how many.
            stream: the stream that will use them (default: the default stream); see `Buffer.used_on`.

        Raises:
            OutOfMemoryError: with the figures, after the cache was freed and the request retried.
        """
        platform = self.platform
        default = platform.default_stream
        where = default if stream is None or stream is default else as_stream(stream, self)
        here = default.device  # one object for all memory of a device
        if where.device is not here and where.device != self:
            raise ValueError(f"allocate: {where!r} is not a stream of {self}")
        return allocate(platform.arena, here, nbytes, where, host=self.kind == "cpu")

    def supply(self, nbytes: int) -> Supply:
        """A source of buffers of this size for the default stream, like `allocate`."""
        platform = self.platform
        stream = platform.default_stream
        return Supply(platform.arena, stream.device, nbytes, stream, host=self.kind == "cpu")

    def memory_info(self) -> MemoryInfo:
        """(free, total) bytes of the device; memory cached by an arena counts as used."""
        return self.platform.memory_info()

    def statistics(self) -> Statistics:
        """The arena in figures: in use, peak, cached, reserved, cap, allocations, hits."""
        return self.platform.arena.statistics()

    def reset_peak(self) -> None:
        """Reset ``statistics().peak``."""
        self.platform.arena.reset_peak()

    def set_cap(self, nbytes: int | None) -> None:
        """Limit the memory held by the arena to `nbytes` (None: no limit). The environment variable LAMINA_MEMORY_CAP
        also sets it."""
        self.platform.arena.set_cap(nbytes)

    def reserve(self, nbytes: int) -> None:
        """Take at least `nbytes` from the system now, from which later requests are carved."""
        self.platform.arena.reserve(nbytes)

    def empty_cache(self) -> None:
        """Return freed memory and unused reserves to the system."""
        self.platform.arena.empty_cache()

    # ---- peers
    def can_access_peer(self, peer: Device) -> bool:
        """Whether kernels on this device can read the memory of `peer` directly."""
        return peer.kind == "cuda" and self.platform.can_access(peer.index)

    def enable_peer_access(self, peer: Device) -> None:
        """Let kernels on this device read and write the memory of `peer`. DeviceError if they cannot."""
        self.platform.enable_access(peer)

    def disable_peer_access(self, peer: Device) -> None:
        """Undo `enable_peer_access`; DeviceError if it was not enabled. Copies work either way."""
        if self.kind == "cpu":
            raise DeviceError(f"disable_peer_access: cpu has no peer access to {peer}")
        other = platform_context(peer)
        with self.current():
            _cuda.call("cuCtxDisablePeerAccess", other)


def _restored(spec: str, machine: Machine | None) -> Device:
    return Device(spec, machine=machine)


def _open(device: Device) -> Platform:
    with _lock:
        if device not in _platforms:
            _platforms[device] = HostPlatform(device) if device.kind == "cpu" else CudaPlatform(device)
        return _platforms[device]


def take_gpu(place: int) -> None:
    """Select the GPU that "cuda" and "auto" mean in this process: each process of a machine has its own.

    place: this process's index among those of the machine. If there are fewer visible GPUs, they are shared
    round-robin.
    """
    global _place
    _place = place


def _own_gpu() -> int:
    """The number of this process's GPU; nothing is opened if it has the machine to itself."""
    return _place and _place % max(_cuda.probe().count, 1)


def devices() -> list[Device]:
    """All devices of this machine: the CPU, then each usable CUDA device. Never raises or hangs."""
    return [Device("cpu"), *(Device(f"cuda:{index}") for index in range(_cuda.probe().count))]


def device(spec: str | Device | None = "auto") -> Device:
    """The device for `spec`, checked to be present (unless it only stands for a machine).

    Args:
        spec: "auto" or None (the GPU if there is one, else the CPU), "cpu", "cuda", "cuda:N", or a device. Among
            several GPUs it is the first, for a rank of `lamina.distributed` the one of its local rank.

    Raises:
        NoGpuError: a missing CUDA device; the message lists where the driver was looked for.
        ValueError: not a device.
    """
    if spec is None or spec == "auto":
        return Device("cuda" if _cuda.probe().count else "cpu")
    wanted = Device(spec)
    if wanted.planned is None and wanted.kind == "cuda" and wanted.index >= _cuda.probe().count:
        state = _cuda.probe()
        reason = state.reason or f"this machine shows {state.count} CUDA device(s)"
        raise NoGpuError(
            f"device {str(wanted)!r} cannot be used: {reason}. Use 'cpu' or 'auto', "
            "or install an NVIDIA driver and make the GPU visible.",
            (_cuda.DRIVER, "cuInit", "cuDeviceGetCount"),
        )
    return wanted


def pinned(nbytes: SupportsIndex) -> Buffer:
    """Page-locked host memory for asynchronous copies; plain host memory without a GPU.

    The buffer's device is the CPU. `copy` with a stream keeps it from being reused too early.
    """
    count = _cuda.probe().count
    arena = Device("cuda").platform.pinned if count else Device("cpu").platform.arena
    host = Device("cpu")
    stream = None if count else host.default_stream
    return allocate(arena, host, nbytes, stream, host=True, pinned=count > 0)


def managed(nbytes: SupportsIndex, device: Device) -> Buffer:
    """Managed memory of `device`: the CPU and the GPU use the same address, pages migrate on use.

    On the CPU it is plain host memory. Synchronize the GPU before the CPU accesses it.
    """
    platform = device.platform
    return allocate(platform.managed, device, nbytes, platform.default_stream, host=True)
