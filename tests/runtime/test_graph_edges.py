"""Edges of captured graphs, on a driver in software."""

import gc
from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.runtime import _cuda, graph_edges
from lamina.runtime.graph_edges import set_edges, waits_itself


@dataclass(frozen=False, eq=True)
class Data:
    """Data of an edge; type 1: what is behind it may begin before what is before it has ended."""

    type: int = 0
    from_port: int = 0


@dataclass
class Driver:
    """The driver's functions on the edges of one graph, as the bindings of CUDA 13 or 12 have them.

    kernels: the function that each kernel's node launches; other nodes are copies.
    """

    edges: list[tuple[int, int, Data]]
    suffix: str = ""
    kernels: dict[int, int] = field(default_factory=dict)
    changes: int = 0
    CUgraphEdgeData = Data

    def functions(self) -> dict[str, Callable[..., Any]]:
        with_kinds = {"GetEdges": self.get, "RemoveDependencies": self.remove, "AddDependencies": self.add}
        found: dict[str, Callable[..., Any]] = {
            f"cuGraph{name}{self.suffix}": function for name, function in with_kinds.items()
        }
        found["cuGraphNodeGetType"] = lambda node: 0 if node in self.kernels else 1
        found["cuGraphKernelNodeGetParams"] = lambda node: SimpleNamespace(func=self.kernels[node], kern=0)
        return found

    def get(self, graph: object, count: int = 0) -> tuple[Any, ...]:
        given = self.edges[:count]
        return [a for a, _, _ in given], [b for _, b, _ in given], [e for *_, e in given], len(self.edges)

    def remove(
        self, graph: object, before: list[int], after: list[int], data: list[Data], count: int
    ) -> None:
        self.changes += 1
        assert count == len(before)
        for edge in zip(before, after, data, strict=True):
            self.edges.remove(edge)

    def add(self, graph: object, before: list[int], after: list[int], data: list[Data], count: int) -> None:
        assert count == len(before)
        self.edges += zip(before, after, data, strict=True)

    def kinds(self) -> dict[tuple[int, int], tuple[int, int]]:
        return {(a, b): (data.type, data.from_port) for a, b, data in self.edges}


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Callable[[Driver], Driver]:
    def used(driver: Driver) -> Driver:
        names = driver.functions()
        there = SimpleNamespace(CUgraphEdgeData=Data, **names)
        monkeypatch.setattr(_cuda, "open_cuda", lambda: SimpleNamespace(driver=there))
        monkeypatch.setattr(_cuda, "call", lambda name, *given: names[name](*given))
        return driver

    return used


@pytest.mark.feature("B035")
@pytest.mark.parametrize("suffix", ["", "_v2"])
def test_kernels_of_libraries_wait_for_the_end_of_those_before(
    suffix: str, use: Callable[[Driver], Driver]
) -> None:
    chain = [(1, 2, Data()), (2, 3, Data(1, 1)), (3, 4, Data(1, 1))]
    made = use(Driver(chain, suffix, dict.fromkeys((1, 2, 3, 4), 70)))
    set_edges("graph")
    assert made.kinds() == dict.fromkeys([(1, 2), (2, 3), (3, 4)], (0, 0))
    set_edges("graph")
    assert made.changes == 1  # nothing is left to do
    made.edges.clear()
    set_edges("graph")
    assert made.edges == []


class Kernel:
    """Loaded as long as it lives."""


@pytest.mark.feature("B009")
def test_own_kernels_of_a_chain_begin_early(use: Callable[[Driver], Driver]) -> None:
    """A copy, own kernels, a library's and own ones in a row, and branches that meet."""
    own = Kernel()
    waits_itself(own, 80, 81)
    kernels = {2: 80, 3: 81, 4: 70, 5: 80, 6: 80}
    made = use(Driver([(k, k + 1, Data()) for k in range(1, 7)], kernels=kernels))
    set_edges("graph")
    early, whole = (1, 1), (0, 0)
    chain = [whole, early, whole, whole, early, whole]
    assert made.kinds() == {(k, k + 1): kind for k, kind in enumerate(chain, 1)}
    branches = [(1, 2, Data()), (1, 3, Data()), (2, 4, Data()), (3, 4, Data()), (4, 5, Data())]
    made = use(Driver(branches, kernels=dict.fromkeys(range(1, 6), 80)))
    set_edges("graph")
    assert made.kinds() == {(1, 2): whole, (1, 3): whole, (2, 4): whole, (3, 4): whole, (4, 5): early}
    del own
    gc.collect()
    made = use(Driver([(1, 2, Data())], kernels={1: 80, 2: 80}))  # another kernel's handle by now
    set_edges("graph")
    assert made.kinds() == {(1, 2): whole}
    assert not {80, 81} & {*graph_edges._waiting}


def test_bindings_that_know_no_kinds_of_edges(use: Callable[[Driver], Driver]) -> None:
    made = use(Driver([(1, 2, Data())], kernels={1: 80, 2: 80}))
    ask = made.get
    made.get = lambda graph, count=0: (*ask(graph, count)[:2], 1)  # type: ignore[method-assign]
    use(made)
    set_edges("graph")
    assert made.changes == 0
