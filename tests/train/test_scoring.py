"""What an evaluation adds up: one program per kind of batch, read late, floats added in float64."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.runtime import device
from lamina.tensors import tensor
from lamina.train import metrics
from lamina.train.scoring import LATE, Scoring

RNG = np.random.default_rng(0)


def scoring(loss: Any = None, backend: str = "cpu", **given: metrics.Metric) -> Scoring:
    return Scoring(loss, given, -100, device("cpu"), backend)


def test_a_program_for_each_kind_of_batch() -> None:
    one = scoring(ops.mse_loss, mae=metrics.MeanAbsoluteError())
    x = RNG.standard_normal((8, 3)).astype(np.float32)
    for rows in (8, 8, 8, 8, 5):
        one.add(tensor(x[:rows]), x[:rows] + 2, rows)
        assert len(one._queued) <= LATE
    assert one.finish()["mae"] == pytest.approx(2, rel=1e-6)
    assert len(one._programs) == 2
    assert one.samples == 37
    assert one.loss / one.samples == pytest.approx(4, rel=1e-6)
    one.begin()
    one.add(tensor(x), x, 8)
    assert one.finish() == {"mae": 0.0}
    assert len(one._programs) == 2


def test_sums_are_exact_over_many_batches() -> None:
    """Float32 would stay at 2**24."""
    one = scoring(sum=metrics.MeanSquaredError())
    large, small = np.full((1, 1), 4096, np.float32), np.ones((1, 1), np.float32)
    zero = np.zeros((1, 1), np.float32)
    one.add(tensor(large), zero, 1)
    for _ in range(5):
        one.add(tensor(small), zero, 1)
    assert one.finish()["sum"] == (2**24 + 5) / 6


def test_metrics_on_the_host_get_arrays_in_their_structure() -> None:
    seen: list[Any] = []

    class Host(metrics.Metric):
        name, on_host = "host", True

        def sums(self, outputs: Any, targets: Any) -> Any:
            seen.append((outputs, targets))
            return np.asarray(len(outputs["a"]))

        def result(self, totals: Any) -> int:
            return int(totals)

    one = scoring(host=Host())
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    one.add({"a": tensor(x)}, (x, [1, 2]), 2)
    assert one.finish() == {"host": 2}
    (outputs, (first, second)) = seen[0]
    assert isinstance(outputs["a"], np.ndarray)
    np.testing.assert_array_equal(first, x)
    np.testing.assert_array_equal(second, [1, 2])


@pytest.mark.parametrize("backend", ["reference", "cpu"])
def test_labels_of_any_integer_type(backend: str) -> None:
    for dtype in ("uint8", "int32", "int64"):
        one = scoring(backend=backend)
        one.add(tensor(np.eye(3, dtype=np.float32)), np.array([0, 2, 2], dtype), 3)
        one.finish()
        assert (one.hits, one.labels, one.has_labels) == (2, 3, True)


def test_losses_and_metrics_read_tensors_as_they_are() -> None:
    class Scaled(nn.Module):
        def __init__(self) -> None:
            self.scale = nn.Parameter(np.ones((), np.float32))
            self.register_buffer("seen", lm.zeros(()))

        def forward(self, y: Any, t: Any) -> Any:
            self.seen.add_(1.0)
            return ops.mse_loss(y, t) * self.scale * (10 if self.training else 1)

    x, net, loss = np.ones((4, 3), np.float32), nn.Linear(3, 3), Scaled()

    def penalty(y: Any, t: Any) -> Any:
        return ops.sum(net.weight**2) + 0 * ops.mean(y)

    one = scoring(loss, penalty=metrics.named_metrics({"penalty": penalty})["penalty"])
    for scale in (1.0, 2.0):
        loss.scale.fill_(scale)
        net.weight.fill_(scale)
        one.begin()
        one.add(lm.tensor(x), lm.tensor(0 * x), 4)
        assert one.finish()["penalty"] == pytest.approx(9 * scale**2)
        assert one.loss / one.weight == pytest.approx(scale)
    assert loss.seen.item() == 2  # once a batch
