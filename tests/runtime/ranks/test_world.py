"""The world: what it refuses."""

import pytest

from lamina.runtime.ranks import Launcher, World, common_world, current_world, world


def test_ranks_need_a_place_to_meet() -> None:
    with pytest.raises(
        ValueError, match=r"rank 0 of 2, started by MPICH without MASTER_ADDR and MASTER_PORT.*lamina\[mpi\]"
    ):
        World(Launcher("MPICH", 0, 2, 0, 2, "mpi"), "tcp", 1.0)


def test_mpirun_of_another_mpi_is_told() -> None:
    with pytest.raises(
        RuntimeError, match=r"rank 1 of 2, started by Open MPI, but mpi4py's MPI says rank 0 of 1"
    ):
        World(Launcher("Open MPI", 1, 2, 0, 2, "mpi"), "mpi", 1.0)


def test_ranks_that_were_started_must_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "find_launcher", lambda: Launcher("torchrun", 1, 2, 1, 2))
    with pytest.raises(
        RuntimeError, match=r"rank 1 of 2, started by torchrun, and the ranks have not met: call .*init\(\)"
    ):
        common_world()
    monkeypatch.setattr(world, "find_launcher", lambda: Launcher("none"))
    assert common_world() is current_world()


def test_a_group_must_be_of_this_world() -> None:
    with pytest.raises(ValueError, match=r"ranks \(0, 5\) needs a world of more than 1"):
        current_world().communicator((0, 5))
