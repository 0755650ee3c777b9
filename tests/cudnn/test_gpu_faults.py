"""Every engine of a convolution but those that are known to be wrong computes what it is asked for."""

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import pytest

from lamina.c.errors import CudnnError
from lamina.cudnn import ExecutionPlan, Graph, Handle, VariantPack, handle_of, key_text
from lamina.ops.core import Array
from lamina.ops.primitives import Window
from lamina.runtime import Device, from_host, memset, to_host
from tests.helpers import definitions

pytestmark = pytest.mark.gpu

X, FILTER = (2, 8, 13, 14), (8, 8, 3, 3)
PADDINGS = {
    "none": ((0, 0), (0, 0)),
    "even": ((2, 2), (1, 1)),
    "before": ((2, 0), (1, 0)),
    "behind": ((0, 2), (0, 2)),
    "one axis": ((0, 1), (1, 1)),
    "mixed": ((1, 2), (2, 1)),
}
WINDOWS = [
    Window(stride, padding, dilation, 1, flip)
    for stride, dilation in (
        ((1, 1), (1, 1)),
        ((2, 3), (1, 1)),
        ((1, 1), (2, 1)),
        ((2, 2), (2, 2)),
        ((2, 3), (2, 1)),
    )
    for padding in PADDINGS.values()
    for flip in (False, True)
]


@pytest.fixture
def handle() -> Iterator[Handle]:
    device = Device("cuda:0")
    made = handle_of(device)
    made.use(device.default_stream.handle)
    yield made
    device.synchronize()


def problem(direction: str, window: Window) -> tuple[Graph, tuple[Array, ...], Array]:
    """The graph in float32, what it reads (whole numbers), and its result."""
    rng = np.random.default_rng(3)
    places = (X[0], FILTER[0], *window.output(X[2:], FILTER[2:]))
    x, w, y = (rng.integers(-2, 3, shape).astype(float) for shape in (X, FILTER, places))
    graph = Graph()
    tx, tw, ty = (graph.packed(shape, "float32") for shape in (X, FILTER, places))
    options: dict[str, Any] = {
        "stride": window.stride,
        "pre": tuple(before for before, _ in window.padding),
        "post": tuple(behind for _, behind in window.padding),
        "dilation": window.dilation,
        "flip": window.flip,
    }
    if direction == "forward":
        graph.conv(tx, tw, ty, **options)
        return graph, (x, w), definitions.conv(window, x, w)
    if direction == "data":
        graph.conv_data_grad(ty, tw, tx, **options)
        return graph, (y, w), definitions.conv_data_grad(window, y, w, X[2:])
    graph.conv_filter_grad(tx, ty, tw, **options)
    return graph, (x, y), definitions.conv_filter_grad(window, x, y, FILTER[2:])


def errors(handle: Handle, direction: str, window: Window, *, wrong: bool = False) -> dict[str, float]:
    """Engine and knobs -> the largest difference from the right result, of those that are made of ready kernels."""
    graph, arrays, expected = problem(direction, window)
    device = handle.device
    x, w, y = graph.tensors
    reads, written = {"forward": ((x, w), y), "data": ((y, w), x), "filter": ((x, y), w)}[direction]
    held = [from_host(array.astype(np.float32), device) for array in arrays]
    result = device.allocate(4 * prod(expected.shape))
    pointers = {t.uid: b.pointer for t, b in zip((*reads, written), (*held, result), strict=True)}
    found = {}
    for config in graph.candidates(handle, wrong=wrong):
        if any("RUNTIME_COMPILATION" in note.name for note in config.engine.behavior_notes):
            continue  # a second each
        try:
            plan = ExecutionPlan(config, handle)
        except CudnnError:
            continue
        workspace = device.allocate(plan.workspace)
        memset(result, 0xFF)
        plan.execute(handle, VariantPack(pointers, workspace.pointer))
        device.synchronize()
        difference = np.abs(to_host(result).view(np.float32).reshape(expected.shape) - expected)
        found[key_text(config.key)] = float(difference.max()) if np.isfinite(difference).all() else np.inf
    return found


@pytest.mark.parametrize("direction", ["forward", "data", "filter"])
@pytest.mark.parametrize("window", WINDOWS, ids=str)
def test_engines_are_right(handle: Handle, direction: str, window: Window) -> None:
    """Sums of small whole numbers; transforms (Winograd's, Fourier's) round in between."""
    found = errors(handle, direction, window)
    assert found
    assert {engine: error for engine, error in found.items() if not error < 1e-3} == {}


@pytest.mark.parametrize("flip", [False, True])
def test_known_faults_are_still_there(handle: Handle, flip: bool) -> None:
    """Where this fails, the library was mended: then `lamina.cudnn.faults` should say since which version."""
    window = Window((2, 3), PADDINGS["before"], (1, 1), 1, flip)
    right, every = errors(handle, "filter", window), errors(handle, "filter", window, wrong=True)
    excluded = {engine: error for engine, error in every.items() if engine not in right}
    assert {engine.split("{")[0] for engine in excluded} >= {"eng1", "eng20"}
    assert all(not error < 1e-3 for error in excluded.values())
