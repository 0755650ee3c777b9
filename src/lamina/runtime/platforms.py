"""The differences between kinds of device, in one place: a `Platform` per device, created at first use."""

from __future__ import annotations

import ctypes
import os
import platform as system
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from lamina._cached import cached_property
from lamina.runtime import _cuda
from lamina.runtime.arena import Arena, HostResource, cap_from_environment
from lamina.runtime.cores import usable_cores
from lamina.runtime.errors import DeviceError, NoGpuError
from lamina.runtime.fork import renew_after_fork
from lamina.runtime.machine import Machine, measured
from lamina.runtime.memory import host_copy, host_fill
from lamina.runtime.stream import CudaStream, Stream, may_start_early, no_capture

if TYPE_CHECKING:
    from lamina.runtime.compute_device import Device
    from lamina.runtime.memory import Buffer

_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for every context
_ATTACH_GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL: every stream may use it
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: it does not wait for the legacy default stream
_NAME_BYTES = 256


class MemoryInfo(NamedTuple):
    """Available bytes, and total bytes."""

    free: int
    total: int


class Platform(Protocol):
    """The operations of a device; implemented by `HostPlatform` and `CudaPlatform`."""

    arena: Arena
    pinned: Arena
    managed: Arena
    default_stream: Stream
    #: Pinned memory of one size, as an array too, for downloads; `append` and `pop` are atomic.
    landing: list[tuple[Buffer, np.ndarray[Any, Any]]]

    def name(self) -> str:
        """The model, as its vendor names it."""
        ...

    def stream(self, priority: int) -> Stream:
        """A new stream."""
        ...

    def synchronize(self) -> None:
        """Wait for all work on the device."""
        ...

    def make_current(self) -> None:
        """Make the device current for driver calls of this thread."""
        ...

    def enter(self) -> int:
        """Make the device current for this thread until `leave` is called with the result."""
        ...

    def leave(self, before: int) -> None:
        """Restore the state before the `enter` that returned `before`."""
        ...

    def memory_info(self) -> MemoryInfo:
        """Free and total memory."""
        ...

    def properties(self) -> dict[str, Any]:
        """All attributes that the device reports."""
        ...

    def machine(self) -> Machine:
        """Sizes and rates from which plans are made."""
        ...

    def copy(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        """Queue a copy."""
        ...

    def fill(self, destination: int, byte: int, nbytes: int, stream: Stream) -> None:
        """Queue a memset."""
        ...

    def wait_for_ends(self, stream: int) -> None:
        """Let the kernel that a library queues next on a stream, given by its handle, begin only after those before
        it ended."""
        ...

    def can_access(self, peer: int) -> bool:
        """Whether kernels of this device can read the memory of device number `peer`."""
        ...

    def enable_access(self, peer: Device) -> None:
        """Let kernels of this device read and write the memory of `peer`."""
        ...


@contextmanager
def current(platform: Platform) -> Iterator[None]:
    """Make a device current for driver calls of this thread inside the ``with`` block."""
    before = platform.enter()
    try:
        yield
    finally:
        platform.leave(before)


# --------------------------------------------------------------------------------------------------- the host
class HostPlatform:
    """The CPU and its memory."""

    def __init__(self, device: Device) -> None:
        self.arena = Arena(str(device), HostResource(), cap_from_environment(str(device)))
        self.pinned = self.managed = self.arena
        self.default_stream = Stream(device)
        self.landing: list[tuple[Buffer, np.ndarray[Any, Any]]] = []
        self._device = device

    def name(self) -> str:
        """The processor's model name."""
        for line in _lines("/proc/cpuinfo"):
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
        return system.processor() or system.machine()

    def stream(self, priority: int) -> Stream:
        """A stream on which all work is synchronous."""
        return Stream(self._device)

    def synchronize(self) -> None:
        """Nothing is ever pending."""

    def make_current(self) -> None:
        """Every thread may use the CPU."""

    def enter(self) -> int:
        """Every thread may use the CPU."""
        return 0

    def leave(self, before: int) -> None:
        """Nothing was changed."""

    def memory_info(self) -> MemoryInfo:
        """Memory still available from the system, and its total."""
        fields = {line.split(":")[0]: line.split()[1] for line in _lines("/proc/meminfo") if ":" in line}
        if "MemAvailable" in fields:
            return MemoryInfo(int(fields["MemAvailable"]) << 10, int(fields["MemTotal"]) << 10)
        page = os.sysconf("SC_PAGE_SIZE")
        return MemoryInfo(os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page)

    def properties(self) -> dict[str, Any]:
        """Name, architecture, cores available to this process, and instruction sets."""
        flags = next(
            (line.split(":")[1].split() for line in _lines("/proc/cpuinfo") if line.startswith("flags")), []
        )
        return {
            "name": self.name(),
            "arch": system.machine(),
            "cores": usable_cores(),
            "instruction_sets": tuple(
                flag for flag in flags if flag.startswith(("sse", "avx", "amx", "fma"))
            ),
            "total_memory": self.memory_info().total,
        }

    @cached_property
    def _machine(self) -> Machine:
        return measured(self.name(), system.machine(), usable_cores(), self.memory_info().total)

    def machine(self) -> Machine:
        """The processor, with rates measured at first use (a tenth of a second)."""
        return self._machine

    def copy(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        """Copy within host memory."""
        host_copy(destination, source, nbytes)

    def fill(self, destination: int, byte: int, nbytes: int, stream: Stream) -> None:
        """Set host memory."""
        host_fill(destination, byte, nbytes)

    def wait_for_ends(self, stream: int) -> None:
        """Nothing: queued work has ended when the call returns."""

    def can_access(self, peer: int) -> bool:
        """The CPU is no peer of a GPU."""
        return False

    def enable_access(self, peer: Device) -> None:
        """Refused: peers are GPUs."""
        raise DeviceError(f"enable_peer_access: cpu has no peer access to {peer}")


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


# ------------------------------------------------------------------------------------------------------- CUDA
class CudaResource:
    """Device memory by cuMemAlloc.

    Not from stream-ordered pools: the arena takes their role, plain memory may be allocated while
    a stream captures, and peers, NCCL and other processes can map it.
    """

    quantum = 512
    idle_limit: int | None = None

    def __init__(self, platform: CudaPlatform) -> None:
        self._platform = platform

    def allocate(self, nbytes: int) -> tuple[int, object]:
        """Address of `nbytes` fresh bytes on the device."""
        with current(self._platform):
            return int(_cuda.call("cuMemAlloc", nbytes)), None

    def free(self, pointer: int, owner: object) -> None:
        """Return the block; the driver waits for work that uses it."""
        with current(self._platform):
            _cuda.call("cuMemFree", pointer)


class PinnedResource(CudaResource):
    """Page-locked host memory, which a GPU copies from and to asynchronously."""

    def allocate(self, nbytes: int) -> tuple[int, object]:
        """Address of `nbytes` fresh page-locked bytes."""
        with current(self._platform):
            return int(_cuda.call("cuMemHostAlloc", nbytes, _PORTABLE)), None

    def free(self, pointer: int, owner: object) -> None:
        """Unlock and return the block."""
        with current(self._platform):
            _cuda.call("cuMemFreeHost", pointer)


class ManagedResource(CudaResource):
    """Managed memory: one address for the CPU and the GPU, pages migrate on use."""

    def allocate(self, nbytes: int) -> tuple[int, object]:
        """Address of `nbytes` fresh managed bytes; never more than the device has free.

        A GPU whose managed memory does not fit thrashes and may hang, so that is refused.
        """
        if nbytes > self._platform.memory_info().free:
            raise MemoryError
        with current(self._platform):
            return int(_cuda.call("cuMemAllocManaged", nbytes, _ATTACH_GLOBAL)), None


class CudaPlatform:
    """One NVIDIA GPU, by its primary context (shared with PyTorch and CuPy)."""

    def __init__(self, device: Device) -> None:
        cuda = _cuda.open_cuda()
        if device.index >= _cuda.probe().count:
            raise NoGpuError(
                f"{device} does not exist: this machine shows {_cuda.probe().count} CUDA device(s)"
            )
        self._device = device
        # The query precedes every launch: 0.1 us by the bindings against 0.3 us by ctypes, which needs a cell for it.
        self._get_current, self._set_current = cuda.driver.cuCtxGetCurrent, cuda.library.cuCtxSetCurrent
        self._copy = cuda.library.cuMemcpyAsync
        self._copy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p)
        self._fill = cuda.library.cuMemsetD8Async
        self._fill.argtypes = (ctypes.c_void_p, ctypes.c_ubyte, ctypes.c_size_t, ctypes.c_void_p)
        self._number = _cuda.call("cuDeviceGet", device.index)
        self.context = _cuda.call("cuDevicePrimaryCtxRetain", self._number)
        self._address = int(self.context)
        self._handle = ctypes.c_void_p(self._address)
        name = str(device)
        self.arena = Arena(name, CudaResource(self), cap_from_environment(name))
        self.pinned = Arena(f"pinned host memory of {name}", PinnedResource(self))
        self.managed = Arena(f"managed memory of {name}", ManagedResource(self), cap_from_environment(name))
        self.default_stream: Stream = self._make_stream(0, owned=False)
        self.landing: list[tuple[Buffer, np.ndarray[Any, Any]]] = []
        renew_after_fork(self)

    def renew(self) -> None:
        """In a forked child, where the driver does not work: every call that would reach it raises an error."""
        self._get_current = self._set_current = self._copy = self._fill = _cuda.refuse_forked  # type: ignore[assignment]

    def make_current(self) -> None:
        """Make this device current for driver calls of this thread."""
        if status := self._set_current(self._handle):
            _cuda.raise_status(status, "cuCtxSetCurrent")

    def enter(self) -> int:
        """Make this device current; returns the context that `leave` restores, 0 for none.

        A thread that had no device keeps this one.
        """
        status, context = self._get_current()
        if status:
            _cuda.raise_status(int(status), "cuCtxGetCurrent")
        before = int(context)
        if before == self._address:
            return 0
        self.make_current()
        return before

    def leave(self, before: int) -> None:
        """Restore the context from before `enter`."""
        if before and (status := self._set_current(ctypes.c_void_p(before))):
            _cuda.raise_status(status, "cuCtxSetCurrent")

    def name(self) -> str:
        """The model, as the driver reports it."""
        return _text(_cuda.call("cuDeviceGetName", _NAME_BYTES, self._number))

    def stream(self, priority: int) -> Stream:
        """A new non-blocking stream; lower numbers take precedence, 0 is the lowest priority. ValueError: no such
        priority."""
        return self._make_stream(priority, owned=True)

    def _make_stream(self, priority: int, *, owned: bool) -> CudaStream:
        with current(self):
            low, high = map(int, _cuda.call("cuCtxGetStreamPriorityRange"))
            if not high <= priority <= low:  # the driver would take the nearest one
                raise ValueError(f"stream: priority must be from {high} to {low}, got {priority}")
            handle = int(_cuda.call("cuStreamCreateWithPriority", _NON_BLOCKING, priority))
        return CudaStream(self._device, handle, priority, owned=owned)

    def synchronize(self) -> None:
        """Wait for all work on the device, of every stream and library."""
        with no_capture(), current(self):
            _cuda.call("cuCtxSynchronize")

    def memory_info(self) -> MemoryInfo:
        """Free and total memory of the device."""
        with current(self):
            free, total = _cuda.call("cuMemGetInfo")
        return MemoryInfo(int(free), int(total))

    def properties(self) -> dict[str, Any]:
        """Every CU_DEVICE_ATTRIBUTE_… by its name in lower case, and name, arch, uuid, total_memory."""
        found = self._attributes()
        major, minor = (found[f"compute_capability_{part}"] for part in ("major", "minor"))
        return found | {
            "name": self.name(),
            "arch": f"sm_{major}{minor}",
            "compute_capability": (major, minor),
            "uuid": _dashed(bytes(_cuda.call("cuDeviceGetUuid", self._number).bytes).hex()),
            "total_memory": self.memory_info().total,
        }

    def _attributes(self) -> dict[str, Any]:
        """The attributes that the driver supports; the bindings may have newer ones."""
        driver = _cuda.open_cuda().driver
        names = {
            name.removeprefix("CU_DEVICE_ATTRIBUTE_").lower(): one
            for name, one in driver.CUdevice_attribute.__members__.items()
        }
        del names["max"]  # the number of attributes
        answers = {name: driver.cuDeviceGetAttribute(one, self._number) for name, one in names.items()}
        return {name: int(value) for name, (status, value) in answers.items() if not int(status)}

    @cached_property
    def _machine(self) -> Machine:
        return Machine.from_properties(self.properties())

    def machine(self) -> Machine:
        """Sizes and clocks from the driver, rates by the model's file or estimated."""
        return self._machine

    def copy(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        """Queue a copy; the driver infers the kinds of memory, peers included, from the addresses."""
        before = self.enter()
        status = self._copy(destination, source, nbytes, stream.handle)
        if before:
            self.leave(before)
        if status:
            _cuda.raise_status(status, "cuMemcpyAsync")

    def fill(self, destination: int, byte: int, nbytes: int, stream: Stream) -> None:
        """Queue a memset."""
        with current(self):
            _cuda.call("cuMemsetD8Async", destination, byte, nbytes, stream.handle)

    def wait_for_ends(self, stream: int) -> None:
        """Queue a memset of one byte, which a library's kernels do not overtake.

        From compute capability 9.0 on, libraries launch kernels that may begin while the previous one
        still runs (programmatic dependent launch). Queued one by one beside other processes, such kernels gave wrong
        numbers in 4.6 % of 20,000 runs of ResNet-18 (cuDNN 9.19), after a memset in none; events between them
        changed nothing. Graphs that are captured here have full edges instead (`early_starts`).
        """
        if may_start_early():
            return
        before = self.enter()
        status = self._fill(self._mark, 0, 1, stream) if self._mark else 0
        if before:
            self.leave(before)
        if status:
            _cuda.raise_status(status, "cuMemsetD8Async")

    @cached_property
    def _mark(self) -> int:
        """The address of a byte that is written between kernels; 0 if none begins early."""
        return int(_cuda.call("cuMemAlloc", 1)) if self._machine.capability >= 90 else 0

    def can_access(self, peer: int) -> bool:
        """Whether kernels of this device can read the memory of device number `peer`."""
        if peer == self._device.index:
            return False
        return bool(_cuda.call("cuDeviceCanAccessPeer", self._number, _cuda.call("cuDeviceGet", peer)))

    def enable_access(self, peer: Device) -> None:
        """Let kernels of this device read and write the memory of `peer`; repeating it is no error."""
        if not self.can_access(peer.index):
            raise DeviceError(f"enable_peer_access: {self._device} cannot access the memory of {peer}")
        other = platform_context(peer)
        with current(self):
            (status,) = _cuda.open_cuda().driver.cuCtxEnablePeerAccess(other, 0)
        if int(status) not in (0, _cuda.PEER_ACCESS_ALREADY_ENABLED):
            _cuda.raise_status(int(status), "cuCtxEnablePeerAccess")


def platform_context(device: Device) -> Any:
    """The driver's context of a CUDA device."""
    platform = device.platform
    if not isinstance(platform, CudaPlatform):
        raise DeviceError(f"{device} has no CUDA context")
    return platform.context


def _text(data: bytes) -> str:
    """A C string: the bytes before the first zero."""
    return data.split(b"\0")[0].decode()


def _dashed(digits: str) -> str:
    """32 hexadecimal digits in UUID notation."""
    ends = (0, 8, 12, 16, 20, 32)
    return "-".join(digits[a:b] for a, b in pairwise(ends))
