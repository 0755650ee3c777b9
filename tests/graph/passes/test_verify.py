"""What a pass must not do is found out: other values, other specs, another order."""

from typing import Any

import pytest

from lamina import ops
from lamina.graph import Graph, trace
from lamina.graph.passes import verify
from lamina.graph.passes.pattern import replace
from lamina.graph.passes.verify import Checker, PassError, check_passes, checked_passes
from lamina.ops.core import bind
from lamina.ops.primitives import Cast, Exp, Fused, Quantize
from lamina.spec import Spec, bfloat16, float32, int8

X = Spec((2, 3), float32)


def of(graph: Graph, f: Any) -> Graph:
    """Another graph on the same inputs."""
    return Graph(graph.inputs, [f(*graph.inputs)])


def test_it_is_switched_on_for_tests() -> None:
    assert checked_passes()
    with check_passes(False):
        assert not checked_passes()
    assert checked_passes()


def test_the_same_values_pass() -> None:
    graph = trace(lambda x: ops.exp(x) * ops.exp(x), X)
    Checker(graph).check("square", of(graph, lambda x: ops.exp(x + x)))


@pytest.mark.parametrize(
    "f",
    [lambda x: ops.exp(x), lambda x: ops.sum(x), lambda x: ops.neg(x * 1.001)],
    ids=["op", "shape", "digit"],
)
def test_other_values_are_an_error(f: Any) -> None:
    graph = trace(lambda x: ops.neg(x), X)
    with pytest.raises(PassError, match="broken"):
        Checker(graph).check("broken", of(graph, f))


def test_other_inputs_are_an_error() -> None:
    graph, other = (trace(lambda x: ops.neg(x), X) for _ in range(2))
    with pytest.raises(PassError, match="inputs or outputs are others"):
        Checker(graph).check("broken", other)


def test_a_wrong_order_is_an_error() -> None:
    graph = trace(lambda x: ops.exp(ops.neg(x)), X)
    mixed = replace(graph, {})
    mixed = Graph(graph.inputs, graph.outputs)
    mixed.nodes = mixed.nodes[::-1]
    with pytest.raises(PassError, match="runs before what it reads"):
        Checker(graph).check("broken", mixed)


def test_half_types_are_compared_in_float64() -> None:
    """A rounding that a pass takes away is no error."""
    graph = trace(lambda x: ops.cast(ops.cast(x, bfloat16), float32), X)
    Checker(graph).check("widened", of(graph, lambda x: ops.abs(x) * ops.sign(x)))
    joined = Fused((Cast(bfloat16), Cast(float32), Exp()))
    rounded = trace(lambda x: ops.exp(ops.cast(ops.cast(x, bfloat16), float32)), X)
    Checker(rounded).check("joined", of(rounded, lambda x: bind(joined, x)[0]))


def test_large_graphs_are_not_compared() -> None:
    """Nothing of the size of their tensors is made."""
    graph = trace(lambda x: ops.neg(x), Spec((1 << 20, 1 << 20), float32))
    Checker(graph).check("wrong", of(graph, lambda x: ops.exp(x)))


def test_graphs_are_small_up_to_each_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = trace(lambda a, b: ops.relu(ops.matmul(a, b)), Spec((8, 3), float32), Spec((3, 16), float32))
    reached = {"_MOST_NODES": 2, "_MOST_ELEMENTS": 8 * 16, "_MOST_FLOPS": 2 * 8 * 3 * 16}
    for name, most in reached.items():
        with monkeypatch.context() as patch:
            patch.setattr(verify, name, most)
            assert verify._is_small(graph), name
            patch.setattr(verify, name, most - 1)
            assert not verify._is_small(graph), name
    unread = trace(lambda a, b: ops.relu(a), Spec((8, 3), float32), Spec((1 << 20,), float32))
    assert not verify._is_small(unread)  # it would be drawn


def test_ops_for_other_types_are_not_compared() -> None:
    def f(x: Any, s: Any) -> Any:
        return bind(Quantize(int8), x, s)[0]

    graph = trace(f, X, Spec((), float32))
    Checker(graph).check("same", Graph(graph.inputs, graph.outputs))
