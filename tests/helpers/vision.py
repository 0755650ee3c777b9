"""torchvision beside torch's CPU wheel: its networks are there, its own C++ ops are not.

torchvision registers shapes for `nms` and `qnms` as it is imported, and fails where these are not defined; so they
are defined first.
"""

from typing import Any

import torch

#: Kept, because what it defines goes with it.
_LIBRARY = torch.library.Library("torchvision", "FRAGMENT")
for _name in ("nms", "qnms"):
    if not hasattr(torch.ops.torchvision, _name):
        _LIBRARY.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

import torchvision.models  # noqa: E402

models: Any = torchvision.models
