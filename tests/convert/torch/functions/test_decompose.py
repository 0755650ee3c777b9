"""Eigenvalues and singular values as PyTorch's functions."""

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F101")]


def test_values_and_gradients() -> None:
    from lamina.convert.torch.functions import decompose
    from lamina.ops.primitives.marker import Marker
    from tests.helpers.written_functions import all_wrong, ops_of

    assert all_wrong([op for op in ops_of(decompose) if not issubclass(op, Marker)]) == []


def test_the_gradient_of_a_symmetric_matrix_is_symmetric() -> None:
    import numpy as np
    import torch

    import lamina as lm

    class Factor(lm.nn.Module):
        def __init__(self) -> None:
            x = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
            self.whole = lm.nn.Parameter(lm.tensor(x @ x.T + np.eye(3, dtype=np.float32)))

        def forward(self, b: lm.Tensor) -> lm.Tensor:
            return b @ lm.linalg.cholesky(self.whole)

    net, b = Factor(), torch.arange(6.0).reshape(2, 3)
    back = lm.convert.to_torch(net, b)
    back(b).square().sum().backward()
    _, made = lm.value_and_grad(lambda m: lm.ops.sum(m(b) ** 2))(net)
    found, slope = back.get_parameter("whole").grad, made["whole"].numpy()
    np.testing.assert_allclose(found.numpy(), slope, rtol=1e-4)
    np.testing.assert_allclose(slope, slope.T, rtol=1e-5)
    leaf = torch.from_numpy(net.whole.numpy()).requires_grad_()
    (b @ torch.linalg.cholesky(leaf)).square().sum().backward()
    torch.testing.assert_close(found, leaf.grad, rtol=1e-4, atol=1e-4)


def test_factors_of_a_network_are_recorded() -> None:
    """Each function's tuple is one proxy while it is recorded."""
    import numpy as np
    import torch

    import lamina as lm

    class Factors(lm.nn.Module):
        def forward(self, a: lm.Tensor, b: lm.Tensor) -> tuple[lm.Tensor, ...]:
            linalg = lm.linalg
            whole = a @ a.mT + np.eye(3, dtype=np.float32)
            factors, pivots = linalg.lu_factor(a)
            return (
                *linalg.qr(a), *linalg.qr(b, "complete"), linalg.qr(b, "r").R, linalg.cholesky(whole), factors,
                pivots, *linalg.lu(b), *linalg.slogdet(a), linalg.det(a), linalg.solve(whole[0], b),
                lm.grad(lambda x: linalg.det(x).sum())(a), linalg.solve(a, b), *linalg.eigh(whole),
                linalg.svdvals(b), linalg.solve_triangular(whole, b, upper=True),
            )  # fmt: skip

    rng = np.random.default_rng(0)
    a, b = (torch.from_numpy(rng.standard_normal(s).astype(np.float32)) for s in ((2, 3, 3), (2, 3, 2)))
    net = Factors()
    found, wanted = lm.convert.to_torch(net, a, b)(a, b), net(a.numpy(), b.numpy())
    for y, w in zip(found, wanted, strict=True):
        np.testing.assert_allclose(y.numpy(), w.numpy(), rtol=1e-4, atol=1e-5)
