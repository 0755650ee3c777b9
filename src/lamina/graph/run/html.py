"""A profile as one self-contained HTML page: the kernels as a timeline, the arena over time, and the table."""

from __future__ import annotations

import json
from html import escape

from lamina.graph.ir.graph import Graph
from lamina.graph.ir.picture import picture
from lamina.graph.run.profile import Life, Profile, Row
from lamina.ops.arguments import checked
from lamina.runtime import human_bytes

#: Kinds of kernels that get a colour of their own, by the beginning of the op's name.
_COLOURS = (
    ("conv", "#4269d0"),
    ("fused", "#6cc5b0"),
    ("matmul", "#9c6bde"),
    ("reduce", "#efb118"),
    ("batch_norm", "#ff8ab7"),
    ("max_pool", "#a463f2"),
    ("avg_pool", "#a463f2"),
    ("sgd", "#3ca951"),
    ("adam", "#3ca951"),
    ("reorder", "#d62f2f"),
)
_WIDTH, _BAR, _ARENA = 1200, 60, 300
_STYLE = """
body { font: 14px/1.4 system-ui, sans-serif; margin: 2em auto; max-width: 1240px; color: #222; background: #fff }
svg { display: block; width: 100%; height: auto; background: #f6f6f6; margin: .5em 0 1.5em }
table { border-collapse: collapse; width: 100% } th, td { text-align: left; padding: .2em .7em; vertical-align: top }
td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums }
tr:nth-child(even) { background: #f6f6f6 }
code { font: 12px ui-monospace, monospace; overflow-wrap: anywhere } rect:hover { stroke: #000 }
"""


@checked
def html_page(profile: Profile, title: str, graph: Graph | None = None) -> str:
    """The page: no scripts, no external files. Tooltips describe the bars. graph: drawn, too."""
    drawn = (
        ""
        if graph is None
        else f"<h2>Graph</h2><details><summary>{graph!r}</summary>{picture(graph)}</details>"
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f"<style>{_STYLE}</style></head><body><h1>{escape(title)}</h1>{_summary(profile)}"
        f"<h2>Kernels over time</h2>{_timeline(profile)}"
        f"<h2>Memory over the steps</h2>{_arena(profile)}"
        f"<h2>Kernels</h2>{_table(profile)}{_refusals(profile)}{drawn}"
        f'<script type="application/json" id="profile">{_embedded(profile)}</script></body></html>'
    )


def _embedded(profile: Profile) -> str:
    """The figures as JSON for programs; "</" would end the element."""
    return json.dumps(profile.record).replace("</", "<\\/")


def _summary(profile: Profile) -> str:
    total, fraction = profile.milliseconds, profile.fraction
    timed = "kernels were not timed" if total is None else f"{total:.3f} ms"
    share = "" if fraction is None else f", {fraction:.0%} of the device's roofline"
    return (
        f"<p>{len(profile.rows)} kernels on {escape(profile.device)}: {timed}{share}. Temporaries: "
        f"{human_bytes(profile.arena)} planned, {human_bytes(profile.unplanned)} unplanned, at least "
        f"{human_bytes(profile.bound)} in any plan.</p>"
    )


def _colour(op: str) -> str:
    return next((colour for prefix, colour in _COLOURS if op.startswith(prefix)), "#97bbf5")


def _timeline(profile: Profile) -> str:
    """One bar per kernel, as wide as its time (or its bytes where nothing was timed)."""
    timed = profile.milliseconds is not None
    sizes = [(r.milliseconds or 0.0) if timed else float(r.nbytes) for r in profile.rows]
    scale = _WIDTH / (sum(sizes) or 1.0)
    bars, x = [], 0.0
    for row, size in zip(profile.rows, sizes, strict=True):
        width = size * scale
        bars.append(_bar(row, x, width))
        x += width
    return _picture("".join(bars), _BAR, "kernels, wide as their time")


def _bar(row: Row, x: float, width: float) -> str:
    """The kernel's time as a bar; the darker part is the roofline's share of it."""
    fraction = row.fraction or 0.0
    reached = min(fraction, 1.0) * _BAR
    tip = escape(_tip(row))
    return (
        f'<g><title>{tip}</title><rect x="{x:.2f}" y="0" width="{width:.2f}" height="{_BAR}" '
        f'fill="{_colour(row.op)}" fill-opacity=".45"/><rect x="{x:.2f}" y="{_BAR - reached:.1f}" '
        f'width="{width:.2f}" height="{reached:.1f}" fill="{_colour(row.op)}"/></g>'
    )


def _tip(row: Row) -> str:
    time = "" if row.milliseconds is None else f"\n{row.milliseconds * 1e3:.1f} us"
    share = "" if row.fraction is None else f", {row.fraction:.0%} of roofline"
    origin = f"\n{row.origin}" if row.origin else ""
    return f"{row.op}\n{row.kernel}{time}{share}\n{row.inputs} -> {row.outputs}{origin}"


def _arena(profile: Profile) -> str:
    """The arena: steps to the right, offsets upward; a rectangle for the lifetime of each block."""
    last = max((life.last for life in profile.lives), default=0) + 1
    across, up = _WIDTH / last, _ARENA / (profile.arena or 1)
    blocks = "".join(_block(life, across, up) for life in profile.lives)
    return _picture(blocks, _ARENA, "memory in use, by step")


def _block(life: Life, across: float, up: float) -> str:
    height = life.nbytes * up
    return (
        f"<g><title>{escape(life.label)}\n{human_bytes(life.nbytes)}, steps {life.first} to {life.last}</title>"
        f'<rect x="{life.first * across:.2f}" y="{_ARENA - life.offset * up - height:.2f}" '
        f'width="{(life.last - life.first + 1) * across:.2f}" height="{height:.2f}" fill="#4269d0" '
        'fill-opacity=".55" stroke="#fff" stroke-width=".5"/></g>'
    )


def _picture(content: str, height: int, label: str) -> str:
    return f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{label}">{content}</svg>'


def _table(profile: Profile) -> str:
    head = "<tr><th class=n>#</th><th>op</th><th>kernel</th><th class=n>ms</th><th class=n>% of roofline</th>"
    head += "<th class=n>GFLOP</th><th class=n>bytes</th><th class=n>workspace</th><th>from</th></tr>"
    return f"<table>{head}{''.join(_line(i, r) for i, r in enumerate(profile.rows))}</table>"


def _line(index: int, r: Row) -> str:
    numbers = (
        "" if r.milliseconds is None else f"{r.milliseconds:.4f}",
        "" if r.fraction is None else f"{r.fraction:.0%}",
        f"{r.flops / 1e9:.2f}" if r.flops else "",
        human_bytes(r.nbytes),
        human_bytes(r.workspace) if r.workspace else "",
    )
    cells = "".join(f"<td class=n>{n}</td>" for n in numbers)
    return (
        f"<tr><td class=n>{index}</td><td><code>{escape(r.op)}</code></td>"
        f"<td><code>{escape(r.kernel)}</code></td>{cells}<td><code>{escape(r.origin)}</code></td></tr>"
    )


def _refusals(profile: Profile) -> str:
    if not profile.refusals:
        return ""
    lines = "".join(f"<li><code>{escape(reason)}</code></li>" for reason in profile.refusals)
    return f"<h2>Fusions that were refused</h2><ul>{lines}</ul>"
