"""Ranks with a GPU each, over NCCL: what ranks do on CPUs, and what only GPUs have. Needs two GPUs."""

import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import distributed, nn, ops, optim
from lamina.runtime import Device, devices
from tests.distributed import test_data_parallel, test_shards
from tests.helpers.collective_programs import check
from tests.helpers.killed_ranks import kill_often
from tests.helpers.many_worlds import FAULTS, LIMIT, command, environment, program
from tests.helpers.ranks import run_ranks

GPUS = len(devices()) - 1
RANKS = [n for n in (2, 4, 8) if n <= GPUS] or [2]
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(GPUS < 2, reason="needs two GPUs"),
    pytest.mark.parametrize("ranks", RANKS),
]


@pytest.mark.feature("B032", "B055")
def test_collective_operations_and_their_gradients(ranks: int) -> None:
    assert run_ranks(check, ranks, args=("cuda",)) == [[]] * ranks


ELEMENT_TYPES = ("float64", "float16", "bfloat16", "int32", "int64", "uint8")


def of_each_type() -> list[str]:
    """Element types whose sum, or whose gathered parts, are not what they should be."""
    n, me, wrong = distributed.world_size(), distributed.rank(), []
    for name in ELEMENT_TYPES:
        x = lm.tensor(np.arange(1025) % 7 + me, dtype=name, device="cuda")
        total = distributed.all_reduce(x).numpy().astype(np.float64)
        parts = distributed.all_gather(x).numpy().astype(np.float64)
        expected = np.stack([np.arange(1025) % 7 + r for r in range(n)])
        if not np.array_equal(total, expected.sum(0)) or not np.array_equal(parts, expected):
            wrong.append(name)
    return wrong


def test_element_types(ranks: int) -> None:
    assert run_ranks(of_each_type, ranks) == [[]] * ranks


@pytest.mark.feature("F116", "B032", "B033")
def test_ranks_train_as_one(ranks: int) -> None:
    settings = [{**one, "device": "cuda"} for one in test_data_parallel.SETTINGS]
    alone = test_data_parallel.several(settings)
    for results in run_ranks(test_data_parallel.several, ranks, args=(settings,)):
        for given, found, wanted in zip(settings, results, alone, strict=True):
            every = given.get("accumulate", 1)
            updates = slice(every - 1, None, every)
            assert found["losses"][updates] == pytest.approx(wanted["losses"][updates], rel=1e-4), given
            assert found["hits"][updates] == wanted["hits"][updates], given


@pytest.mark.feature("B033")
def test_training_in_shards_is_training(ranks: int) -> None:
    cases = [(name, {**options, "device": "cuda"}) for name, options in test_shards.CASES]
    both = [*cases, *((name, {**options, "shard_optimizer": True}) for name, options in cases)]
    for found in run_ranks(test_shards.several, ranks, args=(both,)):
        for case, plain, shared in zip(cases, found[: len(cases)], found[len(cases) :], strict=True):
            rough = "precision" in case[1]
            np.testing.assert_allclose(
                shared["losses"], plain["losses"], rtol=2e-2 if rough else 1e-5, err_msg=f"{case}"
            )
            assert shared["moments"] <= plain["moments"] / ranks * 1.1


def captured() -> list[Any]:
    """Whether a step is one captured program, and its losses, in bfloat16 with and without compression."""
    found: list[Any] = []
    for compression in (None, "bf16"):
        nn.manual_seed(2)
        net = nn.models.get_model("resnet18", num_classes=10)
        together = distributed.DataParallel(compression=compression)
        step = lm.train_step(
            net, ops.cross_entropy, optim.SGD(0.05, momentum=0.9), device="cuda", precision="bf16", parallel=together
        )  # fmt: skip
        rng = np.random.default_rng(distributed.rank())
        x, y = rng.standard_normal((8, 3, 64, 64)).astype(np.float32), rng.integers(0, 10, 8)
        losses = [step(x, y).item() for _ in range(12)]
        found += [step.executable.is_captured, losses, step.executable.device.index]
    return found


def test_a_step_with_its_communication_is_one_graph(ranks: int) -> None:
    first, *others = run_ranks(captured, ranks)
    assert first[0]
    assert first[3]
    # Roundings part runs in bfloat16 step by step.
    np.testing.assert_allclose(first[4][:4], first[1][:4], rtol=0.1)
    assert max(first[4][-1], first[1][-1]) < 0.01 * first[1][0]
    for rank, found in enumerate(others, 1):
        assert found[:2] == first[:2]  # the mean over all ranks, in every bit
        assert found[2] == rank


def made_often(times: int, device: str = "cuda") -> list[int]:
    """Bytes in use on the device after each of some worlds, each with a communicator and a captured program."""
    found = []
    for _ in range(times):
        distributed.init(timeout=60)
        x = lm.tensor(np.ones(1 << 16, np.float32), device=device)
        run = lm.jit(lambda x: distributed.all_reduce(x, "mean") * 2.0)
        assert float(run(x)[0].item()) == 2.0
        distributed.shutdown()
        memory = Device(device).platform.memory_info()
        found.append(memory.total - memory.free)
    return found


def kept() -> list[int]:
    """The same, in a world when it returns."""
    found = made_often(30)
    distributed.init(timeout=60)
    return found


def test_communicators_are_given_back(ranks: int) -> None:
    """The driver gives memory in pieces of 2 MiB: what one communicator of twenty kept would show."""
    for used in run_ranks(kept, ranks, init=False):
        assert used[-1] <= used[9] + (4 << 20), used


@pytest.mark.feature("B034")
@pytest.mark.parametrize("fault", sorted(set(FAULTS) - {"none"}))
def test_a_fault_of_one_ends_all_and_leaves_no_memory(tmp_path: Path, ranks: int, fault: str) -> None:
    file = tmp_path / "program.py"
    file.write_text(program(fault))
    before = [Device(f"cuda:{i}").platform.memory_info().free for i in range(ranks)]
    ended = subprocess.run(
        command(file, ranks, "cuda"), env=environment(), capture_output=True, text=True, timeout=LIMIT
    )
    assert ended.returncode != 0
    assert "rank 1" in ended.stderr + ended.stdout
    after = [Device(f"cuda:{i}").platform.memory_info().free for i in range(ranks)]
    assert all(a >= b - (64 << 20) for a, b in zip(after, before, strict=True))


@pytest.mark.feature("B034", "B056")
def test_a_rank_that_is_killed_beside_checkpoints_costs_no_step_but_the_last(
    tmp_path: Path, ranks: int
) -> None:
    found = kill_often(tmp_path, kills=2, ranks=ranks, seed=2, device="cuda", one=True)
    assert found["kills"] == 2
    assert found["wrong"] == []
