"""Shapes, views, indexing and dtypes as PyTorch has them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import convert

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


CASES = [
    "x.view(2, -1)",
    "x.reshape(3, 2, -1).size(2) * x",
    "x.transpose(1, 2).contiguous()",
    "x.permute(0, 2, 3, 1).flatten(1, 2)",
    "x[:, 1:, ..., ::2]",
    "x[0, None]",
    "x[torch.tensor([1, 0])]",
    "x[:, [2, 0]]",
    "x[:, :, torch.arange(3), 1]",
    "torch.cat(x.chunk(3, 1), 0)",
    "torch.stack(x.unbind(1), -1)",
    "x.split([1, 2], 1)[1]",
    "x.unfold(2, 3, 2)",
    "F.unfold(x, 3, padding=1)",
    "F.fold(F.unfold(x, 2, stride=2), 6, 2, stride=2)",
    "x.expand(2, 2, 3, 6, 6)",
    "x.to(torch.float64)",
    "(x > 0).float() + x.type_as(x)",
    "x.long().type(x.type()) + x.type(torch.DoubleTensor)",
    "x.mT + x.transpose(-1, -2)",
    "torch.as_strided(x, (2, 3), (4, 1), 5)",
    "x.transpose(1, 3).as_strided((2, 4, 3), (108, 6, 1))",
    "x[1].as_strided((3, 2), (36, 2))",
    "x.flip(dims=(1, 3)) + x.permute(dims=(0, 1, 3, 2))",
    "torch.full_like(x, -1.0).where(x > 0, x)",
    "x.masked_fill(x > 0, 0.0)",
    "x.shape[0] * x.numel() + x",
    "torch.where(x > 0, x, x.new_zeros(()))",
    "x.unflatten(1, (3, 1)).squeeze(2).unsqueeze(0)",
    "x.index_select(1, torch.tensor([2, 0]))",
    "x.roll(1, 2).flip(3)",
    "x.narrow(2, 1, 3).repeat(1, 2, 1, 1)",
    "x.movedim(1, -1)",
    "torch.einsum('nchw,ncdw->nhd', x, x)",
    "x.detach().clone() + x.contiguous()",
    "x.select(1, 0)[0].T",
    "torch.tensor_split(x, indices=(1,), dim=2)[1] + torch.tensor_split(x, 2, 2)[0][:, :, :1]",
    "x.hsplit([1])[0] * torch.vsplit(x, 2)[1][0, 0, 0] + x.tensor_split(2, dim=2)[1].sum()",
    "x[0, 0].clone().fill_diagonal_(3.0)",
    "x.reshape(-1, 2).clone().fill_diagonal_(3.0, wrap=True)",
    "x.put(torch.tensor([1, -1]), torch.tensor([9.0, 8.0]))",
    "x.clone().put_(torch.tensor([1, 1]), torch.tensor([9.0, 8.0]), accumulate=True)",
    "x.index_put((torch.tensor([1, 0]),), x[:1] * 2)",
    "x.index_put((torch.tensor([1, 1, 0]), torch.tensor([2, 2, 0])), x[0, :, :, :1], accumulate=True)",
    "x.index_put((x > 0,), torch.tensor(3.0), accumulate=True)",
    "x.index_put((x > 0,), torch.tensor(3.1, dtype=torch.float64))",
    "(x * 9).int().index_put((x[..., 0] > 0,), torch.tensor(3.75))",
    "torch.ops.aten._unsafe_index_put(x, [None, torch.tensor([2, 0])], x[:, :2])",
    "torch.ops.aten.index_put(x, [None, None, torch.tensor([2, 0])], x[:, :, :2], True)",
    "x.new_zeros(torch.broadcast_shapes((3, 1), (1, 4), 4)) + x.sum()",
    "x.view(torch.Size([x.shape[0], -1]) + torch.Size())",
    "torch.cartesian_prod(x[0, 0, 0], x[0, 1, 1, :2], x[1, 0, 0, :3])",
]


@pytest.mark.parametrize("text", CASES)
def test_values_are_those_of_torch(text: str) -> None:
    import torch.nn.functional as F

    from tests.helpers.torch_functions import agree

    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    agree(eval("lambda x: " + text, {"torch": torch, "F": F}), x)


def written(x: Any, i: Any, j: Any) -> Any:
    """What is set at such a key."""
    y = x.clone()
    y[:, i, :, j] = torch.arange(20.0).reshape(2, 2, 5)
    return y


@pytest.mark.parametrize(
    "taken",
    [
        lambda x, i, j: x[:, i, :, j] * 1,
        lambda x, i, j: x[j, :, i] * 1,
        lambda x, i, j: x[None, i, 1:, j] * 1,
        lambda x, i, j: x[j, :, j, i] * 1,
        lambda x, i, j: x[i, j] * 1,
        lambda x, i, j: x[..., j, i] * 1,
        lambda x, i, j: x[:, i[:, :1], 1, j] * 1,
        lambda x, i, j: x[i, j, ..., None, j] * 1,
        written,
    ],
)
def test_a_tensor_of_one_integer_among_arrays_is_an_integer(taken: Callable[..., Any]) -> None:
    """Compiled: it is taken before the arrays are, which then lie side by side, or do not; gradients too."""
    torch.manual_seed(0)
    torch._dynamo.reset()
    x, i, j = torch.randn(3, 4, 5, 6), torch.tensor([[0, 1], [2, 2]]), torch.tensor(1)
    leaf, twin = x.clone().requires_grad_(), x.clone().requires_grad_()
    wanted, found = taken(leaf, i, j), torch.compile(taken, backend="lamina")(twin, i, j)
    assert found.shape == wanted.shape
    assert torch.equal(found, wanted)
    wanted.square().sum().backward()
    found.square().sum().backward()
    assert leaf.grad is not None
    assert twin.grad is not None
    assert torch.allclose(leaf.grad, twin.grad)


NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "filled": lambda x, i: x + torch.full((2, 4), i.max()) - x.new_full((2, 1), i.max()),
    "filled alike": lambda x, i: torch.full_like(x, i.min().item() + 1),
    "arithmetic": lambda x, i: x * (i.sum().item() // 2) + i.sum().item() % 3 + (-i.sum().item()) ** 2,
    "masks": lambda x, i: x.masked_fill(x > 0, int(i.max())) + torch.where(x > 0, int(i.max()), 0),
    "bounds": lambda x, i: x.clamp(max=i.min().item()) * (i.max() > 2).item(),
    "no axes": lambda x, i: (x.sum() * i[:1].item(), x.sum() + x[:1, :1].item(), i * i[:1].item()),
}  # fmt: skip


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_that_are_only_computed_with_need_no_value_in_a_program(name: str) -> None:
    """A tensor of one element, which has axes, gives a number without: the shapes are PyTorch's."""

    class Computing(torch.nn.Module):
        def forward(self, x: Any, i: Any) -> Any:
            return NUMBERS[name](x, i)

    net, x, i = Computing(), torch.randn(2, 4), torch.tensor([3, 5])
    converted = convert.from_torch(net, x, i)
    wanted = net(x, i)
    for found in converted(x, i), lm.jit(converted)(x.numpy(), i.numpy()):
        pairs = zip(found, wanted, strict=True) if name == "no axes" else [(found, wanted)]
        for y, w in pairs:
            assert (y.shape, y.dtype.name) == (tuple(w.shape), str(w.dtype).removeprefix("torch."))
            np.testing.assert_allclose(y.numpy(), w.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, i: x[:, : i.max().item()],
        lambda x, i: torch.arange(i.max().item()) + x.sum(),
        lambda x, i: torch.zeros(int(i.max()) + 1, 4).index_add(0, i, x),
    ],
)
def test_numbers_that_are_sizes_are_those_of_the_call(function: Callable[..., Any]) -> None:
    class Sized(torch.nn.Module):
        def forward(self, x: Any, i: Any) -> Any:
            return function(x, i)

    x, i = torch.randn(2, 4), torch.tensor([1, 3])
    converted = convert.from_torch(Sized(), x, i)
    compiled = lm.jit(converted)
    for j in (i, torch.tensor([2, 0]), torch.tensor([1, 1]), i):
        for found in (converted(x, j), compiled(x.numpy(), j.numpy())):
            np.testing.assert_allclose(found.numpy(), function(x, j).numpy(), rtol=1e-6)
    assert len(compiled._programs) == 3
    with pytest.raises(convert.TorchConversionError, match="known only when the program runs"):
        lm.trace(converted, x.numpy(), i.numpy())
