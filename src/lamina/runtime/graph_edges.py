"""When the kernels of a captured graph begin: behind the end of those before them.

Libraries launch kernels so that they may begin while the one before them still runs (programmatic dependent launch);
capture keeps that in the edge. Replayed beside other work such kernels gave wrong numbers in up to one of thirty
runs, with whole edges in none of 75,000 (ResNet-18, cuDNN 9.19, compute capability 9.0). Whole edges from what came
before such an edge to what comes behind it are not enough: 13 of 2,400. So their edges are made whole.

Own kernels wait themselves before anything else (`griddepcontrol.wait`), and tell none behind them to begin. Within a
chain of them each is launched when the blocks before it have ended, while what these wrote is on its way to memory:
0.74 us from one small kernel to the next where whole edges take 0.98 (compute capability 9.0). Behind a library's
kernel, which tells others to begin while it runs, that wait is not enough beside other processes: one of some 300
runs of ResNet-18 was wrong.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from lamina.runtime import _cuda

#: CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC, CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC, CU_GRAPH_NODE_TYPE_KERNEL.
_PROGRAMMATIC, _PORT, _KERNEL = 1, 1, 0
#: Kernels that wait themselves, by the driver's handles of them, as long as they are loaded.
_waiting: WeakValueDictionary[int, Any] = WeakValueDictionary()


def waits_itself(kernel: Any, *handles: int) -> None:
    """A kernel, by the driver's handles of it, waits for the end of those before it as the first thing it does."""
    _waiting.update(dict.fromkeys(handles, kernel))


class Edge(NamedTuple):
    """From one node to another, as the driver names them; data: its kind."""

    before: Any
    after: Any
    data: Any

    @property
    def is_early(self) -> bool:
        """Whether what is behind it may begin before what is before it has ended."""
        return bool(int(self.data.type))


def set_edges(graph: Any) -> None:
    """Let each kernel of a captured graph begin when those before it have ended: as soon as their blocks have between
    two kernels that wait themselves, one behind the other and nothing else."""
    driver = _cuda.open_cuda().driver
    # From CUDA 13 on the functions that know of kinds of edges have the plain names.
    suffix = "_v2" if hasattr(driver, "cuGraphGetEdges_v2") else ""
    edges = _edges_of(graph, suffix)
    leaving, arriving = Counter(int(e.before) for e in edges), Counter(int(e.after) for e in edges)
    changed: list[tuple[Edge, Edge]] = []
    for edge in edges:
        alone = leaving[int(edge.before)] == arriving[int(edge.after)] == 1
        early = alone and _waits(edge.before) and _waits(edge.after)
        if early != edge.is_early:
            data = driver.CUgraphEdgeData()
            if early:
                data.type, data.from_port = _PROGRAMMATIC, _PORT
            changed.append((edge, edge._replace(data=data)))
    if changed:
        for name, part in zip(("Remove", "Add"), zip(*changed, strict=True), strict=True):
            _cuda.call(
                f"cuGraph{name}Dependencies{suffix}", graph, *map(list, zip(*part, strict=True)), len(part)
            )


def _edges_of(graph: Any, suffix: str) -> list[Edge]:
    """The edges of a graph; none where the bindings know nothing of their kinds."""
    ask = f"cuGraphGetEdges{suffix}"
    count = int(_cuda.call(ask, graph)[-1])
    answer = _cuda.call(ask, graph, count) if count else ()
    return [Edge(*one) for one in list(zip(*answer[:3], strict=False))[:count]] if len(answer) > 3 else []


def _waits(node: Any) -> bool:
    """Whether a node is a kernel that waits itself."""
    if int(_cuda.call("cuGraphNodeGetType", node)) != _KERNEL:
        return False
    launched = _cuda.call("cuGraphKernelNodeGetParams", node)
    return int(launched.func) in _waiting or int(launched.kern) in _waiting
