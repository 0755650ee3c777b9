"""CTC against a sum over all paths, targets in every form, bad input, and PyTorch."""

from itertools import groupby, product
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.spec import DTypeError, ShapeError


def _log_probs(*shape: int, seed: int = 0) -> Any:
    x = np.random.default_rng(seed).standard_normal(shape)
    return (x - np.log(np.exp(x).sum(-1, keepdims=True))).astype(np.float32)


def _spelled(path: tuple[int, ...], blank: int) -> list[int]:
    return [c for c, _ in groupby(path) if c != blank]


@pytest.mark.feature("F074")
@pytest.mark.parametrize("labels", [[], [1], [1, 1], [2, 1], [2, 2, 1]])
@pytest.mark.parametrize("blank", [0, 3])
def test_every_path_counts(labels: list[int], blank: int) -> None:
    x = _log_probs(5, 4).astype(np.float64)
    paths = (p for p in product(range(4), repeat=5) if _spelled(p, blank) == labels)
    wanted = -np.log(sum(np.exp(sum(x[t, c] for t, c in enumerate(p))) for p in paths))
    found = ops.ctc_loss(x, np.array(labels, np.int64), [5], [len(labels)], blank, "none")
    assert found.shape == ()
    np.testing.assert_allclose(float(found), wanted, rtol=1e-9)


def test_targets_padded_or_one_after_the_other() -> None:
    """The same losses, eagerly and compiled, with lengths that are known or come later."""
    x = _log_probs(9, 3, 5)
    padded = np.array([[1, 2, 3], [4, 0, 0], [2, 2, 0]])
    joined, counts, steps = np.array([1, 2, 3, 4, 2, 2], np.int32), np.array([3, 1, 2]), (9, 8, 5)
    wanted = ops.ctc_loss(x, padded, steps, counts, reduction="none").numpy()
    for given in (counts, [3, 1, 2], lm.tensor(counts)):
        assert np.array_equal(ops.ctc_loss(x, joined, steps, given, reduction="none").numpy(), wanted)
    filled = np.array([[1, 2, 3], [4, 99, -1], [2, 2, -100]])  # no classes, and not looked at
    assert np.array_equal(ops.ctc_loss(x, filled, steps, counts, reduction="none").numpy(), wanted)
    compiled = lm.jit(lambda *args: ops.ctc_loss(*args, reduction="none"))
    found = compiled(*map(lm.tensor, (x, joined, np.array(steps), counts))).numpy()
    np.testing.assert_array_equal(found, wanted)
    longer = compiled(*map(lm.tensor, (x, joined, np.array(steps), np.array([0, 6, 0])))).numpy()
    np.testing.assert_allclose(
        longer, ops.ctc_loss(x, joined, steps, [0, 6, 0], reduction="none").numpy(), rtol=1e-6
    )


def test_more_labels_than_steps_are_never_spelled() -> None:
    """However many: of lengths that come later, too, and whatever labels stand behind them."""
    x, steps = _log_probs(4, 3, 5), np.array([4, 4, 4])
    compiled = lm.jit(lambda *args: ops.ctc_loss(*args, reduction="none"))
    for counts in ([9, 1, 2], [5, 6, 1], [4, 4, 4], [12, 0, 0], [0, 0, 12]):
        joined = np.array([1, 2, 3, 4, 2, 1, 3, 2, 1, 4, 3, 2])
        found = compiled(*map(lm.tensor, (x, joined, steps, np.array(counts)))).numpy()
        np.testing.assert_array_equal(
            found, ops.ctc_loss(x, joined, steps, counts, reduction="none").numpy(), err_msg=str(counts)
        )
        assert (np.isinf(found) == (np.array(counts) > 4)).all()
        first = 0
        for n, count in enumerate(counts):
            alone = ops.ctc_loss(x[:, n], joined[first : first + count], [4], [count], reduction="none")
            np.testing.assert_allclose(alone.numpy(), found[n], rtol=1e-6)
            first += count


def test_too_short_for_its_labels() -> None:
    x = _log_probs(3, 2, 4)
    found = ops.ctc_loss(x, [[1, 1], [2, 3]], [2, 3], [2, 2], reduction="none").numpy()
    assert np.isinf(found[0])
    assert np.isfinite(found[1])
    assert float(ops.ctc_loss(x, [[1, 1], [2, 3]], [2, 3], [2, 2], 0, "mean", True)) == pytest.approx(
        found[1] / 4
    )


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        ({"log_probs": np.ones(4, np.float32)}, ShapeError, r"log_probs must be \[T, N, C\] or \[T, C\]"),
        ({"targets": np.ones((2, 2), np.float32)}, DTypeError, "targets must be integers"),
        ({"targets": np.ones((2, 2, 1), int)}, ShapeError, "targets must be"),
        ({"targets": np.ones((3, 2), int)}, ShapeError, "do not fit"),
        ({"input_lengths": [3]}, ShapeError, "input_lengths must be 2 integers"),
        ({"input_lengths": [3, 9]}, IndexError, "input_lengths: index 9 at position 1"),
        ({"target_lengths": [3, 1]}, IndexError, "target_lengths: index 3"),
        ({"targets": [[1, 9], [1, 1]]}, IndexError, "targets: index 9"),
        ({"blank": 4}, ValueError, "blank must be in 0 … 3, got 4"),
        ({"reduction": "max"}, ValueError, "reduction must be one of"),
    ],
)
def test_errors(change: dict[str, Any], error: type[Exception], text: str) -> None:
    given = {"log_probs": _log_probs(5, 2, 4), "targets": [[1, 2], [3, 1]], "input_lengths": [5, 5]}
    with pytest.raises(error, match=text):
        ops.ctc_loss(**{**given, "target_lengths": [2, 2], **change})


@pytest.mark.torch
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("zero_infinity", [False, True])
def test_as_torch(reduction: Any, zero_infinity: bool) -> None:
    """Losses and gradients, also of log_probs themselves, and where the loss is infinite."""
    torch = pytest.importorskip("torch")
    x, rng = _log_probs(20, 4, 6), np.random.default_rng(1)
    labels, steps, counts = rng.integers(1, 6, (4, 7)), np.array([20, 13, 7, 3]), np.array([7, 5, 0, 7])
    theirs = torch.tensor(x, requires_grad=True)
    given = (torch.tensor(v) for v in (labels, steps, counts))
    wanted = torch.nn.functional.ctc_loss(theirs, *given, reduction=reduction, zero_infinity=zero_infinity)
    wanted.sum().backward()

    @lm.jit
    def run(x: Any) -> Any:
        losses = ops.ctc_loss(x, labels, steps, counts, 0, reduction, zero_infinity)
        return losses, lm.gradients(ops.sum(losses), [x])[0]

    losses, slopes = run(lm.tensor(x))
    np.testing.assert_allclose(losses.numpy(), wanted.detach().numpy(), rtol=1e-6)
    np.testing.assert_allclose(slopes.numpy(), theirs.grad.numpy(), atol=2e-5)
