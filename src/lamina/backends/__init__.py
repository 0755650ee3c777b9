"""Floor 3: the only layer where ops and libraries meet (`lamina.backends.protocol`), and how a backend is opened."""

from __future__ import annotations

import importlib
from functools import cache

from lamina.backends.protocol import (
    Again,
    Backend,
    Call,
    Fusion,
    Fusions,
    Kernel,
    Kernels,
    Meaning,
    NoKernel,
    NonDeterministicError,
    OpenChoice,
    Packed,
    Plan,
    PlanTape,
    Run,
    TuningSlices,
    passing_plan,
    worthwhile,
)
from lamina.runtime import Device

__all__ = [
    "NAMES",
    "Again",
    "Backend",
    "Call",
    "Fusion",
    "Fusions",
    "Kernel",
    "Kernels",
    "Meaning",
    "NoKernel",
    "NonDeterministicError",
    "OpenChoice",
    "Packed",
    "Plan",
    "PlanTape",
    "Run",
    "TuningSlices",
    "get",
    "passing_plan",
    "worthwhile",
]


@cache
def get(device: Device, name: str | None = None) -> Backend:
    """The backend of a device: "cuda" on GPUs, "cpu" on hosts, or the one named ("reference", "null").

    Raises ValueError for an unknown name.
    """
    name = name or device.kind
    if name not in NAMES:
        raise ValueError(f"unknown backend {name!r}; known: {', '.join(NAMES)}")
    backend: Backend = importlib.import_module(f"lamina.backends.{name}").backend(device)
    return backend


NAMES = ("cpu", "cuda", "reference", "null")
