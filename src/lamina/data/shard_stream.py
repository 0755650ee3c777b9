"""Tar shards that can only be read from beginning to end: compressed ones, pipes, what comes over a net."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from lamina.data.batches import BatchPart, part_of, place_of, rows_of
from lamina.data.datasets import Transform
from lamina.data.loader import Collate, default_collate, made_by_threads
from lamina.data.shards import IMAGE_AND_LABEL, Decoder, shard_paths
from lamina.data.tar_index import read_shard
from lamina.ops.arguments import Checked


class _Raw(NamedTuple):
    """A sample as it is in a shard: the shard, the key, and the contents of its files by kind."""

    shard: str
    key: str
    files: Mapping[str, bytes]


def open_file(name: str) -> IO[bytes]:
    """A file, or a pipe, for reading."""
    return Path(name).open("rb")


class ShardStream(Checked):
    """Batches of tar shards that are read through, one behind the other; each `for` loop is one more epoch.

    paths, columns, transform, mode, max_pixels: as in `TarShards`, which reads shards that can be seeked, and
        no more of them than a rank needs: of a stream every rank reads all, and decodes its part.
    batch_size, shuffle, seed, drop_last, pad_last, rank, world_size, parallel: as in `Batches`. Shuffled,
        shards are read in random order, and each sample is drawn from `buffer` that were read.
    num_workers, prefetch_factor, collate_fn: as in `DataLoader`; workers are threads.
    open: opens what a path names, such as urllib.request.urlopen; gzip, bzip2 and xz are understood.
    length: the number of batches of an epoch, where it is known.

    The order depends on seed and epoch alone. To go on within an epoch what was before is read again, but not
    decoded.
    Raises ValueError for numbers out of range, and DataError for what cannot be read.
    """

    def __init__(
        self,
        paths: str | Path | Sequence[str | Path],
        batch_size: int,
        columns: Sequence[str] | None = IMAGE_AND_LABEL,
        transform: Transform | None = None,
        *,
        shuffle: bool = False,
        buffer: int = 1000,
        seed: int = 0,
        num_workers: int = 0,
        prefetch_factor: int = 2,
        drop_last: bool = False,
        pad_last: bool = False,
        collate_fn: Collate | None = None,
        mode: str = "rgb",
        max_pixels: int = 1 << 26,
        open: Callable[[str], IO[bytes]] = open_file,
        length: int | None = None,
        rank: int = 0,
        world_size: int = 1,
        parallel: Literal["data"] | None = None,
    ) -> None:
        if buffer < 1 or num_workers < 0 or prefetch_factor < 1:
            raise ValueError(
                "ShardStream: buffer and prefetch_factor must be at least 1 and num_workers at least 0, got "
                f"{buffer}, {prefetch_factor} and {num_workers}"
            )
        if drop_last and pad_last:
            raise ValueError("drop_last leaves the last batch out, pad_last fills it up: take one of them")
        rank, world_size = place_of(parallel, rank, world_size)
        self.rows = rows_of(batch_size, rank, world_size)
        self.decoder = Decoder(columns, transform, mode=mode, max_pixels=max_pixels)
        self.paths, self.batch_size, self.length = shard_paths(paths), batch_size, length
        self.shuffle, self.buffer, self.seed = shuffle, buffer, seed
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        self.drop_last, self.pad_last = drop_last, pad_last
        self.collate = collate_fn or default_collate
        self.open, self.rank, self.world_size = open, rank, world_size
        self.next_epoch = 0

    def __len__(self) -> int:
        if self.length is None:
            raise TypeError("ShardStream: a stream does not know how many batches it has; length= says it")
        return self.length

    def __iter__(self) -> Iterator[Any]:
        number, self.next_epoch = self.next_epoch, self.next_epoch + 1
        return self.epoch(number)

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """The batches of epoch `number` from position `start` on."""
        parts = self._parts(number, start)
        if self.num_workers:
            return made_by_threads(
                parts, self._load, self.num_workers, self.num_workers * self.prefetch_factor
            )
        return (part.weighted(self._load(part.indices, part.rng)) for part in parts)

    def describe(self) -> dict[str, Any]:
        """What a resumed run must find again: shards, sizes and order."""
        facts = {"shards": [Path(p).name for p in self.paths], "batch_size": self.batch_size}
        rest = ("drop_last", "pad_last", "shuffle", "seed", "buffer")
        return facts | {name: getattr(self, name) for name in rest}

    def _parts(self, number: int, start: int) -> Iterator[BatchPart]:
        """What this rank decodes of each batch."""
        rng = np.random.default_rng([self.seed, number])
        with closing(self._read(rng)) as read:
            raw = _drawn(read, self.buffer, rng) if self.shuffle else read
            for position, batch in enumerate(iter(lambda: list(islice(raw, self.batch_size)), [])):
                if position < start or (self.drop_last and len(batch) < self.batch_size):
                    continue
                words = [self.seed, number, position]
                part = part_of(len(batch), self.batch_size, self.rows, words, self.pad_last)
                if len(part.indices):
                    yield replace(part, indices=[batch[i] for i in part.indices])

    def _read(self, rng: np.random.Generator) -> Generator[_Raw]:
        """All samples of an epoch, as they stand in the shards."""
        order = rng.permutation(len(self.paths)) if self.shuffle else range(len(self.paths))
        for path in (self.paths[i] for i in order):
            with self.open(path) as source:
                for files, contents in read_shard(path, source):
                    kinds = self.decoder.wanted([f.kind for f in files], f"{path}: {files[0].key}")
                    found = {f.kind: data for f, data in zip(files, contents, strict=True)}
                    yield _Raw(path, files[0].key, {kind: found[kind] for kind in kinds})

    def _load(self, samples: Any, rng: np.random.Generator) -> Any:
        own = rng.spawn(len(samples))
        return self.collate(
            [self.decoder.sample(s.key, s.files, r, s.shard) for s, r in zip(samples, own, strict=True)]
        )

    def __repr__(self) -> str:
        return f"ShardStream({len(self.paths)} shards, batches of {self.batch_size})"


def _drawn(samples: Iterator[_Raw], size: int, rng: np.random.Generator) -> Iterator[_Raw]:
    """The samples, each drawn from `size` of them that were read."""
    held = list(islice(samples, size))
    for sample in samples:
        place = int(rng.integers(len(held)))
        yield held[place]
        held[place] = sample
    yield from (held[i] for i in rng.permutation(len(held)))
