"""codegen/report.md: the contents of the headers, and which are bound, used and tested."""

from __future__ import annotations

import re
from pathlib import Path

from codegen.check import ROOT, TARGET
from codegen.emit import TITLES
from codegen.model import Library

PATH = Path(__file__).parent / "report.md"
_ROW = re.compile(r"^\| (\w+) (\w+) \|(.*)\|$", re.M)


def _words(folder: Path, skip: Path | None = None) -> set[str]:
    """Every identifier in the Python files below `folder`."""
    found: set[str] = set()
    for path in sorted(folder.rglob("*.py")):
        if skip is None or skip not in path.parents:
            found |= set(re.findall(r"\w+", path.read_text()))
    return found


def _counts(library: Library) -> dict[str, list[str]]:
    """Kind -> the names in the header."""
    return {
        "functions": [f["name"] for f in library.facts["functions"]],
        "enums": [e["name"] for e in library.facts["enums"]],
        "constants": [c["name"] for e in library.facts["enums"] for c in e["constants"]],
    }


def rows() -> dict[tuple[str, str], tuple[int, int, int, int]]:
    """(library, kind) -> (in header, bound, used by the layers above, named in tests)."""
    used, tested = _words(TARGET.parent, TARGET), _words(ROOT / "tests")
    found = {}
    for name in TITLES:
        library = Library(name)
        words = _words_of((TARGET / f"{name}.py").read_text())
        for kind, names in _counts(library).items():
            bound = [n for n in names if n in words]
            found[name, kind] = (
                len(names),
                len(bound),
                sum(_either(n, used) for n in names),
                sum(_either(n, tested) for n in names),
            )
    return found


def _words_of(text: str) -> set[str]:
    return set(re.findall(r"^(?:def |class )?(\w+)[(:]", text, re.M))


def _either(name: str, words: set[str]) -> bool:
    return name in words or name.removesuffix("_t") in words


def text() -> str:
    """The report."""
    lines = [
        "# What is bound",
        "",
        "Written by `python -m codegen emit`. A version bump is reviewed by the diff of this file.",
        "Used: named in `src/lamina` above `c/`. Tested: named in `tests/`; besides, one test resolves every",
        "function in each installed library and calls every function that can be called without a GPU.",
        "",
        "| library | in the header | bound | used | tested |",
        "|---|---|---|---|---|",
    ]
    for (name, kind), (total, bound, used, tested) in rows().items():
        lines.append(f"| {name} {kind} | {total} | {bound}/{total} | {used} | {tested} |")
    for name, title in TITLES.items():
        lines += ["", *_library_section(Library(name), title)]
    return "\n".join(lines) + "\n"


def _library_section(library: Library, title: str) -> list[str]:
    functions = library.functions
    deprecated = sum(f.deprecated for f in functions)
    lines = [f"## {title} {library.facts['version']}", ""]
    headers: dict[str, int] = {}
    for function in functions:
        headers[function.header] = headers.get(function.header, 0) + 1
    lines.append("Functions by header: " + ", ".join(f"{h} {n}" for h, n in headers.items()) + ".")
    if library.history:
        lines.append(f"Deprecated functions: {deprecated}. Compared with {', '.join(library.history)}.")
    for name, reason in library.overrides.get("skip", {}).items():
        lines.append(f"Not bound: {name}: {reason}.")
    newer: dict[tuple[int, ...], list[str]] = {}
    for function in functions:
        if function.since and function.since > (9, 0, 0):
            newer.setdefault(function.since, []).append(function.name)
    if newer:
        lines += ["", "Functions by the release that added them:", ""]
        for since, names in sorted(newer.items()):
            lines.append(f"- {'.'.join(map(str, since))}: {', '.join(names)}")
    return lines


def write() -> None:
    """Write report.md."""
    PATH.write_text(text())


def problems() -> list[str]:
    """Binding counts must be exact; use and tests may have grown since, but not shrunk."""
    if not PATH.exists():
        return [f"{PATH.name}: missing; run `python -m codegen emit`"]
    committed, now = PATH.read_text(), text()
    found = []
    if _ROW.sub("", committed) != _ROW.sub("", now):
        found.append("codegen/report.md: out of date; run `python -m codegen emit`")
    old, new = _table(committed), _table(now)
    for key, cells in new.items():
        if key not in old or cells[:2] != old[key][:2]:
            found.append(f"codegen/report.md: {' '.join(key)}: bound counts are out of date")
        elif any(int(claimed) > int(true) for claimed, true in zip(old[key][2:], cells[2:], strict=True)):
            found.append(f"codegen/report.md: {' '.join(key)}: claims more use or tests than there are")
    return found


def _table(report: str) -> dict[tuple[str, str], list[str]]:
    return {(n, k): [cell.strip() for cell in rest.split("|")] for n, k, rest in _ROW.findall(report)}
