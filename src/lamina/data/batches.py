"""Batches: the composition and order of batches as a pure function of seed, epoch and position.

No state is kept between epochs but the epoch's number, so training can resume exactly where it stopped:
`batches.epoch(3, start=17)` is what an uninterrupted run would have seen.
"""

from __future__ import annotations

import hashlib
import itertools
import queue
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import numpy as np

from lamina import _tree
from lamina._renamed import renamed
from lamina.ops.arguments import Checked, checked
from lamina.runtime.ranks import common_world
from lamina.tensors import Tensor, as_tensor

Array = np.ndarray[Any, Any]
Batch = tuple[Array, ...]
#: Returns the samples with these indices; the generator is for random augmentation.
Loader = Callable[[Array, np.random.Generator], Batch]
T = TypeVar("T")


@runtime_checkable
class Epochs(Protocol):
    """Data that can be read from any epoch and position: Batches, and Prefetch of them."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Any]: ...
    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """The batches of one epoch from position `start` on."""
        ...


@runtime_checkable
class SeededGenerator(Protocol):
    """A generator with a known seed, such as `nn.Generator`."""

    def initial_seed(self) -> int:
        """The seed."""
        ...


class Batches(Checked):
    """A data set split into batches. Each `for` loop over it is one more epoch, in a new order when shuffled.

    load: returns (images, labels, …) for an array of indices and a generator for random augmentation.
    count: the number of samples.
    batch_size: samples per batch. With drop_last the last, shorter batch of an epoch is left out.
    seed: order and augmentation depend only on it, on the epoch and on the position.
    num_classes: how many labels there are, if the data set knows it.
    rank, world_size: of several processes that train together each reads its part of every batch: `batch_size`
        is that of all ranks, so that order, steps and positions are the same on any number of them. Rank r has
        the r-th of `world_size` equal pieces; of the last, shorter batch it has what remains, possibly nothing
        (fine for evaluation, which sums up; ranks that wait for each other need drop_last or pad_last).
    parallel: "data": rank and world_size are those of this process (`lamina.distributed`), as for `train_step`.
    pad_last: the last batch is padded with its own samples, and batches are (inputs, (targets, weights)):
        weights (n,) float32 are 0 for the padding, and such that their mean over a whole batch is 1. A
        loss that is the mean of weights * losses of samples is then exact on any number of ranks.
    Raises ValueError for a batch_size < 1 or one that is no multiple of world_size, a rank that is not below it,
    drop_last with pad_last, or when drop_last leaves no batches from a non-empty data set; no samples give no
    batches.
    """

    @renamed(batch="batch_size", classes="num_classes")
    def __init__(
        self,
        load: Loader,
        count: int,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        pad_last: bool = False,
        num_classes: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        parallel: Literal["data"] | None = None,
    ) -> None:
        rank, world_size = place_of(parallel, rank, world_size)
        self.rows = rows_of(batch_size, rank, world_size)
        if drop_last and pad_last:
            raise ValueError("drop_last leaves the last batch out, pad_last fills it up: take one of them")
        if drop_last and 0 < count < batch_size:
            raise ValueError(
                f"{count} samples make no batch of {batch_size}; take a smaller batch_size or drop_last=False"
            )
        self.load, self.count, self.batch_size = load, count, batch_size
        self.shuffle, self.seed, self.drop_last, self.pad_last = shuffle, seed, drop_last, pad_last
        self.num_classes, self.rank, self.world_size = num_classes, rank, world_size
        self.next_epoch = 0

    def __len__(self) -> int:
        return self.count // self.batch_size if self.drop_last else -(-self.count // self.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        number, self.next_epoch = self.next_epoch, self.next_epoch + 1
        return self.epoch(number)

    def epoch(self, number: int, start: int = 0) -> Iterator[Batch]:
        """The batches of epoch `number` from position `start` on."""
        for part in self.parts(number, start):
            yield part.weighted(self.load(part.indices, part.rng))

    def parts(self, number: int, start: int = 0) -> Iterator[BatchPart]:
        """The loads of this rank for the batches of an epoch."""
        order, size = self.order(number), self.batch_size
        for position in range(start, len(self)):
            batch = np.asarray(order[position * size : (position + 1) * size])
            part = part_of(len(batch), size, self.rows, [self.seed, number, position], self.pad_last)
            if len(part.indices):
                yield replace(part, indices=batch[part.indices])

    def describe(self) -> dict[str, Any]:
        """A description that a resumed run must match: sizes, order, and a digest of the first samples as loaded."""
        indices = np.arange(min(self.size, self.batch_size))
        first = self.load(indices, np.random.default_rng(self.seed)) if self.count else ()
        content = hashlib.sha256()
        for leaf in _tree.leaves(first):
            part = np.ascontiguousarray(leaf)
            content.update(f"{part.dtype}{part.shape}".encode() + part.tobytes())
        facts = {"samples": self.count, "batch_size": self.batch_size, "drop_last": self.drop_last}
        order = {"shuffle": self.shuffle, "seed": self.seed, "pad_last": self.pad_last}
        return {**facts, **order, "content": content.hexdigest()[:16]}

    @property
    def size(self) -> int:
        """The number of samples to choose from."""
        return self.count

    @property
    def uneven(self) -> bool:
        """Whether ranks have different numbers of samples of an epoch's last batch."""
        whole = self.drop_last or self.pad_last or self.count % self.batch_size == 0
        return self.world_size > 1 and not whole

    def order(self, number: int) -> Array | range:
        """The indices of all samples in the order of epoch `number`."""
        if not self.shuffle:
            return range(self.count)  # takes no memory, however many there are
        return np.random.default_rng([self.seed, number]).permutation(self.count)

    def __repr__(self) -> str:
        order = f"shuffled by seed {self.seed}" if self.shuffle else "in order"
        part = f", rank {self.rank} of {self.world_size}" if self.world_size > 1 else ""
        return f"Batches({self.count} samples, {len(self)} batches of {self.batch_size}, {order}{part})"


@dataclass(frozen=True)
class BatchPart:
    """One rank's load for one batch: samples, a generator, and weights, if requested."""

    indices: Any
    rng: np.random.Generator
    weights: Array | None = None

    def weighted(self, batch: Any) -> Any:
        """The batch, with its weights beside the targets: a tensor where these are. Raises ValueError if it has no
        targets."""
        if self.weights is None:
            return batch
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            kind = f"a {type(batch).__name__}"
            raise ValueError(
                f"pad_last: a batch must be a pair (inputs, targets), got {kind}; or take drop_last"
            )
        of_tensors = any(isinstance(x, Tensor) for x in _tree.leaves(batch[1]))
        return batch[0], (batch[1], as_tensor(self.weights) if of_tensors else self.weights)


def seed_of(what: str, generator: SeededGenerator | np.random.Generator | None, seed: int | None) -> int:
    """The given seed (0 by default), a generator's, or one drawn from a NumPy generator. Raises ValueError."""
    if generator is None:
        return 0 if seed is None else seed
    if seed is not None:
        raise ValueError(f"{what}: generator= and seed={seed} both say where random numbers begin: give one")
    if isinstance(generator, np.random.Generator):
        return int(generator.integers(1 << 63))
    return generator.initial_seed()


def place_of(parallel: str | None, rank: int, world_size: int) -> tuple[int, int]:
    """Rank and world size as they are given, or those of this process.

    Raises ValueError where both are given, RuntimeError where ranks were started but not connected.
    """
    if parallel is None:
        return rank, world_size
    if (rank, world_size) != (0, 1):
        raise ValueError(
            f'parallel="data" finds rank and world_size; rank={rank} and world_size={world_size} are given, too'
        )
    world = common_world()
    return world.rank, world.size


def rows_of(batch_size: int, rank: int, world_size: int) -> slice:
    """The samples of a whole batch that belong to a rank. Raises ValueError."""
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size}")
    if not 0 <= rank < world_size:
        raise ValueError(
            f"rank must be from 0 to world_size - 1, got rank={rank} and world_size={world_size}"
        )
    if batch_size % world_size:
        near = max(batch_size - batch_size % world_size, world_size)
        raise ValueError(
            f"batch_size={batch_size} is that of all ranks and must be a multiple of world_size={world_size}, "
            f"such as {near}"
        )
    each = batch_size // world_size
    return slice(rank * each, (rank + 1) * each)


def part_of(count: int, size: int, rows: slice, words: list[int], padded: bool) -> BatchPart:
    """A rank's part of a batch of `count` samples, where whole batches have `size`: the positions of its samples.

    rows: the rank's. words: the seed of the batch.
    """
    chosen = np.resize(np.arange(count), size if padded else count)[rows]
    weights = (
        np.where(np.arange(size) < count, np.float32(size / count), np.float32(0))[rows] if padded else None
    )
    return BatchPart(chosen, generator_of(words, rows.start), weights)


def generator_of(words: list[int], first: int) -> np.random.Generator:
    """The generator of a batch, for its samples from `first` on: its i-th spawned generator belongs to sample
    first + i of the batch, whoever loads it; its own draws are not repeated by any other part of the batch."""
    bits = np.random.PCG64(np.random.SeedSequence(words, n_children_spawned=first))
    return np.random.Generator(bits.advance(first << 64))


@renamed(batch="batch_size")
@checked
def arrays(
    x: Any,
    y: Any | None = None,
    *,
    batch_size: int = 32,
    shuffle: bool = True,
    seed: int = 0,
    drop_last: bool = False,
    pad_last: bool = False,
    rank: int = 0,
    world_size: int = 1,
    parallel: Literal["data"] | None = None,
) -> Batches:
    """Batches of arrays: x of shape (N, …) and, if given, y of shape (N, …). Dtypes are kept; otherwise as in
    `Batches`.

    Raises ValueError when the lengths differ.
    """
    parts = [np.asarray(a) for a in ((x,) if y is None else (x, y))]
    if len({len(a) for a in parts}) != 1:
        raise ValueError(f"arrays: x has {len(parts[0])} samples, y has {len(parts[1])}")

    def load(indices: Array, rng: np.random.Generator) -> Batch:
        return tuple(a[indices] for a in parts)

    return Batches(
        load,
        len(parts[0]),
        batch_size,
        shuffle=shuffle,
        seed=seed,
        drop_last=drop_last,
        pad_last=pad_last,
        rank=rank,
        world_size=world_size,
        parallel=parallel,
    )


class Prefetch(Checked):
    """Data prefetched by a thread, up to `depth` batches ahead. Any iterable; see `prefetch`."""

    def __init__(self, source: Iterable[Any], depth: int = 2) -> None:
        if depth < 1:
            raise ValueError(f"prefetch: depth must be at least 1, got {depth}")
        self.source, self.depth = source, depth

    def __len__(self) -> int:
        return len(self.source)  # type: ignore[arg-type]

    def __iter__(self) -> Iterator[Any]:
        return ahead(lambda: iter(self.source), self.depth)

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """The batches of one epoch from position `start` on.

        A source without epochs is read from its beginning, and `start` batches are skipped.
        """
        source = self.source
        if isinstance(source, Epochs):
            return ahead(lambda: source.epoch(number, start), self.depth)
        return ahead(lambda: itertools.islice(iter(source), start, None), self.depth)

    @property
    def world_size(self) -> int:
        """The number of ranks that share the source's batches."""
        return int(getattr(self.source, "world_size", 1))

    @property
    def uneven(self) -> bool:
        """Whether ranks have different numbers of samples of a batch, if the source knows it."""
        return bool(getattr(self.source, "uneven", False))

    def describe(self) -> dict[str, Any]:
        """The source's description; empty if it has none."""
        describe = getattr(self.source, "describe", dict)
        return dict(describe())


@checked
def prefetch(source: Iterable[Any], depth: int = 2) -> Prefetch:
    """The same batches, prefetched by a thread while the previous ones are used.

    An error in the source is raised in place of its batch. The thread ends with the loop.
    """
    return Prefetch(source, depth)


class LateError(RuntimeError):
    """A batch took longer than a loader's timeout."""

    def __init__(self, timeout: float) -> None:
        super().__init__(f"DataLoader timed out after {timeout:g} seconds: no batch was made in that time")


def ahead(start: Callable[[], Iterator[T]], depth: int, timeout: float = 0) -> Iterator[T]:
    """Iterate over start() in a thread that prefetches up to `depth` items. Raises LateError where an item takes
    longer than `timeout` seconds."""
    items: queue.Queue[tuple[str, Any]] = queue.Queue(depth)
    stop = threading.Event()
    thread = threading.Thread(target=_produce, args=(start, items, stop), name="lamina prefetch", daemon=True)
    thread.start()
    late = False
    try:
        while True:
            try:
                kind, item = items.get(timeout=timeout or None)
            except queue.Empty:
                late = True
                raise LateError(timeout) from None
            if kind == "error":
                raise item
            if kind == "end":
                return
            yield item
    finally:
        stop.set()
        _drain(items)
        if not late:
            thread.join()


def _produce(
    start: Callable[[], Iterator[T]], items: queue.Queue[tuple[str, Any]], stop: threading.Event
) -> None:
    """Fill the queue until the source ends or fails, or the reader stops."""
    last: tuple[str, Any] = ("end", None)
    try:
        for item in start():
            if not _put(items, ("item", item), stop):
                return
    except BaseException as error:  # passed to the reader, who raises it
        last = ("error", error)
    _put(items, last, stop)


def _put(items: queue.Queue[tuple[str, Any]], item: tuple[str, Any], stop: threading.Event) -> bool:
    while not stop.is_set():
        try:
            items.put(item, timeout=0.1)
        except queue.Full:
            continue
        return True
    return False


def _drain(items: queue.Queue[tuple[str, Any]]) -> None:
    while not items.empty():
        items.get_nowait()
