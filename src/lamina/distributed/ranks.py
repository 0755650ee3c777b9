"""The world's ranks and groups, and exchange of objects."""

from __future__ import annotations

import atexit
import logging
import sys
from typing import Any, Literal

from lamina.ops.arguments import checked
from lamina.runtime.ranks import (
    RankError,
    World,
    close_world,
    current_world,
    find_launcher,
    has_world,
    open_world,
)
from lamina.runtime.ranks.communicator import Communicator
from lamina.runtime.ranks.watchdog import watchdog
from lamina.spec.group import Group

_log = logging.getLogger("lamina.distributed")


@checked
def init(
    *,
    transport: Literal["auto", "mpi", "tcp"] = "auto",
    timeout: float = 300.0,
    fault_timeout: float | None = 30.0,
) -> World:
    """Meet the other ranks; returns the world, whose repr names the launcher. Every rank calls it, once.

    transport: "mpi" (mpi4py) or "tcp" (MASTER_ADDR and MASTER_PORT) between CPUs; "auto" takes that of the
        launcher: MPI under mpirun and srun --mpi, TCP under torchrun, `lamina run` and srun without MPI. A
        process that was started alone is a world of one rank.
    timeout: seconds in which all ranks must have come, and after which a silent rank is given up over TCP.
    fault_timeout: seconds within which every rank has ended, with an error that names the rank, the operation and the
        step, when one dies, hangs or raises (under `lamina run` its --timeout applies); None: no watchdog.
    Raises ImportError if MPI is needed and not installed, ConnectionError or TimeoutError if ranks do not come,
    ValueError for an inconsistent environment, RuntimeError at the second call.
    """
    launcher = find_launcher()
    atexit.register(_at_exit)  # registered first, so that it runs after the watchdog's exit handler
    made = open_world(
        launcher, launcher.transport if transport == "auto" else transport, timeout, fault_timeout
    )
    _log.info("%r", made)
    return made


def shutdown() -> None:
    """Leave the other ranks: compiled programs release communicators, then these are closed.

    Every rank calls it, and interpreter exit does. Does nothing without a world.
    """
    close_world()


def _at_exit() -> None:
    """After an exception other ranks may wait for this one, and not answer."""
    try:
        close_world(abort=hasattr(sys, "last_value"))
    except RankError:
        found = watchdog()
        if found is None:
            raise
        found.leave()


def is_initialized() -> bool:
    """Whether `init` was called, and `shutdown` not yet."""
    return has_world()


def world() -> World:
    """The world: launcher, ranks, transport. One rank if `init` was not called."""
    return current_world()


def rank() -> int:
    """The rank of this process: 0 to world_size() - 1."""
    return current_world().rank


def world_size() -> int:
    """The number of ranks."""
    return current_world().size


def local_rank() -> int:
    """The rank of this process on its machine: the number of its GPU."""
    return current_world().local_rank


def local_size() -> int:
    """The number of ranks on this machine."""
    return current_world().local_size


def world_group() -> Group:
    """The group of all ranks."""
    return Group(*range(world_size()))


def group_rank(group: Group) -> int | None:
    """This process's index in a group, None if it is not in it."""
    return group.ranks.index(rank()) if rank() in group.ranks else None


def communicator(group: Group | None) -> Communicator:
    """The communicator of the group's ranks between CPUs; None means all ranks."""
    return current_world().communicator(None if group is None else group.ranks)


@checked
def split(color: int | None, key: int = 0) -> Group | None:
    """The group of all ranks that passed the same color, ordered by key, then by rank; None for the color None.

    Every rank of the world calls it: `split(rank() // 8)` makes groups of eight. (MPI_Comm_split.)
    """
    given = communicator(None).all_gather_object((color, key))
    if color is None:
        return None
    return Group(*sorted((r for r, (c, _) in enumerate(given) if c == color), key=lambda r: (given[r][1], r)))


@checked
def barrier(group: Group | None = None) -> None:
    """Return when all ranks of the group (by default of the world) have called it."""
    communicator(group).barrier()


@checked
def broadcast_object(obj: Any, src: int = 0, group: Group | None = None) -> Any:
    """The object of rank `src`, on all ranks; the others' are ignored. It is pickled: ranks trust each other.

    src: a rank of the world that is in the group. Raises ValueError if it is not.
    """
    found = communicator(group)
    if src not in found.ranks:
        raise ValueError(f"broadcast_object: src {src} is not among the ranks {found.ranks}")
    return found.broadcast_object(obj, found.ranks.index(src))


@checked
def all_gather_object(obj: Any, group: Group | None = None) -> list[Any]:
    """The objects of all ranks, in the order of the group. They are pickled: ranks trust each other."""
    return communicator(group).all_gather_object(obj)
