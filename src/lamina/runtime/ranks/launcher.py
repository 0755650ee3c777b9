"""The launcher of this process, its rank and the number of ranks, from the environment."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Transport = Literal["mpi", "tcp"]


@dataclass(frozen=True)
class Launcher:
    """The launch environment of this process.

    name: "torchrun", "lamina run", "environment" (RANK and WORLD_SIZE by another program), "Open MPI", "MPICH",
        "Slurm", or "none" for a process that was started alone.
    rank, world_size: this process among all. local_rank, local_size: among those of its machine.
    transport: how its processes communicate. address, port: where the processes meet, None if not specified.
    """

    name: str
    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    transport: Transport = "tcp"
    address: str | None = None
    port: int | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.rank < self.world_size:
            raise ValueError(f"{self.name}: rank {self.rank} is not among {self.world_size} ranks")
        if not 0 <= self.local_rank < self.local_size:
            raise ValueError(
                f"{self.name}: local rank {self.local_rank} is not among the {self.local_size} of this machine"
            )

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.world_size}, started by {self.name}"


def find_launcher(environ: Mapping[str, str] | None = None) -> Launcher:
    """The launcher found in the environment, the innermost if there are several.

    torchrun (and `lamina run`) sets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT;
    Open MPI OMPI_COMM_WORLD_*; MPICH's and Intel's mpirun PMI_RANK, PMI_SIZE, MPI_LOCALRANKID; srun SLURM_PROCID and
    others. Raises ValueError if a variable is missing or not a number, or a rank is out of range.
    """
    env = os.environ if environ is None else environ
    for found in (_by_variables, _open_mpi, _mpich, _slurm):
        launcher = found(env)
        if launcher is not None:
            return launcher
    if "MASTER_ADDR" in env:  # ranks would meet there
        for name, missing in (("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK")):
            if name in env and missing not in env:
                raise ValueError(
                    f"{name} and MASTER_ADDR are set, {missing} is not: set it, or neither of them"
                )
    return Launcher("none")


def _number(env: Mapping[str, str], *names: str, default: int | None = None) -> int:
    """The first of these variables that is set. Raises ValueError, naming it and its value."""
    for name in names:
        if name in env:
            try:
                return int(env[name])
            except ValueError:
                raise ValueError(f"{name} must be a number, got {env[name]!r}") from None
    if default is None:
        raise ValueError(f"{' or '.join(names)} is not set, but other variables of its launcher are")
    return default


def _meeting(env: Mapping[str, str]) -> tuple[str | None, int | None]:
    """MASTER_ADDR and MASTER_PORT."""
    port = _number(env, "MASTER_PORT") if "MASTER_PORT" in env else None
    if port is not None and not 0 <= port < 1 << 16:
        raise ValueError(f"MASTER_PORT must be from 0 to 65535, got {port}")
    return env.get("MASTER_ADDR"), port


def _by_variables(env: Mapping[str, str]) -> Launcher | None:
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return None
    name = "torchrun" if "TORCHELASTIC_RUN_ID" in env else "environment"
    rank, size = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    local_rank = _number(env, "LOCAL_RANK", default=0)
    local_size = _number(env, "LOCAL_WORLD_SIZE", default=local_rank + 1)
    address, port = _meeting(env)
    return Launcher(
        "lamina run" if "LAMINA_RUN_ID" in env else name,
        rank,
        size,
        local_rank,
        local_size,
        "tcp",
        address,
        port,
    )


def _open_mpi(env: Mapping[str, str]) -> Launcher | None:
    if "OMPI_COMM_WORLD_RANK" not in env:
        return None
    rank, size = _number(env, "OMPI_COMM_WORLD_RANK"), _number(env, "OMPI_COMM_WORLD_SIZE")
    local_rank = _number(env, "OMPI_COMM_WORLD_LOCAL_RANK", default=0)
    local_size = _number(env, "OMPI_COMM_WORLD_LOCAL_SIZE", default=local_rank + 1)
    return Launcher("Open MPI", rank, size, local_rank, local_size, "mpi", *_meeting(env))


def _mpich(env: Mapping[str, str]) -> Launcher | None:
    if "PMI_RANK" not in env or "MPI_LOCALRANKID" not in env:
        return None
    local_rank = _number(env, "MPI_LOCALRANKID")
    local_size = _number(env, "MPI_LOCALNRANKS", default=local_rank + 1)
    rank, size = _number(env, "PMI_RANK"), _number(env, "PMI_SIZE")
    return Launcher("MPICH", rank, size, local_rank, local_size, "mpi", *_meeting(env))


#: Larger values are special step numbers: the batch script itself, an interactive shell, an external step.
_LAST_STEP = 0xFFFFFFF0


def _slurm(env: Mapping[str, str]) -> Launcher | None:
    if "SLURM_PROCID" not in env or _number(env, "SLURM_STEP_ID", default=_LAST_STEP) >= _LAST_STEP:
        return None
    rank = _number(env, "SLURM_PROCID")
    size = _number(env, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")
    local_rank = _number(env, "SLURM_LOCALID", default=0)
    local_size = _tasks_here(env, local_rank)
    address, port = _meeting(env)
    if address is None:
        nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST") or "localhost"
        address = first_host(nodes)
    if port is None:  # known to all tasks of a step, and hardly shared with another step of the machine
        port = 20000 + (7 * _number(env, "SLURM_JOB_ID", default=0) + _number(env, "SLURM_STEP_ID")) % 10000
    manages_mpi = "PMI_RANK" in env or "PMIX_RANK" in env  # srun --mpi=pmi2 or pmix
    return Launcher(
        "Slurm", rank, size, local_rank, local_size, "mpi" if manages_mpi else "tcp", address, port
    )


def _tasks_here(env: Mapping[str, str], local_rank: int) -> int:
    """Tasks on this machine, from SLURM_STEP_TASKS_PER_NODE, such as "4(x2),3"."""
    text = env.get("SLURM_STEP_TASKS_PER_NODE") or env.get("SLURM_TASKS_PER_NODE") or str(local_rank + 1)
    counts: list[int] = []
    for count, times in re.findall(r"(\d+)(?:\(x(\d+)\))?", text):
        counts += [int(count)] * int(times or 1)
    node = _number(env, "SLURM_NODEID", default=0)
    return max(counts[node] if node < len(counts) else 1, local_rank + 1)


def first_host(nodes: str) -> str:
    """The first host of a Slurm node list: "gpu[007-009,12],login" gives gpu007."""
    head = re.match(r"([^\[,]*)(?:\[(\d+)[^\]]*\])?([^,]*)", nodes)
    return "" if head is None else head[1] + (head[2] or "") + head[3]
