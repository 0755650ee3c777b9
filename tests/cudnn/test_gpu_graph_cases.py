"""Every graph that has a plan for this kind of GPU runs on it; values are in test_gpu_graph.py."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

from lamina.cudnn import Graph, Tensor, VariantPack, handle_of
from lamina.runtime import Buffer, Device, from_host, memset, to_host
from tests.helpers.cudnn.graph_cases import CASES, Case
from tests.helpers.cudnn.graph_run import in_process_of_its_own
from tests.helpers.cudnn.graph_values import NUMPY

pytestmark = pytest.mark.gpu
PLANNED = [case for case in CASES if not case.refused]


def bound(graph: Graph) -> list[Tensor]:
    """The tensors of a graph that memory is bound to."""
    found: dict[int, Tensor] = {}
    for operation in graph.operations:
        for value in operation.values.values():
            for tensor in value if isinstance(value, tuple | list) else [value]:
                if isinstance(tensor, Tensor) and not tensor.virtual:
                    found[tensor.uid] = tensor
                    offsets = tensor.values.get("ragged_offset")
                    if offsets is not None:
                        found[offsets.uid] = offsets
    return list(found.values())


def numbers(tensor: Tensor, rng: np.random.Generator) -> Any:
    """Memory for a tensor: in (0, 1), bytes and booleans 0 or 1; 2 is a length, a page and an index everywhere."""
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.dimensions, tensor.strides, strict=True))
    dtype = np.dtype(NUMPY.get(tensor.data_type, np.int8))
    if dtype in (np.int32, np.int64):
        return np.full(extent, 2, dtype)
    return (rng.integers(0, 2, extent) if dtype == np.int8 else rng.uniform(0.125, 0.875, extent)).astype(
        dtype
    )


@pytest.mark.feature("B005")
@pytest.mark.parametrize("case", PLANNED, ids=lambda case: case.title)
def test_what_has_a_plan_runs(case: Case) -> None:
    if waits(case):
        in_process_of_its_own("tests.cudnn.test_gpu_graph_cases", case.title)
    else:
        check_runs(case)


def waits(case: Case) -> bool:
    """Whether blocks wait for each other, so that a fault would not end: a process of its own has a time limit."""
    concatenates = case.kind == "OPERATION_CONCAT"  # as in test_gpu_graph.py
    return concatenates or (case.kind == "OPERATION_REDUCTION" and "deterministic" in case.name)


def check_runs(case: Case) -> None:
    device, rng = Device("cuda:0"), np.random.default_rng(0)
    handle = handle_of(device)
    handle.use(device.default_stream.handle)
    graph = case.graph()
    plan = graph.plan(handle)
    pointers: dict[int, int] = {}
    held: list[tuple[Any, Buffer | None]] = []
    for tensor in bound(graph):
        before = numbers(tensor, rng)
        memory = None if tensor.by_value else from_host(before.view(np.uint8), device)
        held.append((before, memory))
        pointers[tensor.uid] = before.ctypes.data if memory is None else memory.pointer
    scratch = device.allocate(plan.workspace)
    if waits(case):
        memset(scratch, 0xFF)  # what they count in may hold anything before
    plan.execute(handle, VariantPack(pointers, scratch.pointer))
    device.synchronize()
    changed = [m for before, m in held if m is not None and to_host(m).tobytes() != before.tobytes()]
    assert changed, "nothing was written"


if __name__ == "__main__":  # one case by its title
    check_runs(next(case for case in PLANNED if case.title == sys.argv[1]))
