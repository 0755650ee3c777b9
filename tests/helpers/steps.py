"""Small networks and their training steps."""

from typing import Any

import numpy as np

import lamina as lm
from lamina import nn, ops, optim
from lamina.train import Step

BACKENDS = ["reference", "cpu"]
RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((8, 1, 8, 8)).astype(np.float32)
LABELS = RNG.integers(0, 4, 8)
POINTS = RNG.standard_normal((8, 3)).astype(np.float32)
WANTED = RNG.standard_normal((8, 2)).astype(np.float32)


def small_net(dropout: float = 0.0) -> nn.Sequential:
    nn.manual_seed(1)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(dropout),
        nn.Linear(36, 4),
    )


def make(net: nn.Module, optimizer: optim.Optimizer, **kwargs: Any) -> Step:
    kwargs = {"device": "cpu", "backend": "reference", **kwargs}
    return lm.train_step(net, ops.cross_entropy, optimizer, **kwargs)


def weights(net: nn.Module) -> dict[str, np.ndarray[Any, Any]]:
    return {k: v.numpy().copy() for k, v in net.state_dict().items()}


def regression() -> nn.Sequential:
    nn.manual_seed(1)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
