"""What an operand must not hold for a guarded kernel."""

import numpy as np
import pytest

from lamina.replay.guards import above_minus_infinity, below_infinity, finite, no_nan
from lamina.spec import DType, bfloat16, float16, float32

#: What is among the elements -> which of the four allow it.
ALLOWED = {
    (1.0, -2.0): (True, True, True, True),
    (1.0, np.nan): (False, False, False, False),
    (1.0, -np.nan): (False, False, False, False),
    (1.0, np.inf): (True, False, False, True),
    (1.0, -np.inf): (False, True, False, True),
    (np.nan, np.inf, -np.inf): (False, False, False, False),
}


@pytest.mark.parametrize("dtype", [float32, float16, bfloat16], ids=str)
@pytest.mark.parametrize("values", ALLOWED, ids=str)
def test_what_is_allowed(values: tuple[float, ...], dtype: DType) -> None:
    x = np.zeros(70, dtype.numpy)
    x[3 : 3 + len(values)] = np.array(values).astype(dtype.numpy)
    if any(np.signbit(v) and np.isnan(v) for v in values):
        x[4] = np.copysign(x[4], dtype.numpy.type(-1))
    assert tuple(f(x) for f in (above_minus_infinity, below_infinity, finite, no_nan)) == ALLOWED[values]
