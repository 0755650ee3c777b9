"""One convolution case: its graphs, its engines and algorithms, and their time and error on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from math import prod
from statistics import median
from typing import Any

import numpy as np

from lamina.backends.reference import run_reference
from lamina.c.errors import CudnnError
from lamina.cudnn import ExecutionPlan, Graph, Target, VariantPack, key_text, legacy, note
from lamina.ops.primitives import Conv, ConvDataGrad, ConvFilterGrad, Window
from lamina.runtime import Buffer, Device, DeviceError, Event, OutOfMemoryError, from_host, memset, to_host
from lamina.spec import as_dtype, float64

DIRECTIONS = ("forward", "data", "filter")
DTYPES = ("bfloat16", "float16", "float32", "float64")

_IMPERATIVE = {"forward": "forward", "data": "backward_data", "filter": "backward_filter"}
_NONDETERMINISTIC = note("nondeterministic")
_NUMPY_FLOPS = 2e9  # operations up to which NumPy is the reference; beyond, cuDNN in float64
_SAMPLE = 1 << 20  # number of compared elements at either end of the result


@dataclass(frozen=True)
class Case:
    """A convolution: x [N, C, H, W], w [K, C / groups, R, S], y [N, K, P, Q]."""

    n: int
    c: int
    h: int
    w: int
    k: int
    r: int
    s: int
    pad: tuple[int, int] = (0, 0)
    stride: tuple[int, int] = (1, 1)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    dtype: str = "bfloat16"
    layout: str = "nhwc"

    def __post_init__(self) -> None:
        if self.c % self.groups or self.k % self.groups:
            raise ValueError(f"conv: c={self.c} and k={self.k} are not multiples of groups={self.groups}")
        if min(self.y[2:]) < 1:
            raise ValueError(
                f"conv: the filter {self.r}x{self.s} does not fit into the padded {self.h}x{self.w}"
            )

    @cached_property
    def window(self) -> Window:
        """The window as the ops represent it."""
        (top, left), one = self.pad, self.groups
        return Window(self.stride, ((top, top), (left, left)), self.dilation, one)

    @property
    def x(self) -> tuple[int, ...]:
        """The input's sizes."""
        return (self.n, self.c, self.h, self.w)

    @property
    def filter(self) -> tuple[int, ...]:
        """The filter's sizes."""
        return (self.k, self.c // self.groups, self.r, self.s)

    @cached_property
    def y(self) -> tuple[int, ...]:
        """The output's sizes."""
        sizes = zip((self.h, self.w), (self.r, self.s), self.pad, self.stride, self.dilation, strict=True)
        spatial = ((n + 2 * p - d * (f - 1) - 1) // t + 1 for n, f, p, t, d in sizes)
        return (self.n, self.k, *spatial)

    @property
    def flops(self) -> float:
        """Multiplications and additions of one direction."""
        return 2.0 * prod(self.y) * prod(self.filter[1:])

    @property
    def nbytes(self) -> int:
        """Bytes of all three tensors."""
        return sum(map(prod, (self.x, self.filter, self.y))) * as_dtype(self.dtype).itemsize

    @property
    def compute(self) -> str:
        """The accumulation type."""
        return "float64" if self.dtype == "float64" else "float32"

    def shapes(self, direction: str) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
        """Sizes of both operands and of the result."""
        x, w, y = self.x, self.filter, self.y
        return {"forward": (x, w, y), "data": (y, w, x), "filter": (x, y, w)}[direction]

    def graph(self, direction: str) -> Graph:
        """The graph of one direction: uids 1 and 2 are the operands, 3 is the result."""
        graph = Graph(self.compute)
        last = self.layout == "nhwc"
        tensors = [graph.packed(shape, self.dtype, channels_last=last) for shape in self.shapes(direction)]
        add = {"forward": graph.conv, "data": graph.conv_data_grad, "filter": graph.conv_filter_grad}[
            direction
        ]
        add(*tensors, stride=self.stride, pre=self.pad, dilation=self.dilation)
        return graph

    def op(self, direction: str) -> Conv | ConvDataGrad | ConvFilterGrad:
        """The op of one direction."""
        if direction == "forward":
            return Conv(self.window)
        if direction == "data":
            return ConvDataGrad(self.window, (self.h, self.w))
        return ConvFilterGrad(self.window, (self.r, self.s))


@dataclass(frozen=True)
class CaseRow:
    """One way to compute one direction. milliseconds and error are None if nothing was run."""

    direction: str
    api: str
    name: str
    workspace: int = 0
    deterministic: bool | None = None
    notes: tuple[str, ...] = ()
    milliseconds: float | None = None
    tflops: float | None = None
    fraction: float | None = None
    error: float | None = None
    refused: str = ""

    def as_dict(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


# ------------------------------------------------------------------------------------------------------- graph


def graph_plans(
    case: Case, direction: str, target: Target, engines: str
) -> Iterator[tuple[CaseRow, ExecutionPlan | None]]:
    """Plans of one direction, and rows for refused ones.

    engines: "best" is the first plan of the heuristic, "each" the first of every engine, "all" every
    configuration that heuristics name.
    """
    if engines == "none":
        return
    refusals: list[str] = []
    seen: set[int] = set()
    graph = case.graph(direction)
    modes = ("a", "fallback") if engines == "best" else ("a", "b", "fallback")
    accept = (lambda config: "again" if config.engine.index in seen else "") if engines == "each" else None
    for plan in graph.plans(target, modes, accept=accept, refusals=refusals):
        assert plan.config is not None
        seen.add(plan.config.engine.index)
        yield _row(direction, plan), plan
        if engines == "best":
            return
    for refusal in dict.fromkeys(refusals):
        if not refusal.endswith(": again"):
            name, _, reason = refusal.partition(": ")
            yield CaseRow(direction, "graph", name, refused=reason), None


def _row(direction: str, plan: ExecutionPlan) -> CaseRow:
    assert plan.config is not None
    engine = plan.config.engine
    notes = sorted(n.name.removeprefix("CUDNN_NUMERICAL_NOTE_").lower() for n in engine.numerical_notes)
    notes += sorted(n.name.removeprefix("CUDNN_BEHAVIOR_NOTE_").lower() for n in engine.behavior_notes)
    deterministic = _NONDETERMINISTIC not in engine.numerical_notes
    return CaseRow(direction, "graph", key_text(plan.config.key), plan.workspace, deterministic, tuple(notes))


def deviceless(case: Case, directions: Sequence[str], target: Target, engines: str) -> list[CaseRow]:
    """Candidates for an absent GPU: plans and refusals, and the names of the algorithms."""
    rows = []
    for direction in directions:
        rows += [row for row, _ in graph_plans(case, direction, target, engines)]
        names = [legacy.short(one) for one in type(legacy.algorithm(_IMPERATIVE[direction]))]
        unknown = "not asked: that needs a GPU"
        rows += [CaseRow(direction, "imperative", name, refused=unknown) for name in names if name != "count"]
    return rows


def remarks(case: Case, rows: Sequence[CaseRow]) -> list[str]:
    """For each direction and API without a candidate: a line saying so, with the library's reason for
    its algorithms."""
    lines = []
    for direction, api in dict.fromkeys((row.direction, row.api) for row in rows):
        of = [row for row in rows if (row.direction, row.api) == (direction, api)]
        if all(row.refused for row in of):
            reasons = ", ".join(dict.fromkeys(row.refused for row in of))
            hint = "; --layout nchw may" if api == "imperative" and case.layout == "nhwc" else ""
            lines.append(
                f"{direction}: the {api} API does not run {case.dtype} {case.layout}: {reasons}{hint}"
            )
    return lines


# ---------------------------------------------------------------------------------------------------- measured


class Bench:
    """A case on a GPU: its buffers, its reference, and the clock.

    Args:
        case: the convolution. device: the GPU.
        repeats: number of individually timed runs; the median is reported.
        limit: maximum workspace in bytes.
        tflops, bandwidth: the roofline for the reported fraction (TFLOP/s, TB/s; default: the device's own).
    """

    def __init__(
        self,
        case: Case,
        device: Device,
        *,
        repeats: int = 20,
        limit: int = 1 << 32,
        tflops: float | None = None,
        bandwidth: float | None = None,
    ) -> None:
        self.case, self.device, self.repeats, self.limit = case, device, repeats, limit
        self.tflops = tflops or device.machine.rate(case.dtype, tf32=True) / 1e12
        self.bandwidth = bandwidth or device.machine.bandwidth / 1e12
        self.stream = device.default_stream
        self.handle = legacy.Handle(device, stream=self.stream)
        self.dtype = as_dtype(case.dtype)

    def rows(self, direction: str, engines: str) -> Iterator[CaseRow]:
        """Every algorithm and every engine of one direction, measured."""
        arrays = [self._random(shape, seed) for seed, shape in enumerate(self.case.shapes(direction)[:2])]
        operands = [from_host(self._laid(a), self.device) for a in arrays]
        count = prod(self.case.shapes(direction)[2])
        result = self.device.allocate(count * self.dtype.itemsize)
        expected = self._expected(direction, arrays)
        for row, run in self._runs(direction, engines, operands, result):
            yield row if run is None else self._measured(row, run, result, expected)

    def _runs(
        self, direction: str, engines: str, operands: list[Buffer], result: Buffer
    ) -> Iterator[tuple[CaseRow, Callable[[], None] | None]]:
        """The runnable candidates: imperative algorithms first, then graph engines."""
        yield from self._imperative(direction, operands, result)
        pointers = {1: operands[0].pointer, 2: operands[1].pointer, 3: result.pointer}
        for row, plan in graph_plans(self.case, direction, self.handle, engines):
            if plan is None or plan.workspace > self.limit:
                yield self._too_large(row), None
                continue
            scratch = self.device.allocate(plan.workspace)
            pack = VariantPack(pointers, scratch.pointer)
            yield row, lambda plan=plan, pack=pack, kept=scratch: plan.execute(self.handle, pack)  # type: ignore[misc]

    def _imperative(
        self, direction: str, operands: list[Buffer], result: Buffer
    ) -> Iterator[tuple[CaseRow, Callable[[], None] | None]]:
        search = imperative(self.case, _IMPERATIVE[direction])
        try:
            ranked = search.ranked(self.handle)
        except CudnnError as failure:
            yield CaseRow(direction, "imperative", "any", refused=str(failure).splitlines()[0]), None
            return
        if not ranked:
            yield CaseRow(direction, "imperative", "any", refused="cuDNN names no algorithm"), None
        for found in ranked:
            name = f"{legacy.short(found.algorithm)} {legacy.short(found.math_type)}"
            deterministic = legacy.short(found.determinism) == "deterministic"
            row = CaseRow(direction, "imperative", name, found.memory, deterministic)
            if not found.works or found.memory > self.limit:
                reason = "" if found.works else legacy.short(found.status)
                yield self._too_large(replace(row, refused=reason)), None
                continue
            yield (
                row,
                call_of(search, found, self.handle, (*operands, result), self.device.allocate(found.memory)),
            )

    def _too_large(self, row: CaseRow) -> CaseRow:
        if row.refused:
            return row
        return replace(row, refused=f"needs {row.workspace} bytes of workspace, the limit is {self.limit}")

    def _measured(
        self, row: CaseRow, run: Callable[[], None], result: Buffer, expected: list[np.ndarray[Any, Any]]
    ) -> CaseRow:
        """The row with time and error; for a failure, with its reason."""
        try:
            memset(result, 0xFF, self.stream)  # NaN in every float type
            run()
            error = self._error(result, expected)
            milliseconds = self._time(run)
        except (CudnnError, DeviceError, OutOfMemoryError) as failure:
            return replace(row, refused=str(failure).splitlines()[0])
        seconds = milliseconds / 1e3
        least = max(self.case.flops / (self.tflops * 1e12), self.case.nbytes / (self.bandwidth * 1e12))
        return replace(
            row,
            milliseconds=milliseconds,
            tflops=self.case.flops / seconds / 1e12,
            fraction=least / seconds,
            error=error,
        )

    def _time(self, run: Callable[[], None]) -> float:
        """The median of single runs, after two warm-up runs."""
        for _ in range(2):
            run()
        pairs = [(Event(timing=True), Event(timing=True)) for _ in range(self.repeats)]
        for start, end in pairs:
            self.stream.record(start)
            run()
            self.stream.record(end)
        self.stream.synchronize()
        return median(start.elapsed(end) for start, end in pairs)

    # -- values ---------------------------------------------------------------------------------------------

    def _random(self, shape: tuple[int, ...], seed: int) -> np.ndarray[Any, Any]:
        """Numbers between -1 and 1 that the dtype represents exactly."""
        numbers = np.random.default_rng(seed).random(shape, np.float32) * 2 - 1
        return numbers.astype(self.dtype.numpy)

    def _laid(self, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The elements in memory order."""
        return np.ascontiguousarray(array.transpose(0, 2, 3, 1) if self.case.layout == "nhwc" else array)

    def _expected(self, direction: str, arrays: list[np.ndarray[Any, Any]]) -> list[np.ndarray[Any, Any]]:
        """Both ends of the result in float64: by NumPy where that is fast, else by cuDNN in double precision."""
        if self.case.flops <= _NUMPY_FLOPS:
            (whole,) = run_reference(self.case.op(direction), arrays, float64)
            return _ends(self._laid(whole).reshape(-1))
        double = replace(self.case, dtype="float64", layout="nchw")
        search = imperative(double, _IMPERATIVE[direction])
        shape = self.case.shapes(direction)[2]
        operands = [from_host(a.astype(np.float64), self.device) for a in arrays]
        result = self.device.allocate(prod(shape) * 8)
        found = search.heuristic(self.handle, limit=self.limit, deterministic=True)
        call_of(search, found, self.handle, (*operands, result), self.device.allocate(found.memory))()
        self.stream.synchronize()
        return _ends(self._laid(to_host(result).view(np.float64).reshape(shape)).reshape(-1))

    def _error(self, result: Buffer, expected: list[np.ndarray[Any, Any]]) -> float:
        """||result - expected|| / ||expected||."""
        found = self._read(result, self.dtype.numpy)
        apart = sum(
            float(np.sum((f.astype(np.float64) - e) ** 2)) for f, e in zip(found, expected, strict=True)
        )
        size = sum(float(np.sum(e**2)) for e in expected)
        return float((apart / size) ** 0.5) if size else float(apart**0.5)

    def _read(self, buffer: Buffer, kind: np.dtype[Any]) -> list[np.ndarray[Any, Any]]:
        """Both ends of a buffer."""
        self.stream.synchronize()
        size = min(buffer.nbytes, _SAMPLE * kind.itemsize)
        parts = (buffer.view(0, size), buffer.view(buffer.nbytes - size, size))
        return [to_host(part).view(kind) for part in parts]


def _ends(flat: np.ndarray[Any, Any]) -> list[np.ndarray[Any, Any]]:
    count = min(flat.size, _SAMPLE)
    return [flat[:count], flat[flat.size - count :]]


def imperative(case: Case, direction: str) -> legacy.Search:
    """All algorithms of one direction of the imperative API."""

    def sizes(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0], *shape[2:], shape[1]) if case.layout == "nhwc" else shape

    kinds = {"data_type": case.dtype, "format": case.layout}
    convolution = legacy.Convolution(
        pad=case.pad,
        stride=case.stride,
        dilation=case.dilation,
        groups=case.groups,
        compute_type=case.compute,
    )
    x, y = (legacy.TensorDescriptor(sizes(shape), **kinds) for shape in (case.x, case.y))  # type: ignore[arg-type]
    return legacy.Search(direction, convolution, x, legacy.FilterDescriptor(sizes(case.filter), **kinds), y)


def call_of(
    search: legacy.Search,
    found: legacy.Found,
    handle: legacy.Handle,
    memory: tuple[Buffer, ...],
    scratch: Buffer,
) -> Callable[[], None]:
    """A function that runs one algorithm of a search on buffers: both operands and the result."""
    convolution = search.convolution.replace(math_type=found.math_type)
    x, w, y = search.x_desc, search.w_desc, search.y_desc
    first, second, result = memory
    more = {"algorithm": found.algorithm, "workspace": (scratch.pointer, found.memory)}
    names: dict[str, Any]
    if search.direction == "forward":
        names = {"x_desc": x, "x": first, "w_desc": w, "w": second, "y_desc": y, "y": result}
    elif search.direction == "backward_data":
        names = {"dy_desc": y, "dy": first, "w_desc": w, "w": second, "dx_desc": x, "dx": result}
    else:
        names = {"x_desc": x, "x": first, "dy_desc": y, "dy": second, "dw_desc": w, "dw": result}
    function = getattr(convolution, search.direction)

    def run(kept: Buffer = scratch) -> None:
        function(handle, **names, **more)

    return run
