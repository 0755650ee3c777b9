"""Ranks that are about to do different things are told so, each of them, instead of waiting for ever."""

import os
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import lamina as lm
from lamina import data, distributed, nn, ops, optim
from lamina.distributed import Group
from lamina.distributed.alike import check_alike, collectives_of
from lamina.graph import trace
from lamina.spec import Spec, float32
from lamina.train import History, Position
from lamina.train.metrics import F1Score
from tests.helpers import ROOT
from tests.helpers.ranks import RanksFailed, mpirun, run_ranks

PAIR = Group(0, 1)


def test_collectives_of_a_program() -> None:
    def program(x: Any) -> Any:
        y = distributed.all_reduce(ops.relu(x), group=PAIR)
        return distributed.send_receive(y, None, 1, group=PAIR)

    (first, _), (second, _) = collectives_of(trace(program, Spec((3,), float32)))
    assert "all_reduce" in first
    assert "f32[3]" in first
    assert second == f"exchange of {PAIR}(f32[3])"  # with whom is each rank's own
    graph = trace(program, Spec((3,), float32))
    assert collectives_of(graph, PAIR) == collectives_of(graph)
    (first, _), (second, _) = collectives_of(graph, Group(0, 2))  # the other one is in another pair
    assert "2 ranks" in first
    assert second == "exchange of 2 ranks(f32[3])"


def test_one_rank_is_alike() -> None:
    check_alike("lines", [("a", "b")], Group(0))


class Lopsided(nn.Module):
    """The last rank normalizes over all ranks where the others do not, or has more weights."""

    def __init__(self, wider: bool) -> None:
        last = distributed.rank() == distributed.world_size() - 1
        self.first = nn.Linear(4, 6 if wider and last else 5)
        self.norm = (nn.SyncBatchNorm if last and not wider else nn.BatchNorm1d)(6 if wider and last else 5)

    def forward(self, x: Any) -> Any:
        return self.norm(self.first(x))


def wrong(wider: bool) -> str:
    try:
        step = lm.train_step(
            Lopsided(wider), ops.cross_entropy, optim.SGD(0.1), device="cpu", parallel="data"
        )
        step(np.zeros((4, 4), np.float32), np.zeros(4, np.int64))
    except ValueError as error:
        return str(error)
    return ""


class Heads(nn.Module):
    """Each rank's loss depends on another head, of the same shape."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.first(x) if distributed.rank() == 0 else self.second(x)


def fit_differently() -> list[str]:
    """What is told of ranks that train by other parameters, rates, seeds and positions."""
    me, told = distributed.rank(), []
    x, y = np.zeros((8, 4), np.float32), np.zeros(8, np.int64)

    def fit(rate: float = 0.1, seed: int = 0, net: nn.Module | None = None, **options: Any) -> None:
        net = net or nn.Linear(4, 3)
        step = lm.train_step(net, ops.cross_entropy, optim.SGD(rate), device="cpu", parallel="data")
        batches = data.prefetch(data.arrays(x, y, batch_size=4, seed=seed, parallel="data"))
        lm.fit(step, batches, 1, console=Console(quiet=True), **options)

    for options in ({"net": Heads()}, {"rate": 0.1 + me}, {"seed": me}, {"start": Position(0, me)}, {}):
        try:
            fit(**options)  # type: ignore[arg-type]
            told.append("")
        except ValueError as error:
            told.append(str(error))
    return told


def test_ranks_that_would_not_train_alike_are_named() -> None:
    for told in run_ranks(fit_differently, 2):
        head, rate, seed, position, alike = told
        assert "parameters that the loss depends on are not the same on all ranks: number 1 is " in head
        assert "first.bias on rank 0" in head
        assert "fit: settings are not the same on all ranks" in rate
        assert "lr=[1.1, " in rate
        assert "is data.seed=1 on rank 1 and data.seed=0 on rank 0" in seed
        assert "is batch=1 on rank 1 and batch=0 on rank 0" in position
        assert alike == ""


class Parts:
    """Batches of a rank's own, which it counts."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __iter__(self) -> Iterator[Any]:
        return iter([(np.zeros((4, 4), np.float32), np.zeros(4, np.int64))] * self.count)


def evaluate_differently() -> list[str]:
    """What is told of ranks that evaluate other data or ask for other figures; epochs until one rank has enough."""
    me, told = distributed.rank(), []
    x, y = np.zeros((12, 4), np.float32), np.zeros(12, np.int64)
    net = nn.Linear(4, 3)
    step = lm.train_step(net, ops.cross_entropy, optim.SGD(0.1), device="cpu", parallel="data")

    def shared(count: int, seed: int = 0) -> data.Batches:
        return data.arrays(x[:count], y[:count], batch_size=4, seed=seed, parallel="data")

    def fit(batches: Any, epochs: int = 1, **options: Any) -> History:
        return lm.fit(step, batches, epochs, console=Console(quiet=True), **options)

    def evaluate(**options: Any) -> None:
        lm.evaluate(net, shared(10), device="cpu", parallel="data", **options)

    for call in (
        lambda: fit(shared(12), validation=shared(10 - me)),
        lambda: fit(shared(12), validation=shared(12, seed=me)),
        lambda: fit(shared(12), validation=shared(12) if me else None),
        lambda: fit(shared(12), validation=shared(12), metrics=[F1Score()] * me),
        lambda: fit(Parts(3 - me)),
        lambda: fit(Parts(3 - me), max_steps=2),
        lambda: evaluate(metrics=[F1Score()] * me),
        lambda: evaluate(loss_fn=ops.cross_entropy if me else None),
    ):
        try:
            call()
            told.append("")
        except ValueError as error:
            told.append(str(error))
    return [*told, str(len(fit(shared(12), 5, callbacks=[lambda epoch: me == epoch.number == 1]).epochs))]


def test_ranks_that_would_not_evaluate_alike_are_named() -> None:
    for told in run_ranks(evaluate_differently, 2):
        samples, seed, given, metrics, batches, limited, figures, loss, epochs = told
        assert all(
            "fit: settings of validation are not the same" in x for x in (samples, seed, given, metrics)
        )
        assert "data.samples=9 on rank 1 and data.samples=10 on rank 0" in samples
        assert "data.seed=1 on rank 1 and data.seed=0 on rank 0" in seed
        assert "given=True on rank 1 and given=False on rank 0" in given
        assert "metrics=['f1'] on rank 1 and metrics=[] on rank 0" in metrics
        assert "batches=2 on rank 1 and batches=3 on rank 0" in batches
        assert limited == ""
        assert "(loss, metrics) are f1 on rank 1 and none on rank 0" in figures
        assert "(loss, metrics) are loss on rank 1 and none on rank 0" in loss
        assert epochs == "2"  # one rank's callback ends all


@pytest.mark.feature("B034")
@pytest.mark.parametrize(
    ("wider", "text"),
    [
        (False, "train_step: collective operations are not the same on all ranks: number 1 is all_gather"),
        (True, "train_step: parameters, buffers and generators are not the same on all ranks: number 1 is "
               "parameters/first.weight f32[6,4] on rank 2 and parameters/first.weight f32[5,4] on rank 0"),
    ],
)  # fmt: skip
def test_ranks_with_different_programs_or_networks_are_named(wider: bool, text: str) -> None:
    for found in run_ranks(wrong, 3, args=(wider,)):
        assert found.startswith(text)
        assert " on rank 2 and " in found
        assert found.endswith("whose branches do not depend on the rank")


APART = """
import sys
import numpy as np
import lamina as lm
from lamina import distributed, nn, ops, optim

distributed.init()
me = distributed.rank()

@lm.jit
def function(x, flag):
    y = distributed.all_reduce(x)
    return distributed.all_gather(y) if flag else distributed.all_reduce(y, "max")

class Net(nn.Module):
    def __init__(self):
        self.first, self.norm = nn.Linear(4, 3), nn.SyncBatchNorm(3)
    def forward(self, x):
        y = self.first(x)
        return y if x.shape[0] == 3 and me == 1 else self.norm(y)

if sys.argv[1] == "jit":
    for number in range(12):
        function(np.ones(5, np.float32), flag=number == 3 and me == 1)
else:
    step = lm.train_step(Net(), ops.cross_entropy, optim.SGD(0.1), device="cpu", parallel="data")
    for number in range(12):
        rows = 3 if number == 4 else 4
        step(np.zeros((rows, 4), np.float32), np.zeros(rows, np.int64))
distributed.barrier()
"""


FIRST = "first.bias, first.weight"


@pytest.mark.feature("B034")
@pytest.mark.parametrize(
    ("what", "mpi", "operations"),
    [
        ("jit", False, [("all_reduce (max) of float32[5]", "all_gather of float32[5]")]),
        (
            "step",
            True,
            [  # where the watchdogs compare before the first collective operation, and behind it
                (
                    f"a step with gradients of {FIRST}, norm.bias, norm.weight",
                    f"a step with gradients of {FIRST}",
                ),
                ("all_gather of float32[7]", "all_reduce (mean) of float32[18]"),
            ],
        ),
    ],
)
def test_a_later_program_that_one_rank_alone_has_is_named(
    what: str, mpi: bool, operations: list[tuple[str, str]], tmp_path: Path
) -> None:
    script = tmp_path / "apart.py"
    script.write_text(APART)
    start = [mpirun(), "-n", "2", sys.executable] if mpi else [
        sys.executable, "-m", "lamina", "run", "--ranks", "2", "--timeout", "60"
    ]  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT / "src")}
    ran = subprocess.run([*start, str(script), what], env=env, capture_output=True, text=True, timeout=100)
    assert ran.returncode
    text = ran.stderr + ran.stdout
    assert any(
        f"rank {a} comes to {pair[a]} as operation " in text
        and f"where rank {b} comes to {pair[b]}: ranks must" in text
        for pair in operations
        for a, b in ((0, 1), (1, 0))
    ), text


def train_on_parts(sizes: list[list[int]], **options: Any) -> str:
    """What is told of ranks whose parts of a batch have these sizes in the steps that follow each other."""
    parallel = distributed.DataParallel(**options)
    step = lm.train_step(nn.Linear(4, 3), ops.cross_entropy, optim.SGD(0.1), device="cpu", parallel=parallel)
    try:
        for sizes_now in sizes:
            n = sizes_now[distributed.rank()]
            step(np.zeros((n, 4), np.float32), np.zeros(n, np.int64))
        distributed.barrier()
    except ValueError as error:
        return str(error)
    return ""


def train_on_other_parts() -> list[str]:
    """Parts that differ at once; that may; whose first axes are not of samples (points, and what each cloud is)."""
    step = lm.train_step(
        nn.Linear(4, 3),
        lambda y, t: ops.mean(y) + 0 * ops.sum(t),
        optim.SGD(0.1),
        device="cpu",
        parallel="data",
    )
    for n in (7, 5 + distributed.rank()):
        step(np.zeros((n, 4), np.float32), np.zeros(2, np.float32))
    told = [train_on_parts([[4, 3]])]
    return [*told, train_on_parts([[4, 3]], equal_parts=False), train_on_parts([[4, 4], [3, 3], [4, 4]])]


@pytest.mark.feature("B032")
def test_parts_of_different_sizes_are_told_at_the_first_step() -> None:
    for first, meant, alike in run_ranks(train_on_other_parts, 2):
        assert "parts of a batch are of different sizes, 3 samples on rank 1 and 4 samples on rank 0" in first
        assert (meant, alike) == ("", "")


def train_on_a_shorter_part() -> None:
    train_on_parts([[4, 4], [4, 4], [4, 3]])
    time.sleep(20)


@pytest.mark.feature("B032")
def test_a_shorter_part_in_a_later_step_ends_all_ranks() -> None:
    with pytest.raises(
        RanksFailed, match="trains on [34] samples where rank [01] trains on [34], in call 3 of"
    ):
        run_ranks(train_on_a_shorter_part, 2)


class EitherHead(nn.Module):
    """A head for each of two tasks, of the same shape."""

    def __init__(self) -> None:
        self.first, self.second = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x: Any, first: bool) -> Any:
        return self.first(x) if first else self.second(x)


def train_other_heads() -> None:
    """In the third step each rank's loss depends on parameters of its own, whose gradients are of one shape."""
    step = lm.train_step(EitherHead(), ops.cross_entropy, optim.SGD(0.1), device="cpu", parallel="data")
    for first in (True, False, distributed.rank() == 0):
        step((np.zeros((4, 4), np.float32), first), np.zeros(4, np.int64))
    time.sleep(20)


@pytest.mark.feature("B032")
def test_gradients_of_other_parameters_in_a_later_step_end_all_ranks() -> None:
    with pytest.raises(
        RanksFailed, match=r"comes to a step with gradients of (first|second).bias, .*same program"
    ):
        run_ranks(train_other_heads, 2)


def fit_on_the_same() -> list[list[str]]:
    """What is warned of: the same batches on all ranks, each rank's own, parts of the same, each by a sampler."""
    me, told = distributed.rank(), []
    x, y = np.arange(32, dtype=np.float32).reshape(8, 4), np.zeros(8, np.int64)
    samples = data.TensorDataset(x, y)
    for batches in (
        data.prefetch(data.arrays(x, y, batch_size=4)),
        data.arrays(x[me::2], y[me::2], batch_size=2),
        data.arrays(x, y, batch_size=4, parallel="data"),
        data.DataLoader(samples, 2, sampler=list(range(me, 8, 2))),
    ):
        step = lm.train_step(
            nn.Linear(4, 3), ops.cross_entropy, optim.SGD(0.1), device="cpu", parallel="data"
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            lm.fit(step, batches, 1, progress=False, console=Console(quiet=True))
        told.append([str(w.message) for w in caught if w.filename == __file__])
    return told


@pytest.mark.feature("B032")
def test_ranks_that_read_the_same_are_told() -> None:
    first, second = run_ranks(fit_on_the_same, 2)
    assert [len(told) for told in (*first, *second)] == [1, 0, 0, 0, 0, 0, 0, 0]
    assert "all 2 ranks read the same batches of Batches(8 samples" in first[0][0]
