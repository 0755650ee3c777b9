"""Steps of an optimizer on tensors of odd shapes, by Lamina, by PyTorch and by a formula in float64."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import lamina as lm
from lamina import optim
from lamina.spec import Shape

Array = np.ndarray[Any, Any]
SHAPES: tuple[Shape, ...] = ((5, 3), (), (1,), (0, 4), (7, 1, 3), (1031,), (2, 3, 5, 2))
STEPS = 10
#: Rates that change from step to step, and are exact in float32.
RATES = [2.0 ** -(4 + i % 3) for i in range(STEPS)]


def start(shape: Shape) -> Array:
    """The parameter before the first step."""
    return np.random.default_rng(1).standard_normal(shape)


def gradients(shape: Shape) -> list[Array]:
    """The gradients of all steps; some are 0, and signs change."""
    rng = np.random.default_rng(2)
    drawn = [rng.standard_normal(shape) for _ in range(STEPS)]
    return [np.where(np.abs(g) < 0.1, 0.0, g) for g in drawn]


def rate_at(step: int) -> float:
    """The schedule of RATES."""
    return RATES[step]


def mine(optimizer: optim.Optimizer, shape: Shape, dtype: str = "float64") -> tuple[Array, dict[str, Array]]:
    """The parameter and the state after all steps."""
    p: Any = lm.tensor(start(shape), dtype)
    state = optimizer.init(p)
    for i, g in enumerate(gradients(shape)):
        p, state = optimizer.update(p, lm.tensor(g, dtype), state, np.float32(optimizer.rate(i)))
    return p.numpy(), {n: s.numpy() for n, s in zip(optimizer.parts, state, strict=True)}


def torchs(
    name: str, options: dict[str, Any], shape: Shape, rates: Sequence[float], dtype: str = "float64"
) -> tuple[Array, dict[str, Array]]:
    """The same by the torch.optim class of this name, whose scalars are float64 too."""
    import torch

    usual, kind = torch.get_default_dtype(), getattr(torch, dtype)
    torch.set_default_dtype(torch.float64)
    try:
        return _torch_steps(torch, kind, name, options, shape, rates)
    finally:
        torch.set_default_dtype(usual)


def _torch_steps(
    torch: Any, kind: Any, name: str, options: dict[str, Any], shape: Shape, rates: Sequence[float]
) -> tuple[Array, dict[str, Array]]:
    p = torch.nn.Parameter(torch.tensor(start(shape), dtype=kind))
    optimizer = getattr(torch.optim, name)([p], lr=rates[0], **options)
    for g, rate in zip(gradients(shape), rates, strict=True):
        optimizer.param_groups[0]["lr"] = rate
        p.grad = torch.tensor(g, dtype=kind)
        optimizer.step()
    state = {k: np.asarray(v) for k, v in optimizer.state[p].items() if v is not None}
    return p.detach().numpy(), state


def assert_as_torch(make: Callable[..., optim.Optimizer], options: dict[str, Any], shape: Shape) -> None:
    """Equal to torch in float64 to the last bits, with changing rates; the state too, by torch's names."""
    found, state = mine(make(rate_at, **options), shape)
    wanted, their_state = torchs(make.__name__, options, shape, RATES)
    np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-13)
    for name in their_state.keys() & state.keys():
        np.testing.assert_allclose(state[name], their_state[name], rtol=1e-6, atol=1e-13, err_msg=name)


def assert_as_formula(
    optimizer: optim.Optimizer,
    formula: Callable[[Array, Array, list[Array], int, float], Array],
    shape: Shape,
) -> None:
    """formula: (parameter, gradient, moments that it changes in place, step from 1 on, rate) -> parameter."""
    p, moments = start(shape), [np.zeros(shape), np.zeros(shape)]
    for t, g in enumerate(gradients(shape), 1):
        p = formula(p, g, moments, t, RATES[t - 1])
    found, _ = mine(optimizer, shape)
    np.testing.assert_allclose(found, p, rtol=1e-12, atol=1e-13)
    single, _ = mine(optimizer, shape, "float32")
    np.testing.assert_allclose(single, p, rtol=2e-5, atol=2e-6)
