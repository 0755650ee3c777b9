"""Communicators over MPI."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lamina import distributed
from lamina.runtime.ranks import RankError, mpi
from tests.helpers.rank_programs import check_world_and_pairs
from tests.helpers.ranks import run_ranks


@pytest.mark.feature("B032")
def test_ranks_give_each_other_what_they_should() -> None:
    assert run_ranks(check_world_and_pairs, 4, launcher="mpirun") == [[]] * 4


def receive_what_is_not_awaited(sent: Any) -> str:
    """What the receiver is told."""
    world = distributed.init(fault_timeout=None)
    if world.rank == 0:
        world.communicator().send(sent, 1)
        return ""
    with pytest.raises(RankError) as failed:
        world.communicator().receive(np.zeros(3, np.float32), 0)
    return str(failed.value)


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (np.zeros(5, np.float32), "more bytes"),
        (np.zeros(2, np.float32), "8 bytes, or another type"),
        (np.zeros(3, np.int32), "12 bytes, or another type"),
    ],
)
def test_what_is_not_awaited_is_named(sent: Any, text: str) -> None:
    told = run_ranks(receive_what_is_not_awaited, 2, launcher="mpirun", args=(sent,), init=False)
    assert told[1].startswith(
        f"send_receive: rank 0 sends rank 1 {text}, where 3 float32 are awaited: both must call the same operations"
    )


def test_without_mpi_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise ImportError("No module named 'mpi4py'")

    monkeypatch.setattr(mpi, "_mpi4py", missing)
    with pytest.raises(
        ImportError, match=r"MPI cannot be used \(No module.*pip install 'lamina\[mpi\]'.*torchrun"
    ):
        mpi.open_mpi()


@pytest.mark.parametrize("finalized", [False, True])
def test_a_communicator_is_freed_unless_mpi_has_ended(
    monkeypatch: pytest.MonkeyPatch, finalized: bool
) -> None:
    """After MPI_Finalize no call is allowed."""
    freed: list[str] = []
    comm = SimpleNamespace(rank=0, Free=lambda: freed.append("comm"))
    group = SimpleNamespace(Incl=lambda ranks: ("group", ranks))
    world = SimpleNamespace(
        Get_group=lambda: group, Create_group=lambda given: given == ("group", [0]) and comm
    )
    operations = {"SUM": "sum", "MAX": "max", "MIN": "min"}
    fake = SimpleNamespace(COMM_WORLD=world, Is_finalized=lambda: finalized, **operations)
    monkeypatch.setattr(mpi, "open_mpi", lambda: fake)
    mpi.MpiCommunicator([0]).close()
    assert freed == ([] if finalized else ["comm"])
