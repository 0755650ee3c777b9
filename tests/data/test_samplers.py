"""Samplers: which samples an epoch has, and in which order."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
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


def test_orders_and_batches_as_torch_has_them() -> None:
    assert epochs(data.DataLoader(SET, 4, sampler=data.SequentialSampler(SET)), 1) == [list(range(10))]
    loader = data.DataLoader(SET, 4, sampler=data.RandomSampler(SET), seed=3)
    first, second = epochs(loader)
    assert sorted(first) == sorted(second) == list(range(10))
    assert first != second
    assert epochs(data.DataLoader(SET, 4, sampler=data.RandomSampler(SET), seed=3)) == [first, second]
    more = data.RandomSampler(SET, num_samples=25)
    assert len(more) == 25
    assert sorted(list(more)[:10]) == list(range(10))
    assert len(list(data.RandomSampler(SET, replacement=True, num_samples=7))) == 7
    assert sorted(epochs(data.DataLoader(SET, 2, sampler=data.SubsetRandomSampler([7, 1, 4])), 1)[0]) == [
        1,
        4,
        7,
    ]


def test_a_generator_decides() -> None:
    def drawn(generator: Any) -> list[list[int]]:
        own = data.RandomSampler(SET, generator=generator)
        return [list(own), list(own)]

    first = drawn(lm.Generator(4))
    assert first == drawn(np.random.default_rng(4))
    assert first[0] != first[1]
    by_seed = epochs(data.DataLoader(SET, 3, shuffle=True, seed=9))
    assert epochs(data.DataLoader(SET, 3, shuffle=True, generator=lm.Generator().manual_seed(9))) == by_seed
    halves = data.random_split(SET, [5, 5], generator=lm.Generator(2))
    assert [h.indices for h in halves] == [h.indices for h in data.random_split(SET, [5, 5], seed=2)]
    with pytest.raises(ValueError, match="generator= and seed=1 both say"):
        data.DataLoader(SET, 2, generator=lm.Generator(), seed=1)


class Pairs(data.Sampler[list[int]]):
    """Batches of a user's own: neighbours, the later ones first."""

    def __len__(self) -> int:
        return 5

    def __iter__(self) -> Any:
        return iter([[i, i + 1] for i in range(8, -1, -2)])


@pytest.mark.parametrize("workers", [0, 2])
def test_batches_that_a_sampler_makes(workers: int) -> None:
    loader = data.DataLoader(SET, batch_sampler=Pairs(), num_workers=workers)
    assert len(loader) == 5
    assert [x.tolist() for x, _ in loader] == [[8, 9], [6, 7], [4, 5], [2, 3], [0, 1]]
    assert [x.tolist() for x, _ in loader.epoch(1, 3)] == [[2, 3], [0, 1]]
    cut = data.BatchSampler(data.RandomSampler(SET), 4, drop_last=True)
    loader = data.DataLoader(SET, batch_sampler=cut, seed=1, num_workers=workers)
    assert [len(x) for x, _ in loader] == [4, 4]
    assert len(loader) == len(cut) == 2
    again = data.DataLoader(SET, batch_sampler=cut, seed=1)
    assert [x.tolist() for x, _ in loader.epoch(5)] == [x.tolist() for x, _ in again.epoch(5)]
    assert [len(x) for x in data.BatchSampler(range(5), 2, drop_last=False)] == [2, 2, 1]


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: data.DataLoader(SET, 4, batch_sampler=Pairs()), ValueError, "leave out batch_size=4"),
        (
            lambda: data.DataLoader(SET, shuffle=True, batch_sampler=Pairs(), drop_last=True),
            ValueError,
            "leave out shuffle, drop_last",
        ),
        (
            lambda: list(data.DataLoader(SET, batch_sampler=[[0, 10]])),
            IndexError,
            "the batch_sampler gave 10",
        ),
        (
            lambda: list(data.DataLoader(SET, batch_sampler=[0, 1])),
            TypeError,
            "one index at a time is a sampler",
        ),
        (lambda: data.BatchSampler([1], 0, False), ValueError, "batch_size must be at least 1, got 0"),
        (lambda: data.RandomSampler(SET, num_samples=0), ValueError, "num_samples=0 must be at least 1"),
        (
            lambda: data.DataLoader(SET, batch_sampler=data.BatchSampler([1, 2], 2, False), world_size=2),
            ValueError,
            "give each rank one of its own",
        ),
    ],
)
def test_errors_of_batches(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        make()


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5, 8, 10])
@pytest.mark.parametrize("drop_last", [False, True])
def test_a_batch_sampler_knows_how_many_batches_it_gives(count: int, drop_last: bool) -> None:
    batches = data.BatchSampler(data.SequentialSampler(range(count)), 4, drop_last)
    found = list(batches)
    assert len(batches) == len(found)
    assert [i for batch in found for i in batch] == list(range(count // 4 * 4 if drop_last else count))


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("size", [2, 9, 10])
def test_ranks_have_parts_of_one_order(size: int, drop_last: bool, shuffle: bool) -> None:
    ranks = [data.DistributedSampler(range(size), 3, r, shuffle, 5, drop_last) for r in range(3)]
    count = size // 3 if drop_last else -(-size // 3)
    assert [len(s) for s in ranks] == [count] * 3
    found = [list(s) for s in ranks]
    whole = [i for three in zip(*found, strict=True) for i in three]
    assert len(whole) == ranks[0].total_size
    assert len(set(whole)) == min(size, len(whole))
    if not shuffle:
        assert whole == [i % size for i in range(3 * count)]
    for s in ranks:
        s.set_epoch(1)
    again = [list(s) for s in ranks]
    assert (again != found) == (shuffle and count > 0)


@pytest.mark.torch
def test_parts_of_ranks_are_those_of_torch() -> None:
    torch_data = pytest.importorskip("torch.utils.data")
    for size in (2, 9, 10):
        for drop_last in (False, True):
            for rank in range(4):
                given = (range(size), 4, rank, False, 0, drop_last)
                assert list(data.DistributedSampler(*given)) == list(torch_data.DistributedSampler(*given))


def test_a_loader_tells_the_epoch_of_a_distributed_sampler() -> None:
    loaders = [
        data.DataLoader(np.arange(8), 2, sampler=data.DistributedSampler(range(8), 2, rank))
        for rank in range(2)
    ]
    first, second = ([sorted(np.concatenate(list(each)).tolist()) for each in loaders] for _ in range(2))
    assert sorted(first[0] + first[1]) == sorted(second[0] + second[1]) == list(range(8))
    assert first != second
    alone = data.DistributedSampler(range(8))
    assert (alone.num_replicas, alone.rank, len(alone)) == (1, 0, 8)
    with pytest.raises(
        ValueError, match="rank must be from 0 to num_replicas - 1, got rank=2 and num_replicas=2"
    ):
        data.DistributedSampler(range(8), 2, 2)


class Endless:
    """More samples than there is memory for their indices."""

    def __len__(self) -> int:
        return 1 << 50

    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize("workers", [0, 2])
def test_the_indices_of_an_epoch_in_order_take_no_memory(workers: int) -> None:
    samples = Endless()
    in_order = data.SequentialSampler(samples)
    for loader in (
        data.DataLoader(samples, 4, num_workers=workers),
        data.DataLoader(samples, 4, num_workers=workers, sampler=in_order),
        data.DataLoader(samples, num_workers=workers, batch_sampler=data.BatchSampler(in_order, 4, False)),
    ):
        assert next(loader.epoch(0, 3)).tolist() == [12, 13, 14, 15]
    with pytest.raises(IndexError, match="the sampler gave 3, the data set has 3 samples"):
        list(data.DataLoader([0, 1, 2], sampler=data.SequentialSampler(range(4))))


@pytest.mark.parametrize("indices", [5, 10**30, [10**30], ["a"], [1.5], None, iter([1])])
def test_a_subset_is_a_sequence_of_integers(indices: Any) -> None:
    with pytest.raises(
        TypeError, match="SubsetRandomSampler: indices must be a sequence of integers of 64 bits, got"
    ):
        data.SubsetRandomSampler(indices)
    assert list(data.SubsetRandomSampler([])) == []
