"""Samplers: the order, number and grouping of the samples that a `DataLoader` reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Sized
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from lamina.data.batches import SeededGenerator, place_of
from lamina.ops.arguments import Checked

Array = np.ndarray[Any, Any]
Indices = TypeVar("Indices", covariant=True)


@runtime_checkable
class Sampler(Protocol[Indices]):
    """Yields the indices of an epoch's samples, or of its batches, at each `for`; a base for custom samplers."""

    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[Indices]: ...


def _own(generator: SeededGenerator | np.random.Generator | None) -> np.random.Generator | None:
    """The random source of a sampler that was given a generator."""
    if generator is None or isinstance(generator, np.random.Generator):
        return generator
    return np.random.default_rng(generator.initial_seed())


class _Drawn(Checked):
    """A sampler that draws each epoch's order: from its own generator, or the loader's."""

    rng: np.random.Generator | None

    def order(self, rng: np.random.Generator) -> Array:
        """The indices of an epoch; the sampler's own generator takes precedence over rng."""
        return self._draw(self.rng or rng)

    def _draw(self, rng: np.random.Generator) -> Array:
        raise NotImplementedError

    def __iter__(self) -> Iterator[int]:
        return iter(self.order(np.random.default_rng()).tolist())


class SequentialSampler(Checked):
    """All samples in their order."""

    def __init__(self, data_source: Sized) -> None:
        self.data_source = data_source

    def __len__(self) -> int:
        return len(self.data_source)

    def order(self, rng: np.random.Generator) -> range:
        """The indices of an epoch; nothing is drawn."""
        return range(len(self))

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))


class RandomSampler(_Drawn):
    """All samples in random order, as torch.utils.data.RandomSampler.

    replacement: draw each from all. num_samples: how many an epoch has, all by default; beyond that, samples repeat
        in a new order. generator: an `nn.Generator`, whose seed is used, or NumPy's; by default the order depends on
        the loader's seed and the epoch's number. Raises ValueError for num_samples < 1.
    """

    def __init__(
        self,
        data_source: Sized,
        replacement: bool = False,
        num_samples: int | None = None,
        generator: SeededGenerator | np.random.Generator | None = None,
    ) -> None:
        if num_samples is not None and num_samples < 1:
            raise ValueError(f"RandomSampler: num_samples={num_samples} must be at least 1")
        self.data_source, self.replacement, self._count = data_source, replacement, num_samples
        self.rng = _own(generator)

    @property
    def num_samples(self) -> int:
        """The number of samples of an epoch."""
        return len(self.data_source) if self._count is None else self._count

    def __len__(self) -> int:
        return self.num_samples

    def _draw(self, rng: np.random.Generator) -> Array:
        size, count = len(self.data_source), self.num_samples
        if self.replacement:
            return rng.integers(0, size, count)
        rounds = -(-count // size) if size else 0
        return np.concatenate([np.zeros(0, np.int64), *(rng.permutation(size) for _ in range(rounds))])[
            :count
        ]


class SubsetRandomSampler(_Drawn):
    """The samples with these indices, in random order; generator as `RandomSampler`'s.

    Raises TypeError for other things than a sequence of integers.
    """

    def __init__(
        self, indices: Sequence[int] | Any, generator: SeededGenerator | np.random.Generator | None = None
    ) -> None:
        given = np.asarray(indices)
        if not given.ndim or (given.size and given.dtype.kind not in "iu"):
            raise TypeError(
                f"SubsetRandomSampler: indices must be a sequence of integers of 64 bits, got {indices!r:.80}"
            )
        self.indices = given.astype(np.int64).reshape(-1)
        self.rng = _own(generator)

    def __len__(self) -> int:
        return len(self.indices)

    def _draw(self, rng: np.random.Generator) -> Array:
        return rng.permutation(self.indices)


class BatchSampler(Checked):
    """Lists of a sampler's indices, batch_size each, as torch.utils.data.BatchSampler.

    The last list may be shorter, or is left out with drop_last. Raises ValueError for batch_size < 1.
    """

    def __init__(self, sampler: Iterable[int], batch_size: int, drop_last: bool) -> None:
        if batch_size < 1:
            raise ValueError(f"BatchSampler: batch_size must be at least 1, got {batch_size}")
        self.sampler, self.batch_size, self.drop_last = sampler, batch_size, drop_last

    def __len__(self) -> int:
        count = len(self.sampler)  # type: ignore[arg-type]
        return count // self.batch_size if self.drop_last else -(-count // self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        return self._cut(self.sampler)

    def batches(self, rng: np.random.Generator) -> Iterator[list[int]]:
        """Those of an epoch, whose order is drawn from rng if the sampler is random."""
        order = getattr(self.sampler, "order", None)
        return self._cut(self.sampler if order is None else order(rng))

    def set_epoch(self, number: int) -> None:
        """Tell the sampler the number of the next epoch."""
        getattr(self.sampler, "set_epoch", lambda number: None)(number)

    def _cut(self, indices: Iterable[int]) -> Iterator[list[int]]:
        batch: list[int] = []
        for index in indices:
            batch.append(int(index))
            if len(batch) == self.batch_size:
                yield batch
                batch = []
        if batch and not self.drop_last:
            yield batch


class WeightedRandomSampler(_Drawn):
    """Draws sample i with a probability in proportion to weights[i], as torch.utils.data.WeightedRandomSampler.

    num_samples: how many an epoch has. replacement: whether a sample may come several times. An epoch's draws depend
        only on the loader's seed and the epoch's number, unless a generator is given, as for `RandomSampler`;
        iterating over the sampler itself draws anew each time.
    Raises ValueError for weights that are negative, not finite or all 0, and for more samples than there are weights
    above 0 without replacement.
    """

    def __init__(
        self,
        weights: Sequence[float] | Any,
        num_samples: int,
        replacement: bool = True,
        generator: SeededGenerator | np.random.Generator | None = None,
    ) -> None:
        found = np.asarray(weights, np.float64)
        if found.ndim != 1 or not np.isfinite(found).all() or (found < 0).any() or not found.sum():
            raise ValueError(
                "WeightedRandomSampler: weights must be numbers of at least 0, one for each sample, not all 0, got "
                f"{weights!r:.80}"
            )
        if num_samples < 1 or (not replacement and num_samples > np.count_nonzero(found)):
            raise ValueError(
                f"WeightedRandomSampler: num_samples={num_samples} must be at least 1, and without replacement at "
                f"most {np.count_nonzero(found)}, of which the weight is above 0"
            )
        self.weights, self.num_samples, self.replacement = found / found.sum(), num_samples, replacement
        self.rng = _own(generator)

    def _draw(self, rng: np.random.Generator) -> Array:
        return rng.choice(len(self.weights), self.num_samples, self.replacement, self.weights)

    def __len__(self) -> int:
        return self.num_samples


class DistributedSampler(Checked):
    """One rank's part of all samples, every num_replicas-th of a shared order, as torch's DistributedSampler.

    num_replicas, rank: those of this process (`lamina.distributed`) unless given. shuffle: the order is drawn from
        seed and the epoch's number, which a `DataLoader` sets by itself (`set_epoch`). All ranks get equal numbers:
        samples are left out with drop_last, else the first ones are repeated. A loader's batch_size is then the
        rank's own; `DataLoader(..., parallel="data")` instead splits every batch among the ranks, and drops or
        repeats nothing.
    Raises ValueError for a rank that is not below num_replicas.
    """

    def __init__(
        self,
        dataset: Sized,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        if num_replicas is None or rank is None:
            own_rank, world_size = place_of("data", 0, 1)
            num_replicas = world_size if num_replicas is None else num_replicas
            rank = own_rank if rank is None else rank
        if not 0 <= rank < num_replicas:
            raise ValueError(
                f"DistributedSampler: rank must be from 0 to num_replicas - 1, got rank={rank} and "
                f"num_replicas={num_replicas}"
            )
        self.dataset, self.num_replicas, self.rank = dataset, num_replicas, rank
        self.shuffle, self.seed, self.drop_last, self.epoch = shuffle, seed, drop_last, 0

    @property
    def num_samples(self) -> int:
        """The number of samples that each rank has in an epoch."""
        size, ranks = len(self.dataset), self.num_replicas
        return size // ranks if self.drop_last else -(-size // ranks)

    @property
    def total_size(self) -> int:
        """The number of samples of all ranks."""
        return self.num_samples * self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Set the number of the next epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.num_samples

    def __iter__(self) -> Iterator[int]:
        size = len(self.dataset)
        order = (
            np.random.default_rng([self.seed, self.epoch]).permutation(size)
            if self.shuffle
            else np.arange(size)
        )
        return iter(np.resize(order, self.total_size)[self.rank :: self.num_replicas].tolist())
