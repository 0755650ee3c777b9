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


def _counting(way: str) -> Graph:
    """(x, total, g) -> (x * total, total + sum of x | gradient of x).

    way: "after": the old total is read once the new one is there. "late": the backward pass reads the new one.
    """
    x, total = Value(Spec((4,), float32), name="x"), Value(Spec((), float32), name="total")
    g = Value(Spec((4,), float32), name="g")
    y = x * total
    following = total + ops.sum(x)
    y = x * total if way == "after" else y
    return Graph([x, total, g], [y, following, g * (following if way == "late" else 2.0)], "counting")


@pytest.mark.parametrize("way", ["", "after", "late"])
def test_updates_in_place_but_of_what_is_read_afterwards(way: str) -> None:
    total = tensor(np.float32(3))
    program = TwoPassProgram(_counting(way), CPU, 2, lent=[1], late=[2], updates={1: 1})
    context = TwoPassContext(program, {1: total.buffer})
    assert program.in_place == ([] if way else [1])
    context.places[0].copy_(np.arange(4, dtype=np.float32))
    context.forward()
    np.testing.assert_allclose(context.result(0).numpy(), [0, 3, 6, 9])
    assert context.result(1).numpy() == 9
    assert total.numpy() == (3 if way else 9)
    total.copy_(
        np.float32(100)
    )  # what the backward pass reads is its call's, whatever is written there since
    context.places[2].copy_(np.ones(4, np.float32))
    context.backward()
    np.testing.assert_allclose(context.result(2).numpy(), [9.0 if way == "late" else 2.0] * 4)


def test_an_update_of_what_is_a_result_as_well() -> None:
    x, total = Value(Spec((3,), float32), name="x"), Value(Spec((3,), float32), name="total")
    following = total + x
    program = TwoPassProgram(
        Graph([x, total], [following, total * 2.0, following], "joint"), CPU, 3, lent=[1], updates={1: 2}
    )
    state = tensor(np.array([1, 2, 3], np.float32))
    context = TwoPassContext(program, {1: state.buffer})
    context.places[0].copy_(np.ones(3, np.float32))
    for before in ([1, 2, 3], [2, 3, 4]):
        context.forward()
        np.testing.assert_allclose(context.result(0).numpy(), np.add(before, 1))
        np.testing.assert_allclose(context.result(1).numpy(), np.multiply(before, 2))
        if program.in_place:
            np.testing.assert_allclose(state.numpy(), np.add(before, 1))
        else:
            state.copy_(context.result(2).numpy())


def test_outputs_that_lie_together() -> None:
    graph = _joint()
    given = _numbers(graph)
    lent = {1: tensor(given[1]), 2: tensor(given[2])}
    program = TwoPassProgram(graph, CPU, 2, lent=lent, late=[3], together=[2, 3])
    plain = TwoPassProgram(graph, CPU, 2, lent=lent, late=[3])
    assert set(program.offsets) <= {2, 3}
    assert 3 in program.offsets
    context = TwoPassContext(program, {i: x.buffer for i, x in lent.items()})
    context.places[0].copy_(given[0])
    context.forward()
    context.places[3].copy_(given[3])
    context.backward()
    wanted = [y.numpy() for y in compile(graph, CPU)(*given)]
    raw = context.block.numpy()
    assert program.block_bytes == raw.nbytes
    for i, offset in program.offsets.items():
        piece = raw[offset : offset + wanted[i].nbytes].view(np.float32).reshape(wanted[i].shape)
        np.testing.assert_allclose(piece, wanted[i], rtol=1e-4, atol=1e-5)
    for i in (2, 3):
        np.testing.assert_allclose(context.result(i).numpy(), wanted[i], rtol=1e-4, atol=1e-5)
    assert program.program.placement.nbytes <= plain.program.placement.nbytes
    assert not plain.offsets
    assert program.own_bytes == plain.own_bytes + program.block_bytes - (
        plain.program.placement.nbytes - program.program.placement.nbytes
    )
