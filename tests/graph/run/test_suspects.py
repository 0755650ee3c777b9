"""Experiments on captured programs beside each other find what is wrong; on a CPU nothing is."""

import json
from argparse import Namespace
from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from lamina.runtime import Device
from tests.helpers import suspects
from tests.helpers.suspects import (
    GAP,
    MARGIN,
    PATTERN,
    Arenas,
    Check,
    Lane,
    Range,
    Trial,
    addressed,
    each,
    replays,
)

GIVEN = Namespace(network="small", precision="fp32", contexts=2, calls=2, seconds=0.1, device="cpu")


@pytest.fixture(scope="module")
def spread() -> Trial:
    return Trial(GIVEN, Arenas(spread=True))


def test_all_experiments_run() -> None:
    """But for those that look at recorded graphs."""
    found = {
        name: make() for name, make in suspects.experiments(GIVEN) if name not in ("graphs", "full edges")
    }
    assert len(found) == 10
    assert all(not one["wrong"] for one in found.values())
    assert found["apart"]["overwritten"] == found["spread"]["overwritten"] == 0


def test_an_experiment_that_fails_leaves_the_others(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is recorded on a CPU."""
    command = "--network small --precision fp32 --contexts 2 --device cpu --only graphs"
    assert suspects.main(command.split()) == 1
    line = json.loads(capsys.readouterr().out)
    assert line["experiment"] == "graphs"
    assert line["error"].startswith("AttributeError")
    assert suspects.main([*command.split(), "--seconds", "0"]) == 0
    assert json.loads(capsys.readouterr().out)["left out"] == "the time is over"


def test_no_two_values_share_bytes(spread: Trial) -> None:
    assert spread.lie is not None
    for context in spread.contexts:
        ends = sorted((o, o + s.spec.nbytes) for s, o in spread.lie.offsets[context].items())
        assert ends[0][0] >= MARGIN
        assert all(a[1] + GAP <= b[0] for a, b in pairwise(ends))
    one, other = (spread.lie.memory[c] for c in spread.contexts)
    assert one.pointer + one.nbytes <= other.pointer or other.pointer + other.nbytes <= one.pointer


def test_guards_show_what_is_written_beyond() -> None:
    lie = Arenas()
    trial = Trial(GIVEN, lie)
    assert lie.overwritten() == 0
    arena = lie.memory[trial.contexts[0]]
    arena.array((arena.nbytes,), np.uint8)[[MARGIN - 1, -1]] = PATTERN ^ 1
    assert lie.overwritten() == 2


def test_what_differs_first_is_named(spread: Trial) -> None:
    """A value that one step writes is changed behind it, in one round of a hundred."""
    lanes = spread.lanes()
    memory = spread.contexts[1]._memory(spread.steps[0].outputs[0])
    bytes_ = memory.array((memory.nbytes,), np.uint8)
    plain = lanes[1].run

    def spoiled(turn: int) -> None:
        plain(turn)
        if turn == 7:
            bytes_[0] ^= 1

    found = replays([lanes[0], Lane(lanes[1].stream, spoiled, lanes[1].checks)], 0.0)
    assert (found["replays"], found["wrong"]) == (200, 1)
    assert found["first"] == {f"0 {spread.steps[0].plan.label}": 1}
    assert replays(lanes, 0.0)["wrong"] == 0


def test_an_old_input_s_result_is_wrong(spread: Trial) -> None:
    """Inputs take turns, so that what an earlier call left is not taken for right."""
    lane = spread.lane(0)
    found = replays([Lane(lane.stream, lambda turn: lane.run(0), lane.checks)], 0.0, most=1000)
    assert found["wrong"] == 50


def test_a_step_that_is_wrong_by_itself_is_named(monkeypatch: pytest.MonkeyPatch, spread: Trial) -> None:
    plain, last = suspects._recorded, spread.steps[-1]

    def recorded(context: Any, step: Any, restored: Any) -> Any:
        queue = plain(context, step, restored)
        if step is not last or context is not spread.contexts[0]:
            return queue
        memory = context._memory(step.outputs[0])

        def spoiled() -> None:
            queue()
            memory.array((memory.nbytes,), np.uint8)[3] ^= 1

        return spoiled

    assert each(spread, 0.0)["wrong"] == {}
    monkeypatch.setattr(suspects, "_recorded", recorded)
    wrong = each(spread, 0.0)["wrong"]
    label = f"{len(spread.steps) - 1} {last.plan.label}"
    assert wrong == {f"{label}, beside itself": "100 of 200", f"{label}, beside the program": "100 of 100"}


def test_what_graphs_address() -> None:
    ranges = [Range(1000, 100, None), Range(2000, 100, 0), Range(3000, 100, 1)]
    words = {
        0: [("a", 1010), ("a", 2010), ("b", 3099), ("c", 9000), ("d", 7)],
        1: [("a", 1010), ("a", 3000), ("b", 3100), ("c", 9000), ("d", 8000)],
    }
    found = addressed(words, ranges, lambda word: word >= 8000)
    assert found["of other contexts"] == {"b": 1}
    assert found["of no context, in several graphs"] == {"c": 1}
    assert found["of no context, in one graph"] == 1


def test_words_are_compared() -> None:
    device = Device("cpu")
    a, b, log = (device.allocate(n) for n in (36, 36, 8))
    for memory in (a, b):
        memory.array((36,), np.uint8)[:] = np.arange(36)
    first = log.array((1,), np.uint64)
    first[0] = suspects.NONE
    run = Check(a, (b,), str).prepare(3, log.pointer, device.default_stream)
    run()
    assert first[0] == suspects.NONE
    b.array((36,), np.uint8)[17] = 0
    run()
    assert first[0] == 2
