"""Metrics: values over all samples of a data set, from each batch's contributions.

A metric has two parts. `sums` computes a batch's additive contributions by ops, so that it is compiled and runs on
the device where the outputs are. `result` computes the metric from their totals, by NumPy. Computations that ops
cannot express (strings, sorting all scores) set `on_host` and get NumPy arrays.

Labels are as in `lamina.evaluate`: integers (N, …) for outputs (N, C, …); a label that is neither a class nor
`ignore_index` counts as missed. Where outputs and targets have one shape, or outputs have a second axis of size 1
that targets lack, they are binary: outputs above `threshold` (0, for logits) mean class 1, targets above 0.5 are
class 1. Outputs with a NaN predict no class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np

from lamina import _tree, ops
from lamina._lazy import listing
from lamina.ops.arguments import Checked
from lamina.spec import ShapeError
from lamina.train.labels import are_labels

__all__ = [
    "AUC",
    "Accuracy",
    "ConfusionMatrix",
    "EditDistance",
    "F1Score",
    "IoU",
    "Mean",
    "MeanAbsoluteError",
    "MeanSquaredError",
    "Metric",
    "PrecisionScore",
    "RecallScore",
    "TopK",
    "edit_distance",
    "greedy_ctc",
]
__dir__ = listing(__all__)

Array = np.ndarray[Any, Any]
#: Averaging over classes: the mean of the classes' values; the mean weighted by the classes' samples; over all
#: samples together; class 1 alone; one value per class.
Average = Literal["macro", "weighted", "micro", "binary", "none"]


class Metric(Checked, ABC):
    """A value over all samples. Custom metrics define `name`, `sums` and `result`.

    name: the metric's name in `Scores.metrics` and in progress lines.
    on_host: `sums` gets NumPy arrays and returns NumPy numbers, instead of being compiled.
    larger_is_better: the direction of improvement for callbacks.
    """

    name: str
    on_host: ClassVar[bool] = False
    larger_is_better: bool = True

    @abstractmethod
    def sums(self, outputs: Any, targets: Any) -> Any:
        """A batch's contribution: a tensor, or a tuple, list or dict of them, of the same shapes for every batch."""

    @abstractmethod
    def result(self, totals: Any) -> Any:
        """The metric: a number or an array. totals: as `sums` returns them, as NumPy arrays, added over
        all batches."""

    def merge(self, first: Any, second: Any) -> Any:
        """The totals of two parts of the data: their sum, leaf by leaf."""
        ours, structure = _tree.flatten(first)
        theirs, _ = _tree.flatten(second)
        return _tree.unflatten(structure, [a + b for a, b in zip(ours, theirs, strict=True)])


def named_metrics(given: Iterable[Any] | Mapping[str, Any]) -> dict[str, Metric]:
    """Metrics under their names. A function (outputs, targets) -> mean of the batch becomes a `Mean`.

    Raises TypeError for anything else, ValueError for a name that is taken.
    """
    pairs = list(given.items()) if isinstance(given, Mapping) else [(None, m) for m in given]
    found: dict[str, Metric] = {}
    for name, entry in pairs:
        if isinstance(entry, type) or not (isinstance(entry, Metric) or callable(entry)):
            made = (
                f"the class {entry.__name__}; make one: {entry.__name__}()" if isinstance(entry, type) else ""
            )
            made = made or f"{entry!r}; an own one is a subclass of lamina.train.metrics.Metric"
            raise TypeError(f"metrics: needs metrics or functions (outputs, targets) -> scalar, got {made}")
        metric = entry if isinstance(entry, Metric) else Mean(entry)
        key = metric.name if name is None else name
        if key in found:
            raise ValueError(f"metrics: two are called {key!r}; give a dict of names and metrics")
        found[key] = metric
    return found


class Mean(Metric):
    """The mean of a function that gives the mean of a batch, such as a loss: over the labels that count, or over the
    samples where targets are not labels, as `lamina.evaluate` weights loss_fn.

    function: (outputs, targets) -> scalar, written with lamina.ops.
    """

    def __init__(
        self,
        function: Callable[[Any, Any], Any],
        name: str | None = None,
        *,
        larger_is_better: bool = False,
        ignore_index: int = -100,
    ) -> None:
        self.function, self.larger_is_better, self.ignore_index = function, larger_is_better, ignore_index
        self.name = name or str(getattr(function, "__name__", type(function).__name__))

    def sums(self, outputs: Any, targets: Any) -> Any:
        """The mean times the number of labels that count, or of samples, and that number."""
        mean = self.function(outputs, targets)
        if tuple(mean.shape) != ():
            raise ShapeError(f"metric {self.name}: must give a scalar, got {mean.spec}; use a mean")
        if not _labelled(outputs, targets):
            count = sample_count(outputs)
            return mean * count, np.asarray(count)
        counted = _count(ops.ne(ops.cast(targets, "int64"), self.ignore_index))
        if mean.dtype.itemsize < 4:
            mean = ops.cast(mean, "float32")  # float16 cannot count all pixels
        # The mean over no labels is NaN, and has no weight.
        return ops.where(ops.gt(counted, 0), mean * ops.cast(counted, mean.dtype), 0.0), counted

    def result(self, totals: Any) -> float:
        """Their quotient; NaN where nothing counts."""
        return _ratio(totals[0], totals[1], np.nan)


class _Error(Metric):
    """A mean over all elements of outputs - targets."""

    larger_is_better = False

    def of_difference(self, difference: Any) -> Any:
        """Per element."""
        raise NotImplementedError

    def sums(self, outputs: Any, targets: Any) -> Any:
        """The sum of all elements, and their number."""
        _same_shape(self.name, outputs, targets)
        dtype = (
            outputs.dtype if outputs.dtype.is_float else "float32"
        )  # integers have no fractions, and wrap around
        values = self.of_difference(ops.cast(outputs, dtype) - ops.cast(targets, dtype))
        return ops.sum(values), np.asarray(int(np.prod(outputs.shape)))

    def result(self, totals: Any) -> float:
        """The mean."""
        return float(totals[0] / totals[1])


class MeanSquaredError(_Error):
    """The mean of (output - target)². root: its square root."""

    def __init__(self, *, root: bool = False) -> None:
        self.root, self.name = root, "rmse" if root else "mse"

    def of_difference(self, difference: Any) -> Any:
        """Squares."""
        return ops.square(difference)

    def result(self, totals: Any) -> float:
        """The mean, or its root."""
        mean = super().result(totals)
        return float(np.sqrt(mean)) if self.root else mean


class MeanAbsoluteError(_Error):
    """The mean of |output - target|."""

    name = "mae"

    def of_difference(self, difference: Any) -> Any:
        """Absolute values."""
        return ops.abs(difference)


# ---- labels


class TopK(Metric):
    """The fraction of labels that are among the k largest outputs (N, C, …). Equal outputs count for the label."""

    def __init__(self, k: int = 5, *, ignore_index: int = -100) -> None:
        if k < 1:
            raise ValueError(f"TopK: k must be at least 1, got {k}")
        self.k, self.ignore_index, self.name = k, ignore_index, f"top{k}"

    def sums(self, outputs: Any, targets: Any) -> Any:
        """Hits, and labels that count: int64 scalars."""
        x, labels, classes = classified(self.name, outputs, targets, None)
        counted = ops.ne(labels, self.ignore_index)
        places = spread(labels, classes)
        own = _sum_where(places, x)
        before = ops.sum(ops.cast(ops.gt(x, ops.unsqueeze(own, 1)), "int64"), 1)
        counts = ops.logical_and(counted, ops.any(places, 1))  # a label that is no class is never correct
        hits = ops.logical_and(ops.logical_and(ops.lt(before, self.k), counts), ops.logical_not(_has_nan(x)))
        return _count(hits), _count(counted)

    def result(self, totals: Any) -> float:
        """The fraction; NaN where no label counts."""
        return _ratio(totals[0], totals[1], np.nan)


class _Counted(Metric):
    """Computed from the confusion matrix.

    num_classes: C; None takes it from the outputs' second axis (2 where outputs are binary).
    """

    title: ClassVar[str]

    def __init__(
        self,
        num_classes: int | None = None,
        *,
        ignore_index: int = -100,
        threshold: float = 0.0,
        name: str | None = None,
    ) -> None:
        if num_classes is not None and num_classes < 2:
            raise ValueError(f"{type(self).__name__}: num_classes must be at least 2, got {num_classes}")
        self.num_classes, self.ignore_index, self.threshold = num_classes, ignore_index, threshold
        self.name = name or self.title

    def sums(self, outputs: Any, targets: Any) -> Any:
        """How often label i was predicted as class j: int64 [C + 1, C + 1]; the last row is labels that are no class,
        the last column predictions that were NaN."""
        x, labels, classes = classified(self.name, outputs, targets, self.threshold)
        if self.num_classes not in (None, classes):
            raise ShapeError(
                f"metric {self.name}: num_classes is {self.num_classes}, the outputs have {classes}"
            )
        answers = ops.where(_has_nan(x), classes, ops.argmax(x, 1))
        outside = ops.logical_or(ops.lt(labels, 0), ops.ge(labels, classes))
        known = ops.where(outside, classes, labels)
        labels = ops.where(ops.eq(labels, self.ignore_index), -1, known)  # -1: in no row
        rows, places = (_flat(spread(x, classes + 1)) for x in (labels, answers))
        # Per sample, so that each product's counts, at most the pixels of an image, are exact in float32.
        pairs = ops.matmul(rows, ops.transpose(places, 1, 2))
        return ops.sum(ops.cast(pairs, "int64"), 0)

    def per_class(self, totals: Any) -> tuple[Array, Array, Array]:
        """True positives, false positives and false negatives, float64 [C]."""
        matrix = np.asarray(totals, np.float64)
        hits = matrix.diagonal()[:-1]
        return hits, matrix[:, :-1].sum(0) - hits, matrix[:-1].sum(1) - hits


class ConfusionMatrix(_Counted):
    """How often label i was predicted as class j, int64 [C, C]. Predictions that were NaN and labels that are no
    class are left out."""

    title = "confusion_matrix"

    def result(self, totals: Any) -> Array:
        """The matrix."""
        return np.asarray(totals)[:-1, :-1]


class Accuracy(_Counted):
    """The fraction of labels predicted correctly; NaN where no label counts."""

    title = "accuracy"

    def result(self, totals: Any) -> float:
        """The diagonal's share."""
        matrix = np.asarray(totals)
        return _ratio(matrix.diagonal()[:-1].sum(), matrix.sum(), np.nan)


class IoU(_Counted):
    """Intersection over union of each class's pixels (or samples), its mean over the classes that occur.

    each: one value per class instead, NaN where it occurs neither among labels nor among predictions.
    """

    title = "iou"

    def __init__(self, num_classes: int | None = None, *, each: bool = False, **options: Any) -> None:
        super().__init__(num_classes, **options)
        self.each = each

    def result(self, totals: Any) -> Any:
        """The mean, or one per class."""
        hits, wrong, missed = self.per_class(totals)
        union = hits + wrong + missed
        found = np.divide(hits, union, out=np.full_like(hits, np.nan), where=union > 0)
        if self.each:
            return found
        return float(np.nanmean(found)) if (union > 0).any() else np.nan


class _Averaged(_Counted):
    """A value per class, averaged. A class without a denominator counts as 0; "macro" is the mean over the classes
    that occur among labels or predictions (scikit-learn's)."""

    def __init__(
        self, num_classes: int | None = None, *, average: Average | None = None, **options: Any
    ) -> None:
        super().__init__(num_classes, **options)
        self.average = average

    def of_counts(self, hits: Array, wrong: Array, missed: Array) -> Any:
        """The value from true positives, false positives and false negatives."""
        raise NotImplementedError

    def result(self, totals: Any) -> Any:
        """The average; by default binary for two classes, else macro."""
        hits, wrong, missed = self.per_class(totals)
        average = self.average or ("binary" if len(hits) == 2 else "macro")
        if average == "micro":
            return float(self.of_counts(hits.sum(), wrong.sum(), missed.sum()))
        each = self.of_counts(hits, wrong, missed)
        if average == "none":
            return each
        if average == "binary":
            return float(each[1])
        weights = hits + missed if average == "weighted" else hits + wrong + missed > 0
        return _ratio((each * weights).sum(), weights.sum(), 0.0)


class PrecisionScore(_Averaged):
    """The fraction of a class's predictions that are correct."""

    title = "precision"

    def of_counts(self, hits: Array, wrong: Array, missed: Array) -> Any:
        """TP / (TP + FP)."""
        return _divided(hits, hits + wrong)


class RecallScore(_Averaged):
    """The fraction of a class's labels that are found."""

    title = "recall"

    def of_counts(self, hits: Array, wrong: Array, missed: Array) -> Any:
        """TP / (TP + FN)."""
        return _divided(hits, hits + missed)


class F1Score(_Averaged):
    """The harmonic mean of precision and recall."""

    title = "f1"

    def of_counts(self, hits: Array, wrong: Array, missed: Array) -> Any:
        """2 TP / (2 TP + FP + FN)."""
        return _divided(2 * hits, 2 * hits + wrong + missed)


class AUC(Metric):
    """The area under the ROC curve of two classes: the probability that a class-1 sample scores above a class-0 one.

    Outputs are scores of any scale, shaped like the targets, or (N, 2), whose difference is the score. Exact, by the
    ranks of all scores (Mann & Whitney 1947), equal scores counting half; it therefore keeps all scores, on the host.
    """

    name = "auc"
    on_host = True

    def __init__(self, *, ignore_index: int = -100) -> None:
        self.ignore_index = ignore_index

    def sums(self, outputs: Any, targets: Any) -> Any:
        """The scores of the targets that count, float64, and whether they are of class 1, flat."""
        if outputs.shape == (*targets.shape, 2):
            outputs = outputs[..., 1].astype(np.float64) - outputs[..., 0]
        _same_shape(self.name, outputs, targets)
        counted = targets != self.ignore_index
        return outputs[counted].astype(np.float64), targets[counted] > 0.5

    def merge(self, first: Any, second: Any) -> Any:
        """Concatenated."""
        return tuple(np.concatenate(pair) for pair in zip(first, second, strict=True))

    def result(self, totals: Any) -> float:
        """The area; NaN where a class is absent or a score is NaN."""
        scores, positive = totals
        ones = int(positive.sum())
        zeros = len(positive) - ones
        if not ones or not zeros or np.isnan(scores).any():
            return np.nan
        _, places, counts = np.unique(scores, return_inverse=True, return_counts=True)
        ranks = (np.cumsum(counts) - (counts - 1) / 2)[places]  # from 1, the mean of equal ones
        return float((ranks[positive].sum() - ones * (ones + 1) / 2) / (ones * zeros))


# ---- sequences


class EditDistance(Metric):
    """Levenshtein distance between sequences: the number of insertions, deletions and substitutions between them.

    rate: divided by the length of the targets, over all samples together: the label error rate, or, where the
        sequences are lists of words or of characters, the word or character error rate. Else the mean distance.
    decode: makes a list of sequences from the outputs, as NumPy arrays (`greedy_ctc`; a list of `text.split()`). By
        default outputs (N, C, T) are the logits of T classes each, and integers (N, T) the sequences themselves.
    decode_targets: likewise for the targets; by default integers (N, T) without `ignore_index`.
    """

    on_host = True
    larger_is_better = False

    def __init__(
        self,
        *,
        rate: bool = True,
        decode: Callable[[Any], Sequence[Any]] | None = None,
        decode_targets: Callable[[Any], Sequence[Any]] | None = None,
        ignore_index: int = -100,
        name: str | None = None,
    ) -> None:
        self.rate, self.decode, self.decode_targets = rate, decode, decode_targets
        self.ignore_index = ignore_index
        self.name = name or ("error_rate" if rate else "edit_distance")

    def sums(self, outputs: Any, targets: Any) -> Any:
        """Distances, lengths of the targets, sequences."""
        answers = (self.decode or self._sequences)(outputs)
        wanted = (self.decode_targets or self._sequences)(targets)
        if len(answers) != len(wanted):
            raise ShapeError(f"metric {self.name}: {len(answers)} sequences for {len(wanted)} targets")
        distance = sum(edit_distance(a, b) for a, b in zip(answers, wanted, strict=True))
        return np.asarray(distance), np.asarray(sum(map(len, wanted))), np.asarray(len(wanted))

    def result(self, totals: Any) -> float:
        """The rate or the mean."""
        distance, length, count = totals
        return _ratio(distance, length if self.rate else count, np.nan)

    def _sequences(self, x: Any) -> list[Array]:
        """The rows of integers (N, T), or of the classes of logits (N, C, T)."""
        if isinstance(x, np.ndarray) and x.ndim == 3 and x.dtype.kind not in "iu":
            x = x.argmax(1)
        if not isinstance(x, np.ndarray) or x.ndim != 2 or x.dtype.kind not in "iu":
            what = f"{x.dtype}{list(x.shape)}" if isinstance(x, np.ndarray) else type(x).__name__
            raise ShapeError(
                f"metric {self.name}: needs integers (N, T) or logits (N, C, T), got {what}; give decode="
            )
        return [row[row != self.ignore_index] for row in x]


def edit_distance(first: Sequence[Any], second: Sequence[Any]) -> int:
    """Levenshtein distance of two sequences of any comparable items (Wagner & Fischer 1974)."""
    codes: dict[Any, int] = {}
    a, b = (
        np.asarray(
            [codes.setdefault(x.item() if isinstance(x, np.generic) else x, len(codes)) for x in s], np.int64
        )
        for s in (first, second)
    )
    places = np.arange(len(b) + 1)
    row = places
    for number, symbol in enumerate(a, 1):
        # Without insertions first; an insertion then takes the minimum from the left, plus one per position.
        reached = np.minimum(row[1:] + 1, row[:-1] + (b != symbol))
        row = np.minimum.accumulate(np.concatenate(([number], reached)) - places) + places
    return int(row[-1])


def greedy_ctc(log_probs: Array, lengths: Any = None, *, blank: int = 0) -> list[list[int]]:
    """The best path through CTC's outputs: the likeliest symbol at each time, with repetitions and blanks removed.

    log_probs: (T, N, C), as `ops.ctc_loss` takes them. lengths: of the N samples, T by default.
    """
    paths = np.asarray(log_probs).argmax(2).T  # (N, T)
    ends = [paths.shape[1]] * len(paths) if lengths is None else [int(n) for n in lengths]
    found = []
    for path, end in zip(paths, ends, strict=True):
        path = path[:end]
        new = np.concatenate((np.ones(min(end, 1), bool), path[1:] != path[:-1]))
        found.append([int(x) for x in path[new & (path != blank)]])
    return found


# ---- parts


def sample_count(tree: Any) -> int:
    """The length of the first axis of the first leaf, 1 where that has none."""
    shape = _tree.leaves(tree)[0].shape
    return int(shape[0]) if len(shape) else 1


def _labelled(outputs: Any, targets: Any) -> bool:
    """Whether targets are labels for one output."""
    one = all(hasattr(x, "spec") for x in (outputs, targets))
    return one and are_labels(outputs.shape, targets.shape, targets.dtype.kind)


def classified(name: str, outputs: Any, targets: Any, threshold: float | None) -> tuple[Any, Any, int]:
    """Outputs (N, C, …), labels int64 (N, …) and C; binary outputs with a threshold become two classes around it.

    Raises ShapeError for other shapes.
    """
    one = all(hasattr(x, "spec") for x in (outputs, targets))
    if _labelled(outputs, targets):
        return outputs, ops.cast(targets, "int64"), int(outputs.shape[1])
    if one and threshold is not None and _binary(outputs.shape) == _binary(targets.shape):
        x, y = (ops.reshape(v, (_binary(v.shape), 1)) for v in (outputs, targets))
        pair = ops.cat([ops.sub(threshold, x), ops.sub(x, threshold)], 1)
        labels = y if y.dtype.kind in "iu" else ops.cast(ops.gt(ops.cast(y, "float32"), 0.5), "int64")
        return pair, ops.cast(ops.reshape(labels, (labels.shape[0],)), "int64"), 2
    found = ", ".join(str(x.spec) for x in _tree.leaves((outputs, targets)))
    raise ShapeError(
        f"metric {name}: needs one output (N, C, …) and integer labels (N, …)"
        + ("" if threshold is None else ", or scores and targets of one shape")
        + f", got {found}"
    )


def _binary(shape: tuple[int, ...]) -> int:
    return int(np.prod(shape))


def spread(labels: Any, classes: int) -> Any:
    """Where a label is class c: booleans (N, C, …); False everywhere for other labels."""
    numbers = np.arange(classes).reshape(1, classes, *[1] * (len(labels.shape) - 1))
    return ops.eq(ops.unsqueeze(labels, 1), numbers)


def _flat(mask: Any) -> Any:
    """Booleans (N, C, …) as float32 (N, C, pixels), for one pixel a sample (1, C, N)."""
    n, c, *rest = mask.shape
    wide = ops.cast(mask, "float32")
    return (
        ops.reshape(wide, (n, c, int(np.prod(rest)))) if rest else ops.unsqueeze(ops.transpose(wide, 0, 1), 0)
    )


def _sum_where(mask: Any, x: Any) -> Any:
    """The sum over the classes of x where the mask is set; elements elsewhere may be anything."""
    return ops.sum(ops.where(mask, x, 0.0), 1)


def _has_nan(x: Any) -> Any:
    """Whether any class of a sample is NaN: booleans (N, …)."""
    return ops.gt(ops.sum(ops.cast(ops.ne(x, x), "int64"), 1), 0)


def _count(mask: Any) -> Any:
    return ops.sum(ops.cast(mask, "int64"))


def _same_shape(name: str, outputs: Any, targets: Any) -> None:
    if getattr(outputs, "shape", None) is None or tuple(outputs.shape) != tuple(
        getattr(targets, "shape", ())
    ):
        shapes = [getattr(x, "shape", type(x).__name__) for x in (outputs, targets)]
        raise ShapeError(
            f"metric {name}: outputs and targets must have one shape, got {shapes[0]} and {shapes[1]}"
        )


def _divided(a: Any, b: Any) -> Any:
    """a / b, 0 where b is 0."""
    return np.divide(a, b, out=np.zeros_like(np.asarray(b, np.float64)), where=np.asarray(b) > 0)


def _ratio(a: Any, b: Any, empty: float) -> float:
    return float(a / b) if b else empty
