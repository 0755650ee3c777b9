"""The accuracy of a network on held-out data."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina.infer import Predictor
from lamina.nn import Module
from lamina.runtime import Device
from lamina.spec.precision import Precision


@dataclass(frozen=True)
class Scores:
    """What an evaluation found: of `samples` samples, `correct` were right."""

    correct: int
    samples: int

    @property
    def accuracy(self) -> float:
        """The share that was right, from 0 to 1."""
        return self.correct / max(self.samples, 1)

    def __str__(self) -> str:
        return f"{100 * self.accuracy:.2f} % ({self.correct} of {self.samples})"


def evaluate(
    net: Module | Predictor,
    data: Iterable[Any],
    *,
    device: Device | str = "auto",
    precision: str | Precision = "fp32",
    backend: str | None = None,
) -> Scores:
    """How often the network's largest output is the label, over (images, labels) batches, in inference mode.

    net: a module, or a Predictor that is used again and again. Raises ValueError when data is empty.
    """
    predictor = net
    if not isinstance(predictor, Predictor):
        predictor = Predictor(predictor, device=device, precision=precision, backend=backend)
    predictor.refresh()
    correct = samples = 0
    for images, labels in data:
        answers = predictor(images).numpy().argmax(1)
        correct += int((answers == np.asarray(labels)).sum())
        samples += len(answers)
    if not samples:
        raise ValueError("evaluate: the data has no samples")
    return Scores(correct, samples)
