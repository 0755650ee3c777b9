"""The outcome of converting a PyTorch network: the calls of its graphs, and the deviation of its results."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Node

from lamina.convert.torch.interpreter import FxProgram, find, where
from lamina.convert.torch.node import HANDLERS
from lamina.convert.torch.targets import full_name


class LeftCalls:
    """Calls that are not computed here: one entry for each function and reason, with the first one's line."""

    def __init__(self, calls: Iterable[tuple[Node, str]] = ()) -> None:
        self._found: dict[tuple[str, str], tuple[str, int]] = {}
        self.add(calls)

    def add(self, calls: Iterable[tuple[Node, str]]) -> list[str]:
        """Count these too; returns new ones as text, with the number of each."""
        given: dict[tuple[str, str], list[Node]] = {}
        for node, reason in calls:
            given.setdefault((full_name(node), reason), []).append(node)
        said = []
        for (name, reason), nodes in given.items():
            line, count = self._found.get((name, reason), (where(nodes[0]), 0))
            self._found[name, reason] = line, count + len(nodes)
            if not count:
                more = f" and {len(nodes) - 1} more like it" if len(nodes) > 1 else ""
                said.append(f"{name}{line}{more}: {reason}")
        return said

    def add_graph(self, nodes: int, reason: str) -> str:
        """Count a graph that falls back as a whole; returns it as text."""
        name = f"a graph of {nodes} nodes"
        self._found[name, reason] = "", self._found.get((name, reason), ("", 0))[1] + 1
        return f"{name}: {reason}"

    def join(self, other: LeftCalls) -> None:
        """Count those of another graph too."""
        for key, (line, count) in other._found.items():
            first, own = self._found.get(key, (line, 0))
            self._found[key] = first, own + count

    def counts(self) -> dict[str, int]:
        """Function, line and reason as text -> number of calls."""
        return {f"{name}{line}: {reason}": n for (name, reason), (line, n) in self._found.items()}


@dataclass
class GraphNotes:
    """The outcome of one of Dynamo's graphs. left: calls that fall back to PyTorch. programs: the parts that run
    here.
    """

    left: LeftCalls = field(default_factory=LeftCalls)
    programs: list[FxProgram] = field(default_factory=list)


@dataclass(frozen=True)
class ConversionReport:
    """The calls of a network's graphs, and their counterparts.

    calls: PyTorch's function -> (count, its counterpart). unknown: calls without a counterpart, one entry for each
    function and reason: as text, with the line of the first -> count.
    stays: calls computed by PyTorch: the module's path, or the function's name -> (count, class).
    left: calls that `torch.compile(backend="lamina")` leaves to PyTorch, as `unknown`.
    """

    network: str
    calls: Mapping[str, tuple[int, str]]
    unknown: Mapping[str, int]
    stays: Mapping[str, tuple[int, str]] = field(default_factory=dict)
    left: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls, source: Any, programs: Iterable[FxProgram], left: LeftCalls | None = None
    ) -> ConversionReport:
        """The report of a module, or function, from its graphs, and from the fallbacks of torch.compile's backend."""
        programs = list(programs)
        calls: dict[str, tuple[int, str]] = {}
        stays: dict[str, tuple[int, str]] = {}
        for program in programs:
            for node in program.nodes():
                held = node.meta.get("stays")
                name = held.path if held else full_name(node)
                counts = stays if held else calls
                count, _ = counts.get(name, (0, ""))
                counts[name] = count + 1, held.kind if held else _becomes(node)
        unknown = LeftCalls(pair for program in programs for pair in program.unknown()).counts()
        name = type(source).__name__ if isinstance(source, torch.nn.Module) else source.__qualname__
        return cls(name, calls, unknown, stays, left.counts() if left else {})

    def __str__(self) -> str:
        most = max(map(len, self.calls), default=0)
        lines = [f"{n:5}  {name:{most}}  {what}" for name, (n, what) in sorted(self.calls.items())]
        total = sum(n for n, _ in self.calls.values())
        head = f"{self.network}: {total} calls, {sum(self.unknown.values())} without a counterpart"
        if self.left:
            head += f"; PyTorch runs {sum(self.left.values())}"
        lines += [f"{n:5}  {path} ({name}) stays PyTorch's" for path, (n, name) in self.stays.items()]
        lines += [f"{n:5}  ! {text}" for text, n in self.unknown.items()]
        return "\n".join([head, *lines, *(f"{n:5}  PyTorch runs {text}" for text, n in self.left.items())])


def _becomes(node: Any) -> str:
    function = find(node)
    if function is None:
        return "—"
    if function in HANDLERS.values():
        return f"convert.torch.{function.__module__.rpartition('.')[2]}.{function.__name__}"
    place = "lamina.ops" if (function.__module__ or "").startswith("lamina.ops") else function.__module__
    return f"{place}.{function.__name__}"
