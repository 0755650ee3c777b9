"""Steps that need ops: the planner is imported for them, and only then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lamina._lazy import lazy
from lamina.replay.addresses import Regions
from lamina.runtime import Device

_late = lazy(__name__, {"meaning": "lamina.graph.run.recorded", "anew": "lamina.graph.run.recorded"})


def operation(
    device: Device, kind: str, facts: Sequence[Any]
) -> Callable[[Regions, int], Callable[[], None]]:
    """The binder of an op's NumPy reference ("numpy"), or of an op that is planned now ("anew")."""
    found: Callable[[Regions, int], Callable[[], None]]
    found = _late("meaning")(*facts) if kind == "numpy" else _late("anew")(device, *facts)
    return found
