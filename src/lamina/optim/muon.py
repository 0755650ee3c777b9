"""Muon: orthogonalized momentum for matrices."""

from __future__ import annotations

import math
from typing import Any

from lamina import ops
from lamina.optim.optimizer import Optimizer, check_at_least_zero
from lamina.optim.schedule import Schedule
from lamina.spec import ShapeError
from lamina.tensors import Tensor, zeros

_ADJUSTMENTS = ("original", "match_rms_adamw")


class Muon(Optimizer):
    """w ← (1 - lr · weight_decay) · w - lr · factor · O, with O close to the orthogonal matrix nearest the momentum.

        m ← momentum · m + (1 - momentum) · g
        O = ns_steps times X ← a · X + (b · A + c · A²) X with A = X Xᵀ, from X = m / |m|   (Newton & Schulz)

    as torch.optim.Muon (Jordan et al. 2024), products in bfloat16, sums in float32. For matrices only: train biases,
    norms and embeddings with another optimizer. lr: a rate or a schedule. nesterov: O is that of g + momentum · (m -
    g). ns_coefficients: (a, b, c). eps: the smallest norm to divide by. adjust_lr_fn: the factor, None or "original"
    for √max(1, rows / columns), "match_rms_adamw" for 0.2 · √max(rows, columns), which allows AdamW's rates (Liu et
    al. 2025). Raises ValueError for an argument out of range, ShapeError for a parameter that is not a matrix.
    """

    parts = ("momentum_buffer",)

    def __init__(
        self,
        lr: float | Schedule = 1e-3,
        weight_decay: float = 0.1,
        momentum: float = 0.95,
        nesterov: bool = True,
        ns_coefficients: tuple[float, float, float] = (3.4445, -4.775, 2.0315),
        eps: float = 1e-7,
        ns_steps: int = 5,
        adjust_lr_fn: str | None = None,
    ) -> None:
        super().__init__(lr)
        check_at_least_zero(self, weight_decay=weight_decay, momentum=momentum, eps=eps)
        if not 1 <= ns_steps < 100:
            raise ValueError(f"Muon: ns_steps must be from 1 to 99, got {ns_steps}")
        if len(ns_coefficients) != 3:
            raise ValueError(f"Muon: ns_coefficients must be three numbers, got {ns_coefficients}")
        if adjust_lr_fn not in (None, *_ADJUSTMENTS):
            known = " or ".join(map(repr, _ADJUSTMENTS))
            raise ValueError(f"Muon: adjust_lr_fn must be {known}, got {adjust_lr_fn!r}")
        self.weight_decay, self.momentum, self.nesterov = weight_decay, momentum, nesterov
        self.ns_coefficients, self.eps, self.ns_steps = ns_coefficients, eps, ns_steps
        self.adjust_lr_fn = adjust_lr_fn

    def init(self, param: Tensor) -> tuple[Tensor, ...]:
        """The momentum: zeros like the parameter."""
        if param.ndim != 2:
            raise ShapeError(
                f"Muon: a parameter must be a matrix, got shape {param.shape}; give it another optimizer"
            )
        return (zeros(param.shape, dtype=param.dtype, device=param.device),)

    def update(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> tuple[Any, tuple[Any, ...]]:
        """One step: the new parameter and the new momentum."""
        g = ops.cast(grad, param.dtype)
        buffer = self.momentum * state[0] + (1 - self.momentum) * g
        direction = g + self.momentum * (buffer - g) if self.nesterov else buffer
        near = ops.cast(self._orthogonal(direction), param.dtype)
        size = ops.cast(rate, param.dtype)
        kept = param * (1 - size * self.weight_decay) if self.weight_decay else param
        return kept - size * self._factor(*param.shape) * near, (buffer,)

    def _orthogonal(self, matrix: Any) -> Any:
        """Approximately the nearest orthogonal matrix: singular values between about 0.5 and 1.5."""
        tall = matrix.shape[0] > matrix.shape[1]
        x = ops.cast(matrix, "float32")
        x = ops.transpose(x, 0, 1) if tall else x
        x = x / ops.maximum(ops.sqrt(ops.sum(ops.square(x))), self.eps)
        a, b, c = self.ns_coefficients
        for _ in range(self.ns_steps):
            half = ops.cast(x, "bfloat16")
            square = ops.matmul(half, ops.transpose(half, 0, 1))
            polynomial = b * ops.cast(square, "float32") + c * _product(square, square)
            x = a * x + _product(ops.cast(polynomial, "bfloat16"), half)
        return ops.transpose(x, 0, 1) if tall else x

    def _factor(self, rows: int, columns: int) -> float:
        if self.adjust_lr_fn == "match_rms_adamw":
            return 0.2 * math.sqrt(max(rows, columns))
        return math.sqrt(max(1.0, rows / columns)) if columns else 1.0

    def __repr__(self) -> str:
        return f"Muon(lr={self.lr}, weight_decay={self.weight_decay}, momentum={self.momentum})"


def _product(x: Any, y: Any) -> Any:
    """The matrix product of half-type operands, widened."""
    return ops.cast(ops.matmul(x, y), "float32")
