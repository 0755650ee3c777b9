"""Parametrizations of weights: weight norm and spectral norm. Names and arguments as in torch."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from lamina import ops
from lamina.nn.init import normal_
from lamina.nn.module import Module
from lamina.nn.utils.parametrize import register_parametrization
from lamina.ops.arguments import checked
from lamina.spec import ShapeError, normalize_axis
from lamina.tensors import Tensor, zeros


@checked
def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Length and direction of a weight as parameters of their own (Salimans & Kingma 2016): g · v / |v|.

    dim: the axis whose indices have lengths of their own; None: one for the whole weight. The originals are
    `original0`, g, and `original1`, v; files with torch's older names, weight_g and weight_v, load. Raises ValueError
    for what is no parameter.
    """
    register_parametrization(module, name, _WeightNorm(dim))
    module.register_load_state_dict_pre_hook(partial(_todays_names, name))
    return module


def _todays_names(name: str, module: Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Entries of torch.nn.utils.weight_norm under the names of the parametrization."""
    for i, part in enumerate("gv"):
        if (old := f"{prefix}{name}_{part}") in state:
            state[f"{prefix}parametrizations.{name}.original{i}"] = state.pop(old)


class _WeightNorm(Module):
    def __init__(self, dim: int | None) -> None:
        self.dim = dim

    def forward(self, length: Any, direction: Any) -> Any:
        """g · v / |v|."""
        return length * (direction / self._norm(direction))

    def right_inverse(self, weight: Tensor) -> tuple[Any, Any]:
        """(|v|, v)."""
        return self._norm(weight), 1.0 * weight

    def _norm(self, x: Any) -> Any:
        if self.dim is None:
            return ops.sqrt(ops.sum(x * x))
        axes = [i for i in range(x.ndim) if i != self.dim % x.ndim]
        return ops.sqrt(ops.sum(x * x, axes, keepdim=True)) if axes else ops.abs(x)


@checked
def spectral_norm(
    module: Module,
    name: str = "weight",
    n_power_iterations: int = 1,
    eps: float = 1e-12,
    dim: int | None = None,
) -> Module:
    """A weight by its largest singular value, found by power iteration (Miyato et al. 2018).

    n_power_iterations: for each time that the weight is read in training mode; the vectors are buffers. eps: the
    smallest norm to divide by. dim: the axis of the matrix' rows; 0, and 1 for transposed convolutions. Raises
    ValueError for fewer than one iteration or what is no parameter, ShapeError for a scalar or a missing axis.
    """
    if not 1 <= n_power_iterations <= 1000:
        raise ValueError(
            f"spectral_norm: n_power_iterations must be from 1 to 1000, got {n_power_iterations}"
        )
    weight = module._parameters.get(name)
    if weight is None:
        raise ValueError(f"spectral_norm: {type(module).__name__} has no parameter {name!r}")
    if dim is None:
        dim = int(getattr(module, "transposed", False))
    return register_parametrization(module, name, _SpectralNorm(weight, n_power_iterations, eps, dim))


class _SpectralNorm(Module):
    _u: Any
    _v: Any

    def __init__(self, weight: Tensor, n_power_iterations: int, eps: float, dim: int) -> None:
        if not weight.ndim:
            raise ShapeError("spectral_norm: a scalar has no singular values")
        self.dim = normalize_axis(dim, weight.ndim, "spectral_norm")
        self.n_power_iterations, self.eps = n_power_iterations, eps
        if weight.ndim > 1:
            rows, count = weight.shape[self.dim], math.prod(weight.shape)
            for buffer, size in (("_u", rows), ("_v", count // max(rows, 1))):
                drawn: Any = normal_(zeros((size,), dtype=weight.dtype)).to(weight.device)
                self.register_buffer(buffer, self._unit(drawn))
            self._iterate(self._matrix(1.0 * weight), 15)

    def forward(self, weight: Any) -> Any:
        """weight / its largest singular value."""
        if weight.ndim == 1:
            return self._unit(weight)
        matrix = self._matrix(weight)
        if self.training:
            self._iterate(ops.stop_gradient(matrix), self.n_power_iterations)
        u, v = ops.stop_gradient(self._u), ops.stop_gradient(self._v)
        return weight / ops.sum(u * ops.matmul(matrix, v))

    def right_inverse(self, value: Tensor) -> Any:
        """The weight itself: it is divided when it is read."""
        return value

    def _iterate(self, matrix: Any, count: int) -> None:
        u, v = self._u, self._v
        for _ in range(count):
            u = self._unit(ops.matmul(matrix, v))
            v = self._unit(ops.matmul(ops.transpose(matrix, 0, 1), u))
        self._u, self._v = u, v

    def _matrix(self, weight: Any) -> Any:
        """(rows, all others)."""
        if self.dim:
            weight = ops.permute(weight, (self.dim, *(i for i in range(weight.ndim) if i != self.dim)))
        return ops.reshape(weight, (weight.shape[0], -1))

    def _unit(self, x: Any) -> Any:
        return x / ops.maximum(ops.sqrt(ops.sum(x * x)), self.eps)
