"""Programs in two passes: the numbers of a graph run whole, with a forward pass of its own."""

import numpy as np
import pytest

from lamina import ops
from lamina.graph import Graph, Value, compile, gradients
from lamina.graph.run.two_pass import TwoPassContext, TwoPassProgram
from lamina.runtime import Device
from lamina.spec import Spec, float32
from lamina.tensors import tensor

CPU = Device("cpu")


def _joint() -> Graph:
    """(x, w, v, g) -> (y, hidden | gradients of w and v) of a convolution and a product."""
    x, w = Value(Spec((2, 3, 6, 6), float32), name="x"), Value(Spec((4, 3, 3, 3), float32), name="w")
    v, g = Value(Spec((5, 64), float32), name="v"), Value(Spec((2, 5), float32), name="g")
    hidden = ops.relu(ops.conv2d(x, w))
    y = ops.linear(ops.reshape(hidden, (2, 64)), v)
    grads = gradients([y], [w, v], [g])
    return Graph([x, w, v, g], [y, hidden, *grads], "joint")


def _numbers(graph: Graph) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(value.shape, np.float32) for value in graph.inputs]


def test_both_passes_give_what_the_graph_gives_whole() -> None:
    graph = _joint()
    given = _numbers(graph)
    wanted = [y.numpy() for y in compile(graph, CPU)(*given)]
    lent = {1: tensor(given[1]), 2: tensor(given[2])}
    program = TwoPassProgram(graph, CPU, 2, lent=lent, late=[3])
    context = TwoPassContext(program, {i: x.buffer for i, x in lent.items()})
    for _ in range(2):
        context.places[0].copy_(given[0])
        context.forward()
        early = [context.result(i).numpy().copy() for i in range(2)]
        context.places[3].copy_(given[3])
        context.backward()
        found = early + [context.result(i).numpy().copy() for i in (2, 3)]
        for a, b in zip(found, wanted, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
    assert program.kernels[0] >= 2
    assert program.kernels[1] >= 2


def test_lent_inputs_are_read_where_they_lie() -> None:
    graph = _joint()
    given = _numbers(graph)
    w, v = tensor(given[1]), tensor(given[2])
    program = TwoPassProgram(graph, CPU, 2, lent=[1, 2], late=[3])
    context = TwoPassContext(program, {1: w.buffer, 2: v.buffer})
    context.places[0].copy_(given[0])
    context.forward()
    before = context.result(0).numpy().copy()
    v.copy_(2 * given[2])
    context.forward()
    np.testing.assert_allclose(context.result(0).numpy(), 2 * before, rtol=1e-5)
    elsewhere = tensor(3 * given[2])
    context.lend({1: w.buffer, 2: elsewhere.buffer})
    context.forward()
    np.testing.assert_allclose(context.result(0).numpy(), 3 * before, rtol=1e-5)


def test_contexts_keep_their_forward_passes_apart() -> None:
    graph = _joint()
    given = _numbers(graph)
    lent = {1: tensor(given[1]).buffer, 2: tensor(given[2]).buffer}
    program = TwoPassProgram(graph, CPU, 2, lent=lent, late=[3])
    contexts = [TwoPassContext(program, lent) for _ in range(2)]
    for k, context in enumerate(contexts):
        context.places[0].copy_((k + 1) * given[0])
        context.forward()
    for k, context in enumerate(contexts):
        context.places[3].copy_(given[3])
        context.backward()
        wanted = compile(graph, CPU)((k + 1) * given[0], *given[1:])
        np.testing.assert_allclose(context.result(2).numpy(), wanted[2].numpy(), rtol=1e-4, atol=1e-5)


def test_the_backward_pass_says_what_it_reads() -> None:
    program = TwoPassProgram(_joint(), CPU, 2, lent=[1, 2], late=[3])
    assert set(program.read_late()) <= {0, 1, 2, 3}
    assert 3 in program.read_late()


def test_early_outputs_may_not_need_what_comes_late() -> None:
    x, g = Value(Spec((2,), float32), name="x"), Value(Spec((2,), float32), name="g")
    with pytest.raises(ValueError, match="a result of the forward pass needs g, which is there"):
        TwoPassProgram(Graph([x, g], [x * g], "joint"), CPU, 1, late=[1])
