"""Evaluation of a network on data that it was not trained on, and its predictions for data without targets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from lamina._tree import leaves, unflatten
from lamina.data.batches import Prefetch
from lamina.distributed.data_parallel import DataParallel, as_data_parallel
from lamina.infer import Predictor
from lamina.nn import Module
from lamina.ops.arguments import checked
from lamina.runtime import Device
from lamina.spec import ShapeError
from lamina.spec.precision import Precision
from lamina.tensors import Tensor, as_tensor, flatten_arrays
from lamina.train.labels import IGNORED
from lamina.train.metrics import Metric, named_metrics
from lamina.train.scoring import Scoring


@dataclass(frozen=True)
class Scores:
    """The results of an evaluation.

    correct: how many of `labels` labels were predicted correctly; both are None where the targets are not labels
        (regression).
    loss: the mean over all labels that count, or over all samples where targets are not labels; None where no loss
        was requested.
    metrics: the value of each requested metric, by its name: a float, or an array.
    """

    correct: int | None = None
    labels: int | None = None
    loss: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict, hash=False)

    @property
    def accuracy(self) -> float | None:
        """The fraction of the labels predicted correctly, from 0 to 1; None where there are none."""
        return self.correct / self.labels if self.labels and self.correct is not None else None

    def __str__(self) -> str:
        parts = (
            []
            if self.accuracy is None
            else [f"{100 * self.accuracy:.2f} % ({self.correct} of {self.labels})"]
        )
        parts += [] if self.loss is None else [f"loss {self.loss:.4f}"]
        return ", ".join([*parts, *(f"{n} {v:.4f}" for n, v in self.metrics.items() if np.ndim(v) == 0)])


@checked
def evaluate(
    net: Module | Predictor,
    data: Iterable[Any],
    loss_fn: Callable[[Any, Any], Any] | None = None,
    *,
    metrics: Iterable[Metric | Callable[[Any, Any], Any]] | Mapping[str, Any] = (),
    device: Device | str = "auto",
    precision: str | Precision | None = None,
    parallel: Literal["data"] | DataParallel | None = None,
    backend: str | None = None,
    ignore_index: int = IGNORED,
) -> Scores:
    """Accuracy, loss and metrics of a network over (inputs, targets) batches, in inference mode.

    Targets are labels where they are integers of shape (N, …) and the outputs have shape (N, C, …): one label per
    sample, or one per pixel. The prediction is the class with the largest output; outputs with a NaN are never
    correct.

    net: a module, or a Predictor that is reused.
    data: inputs and targets may each be an array, or nested tuples, lists and dicts of arrays, as in `train_step`.
    loss_fn: (outputs, targets) -> scalar, a mean over the labels that count, or over the samples where targets are
        not labels: then it or metrics must be given. (For a loss with class weights the result is a mean of means.)
        Parameters and buffers that it reads have their values at each batch; a loss that is a module is in inference
        mode.
    metrics: of `lamina.train.metrics`, custom ones, or functions like loss_fn; or a dict of these by name. They are
        compiled with loss_fn and run on the device, except those that ask for the host.
    parallel: "data": each rank evaluates its part of the data, of any size, without padding; all get the scores
        of the whole.
    ignore_index: labels of this value count neither as correct nor as wrong.
    Raises ValueError when data has no batches or was made with pad_last=True, or there is neither an accuracy nor
    anything else to compute; ShapeError where a metric does not fit.
    """
    predictor = net
    if not isinstance(predictor, Predictor):
        predictor = Predictor(predictor, device=device, precision=precision, backend=backend)
    together = as_data_parallel(parallel)
    scoring = Scoring(
        loss_fn, named_metrics(metrics), ignore_index, predictor.device, predictor.backend, together
    )
    return scored(predictor, data, scoring)


def scored(predictor: Predictor, data: Iterable[Any], scoring: Scoring) -> Scores:
    """The result of `evaluate`, by programs that may exist already."""
    check_unpadded(data, "evaluate: data")
    predictor.refresh()
    scoring.begin()
    for number, batch in enumerate(data):
        inputs, targets = pair_of(batch, f"evaluate: batch {number}")
        outputs = predictor(inputs)
        scoring.add(outputs, targets, samples_of(inputs))
        if scoring.loss_fn is None and not scoring.metrics and not scoring.has_labels:
            wanted, _ = flatten_arrays(targets, "targets", needed=targets is not None)
            raise ValueError(
                f"evaluate: outputs {_specs(outputs)} and {f'targets {_specs(wanted)}' if wanted else 'no targets'} "
                "have no accuracy, which needs one output (N, C, …) and integer labels (N, …); give a loss_fn or "
                "metrics"
            )
    if not scoring.batches and scoring.parallel is None:
        raise ValueError("evaluate: the data has no batches")
    figures = scoring.finish()
    if not scoring.batches:
        raise ValueError("evaluate: the data of all ranks has no batches")
    if scoring.has_labels and not scoring.labels:
        raise ValueError("evaluate: the data has no labels that count")
    if scoring.loss_fn is not None and not scoring.weight:
        raise ValueError("evaluate: the data has no samples")
    loss = scoring.loss / scoring.weight if scoring.loss_fn is not None else None
    if not scoring.has_labels:
        return Scores(loss=loss, metrics=figures)
    return Scores(scoring.hits, scoring.labels, loss, figures)


def check_unpadded(data: Iterable[Any], where: str) -> None:
    """Raise ValueError for data that pads its last batch: the results would count the padding."""
    inner: Any = data
    while isinstance(inner, Prefetch):
        inner = inner.source
    if getattr(inner, "pad_last", False) is True:
        raise ValueError(
            f"{where} has pad_last=True, which fills up the last batch for training: samples would count twice; make "
            "it without (batches may be of any size here)"
        )


@checked
def predict(
    net: Module | Predictor,
    data: Any,
    *,
    batch_size: int | None = None,
    labelled: bool = False,
    device: Device | str = "auto",
    precision: str | Precision | None = None,
    backend: str | None = None,
) -> Any:
    """The outputs of a network for data without targets, in inference mode: tensors on the CPU, in its own structure.

    data: the network's inputs: an array, or a tuple, list or dict of arrays (as in `train_step`); or any other
        iterable that yields such inputs batch by batch (data.Batches, a generator, a list of dicts).
    batch_size: how many samples of arrays, split along each one's first axis, are computed at once; None: all.
    labelled: each batch is a pair (inputs, targets), whose targets are ignored; a list of pairs is a list of batches.
    Outputs of several batches are concatenated along their first axis. Raises ValueError for data without batches and
    for batch_size < 1, ShapeError for arrays of different lengths and for outputs that cannot be concatenated.
    """
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"predict: batch_size must be at least 1, got {batch_size}")
    predictor = net
    if not isinstance(predictor, Predictor):
        predictor = Predictor(predictor, device=device, precision=precision, backend=backend)
    predictor.refresh()
    whole = (isinstance(data, tuple | list | dict) or hasattr(data, "dtype")) and not (
        _is_list_of_dicts(data) or (labelled and _is_list_of_pairs(data))
    )
    batches: Iterable[Any] = [data] if whole else data
    found: list[list[Tensor]] = []
    structure = None
    for number, batch in enumerate(batches):
        inputs = pair_of(batch, f"predict: batch {number}")[0] if labelled else batch
        for part in _parts(inputs, batch_size) if whole else [inputs]:
            try:
                outputs, structure = flatten_arrays(predictor(part), "predict: outputs")
            except TypeError as error:
                if not (whole or labelled) and isinstance(batch, tuple | list) and len(batch) == 2:
                    error.add_note(f"predict: batch {number} is a pair; labelled=True leaves out its targets")
                raise
            found.append([as_tensor(x).to("cpu") for x in outputs])
    if structure is None:
        raise ValueError("predict: the data has no batches")
    return unflatten(structure, [_joined(pieces) for pieces in zip(*found, strict=True)])


def _is_list_of_dicts(data: Any) -> bool:
    return isinstance(data, list) and all(isinstance(x, Mapping) for x in data)


def _is_list_of_pairs(data: Any) -> bool:
    return isinstance(data, list) and all(isinstance(x, tuple | list) and len(x) == 2 for x in data)


def _parts(inputs: Any, batch_size: int | None) -> Iterable[Any]:
    """The inputs split into batches."""
    if batch_size is None:
        return [inputs]
    arrays, structure = flatten_arrays(inputs, "predict: inputs")
    lengths = {x.shape[0] if x.ndim else None for x in arrays}
    if len(lengths) != 1 or None in lengths:
        raise ShapeError(
            f"predict: inputs {_specs([as_tensor(x) for x in arrays])} have no common first axis to cut"
        )
    (length,) = lengths
    starts = range(0, length or 0, batch_size)
    return [unflatten(structure, [x[i : i + batch_size] for x in arrays]) for i in starts]


def _joined(pieces: tuple[Tensor, ...]) -> Tensor:
    """One output of all batches."""
    if len(pieces) == 1:
        return pieces[0]
    if any(not x.ndim or x.shape[1:] != pieces[0].shape[1:] for x in pieces):
        shapes = ", ".join(dict.fromkeys(str(x.spec) for x in pieces))
        raise ShapeError(f"predict: outputs of the batches cannot be joined along their first axis: {shapes}")
    return as_tensor(np.concatenate([x.numpy() for x in pieces]))


def pair_of(batch: Any, where: str) -> tuple[Any, Any]:
    """The inputs and the targets of a batch; a dict is inputs without targets. Raises ValueError."""
    if isinstance(batch, dict):
        return batch, None
    if isinstance(batch, tuple | list) and len(batch) == 2:
        return batch[0], batch[1]
    kind = f"a {type(batch).__name__}"
    found = f"{kind} of {len(batch)}" if isinstance(batch, tuple | list) else kind
    raise ValueError(
        f"{where} is {found}; a batch is a pair (inputs, targets), of which each may be a tuple; whole arrays are "
        "[(inputs, targets)], or data.DataLoader(data.TensorDataset(inputs, targets), batch_size)"
    )


def samples_of(inputs: Any) -> int:
    """The length of the first axis of the first array; 1 of ()."""
    if isinstance(inputs, tuple | dict) and not inputs:
        return 1
    first = flatten_arrays(inputs, "inputs")[0][0]
    return int(first.shape[0]) if first.ndim else 1


def _specs(tree: Any) -> str:
    """Dtypes and shapes, for messages."""
    return ", ".join(str(as_tensor(x).spec) for x in leaves(tree))
