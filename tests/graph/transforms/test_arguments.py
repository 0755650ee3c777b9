"""What functions are differentiated in."""

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.graph.ir.capture import EagerTape
from lamina.graph.transforms.arguments import Variables, is_nested, tensors
from lamina.ops.core import recording


def test_each_array_and_each_parameter_has_a_value_of_its_own() -> None:
    net = nn.Linear(2, 3)
    x = lm.ones(2)
    with recording(EagerTape()):
        own = Variables({"net": net, "x": [x, x, None], "numbers": [1.0, 2.0]}, "grad", "args[0]")
    assert len(own.values) == len({*own.values}) == 5
    assert own.tree["net"] is net
    found = own.unflatten(["a", None, "c", None, "e"], lambda v: v.shape)
    assert found == {"net": {"weight": "a", "bias": (3,)}, "x": ["c", (2,), None], "numbers": "e"}
    assert found["net"].absent == {"bias"}


def test_gradients_know_which_are_absent_until_they_are_given_others() -> None:
    net = nn.Sequential(nn.Linear(2, 3), nn.Linear(2, 3))

    def loss(net: nn.Sequential) -> lm.Tensor:
        return ops.sum(net[0](lm.ones(1, 2)))

    for way in (lm.grad(loss), lm.jit(lm.grad(loss)), lambda net: lm.vjp(loss, net)[1](lm.ones(()))[0]):
        found = way(net)
        assert found.absent == {"1.weight", "1.bias"}
        assert found["1.bias"].tolist() == [0, 0, 0]
        twin = lm.jit(lambda grads: grads)(found)
        assert twin.absent == found.absent
        twin["1.bias"] = twin["1.bias"] + 1
        assert twin.absent == {"1.weight"}
        assert twin.like != found.like


@pytest.mark.parametrize("compiled", [False, True])
def test_what_is_added_in_place_to_an_absent_gradient_is_one(compiled: bool) -> None:
    net = nn.ModuleList([nn.Linear(2, 1), nn.Linear(2, 1)])
    optimizer = lm.optim.SGD(net, lr=0.5)

    def update() -> None:
        first, second = (lm.grad(lambda net, i=i: ops.sum(net[i](lm.ones(1, 2))))(net) for i in (0, 1))
        for name, g in first.items():
            g.add_(second[name])
        optimizer.step(first)

    step = lm.jit(update) if compiled else update
    for _ in range(2):
        before = {name: p.numpy().copy() for name, p in net.named_parameters()}
        step()
        for name, p in net.named_parameters():
            np.testing.assert_allclose(p.numpy(), before[name] - 0.5, rtol=1e-6)


def test_within_a_trace_it_is_nested_and_stays_a_value() -> None:
    seen = []

    def f(x: lm.graph.Value) -> lm.graph.Value:
        seen.append((is_nested({"x": [x]}), is_nested(np.ones(2)), tensors(x) is x))
        return ops.neg(x)

    lm.trace(f, np.ones(2))
    lm.jit(f)(np.ones(2))
    assert seen == [(True, False, True), (True, True, True)]
