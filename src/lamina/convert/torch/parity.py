"""The deviation of a converted network from the original PyTorch network: outputs, gradients and state, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from lamina import ops
from lamina._tree import flatten
from lamina.convert.torch.converted import ConvertedModule
from lamina.convert.torch.exporting import Inputs, is_tensor
from lamina.convert.torch.memory import real_form
from lamina.convert.torch.objects import holds_tensors
from lamina.graph.transforms.derivatives import value_and_grad
from lamina.tensors import as_tensor

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Parity:
    """The largest differences, each relative to the largest element of PyTorch's result.

    outputs: by their number. gradients: of a weighted sum of the outputs, by the parameter's name, relative to the
    largest element of all gradients. state: buffers after the call, by name.
    """

    outputs: tuple[float, ...]
    gradients: Mapping[str, float] = field(default_factory=dict)
    state: Mapping[str, float] = field(default_factory=dict)

    @property
    def output(self) -> float:
        """The largest of all outputs."""
        return max(self.outputs, default=0.0)

    @property
    def gradient(self) -> float:
        """The largest of all gradients."""
        return max(self.gradients.values(), default=0.0)

    def __str__(self) -> str:
        worst = sorted(self.gradients.items(), key=lambda item: -item[1])[:5]
        lines = [f"outputs   {self.output:.1e}", f"gradients {self.gradient:.1e}"]
        lines += [f"          {error:.1e}  {name}" for name, error in worst]
        return "\n".join([*lines, f"state     {max(self.state.values(), default=0.0):.1e}"])


def check(
    module: torch.nn.Module, converted: ConvertedModule, *args: Any, gradients: bool = True, **kwargs: Any
) -> Parity:
    """Run both on the same inputs, each in its current mode, and compare. Neither is changed.

    The modes should be the same, and nothing should draw random numbers. Gradients are those of the sum of all
    floating point outputs, each weighted by numbers between 1 and 2; without `gradients` none are computed.
    """
    mine = converted
    own, own_named = _copied(args, kwargs)
    with _kept_buffers(module):
        wanted = [y for y in _leaves(module(*own, **own_named)) if isinstance(y, torch.Tensor)]
        weights = [_weights(tuple(real_form(y).shape), i) for i, y in enumerate(wanted)]
        slopes = _gradients(module, wanted, weights) if gradients else {}
        results = [_array(y) for y in wanted]
        buffers = {n: _array(b) for n, b in module.named_buffers(remove_duplicate=False)}
    before = {n: np.array(b.numpy()) for n, b in mine.named_buffers()}
    args, kwargs = _copied(args, kwargs)

    def weighted(net: Any) -> Any:
        found = [y for y in _leaves(net(*args, **kwargs)) if is_tensor(y)]
        terms = [
            ops.sum(y * as_tensor(w).cast(y.dtype))
            for y, w in zip(found, weights, strict=True)
            if y.dtype.is_float
        ]
        return sum(terms[1:], terms[0]), found

    made: Mapping[str, Any] = {}
    if slopes:
        (_, found), made = value_and_grad(weighted, has_aux=True)(mine)
    else:
        found = [y for y in _leaves(mine(*args, **kwargs)) if is_tensor(y)]
    outputs = tuple(_error(y.numpy(), w) for y, w in zip(found, results, strict=True))
    largest = max((_largest(g) for g in slopes.values()), default=0.0)
    state = {n: _error(b.numpy(), buffers[n]) for n, b in mine.named_buffers()}
    for n, b in mine.named_buffers():
        b.copy_(before[n])
    named = {n: _error(g.numpy(), slopes[n], largest) for n, g in made.items() if n in slopes}
    return Parity(outputs, named, state)


@contextmanager
def _kept_buffers(module: torch.nn.Module) -> Iterator[None]:
    """After the block the module's buffers are the original tensors, with the original values."""
    held = [(part._buffers, dict(part._buffers)) for part in module.modules()]
    numbers = [(b, b.detach().clone()) for _, own in held for b in own.values() if b is not None]
    try:
        yield
    finally:
        with torch.no_grad():
            for b, values in numbers:
                b.copy_(values)
        for table, own in held:
            table.update(own)


def _copied(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Copies of the inputs: the network may write to them."""
    inputs, tensors = Inputs.of(args, kwargs)
    return inputs.arguments(
        [
            x.detach().clone().requires_grad_(x.requires_grad) if isinstance(x, torch.Tensor) else x
            for x in tensors
        ]
    )


def _leaves(found: Any) -> list[Any]:
    return flatten(found, open_dataclasses=True, opens=holds_tensors)[0]


def _weights(shape: tuple[int, ...], seed: int) -> Array:
    return np.random.default_rng(seed).uniform(1, 2, shape).astype(np.float32)


def _gradients(module: torch.nn.Module, outputs: list[Any], weights: list[Array]) -> dict[str, Array]:
    pairs = zip(map(real_form, outputs), weights, strict=True)
    terms = [
        (y * torch.from_numpy(w).to(y)).sum() for y, w in pairs if y.is_floating_point() and y.requires_grad
    ]
    named = {n: p for n, p in module.named_parameters() if p.requires_grad}
    if not terms or not named:
        return {}
    found = torch.autograd.grad(sum(terms[1:], terms[0]), list(named.values()), allow_unused=True)
    return {
        n: np.zeros(tuple(p.shape)) if g is None else _array(g)
        for (n, p), g in zip(named.items(), found, strict=True)
    }


def _array(x: torch.Tensor) -> Array:
    """The values now, in float64: a copy, as the module's buffers get their former values back."""
    return np.array(real_form(x.detach()).cpu().to(torch.float64).numpy())


def _error(found: Array, wanted: Array, scale: float | None = None) -> float:
    if found.shape != wanted.shape:
        return float("inf")
    if not wanted.size:
        return 0.0
    finite = np.isfinite(wanted)
    if not (np.isfinite(found.astype(np.float64)) == finite).all():
        return float("inf")
    largest = _largest(wanted) if scale is None else scale
    difference = float(np.abs(found[finite].astype(np.float64) - wanted[finite]).max(initial=0))
    return difference / largest if largest else difference


def _largest(x: Array) -> float:
    """Over the finite numbers."""
    return float(np.abs(x[np.isfinite(x)]).max(initial=0))
