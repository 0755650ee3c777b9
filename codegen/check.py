"""Compare the committed files with those that would be emitted; verify the seals."""

from __future__ import annotations

from pathlib import Path

from codegen import emit, seal

ROOT = Path(__file__).parent.parent
TARGET = ROOT / "src" / "lamina" / "c"


def generated() -> dict[Path, str]:
    """Every generated file and its text, created in memory."""
    return {TARGET / name: text for name, text in emit.modules().items()}


def write(files: dict[Path, str]) -> None:
    """Write the generated files."""
    for path, text in files.items():
        path.write_text(text)


def problems() -> list[str]:
    """One line for each generated file that is missing, edited by hand, or out of date."""
    found = []
    for path, text in generated().items():
        name = path.relative_to(ROOT)
        if not path.exists():
            found.append(f"{name}: missing; run `python -m codegen emit`")
            continue
        committed = path.read_text()
        if seal.broken(committed):
            found.append(f"{name}: broken seal (edited by hand); run `python -m codegen emit`")
        elif committed != text:
            found.append(f"{name}: out of date; run `python -m codegen emit`")
    return found
