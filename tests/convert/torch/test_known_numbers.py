"""Numbers that the code of a network has, read while its graph is made."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import convert

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]
X = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))


class Net(torch.nn.Module):
    """A function as a module, with a buffer of numbers and a parameter."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("sizes", torch.tensor([1, 2]))
        self.paths = torch.tensor([[1, 0], [2, 1]])
        self.scale = torch.nn.Parameter(torch.tensor(2.0))

    def forward(self, x: Any) -> Any:
        return self.function(self, x * self.scale)


def axes(net: Any, x: Any) -> Any:  # as the Dice losses of image segmentation packages do
    return x.sum(torch.arange(2, x.ndim).tolist())


def parts(net: Any, x: Any) -> Any:
    return torch.cat([y.mean(1) for y in x.split(torch.tensor([1, 2]).tolist(), 1)], 1)


def decided(net: Any, x: Any) -> Any:
    strides = torch.tensor([2, 1])
    return x[..., :: int(strides[0])] if (strides > 1).any() else x


def written(net: Any, x: Any) -> Any:
    sizes = torch.zeros(3, dtype=torch.int64)
    sizes[1:] = 2
    part = sizes[:2]
    part += 1
    first, last = part.tolist()
    return x[:, first:last] * float(torch.linspace(0, 1, 5)[1])


def looped(net: Any, x: Any) -> Any:
    return sum(x[:, : int(n)].mean() for n in torch.arange(1, 3))


def as_arrays(net: Any, x: Any) -> Any:
    return x.sum(tuple(torch.arange(1, 3).numpy().tolist()))


def of_buffer(net: Any, x: Any) -> Any:
    return x.sum((net.sizes + 1).tolist())


def of_attribute(net: Any, x: Any) -> Any:  # as networks of architecture search do
    for place in range(2):
        if net.paths[place][1] == 1:
            x = x.tanh() * place
    return x.repeat(1, (net.paths + 1).flatten().tolist()[2], 1, 1)


@pytest.mark.parametrize(
    "function", [axes, parts, decided, written, looped, as_arrays, of_buffer, of_attribute]
)
def test_code_reads_its_own_numbers(function: Any) -> None:
    net = Net(function)
    converted = convert.from_torch(net, X, share=False)
    parity = convert.check(net, converted, X)
    assert max(parity.output, parity.gradient) < 1e-5
    other = torch.cat([X, -X])
    np.testing.assert_allclose(converted(other).numpy(), net(other).detach().numpy(), rtol=1e-4, atol=1e-5)


def of_input(net: Any, x: Any) -> Any:
    sizes = torch.zeros(2)
    sizes[0] = x.sum()
    return x if sizes[0] > 0 else -x


def of_view(net: Any, x: Any) -> Any:
    sizes = torch.zeros(2)
    sizes[1:].copy_(x.sum())
    return x if sizes[0] == 0 else -x


def of_written_attribute(net: Any, x: Any) -> Any:
    net.paths[:1].copy_(x.sum())
    return x if net.paths[0, 0] == 1 else -x


def drawn(net: Any, x: Any) -> Any:
    return x if torch.rand(1) + torch.ones(1) > 1.5 else -x


@pytest.mark.filterwarnings("ignore:.*paths")
@pytest.mark.parametrize("function", [of_input, of_view, of_written_attribute])
def test_values_that_may_change_are_those_of_the_call(function: Any) -> None:
    converted = convert.from_torch(Net(function), X)
    for x in (X, -X, X / X.sum(), torch.zeros_like(X)):
        np.testing.assert_array_equal(converted(x).numpy(), Net(function)(x).detach().numpy())


def test_values_that_are_drawn_are_not_known() -> None:
    converted = convert.from_torch(Net(drawn), X)
    found = [converted(X).numpy() for _ in range(20)]
    signs = {float(np.sign((y * X.numpy()).sum())) for y in found}
    assert signs == {1.0, -1.0}


def test_a_number_of_the_batch_holds_for_this_batch() -> None:
    net = Net(lambda net, x: x[:, : int(torch.tensor(x.shape[0]))])
    converted = convert.from_torch(net, X)
    for x in (X, X[:1]):
        np.testing.assert_allclose(converted(x).numpy(), net(x).detach().numpy(), rtol=1e-6)


ROWS = torch.arange(6.0).reshape(2, 3)


class Branching(torch.nn.Module):
    """Doubles its input once it is ready, and adds as many as `count` tells; keeps a sum if it is asked to."""

    def __init__(self, ready: bool = True, writes: str = "") -> None:
        super().__init__()
        self.scale = torch.nn.Parameter(torch.ones(3))
        self.writes = writes
        self.register_buffer("ready", torch.tensor([ready]))
        self.register_buffer("count", torch.tensor(2))
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: Any) -> Any:
        x = x * self.scale
        if self.ready:
            x = x * 2
        for _ in range(int(self.count + 1)):
            x = x + 1
        if self.writes:
            getattr(self, self.writes).add_(1)
        return x


@pytest.mark.parametrize("ready", [False, True])
def test_a_buffer_decides(ready: bool) -> None:
    net = Branching(ready)
    converted = convert.from_torch(net, ROWS)
    parity = convert.check(net, converted, ROWS)
    assert parity.output == parity.gradient == 0
    np.testing.assert_array_equal(lm.jit(converted)(ROWS.numpy()).numpy(), net(ROWS).detach().numpy())


@pytest.mark.parametrize("share", [False, True])
def test_values_that_change_count_in_later_calls(share: bool) -> None:
    net = Branching()
    converted = convert.from_torch(net, ROWS, share=share)
    compiled = lm.jit(converted)
    for ready, count in ((True, 2), (False, 2), (False, 0), (True, 2)):
        state = {"ready": np.array([ready]), "count": np.array(count)}
        converted.load_state_dict(state, strict=False)
        wanted = ROWS.numpy() * (1 + ready) + count + 1
        np.testing.assert_array_equal(converted(ROWS).numpy(), wanted)
        np.testing.assert_array_equal(compiled(ROWS.numpy()).numpy(), wanted)


def test_a_training_step_keeps_to_them() -> None:
    converted = convert.from_torch(Branching(), ROWS)
    step = lm.train_step(converted, lambda y, goal: lm.ops.mean(y), lm.optim.SGD(lr=0.0))
    assert float(step(ROWS)) == pytest.approx(8.0)
    converted.load_state_dict({"ready": np.array([False])}, strict=False)
    assert float(step(ROWS)) == pytest.approx(5.5)


def test_other_buffers_may_be_written() -> None:
    net = Branching(writes="total")
    converted = convert.from_torch(net, ROWS, share=False)
    converted(ROWS)
    np.testing.assert_array_equal(converted.total.numpy(), np.ones(3))


def test_one_that_decides_may_not_be_written() -> None:
    with pytest.raises(
        convert.TorchConversionError, match="decides in Python by the buffer 'count', and writes it"
    ):
        convert.from_torch(Branching(writes="count"), ROWS, fullgraph=True)


def test_what_is_written_between_is_compared_in_each_call() -> None:
    class Written(Branching):
        def forward(self, x: Any) -> Any:
            kept = self.total.clone()
            kept += x.sum()
            return x + 1 if kept.sum() > 1 else x

    class Assigned(Branching):
        def forward(self, x: Any) -> Any:
            kept = self.total.clone()
            kept[0] = x.sum()
            return x + 1 if kept.sum() > 1 else x

    for net in (Written(), Assigned()):
        converted = convert.from_torch(net, ROWS, share=False)
        for x in (ROWS, -ROWS, ROWS):
            np.testing.assert_array_equal(converted(x).numpy(), net(x).numpy())


@pytest.mark.filterwarnings("ignore:.*what is raised here:UserWarning")
def test_what_only_raises_by_a_buffer_that_is_written_is_left_out() -> None:
    class Limited(Branching):
        def forward(self, x: Any) -> Any:
            self.count += 1
            if self.count > 5:
                raise ValueError("too often")
            return x + self.count

    converted = convert.from_torch(Limited(), ROWS, share=False)
    for count in (3, 4):
        np.testing.assert_array_equal(converted(ROWS).numpy(), ROWS.numpy() + count)
