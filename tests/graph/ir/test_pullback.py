"""Gradients of single ops, recorded once: as the ops' own, without what nobody asks for, and nothing kept alive."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.graph.ir import pullback
from lamina.graph.ir.capture import EagerTape
from lamina.graph.ir.graph import Node, Value
from lamina.graph.ir.pullback import Pullback, pulled
from lamina.ops.core import recording
from lamina.spec import Policy
from lamina.tensors import Tensor


def node_of(f: Any, *operands: Any) -> tuple[Node, list[Value]]:
    """The node of a tape that f makes of operands."""
    tape = EagerTape()
    with recording(tape):
        own = [tape.read(x) for x in operands]
        made = f(*own)
    assert made.node is not None
    return made.node, own


def tensor(*shape: int) -> Tensor:
    return lm.tensor(np.random.default_rng(len(shape)).standard_normal(shape))


def program(node: Node, g: Tensor, *asked: bool) -> Pullback:
    found = pullback._program_of(node, [g], asked)
    assert found is not None
    return found


def test_gradients_are_those_of_the_op() -> None:
    a, b, g = tensor(3, 4), tensor(4), tensor(3, 4)
    node, _ = node_of(ops.div, a, b)
    da, db = pulled(node, [g], [True, True])
    np.testing.assert_allclose(da.numpy(), g.numpy() / b.numpy(), rtol=1e-12)
    wanted = -(g.numpy() * a.numpy() / b.numpy() ** 2).sum(0)
    np.testing.assert_allclose(db.numpy(), wanted, rtol=1e-12)


def test_what_nobody_asks_for_is_not_computed() -> None:
    a, b, g = tensor(3, 4), tensor(4, 5), tensor(3, 5)
    node, _ = node_of(ops.matmul, a, b)
    both, one = program(node, g, True, True), program(node, g, True, False)
    assert len(one.steps) < len(both.steps)
    da, db = pulled(node, [g], [True, False])
    assert db is None
    np.testing.assert_allclose(da.numpy(), g.numpy() @ b.numpy().T, rtol=1e-12)


def test_equal_steps_are_one() -> None:
    x, g = tensor(5), tensor(5)
    node, _ = node_of(ops.square, x)
    found = program(node, g, True, True)
    assert len(found.steps) == 1
    first, second = found.results
    assert first == second
    other, _ = node_of(ops.mul, x, tensor(5, 5)[0])
    assert len(program(other, g, True, True).steps) == 2


def test_an_output_that_no_gradient_reads_is_not_computed_again() -> None:
    x, g = tensor(5), tensor(5)
    node, (value,) = node_of(ops.sin, x)
    node.outputs[0].known = None
    (dx,) = pulled(node, [g], [True])
    np.testing.assert_allclose(dx.numpy(), g.numpy() * np.cos(x.numpy()), rtol=1e-12)
    assert node.outputs[0].known is None
    assert value.held is x


def test_it_is_recorded_once_for_a_policy() -> None:
    x, g = tensor(6), tensor(6)
    node, _ = node_of(ops.tanh, x)
    again, _ = node_of(ops.tanh, tensor(6))
    assert program(node, g, True) is program(again, g, True)
    again.policy = Policy(deterministic=True)
    assert program(node, g, True) is not program(again, g, True)


def test_a_rule_of_the_users_sees_numbers() -> None:
    """Nothing of it is recorded: it may branch on what it finds."""
    seen = []

    @lm.custom_vjp
    def f(x: Any) -> Any:
        return x * 2.0

    def backward(kept: Any, g: Any) -> Any:
        seen.append(float(kept))
        return (g * (3.0 if kept > 0 else 5.0),)

    f.defvjp(lambda x: (x * 2.0, x), backward)
    slope = lm.grad(lambda x: f(x))
    assert [slope(np.float32(v)).item() for v in (1.0, -1.0, 2.0)] == [3.0, 5.0, 3.0]
    assert seen == [1.0, -1.0, 2.0]


@pytest.mark.parametrize("shape", [(), (3,), (2, 0)])
def test_any_number_of_calls_gives_the_same(shape: tuple[int, ...]) -> None:
    x = tensor(*shape)
    f = lm.grad(lambda x: ops.sum(ops.exp(x) * x + ops.relu(x) * x))
    found = [f(x).numpy() for _ in range(3)]
    wanted = np.exp(x.numpy()) * (x.numpy() + 1) + 2 * np.maximum(x.numpy(), 0)
    for each in found:
        np.testing.assert_array_equal(each, found[0])
    np.testing.assert_allclose(found[0], wanted, rtol=1e-12)


def test_large_constants_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pullback, "_KEPT", -1)
    x, g = tensor(7), tensor(7)
    node, _ = node_of(lambda x: ops.leaky_relu(x, 0.25), x)
    pullback._pullback.cache_clear()
    try:
        assert pullback._program_of(node, [g], (True,)) is None
        (dx,) = pulled(node, [g], [True])
    finally:
        pullback._pullback.cache_clear()
    np.testing.assert_allclose(dx.numpy(), np.where(x.numpy() > 0, 1, 0.25) * g.numpy(), rtol=1e-6)
