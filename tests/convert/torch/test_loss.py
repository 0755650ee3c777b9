"""Losses."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


CASES = [
    "F.cross_entropy(x, (x[:, 0] > 0).long(), label_smoothing=0.1)",
    "F.mse_loss(x, x + 1)",
    "F.l1_loss(x, x * 2, reduction='sum')",
    "F.nll_loss(x.log_softmax(1), (x[:, 0] > 0).long())",
    "F.binary_cross_entropy_with_logits(x, (x > 0).float())",
    "F.smooth_l1_loss(x, x * 2)",
    "F.kl_div(x.log_softmax(1), x.flip(1).softmax(1), reduction='batchmean')",
    "F.huber_loss(x, x * 3)",
    "F.huber_loss(x, x * 3, weight=x.abs(), delta=0.4)",
    "F.mse_loss(x, x + 1, weight=x.abs())",
]


@pytest.mark.parametrize("text", CASES)
def test_values_are_those_of_torch(text: str) -> None:
    import torch
    import torch.nn.functional as F

    from tests.helpers.torch_functions import agree

    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    agree(eval("lambda x: " + text, {"torch": torch, "F": F}), x)


@pytest.mark.parametrize(
    "options", [{}, {"full": True, "reduction": "none"}, {"reduction": "sum", "eps": 0.5}]
)
def test_the_gaussian_loss_within_a_network(options: dict[str, Any]) -> None:
    """PyTorch looks at the variances, whose numbers a graph does not have: [N, 1] and [N, C] alike, and a number."""
    import torch
    import torch.nn.functional as F

    from lamina.convert.torch import check, from_torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(3, 4)

        def forward(self, x: torch.Tensor, wanted: torch.Tensor) -> list[torch.Tensor]:
            y = self.line(x)
            spread = (y.exp(), y[:, :1].exp(), 0.25)
            return [F.gaussian_nll_loss(y, wanted, s, **options) for s in spread]

    torch.manual_seed(0)
    given, net = (torch.randn(5, 3), torch.randn(5, 4)), Net()
    found = check(net, from_torch(net, *given), *given)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found


@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
def test_the_ctc_loss_within_a_network(reduction: str) -> None:
    import torch

    from lamina.convert.torch import check, from_torch

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(3, 5)
            self.loss = torch.nn.CTCLoss(reduction=reduction, zero_infinity=True)

        def forward(self, x: torch.Tensor, labels: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
            found = self.line(x).log_softmax(2)
            return self.loss(found, labels, torch.full_like(lengths, 7), lengths)  # type: ignore[no-any-return]

    torch.manual_seed(0)
    given = torch.randn(7, 2, 3), torch.randint(1, 5, (2, 4)), torch.tensor([4, 2])
    net = Net()
    found = check(net, from_torch(net, *given), *given)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found


@pytest.mark.parametrize("reduction", ["none", "mean"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_cross_entropy_of_half_types_has_their_dtype(dtype: str, reduction: str) -> None:
    """Converted and under torch.compile, as eagerly: ImageGPT's loss of bfloat16 logits."""
    import torch

    import lamina as lm
    from lamina.convert.torch import from_torch

    class Net(torch.nn.Module):
        def forward(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(x, labels, reduction=reduction)

    x = torch.randn(4, 5, generator=torch.Generator().manual_seed(0)).to(getattr(torch, dtype))
    labels = torch.tensor([0, 3, 4, 1])
    wanted = Net()(x, labels)
    found = from_torch(Net(), x, labels)(lm.tensor(x), lm.tensor(labels))
    compiled = torch.compile(Net(), backend="lamina")(x, labels)
    assert found.dtype.name == dtype
    assert compiled.dtype == wanted.dtype
    torch.testing.assert_close(compiled, wanted)
    torch.testing.assert_close(torch.from_dlpack(found), wanted)
