"""Communicators between GPUs: NCCL, by NVIDIA's nccl4py. One GPU per rank; calls are queued on a stream, and can be
captured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lamina._lazy import lazy
from lamina.runtime.errors import DeviceError
from lamina.runtime.ranks.watchdog import on_fault

if TYPE_CHECKING:
    from lamina.runtime.compute_device import Device

_core, _bindings = lazy("nccl", {"core": "nccl.core"}), lazy("nccl.bindings", {"nccl": "nccl.bindings.nccl"})
#: ncclDataType_t by the names of element types; data that is only moved goes as bytes.
_BYTES = 1
_TYPES = {
    "int8": 0, "uint8": 1, "int32": 2, "int64": 4, "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9,
}  # fmt: skip
_REDUCTIONS = {"sum": 0, "max": 2, "min": 3, "mean": 4}


class NcclCommunicator:
    """The ranks of one group, each with a GPU. Addresses are of that GPU's memory, counts in elements or bytes.

    tell: broadcasts an object of the group's first rank, for NCCL's unique id.
    Raises ImportError with installation advice.
    """

    def __init__(self, size: int, rank: int, device: Device, tell: Callable[[Any], Any]) -> None:
        try:
            core, self._calls = _core("core"), _bindings("nccl")
        except ImportError as error:
            raise ImportError(
                f"NCCL cannot be used ({error}): pip install 'lamina[nccl-cu13]' (or nccl-cu12)"
            ) from error
        self.size, self.rank, self.device = size, rank, device
        unique = core.UniqueId.from_bytes(tell(bytes(core.get_unique_id()) if rank == 0 else b""))
        with device.current():
            self._owner = core.Communicator.init(size, rank, unique)
        self._comm = self._calls.Comm(self._owner.ptr)
        self._is_open, self._forget = True, on_fault(lambda: self._end(self._owner.abort))

    def close(self, *, abort: bool = False) -> None:
        """Release NCCL's resources. Graphs that use it must be gone, or it waits forever; abort: ranks may be
        gone, do not wait for them. A failing rank also aborts it, so that kernels that wait for it end."""
        if self._is_open:
            self._forget()
            self._end(self._owner.abort if abort else self._owner.destroy)

    def _end(self, how: Callable[[], None]) -> None:
        self._is_open = False
        how()

    def all_reduce(self, x: int, y: int, count: int, dtype: str, reduction: str, stream: int) -> None:
        """y is the reduction of all ranks' x; they may be the same."""
        self._calls.all_reduce(x, y, count, _type(dtype), _REDUCTIONS[reduction], self._comm, stream)

    def reduce(self, x: int, y: int, count: int, dtype: str, reduction: str, root: int, stream: int) -> None:
        """y of the root is the reduction of all ranks' x."""
        self._calls.reduce(x, y, count, _type(dtype), _REDUCTIONS[reduction], root, self._comm, stream)

    def reduce_scatter(self, x: int, y: int, count: int, dtype: str, reduction: str, stream: int) -> None:
        """y [count] is the reduction of all ranks' x[own rank], x [ranks, count]."""
        self._calls.reduce_scatter(x, y, count, _type(dtype), _REDUCTIONS[reduction], self._comm, stream)

    def all_gather(self, x: int, y: int, nbytes: int, stream: int) -> None:
        """y [ranks, nbytes] is all ranks' x."""
        self._calls.all_gather(x, y, nbytes, _BYTES, self._comm, stream)

    def broadcast(self, x: int, y: int, nbytes: int, root: int, stream: int) -> None:
        """y is the root's x."""
        self._calls.broadcast(x, y, nbytes, _BYTES, root, self._comm, stream)

    def exchange(
        self, sends: Sequence[tuple[int, int]], receives: Sequence[tuple[int, int]], nbytes: int, stream: int
    ) -> None:
        """Send from addresses to ranks and receive at addresses from ranks concurrently: (address, rank) each."""
        self._calls.group_start()
        for address, rank in sends:
            self._calls.send(address, nbytes, _BYTES, rank, self._comm, stream)
        for address, rank in receives:
            self._calls.recv(address, nbytes, _BYTES, rank, self._comm, stream)
        self._calls.group_end()

    def grouped(self, calls: Sequence[Callable[[], None]]) -> None:
        """Several calls as one launch."""
        self._calls.group_start()
        for one in calls:
            one()
        self._calls.group_end()


def _type(dtype: str) -> int:
    """NCCL's number of an element type. Raises DeviceError for types that it cannot sum."""
    if dtype not in _TYPES:
        raise DeviceError(f"NCCL cannot reduce {dtype}; cast it to one of {', '.join(_TYPES)}")
    return _TYPES[dtype]
