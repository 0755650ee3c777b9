"""What functions read beside their arguments: found in their code, compared by value or by identity."""

import functools
import math
import random
from random import uniform
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.graph.ir.surroundings import (
    SameSurroundings,
    changed_variables,
    comparable,
    is_advanced,
    reads_of,
)

LIMIT = 1.0
#: Of no function: its name is that of an attribute alone.
shape = (1,)


def names_read(function: Any, *objects: Any) -> set[Any]:
    return {read.name or read.now() for read in reads_of(function, objects=objects)}


def limited(x: Any) -> Any:
    return x * LIMIT


class Weighted:
    """An object that is called, with a number of its class and one of its own."""

    base = 2.0

    def __init__(self) -> None:
        self.scale = 3.0
        self.unread = 4.0

    def __call__(self, x: Any) -> Any:
        return x * self.scale + self.offset()

    def offset(self) -> Any:
        return self.base * LIMIT


def test_variables_of_the_module_and_of_functions_around_are_read() -> None:
    rate = 7.0

    def inner(x: Any) -> Any:
        return limited(x) * rate + x.shape[0]

    assert names_read(inner) == {"LIMIT", "limited", 7.0}
    assert names_read(limited) == {"LIMIT"}  # and no `shape`, which is an attribute


def test_a_method_that_is_called_by_super_is_read() -> None:
    class Twice(Weighted):
        def __call__(self, x: Any) -> Any:
            return super().offset() * x

    assert "LIMIT" in names_read(Twice())


def test_objects_are_read_by_the_names_that_the_code_has() -> None:
    weighted = Weighted()
    assert names_read(weighted) == {"scale", "offset", "base", "LIMIT"}
    assert names_read(weighted.offset) == {"base", "LIMIT"}
    assert names_read(functools.partial(lambda w, x: w(x), weighted)) == {"scale", "offset", "base", "LIMIT"}
    assert names_read(lambda w: w.unread, weighted) >= {"unread"}  # which may be called as well
    config = SimpleNamespace(deep=SimpleNamespace(rate=1.0))
    assert names_read(lambda c: c.deep.rate, config) == {"deep", "rate"}


def test_functions_of_libraries_are_read_through_but_not_into() -> None:
    rate = 7.0
    assert names_read(ops.cross_entropy) == set()
    assert names_read(np.linalg.norm) == set()
    assert names_read(lm.grad(lambda x: ops.sum(x * rate))) == {7.0}
    assert names_read(lm.jit(lambda x: x * rate)) == {7.0}


def test_a_guard_tells_values_that_are_exchanged_and_containers_that_are_filled() -> None:
    rate, table, array = 1.0, [1, {"a": 2}], np.zeros(3)

    def function() -> Any:
        return rate, table, array

    guard = SameSurroundings(reads_of(function))
    assert guard
    assert guard()
    rate = 2.0
    assert not guard()
    rate = 1.0
    assert guard()
    table[1]["a"] = 3  # type: ignore[index]
    assert not guard()
    table[1] = {"a": 2}
    assert guard()
    array = np.zeros(3)  # another one, and equal
    assert guard()
    array[1] = 1.0
    assert not guard()
    array[1] = 0.0
    assert guard()
    array = np.zeros(3, np.float32)
    assert not guard()


def test_what_changed_is_named() -> None:
    scale, kind = 1.0, Weighted()
    guard = SameSurroundings(reads_of(lambda x: x * scale * LIMIT, objects=[kind]))
    assert changed_variables([guard, lambda: False]) == []
    scale = 2.0
    assert changed_variables([guard, lambda: False, guard]) == ["scale"]


def test_arguments_held_by_a_function_are_read() -> None:
    array, rates = np.ones(2), [1.0]

    def function(x: Any, rate: Any = rates, *, shift: float = 0.0) -> Any:
        return x * rate[0] + shift

    held = functools.partial(function, array)
    changes: list[Any] = [
        lambda: array.fill(2.0), lambda: rates.append(2.0),
        lambda: setattr(function, "__defaults__", ([3.0],)), lambda: function.__kwdefaults__.update(shift=1.0),
    ]  # fmt: skip
    for change in changes:
        guard = SameSurroundings(reads_of(held))
        assert guard()
        change()
        assert not guard()


def test_a_method_that_is_exchanged_in_its_class(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = SameSurroundings(reads_of(Weighted()))
    assert guard()
    monkeypatch.setattr(Weighted, "offset", lambda self: 0.0)
    assert not guard()


def test_arrays_in_containers_are_compared_by_their_contents() -> None:
    table: dict[str, Any] = {"masks": [np.array([True, np.nan])], "large": np.zeros(2**18)}

    def function() -> Any:
        return table

    guard = SameSurroundings(reads_of(function))
    table["large"][0] = 1.0  # 2 MiB: not looked at
    assert guard()
    table["masks"][0][0] = 2.0
    assert not guard()
    table["masks"][0] = np.array([True, np.nan])
    assert guard()


def test_what_changed_while_it_was_traced_is_dropped() -> None:
    count, kept = 0, 1.0

    def function() -> Any:
        nonlocal count
        count += 1
        return kept

    guard = SameSurroundings(reads_of(function))
    function()
    guard.settle()
    function()
    assert guard()
    kept = 2.0
    assert not guard()


def test_variables_may_be_missing() -> None:
    def function() -> Any:
        return late

    guard = SameSurroundings(reads_of(function))
    assert guard()
    late = 1
    assert not guard()
    assert function() == 1


class Pair(tuple[Any, ...]):
    """A tuple that does not tell its length."""

    def __len__(self) -> int:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (1, 1.0, False), (1, True, False), (0.0, -0.0, False), (math.nan, float("nan"), True),
        ((1, 2), [1, 2], False), ({"a": [1.0]}, {"a": [1.0]}, True), (np.float32(1), 1.0, True),
        (SimpleNamespace(a=1), SimpleNamespace(a=1), True), (SimpleNamespace(a=1), SimpleNamespace(a=2), False),
        (Pair([1, 2]), Pair([1, 2]), True), (Pair([1, 2]), Pair([1, 3]), False),
        ([object], [object], True), (object(), object(), False),
        (np.arange(3), np.arange(3), True), (np.arange(3), np.arange(3.0), False),
        (np.ones(2), np.ones((2, 1)), False), (np.array([object()]), np.array([object()]), False),
    ],
)  # fmt: skip
def test_what_is_compared_by_value_and_what_by_identity(one: Any, other: Any, same: bool) -> None:
    assert (comparable(one) == comparable(other)) is same
    assert comparable(one) == comparable(one)


def test_elements_of_what_does_not_tell_its_length_are_read() -> None:
    held = SimpleNamespace(pair=Pair([1, SimpleNamespace(rate=2)]))

    def function() -> Any:
        one, other = held.pair
        return one * other.rate

    guard = SameSurroundings(reads_of(function))
    assert guard()
    tuple.__getitem__(held.pair, 1).rate = 3
    assert not guard()


OWN = np.random.default_rng(0)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (lambda x: x * random.random(), "a Random of random"),
        (lambda x: x * np.random.rand(), "a RandomState of numpy"),
        (lambda x: x * float(OWN.random()), "a Generator of numpy"),
        (lambda x: x * uniform(0.0, 1.0), "a Random of random"),
    ],
)
def test_numbers_drawn_beside_the_library_are_warned_of(function: Any, name: str) -> None:
    """Once, when they become constants; the program stays."""
    call = lm.jit(function)
    with pytest.warns(UserWarning, match=f"a traced function drew from {name}: these numbers are constants"):
        first = call(lm.ones(2))
    random.random()
    np.random.rand()
    np.testing.assert_array_equal(call(lm.ones(2)).numpy(), first.numpy())
    assert len(call._programs) == 1


def test_generators_that_are_not_drawn_from_are_none_of_its_business() -> None:
    def function(x: Any) -> Any:
        return x * np.sin(2.0) if x.shape else x * random.random()

    found = lm.jit(function)(lm.ones(2))  # warnings are errors
    np.testing.assert_allclose(found.numpy(), np.sin(2.0), rtol=1e-6)


def test_a_network_that_leaves_layers_out_by_pythons_numbers() -> None:
    class Dropping(lm.nn.Module):
        def __init__(self) -> None:
            self.inner = lm.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return x if self._is_out() else self.inner(x)

        def _is_out(self) -> bool:
            return random.random() < 0.5

    step = lm.train_step(Dropping(), lambda y, t: (y * y).mean(), lm.optim.SGD(lr=0.1), device="cpu")
    random.seed(1)  # the first number is 0.13: left out, so that there is nothing to train
    with (
        pytest.warns(UserWarning, match="drew from a Random"),
        pytest.raises(ValueError, match="depends on none"),
    ):
        step(np.ones((3, 2), np.float32))


def test_what_is_computed_at_once_may_draw_as_it_likes() -> None:
    class Drawing(lm.nn.Module):
        def __init__(self) -> None:
            self.inner = lm.nn.Linear(2, 2)

        def forward(self, x: Any) -> Any:
            return self.inner(x) * random.random()

    net, x = Drawing(), lm.ones((3, 2))
    net(x)
    lm.grad(lambda net: ops.sum(net(x)))(net)
    lm.vmap(lambda row: net(row))(x)  # warnings are errors
    with pytest.warns(UserWarning, match="drew from a Random"):
        lm.jit(lambda x: lm.vmap(lambda row: net(row))(x))(x)


def test_objects_that_fail_when_they_are_looked_at_are_left_alone() -> None:
    class Hostile:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("equal")

        __hash__ = None  # type: ignore[assignment]

    hostile, around = Hostile(), [1.0]
    around.append(around)  # type: ignore[arg-type]
    call = lm.jit(lambda x: x * around[0] if hostile is not None else x)
    np.testing.assert_array_equal(call(lm.ones(2)).numpy(), [1, 1])
    around[0] = 2.0
    np.testing.assert_array_equal(call(lm.ones(2)).numpy(), [2, 2])


def test_an_entry_deep_in_a_container_that_becomes_an_equal_one() -> None:
    table = {"a": [(1, {"rate": 1.5})]}
    guard = SameSurroundings(reads_of(lambda: table))
    assert guard()
    table["a"] = [(1, {"rate": float("1.5")})]
    assert guard()
    table["a"][0][1]["rate"] = 2.5  # type: ignore[index]
    assert not guard()


def test_numbers_that_move_by_what_they_were() -> None:
    class Kept:
        def counts(self) -> None:
            self.calls += 1

        def warms(self) -> bool:
            self.steps += 1
            return self.steps > 2

        def decays(self) -> float:
            now = self.rate
            self.rate = now * 0.9
            return now

        def grows(self, size: int) -> None:
            if self.size < size:
                self.size = size

    found = {name: is_advanced(Kept, name) for name in ("calls", "steps", "rate", "size", "none")}
    assert found == {"calls": False, "steps": True, "rate": True, "size": False, "none": False}
