"""Transforms of transforms: which are applied, how often, in which order; errors."""

import pickle
from typing import Any

import numpy as np
import pytest

from lamina.data import transforms as t
from tests.helpers.pictures import IMAGE, rng


def test_compose_takes_functions() -> None:
    found = t.Compose([t.Resize(5), lambda image, rng: image + 1])
    np.testing.assert_array_equal(found(IMAGE, rng()), t.Resize(5)(IMAGE, rng()) + 1)
    assert repr(found).startswith("Compose([Resize(size=5, interpolation='bilinear'")
    with pytest.raises(TypeError, match="transforms must be functions"):
        t.Compose([t.ToTensor])


def add(number: int) -> Any:
    return t.Lambda(lambda image: image + np.uint8(number))


def test_all_or_none_are_applied() -> None:
    both = t.RandomApply([add(1), add(2)], p=0.3)
    found = [int(both(np.zeros((1, 1, 1), np.uint8), rng(seed))[0, 0, 0]) for seed in range(400)]
    assert set(found) == {0, 3}
    assert 90 < found.count(3) < 150
    one = t.RandomApply(add(5), 1)
    np.testing.assert_array_equal(one(IMAGE, rng()), IMAGE + np.uint8(5))


def test_one_is_chosen_by_its_weight() -> None:
    for weights, shares in ((None, (0.5, 0.5)), ([1, 3], (0.25, 0.75)), ([0, 2], (0, 1))):
        one = t.RandomChoice([add(1), add(2)], weights)
        found = [int(one(np.zeros((1, 1, 1), np.uint8), rng(seed))[0, 0, 0]) for seed in range(400)]
        assert set(found) <= {1, 2}
        assert abs(found.count(1) / 400 - shares[0]) < 0.07 * (shares[0] > 0) + 1e-9


def test_orders_are_drawn() -> None:
    """Doubling and adding do not commute."""
    both = t.RandomOrder([add(3), t.Lambda(lambda image: image * np.uint8(2)), add(10)])
    found = {int(both(np.ones((1, 1, 1), np.uint8), rng(seed))[0, 0, 0]) for seed in range(60)}
    assert found == {28, 15, 18, 25}


def test_a_function_of_the_image_alone() -> None:
    np.testing.assert_array_equal(t.Lambda(np.flipud)(IMAGE, rng()), IMAGE[::-1])
    sent = pickle.loads(pickle.dumps(t.Lambda(np.flipud)))
    np.testing.assert_array_equal(sent(IMAGE, rng()), IMAGE[::-1])


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: t.RandomApply([t.ToTensor]), TypeError, "RandomApply: transforms must be functions"),
        (lambda: t.RandomApply([], 2), ValueError, "RandomApply: p must be from 0 to 1, got 2"),
        (lambda: t.RandomChoice([]), ValueError, "RandomChoice: transforms must be at least one function"),
        (lambda: t.RandomOrder([]), ValueError, "RandomOrder: transforms must be at least one function"),
        (lambda: t.RandomOrder([3]), TypeError, r"RandomOrder: transforms must be functions .*, got 3"),
        (lambda: t.RandomChoice([add(1)], [1, 2]), ValueError, "2 weights in p for 1 transforms"),
        (lambda: t.RandomChoice([add(1)], [0]), ValueError, "p must be weights of at least 0, and not all 0"),
        (lambda: t.RandomChoice([add(1), add(2)], [2, -1]), ValueError, "p must be weights of at least 0"),
        (lambda: t.RandomChoice([add(1)], [float("nan")]), ValueError, "p must be weights of at least 0"),
        (lambda: t.Lambda(3), TypeError, "lambd must be a function"),  # type: ignore[arg-type]
        (lambda: t.RandomApply(transform=t.ToTensor()), TypeError, "did you mean 'transforms'"),  # type: ignore[call-arg]
    ],
)
def test_bad_arguments_are_named(make: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        make()
