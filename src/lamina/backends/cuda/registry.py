"""The tables of the backend's planning functions and fusions, and the scan of the families that fill them."""

from __future__ import annotations

import importlib
import pkgutil
from pathlib import Path

from lamina.backends import Fusions, Kernels

kernels = Kernels("cuda")
fusions = Fusions()


def register_families() -> None:
    """Import every module of the backend: planning functions and fusions enter the tables as they are defined."""
    here = Path(__file__).parent
    package = __name__.rpartition(".")[0]
    for module in pkgutil.walk_packages([str(here)], f"{package}."):
        importlib.import_module(module.name)
