"""Communicators over MPI."""

from types import SimpleNamespace

import pytest

from lamina.runtime.ranks import mpi
from tests.helpers.rank_programs import check_world_and_pairs
from tests.helpers.ranks import run_ranks


@pytest.mark.feature("B032")
def test_ranks_give_each_other_what_they_should() -> None:
    assert run_ranks(check_world_and_pairs, 4, launcher="mpirun") == [[]] * 4


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
