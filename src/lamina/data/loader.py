"""Batches of a data set's samples, prefetched by workers, in an order that does not depend on the workers."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np

from lamina.data.batches import (
    Batches,
    BatchPart,
    LateError,
    Loader,
    SeededGenerator,
    ahead,
    generator_of,
    part_of,
    seed_of,
)
from lamina.data.collate import converted, stacked
from lamina.data.datasets import Dataset, joined_of, samples_of
from lamina.data.samplers import Sampler
from lamina.data.workers import KeptWorkers, Ticket, WorkerError
from lamina.ops.arguments import shown

Array = np.ndarray[Any, Any]


#: Makes a batch from a list of samples.
Collate = Callable[[list[Any]], Any]
#: Transforms a batch, such as `transforms.MixUp`.
BatchTransform = Callable[[Any, np.random.Generator], Any]


class DataLoader(Batches):
    """Batches of a data set, as PyTorch's DataLoader: each `for` loop is one more epoch. Parameter names are
    PyTorch's, and batches are what PyTorch's are: tensors on the CPU, made by `default_collate`.

    dataset: anything with a length and `dataset[i]`; a method `sample(i, rng)` augments samples, and a method
        `order(rng)` gives the reading order for shuffling. Or any iterable without `__getitem__` (`IterableDataset`):
        read sample by sample, by one thread, prefetched if there are workers.
    batch_size, shuffle, drop_last, pad_last, seed, rank, world_size, parallel: as in `Batches`: order and
        augmentation depend on the seed, the epoch and the sample's place alone, whatever the number of workers and
        ranks; batch_size is that of all ranks. None: samples are not batched, but returned one by one, as
        `default_convert` makes them.
    generator: in place of seed: an `nn.Generator`, whose seed is used, or NumPy's, from which one seed is drawn.
    num_workers: threads that make batches, each prefetching up to `prefetch_factor`; 0: the reading thread makes
        them. With processes=True they are spawned worker processes, which return batches in shared memory: for
        samples that need much Python code. Data set and functions must then be picklable. Decoding and NumPy need no
        processes.
    worker_init_fn: called with a worker's number, from 0 on, in that worker, before its first batch;
        `get_worker_info` gives further information there.
    sampler: gives an epoch's samples and their order: `RandomSampler`, `WeightedRandomSampler`, a list of indices, or
        any iterable of indices with a length (a method `set_epoch` is called with the epoch's number beforehand, a
        method `order(rng)` returns all indices). The draws of a custom sampler do not depend on the loader's seed.
    batch_sampler: yields lists of the indices of each batch, in place of batch_size, shuffle, sampler,
        drop_last and pad_last: `BatchSampler`, a list of lists, or anything of that kind.
    timeout: how many seconds to wait for a worker's batch; 0: no limit. RuntimeError if it takes longer.
    pin_memory, persistent_workers, in_order: accepted as in torch; steps and compiled functions always copy batches
        to a GPU through pinned memory, processes are kept until `close`, and batches come in order.
    collate_fn: makes a batch from a list of samples, by default `default_collate`; its result is not changed.
    batch_transform: (batch, rng) -> batch, applied to the result of collate_fn; without a collate_fn to a batch of
        NumPy arrays in the samples' structure, before they become tensors.
    Raises ValueError for numbers out of range, arguments that exclude each other and an empty data set; a worker's
    error is raised in place of its batch, and WorkerError if a process died.
    """

    def __init__(
        self,
        dataset: Dataset[Any] | Iterable[Any],
        batch_size: int | None = 1,
        shuffle: bool | None = False,
        *,
        seed: int | None = None,
        num_workers: int = 0,
        processes: bool = False,
        prefetch_factor: int | None = 2,
        timeout: float = 0,
        drop_last: bool = False,
        pad_last: bool = False,
        sampler: Sampler[int] | None = None,
        batch_sampler: Iterable[Any] | None = None,
        generator: SeededGenerator | np.random.Generator | None = None,
        pin_memory: bool = False,
        persistent_workers: bool = False,
        in_order: bool = True,
        collate_fn: Callable[[Any], Any] | None = None,
        batch_transform: BatchTransform | None = None,
        worker_init_fn: Callable[[int], Any] | None = None,
        rank: int = 0,
        world_size: int = 1,
        parallel: Literal["data"] | None = None,
    ) -> None:
        shuffle, prefetch_factor = bool(shuffle), 2 if prefetch_factor is None else prefetch_factor
        _check_numbers(num_workers, prefetch_factor, timeout)
        if sampler is not None and shuffle:
            raise ValueError("DataLoader: a sampler gives the order: leave shuffle=False")
        self.dataset, self.num_workers, self.processes = dataset, num_workers, processes
        self.sampler, self.batch_sampler = sampler, batch_sampler
        self.prefetch_factor, self.timeout = prefetch_factor, timeout
        #: Whether the data set is iterable, without access by index.
        self.iterated = not hasattr(dataset, "__getitem__")
        self._check_ways(shuffle, processes)
        if batch_sampler is not None:
            _check_alone(batch_size, shuffle, sampler, drop_last, pad_last)
            batch_size = getattr(batch_sampler, "batch_size", 1)
        classes = getattr(dataset, "classes", None)
        seed = seed_of("DataLoader", generator, seed)
        workers = min(num_workers, 1) if self.iterated else num_workers  # one thread reads an iterable
        self._making = _Making(
            dataset,
            _collation(collate_fn, batch_size),
            batch_transform,
            collate_fn is None,
            worker_init_fn,
            workers,
            seed,
        )
        super().__init__(
            self._making,
            self._samples(batch_size or 1),
            1 if batch_size is None else batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            pad_last=pad_last,
            num_classes=None if classes is None else len(classes),
            rank=rank,
            world_size=world_size,
            parallel=parallel,
        )
        if batch_sampler is not None and self.world_size > 1:
            raise ValueError(
                "DataLoader: a batch_sampler's batches are not cut into those of several ranks: give each rank one "
                "of its own, without rank, world_size and parallel"
            )
        self._kept = KeptWorkers()

    def _check_ways(self, shuffle: bool, processes: bool) -> None:
        """Raises ValueError for options that do not apply to an iterable data set."""
        if not self.iterated:
            return
        name = type(self.dataset).__name__
        if shuffle or self.sampler is not None or self.batch_sampler is not None:
            raise ValueError(
                f"DataLoader: {name} has no __getitem__, so that it is read in its own order: leave out shuffle, "
                "sampler and batch_sampler, or shuffle in its __iter__"
            )
        if processes:
            raise ValueError(
                f"DataLoader: {name} has no __getitem__, so that one thread reads it: leave out processes=True"
            )

    def _samples(self, batch_size: int) -> int:
        """The number of samples of an epoch; of an iterable data set without a length, of a batch."""
        if self.iterated and not hasattr(self.dataset, "__len__"):
            return batch_size
        if self.sampler is None:
            return len(self.dataset)  # type: ignore[arg-type]
        if not hasattr(self.sampler, "__len__"):
            raise TypeError(
                f"DataLoader: sampler must have a length and give its indices at each iteration, as a list does, got "
                f"{shown(self.sampler)}"
            )
        return len(self.sampler)

    def __iter__(self) -> Iterator[Any]:
        return super().__iter__()

    def __len__(self) -> int:
        if self.batch_sampler is not None:
            return len(self.batch_sampler)  # type: ignore[arg-type]
        if self.iterated and not hasattr(self.dataset, "__len__"):
            name = type(self.dataset).__name__
            raise TypeError(f"DataLoader: {name} does not tell how many samples it has: give it a __len__")
        return super().__len__()

    def order(self, number: int) -> Array | range:
        """The indices of all samples in the order of epoch `number`; a data set may define its own order."""
        if self.sampler is not None:
            return self._sampled(self.sampler, number)
        own = getattr(self.dataset, "order", None)
        if own is None or not self.shuffle:
            return super().order(number)
        return np.asarray(own(np.random.default_rng([self.seed, number])))

    def _sampled(self, sampler: Sampler[int], number: int) -> Array | range:
        """The sampler's indices for an epoch. Raises ValueError for a wrong number of them, IndexError for invalid
        ones.
        """
        getattr(sampler, "set_epoch", lambda number: None)(number)
        order = getattr(sampler, "order", None)
        if order is None:
            found: Array | range = np.asarray([int(i) for i in sampler], np.int64)
        else:
            found = order(np.random.default_rng([self.seed, number]))
            found = found if isinstance(found, range) else np.asarray(found, np.int64)
        if len(found) != self.count:
            raise ValueError(f"DataLoader: the sampler gave {len(found)} indices, its length is {self.count}")
        ends = np.array([*found[:1], *found[-1:]], np.int64) if isinstance(found, range) else found
        self._within(ends, "the sampler")
        return found

    def _within(self, indices: Array, who: str) -> Array:
        outside = indices[(indices < -self.size) | (indices >= self.size)]
        if len(outside):
            raise IndexError(f"DataLoader: {who} gave {outside[0]}, the data set has {self.size} samples")
        return indices

    def parts(self, number: int, start: int = 0) -> Iterator[BatchPart]:
        """The loads of this rank for the batches of an epoch."""
        if self.batch_sampler is None:
            yield from super().parts(number, start)
            return
        getattr(self.batch_sampler, "set_epoch", lambda number: None)(number)
        batches = getattr(self.batch_sampler, "batches", None)
        drawn = self.batch_sampler if batches is None else batches(np.random.default_rng([self.seed, number]))
        for position, batch in enumerate(drawn):
            if position >= start:
                indices = self._within(_indices(batch), "the batch_sampler")
                yield BatchPart(indices, generator_of([self.seed, number, position], 0))

    @property
    def size(self) -> int:
        """The number of samples of the data set."""
        return len(self.dataset)  # type: ignore[arg-type]

    @property
    def uneven(self) -> bool:
        """Whether ranks may have different numbers of samples of an epoch's last batch."""
        if self.iterated and not hasattr(self.dataset, "__len__"):
            return self.world_size > 1 and not (self.drop_last or self.pad_last)
        return super().uneven

    def describe(self) -> dict[str, Any]:
        """As `Batches.describe`; for an iterable data set without a digest of its samples."""
        if not self.iterated:
            return super().describe()
        return {
            "batch_size": self.batch_size,
            "drop_last": self.drop_last,
            "pad_last": self.pad_last,
            "seed": self.seed,
        }

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """The batches of epoch `number` from position `start` on."""
        if self.iterated:
            depth = self.num_workers * self.prefetch_factor
            if not depth:
                return self._read(number, start)
            return ahead(lambda: self._read(number, start), depth, self.timeout)
        if not self.num_workers:
            return super().epoch(number, start)
        return self._ahead(number, start)

    def _read(self, number: int, start: int) -> Iterator[Any]:
        """The batches of an iterable data set."""
        getattr(self.dataset, "set_epoch", lambda number: None)(number)
        making = self._making
        if self.num_workers:
            making.begin(0)  # which may tell the data set where to begin
        samples = iter(self.dataset)
        for position in itertools.count():
            batch = list(itertools.islice(samples, self.batch_size))
            if not batch or (self.drop_last and len(batch) < self.batch_size):
                return
            words = [self.seed, number, position]
            part = part_of(len(batch), self.batch_size, self.rows, words, self.pad_last)
            if position >= start and len(part.indices):
                yield part.weighted(making.joined([batch[i] for i in part.indices], part.rng))

    def _ahead(self, number: int, start: int) -> Iterator[Any]:
        """Batches made by workers, in order."""
        parts, depth = self.parts(number, start), self.num_workers * self.prefetch_factor
        if not self.processes:
            yield from made_by_threads(parts, _begun(self._making), self.num_workers, depth, self.timeout)
            return
        workers = self._kept.get(self.num_workers, self._making)
        try:
            yield from made_ahead(parts, workers.submit, depth, self.timeout)
        except (WorkerError, LateError):
            self.close()
            raise

    def close(self) -> None:
        """End the processes, if there are any; the next epoch starts new ones."""
        self._kept.close()

    def __repr__(self) -> str:
        kind = "processes" if self.processes else "threads"
        workers = f", {self.num_workers} {kind}" if self.num_workers else ""
        if self.iterated or self.batch_sampler is not None:
            source = f"{type(self.dataset).__name__}, " + (
                f"batches of {self.batch_size}" if self.iterated else f"batches by {self.batch_sampler!r:.60}"
            )
            return f"DataLoader({source}{workers})"
        return f"DataLoader({super().__repr__()[8:-1]}{workers})"


def _check_numbers(num_workers: int, prefetch_factor: int, timeout: float) -> None:
    """Raises ValueError for values out of range."""
    if num_workers < 0 or prefetch_factor < 1:
        raise ValueError(
            "DataLoader: num_workers must be at least 0 and prefetch_factor at least 1, got "
            f"{num_workers} and {prefetch_factor}"
        )
    if timeout < 0 or (timeout and not num_workers):
        raise ValueError(
            f"DataLoader: timeout is the seconds that a worker has for a batch, got {timeout} with "
            f"num_workers={num_workers}: give 0, or workers"
        )


def _check_alone(
    batch_size: int | None, shuffle: bool, sampler: Any, drop_last: bool, pad_last: bool
) -> None:
    """Raises ValueError for options that a batch_sampler determines itself."""
    given = {
        f"batch_size={batch_size}": batch_size != 1,
        "shuffle": shuffle,
        "sampler": sampler is not None,
        "drop_last": drop_last,
        "pad_last": pad_last,
    }
    named = [name for name, there in given.items() if there]
    if named:
        raise ValueError(
            f"DataLoader: a batch_sampler says which samples make which batch: leave out {', '.join(named)}"
        )


def _indices(batch: Any) -> Array:
    """The indices of a batch. Raises TypeError for anything but a list of ints."""
    try:
        return np.asarray([int(i) for i in batch], np.int64)
    except TypeError:
        raise TypeError(
            f"DataLoader: a batch_sampler must give the indices of a batch at a time, got {batch!r:.60}; what gives "
            "one index at a time is a sampler"
        ) from None


def _collation(collate_fn: Callable[[Any], Any] | None, batch_size: int | None) -> Collate:
    if batch_size is not None:
        return collate_fn or stacked
    return _Single(collate_fn)


class _Single:
    """Makes the single sample from a list of one, transformed by collate_fn."""

    def __init__(self, collate_fn: Callable[[Any], Any] | None) -> None:
        self.collate_fn = collate_fn

    def __call__(self, samples: list[Any]) -> Any:
        return samples[0] if self.collate_fn is None else self.collate_fn(samples[0])


class WorkerInfo(NamedTuple):
    """A `DataLoader` worker's number, the number of workers, its own seed, and its data set."""

    id: int
    num_workers: int
    seed: int
    dataset: Any


#: The worker that this thread is, if any.
_here = threading.local()


def get_worker_info() -> WorkerInfo | None:
    """The current worker of a `DataLoader`, within one; None elsewhere. torch.utils.data.get_worker_info.

    An iterable data set has one worker at most, so that one that splits its samples among workers yields all.
    """
    found: WorkerInfo | None = getattr(_here, "worker", None)
    return found


class _Making:
    """Makes a batch: samples, each with its own generator, then the batch from them.

    converts: whether the arrays of a batch become tensors.
    """

    def __init__(
        self,
        dataset: Any,
        collate: Collate,
        transform: BatchTransform | None,
        converts: bool,
        worker_init_fn: Callable[[int], Any] | None,
        workers: int,
        seed: int,
    ) -> None:
        self.dataset, self.collate, self.transform, self.converts = dataset, collate, transform, converts
        self.worker_init_fn, self.workers, self.seed = worker_init_fn, workers, seed

    def begin(self, worker: int) -> None:
        """A worker's initialization."""
        _here.worker = WorkerInfo(worker, self.workers, self.seed + worker, self.dataset)
        if self.worker_init_fn is not None:
            self.worker_init_fn(worker)

    def __call__(self, indices: Array, rng: np.random.Generator) -> Any:
        numbers = [int(i) for i in indices]
        batch = joined_of(self.dataset, numbers) if self.collate is stacked else None
        if batch is not None:
            return self._finished(batch, rng)
        return self.joined(samples_of(self.dataset, numbers, rng), rng)

    def joined(self, samples: list[Any], rng: np.random.Generator) -> Any:
        """The batch of samples."""
        return self._finished(self.collate(samples), rng)

    def _finished(self, batch: Any, rng: np.random.Generator) -> Any:
        if self.transform is not None:
            batch = self.transform(batch, rng)
        return converted(batch) if self.converts else batch


def _begun(making: _Making) -> Loader:
    """The same for the threads of one loop, each of which is initialized once."""
    own, numbers = threading.local(), itertools.count()

    def make(indices: Array, rng: np.random.Generator) -> Any:
        if not getattr(own, "begun", False):
            making.begin(next(numbers))
            own.begun = True
        return making(indices, rng)

    return make


class PendingBatch(Protocol):
    """A pending batch: a Future, or a `Ticket`."""

    def result(self) -> Any:
        """The batch."""
        ...

    def cancel(self) -> Any:
        """Cancel it."""
        ...


def made_ahead(
    parts: Iterator[BatchPart], submit: Callable[[Any, Any], PendingBatch], depth: int, timeout: float = 0
) -> Iterator[Any]:
    """The batches of parts in order, with up to `depth` pending. Raises LateError if one takes longer than `timeout`
    seconds."""
    waiting: deque[tuple[BatchPart, PendingBatch]] = deque()
    try:
        for part in parts:
            waiting.append((part, submit(part.indices, part.rng)))
            if len(waiting) == depth:
                first, made = waiting.popleft()
                yield first.weighted(_result(made, timeout))
        while waiting:
            first, made = waiting.popleft()
            yield first.weighted(_result(made, timeout))
    finally:
        for _, made in waiting:
            made.cancel()


def _result(made: PendingBatch, timeout: float) -> Any:
    """A batch, once it is made. Raises LateError, and any error of making it."""
    late = False
    if timeout and isinstance(made, Future):
        late = not wait([made], timeout).done
    elif timeout and isinstance(made, Ticket):
        late = not made.wait(timeout)
    if late:
        raise LateError(timeout)
    return made.result()


def made_by_threads(
    parts: Iterator[BatchPart], load: Loader, count: int, depth: int, timeout: float = 0
) -> Iterator[Any]:
    """Likewise, by a number of threads, which end with the loop; a late one ends when its batch is made."""
    pool, late = ThreadPoolExecutor(count, "lamina data"), False
    try:
        yield from made_ahead(parts, lambda indices, rng: pool.submit(load, indices, rng), depth, timeout)
    except LateError:
        late = True
        raise
    finally:
        pool.shutdown(wait=not late)
