"""OverFeat, the fast model (Sermanet, Eigen, Zhang, Mathieu, Fergus & LeCun 2014)."""

from __future__ import annotations

from lamina import ops
from lamina.nn import init
from lamina.nn.activation import ReLU
from lamina.nn.container import Sequential
from lamina.nn.conv import Conv2d
from lamina.nn.dropout import Dropout
from lamina.nn.linear import Linear
from lamina.nn.models.registry import network
from lamina.nn.module import Module, T
from lamina.nn.pool import MaxPool2d


@network("Sermanet et al. 2014, arXiv:1312.6229", size=231, rates={"sgd": 0.01, "adam": 1e-4})
class OverFeat(Module):
    """Images (N, 3, 231, 231) -> logits (N, num_classes): the layers timed by convnet-benchmarks.

    96 filters 11×11/4, pool 2, 256 5×5, pool 2, 512, 1024, 1024 3×3, pool 2, then 36864 -> 3072 -> 4096 ->
    num_classes. Parameters are named features.0 … features.10 and classifier.1, classifier.4, classifier.6;
    they start from He's normal distribution. 145,920,872 parameters with 1000 classes.
    """

    def __init__(self, num_classes: int = 1000, dropout: float = 0.5) -> None:
        with init.scheme(init.he_):
            self.features = Sequential(
                Conv2d(3, 96, 11, 4),
                ReLU(),
                MaxPool2d(2, 2),
                Conv2d(96, 256, 5),
                ReLU(),
                MaxPool2d(2, 2),
                Conv2d(256, 512, 3, padding=1),
                ReLU(),
                Conv2d(512, 1024, 3, padding=1),
                ReLU(),
                Conv2d(1024, 1024, 3, padding=1),
                ReLU(),
                MaxPool2d(2, 2),
            )
            self.classifier = Sequential(
                Dropout(dropout),
                Linear(1024 * 6 * 6, 3072),
                ReLU(),
                Dropout(dropout),
                Linear(3072, 4096),
                ReLU(),
                Linear(4096, num_classes),
            )

    def forward(self, x: T) -> T:
        """Images (N, 3, 231, 231) -> logits (N, num_classes). Raises ShapeError for other sizes."""
        return self.classifier(ops.flatten(self.features(x), 1))
