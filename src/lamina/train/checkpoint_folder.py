"""A folder of checkpoints to which each rank writes its part asynchronously, while training continues.

A checkpoint is one file per rank and an index, `checkpoint-000012.json`, which lists the files with their sizes and
the checksums of their headers, which in turn hold those of their tensors. The first rank writes the index last, when
all files exist: without it there is no checkpoint, and a run that is killed while writing leaves the previous one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import re
import secrets
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from lamina._json import parse_json
from lamina.distributed.ranks import (
    all_gather_object,
    broadcast_object,
    communicator,
    group_rank,
    rank,
    world_group,
)
from lamina.distributed.shards import Shards
from lamina.files import WeightsError, save_safetensors
from lamina.files.element_types import as_held
from lamina.files.safetensors_file import scan_safetensors
from lamina.files.source import Source
from lamina.files.stored import StoredTensor
from lamina.files.weights import CHECKPOINT
from lamina.ops.arguments import checked
from lamina.runtime import write_atomically
from lamina.spec import Group, Shape
from lamina.tensors import Tensor, as_tensor
from lamina.train.checkpoint import Position, facts_of, parsed_facts, take_checkpoint
from lamina.train.kept import KeptObjects
from lamina.train.setup import Setup
from lamina.train.step import Step

_FORMAT = "lamina checkpoint of ranks 1"
_INDEX = re.compile(r"checkpoint-(\d{6,})\.json")
_PART = re.compile(r"checkpoint-(\d{6,})\.([0-9a-f]{12})\.\d+-of-\d+\.safetensors")
#: State that is each rank's own, by name prefix. Ranks with other numbers of samples draw other numbers of random
#: values. On another number of ranks the first rank's is used; of gradient sums, the mean.
_SUMS = ("gathered/", "errors/")
_OWN = ("buffers/", "random/", *_SUMS)
#: Seconds between two checks whether all ranks' files exist.
_POLL = 0.02


@dataclass(frozen=True)
class _Parts:
    """The tensors that this rank writes, and the index's metadata of all."""

    tensors: dict[str, Any]
    pieces: dict[str, list[int]]
    own: list[str]
    facts: dict[str, Any]


@dataclass(frozen=True)
class _Reading:
    """A replicated tensor, before it is read from its parts in files. own: each rank reads its own."""

    parts: Sequence[StoredTensor]
    read: Callable[[], Tensor]
    own: bool = False

    @classmethod
    def of(cls, name: str, stored: StoredTensor, *, own: bool = False) -> _Reading:
        """Of one part."""
        return cls([stored], lambda: as_held(name, stored.read()), own)

    @property
    def nbytes(self) -> int:
        """Number of bytes to read."""
        return sum(part.nbytes for part in self.parts)


class CheckpointFolder:
    """Checkpoints of a training step in a folder that all ranks see. Every rank makes one, and makes the same calls.

    step: a train step, or, for a custom one, the objects it changes by name, as in `save_checkpoint`; generators must
        then be the same on all ranks.
    keep: the number of complete checkpoints to keep. timeout: seconds that the first rank waits for the others'
        files.
    Raises ValueError for a keep < 1, OSError for a folder that cannot be made.
    """

    @checked
    def __init__(
        self, path: str | Path, step: Step | Mapping[str, Any], *, keep: int = 2, timeout: float = 600.0
    ) -> None:
        if keep < 1:
            raise ValueError(f"CheckpointFolder: keep must be at least 1, got {keep}")
        self.path, self.step, self.keep, self.timeout = Path(path), step, keep, timeout
        self._group = _group_of(step)
        self._place, self._size = group_rank(self._group) or 0, self._group.size
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._run = ""
        if self._place == 0:
            self.path.mkdir(parents=True, exist_ok=True)
            self._remove_leftovers()
        begun = secrets.token_hex(6), max([n for n, _ in self._indices()], default=0)
        self._run, self._number = self._of_first(begun)

    # ---- writing
    @checked
    def save(self, position: Position | None = None, setup: Setup | None = None) -> None:
        """Copy the current state, and write it while training goes on. Waits for the previous checkpoint.

        Raises the error of the previous checkpoint: OSError, TimeoutError where a rank's file did not appear. In that
        case this one is not written, but its number is used up, so that files that other ranks, without an error,
        write under it are never mistaken for a later one's.
        """
        self._number += 1
        self.wait()
        parts = self._parts(position or Position(), setup)
        # Not a daemon: the interpreter's exit waits for it.
        self._thread = threading.Thread(
            target=self._write, args=(self._number, parts), name="lamina checkpoint"
        )
        self._thread.start()

    def wait(self) -> None:
        """Return when this rank's file is written; on the first rank, when the checkpoint is complete.

        Raises as `save`.
        """
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _write(self, number: int, parts: _Parts) -> None:
        try:
            save_safetensors(parts.tensors, self._file(number, self._place), {"format": CHECKPOINT})
            if self._place == 0:
                self._finish(number, parts)
        except Exception as error:
            self._error = error

    def _finish(self, number: int, parts: _Parts) -> None:
        """Write the index when all files exist, and remove checkpoints older than those to keep."""
        files = [self._file(number, place) for place in range(self._size)]
        index = self.path / f"checkpoint-{number:06d}.json"
        end = time.monotonic() + self.timeout
        while missing := [place for place, file in enumerate(files) if not file.exists()]:
            self._check_alone(index)
            if time.monotonic() > end:
                ranks = ", ".join(str(self._group.ranks[place]) for place in missing)
                raise TimeoutError(
                    f"{self.path}: the files of ranks {ranks} did not come within {self.timeout:g} s; checkpoint "
                    f"{number} does not count"
                )
            time.sleep(_POLL)
        self._check_alone(index)
        content = {
            "format": _FORMAT, "facts": parts.facts, "pieces": parts.pieces, "own": parts.own,
            "files": [{"name": f.name, "bytes": f.stat().st_size, "sha256": _seal_of(f)} for f in files],
        }  # fmt: skip
        text = json.dumps({**content, "sha256": _digest(content)}, indent=1)
        write_atomically(index, [text.encode()])
        self._remove_old()

    def _check_alone(self, index: Path) -> None:
        """Raise FileExistsError where another run has meanwhile written a checkpoint of this number."""
        if index.exists():
            raise FileExistsError(
                errno.EEXIST,
                "another run, or another CheckpointFolder of this one, has written this checkpoint since this one "
                "began: give each run a folder of its own",
                str(index),
            )

    def _file(self, number: int, place: int) -> Path:
        return self.path / f"checkpoint-{number:06d}.{self._run}.{place}-of-{self._size}.safetensors"

    def _parts(self, position: Position, setup: Setup | None) -> _Parts:
        """Host copies of the tensors that this rank writes."""
        facts = facts_of(self.step, position, setup)
        if isinstance(self.step, Step):
            held, pieces = self.step.common_state(), self.step.pieces()
            own = [n for n in held if n.startswith(_OWN)]
        else:
            kept = KeptObjects(self.step)
            held, facts["plain"] = kept.state()
            pieces, own = {}, kept.random()
        common = {n: x for n, x in held.items() if n not in own}
        mine = _shares({n: x.nbytes for n, x in common.items()}, self._size)[self._place]
        tensors = {n: common[n] for n in mine} | {n: held[n] for n in own}
        tensors |= {n: piece for n, (piece, _) in pieces.items()}
        copies = {n: np.array(x.numpy()) for n, x in tensors.items()}
        return _Parts(copies, {n: list(shape) for n, (_, shape) in pieces.items()}, own, facts)

    # ---- reading
    @checked
    def load(self, *, override: Collection[str] = ()) -> Position | None:
        """Load the newest complete checkpoint, of any number of ranks, and return its position in the data.

        None, with nothing changed, where there is none. On the same number of ranks training resumes bit-exactly. On
        another number, statistics and random states that are local to each rank become the first rank's, and
        accumulated gradients their mean. Each rank reads its pieces and a share of the replicated state, which it
        broadcasts to the others. override and errors: as in `load_checkpoint`; a read error on one rank is raised on
        all.
        """
        self.wait()
        newest = self._of_first(self.newest() if self._place == 0 else None)
        if newest is None:
            return None
        index = _sound(newest)
        if index is None:
            raise WeightsError(f"{newest}: rank {rank()} does not find what the first rank found")
        whole, pieces = self._read([self.path / Path(f["name"]).name for f in index["files"]], index)
        facts = parsed_facts(newest, json.dumps(index["facts"]))
        return take_checkpoint(newest, whole, facts, self.step, override, pieces)

    def newest(self) -> Path | None:
        """The index of the newest checkpoint whose files all exist unchanged; None where there is none."""
        return next((file for _, file in self._indices() if _sound(file) is not None), None)

    def _indices(self) -> list[tuple[int, Path]]:
        """Numbers and indices, newest first."""
        names = [f.name for f in self.path.iterdir()] if self.path.is_dir() else []
        found = [(int(match[1]), self.path / match[0]) for n in names if (match := _INDEX.fullmatch(n))]
        return sorted(found, reverse=True)

    def _read(
        self, files: Sequence[Path], index: Mapping[str, Any]
    ) -> tuple[dict[str, Tensor], dict[str, tuple[Tensor, Shape]]]:
        """The replicated state, and this rank's pieces of the rest with the shapes of the whole.

        Raises WeightsError, on all ranks.
        """
        whole, pieces, error = dict[str, Tensor](), dict[str, tuple[Tensor, Shape]](), ""
        owners: dict[str, int] = {}
        try:
            with ExitStack() as opened:
                sources = [opened.enter_context(Source(file)) for file in files]
                held = [scan_safetensors(source, sealed=True).tensors for source in sources]
                known = self._readings(held, index)
                shared = _shares({n: r.nbytes for n, r in known.items() if not r.own}, self._size)
                owners = {n: place for place, names in enumerate(shared) for n in names}
                whole = {n: r.read() for n, r in known.items() if owners.get(n, self._place) == self._place}
                for name in index["pieces"] if self._shards is not None else ():
                    shape = tuple(index["pieces"][name])
                    pieces[name] = self._piece([part[name] for part in held], name, shape), shape
        except (WeightsError, OSError) as found:
            error = str(found)
        errors = all_gather_object(error, self._group) if self._size > 1 else [error]
        if any(errors):
            raise WeightsError(next(text for text in errors if text))
        return self._given_round(whole, owners), pieces

    @property
    def _shards(self) -> Shards | None:
        return self.step.shards if isinstance(self.step, Step) else None

    def _readings(
        self, held: Sequence[Mapping[str, StoredTensor]], index: Mapping[str, Any]
    ) -> dict[str, _Reading]:
        """How the state that this rank holds whole is read."""
        found: dict[str, _Reading] = {}
        for name in dict.fromkeys(name for part in held for name in part):
            parts = [part[name] for part in held if name in part]
            if name in index["pieces"]:
                if self._shards is None:
                    found[name] = _Reading(parts, partial(_joined, name, parts, tuple(index["pieces"][name])))
            elif name in index["own"] and len(held) == self._size:
                found[name] = _Reading.of(name, parts[self._place], own=True)
            elif name in index["own"] and name.startswith(_SUMS):
                found[name] = _Reading(parts, partial(_mean, name, parts))
            else:  # the same everywhere, or the first rank's
                found[name] = _Reading.of(name, parts[0])
        return found

    def _given_round(self, mine: Mapping[str, Tensor], owners: Mapping[str, int]) -> dict[str, Tensor]:
        """The replicated state: each rank sends the others the share it has read."""
        if self._size == 1:
            return dict(mine)
        kinds = {n: x.spec.open for n, x in mine.items() if n in owners}
        specs = {n: spec for given in all_gather_object(kinds, self._group) for n, spec in given.items()}
        comm, found = communicator(self._group), dict(mine)
        for name, spec in specs.items():
            held = np.array(mine[name].numpy()) if name in mine else np.empty(spec.shape, spec.dtype.numpy)
            comm.broadcast(held, owners[name])
            found[name] = as_tensor(held)
        return found

    def _piece(self, parts: Sequence[StoredTensor], name: str, shape: Shape) -> Tensor:
        """This rank's piece, from the overlapping pieces of the ranks that wrote them."""
        assert self._shards is not None
        length, count = self._shards.length(shape), math.prod(shape)
        begin, step = self._shards.place * length, parts[0].shape[0] if parts[0].shape else 1
        end = min(begin + length, count)
        wanted = range(begin // step, -(-end // step)) if begin < end and step else range(0)
        read = [as_held(name, parts[i].read()).numpy() for i in wanted]
        flat = np.zeros(length, read[0].dtype if read else parts[0].kind.numpy)
        if read:
            flat[: end - begin] = np.concatenate(read)[begin - wanted[0] * step :][: end - begin]
        return as_tensor(flat)

    def _of_first(self, value: Any) -> Any:
        """The first rank's value."""
        return broadcast_object(value, self._group.ranks[0], self._group) if self._size > 1 else value

    # ---- removal
    def _remove_old(self) -> None:
        """Indices first: without one there is no checkpoint."""
        for _, file in self._indices()[self.keep :]:
            file.unlink(missing_ok=True)
        self._remove_leftovers()

    def _remove_leftovers(self) -> None:
        """Remove ranks' files that no index lists, except those that may still be being written."""
        newest = max([n for n, _ in self._indices()], default=0)
        named = {f["name"] for _, file in self._indices() for f in (_content(file) or {}).get("files", ())}
        for file in self.path.iterdir():
            match = _PART.fullmatch(file.name)
            if match is None or file.name in named or (match[2] == self._run and int(match[1]) > newest):
                continue
            with suppress(OSError):
                file.unlink()


def _group_of(step: Step | Mapping[str, Any]) -> Group:
    """The group of ranks that share the state."""
    if not isinstance(step, Step):
        KeptObjects(step)  # raises
        return world_group()
    return Group(rank()) if step.options.parallel is None else step.options.parallel.ranks


def _shares(sizes: Mapping[str, int], size: int) -> list[list[str]]:
    """Which rank writes or reads each replicated tensor, by bytes: largest first, each to the least loaded rank."""
    shares: list[list[str]] = [[] for _ in range(size)]
    filled = [0] * size
    for name in sorted(sizes, key=lambda n: (-sizes[n], n)):
        place = filled.index(min(filled))
        shares[place].append(name)
        filled[place] += sizes[name]
    return shares


def _joined(name: str, parts: Sequence[StoredTensor], shape: Shape) -> Tensor:
    """The whole tensor from all ranks' pieces."""
    flat = np.concatenate([as_held(name, part.read()).numpy() for part in parts])
    return as_tensor(flat[: math.prod(shape)].reshape(shape))


def _mean(name: str, parts: Sequence[StoredTensor]) -> Tensor:
    """The mean of the ranks' local values."""
    given = [as_held(name, part.read()).numpy() for part in parts]
    mean = np.mean([x.astype(np.float64) for x in given], 0)
    return as_tensor(np.asarray(mean).astype(given[0].dtype))


def _digest(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _content(file: Path) -> dict[str, Any] | None:
    """The content of an index, None where it was not written completely."""
    try:
        content = parse_json(file.read_bytes())
        digest = content.pop("sha256")
        return content if content["format"] == _FORMAT and digest == _digest(content) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def _sound(file: Path) -> dict[str, Any] | None:
    """The content of an index, if all of its files exist with the right sizes and headers."""
    content = _content(file)
    if content is None:
        return None
    try:
        for part in content["files"]:
            own = file.parent / Path(part["name"]).name
            if own.stat().st_size != part["bytes"] or _seal_of(own) != part["sha256"]:
                return None
    except (OSError, WeightsError, KeyError, TypeError):
        return None
    return content


def _seal_of(file: Path) -> str:
    """The SHA-256 of a file's header, which holds those of its tensors."""
    with Source(file) as source:
        return scan_safetensors(source, sealed=True).seal
