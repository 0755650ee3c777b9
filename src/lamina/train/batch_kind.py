"""The kinds of batches that a training step distinguishes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lamina import _tree
from lamina._tree import Structure
from lamina.graph import Value
from lamina.nn.mixed_precision import cast_float
from lamina.spec import DType, Spec


@dataclass(frozen=True)
class BatchKind:
    """The key of a program: the structures of inputs and targets, the specs of both's arrays in order, and whether it
    updates the parameters."""

    inputs: Structure
    targets: Structure
    specs: tuple[Spec, ...]
    updates: bool = True

    @property
    def samples(self) -> int | None:
        """The size of the first axis of all arrays, None where these differ."""
        found = {s.shape[0] for s in self.specs if s.ndim}
        return found.pop() if len(found) == 1 else None

    @property
    def names(self) -> list[str]:
        """Names of the arrays."""
        return [*_tree.names(self.inputs, "inputs"), *_tree.names(self.targets, "targets")]

    def trees(self, values: Sequence[Value], compute: DType) -> tuple[Any, Any]:
        """Inputs, their floats in the compute type, and targets."""
        count = len(_tree.names(self.inputs, ""))
        given = [cast_float(v, compute) for v in values[:count]]
        return _tree.unflatten(self.inputs, given), _tree.unflatten(self.targets, values[count:])
