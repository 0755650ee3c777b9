"""Batches of a data set's samples, made by workers ahead of time, in an order that does not depend on them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal, Protocol

import numpy as np

from lamina import _tree
from lamina.data.batches import Batches, BatchPart, Loader
from lamina.data.datasets import Dataset, sample_of
from lamina.data.samplers import WeightedRandomSampler
from lamina.data.workers import KeptWorkers, WorkerError
from lamina.ops.arguments import checked

Array = np.ndarray[Any, Any]


class Sampler(Protocol):
    """Gives the indices of an epoch's samples."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[int]: ...


#: Makes a batch of a list of samples.
Collate = Callable[[list[Any]], Any]
#: Changes a batch, such as `transforms.MixUp`.
BatchTransform = Callable[[Any, np.random.Generator], Any]


class DataLoader(Batches):
    """Batches of a data set, as PyTorch's: each `for` loop is one more epoch; the names are PyTorch's, too.

    dataset: anything with a length and `dataset[i]`; with a method `sample(i, rng)` it is augmented, and with one
        `order(rng)` it says in which order it is read when it is shuffled.
    batch_size, shuffle, drop_last, pad_last, seed, rank, world_size, parallel: as in `Batches`: order and
        augmentation depend on the seed, the epoch and the sample's place alone, whatever the number of workers and
        ranks; batch_size is that of all ranks.
    num_workers: so many threads make batches, up to `prefetch_factor` each ahead; 0: the thread that reads them. With
        processes=True they are processes, which start anew and give batches in shared memory: for samples that much
        Python is needed for. Data set and functions must be such that they can be pickled then. Decoding and NumPy
        need no processes.
    sampler: says which samples an epoch has, in which order: `WeightedRandomSampler`, a list of indices, or anything
        with a length that gives them at each `for` (with a method `set_epoch` it is told the epoch's number before).
        What is drawn by a sampler of one's own does not depend on the loader's seed.
    pin_memory: torch's word; batches are handed to a GPU by way of pinned memory in any case.
    collate_fn: makes a batch of a list of samples, by default `default_collate`.
    batch_transform: (batch, rng) -> batch, behind collate_fn.
    Raises ValueError for numbers out of range and an empty data set; what a worker raises is raised where its
    batch would have been, and WorkerError where a process died.
    """

    def __init__(
        self,
        dataset: Dataset,
        batch_size: int = 1,
        shuffle: bool = False,
        *,
        seed: int = 0,
        num_workers: int = 0,
        processes: bool = False,
        prefetch_factor: int = 2,
        drop_last: bool = False,
        pad_last: bool = False,
        sampler: Sampler | None = None,
        pin_memory: bool = False,
        collate_fn: Collate | None = None,
        batch_transform: BatchTransform | None = None,
        rank: int = 0,
        world_size: int = 1,
        parallel: Literal["data"] | None = None,
    ) -> None:
        if num_workers < 0 or prefetch_factor < 1:
            raise ValueError(
                "DataLoader: num_workers must be at least 0 and prefetch_factor at least 1, got "
                f"{num_workers} and {prefetch_factor}"
            )
        if sampler is not None and shuffle:
            raise ValueError("DataLoader: a sampler gives the order: leave shuffle=False")
        self.dataset, self.num_workers, self.processes = dataset, num_workers, processes
        self.sampler = sampler
        self.prefetch_factor = prefetch_factor
        making = _Making(dataset, collate_fn or default_collate, batch_transform)
        classes = getattr(dataset, "classes", None)
        super().__init__(
            making,
            len(dataset if sampler is None else sampler),
            batch_size,
            shuffle=shuffle,
            seed=seed,
            drop_last=drop_last,
            pad_last=pad_last,
            num_classes=None if classes is None else len(classes),
            rank=rank,
            world_size=world_size,
            parallel=parallel,
        )
        self._kept = KeptWorkers()

    def order(self, number: int) -> Array:
        """The indices of all samples in the order of epoch `number`; a data set may have one that suits it."""
        if self.sampler is not None:
            return self._sampled(self.sampler, number)
        own = getattr(self.dataset, "order", None)
        if own is None or not self.shuffle:
            return super().order(number)
        return np.asarray(own(np.random.default_rng([self.seed, number])))

    def _sampled(self, sampler: Sampler, number: int) -> Array:
        """What the sampler gives for an epoch. Raises ValueError for another number, IndexError for no sample."""
        if isinstance(sampler, WeightedRandomSampler):
            found = sampler.order(np.random.default_rng([self.seed, number]))
        else:
            getattr(sampler, "set_epoch", lambda number: None)(number)
            found = np.asarray([int(i) for i in sampler], np.int64)
        if len(found) != self.count:
            raise ValueError(f"DataLoader: the sampler gave {len(found)} indices, its length is {self.count}")
        outside = found[(found < -self.size) | (found >= self.size)]
        if len(outside):
            raise IndexError(
                f"DataLoader: the sampler gave {outside[0]}, the data set has {self.size} samples"
            )
        return found

    @property
    def size(self) -> int:
        """How many samples the data set has."""
        return len(self.dataset)

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """The batches of epoch `number` from position `start` on."""
        if not self.num_workers:
            return super().epoch(number, start)
        return self._ahead(number, start)

    def _ahead(self, number: int, start: int) -> Iterator[Any]:
        """Batches made by workers, in order."""
        parts, depth = self.parts(number, start), self.num_workers * self.prefetch_factor
        if not self.processes:
            yield from made_by_threads(parts, self.load, self.num_workers, depth)
            return
        workers = self._kept.get(self.num_workers, self.load)
        try:
            yield from made_ahead(parts, workers.submit, depth)
        except WorkerError:
            self.close()
            raise

    def close(self) -> None:
        """End the processes, if there are any; the next epoch starts new ones."""
        self._kept.close()

    def __repr__(self) -> str:
        kind = "processes" if self.processes else "threads"
        workers = f", {self.num_workers} {kind}" if self.num_workers else ""
        return f"DataLoader({super().__repr__()[8:-1]}{workers})"


class _Making:
    """Makes a batch: samples, each with a generator of its own, then the batch of them."""

    def __init__(self, dataset: Dataset, collate: Collate, transform: BatchTransform | None) -> None:
        self.dataset, self.collate, self.transform = dataset, collate, transform

    def __call__(self, indices: Array, rng: np.random.Generator) -> Any:
        own = rng.spawn(len(indices))
        samples = [sample_of(self.dataset, int(i), r) for i, r in zip(indices, own, strict=True)]
        batch = self.collate(samples)
        return batch if self.transform is None else self.transform(batch, rng)


class PendingBatch(Protocol):
    """A batch that is being made: a Future, or a `Ticket`."""

    def result(self) -> Any:
        """The batch."""
        ...

    def cancel(self) -> Any:
        """Nobody wants it any more."""
        ...


def made_ahead(
    parts: Iterator[BatchPart], submit: Callable[[Any, Any], PendingBatch], depth: int
) -> Iterator[Any]:
    """The batches of parts in their order, of which up to `depth` are being made."""
    waiting: deque[tuple[BatchPart, PendingBatch]] = deque()
    try:
        for part in parts:
            waiting.append((part, submit(part.indices, part.rng)))
            if len(waiting) == depth:
                first, made = waiting.popleft()
                yield first.weighted(made.result())
        while waiting:
            first, made = waiting.popleft()
            yield first.weighted(made.result())
    finally:
        for _, made in waiting:
            made.cancel()


def made_by_threads(parts: Iterator[BatchPart], load: Loader, count: int, depth: int) -> Iterator[Any]:
    """Likewise, by so many threads, which end with the loop."""
    with ThreadPoolExecutor(count, "lamina data") as pool:
        yield from made_ahead(parts, lambda indices, rng: pool.submit(load, indices, rng), depth)


@checked
def default_collate(samples: list[Any]) -> Any:
    """A batch of samples of one structure: arrays and numbers are stacked, strings stay lists (torch's
    default_collate).

    Raises ValueError when samples differ in structure or shape.
    """
    first, structure = _tree.flatten(samples[0])
    columns: list[list[Any]] = [[] for _ in first]
    for number, sample in enumerate(samples):
        leaves, shape = _tree.flatten(sample)
        if shape != structure:
            raise ValueError(f"default_collate: sample {number} is {shape}, the first one {structure}")
        for column, leaf in zip(columns, leaves, strict=True):
            column.append(leaf)
    return _tree.unflatten(structure, [_stacked(c) for c in columns])


def _stacked(column: list[Any]) -> Any:
    if isinstance(column[0], str | bytes):
        return column
    arrays = [np.asarray(x) for x in column]
    shapes = {a.shape for a in arrays}
    if len(shapes) > 1:
        raise ValueError(
            f"default_collate: samples of shapes {', '.join(map(str, sorted(shapes)))} make no batch; bring them "
            "to one size (a transform such as Resize, CenterCrop), or give a collate_fn"
        )
    return np.stack(arrays)
