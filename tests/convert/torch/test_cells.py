"""Views read what is written through another, as PyTorch's memory does."""

from __future__ import annotations

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
    import torch.nn.functional as F

    from tests.helpers.torch_functions import agree, exported

    body = "def f(x):\n" + "".join(f"    {line}\n" for line in PROGRAMS[name].splitlines())
    space = {"torch": torch, "F": F}
    exec(body, space)
    agree(space["f"], torch.randn(2, 3, 6, 6), ways=(exported,))


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
