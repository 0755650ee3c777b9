"""Cross-entropy and its gradient: values, and labels that are wrong."""

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


@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy_grad"])
def test_values(name: str) -> None:
    assert check_samples(REGISTRY[name], dtypes=1, samples=2) == 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cross_entropy", "cross_entropy_grad"])
def test_values_of_all_dtypes(name: str) -> None:
    check_samples(REGISTRY[name], dtypes=9, samples=99)


@pytest.mark.parametrize("shape", [(3, 5), (3, 5, 4)], ids=str)
def test_labels_outside_raise(shape: tuple[int, ...]) -> None:
    x = lm.tensor(np.zeros(shape, np.float32))
    labels = np.zeros((3, *shape[2:]), np.int64)
    labels.reshape(-1)[-1] = 5
    with pytest.raises(IndexError, match="outside"):
        ops.cross_entropy(x, lm.tensor(labels), reduction="none")
    labels.reshape(-1)[-1] = -100
    found = ops.cross_entropy(x, lm.tensor(labels), reduction="none").numpy()
    assert (found.reshape(-1)[-1], found.reshape(-1)[0]) == (0, np.float32(np.log(5)))
