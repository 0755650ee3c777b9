"""torchvision beside torch's CPU wheel: its networks are there, its own C++ ops are not.

torchvision registers shapes for `nms` and `qnms` at import, and fails if these are not defined; so they
are defined first, unless its library can be loaded.
"""

from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

_spec = find_spec("torchvision")
assert _spec is not None
assert _spec.origin is not None
try:
    torch.ops.load_library(str(Path(_spec.origin).with_name("_C.so")))
except OSError:
    _lacking: tuple[str, ...] = ("nms", "qnms")
else:
    _lacking = ()

#: Kept alive, as its definitions go with it.
_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for _name in _lacking:
    _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import torchvision.models  # noqa: E402

models: Any = torchvision.models


def module(name: str) -> Any:
    """A module of torchvision ("ops", "models.detection._utils"), imported behind what it needs."""
    return import_module(f"torchvision.{name}")
