"""What every benchmark shares: the machine's description, result files."""

from __future__ import annotations

import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def versions(names: Iterable[str]) -> dict[str, str]:
    """Installed versions of distributions, those that are there."""
    found = {"python": platform.python_version()}
    for name in names:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def processor() -> str:
    """The CPU's model and the number of cores that may be used."""
    model = platform.processor() or platform.machine()
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return f"{model}, {len(os.sched_getaffinity(0))} cores"


def write(name: str, record: dict[str, Any], folder: Path | None = None) -> Path:
    """Write a result file `<name>-<date>.json` and return its path."""
    today = datetime.date.today().isoformat()
    path = (folder or RESULTS) / f"{name}-{today}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"date": today, **record}, indent=1) + "\n")
    return path
