"""Tar shards that can only be read sequentially: compressed ones, pipes, network streams."""

from __future__ import annotations

import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np

from lamina.data.batches import BatchPart, part_of, place_of, rows_of
from lamina.data.collate import default_collate
from lamina.data.datasets import Transform
from lamina.data.idx import DataError
from lamina.data.loader import Collate, made_by_threads
from lamina.data.shard_order import batches_in_order, counted, drawn
from lamina.data.shards import IMAGE_AND_LABEL, Decoder, shard_paths
from lamina.data.tar_index import read_shard
from lamina.data.workers import KeptWorkers, Ticket, WorkerError
from lamina.ops.arguments import Checked


class _Raw(NamedTuple):
    """A raw sample of a shard: the shard, the key, and the contents of its files by kind."""

    shard: str
    key: str
    files: Mapping[str, bytes]


def open_file(name: str) -> IO[bytes]:
    """A file, or a pipe, for reading."""
    return Path(name).open("rb")


class ShardStream(Checked):
    """Batches of tar shards that are read sequentially, one after another; each `for` loop is one more epoch.

    paths, columns, transform, mode, max_pixels: as in `TarShards`, which reads seekable shards, and
        no more of them than a rank needs.
    batch_size, shuffle, seed, drop_last, pad_last, rank, world_size, parallel: as in `Batches`. Shuffled,
        shards are read in random order, and each sample is drawn from a buffer of `buffer` samples.
    interleave: how many shards are read side by side; each batch takes equal parts of them. A rank, and each of
        its processes, then reads only the shards that its part comes from; otherwise it reads all of them, and
        decodes its part.
    samples: the number of samples of each shard. If it is left out and interleave is above 1, shards are counted
        once, by reading them (with parallel="data" each rank a part); the number is stored beside the shard.
    num_workers, prefetch_factor, collate_fn: as in `DataLoader`: workers are threads, which decode, or with
        processes=True processes, which also read.
    open: opens a path, such as urllib.request.urlopen; gzip, bzip2 and xz are detected.
    length: the number of batches of an epoch, if it is known and `samples` is not.

    The order depends only on seed, epoch, buffer and interleave. To resume within an epoch, earlier shards
    are skipped if their samples are counted; else they are read again, but not decoded.
    Raises ValueError for numbers out of range, and DataError for unreadable shards.
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
        interleave: int = 1,
        samples: Sequence[int] | None = None,
        num_workers: int = 0,
        processes: bool = False,
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
        if min(buffer, prefetch_factor, interleave) < 1 or num_workers < 0:
            raise ValueError(
                "ShardStream: buffer, prefetch_factor and interleave must be at least 1 and num_workers at least 0, "
                f"got {buffer}, {prefetch_factor}, {interleave} and {num_workers}"
            )
        if drop_last and pad_last:
            raise ValueError("drop_last leaves the last batch out, pad_last fills it up: take one of them")
        rank, world_size = place_of(parallel, rank, world_size)
        self.rows = rows_of(batch_size, rank, world_size)
        self.decoder = Decoder(columns, transform, mode=mode, max_pixels=max_pixels)
        self.paths, self.batch_size, self.length = shard_paths(paths), batch_size, length
        self.interleave = interleave
        self.samples = self._counted(samples, open, together=parallel == "data")
        self.shuffle, self.buffer, self.seed = shuffle, buffer, seed
        self.num_workers, self.prefetch_factor = num_workers, prefetch_factor
        self.processes = processes
        self.drop_last, self.pad_last = drop_last, pad_last
        self.collate = collate_fn or default_collate
        self.open, self.rank, self.world_size = open, rank, world_size
        self.next_epoch = 0
        self._kept = KeptWorkers()

    def _counted(
        self, samples: Sequence[int] | None, open: Callable[[str], IO[bytes]], *, together: bool
    ) -> list[int] | None:
        """The number of samples of each shard, None where it is not needed. Raises ValueError, DataError."""
        if self.interleave > 1 and (self.interleave > len(self.paths) or self.batch_size % self.interleave):
            raise ValueError(
                f"ShardStream: interleave={self.interleave} must divide batch_size={self.batch_size}, and be at most "
                f"the number of shards, {len(self.paths)}"
            )
        if samples is not None:
            if len(samples) != len(self.paths) or min(samples, default=0) < 0:
                raise ValueError(
                    f"ShardStream: samples must be a number for each of {len(self.paths)} shards, got {len(samples)}"
                )
            return list(samples)
        return counted(self.paths, open, together=together) if self.interleave > 1 else None

    def __len__(self) -> int:
        if self.samples is not None:
            total = sum(self.samples)
            return total // self.batch_size if self.drop_last else -(-total // self.batch_size)
        if self.length is None:
            raise TypeError("ShardStream: a stream does not know how many batches it has; length= says it")
        return self.length

    def __iter__(self) -> Iterator[Any]:
        number, self.next_epoch = self.next_epoch, self.next_epoch + 1
        return self.epoch(number)

    def epoch(self, number: int, start: int = 0) -> Iterator[Any]:
        """The batches of epoch `number` from position `start` on."""
        if self.num_workers and self.processes:
            return self._by_processes(number, start)
        parts = (part for part in self._parts(number, start, self.rows) if len(part.indices))
        if self.num_workers:
            return made_by_threads(
                parts, self._load, self.num_workers, self.num_workers * self.prefetch_factor
            )
        return (part.weighted(self._load(part.indices, part.rng)) for part in parts)

    @property
    def uneven(self) -> bool:
        """Whether ranks may have different numbers of samples of the last batch: unknown without `samples`."""
        known = self.samples is not None and sum(self.samples) % self.batch_size == 0
        return self.world_size > 1 and not (self.drop_last or self.pad_last or known)

    def describe(self) -> dict[str, Any]:
        """A description that a resumed run must match: shards, sizes and order."""
        facts = {"shards": [Path(p).name for p in self.paths], "batch_size": self.batch_size}
        rest = ("drop_last", "pad_last", "shuffle", "seed", "buffer")
        facts |= {name: getattr(self, name) for name in rest}
        return facts | ({"interleave": self.interleave} if self.interleave > 1 else {})

    def _parts(self, number: int, start: int, rows: slice) -> Iterator[BatchPart]:
        """The loads of these rows of each batch, with the raw samples of the shards."""
        rng = np.random.default_rng([self.seed, number])
        if self.samples is None:
            with closing(self._read(rng)) as read:
                raw = drawn(read, self.buffer, rng) if self.shuffle else read
                batches = iter(lambda: list(islice(raw, self.batch_size)), [])
                for part, batch in self._cut(batches, number, start, rows):
                    yield replace(part, indices=[batch[i] for i in part.indices])
            return
        order = batches_in_order(
            self.samples, self.batch_size, self.interleave, self.buffer, rng if self.shuffle else None
        )
        cut = [
            (part, [batch[i] for i in part.indices]) for part, batch in self._cut(order, number, start, rows)
        ]
        with closing(_SharedReading(self._shard, self.paths, [wanted for _, wanted in cut])) as reading:
            for part, wanted in cut:
                yield replace(part, indices=reading.take(wanted))

    def _cut(
        self, batches: Iterator[list[Any]], number: int, start: int, rows: slice
    ) -> Iterator[tuple[BatchPart, list[Any]]]:
        """These rows of each batch, as positions in it, and the batch."""
        for position, batch in enumerate(batches):
            if position < start or (self.drop_last and len(batch) < self.batch_size):
                continue
            words = [self.seed, number, position]
            yield part_of(len(batch), self.batch_size, rows, words, self.pad_last), batch

    # ---- processes
    def _by_processes(self, number: int, start: int) -> Iterator[Any]:
        """Batches whose rows are read and decoded by processes, each the same rows of every batch."""
        workers = self._kept.get(self.num_workers, _RowsMaker(self))
        loop = next(self._kept.loops)
        asked: deque[list[Ticket]] = deque()
        places = itertools.count(start)

        def ask() -> None:
            place = next(places)
            tasks = [(loop, number, place, share, self.num_workers) for share in range(self.num_workers)]
            asked.append([workers.submit(task, None) for task in tasks])

        try:
            for _ in range(self.prefetch_factor):
                ask()
            while None not in (found := [ticket.result() for ticket in asked.popleft()]):
                ask()
                samples = [sample for made, _ in found for sample in made]
                weights = np.concatenate([w for _, w in found]) if self.pad_last else None
                if samples:
                    part = BatchPart((), np.random.default_rng(0), weights)
                    yield part.weighted(self.collate(samples))
        except WorkerError:
            self.close()
            raise
        finally:
            for ticket in (t for tickets in asked for t in tickets):
                ticket.cancel()

    def close(self) -> None:
        """End the processes, if any; the next epoch starts new ones."""
        self._kept.close()

    # ---- reading
    def _read(self, rng: np.random.Generator) -> Generator[_Raw]:
        """All raw samples of an epoch, in shard order."""
        order = rng.permutation(len(self.paths)) if self.shuffle else range(len(self.paths))
        for path in (self.paths[i] for i in order):
            yield from self._shard(path)

    def _shard(self, path: str) -> Generator[_Raw]:
        """The samples of a shard."""
        with self.open(path) as source:
            for files, contents in read_shard(path, source):
                kinds = self.decoder.wanted([f.kind for f in files], f"{path}: {files[0].key}")
                found = {f.kind: data for f, data in zip(files, contents, strict=True)}
                yield _Raw(path, files[0].key, {kind: found[kind] for kind in kinds})

    def _decoded(self, samples: Sequence[Any], rng: np.random.Generator) -> list[Any]:
        """The samples of an open stream."""
        own = rng.spawn(len(samples))
        return [self.decoder.sample(s.key, s.files, r, s.shard) for s, r in zip(samples, own, strict=True)]

    def _load(self, samples: Any, rng: np.random.Generator) -> Any:
        return self.collate(self._decoded(samples, rng))

    def __repr__(self) -> str:
        return f"ShardStream({len(self.paths)} shards, batches of {self.batch_size})"


class _SharedReading:
    """Sequentially read shards, each read once, for samples that are requested in another order.

    shard: reads one. wanted: all samples that will be requested, as (shard, number in it).
    """

    def __init__(
        self,
        shard: Callable[[str], Generator[_Raw]],
        paths: Sequence[str],
        wanted: Sequence[Sequence[tuple[int, int]]],
    ) -> None:
        self._shard, self._paths = shard, paths
        self._uses: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
        for number, place in (sample for batch in wanted for sample in batch):
            self._uses[number][place] += 1  # a padded batch contains some twice
        self._open: dict[int, Generator[_Raw]] = {}
        self._place: dict[int, int] = {}
        self._held: dict[tuple[int, int], _Raw] = {}

    def take(self, samples: Sequence[tuple[int, int]]) -> list[_Raw]:
        """These samples. Raises DataError for a shard with fewer samples than expected."""
        return [self._one(*sample) for sample in samples]

    def _one(self, shard: int, number: int) -> _Raw:
        if (shard, number) not in self._held:
            self._read_to(shard, number)
        found, uses = self._held[shard, number], self._uses[shard]
        uses[number] -= 1
        if not uses[number]:
            del uses[number], self._held[shard, number]
        if not uses and shard in self._open:
            self._open.pop(shard).close()
        return found

    def _read_to(self, shard: int, number: int) -> None:
        """Read on until a sample, and keep earlier ones that are wanted later."""
        if shard not in self._open:
            self._open[shard], self._place[shard] = self._shard(self._paths[shard]), 0
        while self._place[shard] <= number:
            raw = next(self._open[shard], None)
            if raw is None:
                path, count = self._paths[shard], self._place[shard]
                raise DataError(
                    f"{path}: has {count} samples, and sample {number + 1} was counted: remove {path}.count, or "
                    "correct samples="
                )
            if self._place[shard] in self._uses[shard]:
                self._held[shard, self._place[shard]] = raw
            self._place[shard] += 1

    def close(self) -> None:
        """Close the open shards."""
        for reading in self._open.values():
            reading.close()


#: Loops over a stream that a process continues.
_LOOPS = 4


class _RowsMaker:
    """A process's work: it decodes its share of the rows of each batch, batch by batch."""

    def __init__(self, stream: ShardStream) -> None:
        self.stream = stream
        self._under_way: dict[tuple[int, int], tuple[int, Iterator[BatchPart]]] = {}

    def __call__(self, task: Any, _: Any) -> tuple[list[Any], Any] | None:
        """The samples of a share of a batch, and their weights; None after the last one."""
        loop, number, place, share, shares = task
        at, parts = self._under_way.pop((loop, share), (-1, iter(())))
        if at != place:
            rows = self.stream.rows
            count = rows.stop - rows.start
            own = slice(rows.start + share * count // shares, rows.start + (share + 1) * count // shares)
            parts = self.stream._parts(number, place, own)
        part = next(parts, None)
        if part is None:
            return None
        self._under_way[loop, share] = place + 1, parts
        while len(self._under_way) > _LOOPS:
            del self._under_way[next(iter(self._under_way))]
        return self.stream._decoded(part.indices, part.rng), part.weights
