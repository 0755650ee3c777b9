"""Tensors made of numbers."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


CASES = [
    "x + torch.zeros(6) + torch.ones(6, 6) + torch.full((6,), 2.0)",
    "torch.arange(6) + x",
    "torch.arange(1.0, 7.0) * x",
    "torch.linspace(0, 1, 6) * x",
    "torch.eye(6) @ x",
    "torch.tensor([1.0, 2.0, 3.0]).view(3, 1, 1) * x",
    "torch.zeros_like(x, dtype=torch.int64)",
    "x.new_full((2,), 3.0)",
    "torch.ones_like(x) + torch.full_like(x, 2)",
    "torch.triu_indices(3, 3) + x.long()[0, 0, 0, 0]",
    "x * x.new_tensor(2.0)",
    "torch.scalar_tensor(2.0) * x",
]


@pytest.mark.parametrize("text", CASES)
def test_values_are_those_of_torch(text: str) -> None:
    import torch
    import torch.nn.functional as F

    from tests.helpers.torch_functions import agree

    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    agree(eval("lambda x: " + text, {"torch": torch, "F": F}), x)


def test_numbers_without_a_dtype_are_of_the_default_dtype() -> None:
    import torch

    from tests.helpers.torch_functions import agree

    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        x = torch.ones(3)
        agree(
            lambda x: (
                x * torch.tensor(0.1) + torch.linspace(0, 1, 3) + torch.full((3,), 1 / 3) + torch.eye(3)
            ),
            x,
            tolerance=1e-15,
        )
    finally:
        torch.set_default_dtype(before)


def test_what_is_made_in_a_shape_alone_has_no_gradient() -> None:
    """As autograd has it, of a graph's results too: a loss of these alone has nothing to go back to."""
    import torch

    @torch.compile(backend="lamina")
    def made(x: torch.Tensor) -> list[torch.Tensor]:
        y = x * 2
        return [torch.zeros_like(y), torch.full_like(y, 3.0) * 2, torch.ones_like(y) + y]

    x = torch.randn(3, requires_grad=True)
    found = made(x)
    assert [y.requires_grad for y in found] == [False, False, True]
    torch.testing.assert_close(found, [torch.zeros(3), torch.full((3,), 6.0), 1 + 2 * x])


#: Numbers of a tensor that only the running program knows, as those of an attribute are in a compiled one.
NUMBERS_OF_TENSORS = [
    "torch.cat([torch.full((2, 1), s) for s in stride])",
    "x.new_full((2, 1), stride[1])",
    "torch.full_like(x, stride[0]) * x",
    "torch.linspace(stride[0], stride[1], 5) + x.sum()",
    "torch.linspace(0.0, stride[1], 1)",
    "torch.logspace(0, stride[0], 3, base=2.0)",
]


@pytest.mark.parametrize("text", NUMBERS_OF_TENSORS)
def test_a_number_may_be_a_tensors(text: str) -> None:
    """PyTorch reads it; a compiled program computes with it."""
    import torch

    import lamina as lm
    from lamina.convert.torch import from_torch

    made = eval("lambda x, stride: " + text, {"torch": torch})

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stride = torch.tensor([4.0, 8.0])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return made(x, self.stride)  # type: ignore[no-any-return]

    x = torch.rand(3, 2)
    converted, wanted = from_torch(Net(), x), Net()(x)
    found = lm.jit(lambda x: converted(x))(x.numpy())
    torch.testing.assert_close(torch.from_numpy(found.numpy()), wanted)


def test_a_range_up_to_a_number_of_a_tensor_that_the_code_holds() -> None:
    """It is known in the call for which a program is recorded."""
    import torch

    import lamina as lm
    from lamina.convert.torch import from_torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.end = torch.tensor([3.0])

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x + torch.arange(self.end[0])  # type: ignore[call-overload, no-any-return]

    x = torch.rand(3)
    converted = from_torch(Net(), x)
    found = lm.jit(lambda x: converted(x))(x.numpy())
    torch.testing.assert_close(torch.from_numpy(found.numpy()), x + torch.arange(3.0))
