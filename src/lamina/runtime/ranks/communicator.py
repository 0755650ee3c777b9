"""`Communicator`: moves host arrays among the ranks of one group.

Implementations provide `exchange`, by which each rank sends arrays to some ranks and receives from some
concurrently. All other collectives are built on it; MPI overrides most. Sums are taken in the order of the ranks,
those of half types in float32: every rank gets the same bits, in every run.
"""

from __future__ import annotations

import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from lamina.runtime.ranks.progress import progress

Array = np.ndarray[Any, Any]


class RankError(ConnectionError):
    """Another rank has ended, or does not answer; the message names it and the operation in progress.

    failed: the rank that is the cause, -1 if no single one is. step, op: where it was, if known.
    """

    failed: int = -1
    step: int = -1
    op: str = ""


def not_awaited(sender: int, receiver: int, sent: str, awaited: Array) -> RankError:
    """The error for a message that does not match what its receiver expects."""
    return RankError(
        f"{progress.op or 'exchange'}: rank {sender} sends rank {receiver} {sent}, where {awaited.size} "
        f"{awaited.dtype} are awaited: both must call the same operations in one order, with tensors of one "
        "shape and dtype"
    )


class Pending(Protocol):
    """An operation in progress."""

    def wait(self) -> None:
        """Return when it is done."""
        ...


class Done:
    """A completed request."""

    def wait(self) -> None:
        """Return at once."""


def _mean(parts: Array) -> Array:
    return np.asarray(np.add.reduce(parts, 0) / np.asarray(len(parts), parts.dtype))


#: Reductions of the ranks' arrays stacked along axis 0.
REDUCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "sum": lambda parts: np.add.reduce(parts, 0),
    "mean": _mean,
    "max": lambda parts: np.maximum.reduce(parts, 0),
    "min": lambda parts: np.minimum.reduce(parts, 0),
}


def reduced(parts: Array, reduction: str) -> Array:
    """The ranks' arrays [ranks, ...] reduced to [...]; types of less than 32 bits are summed in float32."""
    wide = parts.astype(np.float32) if parts.dtype.itemsize < 4 and parts.dtype.kind not in "iub" else parts
    return REDUCTIONS[reduction](wide).astype(parts.dtype)


def _part(x: Array, rank: int) -> Array:
    """A view of one rank's part: for one axis, indexing would copy."""
    return x[rank : rank + 1]


class Communicator(ABC):
    """The ranks of one group. Arrays are host arrays, dense and row-major; every rank makes the same calls in
    one order.

    ranks: the group, as ranks of the world. rank: this process's index among them.
    Methods raise RankError if another rank has ended.
    """

    #: "mpi", "tcp" or "alone".
    transport: str

    def __init__(self, ranks: Sequence[int], rank: int) -> None:
        self.ranks, self.rank = tuple(ranks), rank

    @property
    def size(self) -> int:
        """The number of ranks."""
        return len(self.ranks)

    @abstractmethod
    def exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        """Send an array to each of some ranks, and receive one from each of some; keys are indices in the group."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Release all resources."""

    # ---- built on exchange
    def _others(self) -> list[int]:
        return [r for r in range(self.size) if r != self.rank]

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        self.all_gather(np.zeros(1, np.uint8), np.zeros((self.size, 1), np.uint8))

    def broadcast(self, x: Array, root: int) -> None:
        """Overwrite x with the root's."""
        if self.rank == root:
            self.exchange(dict.fromkeys(self._others(), x), {})
        else:
            self.exchange({}, {root: x})

    def all_gather(self, x: Array, out: Array) -> None:
        """Gather all ranks' x in out [ranks, *x.shape]."""
        out[self.rank] = x
        self.exchange(dict.fromkeys(self._others(), x), {r: _part(out, r) for r in self._others()})

    def all_to_all(self, x: Array, out: Array) -> None:
        """out[i] is x[own rank] of rank i; both [ranks, ...]."""
        out[self.rank] = x[self.rank]
        others = self._others()
        self.exchange({r: _part(x, r) for r in others}, {r: _part(out, r) for r in others})

    def reduce_scatter(self, x: Array, out: Array, reduction: str) -> None:
        """out [...] is the reduction of all ranks' x[own rank]; x [ranks, ...]."""
        parts = np.empty_like(x)
        self.all_to_all(x, parts)
        out[...] = reduced(parts, reduction)

    def all_reduce(self, x: Array, reduction: str) -> None:
        """Reduce x over all ranks, in place: each rank sums one part and sends it to all."""
        share = -(-x.size // self.size)
        parts = np.zeros((self.size, share), x.dtype)
        parts.reshape(-1)[: x.size] = x.reshape(-1)
        own = np.empty(share, x.dtype)
        self.reduce_scatter(parts, own, reduction)
        self.all_gather(own, parts)
        x.reshape(-1)[:] = parts.reshape(-1)[: x.size]

    def start_all_reduce(self, x: Array, reduction: str) -> Pending:
        """Asynchronous `all_reduce`; x may not be touched before it is waited for."""
        self.all_reduce(x, reduction)
        return Done()

    def start_reduce_scatter(self, x: Array, out: Array, reduction: str) -> Pending:
        """Asynchronous `reduce_scatter`; neither array may be touched before it is waited for."""
        self.reduce_scatter(x, out, reduction)
        return Done()

    def send(self, x: Array, to: int) -> None:
        """Send x to a rank, which receives it."""
        self.exchange({to: x}, {})

    def receive(self, x: Array, source: int) -> None:
        """Receive into x from a rank."""
        self.exchange({}, {source: x})

    # ---- objects
    def all_gather_object(self, value: object) -> list[Any]:
        """The values of all ranks. Pickled: ranks trust each other."""
        own = np.frombuffer(pickle.dumps(value), np.uint8)
        sizes = np.zeros((self.size, 1), np.int64)
        self.all_gather(np.array([own.size], np.int64), sizes)
        padded = np.zeros(int(sizes.max()), np.uint8)
        padded[: own.size] = own
        parts = np.zeros((self.size, padded.size), np.uint8)
        self.all_gather(padded, parts)
        return [pickle.loads(part[:count].tobytes()) for part, (count,) in zip(parts, sizes, strict=True)]

    def broadcast_object(self, value: object, root: int) -> Any:
        """The root's value. Pickled: ranks trust each other."""
        own = np.frombuffer(pickle.dumps(value if self.rank == root else None), np.uint8).copy()
        size = np.array([own.size], np.int64)
        self.broadcast(size, root)
        data = own if self.rank == root else np.empty(int(size[0]), np.uint8)
        self.broadcast(data, root)
        return value if self.rank == root else pickle.loads(data.tobytes())


class Alone(Communicator):
    """A group of one rank."""

    transport = "alone"

    def exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        """There is nobody to exchange with."""
        if sends or receives:
            raise RankError(f"rank {self.ranks[0]} is alone in its group: it cannot exchange with others")
