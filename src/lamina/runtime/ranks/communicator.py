"""`Communicator`: how the ranks of one group move arrays of the host.

Whoever implements it gives `exchange`, by which each rank sends arrays to some ranks and receives from some at
once. All
else is made of that; MPI has calls of its own for most. Sums are taken in the order of the ranks, those of half
types in float32: every rank gets the same bits, in every run.
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
    """Another rank has ended, or does not answer; the message names it and what was under way.

    failed: the rank that is the cause, -1 where none alone is. step, op: where it was, as far as it is known.
    """

    failed: int = -1
    step: int = -1
    op: str = ""


def not_awaited(sender: int, receiver: int, sent: str, awaited: Array) -> RankError:
    """The error where a rank sends another one what that does not await."""
    return RankError(
        f"{progress.op or 'exchange'}: rank {sender} sends rank {receiver} {sent}, where {awaited.size} "
        f"{awaited.dtype} are awaited: both must call the same operations in one order, with tensors of one "
        "shape and dtype"
    )


class Pending(Protocol):
    """Something under way."""

    def wait(self) -> None:
        """Return when it is done."""
        ...


class Done:
    """A request that is over."""

    def wait(self) -> None:
        """Return at once."""


def _mean(parts: Array) -> Array:
    return np.asarray(np.add.reduce(parts, 0) / np.asarray(len(parts), parts.dtype))


#: What ranks' arrays, stacked along axis 0, become.
REDUCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "sum": lambda parts: np.add.reduce(parts, 0),
    "mean": _mean,
    "max": lambda parts: np.maximum.reduce(parts, 0),
    "min": lambda parts: np.minimum.reduce(parts, 0),
}


def reduced(parts: Array, reduction: str) -> Array:
    """Ranks' arrays [ranks, ...] as one, [...]; types of less than 32 bits are summed in float32."""
    wide = parts.astype(np.float32) if parts.dtype.itemsize < 4 and parts.dtype.kind not in "iub" else parts
    return REDUCTIONS[reduction](wide).astype(parts.dtype)


def _part(x: Array, rank: int) -> Array:
    """A rank's part, in the same memory: of one axis alone, an index would give a copy."""
    return x[rank : rank + 1]


class Communicator(ABC):
    """The ranks of one group. Arrays are of the host, dense and row-major; every rank makes the same calls in
    one order.

    ranks: the group, as ranks of the world. rank: this process's place among them.
    Methods raise RankError where another rank has ended.
    """

    #: "mpi", "tcp" or "alone".
    transport: str

    def __init__(self, ranks: Sequence[int], rank: int) -> None:
        self.ranks, self.rank = tuple(ranks), rank

    @property
    def size(self) -> int:
        """How many ranks."""
        return len(self.ranks)

    @abstractmethod
    def exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        """Send an array to each of some ranks, and receive one from each of some; keys are places in the group."""

    def close(self) -> None:  # noqa: B027 - most hold nothing
        """Give back what it holds."""

    # ---- what is made of it
    def _others(self) -> list[int]:
        return [r for r in range(self.size) if r != self.rank]

    def barrier(self) -> None:
        """Return when all ranks have come."""
        self.all_gather(np.zeros(1, np.uint8), np.zeros((self.size, 1), np.uint8))

    def broadcast(self, x: Array, root: int) -> None:
        """x becomes the root's."""
        if self.rank == root:
            self.exchange(dict.fromkeys(self._others(), x), {})
        else:
            self.exchange({}, {root: x})

    def all_gather(self, x: Array, out: Array) -> None:
        """out [ranks, *x.shape]: everybody's x."""
        out[self.rank] = x
        self.exchange(dict.fromkeys(self._others(), x), {r: _part(out, r) for r in self._others()})

    def all_to_all(self, x: Array, out: Array) -> None:
        """out[i] is what rank i has in its x[own rank]; both [ranks, ...]."""
        out[self.rank] = x[self.rank]
        others = self._others()
        self.exchange({r: _part(x, r) for r in others}, {r: _part(out, r) for r in others})

    def reduce_scatter(self, x: Array, out: Array, reduction: str) -> None:
        """out [...] is the reduction of everybody's x[own rank]; x [ranks, ...]."""
        parts = np.empty_like(x)
        self.all_to_all(x, parts)
        out[...] = reduced(parts, reduction)

    def all_reduce(self, x: Array, reduction: str) -> None:
        """x becomes the reduction of everybody's x: each rank sums one part and sends it to all."""
        share = -(-x.size // self.size)
        parts = np.zeros((self.size, share), x.dtype)
        parts.reshape(-1)[: x.size] = x.reshape(-1)
        own = np.empty(share, x.dtype)
        self.reduce_scatter(parts, own, reduction)
        self.all_gather(own, parts)
        x.reshape(-1)[:] = parts.reshape(-1)[: x.size]

    def start_all_reduce(self, x: Array, reduction: str) -> Pending:
        """`all_reduce` that goes on beside the caller; x may not be touched before it is waited for."""
        self.all_reduce(x, reduction)
        return Done()

    def start_reduce_scatter(self, x: Array, out: Array, reduction: str) -> Pending:
        """`reduce_scatter` that goes on beside the caller; neither array may be touched before it is waited for."""
        self.reduce_scatter(x, out, reduction)
        return Done()

    def send(self, x: Array, to: int) -> None:
        """Send x to a rank, which receives it."""
        self.exchange({to: x}, {})

    def receive(self, x: Array, source: int) -> None:
        """x becomes what a rank sends."""
        self.exchange({}, {source: x})

    # ---- objects
    def all_gather_object(self, value: object) -> list[Any]:
        """Everybody's value, pickled on the way: ranks trust each other."""
        own = np.frombuffer(pickle.dumps(value), np.uint8)
        sizes = np.zeros((self.size, 1), np.int64)
        self.all_gather(np.array([own.size], np.int64), sizes)
        padded = np.zeros(int(sizes.max()), np.uint8)
        padded[: own.size] = own
        parts = np.zeros((self.size, padded.size), np.uint8)
        self.all_gather(padded, parts)
        return [pickle.loads(part[:count].tobytes()) for part, (count,) in zip(parts, sizes, strict=True)]

    def broadcast_object(self, value: object, root: int) -> Any:
        """The root's value, pickled on the way."""
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
