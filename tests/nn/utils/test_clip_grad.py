"""Clipping by norm and by value: torch's arithmetic, in place of the dicts and lists that hold gradients."""

from math import inf
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn
from lamina.nn.utils import clip_grad_norm_, clip_grad_value_, clip_grads_with_norm_, get_total_norm

RNG = np.random.default_rng(0)
A, B = RNG.standard_normal((3, 4)).astype(np.float32), RNG.standard_normal(5).astype(np.float32)


def norm(p: float) -> float:
    every = np.abs(np.concatenate([A.ravel(), B])).astype(np.float64)
    return float(every.max() if p == inf else (every**p).sum() ** (1 / p))


@pytest.mark.parametrize("p", [1.0, 2.0, 3.5, inf])
@pytest.mark.parametrize("limit", [0.5, 100.0])
@pytest.mark.parametrize("compiled", [False, True])
def test_norms(p: float, limit: float, compiled: bool) -> None:
    def clip(a: Any, b: Any) -> Any:
        grads = ({"a": a}, [b])
        total = clip_grad_norm_(grads, limit, norm_type=p)
        return total, grads

    total, (first, second) = (lm.jit(clip) if compiled else clip)(lm.tensor(A), lm.tensor(B))
    assert total.item() == pytest.approx(norm(p), rel=1e-5)
    factor = min(1.0, limit / (norm(p) + 1e-6))
    np.testing.assert_allclose(first["a"].numpy(), A * factor, rtol=1e-5)
    np.testing.assert_allclose(second[0].numpy(), B * factor, rtol=1e-5)


@pytest.mark.torch
@pytest.mark.parametrize("p", [1.0, 2.0, inf])
def test_equals_torchs(p: float) -> None:
    torch = pytest.importorskip("torch")
    held = [torch.nn.Parameter(torch.zeros(x.shape)) for x in (A, B)]
    for parameter, g in zip(held, (A, B), strict=True):
        parameter.grad = torch.tensor(g)
    expected = torch.nn.utils.clip_grad_norm_(held, 0.7, norm_type=p)
    torch.nn.utils.clip_grad_value_(held, 0.05)
    grads: list[Any] = [A, B]
    assert clip_grad_norm_(grads, 0.7, norm_type=p).item() == pytest.approx(expected.item(), rel=1e-5)
    clip_grad_value_(grads, 0.05)
    for found, parameter in zip(grads, held, strict=True):
        np.testing.assert_allclose(found.numpy(), parameter.grad.numpy(), rtol=1e-5)


def test_values_and_what_derivatives_give() -> None:
    net = nn.Linear(4, 2)
    grads = lm.grad(lambda net: lm.ops.sum(net(A)) * 10.0)(net)
    before = {n: g.numpy().copy() for n, g in grads.items()}
    clip_grad_value_(grads, 0.25)
    for name, g in grads.items():
        np.testing.assert_array_equal(g.numpy(), np.clip(before[name], -0.25, 0.25))
    lm.optim.SGD(net, lr=0.1).step(grads)  # they still tell whose they are
    clip_grads_with_norm_(grads, 0.5, get_total_norm(grads) * 2.0)
    assert get_total_norm(grads).item() == pytest.approx(0.25, rel=1e-4)


def test_half_gradients_are_summed_in_float32() -> None:
    grads = [lm.tensor(np.full(4, 300.0, np.float16))]
    assert clip_grad_norm_(grads, 6.0).item() == pytest.approx(600.0)
    assert grads[0].dtype.name == "float16"
    np.testing.assert_allclose(grads[0].numpy(), 3.0, rtol=1e-3)


def test_what_cannot_be_clipped_is_named() -> None:
    with pytest.raises(
        TypeError, match=r"gradients are changed in a dict or list that holds them.*give \[grad\]"
    ):
        clip_grad_value_(lm.tensor(A), 1.0)
    with pytest.raises(TypeError, match="gradients are arrays in dicts, lists and tuples, got 'x'"):
        clip_grad_norm_(["x"], 1.0)
    with pytest.raises(ValueError, match="there are no gradients"):
        clip_grad_norm_([], 1.0)
    with pytest.raises(ValueError, match="clip_value must be at least 0, got -1"):
        clip_grad_value_([A], -1.0)
    with pytest.raises(ValueError, match="max_norm must be at least 0, got -1"):
        clip_grad_norm_([A], -1.0)
    with pytest.raises(ValueError, match="norm_type must be positive, got 0"):
        get_total_norm([A], 0)
    with pytest.raises(ValueError, match="the norm of the gradients is nan"):
        clip_grad_norm_([A * np.nan], 1.0, error_if_nonfinite=True)


@pytest.mark.parametrize(
    "clip", [clip_grad_norm_, clip_grad_value_, lambda g, n: clip_grads_with_norm_(g, n, 1.0)]
)
def test_parameters_are_no_gradients(clip: Any) -> None:
    """torch's functions take them; here their values would be clipped, and no gradient."""
    net = nn.Linear(2, 2)
    for given in (net.parameters(), list(net.parameters()), dict(net.named_parameters()), net.weight):
        with pytest.raises(
            TypeError, match=r"takes gradients, got parameters, .* lamina\.grad .* clip_norm="
        ):
            clip(given, 1.0)
