"""Diagnosis of refused graphs: each engine's answer to a graph, and the nearest accepted graph, found by trying."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from lamina.c.errors import CudnnError
from lamina.cudnn.descriptor import Descriptor
from lamina.cudnn.engine import EngineConfig, OperationGraph, Target, key_text
from lamina.cudnn.plan import ExecutionPlan
from lamina.cudnn.rewrite import Part, rewrites

_REFUSAL = re.compile(r"eng(\d+): (\w+): (.*)")
_REASON = re.compile(r"Reason: (.*)")
#: The meaning of a status where the library gives no text.
_SILENT = {
    "NOT_SUPPORTED_ARCH_MISMATCH": "made for other GPUs",
    "NOT_SUPPORTED": "does not compute this pattern",
}


@dataclass(frozen=True)
class Verdict:
    """One engine's answer: `status` is "" where it accepts; engine -1 stands for the graph as a whole."""

    engine: int
    status: str
    reason: str

    def __str__(self) -> str:
        name = "graph" if self.engine < 0 else f"eng{self.engine}"
        return f"{name}: {self.status}: {self.reason}" if self.status else f"{name}: accepts"


@dataclass(frozen=True)
class Rewrite:
    """A graph that is accepted.

    changes: the differences, in words.
    parts: its operations: one graph, or two that run one after the other.
    plans: the engine of each part.
    """

    changes: tuple[str, ...]
    parts: tuple[Part, ...]
    plans: tuple[str, ...]

    def __str__(self) -> str:
        return f"{', '.join(self.changes)} ({' then '.join(self.plans)})"


@dataclass(frozen=True)
class Explanation:
    """Why a graph has no plan, or the engine that accepts it.

    plan: the engine that accepts the graph as it is, "" where none does.
    verdicts: of every engine. rewrite: the nearest graph that is accepted, None where nothing was found
    (or needed). tried: how many rewrites were tried.
    """

    graph: str
    plan: str
    verdicts: tuple[Verdict, ...]
    rewrite: Rewrite | None
    tried: int

    @property
    def supported(self) -> bool:
        """Whether the graph has a plan as it is."""
        return bool(self.plan)

    @property
    def refusals(self) -> dict[tuple[str, str], list[int]]:
        """(status, reason) -> the engines that give it."""
        found: dict[tuple[str, str], list[int]] = {}
        for verdict in self.verdicts:
            if verdict.status:
                found.setdefault((verdict.status, verdict.reason), []).append(verdict.engine)
        return found

    def __str__(self) -> str:
        if self.supported:
            return f"{self.graph} is supported: {self.plan}"
        lines = [f"{self.graph} is refused:"]
        for (status, reason), engines in self.refusals.items():
            names = "the graph" if engines == [-1] else ", ".join(f"eng{e}" for e in engines)
            lines.append(f"  {status}: {reason} ({names})")
        if self.rewrite is not None:
            lines.append(f"accepted instead: {self.rewrite}")
        else:
            lines.append(f"none of {self.tried} rewrites is accepted either")
        return "\n".join(lines)


def explain(operations: Sequence[Descriptor], target: Target, name: str = "the graph") -> Explanation:
    """Ask every engine, then try rewrites, those with the fewest changes first."""
    part = tuple(operations)
    plan = accepted(part, target)
    if plan:
        return Explanation(name, plan, verdicts(part, target), None, 0)
    tried = 0
    for changes, parts in rewrites(part):
        tried += 1
        plans = [accepted(p, target) for p in parts]
        if all(plans):
            found = Rewrite(changes, parts, tuple(plans))
            return Explanation(name, "", verdicts(part, target), found, tried)
    return Explanation(name, "", verdicts(part, target), None, tried)


def accepted(operations: Part, target: Target) -> str:
    """The first engine configuration with a plan, "" where there is none."""
    try:
        graph = OperationGraph(operations, target)
    except CudnnError:
        return ""
    for config in graph.configs(("a", "fallback")):
        try:
            ExecutionPlan(config, target)
        except CudnnError:
            continue
        return key_text(config.key)
    return ""


def verdicts(operations: Part, target: Target) -> tuple[Verdict, ...]:
    """The answer of every engine to a graph; a single verdict where the graph is refused as a whole."""
    try:
        graph = OperationGraph(operations, target)
        count = graph.engine_count
    except CudnnError as error:
        return (_verdict(-1, error),)
    reasons = _noted(graph)
    return tuple(_ask(graph, index, reasons) for index in range(count)) or (
        Verdict(-1, "NOT_SUPPORTED", "the library has no engine for this pattern"),
    )


def _ask(graph: OperationGraph, index: int, reasons: Mapping[int, tuple[str, str]]) -> Verdict:
    """One engine's verdict: its status, with the reason that heuristics noted where they tried it."""
    try:
        EngineConfig(graph, index)
    except CudnnError as error:
        verdict = _verdict(index, error)
        status, reason = reasons.get(index, (verdict.status, verdict.reason))
        return Verdict(index, status, reason)
    return Verdict(index, "", "")


def _noted(graph: OperationGraph) -> dict[int, tuple[str, str]]:
    """Engine -> status and reason, as far as heuristics without a result report them."""
    found: dict[int, tuple[str, str]] = {}
    for refusal in graph.configs(("a", "b", "fallback")).refusals:
        match = _REFUSAL.search(refusal)
        if match:
            found.setdefault(int(match[1]), (match[2], match[3]))
    return found


def _verdict(engine: int, error: CudnnError) -> Verdict:
    """The status and the innermost reason of an error."""
    status = error.code.removeprefix("CUDNN_STATUS_")
    match = _REASON.search(error.message)
    return Verdict(engine, status, match[1].strip() if match else _SILENT.get(status, "no reason given"))
