"""What a record depends on of the numbers of its call."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.graph import Graph, Value
from lamina.graph.ir.call_numbers import CallNumbers, SameNumbers, inputs_of, warn_of_many, warn_of_values


def of(values: dict[Value, Any], closure: dict[Value, Any]) -> CallNumbers:
    numbers = CallNumbers(lambda: closure)
    numbers.given = values
    return numbers


def test_numbers_of_arguments_and_closure_and_of_nothing_else() -> None:
    x, held, other = (Value(lm.Spec((3,), lm.float32), name=n) for n in ("x", "held", "other"))
    tensor = lm.tensor([1.0, -1.0, 2.0])
    numbers = of({x: np.array([3, 0, 0], np.float32)}, {held: tensor})
    total = ops.sum(x * held)
    assert inputs_of(total, total + 1) == [x, held]
    found = numbers.of(total)
    assert found is not None
    assert found.item() == 3
    assert numbers.of(ops.sum(x + other)) is None
    assert of({}, {held: tensor}).of(ops.sum(held)) is None  # recorded for no call

    def computed(graph: Graph) -> Any:
        def run(*arrays: Any) -> Sequence[Any]:
            return graph(*map(lm.tensor, arrays))

        return run

    same = SameNumbers(numbers, [other, x], computed)
    assert same
    nothing = np.zeros(3, np.float32)
    assert same([nothing, np.array([1, 0, 1], np.float32)])
    assert not same([nothing, np.array([1, 0, 0], np.float32)])
    tensor.copy_(np.array([3, 0, 0], np.float32))
    assert same([nothing, np.array([1, 0, 0], np.float32)])


def test_numbers_of_one_dtype_are_one_result() -> None:
    x = Value(lm.Spec((3,), lm.float32), name="x")
    numbers = of({x: np.array([3, 0, 5], np.float32)}, {})
    for asked in (ops.sum(x), x * 2, ops.sum(ops.ne(x, 0))):
        assert numbers.of(asked) is not None
    results: list[int] = []

    def computed(graph: Graph) -> Any:
        def run(*arrays: Any) -> Sequence[Any]:
            found = graph(*map(lm.tensor, arrays))
            results.append(len(found))
            return found

        return run

    same = SameNumbers(numbers, [x], computed)
    assert same([np.array([3, 0, 5], np.float32)])
    assert not same([np.array([3, 0, 6], np.float32)])
    assert not same([np.array([0, 3, 5], np.float32)])
    assert results == [2, 2, 2]


def test_without_numbers_every_call_is_the_same() -> None:
    same = SameNumbers(of({}, {}), [], lambda graph: pytest.fail("nothing is compiled"))
    assert not same
    assert same([])


def test_a_warning_of_many_programs() -> None:
    with pytest.warns(UserWarning, match=r"f: 16 programs .* one for each number"):
        warn_of_many(16, "f")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_many(15, "f")
        warn_of_many(17, "f")


def test_a_warning_of_many_values() -> None:
    with pytest.warns(UserWarning, match=r"f: 16 programs .* one for each value of rate, scale: "):
        warn_of_values(16, "f", ["rate", "scale"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_values(16, "f", [])
        warn_of_values(15, "f", ["rate"])
