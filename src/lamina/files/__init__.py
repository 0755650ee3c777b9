"""Floor 4: tensors in files: safetensors, whole or sharded, and `torch.save` files, which are read as data."""

from typing import TYPE_CHECKING

from lamina._lazy import lazy, listing
from lamina.files.safetensors_file import (
    load_safetensors,
    parse_safetensors,
    read_safetensors,
    safetensors_parts,
    save_safetensors,
)
from lamina.files.source import WeightsError

if TYPE_CHECKING:
    from lamina.files.torch_file import load_torch
    from lamina.files.torch_writer import save_torch
    from lamina.files.weights import load_weights, save_weights

__all__ = [
    "WeightsError",
    "load_safetensors",
    "load_torch",
    "load_weights",
    "parse_safetensors",
    "read_safetensors",
    "safetensors_parts",
    "save_safetensors",
    "save_torch",
    "save_weights",
]
__dir__ = listing(__all__)
__getattr__ = lazy(
    __name__,
    {
        "load_torch": "lamina.files.torch_file",
        "save_torch": "lamina.files.torch_writer",
        "load_weights": "lamina.files.weights",
        "save_weights": "lamina.files.weights",
    },
)
