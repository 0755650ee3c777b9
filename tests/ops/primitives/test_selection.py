"""Selection by masks whose numbers are known now, or only in the call for which a graph is recorded."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.ops.primitives.selection import indices, positions

X = np.random.default_rng(0).standard_normal((3, 4, 2)).astype(np.float32)


def test_positions_and_indices() -> None:
    mask = X > 0
    wanted = np.nonzero(mask)
    np.testing.assert_array_equal(positions("f", mask, "mask"), np.flatnonzero(mask))
    np.testing.assert_array_equal(indices("f", mask, "mask"), wanted)
    np.testing.assert_array_equal(indices("f", lm.tensor(mask), "mask"), wanted)
    found = lm.jit(lambda m: (positions("f", m, "mask"), *indices("f", m, "mask")))(mask)
    for y, w in zip(found, (np.flatnonzero(mask), *wanted), strict=True):
        np.testing.assert_array_equal(y.numpy(), w)


@pytest.mark.parametrize("bound", [-9.0, 0.0, 9.0])
def test_masked_select(bound: float) -> None:
    def f(x: Any) -> Any:
        return ops.masked_select(x, x[:, :1] > bound)

    wanted = X[np.broadcast_to(X[:, :1] > bound, X.shape)]
    np.testing.assert_array_equal(f(lm.tensor(X)).numpy(), wanted)
    np.testing.assert_array_equal(lm.jit(f)(X).numpy(), wanted)


def test_a_graph_that_is_recorded_for_no_call_has_no_number() -> None:
    for function, name in ((lambda x: x[x > 0], "the mask"), (lambda x: ops.masked_select(x, x > 0), "mask")):
        with pytest.raises(TypeError, match=f"the shape of the result depends on the numbers in {name}"):
            lm.trace(function, lm.Spec((3,), lm.float32))
