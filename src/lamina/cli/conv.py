"""Measure one convolution: every direction, every algorithm of cuDNN and every graph engine.

Without a GPU it lists what would run on a kind of GPU, and why the rest would not.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from lamina.cli.arguments import above_zero, natural, positive
from lamina.cli.conv_case import DIRECTIONS, DTYPES, Bench, Case, CaseRow, deviceless, remarks
from lamina.cudnn import DeviceProperties, device_properties
from lamina.runtime import Machine, device, devices, human_bytes, parse_bytes
from lamina.runtime.machine import USUAL

ENGINES = ("best", "each", "all", "none")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add = parser.add_argument
    for name, default, text in (
        ("n", 64, "samples"),
        ("c", 128, "channels of the input"),
        ("h", 56, "height"),
        ("w", 56, "width"),
        ("k", 128, "channels of the output"),
        ("r", 3, "height of the filter"),
        ("s", 3, "width of the filter"),
        ("groups", 1, "groups of channels"),
    ):
        add(f"--{name}", type=positive, default=default, help=f"{text} (default: {default})")
    add("--pad", type=natural, nargs="+", default=[0], help="zeros around the input, one number or two")
    add("--stride", type=positive, nargs="+", default=[1], help="one number or two (default: 1)")
    add("--dilation", type=positive, nargs="+", default=[1], help="one number or two (default: 1)")
    add("--dtype", choices=DTYPES, default="bfloat16", help="element type (default: bfloat16)")
    add("--layout", choices=("nhwc", "nchw"), default="nhwc", help="order of memory (default: nhwc)")
    add("--direction", choices=("all", *DIRECTIONS), default="all", help="what to compute (default: all)")
    add(
        "--engines", choices=ENGINES, default="each", help="graph engines to list (default: the best of each)"
    )
    add("--device", default="auto", help="cuda, cuda:N, or none to plan for --machine (default: auto)")
    known = ", ".join(Machine.names())
    add("--machine", help=f"plan for this kind of GPU, without one: {known}, or a file (default: {USUAL})")
    add("--properties", type=Path, help="plan for the GPU of these device properties of cuDNN's (JSON file)")
    add("--repeats", type=positive, default=20, help="timed runs, of which the median counts (default: 20)")
    add("--workspace", type=parse_bytes, default=1 << 32, help="most workspace (default: 4GiB)")
    add("--tflops", type=above_zero, help="limit of the arithmetic (default: the GPU's)")
    add("--bandwidth", type=above_zero, help="limit of memory, TB/s (default: the GPU's)")
    add("--json", action="store_true", help="print JSON instead of a table")


def run(options: argparse.Namespace) -> None:
    """Measure, or plan, and print."""
    case = case_of(options)
    directions = DIRECTIONS if options.direction == "all" else (options.direction,)
    where = None if options.properties or options.machine else _gpu(options.device)
    if where is None:
        target = _properties(options.properties, options.machine or USUAL)
        rows = deviceless(case, directions, target, options.engines)
        title = "planned without a GPU"
    else:
        bench = Bench(
            case,
            device(where),
            repeats=options.repeats,
            limit=options.workspace,
            tflops=options.tflops,
            bandwidth=options.bandwidth,
        )
        rows = [row for direction in directions for row in bench.rows(direction, options.engines)]
        title = f"measured on {device(where).name}"
    said = [] if where is None else remarks(case, rows)
    if options.json:
        found = {"case": asdict(case) | {"y": case.y}, "where": title, "remarks": said}
        print(json.dumps(found | {"rows": [r.as_dict() for r in rows]}))
        return
    terminal = Console(highlight=False)
    console = terminal if terminal.is_terminal else Console(highlight=False, width=160)
    console.print(f"x {case.x}, w {case.filter}, y {case.y}, {case.dtype}, {case.layout}, {title}")
    console.print(f"{case.flops / 1e9:.4g} GFLOP and {human_bytes(case.nbytes)} per direction")
    for direction in directions:
        console.print(_table(direction, [row for row in rows if row.direction == direction]))
    for line in said:
        console.print(line)


def case_of(options: argparse.Namespace) -> Case:
    """The case that the arguments describe. Raises ValueError."""
    return Case(
        n=options.n,
        c=options.c,
        h=options.h,
        w=options.w,
        k=options.k,
        r=options.r,
        s=options.s,
        pad=_pair("pad", options.pad),
        stride=_pair("stride", options.stride),
        dilation=_pair("dilation", options.dilation),
        groups=options.groups,
        dtype=options.dtype,
        layout=options.layout,
    )


def _pair(name: str, values: list[int]) -> tuple[int, int]:
    if len(values) > 2:
        raise ValueError(f"conv: --{name} takes one number or two, got {len(values)}")
    return (values[0], values[-1])


def _gpu(name: str) -> str | None:
    """The GPU to measure on, None if there is none or none is requested."""
    if name == "none":
        return None
    if name != "auto":
        return name
    found = [str(place) for place in devices() if place.kind == "cuda"]
    return found[0] if found else None


def _properties(path: Path | None, machine: str) -> DeviceProperties:
    if path is None:
        return device_properties(Machine.named(machine))
    return DeviceProperties(json=path.read_text(encoding="utf-8"))


def _table(direction: str, rows: Iterable[CaseRow]) -> Table:
    table = Table(title=direction, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column, side in (
        ("API", "left"),
        ("algorithm or engine", "left"),
        ("ms", "right"),
        ("TFLOP/s", "right"),
        ("% of roofline", "right"),
        ("workspace", "right"),
        ("deterministic", "left"),
        ("error", "right"),
        ("notes", "left"),
    ):
        table.add_column(column, justify="right" if side == "right" else "left", overflow="fold")
    for row in sorted(rows, key=_order):
        table.add_row(*_cells(row), style="dim" if row.refused else None)
    return table


def _order(row: CaseRow) -> tuple[bool, float, str]:
    """Fastest first, refused ones last."""
    return bool(row.refused), row.milliseconds or 0.0, row.api


def _cells(row: CaseRow) -> tuple[str, ...]:
    if row.refused:
        return row.api, row.name, "", "", "", "", "", "", row.refused
    return (
        row.api,
        row.name,
        "" if row.milliseconds is None else f"{row.milliseconds:.4f}",
        "" if row.tflops is None else f"{row.tflops:.1f}",
        "" if row.fraction is None else f"{row.fraction:.0%}",
        human_bytes(row.workspace),
        {True: "yes", False: "no", None: ""}[row.deterministic],
        "" if row.error is None else f"{row.error:.1e}",
        ", ".join(row.notes),
    )
