"""Unfold and fold of many images on a GPU, and bags of rows, as on a CPU."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("options", [{"padding": 1}, {"stride": (2, 3), "dilation": 2}])
@pytest.mark.parametrize("shape", [(16, 32, 56, 56), (3, 65, 31, 45)])
def test_values_and_gradients(shape: tuple[int, ...], options: dict[str, Any]) -> None:
    x = np.random.default_rng(0).integers(-8, 9, shape).astype(np.float32)  # sums are exact

    def energy(x: Any) -> Any:
        return ops.sum(ops.square(ops.unfold(x, 3, **options)), 1)

    def results(device: str) -> list[np.ndarray]:
        given = lm.tensor(x, device=device)
        columns = ops.unfold(given, 3, **options)
        slope = lm.grad(lambda x: ops.sum(energy(x)))(given)
        folded = ops.fold(columns, shape[2:], 3, **options)
        return [a.numpy() for a in (columns, folded, slope)]

    for found, wanted in zip(results("cuda:0"), results("cpu"), strict=True):
        np.testing.assert_array_equal(found, wanted)


def test_bags() -> None:
    rng = np.random.default_rng(0)
    table = rng.integers(-8, 9, (2000, 64)).astype(np.float32)
    index = rng.integers(0, 2000, (3001, 16))
    found = [
        ops.embedding_bag(lm.tensor(index, device=d), lm.tensor(table, device=d)) for d in ("cuda:0", "cpu")
    ]
    np.testing.assert_array_equal(found[0].numpy(), found[1].numpy())
