"""Autotuning without a GPU: doubles for plans, which run on the host; what is tried, kept, remembered, refused."""

import ctypes
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lamina.c import cudnn as c
from lamina.cudnn import Graph, PlanStore, autotune, contest
from lamina.cudnn.contest import Check
from lamina.cudnn.descriptor import text_of
from lamina.cudnn.engine import BehaviorNote, Candidates, NumericalNote
from lamina.cudnn.plan import ExecutionPlan
from lamina.runtime import Device, stream
from tests.helpers import emulator

pytestmark = pytest.mark.skipif(
    shutil.which("g++") is None or not c.library.available(),
    reason="needs a C++ compiler and cuDNN's library",
)

COMPILED = BehaviorNote.CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION


class Clock:
    """A clock that only plans advance: how busy the machine is does not matter."""

    nanoseconds = 0

    def perf_counter_ns(self) -> int:
        return self.nanoseconds

    def perf_counter(self) -> float:
        return self.nanoseconds / 1e9


CLOCK = Clock()


@dataclass
class Config:
    """An engine that takes so long, needs so much workspace and adds so much to the right result."""

    number: int
    milliseconds: float = 1.0
    error: float = 0.0
    workspace: int = 0
    notes: frozenset[NumericalNote] = frozenset()
    behavior: frozenset[BehaviorNote] = frozenset()
    made: list[int] = field(default_factory=list)

    @property
    def key(self) -> Any:
        return self.number, ()

    @property
    def engine(self) -> Any:
        return SimpleNamespace(numerical_notes=self.notes, behavior_notes=self.behavior)


class Plan(ExecutionPlan):
    """y = x + 1 + error on the host."""

    def __init__(self, config: Config) -> None:
        self.config: Any = config
        self.workspace = config.workspace

    def bind(self, handle: Any, pack: Any, stream: int) -> Callable[[], None]:
        pointers, _ = pack

        def run() -> None:
            x, y = (np.frombuffer((ctypes.c_char * 64).from_address(pointers[u]), np.float32) for u in (1, 2))
            y[:] = x + 1 + self.config.error
            CLOCK.nanoseconds += round(self.config.milliseconds * 1e6)

        return run


@dataclass
class Scene:
    """A graph with doubles for engines, and what tunes it."""

    graph: Graph
    configs: list[Config]
    store: PlanStore
    refusals: list[str] = field(default_factory=list)

    def tune(self, **options: Any) -> Any:
        standing: Any = SimpleNamespace(
            values={"operations": self.graph.operations},
            configs=lambda modes: Candidates(list(self.configs), []),  # type: ignore[arg-type]
        )
        arguments = {"pointers": {}, "workspace_limit": 1000, "deterministic": False, "tf32": False}
        arguments |= {"tolerance": None, "plain": None, "accept": None, "outputs": None, "store": self.store}
        handle: Any = SimpleNamespace(device=Device("cpu"))
        tensors = [t for t in self.graph.tensors if not t.virtual]
        arguments |= {"refusals": self.refusals, **options}
        return autotune.autotune(standing, tensors, "test", handle, **arguments)  # type: ignore[arg-type]


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    monkeypatch.setattr(Check, "load", lambda check, device: emulator.Kernel(check))
    monkeypatch.setattr(stream, "time", CLOCK)
    monkeypatch.setattr(contest, "time", CLOCK)
    monkeypatch.setattr(autotune, "VariantPack", lambda pointers, workspace: (pointers, workspace))
    scene: Scene

    def attempt(config: Config, target: Any, *, workspace_limit: int) -> Any:
        config.made.append(workspace_limit)
        over = config.workspace > workspace_limit
        return f"eng{config.number}: over the limit" if over else Plan(config)

    def config_of(graph: Any, number: int, knobs: Mapping[int, int]) -> Config:
        return next(config for config in scene.configs if config.number == number)

    monkeypatch.setattr(autotune, "attempt", attempt)
    monkeypatch.setattr(autotune, "EngineConfig", config_of)
    graph = Graph()
    x, y = graph.packed((16, 1, 1), "float32"), graph.packed((16, 1, 1), "float32")
    graph.pointwise("identity", x, out=y)
    scene = Scene(graph, [Config(0, 3.0), Config(1), Config(2, 2.0)], PlanStore("test", "1", tmp_path))
    return scene


@pytest.mark.feature("B009", "B010")
def test_the_fastest_right_one_is_remembered(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    scene.configs.insert(1, Config(7, 0.1, error=0.5))
    assert scene.tune().config.number == 1
    assert [r.split(":")[0] for r in scene.refusals] == ["eng7"]
    monkeypatch.setattr(autotune, "Contest", None)  # nothing may be timed
    scene.store = PlanStore("test", "1", scene.store.path.parent)
    assert scene.tune().config.number == 1
    with pytest.raises(TypeError):
        scene.tune(deterministic=True)  # another question


@pytest.mark.feature("B011", "F091")
def test_what_may_compete(scene: Scene) -> None:
    """Over the cap, not deterministic, TF32, refused by the caller: never made or never taken."""
    scene.configs += [
        Config(3, 0.1, workspace=1001),
        Config(4, 0.1, notes=frozenset({NumericalNote.CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC})),
        Config(5, 0.1, notes=frozenset({NumericalNote.CUDNN_NUMERICAL_NOTE_TENSOR_CORE})),
        Config(6, 0.1),
    ]

    def accept(config: Any) -> str:
        return "the caller's" if config.number == 6 else ""

    found = scene.tune(deterministic=True, accept=accept)
    assert found.config.number == 1
    assert [config.made for config in scene.configs[3:]] == [[1000], [], [], []]
    reasons = " ".join(scene.refusals)
    for reason in (
        "eng3: over the limit",
        "eng4: not deterministic",
        "eng5: rounds float32",
        "eng6: the caller's",
    ):
        assert reason in reasons


@pytest.mark.feature("B010", "B011")
def test_a_remembered_plan_is_checked_against_the_limits(scene: Scene) -> None:
    scene.configs[1].workspace = 900
    assert scene.tune().config.number == 1
    scene.configs[1].workspace = 2000  # it needs more than it did
    assert scene.tune().config.number == 2


@pytest.mark.feature("B009")
def test_a_function_says_what_is_right(scene: Scene) -> None:
    def plain(places: Mapping[int, int], stream: int) -> None:
        ctypes.memset(places[2], 0, 64)

    assert scene.tune(plain=plain) is None
    assert len(scene.refusals) == 3
    assert all("wrong: relative error" in reason for reason in scene.refusals)
    assert scene.store.keys() == []


@pytest.mark.feature("F088")
def test_budget_and_fallback() -> None:
    """A quarter of what is free, but no more than 4 GiB: several processes may tune on one GPU."""

    def handle(free: int) -> Any:
        return SimpleNamespace(device=SimpleNamespace(memory_info=lambda: SimpleNamespace(free=free)))

    assert autotune.budget(handle(1 << 30).device, None) == 1 << 28
    assert autotune.budget(handle(140 << 30).device, None) == 4 << 30
    assert autotune.budget(handle(140 << 30).device, 8 << 30) == 8 << 30
    assert autotune.budget(handle(1 << 30).device, 7) == 7


def test_few_plans_are_compiled() -> None:
    test = autotune.few_compiled(2)
    compiled: Any = Config(1, behavior=frozenset({COMPILED}))
    assert [bool(test(compiled)) for _ in range(4)] == [False, False, True, True]
    assert test(Config(2)) == ""  # type: ignore[arg-type]


@pytest.mark.feature("F086")
def test_equal_graphs_have_equal_texts() -> None:
    """Sizes, strides, element type, alignment and window decide."""

    def text(
        size: int = 8, kind: str = "float16", last: bool = True, alignment: int = 16, pad: int = 1
    ) -> str:
        graph = Graph()
        x = graph.packed((2, 8, size, size), kind, channels_last=last, alignment=alignment)
        w = graph.packed((8, 8, 3, 3), kind, channels_last=last)
        side = size + 2 * pad - 2
        y = graph.packed((2, 8, side, side), kind, channels_last=last)
        graph.conv(x, w, y, stride=(1, 1), pre=(pad, pad))
        return text_of(graph.operations[0])

    assert text() == text()
    assert (
        len({text(), text(9), text(kind="bfloat16"), text(last=False), text(alignment=4), text(pad=0)}) == 6
    )


def test_operations_without_known_results_are_named() -> None:
    operation: Any = type("Unheard", (), {"values": {}})()
    with pytest.raises(ValueError, match=r"say which tensors Unheard writes, by outputs=\[…\]"):
        autotune._results([operation])
