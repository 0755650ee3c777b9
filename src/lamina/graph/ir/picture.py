"""A graph as a picture: nodes in rows, each below all its inputs, connected by lines.

It relies only on the attributes of graphs (inputs, constants, and nodes with op, inputs and outputs), so that a graph
can draw itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

#: Size of a box and the spacing around it, in pixels.
_WIDE, _HIGH, _GAP, _STEP = 168, 34, 14, 62
#: Graphs with more nodes are not drawn: the picture would be unreadable.
LARGEST = 600


def picture(graph: Any) -> str:
    """An SVG element; for a graph of more than `LARGEST` nodes a text that says so.

    Inputs and constants are in the first row, each node one row below the lowest of its inputs, and near them.
    """
    if len(graph.nodes) > LARGEST:
        return f"<p>{len(graph.nodes)} nodes are more than a picture shows ({LARGEST}).</p>"
    rows = _rows(graph)
    places = _places(rows)
    width = max((len(row) for row in rows), default=1) * (_WIDE + _GAP) + _GAP
    height = len(rows) * _STEP + _GAP
    lines = [_line(places[id(_maker(v))], places[id(n)]) for n in graph.nodes for v in n.inputs]
    names = graph.names()
    boxes = [_box(item, places[id(item)], names, graph) for row in rows for item in row]
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    style = 'style="max-width:100%;height:auto;font:11px sans-serif"'
    label = f'role="img" aria-label="{escape(repr(graph))}"'
    return f"<svg {size} {style} {label}>{''.join(lines)}{''.join(boxes)}</svg>"


def _maker(value: Any) -> Any:
    """The start of a line: a node, or the value itself if no node produces it."""
    return value.node or value


def _rows(graph: Any) -> list[list[Any]]:
    """Used inputs and constants; then the nodes by the longest path to them."""
    read = {v for n in graph.nodes for v in n.inputs} | set(graph.outputs)
    first: list[Any] = [v for v in (*graph.inputs, *graph.constants) if v in read]
    depth: dict[Any, int] = {}
    rows = [first] if first else []
    base = len(rows)
    for node in graph.nodes:
        depth[node] = max((depth[v.node] + 1 for v in node.inputs if v.node), default=0)
        while len(rows) <= base + depth[node]:
            rows.append([])
        rows[base + depth[node]].append(node)
    return rows


def _places(rows: Sequence[Sequence[Any]]) -> dict[int, tuple[float, float]]:
    """The center of each box: in each row ordered from left to right by the positions of the inputs."""
    widest = max((len(row) for row in rows), default=1)
    found: dict[int, tuple[float, float]] = {}
    for number, row in enumerate(rows):
        ordered = sorted(row, key=lambda item: _wanted(item, found)) if number else row
        start = (widest - len(row)) / 2
        for column, item in enumerate(ordered):
            x = _GAP + _WIDE / 2 + (start + column) * (_WIDE + _GAP)
            found[id(item)] = x, _GAP + _HIGH / 2 + number * _STEP
    return found


def _wanted(item: Any, places: dict[int, tuple[float, float]]) -> float:
    """The mean position of an item's inputs."""
    inputs = getattr(item, "inputs", ())
    known = [places[id(_maker(v))][0] for v in inputs]
    return sum(known) / len(known) if known else 0.0


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x, y), (to, down) = start, end
    y, down = y + _HIGH / 2, down - _HIGH / 2
    bend = (down - y) / 2
    return (
        f'<path d="M{x:.0f} {y:.0f} C{x:.0f} {y + bend:.0f} {to:.0f} {down - bend:.0f} {to:.0f} {down:.0f}" '
        'fill="none" stroke="#999"/>'
    )


def _box(item: Any, place: tuple[float, float], names: dict[Any, str], graph: Any) -> str:
    """A box with two lines of text; text that does not fit is in its tooltip."""
    if hasattr(item, "op"):
        title, colour = item.op.name, "#dde8f7"
        under = ", ".join(str(v.spec) for v in item.outputs)
        if not {id(v) for v in graph.outputs}.isdisjoint(map(id, item.outputs)):  # values compare as ops do
            colour = "#d9f2dd"
        tip = f"{item.op}\n{under}\n{item.origin.module}".strip()
    else:
        title, under, colour = names[item], str(item.spec), "#f3efe2"
        tip = f"{title}: {under}"
    x, y = place
    return (
        f'<g><title>{escape(tip)}</title><rect x="{x - _WIDE / 2:.0f}" y="{y - _HIGH / 2:.0f}" width="{_WIDE}" '
        f'height="{_HIGH}" rx="4" fill="{colour}" stroke="#888"/>'
        f'<text x="{x:.0f}" y="{y - 3:.0f}" text-anchor="middle">{escape(_short(title))}</text>'
        f'<text x="{x:.0f}" y="{y + 11:.0f}" text-anchor="middle" fill="#666">{escape(_short(under))}</text></g>'
    )


def _short(text: str, most: int = 26) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
