"""CTC losses and their gradient: values, and lengths and labels that are wrong."""

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends.cpu.loops import table
from lamina.ops.core import REGISTRY
from tests.helpers.loops import check_samples, needs_llvm

pytestmark = needs_llvm


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


@pytest.mark.parametrize("name", ["ctc_loss", "ctc_loss_grad"])
def test_values(name: str) -> None:
    assert check_samples(REGISTRY[name], dtypes=1, samples=99) > 6


def test_labels_and_lengths_that_are_not_there_raise() -> None:
    x = lm.tensor(np.zeros((4, 2, 3), np.float32))
    for targets, steps, counts in (
        ([[1, 3], [1, 2]], [4, 4], [2, 2]),
        ([[1, 2], [1, 2]], [4, 5], [2, 2]),
        ([[1, 2], [1, 2]], [4, 4], [2, 3]),
    ):
        with pytest.raises((IndexError, ValueError)):
            ops.ctc_loss(x, lm.tensor(np.array(targets)), np.array(steps), np.array(counts), reduction="none")
