"""Communicators under watch: each call says what it is, and what fails because of a rank says of which."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager

from lamina.runtime.ranks.communicator import Array, Communicator, Pending
from lamina.runtime.ranks.progress import group_name, progress
from lamina.runtime.ranks.watchdog import collective


class WatchedCommunicator(Communicator):
    """Another communicator, whose calls the watchdogs of all ranks know of. size: of the world."""

    def __init__(self, inner: Communicator, size: int) -> None:
        super().__init__(inner.ranks, inner.rank)
        self.transport = inner.transport
        self._inner = inner
        self._group = group_name(inner.ranks, size)

    def _collective(
        self, op: str, x: Array | None = None, detail: object = ""
    ) -> AbstractContextManager[None]:
        """A call that all ranks of the group make, x being alike on all of them."""
        if not progress.within:  # a part of another one is known by that
            of = "" if x is None else f" of {x.dtype}{list(x.shape)}"
            progress.comes_to(self._group, f"{op}{f' ({detail})' if detail != '' else ''}{of}")
        return collective(op, self._group)

    def close(self) -> None:
        """Give back what it holds."""
        self._inner.close()

    def exchange(self, sends: Mapping[int, Array], receives: Mapping[int, Array]) -> None:
        """Send and receive at once."""
        ranks = sorted(self.ranks[r] for r in {self.rank, *sends, *receives})
        with collective(
            "send_receive", ",".join(map(str, ranks)), counted=False
        ):  # others have other partners
            self._inner.exchange(sends, receives)

    def barrier(self) -> None:
        """Return when all ranks have come."""
        with self._collective("barrier"):
            self._inner.barrier()

    def broadcast(self, x: Array, root: int) -> None:
        """x becomes the root's."""
        with self._collective("broadcast", x, f"from {self.ranks[root]}"):
            self._inner.broadcast(x, root)

    def all_gather(self, x: Array, out: Array) -> None:
        """out [ranks, *x.shape]: everybody's x."""
        with self._collective("all_gather", x):
            self._inner.all_gather(x, out)

    def all_to_all(self, x: Array, out: Array) -> None:
        """out[i] is what rank i has in its x[own rank]; both [ranks, ...]."""
        with self._collective("all_to_all", x):
            self._inner.all_to_all(x, out)

    def reduce_scatter(self, x: Array, out: Array, reduction: str) -> None:
        """out [...] is the reduction of everybody's x[own rank]; x [ranks, ...]."""
        with self._collective("reduce_scatter", x, reduction):
            self._inner.reduce_scatter(x, out, reduction)

    def all_reduce(self, x: Array, reduction: str) -> None:
        """x becomes the reduction of everybody's x."""
        with self._collective("all_reduce", x, reduction):
            self._inner.all_reduce(x, reduction)

    def start_all_reduce(self, x: Array, reduction: str) -> Pending:
        """`all_reduce` that goes on beside the caller, under watch while it is waited for."""
        with self._collective("all_reduce", x, reduction):
            return _WatchedPending(self._inner.start_all_reduce(x, reduction), "all_reduce", self._group)

    def start_reduce_scatter(self, x: Array, out: Array, reduction: str) -> Pending:
        """`reduce_scatter` that goes on beside the caller, under watch while it is waited for."""
        with self._collective("reduce_scatter", x, reduction):
            inner = self._inner.start_reduce_scatter(x, out, reduction)
            return _WatchedPending(inner, "reduce_scatter", self._group)


class _WatchedPending:
    """Something under way that other ranks take part in."""

    def __init__(self, inner: Pending, op: str, group: str) -> None:
        self._inner, self._op, self._group = inner, op, group

    def wait(self) -> None:
        """Return when it is done."""
        with collective(self._op, self._group, counted=False):
            self._inner.wait()
