"""Watched communicators: each call reports its operation, and an error due to a rank names that rank."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from lamina.runtime.ranks.communicator import Array, Communicator, Pending
from lamina.runtime.ranks.progress import group_name, progress
from lamina.runtime.ranks.watchdog import collective


class WatchedCommunicator(Communicator):
    """Wraps a communicator, reporting its calls to the watchdogs of all ranks. size: of the world."""

    def __init__(self, inner: Communicator, size: int) -> None:
        super().__init__(inner.ranks, inner.rank)
        self.transport = inner.transport
        self._inner = inner
        self._group = group_name(inner.ranks, size)

    def _collective(
        self, op: str, x: Array | None = None, detail: object = ""
    ) -> AbstractContextManager[None]:
        """A call made by all ranks of the group, with x of the same type and shape on all of them."""
        if not progress.within:  # a nested operation is reported by the outer one
            of = "" if x is None else f" of {x.dtype}{list(x.shape)}"
            progress.comes_to(self._group, f"{op}{f' ({detail})' if detail != '' else ''}{of}")
        return collective(op, self._group)

    def close(self) -> None:
        """Release all resources."""
        self._inner.close()

    def exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        """Send and receive concurrently."""
        ranks = sorted(self.ranks[r] for r in {self.rank, *sends, *receives})
        with collective(
            "send_receive", ",".join(map(str, ranks)), counted=False
        ):  # other ranks have other partners
            self._inner.exchange(sends, receives)

    def barrier(self) -> None:
        """Return when all ranks have called it."""
        with self._collective("barrier"):
            self._inner.barrier()

    def broadcast(self, x: Array, root: int) -> None:
        """Overwrite x with the root's."""
        with self._collective("broadcast", x, f"from {self.ranks[root]}"):
            self._inner.broadcast(x, root)

    def all_gather(self, x: Array, out: Array) -> None:
        """Gather all ranks' x in out [ranks, *x.shape]."""
        with self._collective("all_gather", x):
            self._inner.all_gather(x, out)

    def all_to_all(self, x: Array, out: Array) -> None:
        """out[i] is x[own rank] of rank i; both [ranks, ...]."""
        with self._collective("all_to_all", x):
            self._inner.all_to_all(x, out)

    def reduce_scatter(self, x: Array, out: Array, reduction: str) -> None:
        """out [...] is the reduction of all ranks' x[own rank]; x [ranks, ...]."""
        with self._collective("reduce_scatter", x, reduction):
            self._inner.reduce_scatter(x, out, reduction)

    def all_reduce(self, x: Array, reduction: str) -> None:
        """Reduce x over all ranks, in place."""
        with self._collective("all_reduce", x, reduction):
            self._inner.all_reduce(x, reduction)

    def start_all_reduce(self, x: Array, reduction: str) -> Pending:
        """Asynchronous `all_reduce`, watched during the wait."""
        with self._collective("all_reduce", x, reduction):
            return _WatchedPending(self._inner.start_all_reduce(x, reduction), "all_reduce", self._group)

    def start_reduce_scatter(self, x: Array, out: Array, reduction: str) -> Pending:
        """Asynchronous `reduce_scatter`, watched during the wait."""
        with self._collective("reduce_scatter", x, reduction):
            inner = self._inner.start_reduce_scatter(x, out, reduction)
            return _WatchedPending(inner, "reduce_scatter", self._group)


class _WatchedPending:
    """An operation in progress that involves other ranks."""

    def __init__(self, inner: Pending, op: str, group: str) -> None:
        self._inner, self._op, self._group = inner, op, group

    def wait(self) -> None:
        """Return when it is done."""
        with collective(self._op, self._group, counted=False):
            self._inner.wait()
