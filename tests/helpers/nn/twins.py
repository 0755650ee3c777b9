"""A network compared with the same one in PyTorch: keys, outputs, gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import lamina as lm
from lamina import nn
from lamina._tree import leaves

#: For outputs and gradients, relative to the largest value. A gradient that is exactly 0 mathematically (of a bias
#: before a norm) is compared with a hundredth of the largest gradient of all.
OUTPUT, GRADIENT = 1e-4, 1e-3


def shapes(state: Any) -> dict[str, tuple[int, ...]]:
    """The shapes of a state_dict by key."""
    return {key: tuple(value.shape) for key, value in state.items()}


def same_weights(theirs: Any, ours: nn.Module, seed: int = 0) -> None:
    """Check keys, shapes and dtypes, and give both networks the same random values.

    Parameters keep the size of their initial values; running means and variances are no longer 0 and 1.
    """
    import torch

    state = theirs.state_dict()
    assert shapes(state) == shapes(ours.state_dict())
    kinds = {key: str(value.dtype).removeprefix("torch.") for key, value in state.items()}
    assert kinds == {key: value.dtype.name for key, value in ours.state_dict().items()}
    rng = np.random.default_rng(seed)
    with torch.no_grad():
        for key, value in state.items():
            if value.is_floating_point():
                noise = torch.tensor(rng.standard_normal(value.shape), dtype=value.dtype)
                size = value.square().mean().sqrt()
                moved = value.mean() + 0.1 * noise.clamp(-2, 2) if value.ndim < 2 else noise * size
                value.copy_(moved.abs() if key.endswith("var") else moved)
    ours.load_state_dict(state)


def check(
    theirs: Any,
    ours: nn.Module,
    inputs: tuple[Any, ...],
    outputs: Callable[[Any], Any] = lambda found: found,
    *,
    of: Any = None,
    weights: Any = 1.0,
) -> None:
    """The outputs agree, and the gradients of a random mean of them. Modes are unchanged.

    theirs: PyTorch's network, or a function that runs the network `of`. outputs: selects tensors from a network's
    result, the same for both. weights: factors of the outputs, 0 for irrelevant ones.
    """
    import torch

    expected = leaves(outputs(theirs(*(torch.tensor(x) for x in inputs))))
    rng = np.random.default_rng(5)
    factors = [rng.uniform(0.5, 1.5, tuple(y.shape)).astype(np.float32) * weights for y in expected]

    def mean(net: nn.Module) -> Any:
        found = leaves(outputs(net(*inputs)))
        return sum((y * f).mean() for y, f in zip(found, factors, strict=True)), found

    (_, found), grads = lm.value_and_grad(mean, has_aux=True)(ours)
    for mine, other in zip(found, expected, strict=True):
        close(mine.numpy() * weights, other.detach().numpy() * weights, OUTPUT, "output")
    sum((y * torch.tensor(f)).mean() for y, f in zip(expected, factors, strict=True)).backward()
    named_parameters = (theirs if of is None else of).named_parameters()
    wanted = {n: p.grad.numpy() for n, p in named_parameters if p.grad is not None}
    most = max(np.abs(g).max() for g in wanted.values())
    assert set(wanted) <= set(grads)
    for name, grad in grads.items():
        close(grad.numpy(), wanted.get(name, np.zeros(grad.shape)), GRADIENT, name, most / 100)


def close(found: Any, expected: Any, tolerance: float, what: str, least: float = 0.0) -> None:
    """Within `tolerance` of the largest expected value, or of `least`."""
    size = max(np.abs(expected).max(initial=0), least)
    error = np.abs(found - expected).max(initial=0)
    assert found.shape == expected.shape
    assert error <= tolerance * size, f"{what}: {error:.3g} beside {size:.3g}"


def learns(
    net: nn.Module,
    loss: Callable[[Any, Any], Any],
    inputs: Any,
    targets: Any,
    steps: int = 8,
    lr: float = 3e-3,
) -> list[float]:
    """The losses of some steps on one batch by Adam; the last ones must be lower than the first."""
    step = lm.train_step(net, loss, lm.optim.Adam(lr=lr), device="cpu")
    losses = [step(inputs, targets).item() for _ in range(steps)]
    assert np.isfinite(losses).all(), losses
    assert max(losses[-2:]) < 0.9 * losses[0], losses
    return losses
