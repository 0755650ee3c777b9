"""Views read what is written through another, as PyTorch's memory does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


PROGRAMS = {
    "a slice": "y = x.clone()\ny[:, 0] = 1\nreturn y",
    "a view of a view": "y = x.clone()\nz = y.view(2, -1)[:, 3:9]\nz.mul_(2)\nreturn y, z",
    "a transposed view": "y = x.clone()\nz = y.transpose(0, 1)\nz.add_(z.relu())\nreturn y",
    "one that others see": "y = x.clone()\na, b = y[:, 0], y[:, 0:2]\na.zero_()\nreturn b + 1",
    "a diagonal": "y = x[0, 0].clone()\ny.diagonal().fill_(7.0)\nreturn y",
    "of chunks": "y = x.clone()\na, b = y.chunk(2, 3)\nb.copy_(a)\nreturn y",
    "whole numbers": "y = x.long()\ny[:, 1:] += y[:, :1]\nreturn y",
    "booleans": "y = x > 0\ny[..., 2] = True\nreturn y",
    "by operators on bits": "y = x > 0\nz, n = y[:, 1:], (x * 4).long()\nz &= x[:, 1:] < 1\ny |= x > 2\ny ^= x > 3\n"
    "n <<= 2\nn >>= 1\nn ^= 5\nn &= 127\nreturn y, z, n",
    "by a mask": "y = x.clone()\ny[y < 0] = 0.5\nreturn y",
    "by indices": "y = x.clone()\ny[:, torch.tensor([0, 2])] = 3.0\nreturn y",
    "an input": "x[:, 1].sub_(1)\nreturn x * 2",
    "what relu_ gives": "y = x + 1\nz = F.relu(y, inplace=True)\nz += 1\nreturn y",
    "of a copy": "y = x.transpose(1, 2).reshape(-1)\ny.zero_()\nreturn x + 1",
    "of another dtype": "y = x.clone()\ny += torch.ones(6, dtype=torch.float64)\nreturn y",
    "every other row, turned": "y = x.clone()\nz = y[:, 1:, ::2].permute(3, 0, 2, 1)\nz.copy_(z * 2 + 1)\nreturn y",
    "one element": "y = x.clone()\ny[1, 2, 3, 4] = 9.0\ny[:, 1, :, 2:3].squeeze(-1).neg_()\nreturn y",
    "no element": "y = x.clone()\ny[:, 3:] = 1.0\nreturn y",
    "a column of a matrix within": "y = x.clone()\ny.view(2, 3, 36)[..., 7:30:5].mul_(-1)\nreturn y",
    "in a loop": "y = x.clone()\nfor i in range(3):\n    y[:, i] *= i\nreturn y",
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_writes(name: str) -> None:
    import torch

    from tests.helpers.torch_functions import agree, exported

    agree(function_of(PROGRAMS[name], "x"), torch.randn(2, 3, 6, 6), ways=(exported,))


def function_of(lines: str, argument: str) -> Callable[[Any], Any]:
    import torch

    space: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(f"def f({argument}):\n" + "".join(f"    {line}\n" for line in lines.splitlines()), space)
    return space["f"]  # type: ignore[no-any-return]


def test_a_region_is_written_without_indices() -> None:
    """Slices in any order of axes: what a graph holds does not grow with the tensor."""
    import lamina as lm
    from lamina.convert.torch.cells import Cell, View

    def program(x: lm.Tensor) -> lm.Tensor:
        cell = Cell(x)
        View(cell, lambda whole: whole[:, 1:, ::2].permute(2, 0, 1)).write(1.0)
        return cell.read()

    x = lm.zeros((4, 5, 6))
    assert "scatter" not in str(lm.trace(program, x))
    wanted = np.zeros((4, 5, 6), np.float32)
    wanted[:, 1:, ::2] = 1.0
    np.testing.assert_array_equal(program(x).numpy(), wanted)


def test_a_view_that_repeats_elements_is_not_written() -> None:
    from lamina import ops
    from lamina.convert.torch.cells import Cell, View

    view = View(Cell(ops.operand([[1.0], [2.0]])), lambda x: ops.expand(x, (2, 3)))
    with pytest.raises(ValueError, match="clone it first"):
        view.write(0.0)


#: Writes that autograd does not see: the gradient is as if nothing had been written.
PAST = {
    "no_grad": "with torch.no_grad():\n    y.mul_(2)\nreturn y * 3",
    "a part in no_grad": "with torch.no_grad():\n    y[:, :2] = 0\nreturn y.sin()",
    "a view in no_grad": "z = y.t()\nwith torch.no_grad():\n    z[0].fill_(-1.0)\nreturn y * y",
    "infinity": "with torch.no_grad():\n    y.masked_fill_(y > 0, torch.inf)\nreturn y.clamp(max=2)",
    "data": "y.data.clamp_(-0.2, 0.3)\nreturn y * y",
    "a mask of data": "y.data[y.data > 0] = 0.5\nreturn y * y",
    "detach": "z = y.detach()\nz[0] = 5.0\nz.add_(1)\nreturn y.square()",
    "into a result": "z = torch.empty_like(y)\nwith torch.no_grad():\n    torch.mul(y, 2, out=z)\nreturn y * z",
    "a sum of constants": "z = torch.zeros(4)\nwith torch.no_grad():\n    z += y.sum(0)\nreturn y * z",
    "detach_": "z = y * 2\nz.detach_()\nreturn z * y",
}


@pytest.mark.parametrize("converted", [False, True], ids=["compiled", "converted"])
@pytest.mark.parametrize("name", PAST)
def test_writes_past_a_derivative(name: str, converted: bool) -> None:
    import torch

    from lamina.convert.torch import check, from_torch
    from tests.helpers.torch_training import compiled

    written = function_of(PAST[name], "y")

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return written(torch.sinh(self.line(x)))  # type: ignore[no-any-return]

    torch.manual_seed(0)
    net, x = Net(), torch.randn(3, 4)
    if converted:
        found = check(net, from_torch(net, x, share=False), x)
        assert max(found.output, found.gradient) < 1e-5, found
        return
    y, wanted = compiled(net)(x), net(x)
    torch.testing.assert_close(y, wanted)
    parameters = list(net.parameters())
    for g, w in zip(*(torch.autograd.grad(v.sum(), parameters) for v in (y, wanted)), strict=True):
        torch.testing.assert_close(g, w)
