"""Steps as data parallel training sees them: of profiles, of plans for machines, in files."""

import json
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.graph import compile, profile, trace
from lamina.runtime import Machine
from lamina.simulate import Gradient, Workload, workload_of
from lamina.spec import Spec, float32


def step(backend: str | None = None) -> Any:
    nn.manual_seed(0)
    net = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 5))
    made = lm.train_step(net, ops.cross_entropy, optim.SGD(0.1, momentum=0.9), device="cpu", backend=backend)
    if backend is None:
        made(np.ones((8, 12), np.float32), np.zeros(8, np.int64))
        return made.executable
    return made.program(Spec((8, 12), float32), Spec((8,), lm.int64)).executable


def test_of_a_timed_step() -> None:
    executable = step()
    found = profile(executable, rounds=2)
    work = workload_of(executable, 8, found)
    assert sorted(g.nbytes for g in work.gradients) == sorted(4 * n for n in (240, 20, 100, 5))
    assert found.milliseconds is not None
    assert work.seconds == pytest.approx(found.milliseconds / 1e3)
    assert 0 < work.update < work.seconds
    assert {g.nbytes for g in work.gradients[:2]} == {400, 20}  # the last layer's are there first
    assert work.gradients[-1].ready <= work.seconds - work.update + 1e-9
    assert Workload.of_profile(json.loads(json.dumps(found.record)), 8) == work
    with pytest.raises(ValueError, match="was not timed"):
        workload_of(executable, 8, profile(executable, rounds=0))
    with pytest.raises(ValueError, match="was not timed; lamina plan --time times it"):
        Workload.of_profile(profile(executable, rounds=0).record, 8)


def test_of_a_plan_for_a_machine_that_is_not_here() -> None:
    work = workload_of(step("null"), 8, Machine.named("h200"), seconds=0.25)
    assert work.seconds == pytest.approx(0.25)
    assert work.nbytes == 4 * 365
    forward = compile(trace(ops.relu, Spec((3,), float32)), "cpu", backend="null")
    with pytest.raises(ValueError, match="the program updates nothing: is it a training step"):
        workload_of(forward, 8, Machine.named("h200"))


def test_buckets_and_other_times() -> None:
    work = Workload(1.0, 4, (Gradient(0.6, 30), Gradient(0.2, 10), Gradient(0.3, 15), Gradient(0.9, 5)), 0.1)
    assert [g.nbytes for g in work.gradients] == [10, 15, 30, 5]
    assert work.buckets(30) == [Gradient(0.3, 25), Gradient(0.6, 30), Gradient(0.9, 5)]
    assert work.buckets(1) == list(work.gradients)
    assert work.buckets(100) == [Gradient(0.9, 60)]
    twice = work.in_time(2.0)
    assert (twice.update, twice.gradients[0]) == (0.2, Gradient(0.4, 10))
    assert Workload.of_record(json.loads(json.dumps(work.record))) == work


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Workload(0, 1, ()), "seconds must be > 0, got 0"),
        (lambda: Workload(1, 0, ()), "samples must be at least 1, got 0"),
        (lambda: Workload(1, 1, (), 2), r"update must be in \[0, 1\], got 2"),
        (
            lambda: Workload(1, 1, (Gradient(0.95, 1),), 0.1),
            "finished when the backward pass ends, at the latest",
        ),
        (lambda: Workload.of_record({"seconds": 1}), "is not written as one"),
        (lambda: Workload.of_profile({}, 1), "is no profile"),
    ],
)
def test_what_cannot_be_is_named(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()
