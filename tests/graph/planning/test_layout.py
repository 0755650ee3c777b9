"""Programs of any length are planned without recursion and in linear time; a plan is made once."""

import cProfile
import pstats
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import backends, onednn, ops
from lamina.backends import Plan
from lamina.graph import compile, gradients, trace
from lamina.graph.ir import serialize
from lamina.graph.planning.layout import Plans, Slot
from lamina.graph.run.html import html_page
from lamina.graph.run.profile import profile
from lamina.spec import Policy, Spec, float32, uint8
from tests.helpers.stand_in import CUDA

X = Spec((4, 8), float32)


def training(layers: int) -> lm.graph.Graph:
    """A chain with a residual in each layer, its gradients and the updates of a parameter per layer."""

    def f(x, *weights):  # type: ignore[no-untyped-def]
        y = x
        for w in weights:
            y = ops.tanh(y * w) + y
        loss = ops.sum(y)
        return [loss, *(w - g for w, g in zip(weights, gradients(loss, weights), strict=True))]

    return trace(f, X, *[X] * layers)


def planned(layers: int, **options: Any) -> lm.graph.Executable:
    graph = training(layers)
    donate = {i + 1: i + 1 for i in range(layers)}
    return compile(graph, "cpu", backend="null", optimize=False, donate=donate, **options)


def calls(work: Callable[[], Any]) -> int:
    """How many function calls some work takes: a measure of time that does not vary."""
    recorder = cProfile.Profile()
    recorder.runcall(work)
    return int(pstats.Stats(recorder).total_calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "work",
    [
        lambda n, folder: training(n),
        lambda n, folder: planned(n),
        lambda n, folder: planned(n, memory_limit=planned(n).peak_bytes * 3 // 4),
        lambda n, folder: serialize.load(_saved(training(n), folder)),
        lambda n, folder: str(training(n)),
        lambda n, folder: html_page(profile(planned(n), rounds=0), "a chain"),
    ],
    ids=["trace", "plan", "recompute", "save", "print", "html"],
)
def test_the_time_is_linear_in_the_layers(work: Callable[[int, Path], Any], tmp_path: Path) -> None:
    work(4, tmp_path)  # what is made once
    few, many = (calls(lambda: work(n, tmp_path)) for n in (20, 80))  # noqa: B023
    assert many < 4 * 1.2 * few


def _saved(graph: lm.graph.Graph, folder: Path) -> Path:
    serialize.save(graph, folder / "graph.lamina")
    return folder / "graph.lamina"


@pytest.mark.parametrize("backend", ["null", "cpu"])
def test_a_chain_of_any_length_is_planned(backend: str) -> None:
    """Longer than Python's recursion goes; every step works in the memory of the one before."""

    def f(x):  # type: ignore[no-untyped-def]
        for _ in range(1000):
            x = ops.relu(x) + 1.0
        return x

    found = compile(trace(f, X), "cpu", backend=backend, optimize=False)
    assert len(found.program.steps) == 2000
    assert found.peak_bytes == 256


def test_base_goes_through_any_number_of_views() -> None:
    slot = first = Slot(X.fixed, "temporary")
    for _ in range(5000):
        slot = Slot(X.fixed, "temporary", shares=slot)
    assert slot.base is first


def test_a_plan_is_made_once() -> None:
    backend, policy = backends.get(lm.device("cpu"), "null"), Policy()
    plans = Plans(backend)
    relu = ops.primitives.Relu()
    assert plans.plan(relu, [X], policy) is plans.plan(relu, [X], policy)
    assert plans.plan(relu, [X], policy) is not plans.plan(relu, [Spec((3,), float32)], policy)
    assert plans.reorder(X.fixed, X.fixed) is plans.reorder(X.fixed, X.fixed)


def test_what_runs_is_compiled_ahead_and_what_is_only_planned_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relu, begun = ops.primitives.Relu(), list[str]()
    monkeypatch.setattr(Plan, "compile_ahead", lambda plan: begun.append(plan.label))
    here = backends.get(lm.device("cpu"), "reference")
    found = [Plans(here).plan(relu, [X], Policy()), Plans(here).reorder(X.fixed, X.fixed)]
    assert begun == [plan.label for plan in found]
    Plans(CUDA).plan(relu, [X], Policy())
    assert len(begun) == 2


@pytest.mark.skipif(not onednn.available(), reason="oneDNN is built for x86-64")
@pytest.mark.parametrize("resident", [[1], []])
def test_what_stays_is_prepared_once(resident: list[int]) -> None:
    """A grouped filter whose layout has no name: packed when it is loaded, in each run where it may change."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((1, 20, 6, 6), (28, 10, 1, 1)))
    graph = trace(lambda x, w: ops.conv2d(x, w, groups=2), x, w)
    executable = compile(graph, "cpu", resident=resident)
    if resident:
        executable.load({1: lm.tensor(w)})
    prepared = [s for s in executable.program.prologue if s.outputs[0].spec.dtype == uint8]
    (conv,) = (s for s in executable.program.steps if s.label == "conv")
    assert len(prepared) == (1 if resident and conv.inputs[1].spec.dtype == uint8 else 0)
    found = executable(x) if resident else executable(x, w)
    np.testing.assert_allclose(found[0].numpy(), graph(x, w)[0].numpy(), rtol=1e-5, atol=1e-5)
