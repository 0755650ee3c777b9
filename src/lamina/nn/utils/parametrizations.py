"""Weight parametrizations: weight norm, spectral norm, orthogonal matrices. Names and arguments as in torch."""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Literal

import numpy as np

from lamina import ops
from lamina.nn.init import normal_
from lamina.nn.module import Module
from lamina.nn.utils.parametrize import register_parametrization
from lamina.ops.arguments import checked
from lamina.spec import ShapeError, normalize_axis
from lamina.tensors import Tensor, tensor, zeros


@checked
def weight_norm(module: Module, name: str = "weight", dim: int | None = 0) -> Module:
    """Length and direction of a weight as separate parameters (Salimans & Kingma 2016): g · v / |v|.

    dim: the axis whose indices have separate lengths; None: one for the whole weight. The originals are `original0`,
    g, and `original1`, v; files with torch's older names, weight_g and weight_v, can be loaded. Raises ValueError
    unless name is a parameter.
    """
    register_parametrization(module, name, _WeightNorm(dim))
    module.register_load_state_dict_pre_hook(partial(_todays_names, name))
    return module


def _todays_names(name: str, module: Module, state: dict[str, Any], prefix: str, *rest: Any) -> None:
    """Entries of torch.nn.utils.weight_norm, renamed to those of the parametrization."""
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
    """A weight divided by its largest singular value, found by power iteration (Miyato et al. 2018).

    n_power_iterations: per read of the weight in training mode; the vectors are buffers. eps: the smallest norm to
    divide by. dim: the axis of the matrix' rows; 0, and 1 for transposed convolutions. Raises ValueError for fewer
    than one iteration or if name is not a parameter, ShapeError for a scalar or a missing axis.
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
        """The weight itself: it is divided on every read."""
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


OrthogonalMap = Literal["matrix_exp", "cayley", "householder"]


@checked
def orthogonal(
    module: Module,
    name: str = "weight",
    orthogonal_map: OrthogonalMap | None = None,
    *,
    use_trivialization: bool = True,
) -> Module:
    """A weight constrained to orthonormal columns, or rows if it is wider than high.

    The weight: a matrix (m, n) or a batch of them. orthogonal_map: the map from the parameter to an orthogonal
    matrix: the exponential or the Cayley map of a skew-symmetric matrix, or a product of Householder reflections;
    None: "matrix_exp" for square matrices, "householder" for others. use_trivialization: keep the initial matrix as
    the buffer `base`, which is multiplied with the map's (Lezcano-Casado 2019). Then, and with "householder", an
    already orthogonal weight is preserved, and the weight can be assigned; otherwise the weight is the parameter.
    torch.nn.utils.parametrizations.orthogonal. Raises ValueError unless name is a parameter, ShapeError for a weight
    with fewer than two axes.
    """
    weight = module._parameters.get(name)
    if weight is None:
        raise ValueError(f"orthogonal: {type(module).__name__} has no parameter {name!r}")
    if weight.ndim < 2:
        raise ShapeError(f"orthogonal: {name} must be a matrix or a batch of them, got {weight.spec}")
    if orthogonal_map is None:
        orthogonal_map = "matrix_exp" if weight.shape[-2] == weight.shape[-1] else "householder"
    has_inverse = use_trivialization or orthogonal_map == "householder"
    kind = _OrthogonalWithInverse if has_inverse else _Orthogonal
    return register_parametrization(module, name, kind(weight, orthogonal_map, use_trivialization))


class _Orthogonal(Module):
    base: Any

    def __init__(self, weight: Tensor, orthogonal_map: str, use_trivialization: bool) -> None:
        self.orthogonal_map, self.use_trivialization = orthogonal_map, use_trivialization
        if use_trivialization:
            self.register_buffer("base", _completed(_high(weight.numpy()), weight))

    def forward(self, weight: Any) -> Any:
        """The map of the parameter, (…, m, n)."""
        x = _high(weight)
        n, k = x.shape[-2:]
        if self.orthogonal_map == "householder":
            vectors = ops.tril(x, -1)
            tau = 2.0 / (1.0 + ops.sum(vectors * vectors, -2))
            # The diagonal, which has the signs of the columns, is not trained.
            signs = ops.trunc(ops.stop_gradient(ops.diagonal(x, 0, -2, -1)))
            q = ops.linalg.householder_product(vectors, tau) * ops.unsqueeze(signs, -2)
        else:
            q = self._of_skew(ops.pad(ops.tril(x), (0, n - k)))[..., :k]
        if self.use_trivialization:
            q = ops.matmul(self.base, q)
        return ops.transpose(q, -2, -1) if _is_wide(weight) else q

    def _of_skew(self, lower: Any) -> Any:
        """The map of the skew-symmetric matrix with this lower triangle, (…, n, n)."""
        skew = lower - ops.transpose(lower, -2, -1)
        if self.orthogonal_map == "matrix_exp":
            return ops.linalg.matrix_exp(skew)
        unit = np.eye(skew.shape[-1], dtype=skew.dtype.numpy)
        return ops.linalg.solve(unit - 0.5 * skew, unit + 0.5 * skew)


class _OrthogonalWithInverse(_Orthogonal):
    """A parametrization that can start from a weight: it has a base, or its map is the product of reflections."""

    def right_inverse(self, value: Tensor) -> Any:
        """The parameter that maps to the value; with a base, which becomes the value, the one that maps to 1."""
        if self.use_trivialization:
            self.base.copy_(_completed(_high(value.numpy()), value))
            rows, columns = value.shape[-2:]
            found = -np.broadcast_to(np.eye(rows, columns), value.shape)
            return tensor(found, value.dtype, value.device)
        raw, tau = np.linalg.qr(_high(value.numpy()), mode="raw")
        factors = np.swapaxes(raw, -2, -1).copy()
        along = np.arange(tau.shape[-1])
        factors[..., along, along] = np.where(tau == 0, -1, 1) * np.sign(factors[..., along, along])
        factors = np.swapaxes(factors, -2, -1) if _is_wide(value) else factors
        return tensor(factors, value.dtype, value.device)


def _is_wide(x: Any) -> bool:
    return bool(x.shape[-2] < x.shape[-1])


def _high(x: Any) -> Any:
    """Matrices, transposed where they are wider than high."""
    return x.swapaxes(-2, -1) if _is_wide(x) else x


def _completed(columns: np.ndarray[Any, Any], like: Tensor) -> Tensor:
    """An orthogonal matrix (…, n, n) that extends orthonormal columns (…, n, k)."""
    *lead, n, k = columns.shape
    rest = normal_(zeros((*lead, n, n - k))).numpy()
    q, r = np.linalg.qr(np.concatenate([columns, rest], -1).astype(np.float64))
    return tensor(q * np.sign(np.diagonal(r, 0, -2, -1))[..., None, :], like.dtype, like.device)
