"""The order of samples from sequentially read shards, where their numbers of samples are known.

The order is then known before anything is read, so that a rank opens only shards with samples of its own.
Several shards are read side by side (lanes): each batch takes equal parts of them, concatenated, and ranks
take their parts of batches from separate lanes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import IO, Any, TypeVar

import numpy as np

from lamina.data.idx import DataError
from lamina.data.tar_index import read_shard
from lamina.runtime import write_atomically
from lamina.runtime.ranks import current_world

Array = np.ndarray[Any, Any]
T = TypeVar("T")
#: The prefix of the number in the file beside a shard.
_FORMAT = "lamina samples 1"


def count_samples(path: str, open: Callable[[str], IO[bytes]]) -> int:
    """The number of samples of a shard: from the file beside it (`train.tar.gz.count`), if that is not older, else by
    reading the shard through; the number is stored there if that can be written. Raises DataError."""
    shard, beside = Path(path), Path(f"{path}.count")
    with suppress(OSError, ValueError):
        if beside.stat().st_mtime_ns >= shard.stat().st_mtime_ns:
            head, _, number = beside.read_text(encoding="utf-8").strip().rpartition(" ")
            if head == _FORMAT and int(number) >= 0:
                return int(number)
    with open(path) as source:
        count = sum(1 for _ in read_shard(path, source))
    if shard.is_file():
        with suppress(OSError):  # a folder that others own: it is counted again in each run
            write_atomically(beside, [f"{_FORMAT} {count}\n".encode()])
    return count


def counted(paths: Sequence[str], open: Callable[[str], IO[bytes]], *, together: bool) -> list[int]:
    """The numbers of samples of shards. together: each rank of the world counts a part; all must call it."""
    world = current_world()
    rank, size = (world.rank, world.size) if together else (0, 1)
    found, error = list[int](), ""
    try:
        found = [count_samples(path, open) for path in paths[rank::size]]
    except (DataError, OSError) as failed:
        error = str(failed)
    given = world.communicator().all_gather_object((found, error)) if size > 1 else [(found, error)]
    for _, text in given:
        if text:
            raise DataError(text)
    return [given[i % size][0][i // size] for i in range(len(paths))]


def batches_in_order(
    counts: Sequence[int], batch_size: int, lanes: int, buffer: int, rng: np.random.Generator | None
) -> Iterator[list[tuple[int, int]]]:
    """Each batch's samples as (shard, number in it).

    counts: samples of each shard. lanes: the number of shards read side by side; each contributes batch_size / lanes
    samples to a batch, and when one is exhausted, those with the most left contribute more. rng: shards come in
    random order, and each sample is drawn from buffer / lanes of its lane; None: in order.
    """
    shards = range(len(counts)) if rng is None else rng.permutation(len(counts)).tolist()
    rngs = [None] * lanes if rng is None else [rng] if lanes == 1 else rng.spawn(lanes)
    held = [_lane(counts, shards[lane::lanes], max(buffer // lanes, 1), own) for lane, own in enumerate(rngs)]
    left = [sum(counts[s] for s in shards[lane::lanes]) for lane in range(lanes)]
    while any(left):
        taken = _shares_of(left, batch_size)
        left = [n - t for n, t in zip(left, taken, strict=True)]
        yield [sample for lane, count in zip(held, taken, strict=True) for sample in islice(lane, count)]


def _lane(
    counts: Sequence[int], shards: Sequence[int], buffer: int, rng: np.random.Generator | None
) -> Iterator[tuple[int, int]]:
    samples = ((shard, number) for shard in shards for number in range(counts[shard]))
    return samples if rng is None else drawn(samples, buffer, rng)


def _shares_of(left: Sequence[int], size: int) -> list[int]:
    """How many samples of the next batch come from each lane."""
    taken = [min(size // len(left), n) for n in left]
    missing = size - sum(taken)
    for lane in sorted(range(len(left)), key=lambda i: taken[i] - left[i]):
        more = min(missing, left[lane] - taken[lane])
        taken[lane], missing = taken[lane] + more, missing - more
    return taken


def drawn(samples: Iterator[T], size: int, rng: np.random.Generator) -> Iterator[T]:
    """The samples, each drawn from a buffer of `size`."""
    held = list(islice(samples, size))
    for sample in samples:
        place = int(rng.integers(len(held)))
        yield held[place]
        held[place] = sample
    yield from (held[i] for i in rng.permutation(len(held)))
