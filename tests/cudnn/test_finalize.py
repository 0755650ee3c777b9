"""Plans from disk, and plans that threads make before they are asked for."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from lamina import ops
from lamina.backends import get
from lamina.backends.cuda.select.target import target_of
from lamina.c.errors import CudnnError
from lamina.cudnn import DeviceProperties, ExecutionPlan, Graph, Scout, Target, finalize, scouted_target
from lamina.cudnn.autotune import build_all
from lamina.cudnn.engine import EngineConfig
from lamina.cudnn.finalize import ExpectedPlan, as_here
from lamina.graph import compile, trace
from lamina.graph.run.executable import Executable
from lamina.runtime import Device
from lamina.spec import Spec, bfloat16
from tests.helpers.planned import H200

SIZES = (16, 24, 32)
Made = list[tuple[str, int]]


@pytest.fixture
def properties() -> DeviceProperties:
    found = target_of(H200)
    assert isinstance(found, DeviceProperties)
    return found


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Every plan counts as slow, and as compiled; (thread, engine) of each that is made."""
    plans: Made = []
    original = finalize._made

    def noted(config: EngineConfig, target: Target) -> tuple[ExecutionPlan, bool]:
        plans.append((threading.current_thread().name, config.key[0]))
        return original(config, target)[0], True

    monkeypatch.setattr(finalize, "_made", noted)
    monkeypatch.setattr(finalize, "_SLOW", -1.0)
    return plans


def convolution(size: int) -> Graph:
    graph = Graph()
    x = graph.tensor((8, size, 28, 28), (784 * size, 1, 28 * size, size), "bfloat16")
    w = graph.tensor((64, size, 3, 3), (9 * size, 1, 3 * size, size), "bfloat16")
    y = graph.tensor((8, 64, 28, 28), (784 * 64, 1, 28 * 64, 64), "bfloat16")
    graph.conv(x, w, y, stride=(1, 1), pre=(1, 1), post=(1, 1))
    return graph


def asked(target: Target | None) -> Iterator[ExecutionPlan]:
    """The plans that are wanted, one after the other."""
    assert target is not None
    for size in SIZES:
        yield convolution(size).plan(target)


def joined(scout: Scout) -> None:
    """Wait until a scout has been everywhere."""
    assert scout._thread is not None
    scout._thread.join()


def test_what_the_scout_met_is_not_made_again(properties: DeviceProperties, made: Made) -> None:
    wanted = [(p.config.key, p.workspace) for p in asked(properties) if p.config is not None]
    made.clear()
    seen: list[ExecutionPlan] = []
    with Scout(lambda: seen.extend(asked(scouted_target()))) as scout:
        plans = asked(properties)
        found = [next(plans)]
        joined(scout)
        for future in scout._begun.values():
            future.exception()  # made, or not
        found += plans
    assert [(p.config.key, p.workspace) for p in found if p.config is not None] == wanted
    assert [name == "MainThread" for name, _ in made].count(True) == 1
    assert len(made) == 1 + len(SIZES)  # the first one was under way when the scout set out
    assert [p.config.key for p in seen if p.config is not None] == [key for key, _ in wanted]
    assert all(p.closed for p in seen)
    assert scouted_target() is None


def test_nobody_is_sent_where_plans_are_there_at_once(
    properties: DeviceProperties, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finalize, "_SLOW", 1e9)
    with Scout(lambda: pytest.fail("it was sent")) as scout:
        assert len(list(asked(properties))) == len(SIZES)
    assert scout._thread is None


@pytest.mark.parametrize("compiled", [True, False])
def test_nobody_is_sent_where_no_compiler_is_at_work(
    properties: DeviceProperties, monkeypatch: pytest.MonkeyPatch, compiled: bool
) -> None:
    """What comes from disk is Python's work, which a scout would only do twice."""
    original = finalize._made
    monkeypatch.setattr(finalize, "_SLOW", -1.0)
    monkeypatch.setattr(finalize, "_made", lambda *of: (original(*of)[0], compiled))
    sent: list[object] = []
    with Scout(lambda: sent.append(None)) as scout:
        assert len(list(asked(properties))) == len(SIZES)
        if compiled:
            joined(scout)
    assert len(sent) == compiled


def test_a_refusal_reaches_whoever_asks(
    properties: DeviceProperties, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scout takes an engine to be possible; it is refused in earnest, and the next one is taken."""
    first, second = [
        p.config.key for p in list(convolution(24).plans(properties))[:2] if p.config is not None
    ]
    noted = finalize._made

    def refusing(config: EngineConfig, target: Target) -> tuple[ExecutionPlan, bool]:
        if config.key == first:
            raise CudnnError(3000, "cudnnBackendFinalize", "no")
        return noted(config, target)

    monkeypatch.setattr(finalize, "_made", refusing)
    met: list[ExecutionPlan] = []
    with Scout(lambda: met.append(convolution(24).plan(_target()))) as scout:
        convolution(16).plan(properties)
        joined(scout)
        found = convolution(24).plan(properties)
    assert [None if p.config is None else p.config.key for p in (met[0], found)] == [first, second]


def _target() -> Target:
    target = scouted_target()
    assert target is not None
    return target


def test_what_goes_wrong_on_the_way_ends_it(properties: DeviceProperties, made: Made) -> None:
    with Scout(lambda: 1 / 0) as scout:
        assert len(list(asked(properties))) == len(SIZES)
    assert not scout._begun


def test_it_ends_with_its_context(properties: DeviceProperties, made: Made) -> None:
    """A scout that still goes on finds out at its next plan; what was not begun is not made."""
    entered, left = threading.Event(), threading.Event()
    outcome: list[BaseException] = []

    def way() -> None:
        entered.set()
        left.wait(30)
        try:
            convolution(32).plan(_target())
        except RuntimeError as error:
            outcome.append(error)

    with Scout(way) as scout:
        convolution(16).plan(properties)
        assert entered.wait(30)
        threading.Timer(0.05, left.set).start()
        scout._ended = True
    assert "not needed any more" in str(outcome[0])
    assert not scout._begun


def program(where: Device) -> Executable:
    def block(x: Any, w: Any, v: Any) -> Any:
        return ops.conv2d(ops.relu(ops.conv2d(x, w, padding=1)), v, padding=1)

    shapes = ((8, 16, 32, 32), (40, 16, 3, 3), (8, 40, 3, 3))
    return compile(trace(block, *[Spec(s, bfloat16) for s in shapes]), where)


def labels(made: Executable) -> list[str]:
    return [one.plan.label for one in made.program.steps]


@pytest.mark.feature("B050")
def test_programs_are_the_same_with_a_scout(monkeypatch: pytest.MonkeyPatch, made: Made) -> None:
    monkeypatch.setattr(finalize, "_SLOW", 1e9)
    wanted = labels(program(H200))
    made.clear()
    monkeypatch.setattr(finalize, "_SLOW", -1.0)
    assert labels(program(Device("cuda:1", machine=H200.machine))) == wanted
    assert made
    assert any("conv" in label for label in wanted)


def test_a_backend_that_makes_no_plans_of_cudnn_sends_nobody() -> None:
    called: list[object] = []
    with get(H200, "null").scouted(called.append):
        pass
    assert not called


# ---- many candidates of each problem


def every(size: int, target: Target) -> list[EngineConfig]:
    """All that the heuristics name for a problem."""
    return list(convolution(size).candidates(target, ("a", "b")))


@pytest.mark.feature("B051")
def test_candidates_of_the_next_problems_are_made_while_one_is_timed(
    properties: DeviceProperties, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scout's candidates and those of who comes behind are both made in further threads, and each once."""
    wanted = {size: [c.key for c in every(size, properties)] for size in SIZES}

    def way() -> None:
        for size in SIZES:
            configs = every(size, _target())
            build_all(configs, _target(), [None] * len(configs))

    with Scout(way) as scout:
        first = every(SIZES[0], properties)
        build_all(first, properties, [None] * len(first))
        joined(scout)
        waited = list(scout._begun.values())
        for future in waited:
            future.exception()
        made.clear()  # now the contest is over: what it is to go on with is there
        for size in SIZES[1:]:
            configs = every(size, properties)
            plans = build_all(configs, properties, [None] * len(configs))
            assert [c.key for c in configs] == wanted[size]
            assert all(isinstance(p, ExecutionPlan | str) for p in plans)
            assert any(isinstance(p, ExecutionPlan) and not isinstance(p, ExpectedPlan) for p in plans)
        assert made == []
        assert scouted_target() is None
    assert len(waited) >= sum(map(len, list(wanted.values())[1:]))


def test_a_scout_is_a_few_plans_ahead_and_keeps_nothing_that_was_left_aside(
    properties: DeviceProperties, made: Made, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(finalize, "_AHEAD", 2)
    sizes, met = (16, 24, 32, 40, 48, 56, 64), list[int]()

    def way() -> None:
        for size in sizes:
            convolution(size).plan(_target())
            met.append(size)

    def settled(count: int) -> None:
        """Wait until the scout has met so many."""
        deadline = threading.Event()
        for _ in range(3000):
            if len(met) >= count:
                return
            deadline.wait(0.01)
        raise AssertionError(met)

    with Scout(way) as scout:
        convolution(16).plan(properties)
        settled(2)
        assert len(scout._numbers) == 2  # it waits
        convolution(24).plan(properties)
        settled(3)
        convolution(32).plan(properties)
        settled(4)
        convolution(40).plan(properties)
        settled(5)
        assert len(scout._numbers) == 5
        assert set(scout._begun) <= set(list(scout._numbers)[1:])  # 16 was made before it set out
        assert scout._thread is not None
        assert scout._thread.is_alive()
    assert len(met) == 5


def test_a_task_for_another_thread_knows_its_scout(properties: DeviceProperties) -> None:
    seen = list[object]()

    def look(given: int) -> int:
        seen.append(finalize._this_thread.behind)
        return given + 1

    with Scout(lambda: None) as scout:
        there = as_here(look)
    thread = threading.Thread(target=lambda: seen.append(there(1)))
    thread.start()
    thread.join()
    assert seen == [scout, 2]
    assert finalize._this_thread.behind is None
