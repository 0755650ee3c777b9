"""torch.linalg in PyTorch's networks."""

from __future__ import annotations

from typing import Any

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099", "F100")]


def network() -> tuple[Any, Any]:
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(2, 4, 4) * 0.3 + 2 * torch.eye(4))

        def forward(self, b: torch.Tensor) -> Any:
            a = self.w
            whole = a @ a.mT + torch.eye(4)
            factor = torch.linalg.cholesky(whole)
            sign, size = torch.linalg.slogdet(a)
            return [
                torch.linalg.inv(a), torch.inverse(a), torch.linalg.det(a), torch.logdet(whole), sign, size,
                torch.linalg.solve(a, b), torch.slogdet(a)[1], torch.cholesky_solve(b, factor),
                torch.cholesky_inverse(factor), torch.linalg.solve_triangular(factor, b, upper=False),
                torch.linalg.norm(a), torch.linalg.norm(a, "fro", dim=(-2, -1)), torch.linalg.matrix_norm(a, 1),
                torch.linalg.matrix_exp(a), torch.linalg.householder_product(a, b[..., 0]), torch.matrix_exp(a),
                torch.linalg.matrix_power(a, 3), torch.linalg.multi_dot([a[0], a[1], b[0]]),
                torch.chain_matmul(a[0], a[1], b[0]),
            ]  # fmt: skip

    torch.manual_seed(0)
    return Net(), torch.randn(2, 4, 3)


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated:UserWarning")
def test_results_and_gradients_are_those_of_torch() -> None:
    from lamina.convert.torch import check, from_torch

    net, b = network()
    found = check(net, from_torch(net, b, share=False), b)
    assert found.output < 1e-5, found
    assert found.gradient < 1e-4, found


@pytest.mark.filterwarnings("ignore:torch.chain_matmul is deprecated:UserWarning")
def test_compiled() -> None:
    import torch

    from tests.helpers.torch_training import compiled

    (net, b), (plain, _) = network(), network()
    results, wanted = compiled(net)(b), plain(b)
    for y, w in zip(results, wanted, strict=True):
        torch.testing.assert_close(y, w, rtol=1e-4, atol=1e-5)
    sum(y.sum() for y in results).backward()
    sum(y.sum() for y in wanted).backward()
    torch.testing.assert_close(net.w.grad, plain.w.grad, rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:torch.lu_solve is deprecated:UserWarning")
def test_factors_and_systems_by_every_name() -> None:
    """Of a matrix that is a parameter itself: the gradient of Cholesky's factor is symmetric."""
    import torch

    from tests.helpers.torch_training import compiled

    def found(a: Any, b: Any) -> list[Any]:
        factors, pivots = torch.linalg.lu_factor(a)
        return [
            torch.linalg.cholesky(a), torch.linalg.cholesky(a, upper=True), *torch.linalg.cholesky_ex(a),
            torch.distributions.MultivariateNormal(torch.zeros(4), a).log_prob(b[..., 0]), *torch.linalg.lu(a),
            factors, pivots, *torch.linalg.lu_factor_ex(a), torch.linalg.lu_solve(factors, pivots, b),
            torch.lu_solve(b, factors, pivots), *torch.linalg.solve_ex(a, b), *torch.linalg.inv_ex(a),
            torch.linalg.tensorinv(a[0].reshape(2, 2, 4)),
            torch.linalg.tensorsolve(a[0].reshape(2, 2, 4), b[0, :, 0].reshape(2, 2)),
        ]  # fmt: skip

    x = torch.randn(2, 4, 4, generator=torch.Generator().manual_seed(0))
    whole, b = x @ x.mT + torch.eye(4), x[..., :3].contiguous()
    gradients = []
    for function in (compiled(found, fullgraph=True), found):
        a = whole.clone().requires_grad_()
        results = function(a, b)
        sum((y * torch.linspace(1, 2, y.numel()).reshape(y.shape)).sum() for y in results).backward()
        gradients.append((results, a.grad))
    (results, slope), (wanted, wanted_slope) = gradients
    assert {f.name() for f, _ in results[0].grad_fn.next_functions} == {"torch::autograd::AccumulateGrad"}
    for y, w in zip(results, wanted, strict=True):
        torch.testing.assert_close(y, w, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(slope, wanted_slope, rtol=1e-4, atol=1e-4)


def test_rows_in_groups_each_with_its_matrix() -> None:
    """As layers of experts call them; the second group is empty."""
    import torch
    import torch.nn.functional as F

    from tests.helpers.torch_functions import agree

    x, weight = torch.randn(7, 8).bfloat16(), torch.randn(3, 8, 8).bfloat16()
    ends = torch.tensor([3, 3, 7], dtype=torch.int32)
    wanted = torch.cat([x[:3] @ weight[0], x[3:] @ weight[2]])
    torch.testing.assert_close(F.grouped_mm(x, weight, offs=ends), wanted)
    agree(lambda x, weight, ends: F.grouped_mm(x, weight, offs=ends), x, weight, ends, tolerance=1e-2)


def of_singular_values() -> tuple[Any, Any]:
    """What does not depend on the signs of vectors."""
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.diag(torch.arange(1.0, 5)) + torch.randn(4, 4) * 0.3)

        def forward(self, x: torch.Tensor) -> Any:
            w, a = self.w, x @ self.w
            values, vectors = torch.linalg.eigh(w @ w.mT)
            u, s, vh = torch.linalg.svd(a, full_matrices=False)
            v = torch.svd(w)[2]
            q, r = torch.linalg.qr(w)
            return [
                values, (vectors * values.sqrt()) @ vectors.mT, (u * s.sqrt()) @ vh, v @ v.mT, q, r, torch.qr(w)[1],
                torch.linalg.eigvalsh(w @ w.mT), torch.linalg.svdvals(w), torch.svd(w).S, torch.linalg.pinv(a),
                torch.pinverse(w), torch.linalg.pinv(w @ w.mT, hermitian=True), torch.linalg.cond(w),
                torch.linalg.matrix_rank(a), torch.linalg.matrix_norm(w, "nuc"), torch.linalg.vecdot(x, x),
                torch.linalg.vander(x[0], N=3), torch.block_diag(w, x),
            ]  # fmt: skip

    torch.manual_seed(0)
    return Net(), torch.randn(3, 4)


def test_singular_values_are_those_of_torch() -> None:
    import torch

    from lamina.convert.torch import check, explain, from_torch
    from tests.helpers.torch_training import compiled

    net, x = of_singular_values()
    found = check(net, from_torch(net, x, share=False), x)
    assert found.output < 1e-4, found
    assert found.gradient < 1e-3, found
    run = compiled(net)
    for y, wanted in zip(run(x), net(x), strict=True):
        torch.testing.assert_close(y, wanted, rtol=1e-4, atol=1e-4)
    assert not explain(torch.compile(net, backend="lamina"), x).left


def test_least_squares() -> None:
    import torch
    from torch import nn

    from lamina.convert.torch import check, from_torch

    class Net(nn.Module):
        def __init__(self, rows: int) -> None:
            super().__init__()
            self.w = nn.Parameter(torch.randn(rows, 4))

        def forward(self, x: torch.Tensor) -> Any:
            return torch.linalg.lstsq(self.w, x).solution, torch.linalg.lstsq(
                self.w, x, driver="gelsd"
            ).residuals

    for rows in (4, 6):
        net, x = Net(rows), torch.randn(rows, 2)
        found = check(net, from_torch(net, x, share=False), x)
        assert found.output < 1e-3, found
        assert found.gradient < 1e-3, found


def test_covariances() -> None:
    """PyTorch looks at the numbers of observations; they are functions, methods, and of one variable."""
    import torch
    from torch import nn

    from lamina.convert.torch import check, from_torch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.head = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> Any:
            y = self.head(x) ** 2
            often = torch.tensor([1, 2, 3])
            return (
                y.cov(),
                torch.cov(y, correction=0, fweights=often),
                y.corrcoef(),
                torch.corrcoef(y[:, 0] * y.sum()),
            )

    torch.manual_seed(0)
    net, x = Net(), torch.randn(5, 4)
    found = check(net, from_torch(net, x, share=False), x)
    assert found.output < 1e-4, found
    assert found.gradient < 1e-3, found
