"""Find patterns of ops in a graph and replace them: one matcher, and the one loop that rebuilds a graph.

Nodes are visited in execution order. At each one, rules are tried whose patterns match from the node towards the
inputs and see the graph as rewritten so far: a replaced value is its replacement. Reader counts are kept exact
throughout, so that "no other reader" can be relied on. Both are linear in the number of nodes (for patterns of
bounded size). The graph itself is rebuilt once, at the end, by `replace`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lamina._cached import cached_property
from lamina.backends.pattern import AnyValue, Either, MadeBy, Pattern, Results
from lamina.graph.ir.graph import Graph, Node, Use, Value
from lamina.ops.core import Op


def replace(graph: Graph, results: Mapping[Value, Value]) -> Graph:
    """The graph with some values replaced by others, which may be made by new nodes of any values of the graph.

    Dead nodes disappear; the others keep op, policy and position, and are rebuilt where one of their producers has
    changed (their specs are then inferred anew).
    Raises ValueError when a replacement needs the value that it replaces.
    """
    if not results:
        return graph
    latest = _Latest(results)
    made: dict[Value, Value] = {}
    for node in _in_order(graph.outputs, latest):
        if any(v in made or v in results for v in node.inputs):
            inputs = tuple([made.get(v, v) for v in map(latest, node.inputs)])
            made.update(zip(node.outputs, node.with_inputs(inputs).outputs, strict=True))
    return Graph(graph.inputs, [made.get(v, v) for v in map(latest, graph.outputs)], graph.name)


class _Latest:
    """The current replacement of values, through any number of replacements."""

    def __init__(self, results: Mapping[Value, Value]) -> None:
        self.results = dict(results)

    def __call__(self, value: Value) -> Value:
        found = self.results.get(value)
        if found is None:
            return value
        passed = [value]
        while (further := self.results.get(found)) is not None:
            passed.append(found)
            found = further
        for old in passed[:-1]:  # path compression: the next lookup takes one step
            self.results[old] = found
        return found


def _in_order(outputs: Sequence[Value], latest: _Latest) -> Iterator[Node]:
    """The nodes that outputs need, each behind its producers."""
    done: set[Node] = set()
    opened: set[Node] = set()
    stack = [v.node for v in map(latest, reversed(outputs)) if v.node]
    while stack:
        node = stack[-1]
        if node in done:
            stack.pop()
        elif node in opened:
            done.add(stack.pop())
            yield node
        else:
            opened.add(node)
            before = [v.node for v in map(latest, node.inputs) if v.node and v.node not in done]
            if any(n in opened for n in before):
                raise ValueError(f"a replacement reads what it replaces, at {node!r}")
            stack += before


# -------------------------------------------------------------------------------------------------------- rewriting


class Rewriting:
    """A graph while it is rewritten: the replacement of each value, and its readers.

    notes: what rules keep from one match to the next.
    """

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.latest = _Latest({})
        self.notes: dict[Any, Any] = {}
        self._known: set[Node] = set(graph.nodes)
        self._dead: set[Node] = set()

    @cached_property
    def _uses(self) -> dict[Value, dict[Use, None]]:
        """The readers of each value: computed on first use, which many rules never need."""
        assert not self.latest.results
        found: dict[Value, dict[Use, None]] = {}
        for node in self.graph.nodes:
            for i, value in enumerate(node.inputs):
                found.setdefault(value, {})[Use(node, i)] = None
        for i, value in enumerate(self.graph.outputs):
            found.setdefault(value, {})[Use(None, i)] = None
        return found

    def alive(self, node: Node) -> bool:
        """Whether something still needs a node of the graph."""
        return node not in self._dead

    def knows(self, node: Node) -> bool:
        """Whether a node belongs to the graph, or was added to it."""
        return node in self._known

    def inputs(self, node: Node) -> tuple[Value, ...]:
        """A node's current inputs."""
        return tuple(map(self.latest, node.inputs)) if self.latest.results else node.inputs

    def readers(self, value: Value) -> list[Use]:
        """The current readers of a value."""
        return list(self._uses.get(self.latest(value), ()))

    def exists(self, value: Value, at: Node) -> bool:
        """Whether a value is made before the node `at` runs."""
        node = self.latest(value).node
        return node is None or node.serial < at.serial

    def replace(self, results: Mapping[Value, Value]) -> None:
        """Replace values by others."""
        _ = self._uses  # as they are before
        for old, new in results.items():
            current = self.latest(new)
            if old is not current:
                self._enter(current)
                self.latest.results[old] = current
                self._uses.setdefault(current, {}).update(self._uses.pop(old, {}))
        self._leave([v.node for v in results if v.node])

    def in_time(self, results: Mapping[Value, Value]) -> bool:
        """Whether all readers of a replaced value, unless they are replaced themselves, run behind the new one."""
        for old, new in results.items():
            node = self.latest(new).node
            if node is not None and any(
                use.node.serial <= node.serial
                for use in self.readers(old)
                if use.node is not None and not self._goes(use.node, results)
            ):
                return False
        return True

    def finish(self) -> Graph:
        """The graph as rewritten so far."""
        return replace(self.graph, self.latest.results)

    def _goes(self, node: Node, results: Mapping[Value, Value]) -> bool:
        return all(v in results or not self.readers(v) for v in node.outputs)

    def _enter(self, value: Value) -> None:
        """Count the reads of new nodes."""
        stack = [value.node]
        while stack:
            node = stack.pop()
            if node is None or node in self._known:
                continue
            self._known.add(node)
            for i, read in enumerate(self.inputs(node)):
                self._uses.setdefault(read, {})[Use(node, i)] = None
                stack.append(read.node)

    def _leave(self, stack: list[Node]) -> None:
        """Uncount the reads of nodes that became dead."""
        while stack:
            node = stack.pop()
            if node in self._dead or any(self._uses.get(v) for v in node.outputs):
                continue
            self._dead.add(node)
            for i, read in enumerate(self.inputs(node)):
                self._uses.get(read, {}).pop(Use(node, i), None)
                if read.node is not None:
                    stack.append(read.node)


# --------------------------------------------------------------------------------------------------------- matching

Names = dict[str, tuple[Value | None, Node | None]]


class Match:
    """A match of a pattern: its named values, and the means to write a replacement; see `PatternMatch`."""

    def __init__(self, root: Node, names: Names, rewriting: Rewriting) -> None:
        self.root, self.rewriting = root, rewriting
        self._names = names

    def __getitem__(self, name: str) -> Value:
        value, _ = self._names[name]
        assert value is not None, f"{name} is a node of which several outputs were matched"
        return value

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def node(self, name: str) -> Node:
        """The node with a name."""
        _, node = self._names[name]
        assert node is not None, f"{name} is an operand"
        return node

    def inputs(self, node: Node) -> tuple[Value, ...]:
        """A node's current inputs."""
        return self.rewriting.inputs(node)

    def exists(self, value: Value, at: Node) -> bool:
        """Whether a value is made before the node `at` runs."""
        return self.rewriting.exists(value, at)

    def readers(self, value: Value) -> list[Node | None]:
        """The current readers of a value, one entry per read; None stands for the graph's outputs."""
        return [use.node for use in self.rewriting.readers(value)]

    def apply(self, op: Op, *inputs: Value, at: Node) -> tuple[Value, ...]:
        """The outputs of a new node, under the policy and at the place of the node `at`."""
        return Node(op, inputs, at.policy, at.serial, origin=at.origin).outputs


def number_of(value: Value) -> float | None:
    """The number that a constant of one element is; None for other values."""
    if value.constant is None or value.spec.numel != 1 or not value.dtype.is_float:
        return None
    return float(value.constant.item())


def find(pattern: Pattern, root: Node, rewriting: Rewriting) -> Iterator[Match]:
    """The matches of a pattern with this root: several where operands commute or optional parts are missing."""
    yield from _matches(_roots(pattern), root, rewriting)


def _matches(roots: Sequence[MadeBy], root: Node, rewriting: Rewriting) -> Iterator[Match]:
    for option in roots:
        for names in _node(option, root, {}, root, rewriting):
            yield Match(root, names, rewriting)


def _value(pattern: Pattern, value: Value, names: Names, root: Node, now: Rewriting) -> Iterator[Names]:
    """All ways in which a pattern matches a value, with the names so far and those that it adds."""
    if isinstance(pattern, Either):
        for option in pattern.options:
            yield from _value(option, value, names, root, now)
    elif isinstance(pattern, AnyValue):
        if pattern.where is None or pattern.where(value):
            yield from _named(pattern.name, value, None, names)
    elif isinstance(pattern, MadeBy):
        node = value.node
        if node is None or node.outputs[pattern.index % len(node.outputs)] is not value:
            return
        if _is_read_so(pattern, value, now):
            yield from _node(pattern, node, names, root, now, value)


def _is_read_so(pattern: MadeBy, value: Value, now: Rewriting) -> bool:
    """Whether a value has as many readers as the pattern asks for."""
    count = len(now.readers(value)) if pattern.only_reader or pattern.other_readers else 0
    return not (pattern.only_reader and count > 1) and not (pattern.other_readers and count < 2)


def _node(
    pattern: MadeBy, node: Node, names: Names, root: Node, now: Rewriting, value: Value | None = None
) -> Iterator[Names]:
    """The same for the node that computes the value."""
    if not isinstance(node.op, pattern.kinds) or (pattern.same_policy and node.policy != root.policy):
        return
    if pattern.name in names:  # met before: its inputs are known to fit
        if names[pattern.name][1] is node:
            yield names
        return
    if pattern.where is not None and not pattern.where(node):
        return
    if not pattern.inputs:
        yield from _named(pattern.name, value, node, names)
        return
    for found in _inputs(pattern, now.inputs(node), names, root, now):
        yield from _named(pattern.name, value, node, found)


def _inputs(
    pattern: MadeBy, inputs: Sequence[Value], names: Names, root: Node, now: Rewriting
) -> Iterator[Names]:
    """The same for the node's inputs, from the first on."""
    wanted = pattern.inputs
    if len(wanted) > len(inputs):
        return
    yield from _all(wanted, inputs, names, root, now)
    if len(wanted) == len(inputs) == 2 and all(kind.commutative for kind in pattern.kinds):
        yield from _all(wanted, inputs[::-1], names, root, now)


def _all(
    wanted: Sequence[Pattern], inputs: Sequence[Value], names: Names, root: Node, now: Rewriting
) -> Iterator[Names]:
    if not wanted:
        yield names
        return
    for found in _value(wanted[0], inputs[0], names, root, now):
        yield from _all(wanted[1:], inputs[1:], found, root, now)


def _named(name: str, value: Value | None, node: Node | None, names: Names) -> Iterator[Names]:
    """The names with one more, if it is free or already bound to the same."""
    if not name:
        yield names
    elif name not in names:
        yield {**names, name: (value, node)}
    elif names[name][0] is value and names[name][1] is node:  # == of values is an op
        yield names


# ------------------------------------------------------------------------------------------------------------ rules


@dataclass(frozen=True)
class RewriteRule:
    """A pattern, and the replacement of a match's values: results of `make`, or None where the match stays as it
    is."""

    name: str
    pattern: Pattern
    make: Callable[[Match], Results | None]


@dataclass
class Report:
    """What a pass did: nodes before and after, how often each rule was applied, and refusals with their reasons."""

    name: str = ""
    before: int = 0
    after: int = 0
    merged: Counter[str] = field(default_factory=Counter)
    refused: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        merged = ", ".join(f"{count} {name}" for name, count in sorted(self.merged.items()))
        lines = [f"{self.name}: {self.before} -> {self.after} nodes" + f"; {merged}" * bool(merged)]
        return "\n".join([*lines, *(f"  refused: {reason}" for reason in self.refused)])


def rewrite(graph: Graph, rules: Sequence[RewriteRule], report: Report | None = None) -> Graph:
    """Apply rules wherever their patterns are found; at each node the first one that gives a replacement.

    A replacement that would have to run behind something that reads it is left alone.
    """
    roots = [(rule, _roots(rule.pattern)) for rule in rules]
    by_kind = {kind: _rules_for(kind, roots) for kind in {type(node.op) for node in graph.nodes}}
    if not any(by_kind.values()):
        return graph
    rewriting = Rewriting(graph)
    for node in graph.nodes:
        found = by_kind[type(node.op)]
        if found and rewriting.alive(node):
            name = _apply_first(found, node, rewriting)
            if name and report is not None:
                report.merged[name] += 1
    return rewriting.finish()


def _rules_for(
    kind: type[Op], rules: Sequence[tuple[RewriteRule, Sequence[MadeBy]]]
) -> list[tuple[RewriteRule, list[MadeBy]]]:
    """The rules whose roots this op class may produce, with these roots."""
    found = [(rule, [made for made in roots if issubclass(kind, made.kinds)]) for rule, roots in rules]
    return [(rule, roots) for rule, roots in found if roots]


def _roots(pattern: Pattern) -> list[MadeBy]:
    """The nodes that may produce a pattern's root: each of its options."""
    options = pattern.options if isinstance(pattern, Either) else (pattern,)
    assert all(isinstance(option, MadeBy) for option in options), "a pattern's root is made by an op"
    return [option for option in options if isinstance(option, MadeBy)]


def _apply_first(
    rules: Sequence[tuple[RewriteRule, Sequence[MadeBy]]], node: Node, rewriting: Rewriting
) -> str:
    """The name of the rule that was applied, "" for none."""
    for rule, roots in rules:
        for match in _matches(roots, node, rewriting):
            results = rule.make(match)
            if results and rewriting.in_time(results):
                rewriting.replace(results)
                return rule.name
    return ""
