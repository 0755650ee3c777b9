"""Samplers: which samples an epoch has, and in which order."""

from typing import Any

import numpy as np
import pytest

from lamina import data

SET = data.TensorDataset(np.arange(10), np.arange(10) * 2)


def epochs(loader: data.DataLoader, count: int = 2) -> list[list[int]]:
    return [np.concatenate([x for x, _ in loader]).tolist() for _ in range(count)]


def test_samples_come_as_often_as_their_weights_say() -> None:
    sampler = data.WeightedRandomSampler([0, 1, 0, 3, *[0] * 6], 400)
    loader = data.DataLoader(SET, 50, sampler=sampler, seed=1, num_workers=2)
    first, second = epochs(loader)
    assert set(first) == {1, 3}
    assert 2 < first.count(3) / first.count(1) < 4.5
    assert len(loader) == 8
    assert first != second
    assert epochs(data.DataLoader(SET, 50, sampler=sampler, seed=1)) == [first, second]
    assert epochs(data.DataLoader(SET, 50, sampler=sampler, seed=2))[0] != first
    assert set(sampler) == {1, 3}
    assert loader.describe()["samples"] == 400


def test_without_replacement_each_sample_comes_once() -> None:
    sampler = data.WeightedRandomSampler(np.arange(10.0), 9, replacement=False)
    (found,) = epochs(data.DataLoader(SET, 4, sampler=sampler), 1)
    assert sorted(found) == list(range(1, 10))


def test_indices_and_samplers_of_ones_own() -> None:
    class Turning:
        start = 0

        def set_epoch(self, number: int) -> None:
            self.start = number

        def __len__(self) -> int:
            return 3

        def __iter__(self) -> Any:
            return iter([self.start, self.start + 1, self.start + 5])

    assert epochs(data.DataLoader(SET, 2, sampler=[7, 7, 1], pin_memory=True)) == [[7, 7, 1]] * 2
    assert epochs(data.DataLoader(SET, 2, sampler=Turning())) == [[0, 1, 5], [1, 2, 6]]
    with pytest.raises(IndexError, match="the sampler gave 10, the data set has 10 samples"):
        list(data.DataLoader(SET, 2, sampler=[1, 10]))


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: data.WeightedRandomSampler([1, -1], 2), "weights must be numbers of at least 0"),
        (lambda: data.WeightedRandomSampler([0, 0], 2), "not all 0"),
        (lambda: data.WeightedRandomSampler([1, 0, 2], 3, replacement=False), "at most 2"),
        (lambda: data.WeightedRandomSampler([1], 0), "num_samples=0 must be at least 1"),
        (lambda: data.DataLoader(SET, 2, shuffle=True, sampler=[1]), "a sampler gives the order"),
    ],
)
def test_errors(make: Any, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        make()
