"""Metrics: against scikit-learn and the formulas, over uneven batches, on every backend of the CPU."""

from typing import Any

import numpy as np
import pytest
from sklearn import metrics as sk

import lamina as lm
from lamina import nn, ops
from lamina.spec import ShapeError
from lamina.train import metrics

pytestmark = pytest.mark.feature("B028")

RNG = np.random.default_rng(0)
LOGITS = RNG.standard_normal((50, 4)).astype(np.float32)
LABELS = np.where(RNG.random(50) < 0.5, LOGITS.argmax(1), RNG.integers(0, 4, 50))
ANSWERS = LOGITS.argmax(1)


class Fixed(nn.Module):
    """Gives its input, so that a test says what the outputs are."""

    def __init__(self) -> None:
        self.weight = nn.Parameter(np.ones(1, np.float32))

    def forward(self, x: Any) -> Any:
        return x * self.weight


def figures(outputs: Any, targets: Any, given: Any, backend: str = "reference", sizes: int = 16) -> Any:
    """Metrics over batches of `sizes`, of which the last is smaller."""
    batches = [(outputs[i : i + sizes], targets[i : i + sizes]) for i in range(0, len(outputs), sizes)]
    return lm.evaluate(Fixed(), batches, metrics=given, device="cpu", backend=backend).metrics


def figure(outputs: Any, targets: Any, metric: Any, backend: str = "reference") -> Any:
    (found,) = figures(outputs, targets, [metric], backend).values()
    return found


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_of_classes(backend: str) -> None:
    found = figures(
        LOGITS,
        LABELS,
        [metrics.Accuracy(), metrics.ConfusionMatrix(), metrics.TopK(2), metrics.TopK(4), metrics.IoU(4)],
        backend,
    )
    assert found["accuracy"] == sk.accuracy_score(LABELS, ANSWERS)
    np.testing.assert_array_equal(found["confusion_matrix"], sk.confusion_matrix(LABELS, ANSWERS))
    assert found["top2"] == pytest.approx(sk.top_k_accuracy_score(LABELS, LOGITS, k=2))
    assert found["top4"] == 1
    assert found["iou"] == pytest.approx(sk.jaccard_score(LABELS, ANSWERS, average="macro"))


def test_a_class_that_does_not_occur_takes_no_part_in_macro_averages() -> None:
    labels, answers = np.array([0, 1, 2, 0, 1]), np.array([0, 2, 1, 0, 1])  # nowhere 3
    outputs = np.eye(4, dtype=np.float32)[answers]
    found = figures(outputs, labels, [metrics.F1Score(average="macro"), metrics.RecallScore(average="macro")])
    assert found["f1"] == pytest.approx(sk.f1_score(labels, answers, average="macro"))
    assert found["recall"] == pytest.approx(sk.recall_score(labels, answers, average="macro"))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("average", ["macro", "micro", "weighted", "none"])
def test_precision_recall_f1(backend: str, average: Any) -> None:
    given = [kind(average=average) for kind in (metrics.PrecisionScore, metrics.RecallScore, metrics.F1Score)]
    found = figures(LOGITS, LABELS, given, backend)
    theirs = None if average == "none" else average
    np.testing.assert_allclose(found["precision"], sk.precision_score(LABELS, ANSWERS, average=theirs))
    np.testing.assert_allclose(found["recall"], sk.recall_score(LABELS, ANSWERS, average=theirs))
    np.testing.assert_allclose(found["f1"], sk.f1_score(LABELS, ANSWERS, average=theirs))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
@pytest.mark.parametrize("shape", [(50,), (50, 1)])
def test_of_two_classes_by_one_output(backend: str, shape: tuple[int, ...]) -> None:
    scores, labels = LOGITS[:, 0], (LOGITS[:, 0] + LOGITS[:, 1] > 0).astype(np.int64)
    outputs = scores.reshape(shape)
    for targets in (labels.reshape(shape), labels.reshape(shape).astype(np.float32)):
        found = figures(
            outputs,
            targets,
            [
                metrics.F1Score(),
                metrics.PrecisionScore(),
                metrics.RecallScore(),
                metrics.Accuracy(),
                metrics.AUC(),
            ],
            backend,
        )
        assert found["f1"] == pytest.approx(sk.f1_score(labels, scores > 0))
        assert found["precision"] == pytest.approx(sk.precision_score(labels, scores > 0))
        assert found["recall"] == pytest.approx(sk.recall_score(labels, scores > 0))
        assert found["accuracy"] == pytest.approx(sk.accuracy_score(labels, scores > 0))
        assert found["auc"] == pytest.approx(sk.roc_auc_score(labels, scores))
    probabilities = 1 / (1 + np.exp(-outputs))
    assert figure(
        probabilities, labels.reshape(shape), metrics.F1Score(threshold=0.5), backend
    ) == pytest.approx(sk.f1_score(labels, scores > 0))


def test_one_output_a_sample_is_binary() -> None:
    labels = (LOGITS[:, 0] + LOGITS[:, 1] > 0).astype(np.int64)
    batch, expected = (LOGITS[:, :1], labels), sk.accuracy_score(labels, LOGITS[:, 0] > 0)
    found = lm.evaluate(Fixed(), [batch], metrics=[metrics.Accuracy(), metrics.F1Score()], device="cpu")
    assert found.metrics["accuracy"] == pytest.approx(expected)
    assert found.metrics["f1"] == pytest.approx(sk.f1_score(labels, LOGITS[:, 0] > 0))
    assert found.accuracy is None
    with pytest.raises(ValueError, match="have no accuracy"):
        lm.evaluate(Fixed(), [batch], device="cpu")


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_labels_that_are_no_class_are_missed(backend: str) -> None:
    labels = LABELS.copy()
    labels[:5], labels[5:8], labels[8:12] = 7, -1, -100
    given = [metrics.Accuracy(), metrics.TopK(1), metrics.PrecisionScore(), metrics.ConfusionMatrix()]
    scores = lm.evaluate(Fixed(), [(LOGITS, labels)], metrics=given, device="cpu", backend=backend)
    assert scores.metrics["accuracy"] == scores.metrics["top1"] == scores.accuracy
    assert scores.accuracy == (labels == ANSWERS).sum() / 46
    counted = labels != -100
    expected = sk.precision_score(labels[counted], ANSWERS[counted], labels=range(4), average="macro")
    assert scores.metrics["precision"] == pytest.approx(expected)
    assert scores.metrics["confusion_matrix"].sum() == 38


def test_auc_of_equal_scores_pairs_and_one_class() -> None:
    scores, labels = RNG.integers(0, 5, 40).astype(np.float32), RNG.integers(0, 2, 40)
    expected = sk.roc_auc_score(labels, scores)
    assert figure(scores, labels, metrics.AUC()) == pytest.approx(expected)
    pairs = np.stack([-scores, scores], 1)
    assert figure(pairs, labels, metrics.AUC()) == pytest.approx(expected)
    assert np.isnan(figure(scores, np.ones(40, np.int64), metrics.AUC()))
    for ignored, metric in ((-100, metrics.AUC()), (255, metrics.AUC(ignore_index=255))):
        some = np.where(np.arange(40) % 3 == 0, ignored, labels)
        expected = sk.roc_auc_score(labels[some != ignored], scores[some != ignored])
        assert figure(scores, some, metric) == figure(pairs, some, metric) == pytest.approx(expected)
    scores[3] = np.nan
    assert np.isnan(figure(scores, labels, metrics.AUC()))


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_of_pixels(backend: str) -> None:
    logits = RNG.standard_normal((5, 3, 4, 6)).astype(np.float32)
    labels = RNG.integers(0, 3, (5, 4, 6))
    labels[0, :2] = -100
    counted = labels != -100
    true, answers = labels[counted], logits.argmax(1)[counted]
    found = figures(
        logits,
        labels,
        [metrics.IoU(each=True), metrics.ConfusionMatrix(3), metrics.TopK(1)],
        backend,
        sizes=2,
    )
    np.testing.assert_allclose(found["iou"], sk.jaccard_score(true, answers, average=None))
    np.testing.assert_array_equal(found["confusion_matrix"], sk.confusion_matrix(true, answers))
    assert found["top1"] == pytest.approx((true == answers).mean())


def test_a_class_that_does_not_occur() -> None:
    logits = np.eye(4, dtype=np.float32)[[0, 0, 1]]
    found = figures(logits, np.array([0, 1, 1]), [metrics.IoU(each=True), metrics.F1Score(average="none")])
    np.testing.assert_array_equal(found["iou"], [0.5, 0.5, np.nan, np.nan])
    np.testing.assert_allclose(found["f1"], [2 / 3, 2 / 3, 0, 0])
    assert figure(logits, np.array([0, 1, 1]), metrics.IoU()) == 0.5


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_nan_is_the_answer_of_no_class(backend: str) -> None:
    logits = np.array([[np.nan, 1, 2], [3, 1, 2], [1, np.nan, 2], [1, 2, 3]], np.float32)
    found = figures(
        logits,
        np.array([0, 0, 1, 2]),
        [metrics.Accuracy(), metrics.TopK(3), metrics.RecallScore(average="none"), metrics.ConfusionMatrix()],
        backend,
    )
    assert found["accuracy"] == found["top3"] == 0.5
    np.testing.assert_array_equal(found["recall"], [0.5, 0, 1])
    np.testing.assert_array_equal(found["confusion_matrix"], [[1, 0, 0], [0, 0, 0], [0, 0, 1]])


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_errors_of_regression(backend: str) -> None:
    targets = RNG.standard_normal((50, 4)).astype(np.float32)
    given = [metrics.MeanSquaredError(), metrics.MeanSquaredError(root=True), metrics.MeanAbsoluteError()]
    found = figures(LOGITS, targets, given, backend)
    assert found["mse"] == pytest.approx(sk.mean_squared_error(targets, LOGITS), rel=1e-5)
    assert found["rmse"] == pytest.approx(sk.mean_squared_error(targets, LOGITS) ** 0.5, rel=1e-5)
    assert found["mae"] == pytest.approx(sk.mean_absolute_error(targets, LOGITS), rel=1e-5)
    # Integers are targets, too.
    whole = RNG.integers(-3, 3, (50, 4))
    assert figure(LOGITS, whole, metrics.MeanAbsoluteError(), backend) == pytest.approx(
        np.abs(LOGITS - whole).mean(), rel=1e-5
    )


# ---- sequences


def slow_distance(a: Any, b: Any) -> int:
    """The definition."""
    table = np.zeros((len(a) + 1, len(b) + 1), int)
    table[:, 0], table[0] = range(len(a) + 1), range(len(b) + 1)
    for i in range(len(a)):
        for j in range(len(b)):
            table[i + 1, j + 1] = min(table[i, j + 1] + 1, table[i + 1, j] + 1, table[i, j] + (a[i] != b[j]))
    return int(table[-1, -1])


@pytest.mark.parametrize(
    ("first", "second", "distance"),
    [
        ("kitten", "sitting", 3),
        ("", "abc", 3),
        ("abc", "", 3),
        ("", "", 0),
        ("flaw", "lawn", 2),
        ("a", "a", 0),
    ],
)
def test_known_edit_distances(first: str, second: str, distance: int) -> None:
    assert metrics.edit_distance(first, second) == distance
    assert metrics.edit_distance(list(second), tuple(first)) == distance


def test_edit_distances_of_random_sequences() -> None:
    for _ in range(50):
        a, b = (RNG.integers(0, 4, RNG.integers(0, 12)) for _ in range(2))
        assert metrics.edit_distance(a, b) == slow_distance(a, b)
        assert metrics.edit_distance(a, b.tolist()) == slow_distance(a, b)


def test_error_rates() -> None:
    targets = np.array([[1, 2, 3, -100], [1, 1, 2, 2], [3, -100, -100, -100]])
    answers = np.array([[1, 2, 2, 2], [1, 1, 2, 2], [3, 3, 3, 3]])
    distances = [slow_distance(a, t[t >= 0]) for a, t in zip(answers, targets, strict=True)]
    logits = np.eye(4, dtype=np.float32)[answers].swapaxes(1, 2)  # (N, C, T)
    assert figure(logits, targets, metrics.EditDistance()) == pytest.approx(sum(distances) / 8)
    assert figure(logits, targets, metrics.EditDistance(rate=False)) == pytest.approx(sum(distances) / 3)


def test_word_error_rate_by_own_decoders() -> None:
    words = ["the", "cat", "sat", "mat"]

    def text(rows: Any) -> list[list[str]]:
        return [" ".join(words[int(i)] for i in row).split() for row in rows]

    rate = metrics.EditDistance(decode=text, decode_targets=text, name="wer")
    found = figures(np.array([[0, 1, 2]], np.float32), np.array([[0, 1, 3]]), [rate])
    assert found == {"wer": pytest.approx(1 / 3)}


def test_greedy_paths_of_ctc() -> None:
    path = np.array([[0, 1, 1, 0, 1, 2, 2, 0], [3, 3, 3, 0, 0, 2, 1, 1]])
    scores = np.eye(4, dtype=np.float32)[path].swapaxes(0, 1)  # (T, N, C)
    assert metrics.greedy_ctc(scores) == [[1, 1, 2], [3, 2, 1]]
    assert metrics.greedy_ctc(scores, [3, 0]) == [[1], []]
    assert metrics.greedy_ctc(scores, blank=3) == [[0, 1, 0, 1, 2, 0], [0, 2, 1]]


# ---- own ones


def test_functions_are_means_over_samples() -> None:
    def half(outputs: Any, targets: Any) -> Any:
        return ops.mean(ops.abs(outputs)) * 0.5

    found = figures(LOGITS, LABELS, {"own": half, "ce": ops.cross_entropy})
    assert found["own"] == pytest.approx(np.abs(LOGITS).mean() / 2, rel=1e-5)
    assert found["ce"] == pytest.approx(ops.cross_entropy(LOGITS, LABELS).item(), rel=1e-5)


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_functions_weigh_as_losses_do(backend: str) -> None:
    labels = LABELS.copy()
    labels[:16] = labels[20:25] = -100  # a batch without labels that count, and one with few
    batches = [(LOGITS[i : i + 16], labels[i : i + 16]) for i in range(0, 50, 16)]
    given = {"ce": ops.cross_entropy}
    scores = lm.evaluate(Fixed(), batches, ops.cross_entropy, metrics=given, device="cpu", backend=backend)
    assert scores.loss == pytest.approx(scores.metrics["ce"], rel=1e-6)
    expected = ops.cross_entropy(LOGITS[labels >= 0], labels[labels >= 0]).item()
    assert scores.metrics["ce"] == pytest.approx(expected, rel=1e-5)


class Largest(metrics.Metric):
    """The largest output; merged by max."""

    name = "largest"

    def sums(self, outputs: Any, targets: Any) -> Any:
        return {"max": ops.amax(outputs)}

    def merge(self, first: Any, second: Any) -> Any:
        return {"max": max(first["max"], second["max"])}

    def result(self, totals: Any) -> float:
        return float(totals["max"])


def test_an_own_metric() -> None:
    assert figure(LOGITS, LABELS, Largest()) == LOGITS.max()
    assert figure(LOGITS, RNG.standard_normal(50).astype(np.float32), Largest()) == LOGITS.max()


def test_metrics_alone_are_enough_and_stand_in_the_text() -> None:
    batch = (LOGITS, LOGITS)
    found = lm.evaluate(Fixed(), [batch], metrics=[metrics.MeanSquaredError()], device="cpu", backend="cpu")
    assert found.metrics == {"mse": 0.0}
    assert (found.loss, found.accuracy) == (None, None)
    assert str(found) == "mse 0.0000"


# ---- bad use


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(ShapeError, match=r"metric top5: needs one output .*, got f32\[16,4\], f32\[16\]"):
        figure(LOGITS, LABELS.astype(np.float32), metrics.TopK())
    with pytest.raises(ShapeError, match="metric f1: num_classes is 3, the outputs have 4"):
        figure(LOGITS, LABELS, metrics.F1Score(3))
    with pytest.raises(
        ShapeError, match=r"metric mse: outputs and targets must have one shape, got \(16, 4\)"
    ):
        figure(LOGITS, LABELS, metrics.MeanSquaredError())
    with pytest.raises(ShapeError, match=r"metric auc: outputs and targets must have one shape"):
        figure(LOGITS, LABELS, metrics.AUC())
    for answers, what in ((LOGITS, r"float32\[50, 4\]"), ([[1, 2]], "list")):
        wanted = (
            rf"metric error_rate: needs integers \(N, T\) or logits \(N, C, T\), got {what}; give decode="
        )
        with pytest.raises(ShapeError, match=wanted):
            metrics.EditDistance()._sequences(answers)
    with pytest.raises(ShapeError, match=r"metric error_rate: needs integers"):
        figure(LOGITS, LABELS, metrics.EditDistance())
    with pytest.raises(ShapeError, match="metric <lambda>: must give a scalar"):
        figure(LOGITS, LABELS, lambda outputs, targets: outputs)
    with pytest.raises(ShapeError, match="evaluate: loss_fn must give a scalar"):
        lm.evaluate(Fixed(), [(LOGITS, LABELS)], lambda a, b: a, device="cpu", backend="reference")


def test_bad_arguments_are_named() -> None:
    with pytest.raises(TypeError, match="got the class Accuracy; make one: Accuracy()"):
        metrics.named_metrics([metrics.Accuracy])
    with pytest.raises(TypeError, match="got 'accuracy'"):
        metrics.named_metrics(["accuracy"])
    with pytest.raises(TypeError, match=r"an own one is a subclass of lamina.train.metrics.Metric"):
        metrics.named_metrics([object()])  # type: ignore[list-item]
    with pytest.raises(ValueError, match="two are called 'top5'"):
        metrics.named_metrics([metrics.TopK(), metrics.TopK(5)])
    for make, message in (
        (lambda: metrics.TopK(0), "TopK: k must be at least 1, got 0"),
        (lambda: metrics.F1Score(1), "F1Score: num_classes must be at least 2, got 1"),
        (lambda: metrics.F1Score(average="mean"), "F1Score: average must be one of 'macro', .* got 'mean'"),  # type: ignore[arg-type]
    ):
        with pytest.raises(ValueError, match=message):
            make()


class Same(nn.Module):
    """What is given."""

    def forward(self, x: Any) -> Any:
        """x."""
        return x


@pytest.mark.parametrize(
    ("outputs", "targets", "metric", "wanted"),
    [
        (np.array([1, 2]), np.array([1.5, 2.75], np.float32), metrics.MeanAbsoluteError(), 0.625),
        (np.array([[1]], np.uint8), np.array([[3]], np.uint8), metrics.MeanSquaredError(), 4.0),
        (-np.ones((3, 4), np.float32), np.array([0, 7, -1]), metrics.TopK(1), 1 / 3),
    ],
    ids=["integers beside fractions", "bytes", "labels that are no class"],
)
def test_types_and_labels_that_do_not_fit(outputs: Any, targets: Any, metric: Any, wanted: float) -> None:
    found = lm.evaluate(Same(), [(outputs, targets)], metrics=[metric], device="cpu")
    assert found.metrics[metric.name] == pytest.approx(wanted)
