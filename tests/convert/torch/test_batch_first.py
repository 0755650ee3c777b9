"""PyTorch's attention is taken apart in the order of memory, with the results and gradients that it has."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099", "F100", "B027")]

B, T, E, H = 3, 5, 8, 2


def masks() -> dict[str, dict[str, Any]]:
    import torch

    never = torch.ones(T, T, dtype=torch.bool).triu(1)
    padding = torch.zeros(B, T, dtype=torch.bool)
    padding[1, 3:] = True
    return {
        "none": {},
        "bool": {"attn_mask": never},
        "float": {"attn_mask": torch.zeros(T, T).masked_fill(never, float("-inf"))},
        "causal": {"attn_mask": never, "is_causal": True},
        "one for each head": {"attn_mask": never.expand(B * H, T, T).contiguous()},
        "padding": {"key_padding_mask": padding},
        "both": {"attn_mask": never, "key_padding_mask": padding, "is_causal": True},
    }


MASKS = (
    "none",
    "bool",
    "float",
    "causal",
    "one for each head",
    "padding",
    "both",
)


def attention(bias: bool = True, **given: Any) -> Any:
    """A module of one layer of attention on a sequence to itself."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.MultiheadAttention(E, H, batch_first=True, bias=bias)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, weights = self.layer(x, x, x, need_weights=False, **given)
            assert weights is None
            return torch.tanh(y) + x  # type: ignore[no-any-return]

    torch.manual_seed(0)
    net = Net()
    for p in net.parameters():
        torch.nn.init.normal_(p, std=0.5)
    return net


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("bias", [True, False])
def test_converted(name: str, bias: bool) -> None:
    import torch

    from lamina.convert.torch import check, from_torch

    x, net = torch.randn(B, T, E), attention(bias, **masks()[name])
    found = check(net, from_torch(net, x, share=False), x)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-5, found


@pytest.mark.parametrize("name", MASKS)
def test_compiled(name: str) -> None:
    import torch

    from tests.helpers.torch_training import compiled

    net, found = attention(**masks()[name]), []
    for run in (net, compiled(net)):
        x = torch.randn(B, T, E, generator=torch.Generator().manual_seed(1), requires_grad=True)
        y = run(x)
        found.append([y, *torch.autograd.grad(y.square().sum(), [x, *net.parameters()])])
    for got, wanted in zip(found[1], found[0], strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


def test_the_three_projections_are_one_product_and_nothing_is_turned() -> None:
    import torch

    import lamina as lm
    from lamina.convert.torch import from_torch
    from lamina.graph.passes.canonicalize import drop_identities

    x = torch.randn(B, T, E)
    mine = from_torch(attention(), x, share=False)
    graph = drop_identities(lm.trace(mine, lm.Spec((B, T, E), lm.float32)))
    names = [n.op.name for n in graph.nodes]
    assert sum("matmul" in n for n in names) == 2, names
    assert not [n for n in graph.nodes if n.outputs[0].shape[:2] == (T, B)]


def test_sequences_that_lie_step_by_step_stay_so() -> None:
    """Nothing is turned where the rows of a step lie beside each other."""
    import torch
    from torch import nn

    from lamina.convert.torch import check, from_torch
    from lamina.convert.torch.batch_first import lies_batch_first

    layer = nn.TransformerEncoderLayer(E, H, 16, dropout=0.0)
    x = torch.randn(T, B, E)
    assert not lies_batch_first(x)
    assert lies_batch_first(torch.randn(B, T, E).transpose(0, 1))
    found = check(layer, from_torch(layer, x, share=False), x)
    assert max(found.output, found.gradient) < 1e-5, found


@pytest.mark.parametrize("given", [{"add_bias_kv": True}, {"add_zero_attn": True}, {"kdim": 6, "vdim": 4}])
def test_other_forms_are_pytorchs(given: dict[str, Any]) -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import check, from_torch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.MultiheadAttention(E, H, batch_first=True, **given)

        def forward(self, x: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
            return self.layer(x, k, v, need_weights=False)[0]  # type: ignore[no-any-return]

    x = torch.randn(B, T, E)
    other = (torch.randn(B, 4, given.get("kdim", E)), torch.randn(B, 4, given.get("vdim", E)))
    net = Net()
    found = check(net, from_torch(net, x, *other, share=False), x, *other)
    assert max(found.output, found.gradient) < 1e-5, found
