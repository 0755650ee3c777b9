"""Ranks that are about to do different things are told so, each of them, instead of waiting for ever."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import distributed, nn, ops, optim
from lamina.distributed import Group
from lamina.distributed.alike import check_alike, collectives_of
from lamina.graph import trace
from lamina.spec import Spec, float32
from tests.helpers.ranks import run_ranks

PAIR = Group(0, 1)


def test_collectives_of_a_program() -> None:
    def program(x: Any) -> Any:
        y = distributed.all_reduce(ops.relu(x), group=PAIR)
        return distributed.send_receive(y, None, 0, group=PAIR)

    (first, _), (second, _) = collectives_of(trace(program, Spec((3,), float32)))
    assert "all_reduce" in first
    assert "f32[3]" in first
    assert second == f"exchange of {PAIR}(f32[3])"  # with whom is each rank's own


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
