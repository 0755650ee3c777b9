"""A program of a plan on a GPU, which is copies alone: the driver in software runs it, too."""

from typing import Any

import numpy as np
import pytest

from lamina.replay.addresses import ARENA, INPUTS, KEPT, virtual
from lamina.replay.gpu import GpuSteps
from lamina.replay.player import Player
from lamina.runtime import Device, from_host
from tests.helpers.many_threads import in_threads

pytestmark = pytest.mark.gpu
ROWS, ROW = 8, 4 * 100


def player(contexts: int) -> Player:
    """y: the rows of x with the last one first, and a kept row in place of the first; z: x."""
    gpu = Device("cuda:0")
    kept = from_host(np.full(100, -1, np.float32), gpu)
    last = (ROWS - 1) * ROW
    steps: list[Any] = [
        ["copy", virtual(ARENA), virtual(INPUTS, last), ROW],
        ["copy", virtual(ARENA, ROW), virtual(INPUTS), last],
        ["copy", virtual(ARENA, ROW), virtual(KEPT), ROW],
        ["fill", virtual(ARENA, 2 * ROW), 0, ROW],
    ]
    spec = [[ROWS, 100], "float32"]
    none = [[0, 3], "float32"]
    data = {"arena": ROWS * ROW, "counters": 0, "inputs": [["x", spec], ["none", none]], "steps": steps}
    return Player(
        {**data, "outputs": [[virtual(ARENA), spec], [virtual(INPUTS), spec], [0, none]]},
        kept, gpu, GpuSteps(gpu, lambda place: memoryview(b"")), contexts,
    )  # fmt: skip


def wanted(x: Any) -> Any:
    y = np.roll(x, 1, 0)
    y[1], y[2] = -1, 0
    return y


@pytest.mark.feature("F113")
@pytest.mark.parametrize("threads", [1, 6])
def test_a_call_is_one_launch_with_its_copies(threads: int) -> None:
    found = player(contexts=3)
    xs = [np.random.default_rng(k).standard_normal((ROWS, 100)).astype(np.float32) for k in range(6)]
    xs.append(np.asfortranarray(xs[0]))
    none = np.zeros((0, 3), np.float32)

    def work(k: int) -> None:
        for i in np.random.default_rng(k).integers(0, len(xs), 100):
            y, z, nothing = found(xs[i], none)
            np.testing.assert_array_equal(y, wanted(xs[i]))
            np.testing.assert_array_equal(z, xs[i])
            assert nothing.shape == (0, 3)

    in_threads(work, threads)
    for context in found._contexts.items:
        assert context._captured.node_count == 7  # type: ignore[attr-defined]
