"""Graphs of torch.fx from Lamina's: constants that depend on sizes, numbers, states, what nobody reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.graph import trace
from lamina.spec import Spec, float32

pytestmark = [pytest.mark.torch, pytest.mark.feature("F101")]

#: Functions of x [batch, time, 3], any batch and any time.
SIZED = {
    "one number everywhere": lambda x: x * np.full(x.shape[:2], 0.5, np.float32)[..., None],
    "a count": lambda x: x + lm.arange(x.shape[1]).cast("float32")[:, None] * 2.0,
    "a triangle": lambda x: ops.where(np.tri(x.shape[1], dtype=np.bool_), x @ x.transpose(1, 2), -1.0),
    "a size": lambda x: x * float(x.shape[0]),
    "one by a size": lambda x: ops.sum(x, 0) * (1 / x.shape[0]),
    "two joined sizes": lambda x: ops.sum(x.reshape((-1, 3)), 0) / (x.shape[0] * x.shape[1]),
    "the last steps": lambda x: ops.cat([x[:, 1:], x[:, -1:]], 1),
    "repeated": lambda x: ops.expand(x.unsqueeze(0), (2, *x.shape)),
    "a table for each row": lambda x: x + ops.operand(np.tile(np.float32([4, 1, 9]), (*x.shape[:2], 1))),
    "padded": lambda x: ops.pad(x, (0, 0, 1, 2), value=4.0),
}


@pytest.mark.parametrize("name", SIZED)
def test_what_depends_on_sizes_is_computed_from_them(name: str) -> None:
    import torch

    from lamina.convert.torch import to_torch

    class Sized(nn.Module):
        def forward(self, x: Any) -> Any:
            return SIZED[name](x)

    net = Sized()
    module = to_torch(net, Spec((2, 4, 3), float32), dynamic={"input_0": {0: "batch", 1: "time"}})
    for shape in ((2, 4, 3), (5, 6, 3), (1, 9, 3)):
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        np.testing.assert_allclose(module(torch.from_numpy(x)).numpy(), net(lm.tensor(x)).numpy(), 1e-6, 1e-6)


def test_numbers_are_written_as_numbers_and_equal_constants_once() -> None:
    import torch

    from lamina.convert.torch.writing import Constants, FxWriter

    table = np.arange(3, dtype=np.float32)
    graph = trace(lambda x: (x * 2.0 + table) * table, Spec((4, 3), float32))
    constants = Constants()
    writer = FxWriter(constants)
    x = writer.placeholder("x")
    module = writer.module(tuple(writer.write([graph], [x], ())))
    assert "x * 2.0" in module.code
    assert writer.names == ["x", "constant_0"]
    assert [t.tolist() for t in constants.tensors.values()] == [[0.0, 1.0, 2.0]]
    (y,) = module(torch.ones(4, 3), constants.tensors["constant_0"])
    assert y[0].tolist() == [0.0, 3.0, 8.0]


def test_what_nobody_reads_is_left_out() -> None:
    from lamina.convert.torch import to_torch

    class Net(nn.Module):
        def __init__(self) -> None:
            self.unused = nn.Parameter(np.ones(3, np.float32))

        def forward(self, x: Any) -> Any:
            ops.exp(x * self.unused)
            return x + 1.0

    module: Any = to_torch(Net(), Spec((2, 3), float32))
    assert all("exp" not in graph.code for graph in module.graphs.values())
    assert list(module.state_dict()) == ["unused"]


def test_names_of_inputs_that_fall_together_are_told_apart() -> None:
    import torch

    from lamina.convert.torch.writing import Constants, FxWriter

    writer = FxWriter(Constants())
    a, b = writer.placeholder("x.y"), writer.placeholder("x_y")
    module = writer.module((a - b,))
    assert writer.names == ["x.y", "x_y"]
    assert module(torch.tensor(3.0), torch.tensor(1.0))[0] == 2.0
