"""Dynamic loss scaling for float16 (Micikevicius et al. 2018): state as a value, inside the compiled step.

The loss is multiplied by `scale`. If all gradients are finite, they are divided by it again and the step counts as
good; after INTERVAL good steps in a row the scale doubles. Otherwise the scale halves and the step changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lamina import ops
from lamina.spec import float32
from lamina.tensors import Tensor, tensor

START = 65536.0
INTERVAL = 2000


def initial_scale() -> Tensor:
    """float32 (scale, number of good steps since the last change)."""
    return tensor(np.array([START, 0.0], np.float32))


def all_finite(gradients: Sequence[Any]) -> Any:
    """A bool scalar: whether no gradient contains an infinity or a NaN (whose product with zero is NaN)."""
    return ops.eq(total(g * 0.0 for g in gradients), 0.0)


def total(values: Any) -> Any:
    """The sum of all elements of all values, in float32."""
    parts = [ops.sum(ops.cast(v, float32)) for v in values]
    result = parts[0]
    for part in parts[1:]:
        result = result + part
    return result


def next_scale(state: Any, finite: Any) -> Any:
    """The state after a step."""
    scale, good = state[0], state[1] + 1.0
    grown = ops.ge(good, float(INTERVAL))
    after_good = ops.stack([ops.where(grown, scale * 2.0, scale), ops.where(grown, good * 0.0, good)])
    after_bad = ops.stack([scale * 0.5, good * 0.0])
    return ops.where(finite, after_good, after_bad)
