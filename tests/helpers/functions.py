"""Run a function of `lamina.ops` on NumPy arrays by the reference."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina import tensor
from lamina.ops.core import Array
from tests.helpers.eager import Eager, gradients


def run(function: Any, *args: Any, **options: Any) -> Any:
    """The function's result as arrays; float arrays keep their dtype."""
    return _plain(function(*map(_wrap, args), **{k: _wrap(v) for k, v in options.items()}))


def grad(function: Any, *args: Any, **options: Any) -> list[Array]:
    """The gradient of the sum of the function's result in each array argument."""
    wrapped = [_wrap(a) for a in args]
    y = function(*wrapped, **options)
    y = y[0] if isinstance(y, tuple) else y
    wrt = [a for a in wrapped if isinstance(a, Eager)]
    found = gradients([y], [Eager(np.ones(y.shape, y.dtype.numpy))], wrt)
    return [np.zeros(x.shape) if g is None else g.value for x, g in zip(wrt, found, strict=True)]


def _wrap(x: Any) -> Any:
    if isinstance(x, list):
        return [_wrap(v) for v in x]
    return Eager(x) if isinstance(x, np.ndarray) else x


def _plain(y: Any) -> Any:
    if isinstance(y, tuple):
        return tuple(_plain(v) for v in y)
    return y.value if isinstance(y, Eager) else y


def numerical(function: Any, arrays: Sequence[Array], step: float = 1e-6) -> list[Array]:
    """The gradient of a number in float64 arrays, by central differences; function takes tensors."""
    found = []
    for place, array in enumerate(arrays):
        slopes = np.zeros_like(array)
        for index in np.ndindex(array.shape):
            sides = []
            for move in (step, -step):
                changed = [a.copy() for a in arrays]
                changed[place][index] += move
                sides.append(float(function(*map(tensor, changed)).numpy()))
            slopes[index] = (sides[0] - sides[1]) / (2 * step)
        found.append(slopes)
    return found
