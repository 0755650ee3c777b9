"""Sources and launches of every kernel of Lamina, for comparing two versions of the package.

    python -m tools.kernel_texts > before.json          # in one checkout
    python -m tools.kernel_texts --against before.json  # in another: the differences; status 1 if there are any

The kernels are those that the tests collect (`tests.helpers.own_programs`, `tests.helpers.own_kernels`), planned for
a machine without a GPU. Sources are kept as SHA-256. With --cubins in both, machine code is compiled too (an hour of
one core), and a kernel whose source changed but whose machine code did not is no difference.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from lamina.backends.cuda import backend
from lamina.backends.cuda.launch.program import INCLUDE, Launch, Launches, Program, SubPlan, Together
from lamina.runtime import Device, Machine
from lamina.spec import Policy
from tests.helpers.own_kernels import KINDS
from tests.helpers.own_programs import OWN, cases, collected

Found = dict[str, Any]


def sha(text: str | bytes) -> str:
    """The SHA-256 of a text or of bytes."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def headers() -> str:
    """The headers included by kernel files."""
    return "".join(f.read_text(encoding="utf-8") for f in sorted(INCLUDE.glob("*.cuh")))


def launches(steps: Iterable[Any]) -> Iterator[Launch | Together]:
    """The launches among steps, including those in nested plans."""
    for step in steps:
        if isinstance(step, Launch | Together):
            yield step
        if isinstance(step, Together):
            yield from launches(step.otherwise)
        if isinstance(step, SubPlan) and isinstance(step.plan.make, Launches):
            yield from launches(step.plan.make.steps)


def plans(device: Device) -> Iterator[tuple[str, Iterable[Any]]]:
    """(op, its steps) of every sample, and of the kernels that are run on their own."""
    cuda = backend(device)
    for name in OWN:
        for op, specs in cases(name):
            make = cuda.plan(op, specs, Policy()).make
            if isinstance(make, Launches):
                key = f"{op} {' '.join(map(str, specs))}"
                yield key, make.steps
                yield f"{key}, addresses that are not aligned", make.plain() if make.plain else ()
    for kind, made in KINDS.items():
        for case in made():
            yield f"{kind} {case.name}", case.steps


def described(step: Launch | Together, machine: Machine) -> list[Any]:
    """A launch as JSON."""
    grid = step.grid_on(machine) if isinstance(step, Launch) else step.grid
    return [key_of(step.program), list(grid), list(step.block), step.shared]


def key_of(program: Program) -> str:
    """A kernel's name, and its constants and file."""
    return f"{program.name} {sha(program.source)[:16]}"


def texts(device: Device) -> tuple[Found, dict[str, Program]]:
    """All programs and launches of a machine as JSON, and the programs themselves."""
    programs = {key_of(p): p for p in collected(device).values()}
    found: dict[str, list[Any]] = {}
    for what, steps in plans(device):
        for step in launches(steps):
            programs.setdefault(key_of(step.program), step.program)
            found.setdefault(what, []).append(described(step, device.machine))
    known = {key: {"source": sha(p.source), "cubin": ""} for key, p in sorted(programs.items())}
    return {"machine": device.name, "headers": sha(headers()), "programs": known, "launches": found}, programs


def add_cubins(found: Found, programs: dict[str, Program], target: str) -> None:
    """The machine code of programs."""

    def one(key: str) -> tuple[str, str]:
        return key, sha(programs[key].cubin(target))

    with ThreadPoolExecutor(4) as pool:
        for key, cubin in pool.map(one, programs):
            found["programs"][key]["cubin"] = cubin


def differences(before: Found, after: Found) -> list[str]:
    """A line for each kernel and launch that changed."""
    lines = [] if before["headers"] == after["headers"] else ["headers: changed; compare with --cubins"]
    old, new = before["programs"], after["programs"]
    codes = [{p["cubin"] for p in programs.values()} - {""} for programs in (old, new)]
    lines += [f"gone: {key}" for key in old if key not in new and old[key]["cubin"] not in codes[1]]
    lines += [f"new: {key}" for key in new if key not in old and new[key]["cubin"] not in codes[0]]
    for key in old:
        cubins = {old[key]["cubin"], new[key]["cubin"]} - {""} if key in new else set()
        lines += [f"other machine code: {key}"] if len(cubins) > 1 else []
    was, now = before["launches"], after["launches"]
    return lines + [f"launched otherwise: {what}" for what in was if what in now and was[what] != now[what]]


def main() -> int:
    """Print the JSON, or the differences from another one."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument(
        "--machine", default="h200", help=f"one of {', '.join(Machine.names())} (default: h200)"
    )
    parser.add_argument("--cubins", action="store_true", help="compile every program (takes long)")
    parser.add_argument("--against", type=Path, help="compare with this file")
    options = parser.parse_args()
    device = Device("cuda", machine=Machine.named(options.machine))
    found, programs = texts(device)
    if options.cubins:
        add_cubins(found, programs, device.machine.target)
    if options.against is None:
        print(json.dumps(found, indent=1))
        return 0
    lines = differences(json.loads(options.against.read_text(encoding="utf-8")), found)
    print("\n".join([*lines, f"{len(found['programs'])} programs, {len(lines)} differences"]))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
