"""Branches by the values of buffers: those that the buffers have, which graphs and programs hold for."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import convert

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]

X = torch.arange(6.0).reshape(2, 3)


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
    converted = convert.from_torch(net, X)
    parity = convert.check(net, converted, X)
    assert parity.output == parity.gradient == 0
    np.testing.assert_array_equal(lm.jit(converted)(X.numpy()).numpy(), net(X).detach().numpy())


@pytest.mark.parametrize("share", [False, True])
def test_values_that_change_count_in_later_calls(share: bool) -> None:
    net = Branching()
    converted = convert.from_torch(net, X, share=share)
    compiled = lm.jit(converted)
    for ready, count in ((True, 2), (False, 2), (False, 0), (True, 2)):
        state = {"ready": np.array([ready]), "count": np.array(count)}
        converted.load_state_dict(state, strict=False)
        wanted = X.numpy() * (1 + ready) + count + 1
        np.testing.assert_array_equal(converted(X).numpy(), wanted)
        np.testing.assert_array_equal(compiled(X.numpy()).numpy(), wanted)


def test_a_training_step_keeps_to_them() -> None:
    converted = convert.from_torch(Branching(), X)
    step = lm.train_step(converted, lambda y, goal: lm.ops.mean(y), lm.optim.SGD(lr=0.0))
    assert float(step(X)) == pytest.approx(8.0)
    converted.load_state_dict({"ready": np.array([False])}, strict=False)
    assert float(step(X)) == pytest.approx(5.5)


def test_other_buffers_may_be_written() -> None:
    net = Branching(writes="total")
    converted = convert.from_torch(net, X, share=False)
    converted(X)
    np.testing.assert_array_equal(converted.total.numpy(), np.ones(3))


def test_one_that_decides_may_not_be_written() -> None:
    with pytest.raises(
        convert.TorchConversionError, match="decides in Python by the buffer 'count', and writes it"
    ):
        convert.from_torch(Branching(writes="count"), X)


def test_what_is_drawn_or_written_between_decides_nothing() -> None:
    class Drawn(Branching):
        def forward(self, x: Any) -> Any:
            return x + 1 if torch.rand_like(self.total).sum() > 1 else x

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

    for net in (Drawn(), Written(), Assigned()):
        with pytest.raises(convert.TorchConversionError, match="decided in Python by values of tensors"):
            convert.from_torch(net, X)


@pytest.mark.filterwarnings("ignore:.*what is raised here:UserWarning")
def test_what_only_raises_by_a_buffer_that_is_written_is_left_out() -> None:
    class Limited(Branching):
        def forward(self, x: Any) -> Any:
            self.count += 1
            if self.count > 5:
                raise ValueError("too often")
            return x + self.count

    converted = convert.from_torch(Limited(), X, share=False)
    for count in (3, 4):
        np.testing.assert_array_equal(converted(X).numpy(), X.numpy() + count)
