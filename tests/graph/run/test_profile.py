"""Work, times and memory of each kernel; the page is well formed and needs nothing beside it."""

import json
import re
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.graph import Executable, compile, html_page, profile, trace
from lamina.graph.run import profile as profiling
from lamina.graph.run.profile import Row
from lamina.ops import primitives
from lamina.ops.core import Op
from lamina.spec import Spec, bfloat16, float32


def small(device: str = "cpu", **options: object) -> Executable:
    def f(x, w, b):  # type: ignore[no-untyped-def]
        return ops.softmax(ops.matmul(ops.relu(ops.matmul(x, w)), b), 1)

    sizes = ((8, 32), (32, 64), (64, 16))
    return compile(trace(f, *(Spec(s, float32) for s in sizes)), device, **options)  # type: ignore[arg-type]


def test_flops_and_bytes_are_counted() -> None:
    found = profile(small(), rounds=0)
    assert found.milliseconds is None
    assert found.fraction is None
    products = [r for r in found.rows if r.flops]
    assert [r.flops for r in products] == [2 * 8 * 32 * 64, 2 * 8 * 64 * 16]
    assert products[0].nbytes == 4 * (8 * 32 + 32 * 64 + 8 * 64)


def test_the_table_has_work_where_an_op_has_any() -> None:
    a, b = Spec((200, 300), float32), Spec((300, 400), float32)
    made = compile(trace(lambda a, b: ops.softmax(ops.matmul(a, b), 1), a, b), "cpu")
    head, *lines = profile(made, rounds=0).text().splitlines()
    begin, end = head.index("GFLOP"), head.index("bytes")
    cells = [line[begin:end].strip() for line in lines[:2]]
    assert cells == ["0.05", ""]


@pytest.mark.parametrize(
    ("op", "shapes", "flops"),
    [
        (
            primitives.Conv(primitives.Window((2, 2), ((1, 1), (1, 1)), (1, 1))),
            ((2, 6, 8, 8), (4, 6, 3, 3)),
            2 * 2 * 4 * 16 * 54,
        ),
        (
            primitives.ConvDataGrad(primitives.Window((2, 2), ((1, 1), (1, 1)), (1, 1)), (8, 8)),
            ((2, 4, 4, 4), (4, 6, 3, 3)),
            2 * 2 * 4 * 16 * 54,
        ),
        (
            primitives.ConvFilterGrad(primitives.Window((2, 2), ((1, 1), (1, 1)), (1, 1)), (3, 3)),
            ((2, 6, 8, 8), (2, 4, 4, 4)),
            2 * 2 * 4 * 16 * 54,
        ),
        (primitives.Matmul(True, False), ((5, 7, 3), (5, 7, 2)), 2 * 5 * 7 * 3 * 2),
        (primitives.Relu(), ((3, 3),), 0),
    ],
)
def test_flops_of_ops(op: Op, shapes: tuple[tuple[int, ...], ...], flops: int) -> None:
    assert op.flops(*(Spec(s, bfloat16) for s in shapes)) == flops


def test_every_kernel_is_timed() -> None:
    run = small()
    found = profile(run, rounds=3)
    assert len(found.rows) == len(run.bound_steps())
    assert all(r.milliseconds is not None and r.milliseconds > 0 for r in found.rows)
    assert found.milliseconds == pytest.approx(sum(r.milliseconds or 0 for r in found.rows))
    assert found.fraction is not None
    assert found.fraction > 0
    assert "ms" in found.text()
    assert "of roofline" in found.text()


def test_timing_needs_state_and_kernels() -> None:
    with pytest.raises(RuntimeError, match="call load"):
        profile(small(resident=(1,)))
    with pytest.raises(RuntimeError, match="null backend"):
        profile(small(backend="null"))


def test_memory_over_the_steps_fits_the_arena() -> None:
    found = profile(small(), rounds=0)
    assert found.lives
    assert max(life.offset + life.nbytes for life in found.lives) <= found.arena
    for a in found.lives:
        for b in found.lives:
            alive = a.first <= b.last and b.first <= a.last
            apart = a.offset + a.nbytes <= b.offset or b.offset + b.nbytes <= a.offset
            assert a is b or not alive or apart


def test_refused_fusions_are_told() -> None:
    def f(x):  # type: ignore[no-untyped-def]
        return ops.eq(ops.argmax(x, 1), 3)

    found = profile(compile(trace(f, Spec((4, 5), float32)), "cpu"), rounds=0)
    assert any("no fusion onto" in reason for reason in found.refusals)
    assert "not fused: " in found.text()


def test_limits_of_a_cpu_are_measured() -> None:
    found = lm.device("cpu").machine
    assert 1e9 < found.rate("float32") < 1e14
    assert 1e8 < found.bandwidth < 1e13
    assert found.seconds(0, found.bandwidth, "float32") == pytest.approx(1.0)


class _Page(HTMLParser):
    """Checks that elements are closed in order, and collects what refers outside."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.outside: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in ("meta", "rect", "br"):
            self.open.append(tag)
        self.outside += [v or "" for k, v in attrs if k in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.outside += [v or "" for k, v in attrs if k in ("src", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.feature("B038")
def test_the_page_is_whole_and_holds_the_figures() -> None:
    found = profile(small(), rounds=2)
    text = html_page(found, "a <small> network")
    page = _Page()
    page.feed(text)
    assert page.open == []
    assert page.outside == []
    assert "a &lt;small&gt; network" in text
    held = text.split('id="profile">')[1].split("</script>")[0].replace("<\\/", "</")
    assert json.loads(held) == json.loads(json.dumps(found.record))
    assert np.isclose(sum(k["milliseconds"] for k in found.record["kernels"]), found.record["milliseconds"])


def test_the_page_has_the_graph_where_it_is_given() -> None:
    executable = small()
    found = profile(executable, rounds=0)
    text = html_page(found, "a network", executable.graph)
    page = _Page()
    page.feed(text)
    assert (page.open, page.outside) == ([], [])
    drawn = text.split("<h2>Graph</h2>")[1]
    assert drawn.count("<rect") >= len(executable.graph.nodes)
    assert "<h2>Graph</h2>" not in html_page(found, "a network")


@pytest.mark.parametrize("rounds", [-1, 10**30])
def test_rounds_without_end_are_refused(rounds: int) -> None:
    with pytest.raises(ValueError, match=r"profile: rounds must be in \[0, 1e\+06\], got"):
        profile(small(), rounds=rounds)


@pytest.mark.parametrize(("milliseconds", "fraction"), [(None, None), (0.0, None), (0.5, 0.5), (2.0, 0.125)])
def test_the_part_of_the_roofline(milliseconds: float | None, fraction: float | None) -> None:
    row = Row("relu()", "relu", "", "", 0, 0, 0, milliseconds, 0.25)
    assert row.fraction == fraction
    assert row.record["fraction"] == fraction


def test_limits_are_of_the_times_in_seconds(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    executable = small()
    count = len([s for s in executable.program.steps if not s.plan.view])
    monkeypatch.setattr(profiling, "kernel_times", lambda made, rounds: [2.0] * count)

    def least(steps: Any, seconds: list[float | None], machine: Any) -> list[float]:
        asked.append(seconds)
        return [1e-3] * len(steps)

    monkeypatch.setattr(profiling, "least_times", least)
    found = profile(executable, rounds=3)
    assert asked == [[0.002] * count]
    assert [(r.milliseconds, r.limit_ms, r.fraction) for r in found.rows] == [(2.0, 1.0, 0.5)] * count


def rectangles(picture: str) -> list[tuple[float, float, float, float]]:
    """x, y, width and height of each."""
    found = re.findall(r'<rect x="([\d.]+)" y="([\d.]+)" width="([\d.]+)" height="([\d.]+)"', picture)
    return [(float(x), float(y), float(w), float(h)) for x, y, w, h in found]


def test_pictures_are_to_scale() -> None:
    """Kernels as wide as their bytes where they were not timed; blocks of memory where and while they are in use."""
    found = profile(small(), rounds=0)
    kernels, memory = html_page(found, "a network").split("<svg")[1:3]
    bars = rectangles(kernels)[::2]  # each with its roofline's share behind it
    total, x = sum(r.nbytes for r in found.rows), 0.0
    for bar, row in zip(bars, found.rows, strict=True):
        assert bar == pytest.approx((x, 0, 1200 * row.nbytes / total, 60), abs=0.02)
        x += 1200 * row.nbytes / total
    steps, up = max(life.last for life in found.lives) + 1, 300 / found.arena
    for block, life in zip(rectangles(memory), found.lives, strict=True):
        left, width = 1200 * life.first / steps, 1200 * (life.last - life.first + 1) / steps
        top = 300 - (life.offset + life.nbytes) * up
        assert block == pytest.approx((left, top, width, life.nbytes * up), abs=0.02)
