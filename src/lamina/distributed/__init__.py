"""Distributed programs: ranks, groups, and their communication.

    import lamina as lm

    world = lm.distributed.init()          # reads who started this process: torchrun, mpirun, srun, nobody
    print(world)                           # World(rank 1 of 4, started by torchrun; local rank 1 of 4; tcp)
    total = lm.distributed.all_gather_object(lm.distributed.rank())

Every rank runs the same program. Without `init`, or if only one process was started, there is one rank, and
everything here works as for a group of one.
"""

from lamina._lazy import listing
from lamina.distributed.collectives import (
    all_gather,
    all_reduce,
    all_reduce_each,
    all_to_all,
    broadcast,
    receive,
    reduce_scatter,
    send,
    send_receive,
)
from lamina.distributed.data_parallel import DataParallel
from lamina.distributed.ranks import (
    all_gather_object,
    barrier,
    broadcast_object,
    group_rank,
    init,
    is_initialized,
    local_rank,
    local_size,
    rank,
    shutdown,
    split,
    world,
    world_group,
    world_size,
)
from lamina.distributed.watch import patience
from lamina.runtime.ranks import Launcher, RankError, World, find_launcher
from lamina.spec.group import Group

__all__ = [
    "DataParallel",
    "Group",
    "Launcher",
    "RankError",
    "World",
    "all_gather",
    "all_gather_object",
    "all_reduce",
    "all_reduce_each",
    "all_to_all",
    "barrier",
    "broadcast",
    "broadcast_object",
    "find_launcher",
    "group_rank",
    "init",
    "is_initialized",
    "local_rank",
    "local_size",
    "patience",
    "rank",
    "receive",
    "reduce_scatter",
    "send",
    "send_receive",
    "shutdown",
    "split",
    "world",
    "world_group",
    "world_size",
]
__dir__ = listing(__all__)
