"""Communicators over MPI, by mpi4py and the MPI that it finds: MPICH, Open MPI, a cluster's own."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lamina._lazy import lazy
from lamina.runtime.ranks.communicator import Communicator, Done, Pending, RankError, not_awaited, reduced

Array = np.ndarray[Any, Any]
_mpi4py = lazy("mpi4py", {"MPI": "mpi4py.MPI"})
#: Types that MPI reduces itself; others use the sums of `Communicator`.
_NATIVE = frozenset("bhilqBHILQfd")


def open_mpi() -> Any:
    """mpi4py's MPI, initialized. Raises ImportError with installation advice."""
    try:
        return _mpi4py("MPI")
    except (ImportError, RuntimeError) as error:
        raise ImportError(
            f"MPI cannot be used ({error}): pip install 'lamina[mpi]', or mpi4py for the MPI of this machine; or "
            f"start "
            "the ranks by torchrun or `lamina run`, which need none"
        ) from error


class MpiCommunicator(Communicator):
    """The ranks of one group, with an MPI communicator of their own."""

    transport = "mpi"

    def __init__(self, ranks: Sequence[int]) -> None:
        mpi = self._mpi = open_mpi()
        group = mpi.COMM_WORLD.Get_group().Incl(list(ranks))
        self._comm = mpi.COMM_WORLD.Create_group(group)  # called only by the group's ranks
        super().__init__(ranks, self._comm.rank)
        self._ops = {"sum": mpi.SUM, "mean": mpi.SUM, "max": mpi.MAX, "min": mpi.MIN}

    def close(self) -> None:
        """Free the communicator."""
        if not self._mpi.Is_finalized():
            self._comm.Free()

    def exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        """By nonblocking calls, whose tags encode the type. Raises RankError for an unexpected message."""
        mpi = self._mpi
        requests = [self._comm.Irecv(_bytes_of(x), r, mpi.ANY_TAG) for r, x in receives.items()]
        requests += [self._comm.Isend(_bytes_of(x), r, _tag(x)) for r, x in sends.items()]
        found = [mpi.Status() for _ in requests]
        try:
            mpi.Request.Waitall(requests, found)
        except mpi.Exception as error:
            for (r, x), status in zip(receives.items(), found, strict=False):
                if mpi.Get_error_class(status.Get_error()) == mpi.ERR_TRUNCATE:
                    raise self._not_awaited(r, "more bytes", x) from error
            raise
        for (r, x), status in zip(receives.items(), found, strict=False):
            if (count := status.Get_count(mpi.BYTE)) != x.nbytes or status.Get_tag() != _tag(x):
                raise self._not_awaited(r, f"{count} bytes, or another type", x)

    def _not_awaited(self, source: int, sent: str, x: Array) -> RankError:
        return not_awaited(self.ranks[source], self.ranks[self.rank], sent, x)

    def barrier(self) -> None:
        """MPI_Barrier."""
        self._comm.Barrier()

    def broadcast(self, x: Array, root: int) -> None:
        """MPI_Bcast."""
        self._comm.Bcast(_bytes_of(x), root)

    def all_gather(self, x: Array, out: Array) -> None:
        """MPI_Allgather."""
        self._comm.Allgather(_bytes_of(x), _bytes_of(out))

    def all_to_all(self, x: Array, out: Array) -> None:
        """MPI_Alltoall."""
        self._comm.Alltoall(_bytes_of(x), _bytes_of(out))

    def all_reduce(self, x: Array, reduction: str) -> None:
        """MPI_Allreduce, if MPI supports the reduction."""
        self.start_all_reduce(x, reduction).wait()

    def start_all_reduce(self, x: Array, reduction: str) -> Pending:
        """MPI_Iallreduce, if MPI supports the reduction.

        MPI's maximum with a NaN depends on the order, so that ranks would get different results.
        """
        if x.dtype.char not in _NATIVE or (x.dtype.kind == "f" and reduction in ("max", "min")):
            super().all_reduce(x, reduction)
            return Done()
        request = self._comm.Iallreduce(self._mpi.IN_PLACE, x.reshape(-1), self._ops[reduction])
        return _AllReduce(request, x, self.size if reduction == "mean" else 1)

    def start_reduce_scatter(self, x: Array, out: Array, reduction: str) -> Pending:
        """MPI_Ialltoall; sums are taken at the wait, in the order of the ranks."""
        parts = np.empty_like(x)
        return _ReduceScatter(self._comm.Ialltoall(_bytes_of(x), _bytes_of(parts)), x, parts, out, reduction)


class _ReduceScatter:
    """MPI_Ialltoall, and the reduction of the received parts. Holds the send buffer until then."""

    def __init__(self, request: Any, x: Array, parts: Array, out: Array, reduction: str) -> None:
        self._request, self._x, self._parts, self._out = request, x, parts, out
        self._reduction = reduction

    def wait(self) -> None:
        self._request.Wait()
        self._out[...] = reduced(self._parts, self._reduction)


class _AllReduce:
    """MPI_Iallreduce, and the division that turns a sum into a mean."""

    def __init__(self, request: Any, x: Array, divisor: int) -> None:
        self._request, self._x, self._divisor = request, x, divisor

    def wait(self) -> None:
        self._request.Wait()
        if self._divisor > 1:
            np.divide(self._x, self._divisor, out=self._x, casting="unsafe")


def _tag(x: Array) -> int:
    """A number for the element type, small enough for every MPI."""
    return zlib.crc32(x.dtype.name.encode()) & 0x7FFF


def _bytes_of(x: Array) -> list[Any]:
    return [x.reshape(-1).view(np.uint8), _mpi4py("MPI").BYTE]
