"""New layers hold values of the distributions that PyTorch's have."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn

pytestmark = pytest.mark.torch

#: Layers with enough values that a sample tells a distribution.
LAYERS: dict[str, tuple[Any, ...]] = {
    "Linear": (120, 90), "Bilinear": (20, 30, 25), "Embedding": (90, 50), "EmbeddingBag": (90, 50),
    "Conv1d": (30, 50, 5), "Conv2d": (16, 40, 3), "Conv3d": (8, 40, 2), "ConvTranspose1d": (30, 50, 5),
    "ConvTranspose2d": (16, 40, 3), "ConvTranspose3d": (8, 40, 2), "RNN": (50, 40, 2), "LSTM": (50, 40, 2),
    "GRU": (50, 40, 2), "RNNCell": (60, 50), "LSTMCell": (60, 50), "GRUCell": (60, 50), "BatchNorm2d": (40,),
    "LayerNorm": (40,), "GroupNorm": (4, 40), "RMSNorm": (40,), "PReLU": (40,), "MultiheadAttention": (48, 4),
    "TransformerEncoderLayer": (48, 4, 60), "TransformerDecoderLayer": (48, 4, 60),
}  # fmt: skip
OPTIONS: list[tuple[str, dict[str, Any]]] = [
    ("MultiheadAttention", {"kdim": 40, "vdim": 36, "add_bias_kv": True}),
    ("LSTM", {"proj_size": 30, "bidirectional": True}),
    ("Conv2d", {"groups": 4}),
    ("Embedding", {"padding_idx": 3}),
]


@pytest.mark.parametrize(
    ("name", "options"),
    [*((name, {}) for name in LAYERS), *OPTIONS],
    ids=lambda v: v if isinstance(v, str) else "",
)
def test_layers(name: str, options: dict[str, Any]) -> None:
    import torch

    from tests.helpers.nn.beside_torchvision import start_alike

    torch.manual_seed(0)
    lm.manual_seed(0)
    start_alike(*(getattr(library, name)(*LAYERS[name], **options) for library in (nn, torch.nn)))


class _Holder:
    """Something with one entry."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def state_dict(self) -> dict[str, Any]:
        return {"x": lm.tensor(self.values.astype(np.float32))}


def test_other_distributions_are_told_apart() -> None:
    from tests.helpers.nn.beside_torchvision import start_alike

    draw = np.random.default_rng(0)
    flat, bell = draw.uniform(-1, 1, 2000), draw.standard_normal(2000)
    start_alike(_Holder(flat), _Holder(draw.uniform(-1, 1, 2000)))
    start_alike(_Holder(bell), _Holder(draw.standard_normal(2000)))
    shifted = draw.uniform(-0.93, 1.07, 2000)
    for wrong, right in (
        (shifted, flat),
        (bell / np.sqrt(3), flat),
        (bell * 1.2, bell),
        (flat, np.ones(2000)),
    ):
        with pytest.raises(AssertionError):
            start_alike(_Holder(wrong), _Holder(right))
