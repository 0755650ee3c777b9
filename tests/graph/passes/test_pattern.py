"""Patterns are found where they are, and only there; replacing keeps order, policy and everything else."""

import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends.pattern import Pattern, either, made_by, operand
from lamina.graph import Graph, Node, Value, trace
from lamina.graph.passes.pattern import Match, Report, RewriteRule, Rewriting, find, replace, rewrite
from lamina.ops.core import Op
from lamina.ops.primitives import Add, Exp, MaxPool, Mul, Neg, Relu, Sub, Tanh
from lamina.spec import Spec, float32

X = Spec((2, 3), float32)
x, y = operand("x"), operand("y")


def matches(pattern: Pattern, f: Callable[..., Any], *specs: Spec) -> list[Match]:
    graph = trace(f, *(specs or (X, X)))
    rewriting = Rewriting(graph)
    return [match for node in graph.nodes for match in find(pattern, node, rewriting)]


def negated(a: Any, times: int = 2) -> Any:
    for _ in range(times):
        a = ops.neg(a)
    return a


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def test_ops_in_a_row_are_found_from_the_last_one() -> None:
    (match,) = matches(made_by(Exp, made_by(Neg, x, name="neg")), lambda a, b: ops.exp(-a) + b)
    assert match.root.op == Exp()
    assert match.node("neg").op == Neg()
    assert match["x"].name == "x0"
    assert "neg" in match
    assert "y" not in match


@pytest.mark.parametrize("kinds", [Exp | Tanh, Op])
def test_one_of_several_classes(kinds: Any) -> None:
    assert len(matches(made_by(kinds), lambda a, b: (ops.exp(a), ops.tanh(b)))) == 2


@pytest.mark.parametrize(
    ("f", "count"),
    [(lambda a, b: ops.exp(a) + b, 1), (lambda a, b: b + ops.exp(a), 1), (lambda a, b: b - ops.exp(a), 0)],
)
def test_operands_of_commutative_ops_may_change_places(f: Callable[..., Any], count: int) -> None:
    assert len(matches(made_by(Add | Mul, made_by(Exp, x), y), f)) == count
    assert len(matches(made_by(Sub, made_by(Exp, x), y), f)) == 0


def test_both_orders_are_offered() -> None:
    found = matches(made_by(Add, x, y), lambda a, b: a + b)
    assert [(m["x"].name, m["y"].name) for m in found] == [("x0", "x1"), ("x1", "x0")]


def test_a_name_is_one_value() -> None:
    squares = made_by(Mul, made_by(Exp, x), made_by(Exp, x))
    assert len(matches(squares, lambda a, b: ops.exp(a) * ops.exp(a))) == 2  # in either order
    assert matches(squares, lambda a, b: ops.exp(a) * ops.exp(b)) == []


def test_a_node_that_is_met_twice_is_one_node() -> None:
    pool = made_by(MaxPool, x, name="pool")
    both = made_by(Add, pool, made_by(ops.primitives.Cast, pool.output(-1)))
    image = Spec((1, 2, 4, 4), float32)

    def f(a: Any, same: bool) -> Any:
        op = MaxPool((2, 2), ops.primitives.Window((2, 2), ((0, 0), (0, 0)), (1, 1)), True)
        (y, index), (_, other) = ops.core.bind(op, a), ops.core.bind(op, a)
        return y + ops.cast(index if same else other, "float32")

    assert len(matches(both, lambda a: f(a, True), image)) == 1
    assert matches(both, lambda a: f(a, False), image) == []
    with pytest.raises(ValueError, match="needs a name"):
        made_by(MaxPool).output(1)


def test_conditions_on_nodes_and_values() -> None:
    wide = made_by(Neg, operand("x", lambda v: v.ndim == 2), where=lambda n: n.outputs[0].shape[0] == 2)
    assert len(matches(wide, lambda a, b: -a)) == 1
    assert matches(wide, lambda a: -a, Spec((3, 3), float32)) == []
    assert matches(wide, lambda a: -a, Spec((2,), float32)) == []


def test_the_only_reader_or_one_of_several() -> None:
    pattern = made_by(Neg, made_by(Exp, x).read_once)
    assert len(matches(pattern, lambda a, b: -ops.exp(a))) == 1

    def twice(a: Any, b: Any) -> Any:
        e = ops.exp(a)
        return -e + e

    def given_back(a: Any, b: Any) -> Any:
        e = ops.exp(a)
        return -e, e

    assert matches(pattern, twice) == matches(pattern, given_back) == []
    wanted = made_by(Neg, made_by(Exp, x).read_elsewhere)
    assert [len(matches(wanted, f)) for f in (twice, given_back)] == [1, 1]
    assert matches(wanted, lambda a, b: -ops.exp(a)) == []


def test_the_policy_is_the_roots() -> None:
    def f(a: Any, b: Any) -> Any:
        with lm.policy(tf32=True):
            e = ops.exp(a)
        return -e

    assert matches(made_by(Neg, made_by(Exp, x)), f) == []
    assert len(matches(made_by(Neg, made_by(Exp, x, same_policy=False)), f)) == 1


def test_optional_parts() -> None:
    pattern = made_by(Relu, either(made_by(Add, made_by(Exp, x), y), made_by(Exp, x)))
    assert ["y" in m for m in matches(pattern, lambda a, b: ops.relu(ops.exp(a) + b))] == [True]
    assert ["y" in m for m in matches(pattern, lambda a, b: ops.relu(ops.exp(a)))] == [False]


# ---------------------------------------------------------------------------------------------------------- replace


def test_what_is_not_replaced_is_the_same_node() -> None:
    graph = trace(lambda a, b: (-a, ops.exp(-b)), X, X)
    assert replace(graph, {}) is graph
    neg = graph.nodes[1]
    better = replace(graph, {neg.outputs[0]: neg.inputs[0]})
    assert better.nodes[0] is graph.nodes[0]
    assert names(better) == ["neg", "exp"]
    assert better.nodes[1].serial == graph.nodes[2].serial


def test_replacements_of_replacements() -> None:
    graph = trace(lambda a, b: ops.exp(negated(a)) + b, X, X)
    first, second, *_ = graph.nodes
    better = replace(graph, {second.outputs[0]: first.outputs[0], first.outputs[0]: graph.inputs[0]})
    assert names(better) == ["exp", "add"]


def test_a_replacement_that_needs_what_it_replaces_is_an_error() -> None:
    graph = trace(lambda a, b: -a, X, X)
    (neg,) = graph.nodes
    made = Node(Exp(), neg.outputs, neg.policy, neg.serial)
    with pytest.raises(ValueError, match="reads what it replaces"):
        replace(graph, {neg.outputs[0]: made.outputs[0]})


def test_a_node_at_an_early_place_is_read_by_what_ran_before_the_match() -> None:
    """Both outputs of a pool are replaced where it ran, though the match is found at its last reader."""

    def f(a: Any) -> Any:
        op = MaxPool((2, 2), ops.primitives.Window((2, 2), ((0, 0), (0, 0)), (1, 1)), True)
        y, index = ops.core.bind(op, a)
        early = ops.cast(index, "float32") * 2.0
        return ops.relu(y), early

    def moved(match: Match) -> dict[Value, Value]:
        pool = match.node("pool")
        y, index = match.apply(pool.op, match["x"], at=pool)
        return {match.root.outputs[0]: match.apply(Relu(), y, at=pool)[0], pool.outputs[1]: index}

    graph = trace(f, Spec((1, 1, 4, 4), float32))
    rule = RewriteRule("moved", made_by(Relu, made_by(MaxPool, x, name="pool").read_once), moved)
    better = rewrite(graph, [rule])
    assert names(better) == ["max_pool", "relu", "cast", "mul"]
    a = np.random.default_rng(0).standard_normal((1, 1, 4, 4)).astype(np.float32)
    for found, wanted in zip(better(a), graph(a), strict=True):
        np.testing.assert_array_equal(found.numpy(), wanted.numpy())


def test_what_would_run_too_late_is_left_alone() -> None:
    """exp(a) is read before the match; one node for both would run where the match does."""

    def f(a: Any, b: Any) -> Any:
        e = ops.exp(a)
        early = ops.tanh(e)
        return -e, early * b

    def late(match: Match) -> dict[Value, Value]:
        e = match.node("e")
        (again,) = match.apply(Exp(), match["x"], at=match.root)
        return {e.outputs[0]: again, match.root.outputs[0]: match.apply(Neg(), again, at=match.root)[0]}

    graph = trace(f, X, X)
    report = Report()
    assert (
        rewrite(graph, [RewriteRule("late", made_by(Neg, made_by(Exp, x, name="e")), late)], report) is graph
    )
    assert report.merged == {}


@pytest.mark.parametrize(
    ("place", "alone", "together"), [(0, True, True), (1, False, True), (2, False, False)]
)
def test_what_reads_a_replaced_value_runs_behind_the_new_one(place: int, alone: bool, together: bool) -> None:
    """Neither before it nor at its place, unless the reader is replaced as well. exp is read by tanh and by neg."""

    def f(a: Any, b: Any) -> Any:
        e = ops.exp(a)
        return ops.tanh(e), -e

    graph = trace(f, X, X)
    exp, tanh, _ = graph.nodes
    rewriting, at = Rewriting(graph), graph.nodes[place]
    again = Node(Exp(), exp.inputs, at.policy, at.serial)
    assert again.serial == at.serial
    results = {exp.outputs[0]: again.outputs[0]}
    assert rewriting.in_time(results) == alone
    assert rewriting.in_time({**results, tanh.outputs[0]: again.outputs[0]}) == together
    assert rewriting.in_time({exp.outputs[0]: graph.inputs[0]})  # an input is there from the first


@pytest.mark.parametrize("read", [False, True])
def test_a_node_goes_where_all_of_it_that_is_read_is_replaced(read: bool) -> None:
    """A pool whose values are replaced need not run behind what it read, unless somebody wants its indices."""

    def f(a: Any) -> Any:
        op = MaxPool((2, 2), ops.primitives.Window((2, 2), ((0, 0), (0, 0)), (1, 1)), True)
        y, index = ops.core.bind(op, ops.exp(a))
        return (-y, ops.cast(index, "float32")) if read else -y

    graph = trace(f, Spec((1, 2, 4, 4), float32))
    exp, pool, *_ = graph.nodes
    again = Node(Exp(), exp.inputs, pool.policy, pool.serial).outputs[0]
    rewriting = Rewriting(graph)
    assert not rewriting.in_time({exp.outputs[0]: again})
    assert rewriting.in_time({exp.outputs[0]: again, pool.outputs[0]: graph.inputs[0]}) == (not read)


def test_a_value_exists_behind_the_node_that_makes_it() -> None:
    graph = trace(lambda a, b: ops.tanh(ops.exp(a)), X, X)
    exp, tanh = graph.nodes
    rewriting = Rewriting(graph)
    assert [rewriting.exists(v, exp) for v in (*exp.inputs, *exp.outputs, *tanh.outputs)] == [
        True,
        False,
        False,
    ]
    assert [rewriting.exists(v, tanh) for v in (*exp.inputs, *exp.outputs, *tanh.outputs)] == [
        True,
        True,
        False,
    ]
    rewriting.replace({exp.outputs[0]: graph.inputs[0]})
    assert rewriting.exists(exp.outputs[0], exp)  # by now it is the input


def test_rules_see_what_was_replaced_before() -> None:
    """exp(-(-(…))): each pair of signs goes, until one or none is left."""
    pair = RewriteRule("signs", made_by(Neg, made_by(Neg, x)), lambda m: {m.root.outputs[0]: m["x"]})
    report = Report()
    better = rewrite(trace(lambda a, b: ops.exp(negated(a, 5)), X, X), [pair], report)
    assert names(better) == ["neg", "exp"]
    assert report.merged["signs"] == 2


def test_nodes_that_are_gone_read_nothing() -> None:
    """Once exp's second reader is gone, its first one is the only one."""
    drop = RewriteRule("drop", made_by(Tanh, made_by(Exp, x)), lambda m: {m.root.outputs[0]: m["x"]})
    alone = RewriteRule(
        "alone", made_by(Neg, made_by(Exp, x).read_once), lambda m: {m.root.outputs[0]: m["x"]}
    )

    def f(a: Any, b: Any) -> Any:
        e = ops.exp(a)
        return ops.tanh(e), -e

    assert names(rewrite(trace(f, X, X), [drop, alone])) == []
    assert names(rewrite(trace(f, X, X), [alone])) == ["exp", "tanh", "neg"]


def test_policies_stay() -> None:
    def f(a: Any, b: Any) -> Any:
        with lm.policy(deterministic=True):
            return ops.exp(negated(a))

    pair = RewriteRule("signs", made_by(Neg, made_by(Neg, x)), lambda m: {m.root.outputs[0]: m["x"]})
    (node,) = rewrite(trace(f, X, X), [pair]).nodes
    assert node.policy.deterministic


def calls(count: int, rules: Sequence[RewriteRule]) -> int:
    """How many functions a rewrite of a chain of so many links calls."""

    def chain(a: Any, b: Any) -> Any:
        for _ in range(count):
            a = ops.tanh(negated(a)) + b
        return a

    graph = trace(chain, X, X)
    made = 0

    def counted(frame: Any, event: str, argument: Any) -> None:
        nonlocal made
        made += event == "call"

    before = sys.getprofile()
    sys.setprofile(counted)
    try:
        rewrite(graph, rules)
    finally:
        sys.setprofile(before)
    return made


def test_time_is_linear_in_the_nodes() -> None:
    rules = [
        RewriteRule("signs", made_by(Neg, made_by(Neg, x).read_once), lambda m: {m.root.outputs[0]: m["x"]})
    ]
    calls(50, rules)
    assert calls(1600, rules) < 4.2 * calls(400, rules)


def test_rules_are_tried_at_ops_of_their_roots_classes_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = trace(lambda a, b: ops.exp(-a) + b, X, X)
    rule = RewriteRule("none", made_by(Relu | Tanh), lambda match: None)
    with monkeypatch.context() as patch:
        patch.setattr("lamina.graph.passes.pattern.Rewriting", None)
        assert rewrite(graph, [rule]) is graph
    tried: list[str] = []

    def note(match: Match) -> None:
        tried.append(match.root.op.name)

    roots = (made_by(Neg), either(made_by(Exp, x), made_by(Tanh)), made_by(Op))
    rewrite(graph, [RewriteRule("note", root, note) for root in roots])
    assert tried == ["neg", "neg", "exp", "exp", "add"]


def test_a_root_is_asked_what_else_must_hold_before_its_inputs_are_looked_at() -> None:
    seen: list[Any] = []
    deep = made_by(Neg, operand("x", lambda v: seen.append(v) or True))
    assert matches(made_by(Exp, deep, where=lambda node: False), lambda a, b: ops.exp(-a)) == []
    assert seen == []
