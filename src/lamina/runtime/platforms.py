"""What differs between kinds of device, in one place: a `Platform` per device, made when it is first used."""

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
from lamina.runtime.cores import usable_cores
from lamina.runtime.errors import DeviceError, NoGpuError
from lamina.runtime.fork import renew_after_fork
from lamina.runtime.machine import Machine, measured
from lamina.runtime.memory import Arena, HostResource, cap_from_environment, host_copy, host_fill
from lamina.runtime.stream import CudaStream, Stream, may_start_early, no_capture

if TYPE_CHECKING:
    from lamina.runtime.compute_device import Device
    from lamina.runtime.memory import Buffer

_PORTABLE = 1  # CU_MEMHOSTALLOC_PORTABLE: pinned for every context
_ATTACH_GLOBAL = 1  # CU_MEM_ATTACH_GLOBAL: every stream may use it
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: it does not wait for the legacy default stream
_NAME_BYTES = 256


class MemoryInfo(NamedTuple):
    """Bytes that can still be had, and bytes that there are."""

    free: int
    total: int


class Platform(Protocol):
    """What a device can do; `HostPlatform` and `CudaPlatform` are the two there are."""

    arena: Arena
    pinned: Arena
    managed: Arena
    default_stream: Stream
    #: Pinned memory of one size, as an array too, for values on their way to the host; `append` and `pop` are atomic.
    landing: list[tuple[Buffer, np.ndarray[Any, Any]]]

    def name(self) -> str:
        """The model, as the vendor calls it."""
        ...

    def stream(self, priority: int) -> Stream:
        """A new stream."""
        ...

    def synchronize(self) -> None:
        """Wait for all work on the device."""
        ...

    def make_current(self) -> None:
        """Let driver calls of this thread go to the device, from now on."""
        ...

    def enter(self) -> int:
        """Let driver calls of this thread go to the device until `leave` is called with the result."""
        ...

    def leave(self, before: int) -> None:
        """Let driver calls of this thread go where they went before `enter`, which returned `before`."""
        ...

    def memory_info(self) -> MemoryInfo:
        """Free and total memory."""
        ...

    def properties(self) -> dict[str, Any]:
        """Everything the device tells about itself."""
        ...

    def machine(self) -> Machine:
        """Sizes and rates that plans are made from."""
        ...

    def copy(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        """Queue a copy."""
        ...

    def fill(self, destination: int, byte: int, nbytes: int, stream: Stream) -> None:
        """Queue a memset."""
        ...

    def wait_for_ends(self, stream: int) -> None:
        """Let the kernel that a library queues next on a stream, by its handle, begin when those before it ended."""
        ...

    def can_access(self, peer: int) -> bool:
        """Whether kernels here can read the memory of device number `peer`."""
        ...

    def enable_access(self, peer: Device) -> None:
        """Let kernels here read and write the memory of `peer`."""
        ...


@contextmanager
def current(platform: Platform) -> Iterator[None]:
    """Let driver calls of this thread go to a device inside the ``with`` block, then as before it."""
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
        """A stream on which all work is done at once."""
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
        """Memory that the system can still give, and all there is."""
        fields = {line.split(":")[0]: line.split()[1] for line in _lines("/proc/meminfo") if ":" in line}
        if "MemAvailable" in fields:
            return MemoryInfo(int(fields["MemAvailable"]) << 10, int(fields["MemTotal"]) << 10)
        page = os.sysconf("SC_PAGE_SIZE")
        return MemoryInfo(os.sysconf("SC_AVPHYS_PAGES") * page, os.sysconf("SC_PHYS_PAGES") * page)

    def properties(self) -> dict[str, Any]:
        """Name, architecture, cores this process may use, and instruction sets."""
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
        """The processor, with rates measured when they are first asked for (a tenth of a second)."""
        return self._machine

    def copy(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        """Copy within host memory."""
        host_copy(destination, source, nbytes)

    def fill(self, destination: int, byte: int, nbytes: int, stream: Stream) -> None:
        """Set host memory."""
        host_fill(destination, byte, nbytes)

    def wait_for_ends(self, stream: int) -> None:
        """Nothing: what is queued has ended when the call returns."""

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

    Not from stream-ordered pools: the arena does their work, plain memory may be allocated while
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
        """Give the block back; the driver waits for work that uses it."""
        with current(self._platform):
            _cuda.call("cuMemFree", pointer)


class PinnedResource(CudaResource):
    """Page-locked host memory, which a GPU copies to and from on its own while the program goes on."""

    def allocate(self, nbytes: int) -> tuple[int, object]:
        """Address of `nbytes` fresh page-locked bytes."""
        with current(self._platform):
            return int(_cuda.call("cuMemHostAlloc", nbytes, _PORTABLE)), None

    def free(self, pointer: int, owner: object) -> None:
        """Unlock and give back."""
        with current(self._platform):
            _cuda.call("cuMemFreeHost", pointer)


class ManagedResource(CudaResource):
    """Managed memory: one address for the CPU and the GPU, pages move on use."""

    def allocate(self, nbytes: int) -> tuple[int, object]:
        """Address of `nbytes` fresh managed bytes; never more than the device has free.

        A GPU whose managed memory does not fit thrashes and may hang, so that is refused.
        """
        if nbytes > self._platform.memory_info().free:
            raise MemoryError
        with current(self._platform):
            return int(_cuda.call("cuMemAllocManaged", nbytes, _ATTACH_GLOBAL)), None


class CudaPlatform:
    """One NVIDIA GPU, through its primary context (the one that PyTorch and CuPy use too)."""

    def __init__(self, device: Device) -> None:
        cuda = _cuda.open_cuda()
        if device.index >= _cuda.probe().count:
            raise NoGpuError(
                f"{device} does not exist: this machine shows {_cuda.probe().count} CUDA device(s)"
            )
        self._device = device
        # Asking precedes every launch: 0.1 us by the bindings against 0.3 us by ctypes, which needs a cell for it.
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
        """In a forked child, where the driver does not work: every call that would reach it says so."""
        self._get_current = self._set_current = self._copy = self._fill = _cuda.refuse_forked  # type: ignore[assignment]

    def make_current(self) -> None:
        """Let driver calls of this thread go to this device."""
        if status := self._set_current(self._handle):
            _cuda.raise_status(status, "cuCtxSetCurrent")

    def enter(self) -> int:
        """Make this device current; the context for `leave` to make current again, 0 where nothing is to be.

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
        """Make the context current again that was so before `enter`."""
        if before and (status := self._set_current(ctypes.c_void_p(before))):
            _cuda.raise_status(status, "cuCtxSetCurrent")

    def name(self) -> str:
        """The model, as the driver calls it."""
        return _text(_cuda.call("cuDeviceGetName", _NAME_BYTES, self._number))

    def stream(self, priority: int) -> Stream:
        """A new non-blocking stream; lower numbers go first, 0 goes last. ValueError: no such priority."""
        return self._make_stream(priority, owned=True)

    def _make_stream(self, priority: int, *, owned: bool) -> CudaStream:
        with current(self):
            low, high = map(int, _cuda.call("cuCtxGetStreamPriorityRange"))
            if not high <= priority <= low:  # the driver would take the nearest
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
        """The attributes that the driver knows; the bindings may have newer ones."""
        driver = _cuda.open_cuda().driver
        names = {
            name.removeprefix("CU_DEVICE_ATTRIBUTE_").lower(): one
            for name, one in driver.CUdevice_attribute.__members__.items()
        }
        del names["max"]  # how many there are
        answers = {name: driver.cuDeviceGetAttribute(one, self._number) for name, one in names.items()}
        return {name: int(value) for name, (status, value) in answers.items() if not int(status)}

    @cached_property
    def _machine(self) -> Machine:
        return Machine.from_properties(self.properties())

    def machine(self) -> Machine:
        """Sizes and clocks as the driver tells them, rates by the model or estimated."""
        return self._machine

    def copy(self, destination: int, source: int, nbytes: int, stream: Stream) -> None:
        """Queue a copy; the driver sees from the addresses where they are, peers included."""
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
        """Queue a memset of one byte, which kernels of a library do not overtake.

        From compute capability 9.0 on libraries launch kernels so that they may begin while the one before them
        still runs (programmatic dependent launch). Queued one by one beside other processes, such kernels gave wrong
        numbers in 4.6 % of 20,000 runs of ResNet-18 (cuDNN 9.19), behind a memset in none; events between them
        changed nothing. Graphs that are captured here have whole edges instead (`early_starts`).
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
        """The address of a byte that is written between kernels; 0 where none begins early."""
        return int(_cuda.call("cuMemAlloc", 1)) if self._machine.capability >= 90 else 0

    def can_access(self, peer: int) -> bool:
        """Whether kernels here can read the memory of device number `peer`."""
        if peer == self._device.index:
            return False
        return bool(_cuda.call("cuDeviceCanAccessPeer", self._number, _cuda.call("cuDeviceGet", peer)))

    def enable_access(self, peer: Device) -> None:
        """Let kernels here read and write the memory of `peer`; again is no error."""
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
    """C's text: what comes before the first zero."""
    return data.split(b"\0")[0].decode()


def _dashed(digits: str) -> str:
    """32 hexadecimal digits as a UUID is written."""
    ends = (0, 8, 12, 16, 20, 32)
    return "-".join(digits[a:b] for a, b in pairwise(ends))
