"""What became of a PyTorch network: the calls of its graphs, and how near its results are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from lamina.convert.torch.interpreter import FxProgram, find, where
from lamina.convert.torch.node import HANDLERS
from lamina.convert.torch.targets import full_name


def unknown_nodes(program: FxProgram) -> list[str]:
    """The calls without a counterpart, in words: function, reason, the user's line."""
    return [f"{full_name(node)}: {reason}{where(node)}" for node, reason in program.unknown()]


@dataclass(frozen=True)
class ConversionReport:
    """What a network's graphs call, and what that is here.

    calls: PyTorch's function -> (how often, what it became). unknown: calls without a counterpart, in words.
    stays: what PyTorch computes: the module's path, or the function's name -> (how often, class).
    """

    network: str
    calls: Mapping[str, tuple[int, str]]
    unknown: tuple[str, ...]
    stays: Mapping[str, tuple[int, str]] = field(default_factory=dict)

    @classmethod
    def of(cls, source: torch.nn.Module, programs: Sequence[FxProgram]) -> ConversionReport:
        """The report of a module by its graphs."""
        calls: dict[str, tuple[int, str]] = {}
        stays: dict[str, tuple[int, str]] = {}
        for program in programs:
            for node in program.nodes():
                held = node.meta.get("stays")
                name = held.path if held else full_name(node)
                counts = stays if held else calls
                count, _ = counts.get(name, (0, ""))
                counts[name] = count + 1, held.kind if held else _becomes(node)
        unknown = [text for program in programs for text in unknown_nodes(program)]
        return cls(type(source).__name__, calls, tuple(unknown), stays)

    def __str__(self) -> str:
        most = max(map(len, self.calls), default=0)
        lines = [f"{n:5}  {name:{most}}  {what}" for name, (n, what) in sorted(self.calls.items())]
        total = sum(n for n, _ in self.calls.values())
        head = f"{self.network}: {total} calls, {len(self.unknown)} without a counterpart"
        lines += [f"{n:5}  {path} ({name}) stays PyTorch's" for path, (n, name) in self.stays.items()]
        return "\n".join([head, *lines, *(f"  ! {text}" for text in self.unknown)])


def _becomes(node: Any) -> str:
    function = find(node)
    if function is None:
        return "—"
    if function in HANDLERS.values():
        return f"convert.torch.{function.__module__.rpartition('.')[2]}.{function.__name__}"
    place = "lamina.ops" if (function.__module__ or "").startswith("lamina.ops") else function.__module__
    return f"{place}.{function.__name__}"
