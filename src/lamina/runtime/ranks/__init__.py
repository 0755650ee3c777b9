"""Distributed processes: how they were launched, how they meet, and how they communicate.

A *launcher* starts the processes and tells each its rank; a *store* lets them meet by TCP; a *communicator*
moves arrays among the ranks of one group, over MPI or over sockets. The `World` holds them.
"""

from lamina._lazy import listing
from lamina.runtime.ranks.communicator import REDUCTIONS, Communicator, Done, Pending, RankError, reduced
from lamina.runtime.ranks.launcher import Launcher, find_launcher
from lamina.runtime.ranks.store import Store
from lamina.runtime.ranks.world import World, close_world, common_world, current_world, has_world, open_world

__all__ = [
    "REDUCTIONS",
    "Communicator",
    "Done",
    "Launcher",
    "Pending",
    "RankError",
    "Store",
    "World",
    "close_world",
    "common_world",
    "current_world",
    "find_launcher",
    "has_world",
    "open_world",
    "reduced",
]
__dir__ = listing(__all__)
