"""Why a graph is refused: what is asked, when rewrites are tried, and how it reads. Plans are in test_graph.py."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.c.cudnn import cudnnStatus_t
from lamina.c.errors import CudnnError
from lamina.cudnn import explain as module
from lamina.cudnn.explain import Explanation, Rewrite, Verdict, explain

VERDICTS = (
    Verdict(0, "NOT_SUPPORTED", "too odd"),
    Verdict(1, "", ""),
    Verdict(2, "NOT_SUPPORTED", "too odd"),
    Verdict(3, "BAD_PARAM", "too odd"),
)


def test_refusals_are_grouped_and_leave_out_who_accepts() -> None:
    found = Explanation("a graph", "eng1", VERDICTS, None, 0)
    assert found.refusals == {("NOT_SUPPORTED", "too odd"): [0, 2], ("BAD_PARAM", "too odd"): [3]}
    assert found.supported
    assert not Explanation("a graph", "", VERDICTS, None, 3).supported


class Asked:
    """Doubles of the questions to the library: which parts have a plan."""

    def __init__(self, plans: dict[Any, str], ways: list[tuple[tuple[str, ...], tuple[Any, ...]]]) -> None:
        self.plans, self.ways, self.tried = plans, ways, 0

    def accepted(self, part: Any, target: Any) -> str:
        return self.plans.get(part, "")

    def rewrites(self, part: Any) -> Iterator[tuple[tuple[str, ...], tuple[Any, ...]]]:
        for way in self.ways:
            self.tried += 1
            yield way


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Any:
    def put(plans: dict[Any, str], ways: list[Any]) -> Asked:
        made = Asked(plans, ways)
        monkeypatch.setattr(module, "accepted", made.accepted)
        monkeypatch.setattr(module, "rewrites", made.rewrites)
        monkeypatch.setattr(module, "verdicts", lambda part, target: VERDICTS)
        return made

    return put


WAYS = [
    (("padded",), (("padded conv",),)),
    (("split",), (("conv",), ("relu",))),
    (("cast",), (("cast conv",),)),
]


def test_what_has_a_plan_is_not_rewritten(asked: Any) -> None:
    doubles = asked({("conv",): "eng7"}, WAYS)
    found = explain([("conv")], None)  # type: ignore[arg-type, list-item]
    assert (found.plan, found.rewrite, found.tried, doubles.tried) == ("eng7", None, 0, 0)


def test_the_first_rewrite_whose_parts_all_have_plans_is_named(asked: Any) -> None:
    doubles = asked({("conv",): "eng1", ("relu",): "eng2", ("cast conv",): "eng3"}, WAYS)
    found = explain([("conv relu")], None)  # type: ignore[arg-type, list-item]
    assert found.rewrite is not None
    assert (found.rewrite.changes, found.rewrite.plans) == (("split",), ("eng1", "eng2"))
    assert (found.plan, found.tried, doubles.tried) == ("", 2, 2)
    asked({("conv",): "eng1"}, WAYS)
    hopeless = explain([("conv relu")], None)  # type: ignore[arg-type, list-item]
    assert (hopeless.rewrite, hopeless.tried) == (None, 3)
    assert "none of 3 rewrites is accepted either" in str(hopeless)


def test_how_verdicts_read() -> None:
    assert [str(verdict) for verdict in (*VERDICTS[:2], Verdict(-1, "BAD_PARAM", "odd"))] == [
        "eng0: NOT_SUPPORTED: too odd",
        "eng1: accepts",
        "graph: BAD_PARAM: odd",
    ]
    rewrite = Rewrite(("padded", "cast"), ((), ()), ("eng1", "eng2"))
    assert str(Explanation("a graph", "eng1", VERDICTS, None, 0)) == "a graph is supported: eng1"
    assert str(Explanation("a graph", "", VERDICTS, rewrite, 3)).splitlines() == [
        "a graph is refused:",
        "  NOT_SUPPORTED: too odd (eng0, eng2)",
        "  BAD_PARAM: too odd (eng3)",
        "accepted instead: padded, cast (eng1 then eng2)",
    ]
    whole = Explanation("a graph", "", (Verdict(-1, "BAD_PARAM", "odd"),), None, 3)
    assert "  BAD_PARAM: odd (the graph)" in str(whole)


@pytest.mark.parametrize(
    ("message", "status", "reason"),
    [
        ("failed Reason: too odd ", "NOT_SUPPORTED", "too odd"),
        ("failed", "NOT_SUPPORTED", "does not compute this pattern"),
        ("failed", "BAD_PARAM", "no reason given"),
    ],
)
def test_a_graph_that_is_refused_as_a_whole_has_one_verdict(
    message: str, status: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = CudnnError(cudnnStatus_t[f"CUDNN_STATUS_{status}"], "cudnnBackendFinalize", message)

    def refuse(*given: Any) -> Any:
        raise error

    monkeypatch.setattr(module, "OperationGraph", refuse)
    nothing: Any = None
    assert module.verdicts((), nothing) == (Verdict(-1, status, reason),)


def test_what_heuristics_noted_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    class Graph:
        engine_count = 2

        def configs(self, modes: Any) -> Any:
            return SimpleNamespace(
                refusals=["eng1: NOT_SUPPORTED: too wide", "eng1: NOT_SUPPORTED: later", "what"]
            )

    def config(graph: Any, index: int) -> None:
        if index:
            raise CudnnError(cudnnStatus_t.CUDNN_STATUS_BAD_PARAM, "cudnnBackendFinalize", "")

    graph, nothing = Graph(), None
    monkeypatch.setattr(module, "OperationGraph", lambda *given: graph)
    monkeypatch.setattr(module, "EngineConfig", config)
    found = module.verdicts((), nothing)  # type: ignore[arg-type]
    assert found == (Verdict(0, "", ""), Verdict(1, "NOT_SUPPORTED", "too wide"))
    graph.engine_count = 0
    (alone,) = module.verdicts((), nothing)  # type: ignore[arg-type]
    assert (alone.engine, alone.status) == (-1, "NOT_SUPPORTED")
