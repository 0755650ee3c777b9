"""What forward keeps from call to call in plain attributes."""

from __future__ import annotations

import functools
import random
import warnings
from typing import Any, ClassVar

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def _networks() -> dict[str, Any]:
    """Networks by the attribute that each carries from call to call."""
    import torch
    from torch import nn

    class Counts(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.count = 0

        def forward(self, x: Any) -> Any:
            self.count += 1
            return x * min(1.0, self.count / 10)

    class Begins(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.begun = False

        def forward(self, x: Any) -> Any:
            if not self.begun:
                self.begun = True
                return x
            return -x

    class Adds(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.total = torch.zeros(1)

        def forward(self, x: Any) -> Any:
            self.total += 1
            return x + self.total

    class Remembers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.rnn = nn.GRU(4, 4)
            self.state = None

        def forward(self, x: Any) -> Any:
            y, state = self.rnn(x, self.state)
            self.state = state.detach()
            return y

    class Hides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = [nn.BatchNorm1d(4)]

        def forward(self, x: Any) -> Any:
            return self.blocks[0](x)

    return {"count": Counts, "begun": Begins, "total": Adds, "state": Remembers, "blocks": Hides}


@pytest.mark.parametrize("name", ["count", "begun", "total", "state", "blocks"])
def test_the_user_is_told_and_the_source_stays_as_it_is(name: str) -> None:
    import torch

    from lamina.convert.torch import from_torch

    torch.manual_seed(0)
    net, x = _networks()[name](), torch.randn(3, 4)
    before = vars(net)[name]
    with pytest.warns(
        UserWarning, match=rf"\w+\.{name} is carried from call to call.*register_buffer"
    ) as said:
        converted = from_torch(net, x)
    assert [str(w.filename) for w in said] == [__file__]
    assert vars(net)[name] is before
    if name == "total":
        assert (before.tolist(), before._version) == ([0.0], 0)
    if name == "blocks":
        assert int(before[0].num_batches_tracked) == 0
        assert before[0].running_mean.tolist() == [0] * 4
    torch.testing.assert_close(
        torch.from_numpy(converted(x).numpy()), net(x).detach()
    )  # the first call's result


def test_ordinary_attributes_are_nothing_to_tell() -> None:
    """Tables of a size, results for others to look at, a count of calls that nothing reads."""
    import torch
    from torch import nn

    from lamina.convert.torch import from_torch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.calls, self.size, self.table, self.kept, self.seen = 0, 0, None, None, []
            self.scale = torch.ones(4)

        def forward(self, x: Any) -> Any:
            self.calls += 1
            if self.table is None or self.size < x.shape[1]:
                self.size = x.shape[1]
                self.table = torch.arange(self.size).to(x) + torch.zeros_like(x[0])
            self.kept = x * self.table * self.scale
            self.seen.append(self.size)
            return self.kept + 1

    net = Net()
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        converted = from_torch(net, torch.ones(3, 4))
    assert (net.calls, net.size, net.table, net.kept) == (0, 0, None, None)
    assert converted(torch.ones(3, 4)).numpy()[0].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("kind", ["Random of random", "RandomState of numpy"])
def test_numbers_drawn_elsewhere_are_told(kind: str) -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import from_torch

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            return x * (random.uniform(0.5, 1.5) if kind.startswith("Random ") else float(np.random.rand()))

    with pytest.warns(UserWarning, match=rf"drew from a {kind}.*draw by torch \(rand") as said:
        from_torch(Net(), torch.ones(3, 4))
    assert [str(w.filename) for w in said] == [__file__]


@pytest.mark.parametrize("seeds", [True, False])
def test_a_seed_in_forward_is_told_and_not_given(seeds: bool) -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import from_torch

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            if seeds:
                torch.manual_seed(3)
            return x + torch.rand_like(x)

    torch.manual_seed(3)
    before = torch.get_rng_state()
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always", UserWarning)
        from_torch(Net(), torch.ones(3, 4))
    told = [w for w in said if "Net calls torch.manual_seed in forward" in str(w.message)]
    assert [w.filename for w in told] == [__file__] * seeds
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.initial_seed() == 3


#: What networks keep tables in, by size.
TABLES: dict[int, Any] = {}


def _made(size: int) -> Any:
    import torch

    return torch.arange(size).float().cos()[None, :, None]


@functools.cache
def _remembered(size: int) -> Any:
    return _made(size)


def _of_file(size: int) -> Any:
    if size not in TABLES:
        TABLES[size] = _made(size)
    return TABLES[size]


class _Longest:
    """A table as long as the longest sequence that has come."""

    def __init__(self) -> None:
        self.table: Any = None

    def __call__(self, size: int) -> Any:
        if self.table is None or self.table.shape[1] < size:
            self.table = _made(size)
        return self.table[:, :size]


def _keeping(where: str) -> Any:
    """A network with a table for each size, which it keeps somewhere."""
    import torch
    from torch import nn

    class Keeps(nn.Module):
        of_class: ClassVar[dict[int, Any]] = {}

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(4, 4)
            self.tables: dict[int, Any] = {}
            self.nested: dict[str, Any] = {"all": []}
            self.longest = _Longest()

        @staticmethod
        @functools.cache
        def static(size: int) -> Any:
            return _made(size)

        @functools.lru_cache  # noqa: B019 - as people write it
        def method(self, size: int) -> Any:
            return _made(size)

        def in_list(self, size: int) -> Any:
            if not self.nested["all"]:
                self.nested["all"].append(_made(20))
            return self.nested["all"][0][:, :size]

        def in_table(self, tables: dict[int, Any], size: int) -> Any:
            if size not in tables:
                tables[size] = _made(size)
            return tables[size]

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            size = x.shape[1]
            ways: dict[str, Any] = {
                "attribute": lambda: self.in_table(self.tables, size),
                "class": lambda: self.in_table(self.of_class, size),
                "list": lambda: self.in_list(size),
                "object": lambda: self.longest(size),
                "file": lambda: _of_file(size),
                "function": lambda: _remembered(size),
                "static": lambda: self.static(size),
                "method": lambda: self.method(size),
            }
            return self.linear(x) * ways[where]()

    return Keeps()


@pytest.mark.parametrize(
    "where", ["attribute", "class", "list", "object", "file", "function", "static", "method"]
)
@pytest.mark.parametrize("before", [False, True], ids=["empty", "kept"])
def test_tables_that_are_kept_by_size_hold_no_tensors_of_the_export(where: str, before: bool) -> None:
    import torch

    from lamina.convert.torch import from_torch

    torch.manual_seed(0)
    net, inputs = _keeping(where), [torch.randn(2, n, 4) for n in (5, 7, 5)]
    if before:
        net(inputs[0])
    converted = from_torch(net, inputs[0])
    for x in inputs:
        np.testing.assert_allclose(converted(x).numpy(), net(x).detach().numpy(), atol=1e-6)
    converted.eval()
    np.testing.assert_allclose(converted(inputs[0]).numpy(), net(inputs[0]).detach().numpy(), atol=1e-6)


def test_hooks_that_the_first_call_registers_are_registered_once() -> None:
    """As transformers' networks do to collect hidden states: in further graphs, and in the source itself."""
    import torch
    from torch import nn

    from lamina.convert.torch import from_torch

    class Collecting(nn.Module):
        hooked = False

        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 4))

        def forward(self, x: Any) -> Any:
            seen: list[Any] = []
            self.collect = seen.append
            if not self.hooked:
                self.hooked = True
                for layer in self.layers:
                    layer.register_forward_hook(lambda module, args, y: self.collect(y))
            self.layers(x)
            return seen

    net = Collecting()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # `hooked` is a flag that a call sets
        converted = from_torch(net, torch.rand(5, 2))
        found = converted(torch.rand(2, 6, 2))
    assert [tuple(y.shape) for y in found] == [(2, 6, 3), (2, 6, 4)]
    assert len(net(torch.rand(5, 2))) == 2
