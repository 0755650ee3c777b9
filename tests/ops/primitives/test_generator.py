"""Numbers come from whatever generators are registered, which go on with the next state."""

from typing import Any

import numpy as np
import pytest

from lamina import nn, ops
from lamina.nn.random import default_generator
from lamina.ops.primitives import generator
from lamina.ops.primitives.generator import Generators, drawn, register_generators

X = np.arange(40, dtype=np.float32).reshape(2, 4, 5)


def test_what_is_registered_is_read_and_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generator, "_generators", [])
    written: list[tuple[Any, Any]] = []
    register_generators(
        Generators(lambda of, beside: (of, beside), lambda of, after: written.append((of, after)))
    )
    assert drawn(lambda state: (state, "between", "after"), "mine", "here") == ("mine", "here")
    assert written == [("mine", "after")]


@pytest.mark.parametrize(
    "function",
    [ops.dropout, ops.dropout1d, ops.alpha_dropout, ops.feature_alpha_dropout],
    ids=lambda f: str(f.__name__),
)
def test_without_a_state_numbers_are_the_default_generators(function: Any) -> None:
    nn.manual_seed(3)
    state = default_generator.state.numpy().copy()
    wanted, _, after = function(X, 0.5, True, state=state)
    np.testing.assert_array_equal(function(X, 0.5, True).numpy(), wanted.numpy())
    np.testing.assert_array_equal(default_generator.state.numpy(), after.numpy())
    assert not np.array_equal(function(X, 0.5, True).numpy(), wanted.numpy())


def test_nothing_is_drawn_where_nothing_is_dropped() -> None:
    before = default_generator.state.numpy().copy()
    np.testing.assert_array_equal(ops.dropout(X, 0.5, False).numpy(), X)
    np.testing.assert_array_equal(ops.dropout(X, 0.0).numpy(), X)
    np.testing.assert_array_equal(default_generator.state.numpy(), before)
    with pytest.raises(ValueError, match=r"dropout: p must be in \[0, 1\], got 2"):
        ops.dropout(X, 2)
