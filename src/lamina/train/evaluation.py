"""How well a network does on data that it was not trained on: accuracy and mean loss."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina._tree import leaves, unflatten
from lamina.infer import Predictor
from lamina.nn import Module
from lamina.runtime import Device
from lamina.spec.precision import Precision
from lamina.tensors import Tensor, as_tensor, flatten_arrays
from lamina.train.labels import are_labels


@dataclass(frozen=True)
class Scores:
    """What an evaluation found.

    correct: of `labels` labels, so many were hit; both are None where the targets are no labels (regression).
    loss: the mean over all samples, None where no loss was asked for.
    """

    correct: int | None = None
    labels: int | None = None
    loss: float | None = None

    @property
    def accuracy(self) -> float | None:
        """The fraction of the labels that was hit, from 0 to 1; None where there are none."""
        return self.correct / self.labels if self.labels and self.correct is not None else None

    def __str__(self) -> str:
        parts = (
            []
            if self.accuracy is None
            else [f"{100 * self.accuracy:.2f} % ({self.correct} of {self.labels})"]
        )
        parts += [] if self.loss is None else [f"loss {self.loss:.4f}"]
        return ", ".join(parts)


def evaluate(
    net: Module | Predictor,
    data: Iterable[Any],
    loss_fn: Callable[[Any, Any], Any] | None = None,
    *,
    device: Device | str = "auto",
    precision: str | Precision = "fp32",
    backend: str | None = None,
    ignore_index: int = -100,
) -> Scores:
    """Accuracy and loss of a network over (inputs, targets) batches, in inference mode.

    Targets are labels where they are integers of shape (N, …) and the outputs have shape (N, C, …): one label a
    sample, or one a pixel. The answer is the class with the largest output; a NaN among them is never right.

    net: a module, or a Predictor that is used again and again.
    data: inputs and targets may each be an array, or nested tuples, lists and dicts of arrays, as in `train_step`.
    loss_fn: (outputs, targets) -> scalar, a mean over the samples; for targets that are no labels it must be given.
    ignore_index: labels of this value count neither as right nor as wrong.
    Raises ValueError when data has no batches, or there is neither an accuracy nor a loss.
    """
    predictor = net
    if not isinstance(predictor, Predictor):
        predictor = Predictor(predictor, device=device, precision=precision, backend=backend)
    predictor.refresh()
    sums = _Sums()
    for number, batch in enumerate(data):
        inputs, targets = pair_of(batch, f"evaluate: batch {number}")
        outputs, wanted = _on_cpu(predictor(inputs), "outputs"), _on_cpu(targets, "targets")
        if loss_fn is not None:
            sums.add_loss(float(loss_fn(outputs, wanted).item()), samples_of(inputs))
        hits = hits_of(outputs, wanted, ignore_index)
        if hits is None and loss_fn is None:
            raise ValueError(
                f"evaluate: outputs {_specs(outputs)} and targets {_specs(wanted)} have no accuracy, which needs "
                "one output (N, C, …) and integer labels (N, …); give a loss_fn"
            )
        sums.add_hits(hits)
    return sums.scores()


def pair_of(batch: Any, where: str) -> tuple[Any, Any]:
    """The inputs and the targets of a batch. Raises ValueError."""
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    kind = f"a {type(batch).__name__}"
    found = f"{kind} of {len(batch)}" if isinstance(batch, tuple | list) else kind
    raise ValueError(f"{where} is {found}; a batch is a pair (inputs, targets), of which each may be a tuple")


def samples_of(inputs: Any) -> int:
    """The length of the first axis, of the first of several arrays."""
    first = flatten_arrays(inputs, "inputs")[0][0]
    return int(first.shape[0]) if first.ndim else 1


def hits_of(outputs: Any, targets: Any, ignore_index: int) -> tuple[int, int] | None:
    """How many labels are hit, of how many; None where the targets are no labels."""
    if not (isinstance(outputs, Tensor) and isinstance(targets, Tensor)):
        return None
    if not are_labels(outputs.shape, targets.shape, targets.dtype.kind):
        return None
    found, labels = outputs.numpy(), targets.numpy()
    counted = labels != ignore_index
    hits = (found.argmax(1) == labels) & counted & ~np.isnan(found).any(1)
    return int(hits.sum()), int(counted.sum())


def _on_cpu(tree: Any, what: str) -> Any:
    """The same nested tuples, lists and dicts of tensors on the CPU."""
    found, structure = flatten_arrays(tree, f"evaluate: {what}")
    return unflatten(structure, [as_tensor(x).to("cpu") for x in found])


def _specs(tree: Any) -> str:
    """Dtypes and shapes, for messages."""
    return ", ".join(str(x.spec) for x in leaves(tree))


class _Sums:
    """Over the batches."""

    def __init__(self) -> None:
        self.batches = self.correct = self.labels = self.samples = 0
        self.loss = 0.0
        self.has_labels = True

    def add_loss(self, loss: float, samples: int) -> None:
        """The mean loss of so many samples."""
        self.loss, self.samples = self.loss + loss * samples, self.samples + samples

    def add_hits(self, hits: tuple[int, int] | None) -> None:
        """One more batch."""
        self.batches += 1
        self.has_labels &= hits is not None
        correct, labels = hits or (0, 0)
        self.correct, self.labels = self.correct + correct, self.labels + labels

    def scores(self) -> Scores:
        """What was found. Raises ValueError where there was nothing."""
        if not self.batches or (self.has_labels and not self.labels):
            raise ValueError(
                "evaluate: the data has no " + ("batches" if not self.batches else "labels that count")
            )
        loss = self.loss / self.samples if self.samples else None
        return Scores(self.correct, self.labels, loss) if self.has_labels else Scores(loss=loss)
