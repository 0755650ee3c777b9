"""What a plan may do: which arithmetic, how its algorithm is chosen, how much memory it may take.

A policy is a value and part of the plan key. The current one is ambient (`policy(...)` as a context manager)
and is recorded with each traced node.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import Any

ALGORITHMS = ("heuristic", "fastest", "fallback")
_NAMES = {"benchmark": "fastest", "time_once": "fastest", "guess_once": "heuristic", "guess": "heuristic"}


@dataclass(frozen=True)
class Policy:
    """How plans are chosen.

    tf32: float32 convolutions and products may round their inputs to TF32 (10-bit mantissa).
    deterministic: only algorithms that give bit-equal results from run to run.
    algorithm: "heuristic" (the library's first choice), "fastest" (candidates are checked and timed;
        "benchmark" is another name for it), or "fallback" (the most widely supported engine).
    workspace_limit: bytes that a plan may take beside its operands; None is no limit.
    """

    tf32: bool = False
    deterministic: bool = False
    algorithm: str = "heuristic"
    workspace_limit: int | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "algorithm", _NAMES.get(self.algorithm, self.algorithm))
        if self.algorithm not in ALGORITHMS:
            raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}, got {self.algorithm!r}")
        if self.workspace_limit is not None and self.workspace_limit < 0:
            raise ValueError(f"workspace_limit must be >= 0 bytes or None, got {self.workspace_limit}")


_DEFAULT = Policy()
_current: ContextVar[Policy] = ContextVar("lamina_policy", default=_DEFAULT)


def current_policy() -> Policy:
    """The policy in force here."""
    return _current.get()


@contextmanager
def policy(base: Policy | None = None, **changes: Any) -> Iterator[Policy]:
    """Use a policy inside a `with` block: `with policy(algorithm="fastest", tf32=True): …`."""
    chosen = replace(base or _current.get(), **changes)
    token = _current.set(chosen)
    try:
        yield chosen
    finally:
        _current.reset(token)
