"""The description of a saved plan for `lamina info`: its machine, and the inputs it answers."""

from __future__ import annotations

from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from lamina.replay.errors import PlanFileError
from lamina.replay.file import MAGIC, Reading
from lamina.replay.specs import decode_spec
from lamina.runtime import human_bytes


def is_plan(path: Path) -> bool:
    """Whether a file begins like a saved plan, of whatever format."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(MAGIC) - 5) == MAGIC[:-5]


def show_plan(console: Console, path: Path) -> None:
    """Print a line for each program, the machine, and whether the checksums hold. Raises PlanFileError."""
    reading = Reading(path)
    try:
        reading.finish()
        _show(console, path, reading)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError) as error:
        if isinstance(error, PlanFileError):
            raise
        raise PlanFileError(f"{path}: not a sound plan: {type(error).__name__}: {error}") from None
    finally:
        reading.close()


def _show(console: Console, path: Path, reading: Reading) -> None:
    header = reading.header
    table = Table(box=box.SIMPLE_HEAD)
    for column in ("inputs", "requests of", "outputs", "steps", "temporaries"):
        table.add_column(column, overflow="fold")
    for program in header["programs"]:
        plays, gathered = program["plays"], program["gathered"]
        samples = f"1 to {gathered['most']} samples" if gathered else "this size"
        outputs = ", ".join(str(decode_spec(spec)) for _, spec in plays["outputs"])
        inputs = ", ".join(f"{name}: {decode_spec(spec)}" for name, spec in plays["inputs"])
        steps, memory = str(len(plays["steps"])), human_bytes(plays["arena"])
        table.add_row(*map(Text, (inputs, samples, outputs, steps, memory)))
    console.print(table)
    machine = ", ".join(f"{name} {value}" for name, value in header["machine"].items())
    anew = "can be planned anew elsewhere" if header["sources"] else "is for such a machine alone"
    count = len(header["programs"])
    for line in (
        f"network: {header['network']}, saved by Lamina {header['lamina']}",
        f"machine: {machine}",
        f"{path}: saved plan, {count} program{'s' * (count != 1)}, {human_bytes(reading.size)}; it {anew}",
        "all checksums hold",
    ):
        console.print(line, markup=False, soft_wrap=True)
