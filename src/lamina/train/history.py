"""The record of a training run, as values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from html import escape

from lamina.train.checkpoint import Position
from lamina.train.evaluation import Scores


@dataclass(frozen=True)
class Epoch:
    """Figures of one epoch: means over its steps, and the scores on validation data after it.

    learning_rate: of its last step, NaN if unknown.
    """

    number: int
    loss: float
    accuracy: float | None
    samples_per_second: float
    seconds: float
    validation: Scores | None = None
    learning_rate: float = math.nan

    def __str__(self) -> str:
        parts = [f"epoch {self.number + 1}: loss {self.loss:.4f}"]
        if self.accuracy is not None:
            parts.append(f"accuracy {100 * self.accuracy:.2f} %")
        if self.validation is not None:
            parts.append(f"validation {self.validation}")
        return ", ".join(parts) + f", {self.samples_per_second:.0f} samples/s, {self.seconds:.1f} s"

    def figures(self) -> dict[str, float]:
        """Every single figure by its name: "loss", "accuracy", "validation.loss", "validation.accuracy", and
        "validation." with a metric's name. Missing ones are left out."""
        found = {"loss": self.loss, "accuracy": self.accuracy}
        if self.validation is not None:
            scores = self.validation
            found |= {"validation.loss": scores.loss, "validation.accuracy": scores.accuracy}
            numbers = {n: v for n, v in scores.metrics.items() if isinstance(v, float | int)}
            found |= {f"validation.{name}": float(value) for name, value in numbers.items()}
        return {name: value for name, value in found.items() if value is not None}


@dataclass
class History:
    """The record of a run: the loss of every step, the figures of every epoch, and where it ended."""

    losses: list[float] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    position: Position = field(default_factory=Position)

    def _repr_html_(self) -> str:
        """For notebooks: the loss of every step as a curve, and a line for each epoch."""
        lines = "".join(f"<div>{escape(str(epoch))}</div>" for epoch in self.epochs)
        return f"<div>{_curve(self.losses)}{lines}</div>"


def _curve(losses: list[float], width: int = 600, height: int = 160) -> str:
    """An SVG element of the losses over the steps; values that are not finite are left out."""
    known = [(i, x) for i, x in enumerate(losses) if math.isfinite(x)]
    low, high = min((x for _, x in known), default=0.0), max((x for _, x in known), default=1.0)
    across, down = max(len(losses) - 1, 1), (high - low) or 1.0
    points = " ".join(
        f"{i / across * width:.1f},{10 + (high - x) / down * (height - 20):.1f}" for i, x in known
    )
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img" aria-label="losses" '
        f'style="font:11px sans-serif;background:#f6f6f6"><polyline points="{points}" fill="none" stroke="#4269d0"/>'
        f'<text x="4" y="12">{high:.4g}</text><text x="4" y="{height - 2}">{low:.4g}</text></svg>'
    )
