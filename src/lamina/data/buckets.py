"""Length bucketing: samples of similar length are batched, and padded to their bucket's length, with masks.

A compiled program is specific to shapes. With buckets there are as many programs as buckets, and little padding;
lengths and masks mark the padding, so that recurrent layers (`lengths=`), attention (masks) and losses ignore it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from lamina._tree import LEAF, Structure, flatten, leaves, unflatten
from lamina.data.batches import place_of, rows_of
from lamina.ops.arguments import Checked, checked

Array = np.ndarray[Any, Any]


class Padded(NamedTuple):
    """Samples as one batch.

    values: the samples' structure; arrays (t, …) of N samples are (N, T, …), numbers (N,).
    lengths: (N,) int64, of each sample. mask: (N, T) bool, False where there is padding.
    """

    values: Any
    lengths: Array
    mask: Array


@checked
def pad(samples: Sequence[Any], length: int | None = None, padding: Any = 0) -> Padded:
    """Samples of different lengths as one batch, padded at their ends.

    Args:
        samples: each an array (t, …) or nested tuples, lists and dicts of arrays; those whose first axis has the
            sample's length, that of its first array, are padded. The others, such as labels of whole samples, must
            have equal shapes.
        length: T, at least the longest sample's, which is the default.
        padding: the padding value: a number, or one for each array in the samples' structure. For labels
            -100, which `ops.cross_entropy` ignores: padding=(0, -100).
    Raises ValueError for no samples, too small a length, and different structures or shapes.
    """
    if not samples:
        raise ValueError("pad: there are no samples")
    taken = [_taken(s) for s in samples]
    structure = taken[0][1]
    if any(s != structure for _, s in taken):
        raise ValueError(f"pad: samples have different structures: {', '.join({str(s) for _, s in taken})}")
    lengths = np.array([_length(arrays) for arrays, _ in taken], np.int64)
    longest = int(lengths.max())
    length = longest if length is None else length
    if length < longest:
        raise ValueError(f"pad: a sample of {longest} does not fit into length={length}")
    fill = leaves(padding) if flatten(padding)[1] == structure else [padding] * len(taken[0][0])
    columns = zip(*(arrays for arrays, _ in taken), strict=True)
    made = [
        _stacked(column, lengths, length, value, i)
        for i, (column, value) in enumerate(zip(columns, fill, strict=True))
    ]
    return Padded(unflatten(structure, made), lengths, np.arange(length) < lengths[:, None])


def _taken(sample: Any) -> tuple[list[Array], Structure]:
    found, structure = ([sample], LEAF) if isinstance(sample, np.ndarray) else flatten(sample)
    return [np.asarray(x) for x in found], structure


def _length(arrays: Sequence[Array]) -> int:
    if not arrays or arrays[0].ndim == 0:
        raise ValueError("pad: a sample's first array is its sequence, of shape (t, …); got a number")
    return len(arrays[0])


def _stacked(column: Sequence[Array], lengths: Array, length: int, value: Any, index: int) -> Array:
    """One array of all samples."""
    padded = all(x.ndim and len(x) == n for x, n in zip(column, lengths, strict=True))
    shapes = {x.shape[1:] if padded else x.shape for x in column}
    if len(shapes) > 1:
        raise ValueError(
            f"pad: array {index} of the samples has shapes {', '.join(map(str, sorted(shapes)))}: behind the axis of "
            "the length they must agree"
        )
    if not padded:
        return np.stack(column)
    found = np.full((len(column), length, *column[0].shape[1:]), value, column[0].dtype)
    for row, x in zip(found, column, strict=True):
        row[: len(x)] = x
    return found


@checked
def boundaries(lengths: Sequence[int] | Array, count: int, multiple: int = 1) -> list[int]:
    """At most `count` padded lengths, with the least total padding; each a multiple of `multiple`.

    Found by dynamic programming over the lengths that occur. Raises ValueError for numbers below 1, or multiples
    beyond 2^31 - 1.
    """
    if count < 1 or not 1 <= multiple < 1 << 31 or not len(lengths):
        raise ValueError(f"boundaries: {len(lengths)} lengths in {count} buckets of multiples of {multiple}")
    rounded = -(-np.asarray(lengths, np.int64) // multiple) * multiple
    ends, often = np.unique(rounded, return_counts=True)
    samples = np.concatenate([[0], np.cumsum(often)])
    best = ends * samples[1:]  # positions that the samples up to each end take in one bucket
    choice: list[Array] = []
    for _ in range(min(count, len(ends)) - 1):
        before = np.concatenate([[0], best])
        costs = before[None, :-1] + ends[:, None] * (samples[1:, None] - samples[None, :-1])
        costs[np.arange(len(ends))[None, :] > np.arange(len(ends))[:, None]] = np.iinfo(np.int64).max
        choice.append(costs.argmin(1))
        best = costs.min(1)
    found, last = [int(ends[-1])], len(ends) - 1
    for previous in reversed(choice):
        last = int(previous[last]) - 1
        if last < 0:
            break
        found.append(int(ends[last]))
    return found[::-1]


class Buckets(Checked):
    """Batches of samples of similar length, each padded to its bucket's length; `for` loops are epochs.

    Args:
        samples: a sequence of samples, as `pad` takes them: arrays, or pairs (inputs, targets), ….
        batch_size: samples per batch; the last batch of a bucket may be shorter.
        buckets: the maximum number of buckets (their lengths by `boundaries`), or the lengths themselves.
        padding: as `pad` takes it.
        arrange: makes a batch from a `Padded`; by default ((inputs, lengths), targets) from pairs, (values, lengths)
            from others, which is what `train_step` takes for a network with a `forward(inputs, lengths)`.
        shuffle, seed: the order within buckets, and of the batches, depends on seed and epoch alone.
        drop_last: leave out the shorter batches, so that there is one shape per bucket.
        rank, world_size, parallel: as in `Batches`: batch_size is that of all ranks, which use the same bucket at a
            time.
    Raises ValueError for a batch_size < 1 or one that is no multiple of world_size, samples that are longer than
    every bucket, or when nothing is left.
    """

    def __init__(
        self,
        samples: Sequence[Any],
        batch_size: int,
        *,
        buckets: int | Sequence[int] = 8,
        padding: Any = 0,
        arrange: Callable[[Padded], Any] | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        parallel: Literal["data"] | None = None,
    ) -> None:
        rank, world_size = place_of(parallel, rank, world_size)
        self.rows, self.rank, self.world_size = rows_of(batch_size, rank, world_size), rank, world_size
        self.samples, self.batch_size, self.padding = samples, batch_size, padding
        self.arrange, self.shuffle, self.seed, self.drop_last = (
            arrange or inputs_with_lengths,
            shuffle,
            seed,
            drop_last,
        )
        lengths = np.array([_length(_taken(s)[0]) for s in samples], np.int64)
        self.lengths = boundaries(lengths, buckets) if isinstance(buckets, int) else sorted(buckets)
        if len(lengths) and lengths.max() > self.lengths[-1]:
            raise ValueError(
                f"Buckets: a sample of {lengths.max()} is longer than the buckets {self.lengths}"
            )
        belongs = np.searchsorted(self.lengths, lengths)
        self._members = [np.flatnonzero(belongs == b) for b in range(len(self.lengths))]
        if not len(self):
            raise ValueError(f"Buckets: {len(lengths)} samples make no batch of {batch_size}")
        self.next_epoch = 0

    def __len__(self) -> int:
        size = self.batch_size
        return sum(len(m) // size if self.drop_last else -(-len(m) // size) for m in self._members)

    def __iter__(self) -> Iterator[Any]:
        number, self.next_epoch = self.next_epoch, self.next_epoch + 1
        return self.epoch(number)

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """The batches of epoch `number` from position `start` on."""
        for bucket, indices in self._order(number)[start:]:
            batch = [self.samples[i] for i in indices[self.rows]]
            if not batch:
                continue
            yield self.arrange(pad(batch, self.lengths[bucket], self.padding))

    def _order(self, number: int) -> list[tuple[int, Array]]:
        """Bucket and samples of each batch of an epoch."""
        rng = np.random.default_rng([self.seed, number])
        batches: list[tuple[int, Array]] = []
        for bucket, members in enumerate(self._members):
            order = rng.permutation(members) if self.shuffle else members
            cut = [order[i : i + self.batch_size] for i in range(0, len(order), self.batch_size)]
            batches += [(bucket, b) for b in cut if len(b) == self.batch_size or not self.drop_last]
        return [batches[i] for i in rng.permutation(len(batches))] if self.shuffle else batches

    @property
    def uneven(self) -> bool:
        """Whether ranks have different numbers of samples of a bucket's last batch."""
        whole = self.drop_last or not any(len(m) % self.batch_size for m in self._members)
        return self.world_size > 1 and not whole

    def describe(self) -> dict[str, Any]:
        """A description that a resumed run must match: sizes, order, and a digest of the first batch."""
        content = hashlib.sha256()
        first = pad(
            [self.samples[i] for i in range(min(len(self.samples), self.batch_size))], None, self.padding
        )
        for part in map(np.ascontiguousarray, leaves(first.values)):
            content.update(f"{part.dtype}{part.shape}".encode() + part.tobytes())
        facts = {"samples": len(self.samples), "batch_size": self.batch_size, "drop_last": self.drop_last}
        order = {"shuffle": self.shuffle, "seed": self.seed, "buckets": list(self.lengths)}
        return {**facts, **order, "content": content.hexdigest()[:16]}

    def __repr__(self) -> str:
        order = f"shuffled by seed {self.seed}" if self.shuffle else "in order"
        return f"Buckets({len(self.samples)} samples, lengths {self.lengths}, {len(self)} batches, {order})"


def inputs_with_lengths(batch: Padded) -> Any:
    """((inputs, lengths), targets) for pairs, else (values, lengths)."""
    if isinstance(batch.values, tuple) and len(batch.values) == 2:
        return (batch.values[0], batch.lengths), batch.values[1]
    return batch.values, batch.lengths
