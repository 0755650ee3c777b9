"""The plan store: which way and which engine was fastest, kept on disk between runs.

One JSON file per kind of device and version of cuDNN. Writing is atomic and keeps what others wrote meanwhile; a
file that is torn, cut or edited reads as far as it makes sense. An entry that no longer builds is tuned anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import threading
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lamina.cudnn import Key
from lamina.runtime import cache_directory

_lock = threading.Lock()


@dataclass(frozen=True)
class Choice:
    """A way and, where it is a cuDNN graph, the engine's number and knob values; milliseconds as measured."""

    way: str
    engine: int = -1
    knobs: tuple[tuple[int, int], ...] = ()
    milliseconds: float = 0.0

    @property
    def key(self) -> Key:
        """The engine configuration's key."""
        return self.engine, self.knobs


class PlanStore:
    """The choices for one kind of device and one version of cuDNN.

    Args:
        device: the device's model, e.g. "NVIDIA H200".
        version: the library's version, e.g. "9.19.0".
        folder: default: cache_directory() / "plans".
    """

    def __init__(self, device: str, version: str, folder: Path | None = None) -> None:
        name = re.sub(r"[^A-Za-z0-9.]+", "-", f"{device}-{version}")
        self.path = (folder or cache_directory() / "plans") / f"{name}.json"
        self._known: dict[str, Choice] | None = None

    def get(self, key: str) -> Choice | None:
        """The choice for a key, or None."""
        with _lock:
            if self._known is None:
                self._known = _read(self.path)
            return self._known.get(key)

    def put(self, key: str, choice: Choice) -> None:
        """Remember a choice. What cannot be written is remembered in memory alone."""
        with _lock:
            known = {**_read(self.path), key: choice}
            self._known = {**(self._known or {}), **known}
            with contextlib.suppress(OSError):
                _write(self.path, known)


def _read(path: Path) -> dict[str, Choice]:
    try:
        content = json.loads(path.read_text())
    except (OSError, ValueError):
        return {}
    if not isinstance(content, dict):
        return {}
    found = {}
    for key, entry in content.items():
        choice = _choice(entry)
        if choice is not None:
            found[key] = choice
    return found


def _choice(entry: Any) -> Choice | None:
    """An entry of the file, or None where it is not one."""
    try:
        knobs = tuple((int(knob), int(value)) for knob, value in entry["knobs"])
        return Choice(str(entry["way"]), int(entry["engine"]), knobs, float(entry["milliseconds"]))
    except (TypeError, KeyError, ValueError):
        return None


def _write(path: Path, known: dict[str, Choice]) -> None:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(prefix=".new-", dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            json.dump({key: asdict(choice) for key, choice in sorted(known.items())}, file, indent=1)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
