"""`World`: all ranks, this process among them, and the communicators of their groups."""

from __future__ import annotations

import os
import socket
import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

from lamina.runtime.compute_device import Device, take_gpu
from lamina.runtime.ranks.communicator import Alone, Communicator
from lamina.runtime.ranks.launcher import Launcher, find_launcher
from lamina.runtime.ranks.monitor import RankMonitor
from lamina.runtime.ranks.mpi import MpiCommunicator, open_mpi
from lamina.runtime.ranks.nccl import NcclCommunicator
from lamina.runtime.ranks.progress import progress
from lamina.runtime.ranks.sockets import SocketCommunicator, SocketMesh
from lamina.runtime.ranks.store import Store
from lamina.runtime.ranks.verdict import Limits
from lamina.runtime.ranks.watchdog import MONITOR, unwatch, watch, watchdog
from lamina.runtime.ranks.watched import WatchedCommunicator


class UsesCommunicators(Protocol):
    """An object that must release communicators before they are closed."""

    def unbind(self) -> None:
        """Release the communicators."""
        ...


class World:
    """This process among its ranks.

    launcher: the launch environment. transport: "mpi", "tcp", or "alone" for one rank.
    store: where ranks meet, None over MPI and for one rank. timeout: seconds until a silent rank is given up
    (over TCP).
    """

    def __init__(
        self, launcher: Launcher, transport: str, timeout: float, fault_timeout: float | None = None
    ) -> None:
        self.launcher, self.timeout = launcher, timeout
        self.rank, self.size = launcher.rank, launcher.world_size
        self.local_rank, self.local_size = launcher.local_rank, launcher.local_size
        self.transport = "alone" if self.size == 1 else transport
        self.store: Store | None = None
        self._mesh: SocketMesh | None = None
        self._communicators: dict[tuple[int, ...], Communicator] = {}
        self._gpu_communicators: dict[tuple[tuple[int, ...], int], NcclCommunicator] = {}
        self._users: weakref.WeakSet[UsesCommunicators] = weakref.WeakSet()
        self._lock = threading.Lock()
        if self.size > 1 and fault_timeout is not None and MONITOR in os.environ and watchdog() is None:
            watch(os.environ[MONITOR], self.rank)
        with progress.patience(timeout, "meeting the other ranks"):
            if self.transport == "tcp":
                self._meet(launcher)
            elif self.transport == "mpi":
                _check_mpi(launcher)
            if self.size > 1 and fault_timeout is not None and watchdog() is None:
                self._watch(fault_timeout)

    def _watch(self, fault_timeout: float) -> None:
        """With a monitor in rank 0."""
        communicator, monitor = self.communicator(), None
        if self.rank == 0:
            here = "127.0.0.1" if self.local_size == self.size else socket.gethostname()
            monitor = RankMonitor(self.size, Limits(fault_timeout), host=here, holder=0)
            monitor.start()
        watch(communicator.broadcast_object(monitor and monitor.address, 0), self.rank, monitor)
        communicator.barrier()  # otherwise rank 0, and its monitor, might be done already

    def _meet(self, launcher: Launcher) -> None:
        """With a store in rank 0."""
        if launcher.address is None or launcher.port is None:
            raise ValueError(
                f"init: {launcher} without MASTER_ADDR and MASTER_PORT, where the ranks would meet: set them, or "
                f"install "
                "mpi4py (pip install 'lamina[mpi]') for what mpirun starts"
            )
        self.store = Store(launcher.address, launcher.port, serve=self.rank == 0, timeout=self.timeout)
        try:
            self._mesh = SocketMesh(self.store, self.rank, self.size, self.timeout)
        except BaseException:  # so that the ranks may retry
            self.store.close()
            raise

    def __repr__(self) -> str:
        return f"World({self.launcher}; local rank {self.local_rank} of {self.local_size}; {self.transport})"

    def communicator(self, ranks: Sequence[int] | None = None) -> Communicator:
        """The communicator of some ranks, by default of all; created collectively at first use.

        Raises ValueError if this rank is not among them, or they are not in this world.
        """
        group = tuple(range(self.size)) if ranks is None else tuple(ranks)
        with self._lock:
            found = self._communicators.get(group)
            if found is None:
                found = self._communicators[group] = self._made(group)
            return found

    def _made(self, group: tuple[int, ...]) -> Communicator:
        if any(not 0 <= r < self.size for r in group):
            raise ValueError(
                f"a group of ranks {group} needs a world of more than {self.size}: was lamina.distributed.init() "
                f"called?"
            )
        if self.rank not in group:
            raise ValueError(
                f"rank {self.rank} is not in the group of ranks {group}: only its members may use it"
            )
        if len(group) == 1:
            return Alone(group, 0)
        if self._mesh is not None:
            return WatchedCommunicator(
                SocketCommunicator(group, group.index(self.rank), self._mesh), self.size
            )
        return WatchedCommunicator(MpiCommunicator(group), self.size)

    def gpu_communicator(self, ranks: Sequence[int], device: Device) -> NcclCommunicator:
        """The communicator of some ranks' GPUs; created collectively at first use."""
        key = (tuple(ranks), device.index)
        found = self._gpu_communicators.get(key)
        if found is None:
            host = self.communicator(ranks)
            found = NcclCommunicator(host.size, host.rank, device, lambda x: host.broadcast_object(x, 0))
            self._gpu_communicators[key] = found
        return found

    def closes_first(self, held: UsesCommunicators) -> None:
        """Register a user of communicators (a captured graph), to be closed before them if it still lives."""
        self._users.add(held)

    def close(self, *, abort: bool = False) -> None:
        """Close all communicators, after their users. abort: other ranks may be gone, do not wait for them."""
        for user in list(self._users):
            user.unbind()
        for gpus in self._gpu_communicators.values():
            gpus.close(abort=abort)
        self._gpu_communicators = {}
        for communicator in self._communicators.values():
            communicator.close()
        self._communicators = {}
        if self._mesh is not None:
            self._mesh.close()
        if self.store is not None:
            self.store.close()
        unwatch()


def _check_mpi(launcher: Launcher) -> None:
    """Raise RuntimeError if the MPI that mpi4py found did not start these processes."""
    comm = open_mpi().COMM_WORLD
    if (comm.rank, comm.size) != (launcher.rank, launcher.world_size):
        raise RuntimeError(
            f"init: {launcher}, but mpi4py's MPI says rank {comm.rank} of {comm.size}: mpirun is of another MPI than "
            "mpi4py's; take the mpirun that belongs to it"
        )


_ALONE = World(Launcher("none"), "alone", 0.0)
_worlds = [_ALONE]


def current_world() -> World:
    """The open world, or one of only this process."""
    return _worlds[-1]


def has_world() -> bool:
    """Whether a world is open."""
    return len(_worlds) > 1


def common_world() -> World:
    """The world, for operations of all ranks.

    Raises RuntimeError if several processes were started and have not met: each would act alone.
    """
    if not has_world() and (launcher := find_launcher()).world_size > 1:
        raise RuntimeError(
            f"this process is {launcher}, and the ranks have not met: call lamina.distributed.init() before"
        )
    return current_world()


def open_world(
    launcher: Launcher, transport: str, timeout: float, fault_timeout: float | None = None
) -> World:
    """Connect the ranks. Raises RuntimeError if a world is open."""
    if has_world():
        raise RuntimeError(f"init: there is a world already, {current_world()!r}; shutdown() ends it")
    _worlds.append(World(launcher, transport, timeout, fault_timeout))
    take_gpu(launcher.local_rank)
    return current_world()


def close_world(*, abort: bool = False) -> None:
    """Close the world; from then on this process is alone. abort: as for `World.close`."""
    if has_world():
        take_gpu(0)
        _worlds.pop().close(abort=abort)
