"""Loaders: one order for any number and kind of workers, exact resumption, errors where the batch would be."""

import copy
import pickle
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import data, nn, ops, optim
from lamina.data import transforms
from lamina.train import Position, fit

pytestmark = pytest.mark.feature("B030")


class Squares:
    """Sample i is (i², noise), and fails at `bad`."""

    def __init__(self, count: int = 23, bad: int = -1) -> None:
        self.count, self.bad = count, bad

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> Any:
        return self.sample(index, np.random.default_rng(0))

    def sample(self, index: int, rng: np.random.Generator) -> Any:
        if index == self.bad:
            raise KeyError(f"sample {index} is bad")
        return {"square": np.float32(index) ** 2, "noise": rng.standard_normal(3)}, index


def flat(batches: Any) -> list[tuple[bytes, bytes, bytes]]:
    return [
        (x["square"].numpy().tobytes(), x["noise"].numpy().tobytes(), y.numpy().tobytes()) for x, y in batches
    ]


def loader(**options: Any) -> data.DataLoader:
    return data.DataLoader(Squares(), 4, True, seed=5, **options)


def test_samples_and_batches() -> None:
    plain = data.DataLoader(Squares(), 4)
    batches = list(plain)
    assert len(plain) == len(batches) == 6
    assert [len(y) for _, y in batches] == [4] * 5 + [3]
    np.testing.assert_array_equal(np.concatenate([y for _, y in batches]), np.arange(23))
    x, y = batches[1]
    np.testing.assert_array_equal(x["square"], y.float() ** 2)
    assert x["noise"].shape == (4, 3)
    assert len(list(data.DataLoader(Squares(), 4, drop_last=True))) == 5
    assert repr(loader(num_workers=2)).startswith("DataLoader(23 samples, 6 batches of 4, shuffled")


@pytest.mark.parametrize(
    "options", [{"num_workers": 1}, {"num_workers": 3, "prefetch_factor": 1}, {"num_workers": 9}]
)
def test_the_order_does_not_depend_on_threads(options: dict[str, Any]) -> None:
    plain, threaded = loader(), loader(**options)
    for _ in range(2):  # two epochs, each in an order of its own
        expected = flat(plain)
        assert flat(threaded) == expected
    assert flat(threaded.epoch(1, 4)) == expected[4:]
    assert flat(loader().epoch(0)) != expected
    assert threaded.describe() == plain.describe()


def test_the_order_does_not_depend_on_processes() -> None:
    one = loader(num_workers=2, processes=True)
    try:
        expected = flat(loader())
        assert flat(one) == expected
        assert flat(one.epoch(0, 3)) == expected[3:]
        for _ in one:  # what a loop that ends early leaves is nobody's
            break
        assert flat(one.epoch(0)) == expected
    finally:
        one.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_errors_are_raised_where_the_batch_would_be(workers: int) -> None:
    found = iter(data.DataLoader(Squares(bad=9), 4, num_workers=workers))
    assert len(next(found)[1]) == len(next(found)[1]) == 4
    with pytest.raises(KeyError, match="sample 9 is bad"):
        next(found)


def test_threads_end_with_the_loop() -> None:
    before = threading.active_count()
    for _ in loader(num_workers=4):
        break
    found = loader(num_workers=2).epoch(0)
    next(found)
    found.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before


def test_samples_without_generators_and_of_any_structure() -> None:
    class Words:
        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: int) -> Any:
            return {"word": "abc"[index], "pair": (index, [float(index), None])}

    (batch,) = data.DataLoader(Words(), 3)  # type: ignore[arg-type]
    assert batch["word"] == ["a", "b", "c"]
    first, (second, nothing) = batch["pair"]
    assert (first.dtype, second.dtype, nothing) == (lm.int64, lm.float64, None)
    np.testing.assert_array_equal(second, [0, 1, 2])


def test_collate_names_what_does_not_fit() -> None:
    with pytest.raises(
        ValueError, match=r"samples of shapes \(2,\), \(3,\) make no batch; bring them to one size"
    ):
        data.default_collate([np.zeros(2), np.zeros(3)])
    with pytest.raises(ValueError, match=r"sample 1 is \(\*, \*\), the first one \*"):
        data.default_collate([1, (1, 2)])
    joined = data.DataLoader(Squares(), 5, collate_fn=lambda samples: len(samples))
    assert list(joined) == [5, 5, 5, 5, 3]


@pytest.mark.parametrize("samples", [[1, "a"], ["a", 1], [object()], [2**70]])
def test_collate_makes_no_arrays_of_texts_and_objects(samples: list[Any]) -> None:
    with pytest.raises(TypeError, match=r"default_collate: a batch is of arrays .* give a collate_fn"):
        data.default_collate(samples)
    assert data.default_collate([b"a", "b"]) == [b"a", "b"]


class Together:
    """Samples of a batch are read at once; `lost` of them are missing."""

    def __init__(self, lost: int = 0) -> None:
        self.lost = lost
        self.asked: list[list[int]] = []

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> int:
        raise AssertionError(f"sample {index} was read alone")

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(indices)
        return [10 * i for i in indices[self.lost :]]


def test_samples_of_a_batch_are_read_at_once() -> None:
    samples = Together()
    batches = list(data.DataLoader(samples, 10))
    np.testing.assert_array_equal(np.concatenate(batches), 10 * np.arange(23))
    assert samples.asked == [[*range(10)], [*range(10, 20)], [20, 21, 22]]
    with pytest.raises(
        ValueError, match=r"Together.__getitems__ must give a sample for each of 4 indices, gave 3"
    ):
        next(iter(data.DataLoader(Together(lost=1), 4, drop_last=True)))


def test_a_sampler_that_is_read_once_is_refused() -> None:
    with pytest.raises(TypeError, match=r"DataLoader: sampler must have a length .* got <generator"):
        data.DataLoader(Squares(), 4, sampler=(i for i in range(3)))  # type: ignore[arg-type]


def test_what_processes_cannot_be_sent_is_explained() -> None:
    with pytest.raises((AttributeError, pickle.PicklingError), match="lambda") as caught:
        list(data.DataLoader(Squares(), 4, num_workers=1, processes=True, collate_fn=lambda some: some))
    assert "processes=True the data set, its transforms, collate_fn" in "".join(caught.value.__notes__)


def test_batches_are_mixed_by_the_generator_of_their_place() -> None:
    x = np.random.default_rng(0).standard_normal((12, 3, 4, 4)).astype(np.float32)
    mixing = [
        data.DataLoader(
            data.TensorDataset(x, np.arange(12) % 3), 4, batch_transform=transforms.MixUp(3), num_workers=n
        )
        for n in (0, 2)
    ]
    first, second = (list(m) for m in mixing)
    for (a, p), (b, q) in zip(first, second, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(p, q)
        np.testing.assert_allclose(p.sum(1), 1, rtol=1e-6)


def test_training_goes_on_within_an_epoch() -> None:
    rng = np.random.default_rng(0)
    whole = data.TensorDataset(rng.standard_normal((30, 4)).astype(np.float32), rng.integers(0, 3, 30))

    def train(start: Position, steps: int | None, workers: int) -> Any:
        nn.manual_seed(0)
        step = lm.train_step(
            nn.Linear(4, 3), ops.cross_entropy, optim.SGD(0.0), device="cpu", backend="reference"
        )
        batches = data.DataLoader(whole, 4, True, seed=1, num_workers=workers)
        return fit(step, batches, 2, start=start, max_steps=steps, progress=False)

    expected = train(Position(), None, 0)
    cut = train(Position(), 11, 2)
    assert cut.position == Position(1, 3)
    assert cut.losses == expected.losses[:11]
    assert train(cut.position, None, 3).losses == expected.losses[11:]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_workers": -1}, "num_workers must be at least 0 and prefetch_factor at least 1, got -1 and 2"),
        ({"prefetch_factor": 0}, "got 0 and 0"),
        ({"batch_size": 0}, "batch_size must be at least 1, got 0"),
    ],
)
def test_bad_numbers_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        data.DataLoader(Squares(), **options)


@pytest.mark.parametrize("options", [{}, {"shuffle": True}, {"drop_last": True}, {"num_workers": 2}])
def test_an_empty_set_makes_no_batch(options: dict[str, Any]) -> None:
    for dataset in (Squares(0), []):
        loader = data.DataLoader(dataset, 4, **options)
        assert (len(loader), list(loader), list(loader)) == (0, [], [])
        assert loader.describe()["samples"] == 0


def test_a_loader_is_copied_and_pickled_without_its_workers() -> None:
    first = loader(num_workers=2, processes=True)
    expected = flat(first.epoch(3))
    for made in (copy.deepcopy(first), pickle.loads(pickle.dumps(first))):
        assert flat(made.epoch(3)) == expected
        made.close()
    first.close()


class Stream(data.IterableDataset[Any]):
    """Seven samples of an epoch, one after the other."""

    def __init__(self) -> None:
        self.number = 0

    def set_epoch(self, number: int) -> None:
        self.number = number

    def __iter__(self) -> Any:
        return ((np.float32(i), i + 100 * self.number) for i in range(7))


@pytest.mark.parametrize("workers", [0, 2])
def test_samples_that_come_one_after_the_other(workers: int) -> None:
    loader = data.DataLoader(Stream(), batch_size=3, num_workers=workers)
    assert [y.tolist() for _, y in loader] == [[0, 1, 2], [3, 4, 5], [6]]
    assert [y.tolist() for _, y in loader] == [[100, 101, 102], [103, 104, 105], [106]]
    assert [y.tolist() for _, y in loader.epoch(0, 1)] == [[3, 4, 5], [6]]
    assert [len(y) for _, y in data.DataLoader(Stream(), 3, drop_last=True)] == [3, 3]
    parts = [data.DataLoader(Stream(), 4, rank=r, world_size=2) for r in range(2)]
    assert [[y.tolist() for _, y in p] for p in parts] == [[[0, 1], [4, 5]], [[2, 3], [6]]]
    assert all(data.prefetch(part).uneven for part in parts)
    assert not data.DataLoader(Stream(), 4, drop_last=True, world_size=2).uneven
    assert not data.DataLoader(Stream(), 4).uneven
    (*_, (_, (last, weights))) = data.DataLoader(Stream(), 4, pad_last=True)
    assert (last.tolist(), weights.sum()) == ([4, 5, 6, 4], 4)
    both = data.ChainDataset([Stream(), Stream()])
    assert len(list(data.DataLoader(both, 7).epoch(2))) == 2
    assert loader.describe() == {"batch_size": 3, "drop_last": False, "pad_last": False, "seed": 0}
    assert repr(data.DataLoader(Stream(), 3)) == "DataLoader(Stream, batches of 3)"
    with pytest.raises(TypeError, match="Stream does not tell how many samples it has: give it a __len__"):
        len(loader)
    with pytest.raises(NotImplementedError, match="IterableDataset needs a method __iter__"):
        list(data.DataLoader(data.IterableDataset()))


@pytest.mark.parametrize("options", [{"shuffle": True}, {"sampler": [1]}, {"processes": True}])
def test_what_a_stream_leaves_no_room_for(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Stream has no __getitem__, so that"):
        data.DataLoader(Stream(), 3, **options)


def test_a_network_learns_from_a_stream() -> None:
    class Lines(data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            rng = np.random.default_rng(0)
            for _ in range(40):
                x = rng.standard_normal(3).astype(np.float32)
                yield x, x[:1] * 2

    net = nn.Linear(3, 1)
    step = lm.train_step(net, ops.mse_loss, optim.SGD(0.1))
    history = fit(step, data.DataLoader(Lines(), 8), 3, progress=False)
    assert history.epochs[-1].loss < 0.2 * history.epochs[0].loss


def test_samples_that_are_not_joined() -> None:
    assert [y for _, y in data.DataLoader(Stream(), batch_size=None)] == list(range(7))
    loader = data.DataLoader(Squares(3), None, collate_fn=lambda sample: sample[1] + 1)
    assert list(loader) == [1, 2, 3]


BEGUN: list[int] = []


def begin(worker: int) -> None:
    BEGUN.append(worker)


def begin_badly(worker: int) -> None:
    raise OSError(f"worker {worker} has no disk")


class Begun:
    """Sample i is how often its worker began."""

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> int:
        return len(BEGUN)


def test_workers_begin_once() -> None:
    BEGUN.clear()
    assert len(list(data.DataLoader(Squares(), 2, num_workers=2, worker_init_fn=begin))) == 12
    assert sorted(BEGUN) == list(range(len(BEGUN)))
    assert 1 <= len(BEGUN) <= 2
    BEGUN.clear()
    assert len(list(data.DataLoader(Squares(), 2, worker_init_fn=begin))) == 12
    assert BEGUN == []
    list(data.DataLoader(Stream(), 2, num_workers=1, worker_init_fn=begin))
    assert BEGUN == [0]
    BEGUN.clear()
    one = data.DataLoader(
        Begun(), 2, num_workers=2, processes=True, persistent_workers=True, worker_init_fn=begin
    )
    try:
        assert [x.tolist() for x in one] == [[1, 1]] * 4
    finally:
        one.close()
    bad = data.DataLoader(Begun(), 2, num_workers=1, processes=True, worker_init_fn=begin_badly)
    try:
        with pytest.raises(OSError, match="worker 0 has no disk"):
            list(bad)
    finally:
        bad.close()


class Slow:
    """Sample 3 takes long, but for the first times that it is read."""

    def __init__(self, seconds: float, quick: int = 0) -> None:
        self.seconds, self.quick = seconds, quick

    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> int:
        if index == 3:
            time.sleep(self.seconds if self.quick == 0 else 0)
            self.quick -= 1
        return index


class SlowStream(data.IterableDataset[int]):
    """Likewise, one after the other."""

    def __init__(self) -> None:
        self.slow = Slow(2.0, quick=1)

    def __iter__(self) -> Any:
        return (self.slow[i] for i in range(5))


@pytest.mark.parametrize("way", ["threads", "processes", "stream"])
def test_late_batches_are_an_error(way: str) -> None:
    dataset: Any = SlowStream() if way == "stream" else Slow(2.0, quick=1)
    loader = data.DataLoader(dataset, num_workers=1, processes=way == "processes", timeout=60)
    assert [x.item() for x in loader] == [0, 1, 2, 3, 4]
    loader.timeout = 0.5  # processes take longer to begin
    found = []
    with pytest.raises(RuntimeError, match=r"DataLoader timed out after 0\.5 seconds"):
        found.extend(x.item() for x in loader)
    assert found == [0, 1, 2]


@pytest.mark.parametrize("processes", [False, True])
def test_batches_in_time_are_as_without_a_timeout(processes: bool) -> None:
    loader = data.DataLoader(Slow(0.0), 2, num_workers=2, processes=processes, timeout=60, in_order=True)
    assert [x.tolist() for x in loader] == [[0, 1], [2, 3], [4]]
    loader.close()
    failing = data.DataLoader(Squares(bad=4), 4, num_workers=2, timeout=60)
    with pytest.raises(KeyError, match="sample 4 is bad"):
        list(failing)


def test_torchs_none_for_numbers_by_default() -> None:
    loader = data.DataLoader(Slow(0.0), 5, shuffle=None, prefetch_factor=None)
    assert [x.tolist() for x in loader] == [[0, 1, 2, 3, 4]]
    for timeout, workers in ((-1, 2), (1, 0)):
        with pytest.raises(ValueError, match="DataLoader: timeout is the seconds that a worker has"):
            data.DataLoader(Slow(0.0), num_workers=workers, timeout=timeout)


class WhoReads:
    """Samples that say which worker reads them."""

    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> list[int]:
        info = data.get_worker_info()
        return [-1, -1, -1] if info is None else [info.id, info.num_workers, info.seed]


@pytest.mark.parametrize("processes", [False, True])
def test_workers_know_which_they_are(processes: bool) -> None:
    loader = data.DataLoader(WhoReads(), 1, num_workers=2, processes=processes, seed=7)
    try:
        found = {tuple(np.ravel(batch).tolist()) for batch in loader}
    finally:
        loader.close()
    assert found <= {(0, 2, 7), (1, 2, 8)}
    assert data.get_worker_info() is None
    assert [np.ravel(b).tolist() for b in data.DataLoader(WhoReads(), 6)] == [[-1] * 18]


class Shared(data.IterableDataset[int]):
    """As in torch's documentation: each worker gives its part."""

    def __iter__(self) -> Iterator[int]:
        info = data.get_worker_info()
        part, parts = (0, 1) if info is None else (info.id, info.num_workers)
        return iter(range(part, 10, parts))


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_what_workers_share_comes_once(workers: int) -> None:
    loader = data.DataLoader(Shared(), 4, num_workers=workers)
    assert np.concatenate(list(loader)).tolist() == list(range(10))


def test_a_worker_begins_before_what_it_iterates() -> None:
    def halve(worker: int) -> None:
        info = data.get_worker_info()
        assert info is not None
        info.dataset.last = 5

    class Numbers(data.IterableDataset[int]):
        last = 10

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.last))

    loader = data.DataLoader(Numbers(), 10, num_workers=1, worker_init_fn=halve)
    assert np.concatenate(list(loader)).tolist() == [0, 1, 2, 3, 4]
