"""Analysis of a model's tensors: which are parameters, statistics, or must be known at trace time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from lamina.convert.onnx.body import Body, OnnxStep
from lamina.convert.onnx.node import KNOWN, STATISTICS

#: Operators that only read an input's sizes.
OF_SIZES = {("", "Shape"), ("", "Size")}
Functions = Mapping[tuple[str, str], Body]


def nodes_of(body: Body) -> Iterator[OnnxStep]:
    """The nodes of a body, each followed by those of its subgraphs."""
    for step in body.steps:
        yield step
        for inner in step.bodies:
            yield from nodes_of(inner)


def statistics(body: Body, functions: Functions) -> set[str]:
    """The values that operators read as statistics or scales."""
    found = set()
    for step in nodes_of(body):
        found |= set(_at(step.inputs, STATISTICS.get(step.key, ())))
        if step.key in functions and step.inputs:
            inner = functions[step.key]
            own = statistics(inner, {k: f for k, f in functions.items() if k != step.key})
            found |= {a for a, b in zip(step.inputs, inner.inputs, strict=False) if b in own}
    return found - {""}


def beside_statistics(body: Body) -> set[str]:
    """The values read by the operators that read statistics: computed in the statistics' type."""
    return {n for s in nodes_of(body) if STATISTICS.get(s.key) for n in s.inputs[1:] if n}


def decisive(body: Body, inputs: Iterable[str], functions: Functions) -> set[str]:
    """The values that determine shapes or control flow, and the values from which these are computed.

    Values that depend on the values of the graph's inputs are excluded: they are not known at trace time.
    """
    steps = list(nodes_of(body))
    varying = _varying(steps, set(inputs))
    makers = {name: step for step in steps for name in step.outputs if name}
    found: set[str] = set()
    wanted = [n for s in steps for n in _decisive_inputs(s, functions)]
    while wanted:
        name = wanted.pop()
        if not name or name in found or name in varying:
            continue
        found.add(name)
        maker = makers.get(name)
        if maker is not None and maker.key not in OF_SIZES:
            wanted += maker.inputs
    return found


def _varying(steps: Iterable[OnnxStep], inputs: set[str]) -> set[str]:
    """The values that depend on the values of inputs; in a subgraph, if one around it does."""
    found = set(inputs)
    for step in steps:
        read = {*step.inputs, *(n for b in step.bodies for s in nodes_of(b) for n in s.inputs)}
        if step.key not in OF_SIZES and found & read:
            found |= {*step.outputs, *(n for b in step.bodies for n in b.inputs)} - {""}
    return found


def _decisive_inputs(step: OnnxStep, functions: Functions) -> list[str]:
    """The inputs of a node whose values it needs; of a function, those of the nodes within it."""
    inner = functions.get(step.key)
    if inner is None:
        return _at(step.inputs, KNOWN.get(step.key, ()))
    rest = {key: body for key, body in functions.items() if key != step.key}
    own = decisive(inner, (), rest)
    return [a for a, b in zip(step.inputs, inner.inputs, strict=False) if b in own]


def _at(names: tuple[str, ...], places: Iterable[int]) -> list[str]:
    return [names[i] for i in places if i < len(names)]
