"""Names that older releases of cuDNN lack: codegen/api/cudnn_history.json tells since when a name exists.

One entry per compared release: {version: {functions, constants, changed_values}}, each the names of the
newest release that this one lacks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).parent / "api" / "cudnn_history.json"
Facts = dict[str, Any]


def names(facts: Facts) -> tuple[set[str], set[str]]:
    """(functions, enum constants) of one set of facts."""
    constants = {c["name"] for e in facts["enums"] for c in e["constants"]}
    return {f["name"] for f in facts["functions"]}, constants


def values(facts: Facts) -> dict[str, int]:
    """Constant -> value."""
    return {c["name"]: c["value"] for e in facts["enums"] for c in e["constants"]}


def absent(newer: Facts, older: Facts) -> Facts:
    """The names of `newer` that `older` lacks, and shared constants with a different value."""
    functions, constants = names(newer)
    old_functions, old_constants = names(older)
    now, then = values(newer), values(older)
    return {
        "functions": sorted(functions - old_functions),
        "constants": sorted(constants - old_constants),
        "changed_values": {n: v for n, v in sorted(then.items()) if n in now and now[n] != v},
    }


def carried(record: Facts, previous: Facts | None, newest: Facts) -> Facts:
    """The history after a move from `previous` to `newest`, without the headers of the older releases.

    Names new since `previous` are absent from everything before it too; removed names are dropped.
    """
    if previous is None or previous["version"] == newest["version"]:
        return dict(record)
    step = absent(newest, previous)
    functions, constants = names(newest)
    moved: Facts = {previous["version"]: step}
    for version, lacking in record.items():
        moved[version] = {
            "functions": sorted({*lacking["functions"], *step["functions"]} & functions),
            "constants": sorted({*lacking["constants"], *step["constants"]} & constants),
            "changed_values": lacking["changed_values"],
        }
    return moved


def read() -> Facts:
    """The committed history, {} before the first."""
    found: Facts = json.loads(PATH.read_text()) if PATH.exists() else {}
    return found


def write(record: Facts) -> None:
    """Write the history, oldest release first."""
    ordered = sorted(record.items(), key=lambda item: tuple(map(int, item[0].split("."))))
    PATH.write_text(json.dumps(dict(ordered), indent=1) + "\n")
