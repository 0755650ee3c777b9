"""The sizes for which a graph of a PyTorch module holds: bounds, formulas, and what its code asked of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def _even(x: Any) -> Any:
    import torch

    return torch.cat([x, x[:1]]) if x.shape[0] % 2 else 2 * x


def _few(x: Any) -> Any:
    return 2 * x if x.shape[0] < 6 else 3 * x


def _not_five(x: Any) -> Any:
    return 2 * x if x.shape[0] != 5 else 3 * x


def _chunks(x: Any) -> Any:
    return sum(part.sum(0) * (i + 1) for i, part in enumerate(x.split(3)))


def _rows_of_a_view(x: Any) -> Any:
    rows = x.flatten(0, 1)
    return rows * 2 if rows.shape[0] // 4 > 3 else rows * 3


@pytest.mark.parametrize("forward", [_even, _few, _not_five, _chunks, _rows_of_a_view])
def test_what_code_asks_of_a_size_is_asked_again(forward: Callable[[Any], Any]) -> None:
    """A graph that was made of one batch is not taken for another for which the module does something else."""
    import torch

    from lamina.convert.torch import from_torch

    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return forward(x)

    net = from_torch(Net(), torch.ones(4, 3))
    for batch in (4, 3, 5, 6, 7, 8, 4):
        x = torch.arange(3.0 * batch).reshape(batch, 3)
        np.testing.assert_array_equal(net(x).numpy(), forward(x).numpy())


def test_sizes_of_two_inputs_are_asked_together() -> None:
    import torch

    from lamina.convert.torch import from_torch

    class Net(torch.nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return x * 2 if x.shape[0] < y.shape[0] else x * 3

    net = from_torch(Net(), torch.ones(2, 3), torch.ones(4, 3))
    for many, others in ((2, 4), (4, 2), (3, 3), (4, 5)):
        found = net(torch.ones(many, 3), torch.ones(others, 3))
        assert found.numpy()[0, 0] == (2 if many < others else 3)


def test_a_size_that_is_a_formula_of_another() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch.exporting import Inputs, export

    class Net(nn.Module):
        def forward(self, x: Any, y: Any) -> Any:
            return torch.cat([x, x]) + y

    graph = export(Net(), *Inputs.of((torch.ones(4, 3), torch.ones(8, 3)), {}))
    assert graph.takes([(5, 3), (10, 3)])
    assert not graph.takes([(5, 3), (9, 3)])


def test_sizes_among_the_results_are_those_of_the_call() -> None:
    import torch

    from lamina.convert.torch import from_torch

    class Net(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return x * 2, tuple(x.shape), {"mean": 1 / x.shape[0], "rows": 2 * len(x), "many": x.shape[0] > 4}

    net = from_torch(Net(), torch.ones(3, 4))
    for batch in (3, 5, 7, 3):
        y, shape, others = net(torch.ones(batch, 4))
        assert (tuple(y.shape), shape) == ((batch, 4), (batch, 4))
        assert others == {"mean": 1 / batch, "rows": 2 * batch, "many": batch > 4}
        assert type(others["mean"]) is float


def test_batches_of_one_graph_make_no_others() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import from_torch

    net = from_torch(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Unflatten(1, (2, 2))), torch.ones(4, 3))
    for batch in (2, 3, 8, 100):
        net(torch.ones(batch, 3))
    assert len(net._graphs) == 1


def test_what_cannot_be_computed_of_a_condition_does_not_hold() -> None:
    """But for the inputs that the graph was made of: another one would have the same conditions."""
    import sympy

    from lamina.convert.torch.free_sizes import FreeSizes

    n, unknown = sympy.symbols("n unknown", integer=True)
    sizes = FreeSizes([(n, 3)], {n: (2, 8)}, [n < unknown], ((4, 3),))
    assert sizes.hold([(4, 3)])
    assert not sizes.hold([(5, 3)])
    assert not FreeSizes([(n, 3)], {n: (2, 8)}).hold([(9, 3)])
