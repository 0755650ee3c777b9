"""Ranks meet, form groups and tell each other objects, over MPI and over TCP."""

import time
from typing import Any, Literal

import numpy as np
import pytest

import lamina as lm
from lamina import distributed
from lamina.distributed import Group
from tests.helpers.ranks import RanksFailed, run_ranks


def greet() -> dict[str, Any]:
    world = distributed.world()
    evens = distributed.split(distributed.rank() % 2, key=-distributed.rank())
    assert evens is not None
    assert distributed.split(None) is None
    distributed.barrier()
    distributed.barrier(evens)
    big = np.arange(300_000) * distributed.rank()
    return {
        "repr": repr(world),
        "rank": (
            distributed.rank(),
            distributed.world_size(),
            distributed.local_rank(),
            distributed.local_size(),
        ),
        "evens": evens.ranks,
        "place": distributed.group_rank(evens),
        "heard": distributed.broadcast_object({"from": distributed.rank(), "big": big}, src=1)["from"],
        "in group": distributed.broadcast_object(distributed.rank(), evens.ranks[0], evens),
        "sum": int(distributed.broadcast_object(big, src=1).sum()),
        "all": distributed.all_gather_object("x" * distributed.rank()),
        "pairs": distributed.all_gather_object(distributed.rank(), evens),
        "initialized": distributed.is_initialized(),
    }


@pytest.mark.parametrize(
    ("launcher", "ranks", "name"), [("variables", 4, "environment; tcp"), ("mpirun", 2, "MPICH; mpi")]
)
def test_ranks_meet(launcher: Literal["variables", "mpirun"], ranks: int, name: str) -> None:
    started, transport = name.split("; ")
    for rank, found in enumerate(run_ranks(greet, ranks, launcher=launcher)):
        mates = tuple(r for r in reversed(range(ranks)) if r % 2 == rank % 2)
        assert found == {
            "repr": f"World(rank {rank} of {ranks}, started by {started}; local rank {rank} of {ranks}; {transport})",
            "rank": (rank, ranks, rank, ranks),
            "evens": mates,
            "place": mates.index(rank),
            "heard": 1,
            "in group": mates[0],
            "sum": 300_000 * 299_999 // 2,
            "all": ["x" * r for r in range(ranks)],
            "pairs": list(mates),
            "initialized": True,
        }


def fail_on_one() -> None:
    if distributed.rank() == 1:
        raise ValueError("what went wrong")
    distributed.barrier()


def test_what_a_failing_rank_wrote_is_told() -> None:
    with pytest.raises(RanksFailed) as failed:
        run_ranks(fail_on_one, 2)
    assert "ValueError: what went wrong" in str(failed.value)


def test_a_process_alone_is_a_world_of_one() -> None:
    assert not distributed.is_initialized()
    assert repr(distributed.world()) == "World(rank 0 of 1, started by none; local rank 0 of 1; alone)"
    assert distributed.world_group() == Group(0)
    assert distributed.split(3) == Group(0)
    assert distributed.all_gather_object("a") == ["a"]
    assert distributed.broadcast_object("a") == "a"
    distributed.barrier()
    assert distributed.group_rank(Group(1)) is None


def test_init_opens_one_world(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RANK", "WORLD_SIZE", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    assert distributed.init().size == 1
    try:
        assert distributed.is_initialized()
        with pytest.raises(
            RuntimeError, match=r"there is a world already, World\(rank 0 of 1.*shutdown\(\) ends it"
        ):
            distributed.init()
    finally:
        distributed.shutdown()
    assert not distributed.is_initialized()


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ValueError, match=r"ranks \(0, 1\) needs a world of more than 1.*init\(\) called"):
        distributed.barrier(Group(0, 1))
    with pytest.raises(ValueError, match=r"src 1 is not among the ranks \(0,\)"):
        distributed.broadcast_object(1, src=1)
    with pytest.raises(TypeError, match="split: color"):
        lm.distributed.split("a")  # type: ignore[arg-type]


def meet_often(times: int) -> list[int]:
    """Sums over the ranks of worlds that follow each other at once; this process is in the last one."""
    found = []
    for number in range(times):
        distributed.init(timeout=60)
        found.append(sum(distributed.all_gather_object(distributed.rank() + number)))
        if number < times - 1:
            distributed.shutdown()
    return found


def test_ranks_that_left_meet_again() -> None:
    assert run_ranks(meet_often, 3, args=(8,), init=False) == [[3 + 3 * k for k in range(8)]] * 3


def meet_late() -> int:
    """How often the last rank, which comes late, and the first one try to meet."""
    if distributed.find_launcher().rank == 1:
        time.sleep(3)
    for tries in range(1, 20):
        try:
            distributed.init(timeout=2)
        except (TimeoutError, ConnectionError):
            continue
        distributed.barrier()
        return tries
    raise AssertionError("the ranks did not meet")


def test_ranks_that_did_not_meet_may_try_again() -> None:
    first, late = run_ranks(meet_late, 2, init=False)
    assert first > 1
    assert late >= 1
