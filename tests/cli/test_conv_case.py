"""A convolution's bench with stand-ins for cuDNN: what runs is measured against the definition, or says why not."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lamina.backends.reference import run_reference
from lamina.c.errors import CudnnError
from lamina.cli import conv_case
from lamina.cli.conv_case import Bench, Case, CaseRow
from lamina.runtime import Buffer, Device
from lamina.spec import as_dtype, float64

CASE = Case(2, 4, 9, 8, 6, 3, 2, pad=(1, 0), stride=(2, 1), groups=2, dtype="float32")


def laid(array: Any, case: Case) -> Any:
    """As memory has it."""
    return array.transpose(0, 2, 3, 1) if case.layout == "nhwc" else array


@dataclass
class Engine:
    """Computes the definition, times `factor`; `calls` counts."""

    case: Case
    direction: str
    workspace: int = 0
    factor: float = 1.0
    calls: int = 0

    def execute(self, handle: Any, pack: tuple[dict[int, int], int]) -> None:
        """On the addresses of a pack."""
        self.calls += 1
        pointers, _ = pack
        shapes, dtype = self.case.shapes(self.direction), as_dtype(self.case.dtype)
        arrays = []
        for place, shape in zip((1, 2), shapes[:2], strict=True):
            stored = laid(np.empty(shape), self.case).shape
            flat = np.frombuffer(
                ctypes.string_at(pointers[place], int(np.prod(shape)) * dtype.itemsize), dtype.numpy
            )
            values = flat.reshape(stored)
            arrays.append(values.transpose(0, 3, 1, 2) if self.case.layout == "nhwc" else values)
        (made,) = run_reference(self.case.op(self.direction), arrays, float64)
        result = np.ascontiguousarray(laid(made * self.factor, self.case)).astype(dtype.numpy)
        ctypes.memmove(pointers[3], result.ctypes.data, result.nbytes)


def bench(monkeypatch: pytest.MonkeyPatch, case: Case, engines: list[Engine], **options: Any) -> Bench:
    """One on the host's memory."""

    def graph_plans(one: Case, direction: str, *_: Any) -> Iterator[tuple[CaseRow, Any]]:
        for i, engine in enumerate(engines):
            yield CaseRow(direction, "graph", f"eng{i}", engine.workspace, True), engine
        yield CaseRow(direction, "graph", "eng9", refused="not here"), None

    monkeypatch.setattr(conv_case, "graph_plans", graph_plans)
    monkeypatch.setattr(conv_case, "VariantPack", lambda pointers, scratch: (pointers, scratch))
    monkeypatch.setattr(conv_case.legacy, "Handle", lambda device, stream: None)
    monkeypatch.setattr(conv_case, "imperative", lambda *_: SimpleNamespace(ranked=lambda handle: []))
    return Bench(case, Device("cpu"), tflops=2.0, bandwidth=0.5, **options)


@pytest.mark.parametrize("direction", conv_case.DIRECTIONS)
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_errors_are_relative_to_the_definition(
    monkeypatch: pytest.MonkeyPatch, direction: str, layout: str
) -> None:
    case = replace(CASE, layout=layout)
    engines = [
        Engine(case, direction),
        Engine(case, direction, factor=1.25),
        Engine(case, direction, factor=0.0),
    ]
    none, *rows, refused = bench(monkeypatch, case, engines, repeats=3).rows(direction, "all")
    assert (none.api, none.refused) == ("imperative", "cuDNN names no algorithm")
    assert refused == CaseRow(direction, "graph", "eng9", refused="not here")
    assert [row.error for row in rows] == pytest.approx([0.0, 0.25, 1.0], abs=1e-6)
    for row, engine in zip(rows, engines, strict=True):
        assert engine.calls == 1 + 2 + 3  # the result, what counts for nothing, what is timed
        assert row.milliseconds is not None
        assert row.milliseconds > 0
        assert row.tflops == pytest.approx(case.flops / row.milliseconds / 1e9)
        least = max(case.flops / 2e12, case.nbytes / 0.5e12)
        assert row.fraction == pytest.approx(least / row.milliseconds * 1e3)
        assert row.refused == ""


def test_what_needs_too_much_memory_or_fails_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    engines = [Engine(CASE, "forward", workspace=n) for n in (64, 65)]
    made = bench(monkeypatch, CASE, [*engines, Engine(CASE, "forward")], limit=64, repeats=1)

    def fails(*_: Any) -> None:
        raise CudnnError(3000, "cudnnBackendExecute", "no\nmore")

    monkeypatch.setattr(engines[0], "execute", fails)
    _, failed, large, good, _ = made.rows("forward", "all")
    assert failed.refused.startswith("cudnnBackendExecute")
    assert "\n" not in failed.refused
    assert failed.milliseconds is None
    assert large.refused == "needs 65 bytes of workspace, the limit is 64"
    assert (good.refused, engines[1].calls) == ("", 0)


def test_algorithms_of_the_imperative_api(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that work and fit are run, the others say why not."""
    made = bench(monkeypatch, CASE, [], limit=64, repeats=1)
    names = {"algorithm": "algo", "math_type": "math", "determinism": "deterministic"}
    found = [
        SimpleNamespace(**names, memory=memory, works=works, status="not_supported")
        for memory, works in ((64, True), (65, True), (0, False))
    ]
    engine = Engine(CASE, "data")

    def call_of(search: Any, one: Any, handle: Any, memory: tuple[Buffer, ...], scratch: Buffer) -> Any:
        pointers = {i: buffer.pointer for i, buffer in enumerate(memory, 1)}
        assert scratch.nbytes == one.memory
        return lambda: engine.execute(handle, (pointers, scratch.pointer))

    asked: list[str] = []
    monkeypatch.setattr(
        conv_case,
        "imperative",
        lambda case, what: asked.append(what) or SimpleNamespace(ranked=lambda _: found),
    )
    monkeypatch.setattr(conv_case, "call_of", call_of)
    monkeypatch.setattr(conv_case.legacy, "short", lambda value: value)
    first, large, other, _ = made.rows("data", "all")
    assert asked == ["backward_data"]
    assert (first.name, first.deterministic, first.workspace) == ("algo math", True, 64)
    assert first.error == pytest.approx(0.0, abs=1e-6)
    assert large.refused == "needs 65 bytes of workspace, the limit is 64"
    assert other.refused == "not_supported"


def test_both_ends_of_a_large_result_are_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_case, "_SAMPLE", 3)
    first, last = conv_case._ends(np.arange(10))
    assert (first.tolist(), last.tolist()) == ([0, 1, 2], [7, 8, 9])
    made = bench(monkeypatch, CASE, [Engine(CASE, "filter")], repeats=1)
    _, row, _ = made.rows("filter", "all")
    assert row.error == pytest.approx(0.0, abs=1e-6)
