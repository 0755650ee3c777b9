"""Batches: order, epochs, positions; and prefetching in a thread."""

import itertools
import threading
import time
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lamina import data
from lamina.data import batches as batches_module

X = np.arange(10, dtype=np.float32)[:, None]
Y = np.arange(10)


def labels(batches: Any) -> list[list[int]]:
    return [y.tolist() for _, y in batches]


def test_in_order() -> None:
    batches = data.arrays(X, Y, batch_size=4, shuffle=False)
    assert len(batches) == 3
    assert labels(batches) == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    assert next(iter(batches))[0].dtype == np.float32
    assert len(data.arrays(X, Y, batch_size=4, drop_last=True)) == 2
    assert repr(batches) == "Batches(10 samples, 3 batches of 4, in order)"


def test_each_loop_is_another_epoch_and_every_sample_comes_once() -> None:
    batches = data.arrays(X, Y, batch_size=3, seed=1)
    first, second = labels(batches), labels(batches)
    assert first != second
    assert sorted(itertools.chain(*first)) == sorted(itertools.chain(*second)) == list(range(10))
    for (x, y), z in zip(data.arrays(X, Y, batch_size=3, seed=1), first, strict=True):
        assert y.tolist() == z  # the same seed gives the same order
        np.testing.assert_array_equal(x[:, 0], y)
    assert labels(data.arrays(X, Y, batch_size=3, seed=2)) != first


def test_any_epoch_can_be_read_from_any_position() -> None:
    batches = data.arrays(X, Y, batch_size=3, seed=1)
    loops = [labels(batches) for _ in range(3)]
    assert labels(batches.epoch(2)) == loops[2]
    assert labels(batches.epoch(1, start=2)) == loops[1][2:]
    assert labels(batches.epoch(1, start=4)) == []


def test_augmentation_depends_on_seed_epoch_and_position() -> None:
    def load(indices: Any, rng: np.random.Generator) -> Any:
        return (rng.random(len(indices)),)

    batches = data.Batches(load, 6, 2, seed=4)
    whole = [b[0].tolist() for b in batches.epoch(1)]
    assert [b[0].tolist() for b in batches.epoch(1, start=1)] == whole[1:]
    assert len({value for batch in whole for value in batch}) == 6


@pytest.mark.parametrize("drop_last", [False, True])
def test_no_samples_make_no_batches(drop_last: bool) -> None:
    batches = data.arrays(X[:0], Y[:0], batch_size=4, drop_last=drop_last)
    assert (len(batches), list(batches)) == (0, [])
    assert batches.describe()["samples"] == 0


def test_samples_without_labels() -> None:
    assert [len(parts) for parts in data.arrays(X, batch_size=5)] == [1, 1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: data.arrays(X, Y[:9]), "x has 10 samples, y has 9"),
        (lambda: data.arrays(X, Y, batch_size=0), "batch_size must be at least 1, got 0"),
        (lambda: data.arrays(X, Y, batch_size=11, drop_last=True), "10 samples make no batch of 11"),
        (
            lambda: data.arrays(X, Y, batch_size=9, world_size=4),
            "batch_size=9 is that of all ranks and must be a multiple of world_size=4, such as 8",
        ),
        (
            lambda: data.arrays(X, Y, rank=2, world_size=2),
            "rank must be from 0 to world_size - 1, got rank=2 and world_size=2",
        ),
        (lambda: data.arrays(X, Y, drop_last=True, pad_last=True), "take one of them"),
        (
            lambda: next(iter(data.arrays(X, pad_last=True))),
            r"must be a pair \(inputs, targets\), got a tuple",
        ),
        (lambda: data.prefetch([], 0), "depth must be at least 1, got 0"),
    ],
)
def test_bad_arguments_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


# ---- ranks


def draw(indices: Any, rng: np.random.Generator) -> Any:
    """A number of each sample's own generator."""
    return indices, np.array([own.random() for own in rng.spawn(len(indices))])


@pytest.mark.parametrize("world", [1, 2, 3, 4])
@pytest.mark.parametrize("shuffle", [True, False])
def test_ranks_together_are_one_rank(world: int, shuffle: bool) -> None:
    options: dict[str, Any] = {"shuffle": shuffle, "seed": 3}
    alone = data.Batches(draw, 40, 12, **options)
    ranks = [data.Batches(draw, 40, 12, rank=r, world_size=world, **options) for r in range(world)]
    for epoch, start in ((0, 0), (1, 2)):
        for batch, *parts in zip(*(list(b.epoch(epoch, start)) for b in (alone, *ranks)), strict=False):
            if len(batch[0]) == 12:
                np.testing.assert_array_equal(np.concatenate([x for x, _ in parts]), batch[0])
                np.testing.assert_array_equal(np.concatenate([r for _, r in parts]), batch[1])
        seen = np.concatenate([x for b in ranks for x, _ in b.epoch(epoch)])
        assert sorted(seen) == list(range(40))  # the last four, too, whoever has them
    assert {len(b) for b in ranks} == {4}
    assert ranks[-1].describe() == alone.describe()


def test_whether_ranks_share_the_last_batch_is_known() -> None:
    def uneven(count: int, world: int = 2, **options: Any) -> bool:
        made = data.arrays(np.zeros(count), batch_size=4, rank=0, world_size=world, **options)
        assert data.prefetch(made).uneven == made.uneven
        return made.uneven

    assert uneven(10)
    assert not uneven(12)
    assert not uneven(10, world=1)
    assert not uneven(10, drop_last=True)
    assert not uneven(10, pad_last=True)
    assert not data.prefetch([1, 2]).uneven


def test_ranks_draw_numbers_of_their_own() -> None:
    def load(indices: Any, rng: np.random.Generator) -> Any:
        return (rng.random(len(indices)),)

    drawn = [b[0].tolist() for r in range(4) for b in data.Batches(load, 24, 8, rank=r, world_size=4, seed=4)]
    assert len({value for batch in drawn for value in batch}) == 24


@pytest.mark.parametrize("world", [1, 2, 4])
def test_padding_weighs_nothing(world: int) -> None:
    x = np.random.default_rng(0).standard_normal((21, 3))
    for epoch in range(2):
        means = []
        for rank in range(world):
            part = data.arrays(x, np.arange(21), batch_size=8, pad_last=True, rank=rank, world_size=world)
            found = list(part.epoch(epoch))
            assert [len(a) for a, _ in found] == [8 // world] * 3
            assert {w.dtype for _, (_, w) in found} == {np.dtype(np.float32)}
            means.append([(w[:, None] * a).mean(0) for a, (_, w) in found])
        whole = list(data.arrays(x, np.arange(21), batch_size=8).epoch(epoch))
        for position, (a, _) in enumerate(whole):  # the mean over ranks is that of the samples that there are
            np.testing.assert_allclose(np.mean([m[position] for m in means], 0), a.mean(0), rtol=1e-6)
    assert "rank 3 of 4" in repr(data.arrays(x, batch_size=8, rank=3, world_size=4))


# ---- prefetch


def threads() -> int:
    return sum(t.name == "lamina prefetch" for t in threading.enumerate())


def test_prefetch_gives_the_same_batches() -> None:
    plain, ahead = (
        data.arrays(X, Y, batch_size=3, seed=1),
        data.prefetch(data.arrays(X, Y, batch_size=3, seed=1), 2),
    )
    assert len(ahead) == 4
    assert labels(ahead) == labels(plain)
    assert labels(ahead) == labels(plain)
    assert labels(ahead.epoch(5, 1)) == labels(plain.epoch(5, 1))
    assert labels(data.prefetch([(0, np.array([i])) for i in range(4)]).epoch(0, 2)) == [[2], [3]]
    assert labels(data.prefetch(plain, 1).epoch(5)) == labels(plain.epoch(5))
    assert threads() == 0


def test_prefetch_works_ahead_but_not_without_limit() -> None:
    made: list[int] = []

    def source() -> Iterator[int]:
        for i in range(100):
            made.append(i)
            yield i

    loop = iter(data.prefetch(source(), depth=3))
    assert next(loop) == 0
    deadline = time.monotonic() + 5
    while len(made) < 5 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(made) == 5  # one taken, three waiting, one in hand
    loop.close()  # type: ignore[attr-defined]
    assert threads() == 0


def test_prefetch_raises_where_the_batch_would_have_been() -> None:
    def source() -> Iterator[int]:
        yield 1
        raise OSError("the disk is gone")

    loop = iter(data.prefetch(source()))
    assert next(loop) == 1
    with pytest.raises(OSError, match="the disk is gone"):
        next(loop)
    assert threads() == 0


def test_a_loop_that_is_left_early_ends_the_thread() -> None:
    for _ in data.prefetch(data.arrays(X, Y, batch_size=1), 2).epoch(0):
        break
    deadline = time.monotonic() + 5
    while threads() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threads() == 0


def test_ranks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """parallel="data" is the rank of this process, for all kinds of batches."""
    world = types.SimpleNamespace(rank=1, size=3)
    monkeypatch.setattr(batches_module, "common_world", lambda: world)
    x = np.arange(12)
    found = data.arrays(x, batch_size=6, shuffle=False, parallel="data")
    assert (found.rank, found.world_size) == (1, 3)
    assert [b[0].tolist() for b in found] == [[2, 3], [8, 9]]
    loader = data.DataLoader(list(range(12)), 6, parallel="data")
    assert [np.asarray(b).tolist() for b in loader] == [[2, 3], [8, 9]]
    assert data.Buckets([np.zeros(2)] * 6, 3, parallel="data").rank == 1
    with pytest.raises(
        ValueError, match='parallel="data" finds rank and world_size; rank=2 and world_size=4 are given'
    ):
        data.arrays(x, batch_size=4, rank=2, world_size=4, parallel="data")


def test_a_generator_of_numpys_says_the_order_as_a_seed_does() -> None:
    x = np.arange(40)

    def order(**options: Any) -> list[int]:
        return np.concatenate(
            [np.asarray(b) for b in data.DataLoader(x, 4, shuffle=True, **options)]
        ).tolist()

    found = [order(generator=np.random.default_rng(s)) for s in (3, 3, 4)]
    assert found[0] == found[1] != found[2]
    assert sorted(found[0]) == x.tolist()
    seeds = [batches_module.seed_of("it", np.random.default_rng(s), None) for s in range(50)]
    assert len(set(seeds)) == 50
    assert 1 << 57 < max(seeds) < 1 << 63
    assert min(seeds) >= 0
    assert (batches_module.seed_of("it", None, None), batches_module.seed_of("it", None, 7)) == (0, 7)
    with pytest.raises(ValueError, match="it: generator= and seed=7 both say where random numbers begin"):
        batches_module.seed_of("it", np.random.default_rng(3), 7)


@pytest.mark.parametrize("start", [None, 0, 2])
def test_prefetch_passes_over_no_batch_that_the_source_gives(start: int | None) -> None:
    """From the beginning unless a position is named, whether or not the source knows epochs."""
    where = () if start is None else (start,)
    known = data.arrays(X, Y, batch_size=3, seed=1)
    assert labels(data.prefetch(known).epoch(4, *where)) == labels(known.epoch(4, *where))
    assert len(labels(known.epoch(4, *where))) == 4 - (start or 0)
    plain = [(0, np.array([i])) for i in range(4)]
    assert labels(data.prefetch(plain).epoch(4, *where)) == labels(plain[start or 0 :])
    assert data.prefetch(known).describe() == known.describe()
    assert data.prefetch(plain).describe() == {}
