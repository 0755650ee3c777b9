"""Verification that a pass has changed no result: for tests, where it is switched on.

After each pass every spec is inferred again, the order of the nodes is checked, and the outputs of small graphs are
computed by the reference backend in float64 and compared with those before the pass.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar

import numpy as np

from lamina.backends.reference import run_reference
from lamina.graph.ir.graph import Graph, Node, Value
from lamina.ops.core import Array, Op
from lamina.ops.primitives.cast import Cast
from lamina.ops.primitives.foreach import Foreach
from lamina.ops.primitives.fused import Fused
from lamina.spec import DTypeError, Spec, as_dtype, float64

#: Nodes, elements of one value, and multiplications of one node up to which values are compared.
_MOST_NODES, _MOST_ELEMENTS, _MOST_FLOPS = 120, 1 << 13, 1 << 21

_switched_on: ContextVar[bool] = ContextVar("lamina_checked_passes", default=False)


class PassError(AssertionError):
    """A pass has changed what a graph computes, or left it invalid; the message names the pass."""


def checked_passes() -> bool:
    """Whether passes are checked here."""
    return _switched_on.get()


@contextmanager
def check_passes(on: bool = True) -> Iterator[None]:
    """Check every pass inside the block (or do not)."""
    token = _switched_on.set(on)
    try:
        yield
    finally:
        _switched_on.reset(token)


class Checker:
    """A graph before all passes, to compare with.

    A pass keeps the nodes that it does not change: for nodes seen before, specs and values are known.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.sound: set[Node] = set()
        self.known: dict[Value, Array] = {}
        self.wanted = None
        if _is_small(graph):
            self.known.update(zip(graph.inputs, _drawn(graph), strict=True))
            self.wanted = self._results(graph)

    def check(self, name: str, better: Graph) -> None:
        """Raise PassError when `better`, the result of the pass of this name, is invalid or computes something
        else."""
        self._check_specs(name, better)
        _check_order(name, better)
        found = self._results(better) if self.wanted is not None else None
        if found is None or self.wanted is None:
            return
        for i, (one, wanted) in enumerate(zip(found, self.wanted, strict=True)):
            if not np.allclose(one, wanted, rtol=1e-5, atol=1e-6, equal_nan=True):
                raise PassError(f"{name}: output {i} is {one!r}, before it was {wanted!r}, in\n{better}")

    def _check_specs(self, name: str, better: Graph) -> None:
        given = [[v.spec for v in g.outputs] for g in (self.graph, better)]
        if given[0] != given[1] or any(
            a is not b for a, b in zip(self.graph.inputs, better.inputs, strict=True)
        ):
            raise PassError(f"{name}: inputs or outputs are others: {given[1]}, before {given[0]}")
        for node in better.nodes:
            if node in self.sound:
                continue
            specs = tuple(s.open for s in node.op.infer(*(v.spec for v in node.inputs)))
            if specs != tuple(v.spec for v in node.outputs):
                raise PassError(f"{name}: {node!r} gives {specs}, its outputs are {node.outputs}")
            self.sound.add(node)

    def _results(self, graph: Graph) -> list[Array] | None:
        """The outputs by the reference backend, floats in float64; None where they are not compared."""
        if not _is_small(graph):
            return None
        known = self.known
        for v in graph.constants:
            if v.constant is not None and v not in known:
                known[v] = _wide(v.constant.numpy())
        for node in graph.nodes:
            if all(v in known for v in node.outputs):
                continue
            try:
                known.update(
                    zip(node.outputs, _outputs(node.op, [known[v] for v in node.inputs]), strict=True)
                )
            except (DTypeError, IndexError):  # ops for other types; random numbers that are no valid index
                return None
        return [known[v] for v in graph.outputs]


def _check_order(name: str, graph: Graph) -> None:
    there: set[Value] = {*graph.inputs, *graph.constants}
    for node in graph.nodes:
        if any(v not in there for v in node.inputs):
            raise PassError(f"{name}: {node!r} runs before what it reads, in\n{graph}")
        there.update(node.outputs)


def _is_small(graph: Graph) -> bool:
    few = len(graph.nodes) <= _MOST_NODES and all(v.spec.numel <= _MOST_ELEMENTS for v in graph.inputs)
    return few and all(
        max((v.spec.numel for v in (*node.inputs, *node.outputs)), default=0) <= _MOST_ELEMENTS
        and node.op.flops(*(v.spec for v in node.inputs)) <= _MOST_FLOPS
        for node in graph.nodes
    )


def _drawn(graph: Graph) -> list[Array]:
    rng = np.random.default_rng(len(graph.nodes))
    return [_array(v.spec, rng) for v in graph.inputs]


def _array(spec: Spec, rng: np.random.Generator) -> Array:
    """Floats of both signs; integers that are valid as an index."""
    if spec.dtype.is_float:
        return np.asarray(rng.uniform(-1.5, 2.0, spec.shape))
    return np.asarray(rng.integers(0, 2, spec.shape)).astype(spec.dtype.numpy)


def _outputs(op: Op, arrays: Sequence[Array]) -> Sequence[Array]:
    """By the reference; nothing is rounded to a float type, since passes may remove such roundings."""
    if isinstance(op, Fused):
        return op.run(_outputs, arrays)[0]
    one = op.op if isinstance(op, Foreach) else op
    if isinstance(one, Cast) and one.dtype.is_float and all(as_dtype(a.dtype).is_float for a in arrays):
        return arrays
    return run_reference(op.unrounded(), arrays, float64)


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if as_dtype(array.dtype).is_float else array
