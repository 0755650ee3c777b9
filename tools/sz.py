"""Lines per folder: `python -m tools.sz`. A mirror, not a score.

Counts lines that hold code (no blank lines, no comments, no docstrings) and prints, per folder of
src/lamina, the files, the code lines, the median and the longest function; generated code apart.
"""

from __future__ import annotations

import ast
import statistics
import sys
import tokenize
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = "This file is generated"
SKIPPED = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


@dataclass
class Size:
    """What one folder holds."""

    files: int = 0
    lines: int = 0
    functions: list[int] = field(default_factory=list)

    def add(self, lines: int, functions: Sequence[int]) -> None:
        """Count one more file."""
        self.files += 1
        self.lines += lines
        self.functions += functions


def docstring_lines(tree: ast.AST) -> set[int]:
    """The lines that docstrings take."""
    found: set[int] = set()
    for node in ast.walk(tree):
        body = getattr(node, "body", None)
        if isinstance(body, list) and body and isinstance(body[0], ast.Expr):
            value = body[0].value
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                found.update(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    return found


def code_lines(file: Path) -> set[int]:
    """The numbers of the lines of a file that hold code."""
    with file.open("rb") as stream:
        tokens = [t for t in tokenize.tokenize(stream.readline) if t.type not in SKIPPED and t.start[0] > 0]
    lines = {n for t in tokens for n in range(t.start[0], t.end[0] + 1)}
    return lines - docstring_lines(ast.parse(file.read_text(encoding="utf-8")))


def function_sizes(file: Path, lines: set[int]) -> Iterator[int]:
    """Code lines of each function of a file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield sum(node.lineno <= n <= (node.end_lineno or node.lineno) for n in lines)


def measure(package: Path) -> dict[str, Size]:
    """Sizes by folder directly under the package; "generated" holds the files that codegen wrote."""
    sizes: dict[str, Size] = {}
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package).parts
        name = parts[0] if len(parts) > 1 else "."
        if GENERATED.lower() in file.read_text(encoding="utf-8")[:2000].lower():
            name = "generated"
        lines = code_lines(file)
        functions = [] if name == "generated" else list(function_sizes(file, lines))
        sizes.setdefault(name, Size()).add(len(lines), functions)
    return sizes


def table(sizes: dict[str, Size]) -> str:
    """The printed table, hand-written folders first, with their sum."""
    rows = ["folder        files   lines  median fn  longest fn"]
    total = Size()
    for name, size in sorted(sizes.items()):
        if name != "generated":
            rows.append(_line(name, size))
            total.files, total.lines = total.files + size.files, total.lines + size.lines
            total.functions += size.functions
    rows.append(_line("written", total))
    if "generated" in sizes:
        rows.append(_line("generated", sizes["generated"]))
    return "\n".join(rows)


def _line(name: str, size: Size) -> str:
    median = f"{statistics.median(size.functions):.0f}" if size.functions else "-"
    longest = str(max(size.functions, default=0)) if size.functions else "-"
    return f"{name:12} {size.files:6} {size.lines:7} {median:>10} {longest:>11}"


if __name__ == "__main__":
    sys.stdout.write(table(measure(ROOT / "src/lamina")) + "\n")
