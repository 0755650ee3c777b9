"""Network summaries: outputs, parameters and arithmetic of every module, and the memory of the whole."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from html import escape
from typing import Any

from lamina import _tree
from lamina.graph.ir.capture import trace
from lamina.graph.ir.graph import Graph, mark
from lamina.nn.module import Module, evaluating
from lamina.ops.arguments import checked
from lamina.runtime import human_bytes
from lamina.spec import DType, Spec, as_dtype
from lamina.tensors import array_spec, flatten_arrays

_HEAD = ("module", "outputs", "parameters", "MFLOP")


@dataclass(frozen=True)
class SummaryRow:
    """One module.

    name: its path in the network, "" for the network itself. outputs: of its first call, () if it was not called (its
    submodules may have been). parameters: the count in it and its submodules, except those of earlier modules. flops:
    multiplications and additions of matrix products, including its submodules', over all calls.
    """

    name: str
    kind: str
    depth: int
    outputs: tuple[Spec, ...]
    parameters: int
    flops: int
    calls: int


@dataclass(frozen=True)
class Summary:
    """A network, module by module; `print` shows a table.

    parameters, buffers: total counts. parameter_bytes: of both. activation_bytes: outputs of the leaf modules, which
    training keeps. flops: of one forward pass.
    """

    rows: tuple[SummaryRow, ...]
    inputs: tuple[Spec, ...]
    parameters: int
    buffers: int
    parameter_bytes: int
    activation_bytes: int
    flops: int

    def __str__(self) -> str:
        table = [_HEAD, *map(_cells, self.rows)]
        widths = [max(len(r[c]) for r in table) for c in range(4)]
        lines = [
            f"{r[0]:<{widths[0]}}  {r[1]:<{widths[1]}}  {r[2]:>{widths[2]}}  {r[3]:>{widths[3]}}".rstrip()
            for r in table
        ]
        return "\n".join([*lines, *self.totals()])

    def totals(self) -> list[str]:
        """The last lines of the table."""
        given = ", ".join(map(str, self.inputs))
        held, kept = human_bytes(self.parameter_bytes), human_bytes(self.activation_bytes)
        return [
            f"inputs: {given}",
            f"parameters: {self.parameters:,}, and {self.buffers:,} in buffers: {held}",
            f"forward pass: {self.flops / 1e9:.3f} GFLOP; outputs of all layers: {kept}",
        ]

    def _repr_html_(self) -> str:
        """For notebooks."""
        style = "text-align:left;white-space:pre"
        head = "".join(f"<th style='{style}'>{h}</th>" for h in _HEAD)
        lines = ["".join(f"<td style='{style}'>{escape(c)}</td>" for c in _cells(r)) for r in self.rows]
        body = "".join(f"<tr>{line}</tr>" for line in lines)
        rest = "<br>".join(map(escape, self.totals()))
        return f"<table><tr>{head}</tr>{body}</table><p>{rest}</p>"


def _cells(row: SummaryRow) -> tuple[str, str, str, str]:
    name = row.name.rpartition(".")[2]
    title = "  " * row.depth + (f"{name}: {row.kind}" if name else row.kind)
    times = f" ×{row.calls}" if row.calls > 1 else ""
    return (
        title,
        ", ".join(map(str, row.outputs)) + times,
        f"{row.parameters:,}" if row.parameters else "",
        f"{row.flops / 1e6:,.2f}" if row.flops else "",
    )


@checked
def summary(net: Module, inputs: Any, *, depth: int | None = None, dtype: DType | str = "float32") -> Summary:
    """Summarize a network for inputs of these shapes, in inference mode; nothing is computed.

    inputs: a shape (a tuple of integers, for one input of dtype `dtype`), a Spec, an array, or a tuple, list or dict
    of Specs and arrays, as net takes them. depth: deeper modules are omitted from the table; None shows all. A
    parameter shared by several modules counts once, in the first. Raises TypeError for other inputs, and whatever the
    network raises.
    """
    specs, structure = _specs(inputs, dtype)
    watched: dict[int, _Watched] = {}
    with evaluating(net), _watching(net, watched):
        graph = trace(lambda *values: _called(net, structure, values), *specs)
    rows = tuple(_rows(net, "", 0, watched, _work(graph), set()))
    held = {id(x): x for x in (*net.parameters(), *net.buffers())}
    counts = {id(p) for p in net.parameters()}
    leaves = [m for m in net.modules() if not list(m.children())]
    return Summary(
        rows=tuple(r for r in rows if depth is None or r.depth <= depth),
        inputs=tuple(specs),
        parameters=sum(x.numel() for i, x in held.items() if i in counts),
        buffers=sum(x.numel() for i, x in held.items() if i not in counts),
        parameter_bytes=sum(x.nbytes for x in held.values()),
        activation_bytes=sum(watched[id(m)].nbytes for m in leaves if id(m) in watched),
        flops=sum(work for _, work in _work(graph)),
    )


def _specs(inputs: Any, dtype: DType | str) -> tuple[list[Spec], _tree.Structure]:
    """The specs of the inputs, and their nesting."""
    if isinstance(inputs, tuple | list) and inputs and all(type(n) is int for n in inputs):
        return [Spec(tuple(inputs), as_dtype(dtype))], _tree.LEAF
    found, structure = _tree.flatten(inputs)
    if not any(isinstance(x, Spec) for x in found):
        found, structure = flatten_arrays(inputs, "summary: inputs")
    return [x.open if isinstance(x, Spec) else array_spec(x) for x in found], structure


def _called(net: Module, structure: _tree.Structure, values: Any) -> Any:
    positional, named = _tree.arguments(_tree.unflatten(structure, values), net.forward)
    return net(*positional, **named)


@dataclass
class _Watched:
    """Observed calls of a module: outputs of the first, bytes of all, and their nodes' ranges of serial numbers."""

    outputs: tuple[Spec, ...] = ()
    nbytes: int = 0
    calls: int = 0
    spans: list[tuple[float, float]] = field(default_factory=list)


@contextmanager
def _watching(net: Module, watched: dict[int, _Watched]) -> Iterator[None]:
    """Within the block calls of all modules are recorded."""
    modules = list(net.modules())
    for module in modules:
        vars(module)["forward"] = _noting(module, module.forward, watched)
    try:
        yield
    finally:
        for module in modules:
            del vars(module)["forward"]


def _noting(module: Module, forward: Callable[..., Any], watched: dict[int, _Watched]) -> Callable[..., Any]:
    def noted(*inputs: Any, **options: Any) -> Any:
        before = mark()
        result = forward(*inputs, **options)
        seen = watched.setdefault(id(module), _Watched())
        outputs = tuple(x.spec.open for x in _tree.leaves(result) if hasattr(x, "spec"))
        seen.outputs = seen.outputs or outputs
        seen.nbytes += sum(s.nbytes for s in outputs)
        seen.calls += 1
        seen.spans.append((before, mark()))
        return result

    return noted


def _work(graph: Graph) -> list[tuple[float, int]]:
    """The serial number and arithmetic of each node."""
    return [(n.serial, n.op.flops(*(v.spec.open for v in n.inputs))) for n in graph.nodes]


def _rows(
    module: Module,
    name: str,
    depth: int,
    watched: dict[int, _Watched],
    work: list[tuple[float, int]],
    counted: set[int],
) -> Iterator[SummaryRow]:
    """A module and its submodules."""
    seen = watched.get(id(module), _Watched())
    own = {id(p): p.numel() for p in module.parameters() if id(p) not in counted}
    flops = sum(f for serial, f in work if any(a < serial <= b for a, b in seen.spans))
    yield SummaryRow(name, type(module).__name__, depth, seen.outputs, sum(own.values()), flops, seen.calls)
    for key, child in module.named_children():
        yield from _rows(child, f"{name}.{key}" if name else key, depth + 1, watched, work, counted)
    counted.update(own)
