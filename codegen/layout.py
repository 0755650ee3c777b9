"""Lay out generated Python: wrapped text, argument lists, tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

WIDTH = 110


def wrapped(text: str, indent: str, hanging: str = "    ") -> list[str]:
    return textwrap.wrap(
        text, WIDTH, initial_indent=indent, subsequent_indent=indent + hanging, break_long_words=False
    )


def joined(opening: str, parts: Iterable[str], closing: str, indent: str) -> list[str]:
    """`opening part, part closing` on one line if it fits, else the parts wrapped on lines of their own."""
    parts = list(parts)
    line = f"{indent}{opening}{', '.join(parts)}{closing}"
    if len(line) <= WIDTH:
        return [line]
    inner = textwrap.wrap(", ".join(p.replace(" ", "\0") for p in parts) + ",", WIDTH - len(indent) - 4)
    body = [f"{indent}    {row}".replace("\0", " ") for row in inner]
    return [f"{indent}{opening}", *body, f"{indent}{closing}"]


def table(name: str, annotation: str, entries: Iterable[tuple[str, str]]) -> list[str]:
    lines = [f"{name}: {annotation} = {{"]
    for key, value in entries:
        line = f"    {key}: {value},"
        if len(line) > WIDTH:
            lines += _long_entry(key, value)
        else:
            lines.append(line)
    return [*lines, "}"]


def _long_entry(key: str, value: str) -> list[str]:
    """A dictionary entry whose value is one long string literal, cut into pieces."""
    rows = textwrap.wrap(value.strip('"'), WIDTH - 16)
    pieces = [f'        "{row}{" " if row is not rows[-1] else ""}"' for row in rows]
    return [f"    {key}: (", *pieces, "    ),"]
