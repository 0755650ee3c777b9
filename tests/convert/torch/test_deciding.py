"""Networks whose code decides by values of the call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import convert
from lamina.graph import trace

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


def rows(scale: float, seed: int = 0) -> Any:
    return torch.randn(4, 8, generator=torch.Generator().manual_seed(seed)) * scale


class Net(torch.nn.Module):
    def __init__(self, function: Any) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(self, *inputs)


def branched(net: Any, x: Any) -> Any:
    if (x > 1).any():
        return net.first(x)
    return net.second(x).tanh()


def of_parameters(net: Any, x: Any) -> Any:
    y = net.first(x)
    if y.mean() > 0:
        y = net.second(y)
    elif y.sum().item() > -1:
        y = y * 2
    return y


def fixed_point(net: Any, x: Any) -> Any:
    z, error, steps = torch.zeros_like(x), 1.0, 0
    while error > 1e-2 and steps < 30:
        after = torch.tanh(0.3 * net.first(z) + x)
        error, z, steps = (after - z).abs().max().item(), after, steps + 1
    return z * steps


def scaled(net: Any, x: Any) -> Any:
    most = x.abs().max().item()  # a value of the graph
    return net.first(x / most if most > 1 else x) * most


def repeated(net: Any, x: Any, count: Any) -> Any:
    for _ in range(int(count)):
        x = net.first(x).relu()
    return x


def of_lengths(net: Any, x: Any, lengths: Any) -> Any:
    return torch.stack([net.first(x[i, :n]).sum() for i, n in enumerate(lengths.tolist())])


def of_rows(net: Any, x: Any, start: Any) -> Any:
    return net.first(x[start:]).sum(0)


def equal(net: Any, x: Any, y: Any) -> Any:
    if torch.equal(x, y):
        return net.first(x)
    return net.second(x) if torch.allclose(x, y, atol=1e-2) else net.first(y)


def experts(net: Any, x: Any) -> Any:
    made = torch.zeros_like(x)
    for i, part in enumerate((net.first, net.second)):
        own = torch.where(x[:, 0] > 0 if i else x[:, 0] <= 0)[0]
        if own.shape[0] > 0:
            made.index_add_(0, own, part(x[own]))
    return made


ROWS = [(rows(0.1),), (rows(2.0),), (rows(0.1, 1),), (rows(2.0, 3),)]
CASES: dict[Any, Sequence[tuple[Any, ...]]] = {
    branched: ROWS,
    of_parameters: ROWS,
    fixed_point: ROWS,
    scaled: ROWS,
    experts: [(rows(1),), (rows(1).abs(),), (-rows(1).abs(),)],
    repeated: [(rows(1), torch.tensor(n)) for n in (2, 3, 2)],
    of_lengths: [(torch.ones(2, 4, 8), torch.tensor(n)) for n in ([1, 3], [2, 2], [1, 3])],
    of_rows: [(rows(1), torch.tensor(n)) for n in (1, 3, 1)],
    equal: [(rows(1), rows(1)), (rows(1), rows(1) + 1e-3), (rows(1), rows(2))],
}


@pytest.mark.parametrize("function", CASES)
def test_each_call_takes_its_own_path(function: Any) -> None:
    net = Net(function)
    converted = convert.from_torch(net, share=False)
    jitted = lm.jit(converted)
    for inputs in (*CASES[function], *CASES[function]):
        wanted = net(*inputs).detach().numpy()
        arrays = [x.numpy() for x in inputs]
        for found in (converted(*inputs), jitted(*arrays)):
            np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("function", [branched, of_parameters, fixed_point, scaled, experts])
def test_a_training_step_takes_the_path_of_its_batch(function: Any) -> None:
    net = Net(function)
    step = lm.train_step(
        convert.from_torch(net, share=False),
        lambda y, target: ((y - target) ** 2).mean(),
        lm.optim.SGD(lr=0.1),
    )
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    for (x,) in (*CASES[function], *CASES[function]):
        optimizer.zero_grad()
        loss = ((net(x) - 1.0) ** 2).mean()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        found = step(x.numpy(), np.ones(x.shape, np.float32))
        np.testing.assert_allclose(float(found), loss.item(), rtol=1e-4)


def test_gradients_of_an_eager_call() -> None:
    net = Net(of_parameters)
    converted = convert.from_torch(net, share=False)
    for (x,) in ROWS:
        parity = convert.check(net, converted, x)
        assert max(parity.output, parity.gradient) < 1e-5


def test_one_graph_for_each_path() -> None:
    converted = convert.from_torch(Net(branched), share=False)
    for x in (rows(0.1), rows(2.0), rows(0.1, 4), rows(3.0)):
        converted(x)
    assert len(converted._graphs) == 2


def test_numbers_that_pytorchs_own_run_does_not_tell_are_asked_for_one_by_one() -> None:
    """A module that cannot be copied is not run beside; each graph ends at the first number that is not known."""

    class Alone(Net):
        def __deepcopy__(self, memo: Any) -> Any:
            raise TypeError("there is one")

    net = Alone(of_parameters)
    converted = convert.from_torch(net, share=False)
    for (x,) in ROWS:
        np.testing.assert_allclose(converted(x).numpy(), net(x).detach().numpy(), rtol=1e-5, atol=1e-6)


def test_a_graph_for_no_call_names_what_would_tell() -> None:
    converted = convert.from_torch(Net(branched), rows(1))
    with pytest.raises(convert.TorchConversionError, match=r"recorded for no call .* program for each path"):
        trace(converted, lm.Spec((4, 8), lm.float32))
