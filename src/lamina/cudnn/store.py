"""The plan store: which engine was fastest for which graph, kept on disk between runs.

One file per kind of device and version of cuDNN, a line for each choice. A choice is appended by one write, so that
processes that tune at the same time do not lose each other's choices. Each line carries a checksum: truncated or
edited lines are skipped. A choice that no longer builds is made anew by the caller. A file or folder that others may
write is not used (`runtime.distrust`).
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from lamina.c import cudnn as c
from lamina.cudnn.engine import Key
from lamina.runtime import Device, cache_directory, digest, make_private, open_private


@dataclass(frozen=True)
class Choice:
    """An engine's number and knob values.

    formulation: which of several formulations of the same problem, by a name of the caller's ("way" in the file).
    engine: -1 where the formulation is no cuDNN graph. milliseconds: as measured. heuristic: milliseconds of the
        heuristic's choice in the same contest; 0 where unknown.
    """

    formulation: str
    engine: int = -1
    knobs: tuple[tuple[int, int], ...] = ()
    milliseconds: float = 0.0
    heuristic: float = 0.0

    @property
    def key(self) -> Key:
        """The engine configuration's key."""
        return self.engine, self.knobs


@dataclass(frozen=True)
class StoredChoice:
    """A stored choice.

    key: of the problem including all of its candidates; "" where only nature and sizes are known. nature, sizes: they
        relate the problem to others; "" for none.
    """

    key: str
    choice: Choice
    nature: str = ""
    sizes: tuple[int, ...] = ()


class PlanStore:
    """The choices for one kind of device and one version of cuDNN; for any number of threads and processes.

    Args:
        device: the device's model (`Device.name`).
        version: the library's version, e.g. "9.19.0".
        folder: default: cache_directory() / "plans".
    """

    def __init__(self, device: str, version: str, folder: Path | None = None) -> None:
        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{device}-{version}")
        self.path = (folder or cache_directory() / "plans") / f"{name}.jsonl"
        self._lock = threading.Lock()
        self._known: dict[str, Choice] = {}
        self._places: dict[str, dict[tuple[int, ...], Choice]] = {}
        self._read = 0  # bytes of the file that `_known` covers

    def get(self, key: str) -> Choice | None:
        """The choice for a key, or None; choices written by other processes meanwhile are found too."""
        with self._lock:
            if key not in self._known:
                self._update()
            return self._known.get(key)

    def put(self, key: str, choice: Choice, nature: str = "", sizes: tuple[int, ...] = ()) -> None:
        """Remember a choice. If it cannot be written, it is remembered in memory only.

        nature, sizes: of the problem, for `placed`; "" for none.
        """
        self.add([StoredChoice(key, choice, nature, sizes)])

    def add(self, entries: Sequence[StoredChoice]) -> None:
        """Remember several choices with one write. If they cannot be written, they are remembered in memory only."""
        with contextlib.suppress(OSError):
            self.write(entries)

    def write(self, entries: Sequence[StoredChoice]) -> None:
        """As `add`, for callers that need the file. Raises OSError where it cannot be written."""
        with self._lock:
            for entry in entries:
                self._learn(entry)
            if entries:
                _append(self.path, "\n".join(map(_line, entries)))

    def placed(self, nature: str) -> dict[tuple[int, ...], Choice]:
        """Sizes -> the last choice, for problems of one nature; choices written by other processes meanwhile are
        found too."""
        with self._lock:
            self._update()
            return dict(self._places.get(nature, {}))

    def entries(self) -> list[StoredChoice]:
        """The choices with nature and sizes, in the order of these."""
        with self._lock:
            self._update()
            found = [(n, s, x) for n, placed in self._places.items() for s, x in placed.items()]
            return [
                StoredChoice("", choice, nature, sizes) for nature, sizes, choice in sorted(found, key=_order)
            ]

    def clear(self) -> None:
        """Forget every choice, on disk as well."""
        with self._lock:
            self._known, self._places, self._read = {}, {}, 0
            with contextlib.suppress(OSError):
                self.path.unlink(missing_ok=True)

    def keys(self) -> list[str]:
        """The keys that have a choice."""
        with self._lock:
            self._update()
            return sorted(self._known)

    def _update(self) -> None:
        """Read what was added to the file since, up to the last whole line."""
        try:
            if self.path.stat().st_size == self._read:
                return
            with open_private(self.path) as file:
                if os.fstat(file.fileno()).st_size < self._read:
                    self._read = 0  # another process cleared it
                file.seek(self._read)
                content = file.read()
        except OSError:
            return
        whole = content.rfind(b"\n") + 1
        self._read += whole
        for line in content[:whole].splitlines():
            entry = _entry(line)
            if entry is not None:
                self._learn(entry)

    def _learn(self, entry: StoredChoice) -> None:
        if entry.key:
            self._known[entry.key] = entry.choice
        if entry.nature:
            self._places.setdefault(entry.nature, {})[entry.sizes] = entry.choice


@cache
def plan_store(device: Device) -> PlanStore:
    """The store of a device with the cuDNN in use."""
    return PlanStore(device.name, ".".join(map(str, c.library.version)))


@cache
def drawn_store(device: Device) -> PlanStore:
    """What the heuristics of the cuDNN in use chose for problems that nobody has measured."""
    version = ".".join(map(str, c.library.version))
    return PlanStore(device.name, version, cache_directory() / "drawn")


def _order(entry: tuple[str, tuple[int, ...], Choice]) -> tuple[str, tuple[int, ...]]:
    return entry[0], entry[1]


def _line(entry: StoredChoice) -> str:
    choice = entry.choice
    place = {"nature": entry.nature, "sizes": entry.sizes} if entry.nature else {}
    text = json.dumps(
        {
            "key": entry.key,
            "way": choice.formulation,
            "engine": choice.engine,
            "knobs": choice.knobs,
            "milliseconds": choice.milliseconds,
            "heuristic": choice.heuristic,
            **place,
        },
        sort_keys=True,
    )
    return json.dumps({"check": digest(text)[:16], "choice": text})


def _append(path: Path, line: str) -> None:
    """One write at the end of the file. It begins with a new line, for the last one may be truncated.

    Raises OSError, also where only a part could be written.
    """
    make_private(path.parent)
    with contextlib.suppress(FileNotFoundError):
        open_private(path).close()  # nothing is added to a file that others may write
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    text = f"\n{line}\n".encode()
    try:
        if os.write(file, text) < len(text):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
    finally:
        os.close(file)


def _entry(line: bytes) -> StoredChoice | None:
    """A parsed line: one choice, or None where it is damaged."""
    try:
        outer = json.loads(line)
        if digest(outer["choice"])[:16] != outer["check"]:
            return None
        entry = json.loads(outer["choice"])
        knobs = tuple((int(knob), int(value)) for knob, value in entry["knobs"])
        times = float(entry["milliseconds"]), float(entry.get("heuristic", 0.0))
        choice = Choice(str(entry["way"]), int(entry["engine"]), knobs, *times)
        sizes = tuple(int(n) for n in entry.get("sizes", ()))
        return StoredChoice(str(entry["key"]), choice, str(entry.get("nature", "")), sizes)
    except (TypeError, KeyError, ValueError, AttributeError, OverflowError, RecursionError):
        return None
