"""Inputs and targets of a training step: several, nested, of any type."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.infer import Predictor
from tests.helpers.steps import BACKENDS, RNG, make


class Two(nn.Module):
    """Two inputs of one shape, and a tuple and a dict as outputs."""

    def __init__(self) -> None:
        self.a = nn.Linear(2, 1)

    def forward(self, x: Any, z: Any) -> Any:
        return self.a(x + 2.0 * z), {"x": x}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", [tuple, list, dict])
def test_several_inputs_outputs_and_targets(backend: str, kind: Any) -> None:
    nn.manual_seed(0)
    x, z, t = (RNG.standard_normal(s).astype(np.float32) for s in ((3, 2), (3, 2), (3, 1)))

    def loss(outputs: Any, targets: Any) -> Any:
        y, extra = outputs
        return ops.mean(ops.square(y - targets["y"])) + ops.mean(extra["x"] * targets["more"][0])

    net = Two()
    weight, bias = (p.numpy().copy() for p in net.parameters())
    step = lm.train_step(net, loss, optim.SGD(0.1), device="cpu", backend=backend)
    found = step({"x": x, "z": z} if kind is dict else kind((x, z)), {"y": t, "more": [x]}).item()
    expected = np.square((x + 2 * z) @ weight.T + bias - t).mean() + np.square(x).mean()
    assert found == pytest.approx(expected, rel=1e-5)
    assert step.correct is None
    names = [v.name for v in step.executable.graph.inputs]
    assert ("inputs['x']" if kind is dict else "inputs[0]") in names
    assert "targets['more'][0]" in names


def test_integers_reach_the_network_as_they_are() -> None:
    net = nn.Sequential(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(12, 3))
    step = make(net, optim.SGD(0.1), backend="cpu", precision="bf16")
    assert np.isfinite(step(RNG.integers(0, 10, (5, 3)), RNG.integers(0, 3, 5)).item())


def test_what_may_be_one_array_or_several_is_refused() -> None:
    step = make(nn.Linear(2, 3), optim.SGD(0.1))
    assert np.isfinite(step([[1.0, 2.0], [3.0, 4.0]], [0, 1]).item())  # nested lists of numbers are arrays
    with pytest.raises(TypeError, match=r"train_step: targets: \(0, 1\) may be one array or several"):
        step(np.ones((2, 2), np.float32), (0, 1))


def test_a_dict_of_inputs_is_one_argument_where_forward_takes_one() -> None:
    class Batched(nn.Module):
        def __init__(self) -> None:
            self.linear = nn.Linear(2, 1)

        def forward(self, batch: dict[str, Any]) -> dict[str, Any]:
            return {"y": self.linear(batch["x"]) * batch["weight"]}

    net = Batched()
    net.linear.weight.fill_(1)
    net.linear.bias.zero_()
    batch = {"x": np.float32([[1, 2]]), "weight": np.float32([[2]])}
    step = lm.train_step(net, lambda y, t: (y["y"] - t["y"]).square().sum(), optim.SGD(0.0), device="cpu")
    assert float(step(batch, {"y": np.float32([[1]])})) == 25
    assert Predictor(net)(batch)["y"].tolist() == [[6]]


class Doubling(nn.Module):
    """Branches on a flag among its arguments."""

    def __init__(self) -> None:
        self.inner = nn.Linear(3, 2)

    def forward(self, x: Any, twice: bool = False) -> Any:
        return self.inner(x) * (2.0 if twice else 1.0)


def test_flags_among_inputs_are_pythons_own() -> None:
    net, x = Doubling(), np.ones((4, 3), np.float32)
    step = lm.train_step(net, lambda y, t: ops.mean(y), optim.SGD(lr=0.0), device="cpu")
    found = [step(inputs).item() for inputs in ((x, True), {"x": x, "twice": False}, (x, False), x)]
    np.testing.assert_allclose(found, [2 * found[3], found[3], found[3], found[3]], rtol=1e-6)
    predictor = Predictor(net, device="cpu")
    np.testing.assert_allclose(predictor((x, True)).numpy(), net(x, True).numpy(), rtol=1e-6)
    scores = lm.evaluate(net, [((x, True), np.zeros(4, np.int64))], ops.cross_entropy, device="cpu")
    assert scores.loss == pytest.approx(
        ops.cross_entropy(net(x, True), np.zeros(4, np.int64)).item(), rel=1e-5
    )
