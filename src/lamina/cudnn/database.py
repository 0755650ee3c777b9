"""The plan database in the package: the fastest plan of each problem, per model of GPU and version of cuDNN.

A file is gzipped JSON: the conditions of the measurement ("measured"), the natures of problems, and a line for each
problem: number of its nature (op and attributes, element types, layouts), sizes, formulation, engine, knobs,
milliseconds, milliseconds of the heuristic's choice. It also records how cuDNN's engines did in the contests
("engines").
"""

from __future__ import annotations

import gzip
import json
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from lamina._json import parse_json
from lamina.c import cudnn as c
from lamina.cudnn.store import Choice, StoredChoice
from lamina.runtime import Device, Machine, write_atomically

#: The databases in the package, a file for each model of GPU and version of cuDNN.
FOLDER = Path(__file__).with_name("databases")
FORMAT = "lamina-plans-2"
#: An engine is outclassed if it competed in at least this many problems and never came within 1 % of the best.
ENOUGH, NEAR = 15, 1.01


class DatabaseError(ValueError):
    """A file that is no plan database; the message names it and what is wrong."""


@dataclass(frozen=True)
class PlanDatabase:
    """Choices by nature and sizes.

    device: the GPU's model, as in file names. cudnn: major and minor version. measured: the conditions, as JSON.
    engines: by `engine_of`, the number of problems in which an engine competed, and in which it came near the best.
    """

    device: str
    cudnn: str
    measured: Mapping[str, Any]
    plans: Mapping[str, Mapping[tuple[int, ...], Choice]]
    engines: Mapping[str, tuple[int, int]] = field(default_factory=dict)

    def outclasses(self, op: str, dtype: str, lies: str, formulation: str, engine: int) -> bool:
        """Whether an engine competed often for an op with this formulation, type and layout, and never came near the
        best."""
        competed, near = self.engines.get(engine_of(op, dtype, lies, formulation, engine), (0, 0))
        return competed >= ENOUGH and not near

    def placed(self, nature: str) -> Mapping[tuple[int, ...], Choice]:
        """Sizes -> choice, for problems of one nature."""
        return self.plans.get(nature, {})

    def entries(self) -> list[StoredChoice]:
        """Every problem's choice, in the order of natures and sizes."""
        return [
            StoredChoice("", self.plans[nature][sizes], nature, sizes)
            for nature in sorted(self.plans)
            for sizes in sorted(self.plans[nature])
        ]

    @staticmethod
    def of(
        device: str,
        cudnn: str,
        entries: Iterable[StoredChoice],
        measured: Mapping[str, Any],
        engines: Mapping[str, tuple[int, int]] = MappingProxyType({}),
    ) -> PlanDatabase:
        """From choices that have a nature and sizes; of the same problem the last one counts.

        device: the GPU's model. cudnn: the version, of which the first two numbers count.
        """
        plans: dict[str, dict[tuple[int, ...], Choice]] = defaultdict(dict)
        for entry in entries:
            plans[entry.nature][entry.sizes] = entry.choice
        version = ".".join(cudnn.split(".")[:2])
        return PlanDatabase(_named(device), version, measured, dict(plans), dict(engines))

    def merged(self, other: PlanDatabase) -> PlanDatabase:
        """Both; where both know a problem, the other's choice; of engines the sums. Raises DatabaseError for another
        GPU or cuDNN.
        """
        if (self.device, self.cudnn) != (other.device, other.cudnn):
            raise DatabaseError(
                f"plans for {other.device} with cuDNN {other.cudnn} do not go with those "
                f"for {self.device} with cuDNN {self.cudnn}"
            )
        engines = dict(self.engines)
        for name, (competed, near) in other.engines.items():
            before = engines.get(name, (0, 0))
            engines[name] = before[0] + competed, before[1] + near
        entries, measured = [*self.entries(), *other.entries()], {**self.measured, **other.measured}
        return PlanDatabase.of(self.device, self.cudnn, entries, measured, engines)

    def save(self, path: Path) -> None:
        """Write it atomically; equal databases give equal files."""
        numbers = {nature: i for i, nature in enumerate(sorted(self.plans))}
        rows = [
            [numbers[e.nature], e.sizes, x.formulation, x.engine, x.knobs, *_rounded(x)]
            for e in self.entries()
            for x in (e.choice,)
        ]
        text = json.dumps(
            {
                "format": FORMAT,
                "device": self.device,
                "cudnn": self.cudnn,
                "measured": self.measured,
                "natures": list(numbers),
                "plans": rows,
                "engines": self.engines,
            },
            sort_keys=True,
            separators=(",", ":"),
        )
        write_atomically(path, [gzip.compress(text.encode(), mtime=0)])


def read_database(path: Path) -> PlanDatabase:
    """A file that `PlanDatabase.save` wrote. Raises DatabaseError for anything else, OSError if it cannot be read."""
    data = path.read_bytes()
    try:
        found = parse_json(gzip.decompress(data))
        if found["format"] != FORMAT:
            raise DatabaseError(f"{path}: the format is {found['format']!r:.40}, not {FORMAT!r}")
        natures = [str(nature) for nature in found["natures"]]
        entries = [
            StoredChoice("", _choice(*rest), natures[int(nature)], tuple(int(n) for n in sizes))
            for nature, sizes, *rest in found["plans"]
        ]
        engines = {str(name): (int(a), int(b)) for name, (a, b) in found.get("engines", {}).items()}
        return PlanDatabase.of(
            str(found["device"]), str(found["cudnn"]), entries, dict(found["measured"]), engines
        )
    except DatabaseError:
        raise
    except (OSError, EOFError, ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
        raise DatabaseError(f"{path}: no database of plans: {type(error).__name__}: {error}") from error


def engine_of(op: str, dtype: str, lies: str, formulation: str, engine: int) -> str:
    """An engine's key in a database; half types share theirs. dtype: its name. lies: the tag of the first operand's
    layout, which implies its rank."""
    kind = "half" if dtype in ("float16", "bfloat16") else dtype
    return f"{op} {kind} {lies} {formulation} {engine}"


def _rounded(choice: Choice) -> tuple[float, float]:
    """The choice with its times rounded to a nanosecond."""
    return round(choice.milliseconds, 6), round(choice.heuristic, 6)


def _choice(formulation: Any, engine: Any, knobs: Any, milliseconds: Any, heuristic: Any) -> Choice:
    pairs = tuple((int(knob), int(value)) for knob, value in knobs)
    return Choice(str(formulation), int(engine), pairs, float(milliseconds), float(heuristic))


def file_name(device: str, cudnn: str) -> str:
    """The file name for a GPU's model and a cuDNN version ("9.19")."""
    return f"{_named(device)}-{cudnn}.json.gz"


def _named(device: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", device)


def database_of(device: Device) -> PlanDatabase | None:
    """The database in the package for a device with the cuDNN in use, None where there is none."""
    version = loaded_version()
    if not version:
        return None
    return _shipped(FOLDER / file_name(device.name, ".".join(version.split(".")[:2])))


def database_of_kin(device: Device) -> PlanDatabase | None:
    """The database in the package for another GPU model of the same architecture, with the cuDNN in use.

    Of several, that of the model with the nearest number of multiprocessors; None without one.
    """
    version = ".".join(loaded_version().split(".")[:2])
    return _of_kin(device.machine, FOLDER, version) if version else None


@lru_cache(maxsize=8)
def _of_kin(machine: Machine, folder: Path, version: str) -> PlanDatabase | None:
    kin = [one for one in map(Machine.named, Machine.names()) if one.arch == machine.arch]
    kin.sort(key=lambda one: abs(one.multiprocessors - machine.multiprocessors))
    found = (_shipped(folder / file_name(one.name, version)) for one in kin if one.name != machine.name)
    return next((database for database in found if database is not None), None)


def loaded_version() -> str:
    """The version of the cuDNN in use, such as "9.19.0"; "" without one."""
    return ".".join(map(str, c.library.version)) if c.library.available() else ""


@lru_cache(maxsize=8)
def _shipped(path: Path) -> PlanDatabase | None:
    return read_database(path) if path.exists() else None
