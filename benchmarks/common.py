"""Shared by all benchmarks: the machine's description, result files."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def versions(names: Iterable[str]) -> dict[str, str]:
    """Versions of those distributions that are installed."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def processor() -> str:
    """The CPU's model and the number of usable cores."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def files_of(name: str, folder: Path) -> list[Path]:
    """The result files of a benchmark, `<name>-<date>.json` or `<name>-<date>-<run>.json`, oldest first."""
    found = [
        p for p in folder.glob(f"{name}-*.json") if re.fullmatch(rf"{re.escape(name)}(-\d+){{3,4}}", p.stem)
    ]
    return sorted(found, key=lambda p: [int(n) for n in p.stem.removeprefix(f"{name}-").split("-")])


def write(name: str, record: dict[str, Any], folder: Path | None = None) -> Path:
    """Write a result file `<name>-<date>.json` and return its path.

    In the repository's results folder it replaces older ones of its kind.
    """
    today = datetime.date.today().isoformat()
    path = (folder or RESULTS) / f"{name}-{today}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"date": today, **record}, indent=1) + "\n")
    for older in files_of(name, path.parent) if folder is None else ():
        if older != path:
            older.unlink()
    return path
