"""Objects of every class created and closed many times, in a process of its own; prints one JSON object.

    python -m tests.helpers.legacy.lifetime COUNT DEVICE [PART PARTS]

class -> [objects created, growth of the process in bytes, loss of device memory in bytes, seconds]. With DEVICE cpu
the classes that need no GPU (of PARTS equal parts the one numbered PART), with cuda:0 those that need one, each COUNT
times or as often as SECONDS allow.

The device's free memory is that of all processes on it. So the objects are created in PIECES, and the device's loss
is the minimum over them: a leak loses memory in each, others' allocations do not grow in all of them (if
they did, there are more pieces, up to MOST).
"""

from __future__ import annotations

import gc
import json
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any

from lamina import cudnn
from lamina.c import cudnn as c
from lamina.c._library import MissingSymbol
from lamina.c.errors import CudnnError
from lamina.cudnn import legacy
from lamina.cudnn.descriptor import Descriptor
from lamina.runtime import Device
from tests.helpers.cudnn.graph_cases import CASES
from tests.helpers.legacy.makers import MAKERS
from tests.helpers.resident import resident

#: Time limit of one class that needs a GPU; ten times as much for the others.
SECONDS = 12.0
PIECES, MOST = 8, 24
Maker = Callable[[], Any]

LEGACY: dict[str, Maker] = {
    **MAKERS,
    "rnn": lambda: legacy.RNN(
        cell="lstm", input_size=8, hidden_size=16, layers=2, projection=12, bidirectional=True, clip=(-1, 1)
    ),
    "rnn data": lambda: legacy.RNNData(
        max_length=6, batch=4, vector_size=8, lengths=(6, 5, 3, 1), layout="packed"
    ),
    "sequence data": lambda: legacy.SequenceData(
        time=4, batch=2, beam=2, vector_size=8, lengths=(4, 1, 2, 3)
    ),
    "attention": lambda: legacy.MultiHeadAttention(
        heads=2,
        q_size=8,
        k_size=8,
        v_size=8,
        q_projection=4,
        k_projection=4,
        max_q_length=4,
        max_kv_length=4,
        max_batch=2,
    ),
}


def again(made: Descriptor) -> Descriptor:
    """A descriptor like `made`: created, all attributes set, finalized."""
    return made.remade(lambda name, value: value)


def graph_makers() -> dict[str, Maker]:
    """Class -> maker, for the tensors, settings and operations of the graph API, from the cases' graphs."""
    found: dict[str, Maker] = {}

    def collect(value: Any) -> None:
        if isinstance(value, Descriptor):
            found.setdefault(type(value).__name__, partial(again, value))
            value = tuple(value.values.values())
        if isinstance(value, (tuple, list)):
            for one in value:
                collect(one)

    for case in CASES:
        try:
            collect(case.graph().operations)
        except (MissingSymbol, CudnnError):
            continue  # newer than the library, or refused by it
    found["VariantPack"] = lambda: cudnn.VariantPack({1: 4096, 2: 8192}, workspace=16384)
    found["KnobChoice"] = lambda: cudnn.KnobChoice(1, 0)
    found["KnobInfo"] = cudnn.KnobInfo.empty
    return found


#: The classes of `planning_makers`.
PLANNED = {
    "DeviceProperties", "Engine", "EngineConfig", "ExecutionPlan", "Heuristics", "KernelCache", "OperationGraph",
}  # fmt: skip


def _convolution(*, dynamic: bool) -> cudnn.Graph:
    """A convolution in float16, channels-last."""
    graph = cudnn.Graph(dynamic=dynamic)
    x = graph.tensor((8, 32, 16, 16), (8192, 1, 512, 32), "float16")
    w = graph.tensor((32, 32, 3, 3), (288, 1, 96, 32), "float16")
    y = graph.tensor((8, 32, 16, 16), (8192, 1, 512, 32), "float16")
    graph.conv(x, w, y, stride=(1, 1), pre=(1, 1))
    return graph


def planning_makers(target: cudnn.Handle) -> dict[str, Maker]:
    """Objects made for a device: operation graphs, engines, plans, and the device's properties."""
    graph, cached = _convolution(dynamic=False), _convolution(dynamic=True).build(target)
    # Engines with dynamic sizes compile their kernels: that would be 100,000 compilations.
    config = next(iter(graph.plans(target, ("a", "b", "fallback"), forbid=["runtime_compilation"]))).config
    assert config is not None
    built, (number, knobs) = graph.build(target), config.key
    return {
        "OperationGraph": lambda: graph.build(target),
        "Engine": lambda: cudnn.Engine(built, number),
        "EngineConfig": lambda: cudnn.EngineConfig(built, number, dict(knobs)),
        "Heuristics": lambda: cudnn.Heuristics(built),
        "ExecutionPlan": lambda: cudnn.ExecutionPlan(config, target),
        "KernelCache": lambda: cudnn.KernelCache(cached),
        "DeviceProperties": lambda: cudnn.DeviceProperties(handle=target),
    }


class BareHandle:
    """A handle from `cudnnCreate` without a wrapper: to measure leaks of the library itself."""

    def __init__(self) -> None:
        self.address = c.cudnnCreate()

    def close(self) -> None:
        """Destroy it."""
        if self.address:
            c.cudnnDestroy(self.address)
        self.address = 0

    def __del__(self) -> None:
        self.close()


def device_makers(device: Device) -> dict[str, Maker]:
    """Objects that need a GPU."""
    handle = legacy.Handle(device)
    states = device.allocate(legacy.Dropout.states_size(handle))
    memory = (states, states.nbytes)
    return {
        **planning_makers(cudnn.handle_of(device)),
        "bare handle": BareHandle,
        "Handle": lambda: cudnn.Handle(device),
        "legacy handle": lambda: legacy.Handle(device),
        "dropout": lambda: legacy.Dropout(handle, rate=0.25, seed=1, states=memory),
        "dropout with memory": lambda: legacy.Dropout(handle, rate=0.25, seed=1),
    }


def missing() -> set[str]:
    """Classes of the graph API that the library has but no maker creates."""
    made = {*graph_makers(), *PLANNED, "ExpectedPlan"}  # the last one has no descriptor in the library
    own = (kind for kind in _kinds(Descriptor) if kind.__module__.startswith("lamina."))
    return {kind.__name__ for kind in own if kind.__name__ not in made and _known(kind)}


def _kinds(base: type[Any]) -> Iterator[type[Any]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


def _known(kind: type[Any]) -> bool:
    """Whether the library has this class; private bases have no kind."""
    try:
        kind.empty()
    except (AttributeError, CudnnError):
        return False
    return True


def turns(make: Maker, count: int, seconds: float) -> int:
    """Create and close `count` objects, or as many as `seconds` allow; every other one is left unclosed."""
    end = time.perf_counter() + seconds
    for i in range(count):
        made = make()
        if i % 2:
            made.close()  # the others are released with their last reference
        if i % 32 == 31 and time.perf_counter() > end:
            return i + 1
    return count


def measure(make: Maker, count: int, device: Device) -> tuple[int, int, int, float]:
    """(objects, growth, minimum loss of the device over the pieces in bytes, seconds)."""

    def free() -> int:
        if device.kind == "cpu":
            return 0
        legacy.Handle(device).close()  # it destroys the released handles
        device.synchronize()
        device.empty_cache()
        return device.memory_info().free

    seconds = SECONDS if device.kind == "cuda" else 10 * SECONDS
    turns(make, max(64, min(count // 10, 5000)), seconds / 10)
    left, before, made, took, lost = [free()], resident(), 0, 0.0, 0
    for piece in range(MOST):
        start = time.perf_counter()
        made += turns(make, (piece + 1) * count // PIECES - piece * count // PIECES, seconds / PIECES)
        took += time.perf_counter() - start
        left.append(free())
        lost = min(more - less for more, less in pairwise(left))
        if piece + 1 >= PIECES and lost <= 0:
            break
    return made, resident() - before, lost, took


def main(count: int, device: Device, part: int = 0, parts: int = 1) -> dict[str, tuple[int, int, int, float]]:
    host = {**LEGACY, **graph_makers()}
    chosen = sorted(host.items())[part::parts] if device.kind == "cpu" else device_makers(device).items()
    return {name: measure(make, count, device) for name, make in chosen}


if __name__ == "__main__":
    gc.freeze()  # so that collections skip the modules
    print(json.dumps(main(int(sys.argv[1]), Device(sys.argv[2]), *map(int, sys.argv[3:]))))
