"""CTC losses and their gradient: values, and lengths and labels that are wrong."""

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends.cpu.loops import table
from lamina.ops.core import REGISTRY, Array
from lamina.ops.primitives.ctc import CtcLoss, CtcLossGrad
from lamina.runtime import Device
from lamina.spec import Spec, as_dtype
from tests.helpers.eager import execute
from tests.helpers.loops import check_samples, needs_llvm, plan, reference_of

pytestmark = needs_llvm


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


@pytest.mark.parametrize("name", ["ctc_loss", "ctc_loss_grad"])
def test_values(name: str) -> None:
    assert check_samples(REGISTRY[name], dtypes=1, samples=99) > 6


def specs(arrays: list[Array]) -> list[Spec]:
    return [Spec(a.shape, as_dtype(a.dtype)).fixed for a in arrays]


@pytest.mark.parametrize("forgiven", [False, True])
@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize(
    ("classes", "labels", "blank"), [(2, 1, 0), (3, 5, 2), (7, 4, 3), (4, 0, 1), (1, 2, 0)]
)
def test_sequences_of_all_lengths(
    classes: int, labels: int, blank: int, normalized: bool, forgiven: bool
) -> None:
    """From no step and no label to all of them; neighbours alike, labels that there are too few steps for."""
    rng = np.random.default_rng(classes)
    time, batch = 9, 10 * (labels + 1)
    steps, counts = (a.reshape(-1) for a in np.meshgrid(np.arange(time + 1), np.arange(labels + 1)))
    x = np.log(rng.dirichlet(np.ones(classes), (time, batch)))
    targets = rng.integers(0, classes, (batch, labels))
    loss, grad = CtcLoss(blank, forgiven, keep=True), CtcLossGrad(blank, forgiven, normalized)
    given = [x, targets, steps, counts]
    wanted = reference_of(loss, given)
    found = execute(Device("cpu"), plan(loss, specs(given)), given)
    for y, right in zip(found, wanted, strict=True):
        np.testing.assert_allclose(y, right, rtol=1e-9)
    given += [wanted[1], rng.standard_normal(batch)]
    (dx,) = execute(Device("cpu"), plan(grad, specs(given)), given)
    np.testing.assert_allclose(dx, reference_of(grad, given)[0], rtol=1e-9, atol=1e-12)


def test_labels_and_lengths_that_are_not_there_raise() -> None:
    x = lm.tensor(np.zeros((4, 2, 3), np.float32))
    for targets, steps, counts in (
        ([[1, 3], [1, 2]], [4, 4], [2, 2]),
        ([[1, 2], [1, 2]], [4, 5], [2, 2]),
        ([[1, 2], [1, 2]], [4, 4], [2, 3]),
    ):
        with pytest.raises((IndexError, ValueError)):
            ops.ctc_loss(x, lm.tensor(np.array(targets)), np.array(steps), np.array(counts), reduction="none")
