"""Values at labels by loops: every sample, and labels that are no class."""

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends.cpu.loops import table
from lamina.ops.core import REGISTRY
from tests.helpers.loops import check_samples, needs_llvm

pytestmark = needs_llvm


@pytest.mark.parametrize("name", ["nll_loss", "nll_loss_grad"])
def test_values(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)
    assert check_samples(REGISTRY[name], dtypes=9, samples=9) == 9


@pytest.mark.parametrize("shape", [(64, 300), (3, 50, 9, 11)], ids=str)
def test_a_label_that_is_no_class_is_an_error(shape: tuple[int, ...]) -> None:
    labels = np.zeros((shape[0], *shape[2:]), np.int64)
    labels.reshape(-1)[-1] = shape[1]
    x = lm.tensor(np.zeros(shape, np.float32))
    with pytest.raises(IndexError, match=f"index {shape[1]} at position"):
        ops.nll_loss(x, lm.tensor(labels))
    with pytest.raises(IndexError, match=f"index {shape[1]} at position"):
        lm.jit(lambda a, b: lm.grad(ops.nll_loss)(a, b))(x, lm.tensor(labels))
