"""Constraints on plans: arithmetic, choice of algorithms, memory.

A policy is a value and part of the plan key. The current one is ambient (`policy(...)` as a context manager)
and is recorded with each traced node.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Integral
from typing import Any

ALGORITHMS = ("auto", "heuristic", "fastest", "fallback")
#: Names from other systems, and the algorithm and `once` that they mean: PyTorch's and cudnn.torch's "benchmark",
#: Theano's others.
ALIASES = {
    "benchmark": ("fastest", False),
    "guess": ("heuristic", False),
    "guess_once": ("heuristic", True),
    "guess_on_shape_change": ("heuristic", False),
    "time_once": ("fastest", True),
    "time_on_shape_change": ("fastest", False),
}
#: A plan by name: an own kernel, or a formulation and an engine with or without its knobs, as in plan labels.
_NAMED = re.compile(r"direct|halved|[a-z0-9]+ eng\d+(\{[\d:,]*\})?")


_FLAGS = ("tf32", "deterministic", "once", "check_indices", "check_finite")


@dataclass(frozen=True)
class Policy:
    """How plans are chosen.

    tf32: float32 convolutions and products may round their inputs to TF32 (10-bit mantissa).
    deterministic: only algorithms with bitwise reproducible results (`use_deterministic_algorithms` sets it
        globally).
    algorithm: "auto" (the measured fastest for this problem or a neighbouring one, if known from this user's timings
        or from the package; else the library's first choice; nothing is timed before a program runs, but `train_step`
        learns between its steps), "heuristic" (the library's first choice), "fastest" (candidates are checked and
        timed), or "fallback" (the most widely supported engine); other systems' names for these are in `ALIASES`. A
        GPU convolution can also be given a plan by name, as reports show it: "plain eng58{25:0}", "plain eng58",
        "direct" for the own kernel, or "halved" (many taps in bfloat16: three convolutions of half as many, with
        twice the rounding error; "fastest" may take it too); other devices and ops take it as "heuristic", as they do
        "auto".
    workspace_limit: bytes of workspace that a plan may take; None is no limit.
    once: the choice for a filter's first sizes is reused for other batch and image sizes as long as it supports them;
        else each size has its own.
    data_grad, filter_grad: the algorithm of a convolution's gradients if it differs from `algorithm`.
    check_indices: on a GPU, labels and indices out of range stop the program like a device-side assertion, after
        their value and position were printed (on a CPU they always raise IndexError).
    check_finite: kernels run one by one, and the first op that gives NaN or an infinity from finite operands is a
        `NonFiniteError` that names it, its module and the line of the program. For debugging: it is slow, and updates
        that a training step has already made stay.
    """

    tf32: bool = False
    deterministic: bool = False
    algorithm: str = "auto"
    workspace_limit: int | None = None
    once: bool = False
    data_grad: str | None = None
    filter_grad: str | None = None
    check_indices: bool = False
    check_finite: bool = False

    def __post_init__(self) -> None:
        algorithm, once = _algorithm("algorithm", self.algorithm)
        object.__setattr__(self, "algorithm", algorithm)
        object.__setattr__(self, "once", self.once or once)
        for name in ("data_grad", "filter_grad"):
            value = getattr(self, name)
            if value is not None:
                _algorithm(name, value)
        for name in _FLAGS:
            if not isinstance(getattr(self, name), bool):
                raise TypeError(f"policy: {name} must be True or False, got {getattr(self, name)!r}")
        limit = self.workspace_limit
        if limit is not None and (not isinstance(limit, Integral) or isinstance(limit, bool)):
            raise TypeError(f"policy: workspace_limit must be a number of bytes or None, got {limit!r}")
        if limit is not None and limit < 0:
            raise ValueError(f"workspace_limit must be >= 0 bytes or None, got {limit}")

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:  # part of every plan key
        return hash(tuple([getattr(self, f.name) for f in fields(self)]))

    def __getstate__(self) -> dict[str, Any]:
        return {f.name: getattr(self, f.name) for f in fields(self)}  # a hash is valid in one process only

    @property
    def named(self) -> bool:
        """Whether the algorithm is a single plan by name."""
        return self.algorithm not in ALGORITHMS

    def of(self, direction: str) -> Policy:
        """The policy of one direction of a convolution: "conv", "conv_data_grad" or "conv_filter_grad"."""
        if self.data_grad is None and self.filter_grad is None:
            return self
        own = {"conv_data_grad": self.data_grad, "conv_filter_grad": self.filter_grad}.get(direction)
        plain = replace(self, data_grad=None, filter_grad=None)
        return plain if own is None else replace(plain, algorithm=own, once=False)


def _algorithm(field: str, name: str) -> tuple[str, bool]:
    """The algorithm's canonical name, and whether the given name implies `once`. Raises ValueError."""
    if not isinstance(name, str):
        raise TypeError(f"policy: {field} must be a name, got {name!r}")
    found, once = ALIASES.get(name, (name, False))
    if found not in ALGORITHMS and not _NAMED.fullmatch(found):
        known = ", ".join((*ALGORITHMS, *ALIASES))
        raise ValueError(f"{field} must be one of {known} or a plan such as 'plain eng58', got {name!r}")
    return found, once


#: In force outside of `with policy(…)`: process-wide, in every thread.
_default = Policy()
_current: ContextVar[Policy | None] = ContextVar("lamina_policy", default=None)


def current_policy() -> Policy:
    """The policy in force here."""
    return _current.get() or _default


def use_deterministic_algorithms(mode: bool) -> None:
    """Whether every op, in all threads, uses only kernels with bitwise reproducible results (torch's name).

    With True other kernels are skipped; where none is left, planning raises an error that names the op
    (`NonDeterministicError`). `with policy(deterministic=…)` holds for its block. Reproducible means: for the same
    program on the same hardware, libraries and number of threads; under the policy "fastest" a GPU's kernels are the
    winners of contests remembered on disk.
    """
    global _default
    if not isinstance(mode, bool):
        raise TypeError(f"use_deterministic_algorithms: mode must be True or False, got {mode!r}")
    _default = replace(_default, deterministic=mode)
    here = _current.get()
    if here is not None:  # inside a block: until its end, too
        _current.set(replace(here, deterministic=mode))


def are_deterministic_algorithms_enabled() -> bool:
    """Whether only kernels with bitwise reproducible results are used here."""
    return current_policy().deterministic


@contextmanager
def policy(base: Policy | None = None, **changes: Any) -> Iterator[Policy]:
    """Use a policy inside a `with` block: `with policy(algorithm="fastest", tf32=True): …`.

    A new algorithm comes with its own `once`.
    """
    if "algorithm" in changes:
        changes = {"once": False, **changes}
    chosen = base or current_policy()
    chosen = replace(chosen, **changes) if changes else chosen
    token = _current.set(chosen)
    try:
        yield chosen
    finally:
        _current.reset(token)
