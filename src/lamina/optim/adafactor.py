"""Adafactor: factored second moments, a column and a row per matrix."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from lamina import ops
from lamina.optim.optimizer import Optimizer, check_at_least_zero
from lamina.optim.schedule import Schedule
from lamina.tensors import Tensor, tensor, zeros


class Adafactor(Optimizer):
    """Adam without momentum, whose second moments are stored as a row and a column per matrix (Shazeer & Stern 2018).

    As torch.optim.Adafactor:

        b = t^beta2_decay,    a = max(eps[1], rms(w)) · min(lr, 1 / √t)
        r ← r + b · (mean over columns of g² - r),    c ← c + b · (mean over rows of g² - c)
        v = r c / max(mean of r, eps[0]),    u = g / √max(v, eps[0]²)
        w ← (1 - lr · weight_decay) · w - a · u / max(1, rms(u) / d)

    Vectors and scalars keep all of v. State is float32 (or the parameter's dtype), in parts that are empty where a
    parameter has none of the kind. lr: a rate or a schedule. eps[0]: None for the machine epsilon of the parameter's
    dtype. maximize: ascends. Raises ValueError for an argument out of range.
    """

    parts = ("row_var", "col_var", "variance", "step")

    def __init__(
        self,
        lr: float | Schedule = 1e-2,
        beta2_decay: float = -0.8,
        eps: tuple[float | None, float] = (None, 1e-3),
        d: float = 1.0,
        weight_decay: float = 0.0,
        *,
        maximize: bool = False,
    ) -> None:
        super().__init__(lr)
        if beta2_decay > 0:
            raise ValueError(f"Adafactor: beta2_decay must be at most 0, got {beta2_decay}")
        if len(eps) != 2 or not (eps[0] is None or eps[0] >= 0) or not eps[1] >= 0:
            raise ValueError(f"Adafactor: eps must be (None or at least 0, at least 0), got {eps}")
        if not d >= 1:
            raise ValueError(f"Adafactor: d must be at least 1, got {d}")
        check_at_least_zero(self, weight_decay=weight_decay)
        self.beta2_decay, self.eps, self.d = beta2_decay, eps, d
        self.weight_decay, self.maximize = weight_decay, maximize

    def init(self, param: Tensor) -> tuple[Tensor, ...]:
        """Zeros: (…, rows, 1) and (…, 1, columns), or the parameter's shape; the step count, int64."""
        shape, none = param.shape, (0,)
        row, column = ((*shape[:-1], 1), (*shape[:-2], 1, shape[-1])) if len(shape) > 1 else (none, none)
        whole = none if len(shape) > 1 else shape
        made = [zeros(s, dtype=param.dtype, device=param.device) for s in (row, column, whole)]
        return (*made, tensor(np.zeros((), np.int64), device=param.device))

    def update(self, param: Any, grad: Any, state: tuple[Any, ...], rate: Any) -> tuple[Any, tuple[Any, ...]]:
        """One step: the new parameter and the new moments."""
        kind = param.dtype
        g = ops.cast(grad, kind)
        g = -g if self.maximize else g
        step = state[3] + 1
        t, rate = ops.cast(step, kind), ops.cast(rate, kind)
        fresh = t**self.beta2_decay
        size = ops.maximum(_rms(param), self.eps[1]) * ops.minimum(rate, 1 / ops.sqrt(t))
        least = float(np.finfo(kind.numpy).eps) if self.eps[0] is None else self.eps[0]
        variance, moments = self._variance(g, state[:3], fresh, least)
        direction = g / ops.sqrt(ops.maximum(variance, least * least))
        size = size / ops.maximum(_rms(direction) / self.d, 1.0)
        kept = param * (1 - rate * self.weight_decay) if self.weight_decay else param
        return kept - size * direction, (*moments, step)

    def _variance(
        self, g: Any, moments: tuple[Any, ...], fresh: Any, least: float
    ) -> tuple[Any, tuple[Any, ...]]:
        """The estimate of the mean of g², and the moments that it is computed from."""
        row, column, whole = moments
        squares = g * g
        if g.ndim < 2:
            whole = whole + fresh * (squares - whole)
            return whole, (row, column, whole)
        row = row + fresh * (ops.mean(squares, -1, keepdim=True) - row)
        column = column + fresh * (ops.mean(squares, -2, keepdim=True) - column)
        total = ops.maximum(ops.mean(row, -2, keepdim=True), least)
        return row * column / total, (row, column, whole)

    def __repr__(self) -> str:
        return f"Adafactor(lr={self.lr}, beta2_decay={self.beta2_decay}, weight_decay={self.weight_decay})"


def _rms(x: Any) -> Any:
    """The root mean square; 0 for an empty tensor."""
    return ops.sqrt(ops.sum(x * x) / max(math.prod(x.shape), 1))
