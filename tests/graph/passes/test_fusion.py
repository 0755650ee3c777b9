"""Fusions are made where a backend has a plan that pays, reported where not; elementwise chains likewise."""

from collections.abc import Sequence
from typing import Any

import numpy as np

import lamina as lm
from lamina import ops
from lamina.backends import Fusion
from lamina.backends.pattern import PatternMatch, Results, made_by, operand
from lamina.graph import Graph, trace
from lamina.graph.passes.fusion import fuse_elementwise, fuse_patterns
from lamina.graph.passes.pattern import Report
from lamina.ops.core import Op
from lamina.ops.primitives import Exp, Fused, Matmul, Neg
from lamina.spec import Spec, float32
from tests.helpers.stand_in import StandIn

X = Spec((2, 3), float32)


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def _merge(match: PatternMatch) -> Results:
    fused = Fused((Neg(), Exp()))
    return {match.root.outputs[0]: match.apply(fused, match["x"], at=match.root)[0]}


def fusion(**more: Any) -> Fusion:
    """exp(-x) as one node."""
    return Fusion("exp_neg", made_by(Exp, made_by(Neg, operand("x")).read_once), _merge, Fused, **more)


def fused(verdict: str, **more: Any) -> tuple[list[str], list[str], StandIn]:
    backend, report = StandIn(verdict), Report()
    better = fuse_patterns(trace(lambda a: ops.exp(-a), X), [fusion(**more)], backend, report)
    return names(better), report.refused, backend


def test_a_plan_decides() -> None:
    assert fused("fused")[:2] == (["fused"], [])
    assert fused("unfused")[:2] == (["neg", "exp"], ["fused(neg() > exp()): the unfused form is as fast"])
    assert fused("")[:2] == (["neg", "exp"], ["fused(neg() > exp()): nothing for it"])


def test_check_says_why_not_before_a_plan_is_asked_for() -> None:
    found, refused, backend = fused("fused", check=lambda match: "x is too small")
    assert (found, refused) == (["neg", "exp"], ["exp_neg: exp(): x is too small"])
    assert backend.asked == []


def test_profit_is_the_fusions_own() -> None:
    found, refused, _ = fused("fused", profit=lambda plan: "" if plan.workspace else "takes no workspace")
    assert (found, refused) == (["neg", "exp"], ["fused(neg() > exp()): takes no workspace"])
    assert fused("unfused", profit=lambda plan: "")[0] == ["fused"]


def test_plans_are_asked_for_under_the_nodes_policy() -> None:
    backend = StandIn()
    with lm.policy(algorithm="fastest"):
        graph = trace(lambda a: ops.exp(-a), X)
    fuse_patterns(graph, [fusion()], backend, Report())
    assert [policy.algorithm for _, policy in backend.asked] == ["fastest"]
    backend.asked.clear()
    fuse_elementwise(graph, backend)  # the heuristic's word is enough
    assert [policy.algorithm for _, policy in backend.asked] == ["heuristic"]


def test_what_is_only_asked_is_no_choice_for_other_sizes() -> None:
    """With `once` the first choice serves all: the heuristic's, asked before anything is timed, must not be it."""
    backend = StandIn()
    with lm.policy(algorithm="time_once", tf32=False):
        graph = trace(lambda a: ops.exp(-a), X)
    fuse_elementwise(graph, backend)
    (asked,) = [policy for _, policy in backend.asked]
    assert (asked.algorithm, asked.once, asked.tf32) == ("heuristic", False, False)


def test_equal_layers_ask_once() -> None:
    def layers(a: Any) -> Any:
        for _ in range(5):
            a = ops.relu(ops.matmul(a, a))
        return a

    backend = StandIn("")
    graph, report = trace(layers, Spec((3, 3), float32)), Report()
    assert fuse_elementwise(graph, backend, report) is graph
    assert len(backend.asked) == 1
    assert [reason.split(": ")[-1] for reason in report.refused] == ["nothing for it"] * 5


# ------------------------------------------------------------------------------------------------- elementwise steps


def steps(graph: Graph) -> list[list[str]]:
    return [[op.name for op in n.op.ops] for n in graph.nodes if isinstance(n.op, Fused)]


def alike(graph: Graph, better: Graph) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs]
    for found, wanted in zip(better(*arrays), graph(*arrays), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=1e-5, atol=1e-6)


def test_a_head_takes_the_steps_behind_it() -> None:
    graph = trace(
        lambda a, b, c: ops.relu(ops.matmul(a, b) + c) * c, X, Spec((3, 4), float32), Spec((2, 4), float32)
    )
    assert steps(fuse_elementwise(graph, StandIn())) == [["matmul", "add", "relu", "mul"]]


def test_a_chain_is_planned_whole_before_its_parts() -> None:
    """What is planned on the way is nothing but time, where the backend takes all of it."""
    graph, backend, report = trace(lambda a: -ops.tanh(ops.exp(a) + 1.0), X), StandIn(), Report()
    assert steps(fuse_elementwise(graph, backend, report)) == [["exp", "add", "tanh", "neg"]]
    assert [len(op.ops) for op, _ in backend.asked if isinstance(op, Fused)] == [4]
    assert report.merged == {"step": 3}


def test_a_chain_that_is_refused_whole_is_made_as_far_as_it_goes() -> None:
    def two(op: Op, specs: Sequence[Spec]) -> str:
        return "fused" if isinstance(op, Fused) and len(op.ops) <= 2 else ""

    graph, backend, report = trace(lambda a: -ops.tanh(ops.exp(a)), X), StandIn(two), Report()
    assert steps(fuse_elementwise(graph, backend, report)) == [["exp", "tanh"]]
    assert report.refused == ["fused(exp() > tanh() > neg()): nothing for it"]
    assert [len(op.ops) for op, _ in backend.asked if isinstance(op, Fused)] == [3, 2]


def test_a_step_that_another_chain_could_take_is_not_taken_along() -> None:
    """A sum behind two chains goes to the earlier head, whichever of them is met first."""

    def f(a: Any, b: Any) -> Any:
        first = ops.matmul(a, b)
        return ops.tanh(ops.exp(a)) + ops.neg(first)

    graph = trace(f, Spec((3, 3), float32), Spec((3, 3), float32))
    assert sorted(steps(fuse_elementwise(graph, StandIn()))) == [["exp", "tanh"], ["matmul", "neg", "add"]]


def test_the_earlier_head_comes_first() -> None:
    """A sum of two products goes to the one that ran first, or to the other one where that is refused."""

    def f(a: Any, b: Any) -> Any:
        return ops.matmul(a, b) + ops.exp(a)

    graph = trace(f, Spec((3, 3), float32), Spec((3, 3), float32))
    assert steps(fuse_elementwise(graph, StandIn())) == [["matmul", "add"]]

    def only_elementwise(op: Op, specs: Sequence[Spec]) -> str:
        return "" if isinstance(op, Fused) and isinstance(op.ops[0], Matmul) else "fused"

    report = Report()
    better = fuse_elementwise(graph, StandIn(only_elementwise), report)
    assert steps(better) == [["exp", "add"]]
    assert report.refused == ["fused(matmul(transpose_a=False, transpose_b=False) > add()): nothing for it"]
    assert report.merged == {"step": 1}


def test_values_with_two_readers_and_broadcast_results_end_a_chain() -> None:
    def f(a: Any, b: Any) -> Any:
        e = ops.exp(a)
        return ops.tanh(e), -e, ops.tanh(ops.exp(b)) + a

    graph = trace(f, X, Spec((3,), float32))
    assert steps(fuse_elementwise(graph, StandIn())) == [["exp", "tanh"]]


def test_the_order_of_operands_is_kept() -> None:
    """b - exp(a) takes the running value as its second operand, which no chain does."""
    graph = trace(lambda a, b: b - ops.exp(a), X, X)
    assert fuse_elementwise(graph, StandIn()) is graph
    graph = trace(lambda a, b: ops.exp(a) - b, X, X)
    assert steps(fuse_elementwise(graph, StandIn())) == [["exp", "sub"]]


def test_long_chains_are_several_nodes() -> None:
    def f(a: Any) -> Any:
        for _ in range(200):
            a = ops.tanh(a)
        return a

    found = [len(one) for one in steps(fuse_elementwise(trace(f, X), StandIn()))]
    assert sum(found) == 200
    assert max(found) <= 65


def test_what_was_asked_for_one_program_is_known_for_the_next() -> None:
    for verdict, wanted in (("fused", ["fused"]), ("", ["neg", "exp"])):
        backend = StandIn(verdict)
        for _ in range(2):
            assert names(fuse_elementwise(trace(lambda a: ops.exp(-a), X), backend)) == wanted
        assert [op for op, _ in backend.asked] == [Fused((Neg(), Exp()))]


def test_nothing_changes_on_a_cpu() -> None:
    def f(a: Any, b: Any) -> Any:
        y = ops.matmul(a, b)
        return ops.relu(y + a), ops.tanh(y)

    graph = trace(f, Spec((3, 3), float32), Spec((3, 3), float32))
    alike(graph, fuse_elementwise(graph, lm.backends.get(lm.device("cpu"))))


def test_what_runs_once_is_left_as_it_is() -> None:
    """What is made of weights alone neither begins a chain nor is one."""

    def f(x: Any, w: Any) -> Any:
        return ops.exp(w * w) * x - 1.0

    graph = trace(f, X, X)
    assert names(fuse_elementwise(graph, StandIn(), stays=graph.inputs[1:])) == ["mul", "exp", "fused"]
    assert steps(fuse_elementwise(graph, StandIn())) == [["mul", "exp", "mul", "sub"]]
