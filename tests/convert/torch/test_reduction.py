"""Reductions, softmax and functions of elements."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


CASES = [
    "x.sum((2, 3))",
    "x.mean()",
    "x.mean(1, keepdim=True)",
    "x.std(1)",
    "x.var((2, 3), unbiased=False)",
    "x.max(1)[0]",
    "x.amax((2, 3))",
    "x.argmax(1)",
    "x.topk(2, 1)[0]",
    "x.softmax(-1)",
    "F.log_softmax(x, 1)",
    "F.softmax(x, dim=1, dtype=torch.float64)",
    "x.cumsum(1)",
    "x.norm(dim=1)",
    "torch.linalg.vector_norm(x, dim=(2, 3))",
    "x.sort(1)[1]",
    "x.clamp(-1, 1)",
    "x.clamp(min=0)",
    "F.hardtanh(x)",
    "F.relu6(x)",
    "F.elu(x)",
    "F.gelu(x, approximate='tanh')",
    "F.silu(x)",
    "F.hardswish(x)",
    "F.leaky_relu(x, 0.1)",
    "F.glu(x, 2)",
    "torch.true_divide(x, 2).multiply(3)",
    "x ** 2 + 2 ** x",
    "x.logsumexp(1)",
    "torch.special.expit(x)",
    "torch.special.entr(x.clamp(min=0)) + torch.special.entr(-x.abs() - 1).clamp(min=-1)",
    "torch.tensordot(x[0], x[1].permute(1, 2, 0), 2)",
    "torch.tensordot(x[0], x[1], ([0, 2], [0, 1]))",
    "(x > 0) & (x < 1)",
    "-x / (1 + x.abs())",
    "x // 1 + x % 2",
    "torch.addmm(x[0, 0], x[0, 1], x[0, 2], alpha=2)",
    "torch.baddbmm(x[0], x[0], x[0])",
    "torch.rsub(x, 1)",
    "torch.maximum(x, -x)",
    "x.prod(1)",
    "x.any(1)",
    "F.softplus(x)",
    "F.mish(x)",
    "F.celu(x)",
    "F.cosine_similarity(x, x + 1)",
    "x.sum(())",
    "x.sum([], keepdim=True)",
    "x.mean(-1)",
    "x.mean((0, 3), True)",
    "x.prod(2, keepdim=True)",
    "x.nansum(1)",
    "x.nanmean((1, 2), keepdim=True)",
    "F.softmin(x, -1)",
    "F.hardtanh(x, -0.5, 0.25)",
    "F.hardtanh(x, min_val=-0.5)",
    "(x * 4).clip(max=6)",
    "F.relu6(x * 8)",
    "x.clamp(max=-x.abs())",
    "F.elu(x, 0.5)",
    "torch.ops.aten.elu(x, 0.5, 2.0, 3.0)",
    "torch.ops.aten.elu(x, 1.0, 1.0, 3.0)",
    "torch.ops.aten.elu(x, 0.5, 2.0)",
    "F.selu(x)",
    "F.hardsigmoid(x * 4)",
    "F.relu(x)",
    "F.logsigmoid(x)",
    "F.softsign(x)",
    "x.sigmoid()",
    "x.tanh()",
    "torch.bincount(torch.tensor([0, 2, 2, 5])) + 0 * x.sum().long()",
    "torch.bincount(torch.tensor([0, 2, 2, 5]), minlength=8) + 0 * x.sum().long()",
    "torch.bincount(torch.tensor([0, 2, 2]), x[0, 0, 0, :3])",
    "torch._convert_indices_from_coo_to_csr(torch.tensor([0, 0, 2, 3, 3, 3]), 5) + 0 * x.sum().long()",
    "torch._convert_indices_from_coo_to_csr(torch.tensor([1, 4]), 5, out_int32=True) + 0 * x.sum().int()",
    "torch._convert_indices_from_csr_to_coo(torch.tensor([0, 2, 2, 3, 6, 6]), torch.arange(6)) + 0 * x.sum().long()",
    *(
        f"{call}, dtype=torch.float64)"
        for call in (
            "x.sum(1", "x.mean((1, 2)", "x.prod(1", "x.nansum(1", "x.cumsum(1", "x.cumprod(2", "x.softmax(1",
            "x.log_softmax(1", "F.softmin(x, 1", "(x * 3).long().mean(0", "(x * 3).int().cumsum(1",
        )
    ),
    *(f"(x * 3).{kind}().{name}(1)" for name in ("sum", "prod", "cumsum", "cumprod") for kind in ("int", "long")),
    "(x > 0).sum(1)",
    "(x > 0).cumsum(1)",
    "x.cumsum(1, dtype=torch.int64)",
    "x.cumprod(-1)",
    "torch._is_all_true(x < 9)",
    "torch._is_any_true(x > 9)",
]  # fmt: skip


@pytest.mark.parametrize("text", CASES)
def test_values_are_those_of_torch(text: str) -> None:
    import torch
    import torch.nn.functional as F

    from tests.helpers.torch_functions import agree

    x = torch.randn(2, 3, 6, 6, generator=torch.Generator().manual_seed(0))
    agree(eval("lambda x: " + text, {"torch": torch, "F": F}), x)


@pytest.mark.parametrize("rank", range(5))
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "softmin"])
def test_the_axis_that_torch_chooses_itself(name: str, rank: int) -> None:
    import torch

    from tests.helpers.torch_functions import agree

    x = torch.randn((2, 3, 4, 5)[:rank], generator=torch.Generator().manual_seed(0))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Implicit dimension choice")
        agree(getattr(torch.nn.functional, name), x)


@pytest.mark.parametrize("weighted", [False, True])
def test_counts_as_many_as_the_shapes_of_other_tensors_tell(weighted: bool) -> None:
    import torch

    from lamina.convert.torch import check, from_torch

    class Means(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.line = torch.nn.Linear(2, 2)

        def forward(self, x: Any, group: Any) -> Any:
            sums = x.new_zeros(4, 2).index_add(0, group, self.line(x))
            return sums / torch.bincount(group, x[:, 0].abs() if weighted else None, 4).clamp(min=1)[:, None]

    net, x = Means(), torch.randn(6, 2)
    converted = from_torch(net, x, torch.tensor([0, 0, 2, 2, 2, 3]))
    found = check(net, converted, x, torch.tensor([3, 3, 2, 3, 0, 2]))
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found


def test_in_place_sums_of_products_with_a_factor() -> None:
    """Dynamo writes them as `prims.fma`."""
    import torch

    from tests.helpers.torch_training import compiled

    def updated(x: Any, a: Any, b: Any, factor: Any) -> Any:
        y = x.clone()
        y.addcmul_(a, b, value=0.5)
        y.addcdiv_(a, b.square() + 1, value=-0.3)
        return y.add_(a, alpha=factor)

    shapes = (3, 4), (3, 4), (4,), ()
    operands = [torch.randn(s, generator=torch.Generator().manual_seed(k)) for k, s in enumerate(shapes)]
    wrt = [x.requires_grad_() for x in operands[:3]]
    y, wanted = compiled(updated)(*operands), updated(*operands)
    assert {f.name() for f, _ in y.grad_fn.next_functions} == {"torch::autograd::AccumulateGrad"}
    torch.testing.assert_close(y, wanted)
    for g, w in zip(*(torch.autograd.grad(v.square().sum(), wrt) for v in (y, wanted)), strict=True):
        torch.testing.assert_close(g, w)


@pytest.mark.parametrize("consecutive", [False, True])
@pytest.mark.parametrize("dim", [None, 0])
@pytest.mark.parametrize(
    "others", [(), ("return_counts",), ("return_inverse",), ("return_inverse", "return_counts")]
)
def test_distinct_values_are_those_of_pytorch(
    consecutive: bool, dim: int | None, others: tuple[str, ...]
) -> None:
    """Whatever is asked for beside them; the exporter's graph has all three, and checks their number."""
    import torch
    from torch import nn

    from lamina.convert.torch import from_torch

    class Net(nn.Module):
        def forward(self, x: Any) -> Any:
            function = torch.unique_consecutive if consecutive else torch.unique
            return function(x, dim=dim, **dict.fromkeys(others, True))

    x = torch.tensor([[3.0, 1.0], [3.0, 1.0], [2.0, 2.0], [3.0, 1.0]])
    found, wanted = from_torch(Net(), x)(x), Net()(x)
    pairs = zip(found, wanted, strict=True) if others else [(found, wanted)]
    for y, w in pairs:
        assert y.numpy().tolist() == w.tolist()


def test_a_condition_on_values_that_the_exporter_asserts() -> None:
    """What vision-language models say of the number of their image tokens."""
    import torch

    import lamina as lm

    class Network(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            torch._check_tensor_all(x.sum(1) < 100, lambda: "too large")
            return x * 2

    x = torch.ones(2, 3)
    net = lm.convert.from_torch(Network(), x)
    torch.testing.assert_close(torch.from_numpy(net(x.numpy()).numpy()), 2 * x)
