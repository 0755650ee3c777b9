"""Maps along an axis: their tables by hand, the three ways to apply them, errors."""

import numpy as np
import pytest

import lamina as lm
from lamina.ops.primitives.axis_map import AxisMap, keys


def dense(axis: AxisMap) -> np.ndarray:
    """The map as a matrix."""
    table, found = axis.table, np.zeros((axis.target, axis.source))
    rows = np.repeat(np.arange(table.rows), table.counts)
    np.add.at(found, (rows, table.at), table.weight)
    return found


@pytest.mark.parametrize(
    ("axis", "rows"),
    [
        (AxisMap("linear", 2, 4, (0.5, 0)), [[1, 0], [0.75, 0.25], [0.25, 0.75], [0, 1]]),
        (AxisMap("linear", 2, 3, (0.5, 1)), [[1, 0], [0.5, 0.5], [0, 1]]),
        (AxisMap("nearest", 3, 2, (1.5,)), [[1, 0, 0], [0, 1, 0]]),
        (AxisMap("nearest-exact", 3, 2, (1.5,)), [[1, 0, 0], [0, 0, 1]]),
        (AxisMap("area", 3, 2), [[0.5, 0.5, 0], [0, 0.5, 0.5]]),
        (AxisMap("cells", 3, 4, (2,)), [[1, 0, 0], [0, 1, 0], [0, 1, 0], [0, 0, 1]]),
        (AxisMap("reflect", 3, 5, (1,)), [[0, 1, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1], [0, 1, 0]]),
        (AxisMap("circular", 2, 4, (1,)), [[0, 1], [1, 0], [0, 1], [1, 0]]),
        (AxisMap("replicate", 2, 3, (-1,)), [[0, 1], [0, 1], [0, 1]]),
        (AxisMap("patches", 3, 4, (2, 2, 1, 1)), [[0, 0, 0], [0, 1, 0], [1, 0, 0], [0, 0, 1]]),
    ],
    ids=str,
)
def test_tables(axis: AxisMap, rows: list[list[float]]) -> None:
    np.testing.assert_allclose(dense(axis), rows)
    np.testing.assert_array_equal(dense(axis.adjoint), dense(axis).T)
    assert axis.adjoint.adjoint == axis


@pytest.mark.parametrize("kind", ["cubic", "linear-antialias", "cubic-antialias", "linear", "area"])
@pytest.mark.parametrize(("n", "out"), [(7, 3), (3, 11), (100, 3), (5, 1)])
def test_weights_sum_to_one(kind: str, n: int, out: int) -> None:
    numbers = () if kind == "area" else (n / out, 0)
    np.testing.assert_allclose(dense(AxisMap(kind, n, out, numbers)).sum(1), 1, atol=1e-12)


@pytest.mark.parametrize(
    "axis",
    [
        AxisMap("linear", 5, 9, (5 / 9, 0)),  # rows of equal length
        AxisMap("area", 5, 3),
        AxisMap("replicate", 3, 9, (2,)).adjoint,  # rows of a few lengths
        AxisMap("area", 200, 3),  # long rows
        AxisMap("patches", 400, 3, (3, 7, 5, 1)).adjoint,  # rows without elements
        AxisMap("replicate", 3, 90, (80,)).adjoint,
    ],
    ids=str,
)
def test_applying_is_the_matrix_product(axis: AxisMap) -> None:
    x = np.random.default_rng(0).standard_normal((2, axis.source, 3))
    wanted = np.einsum("oi,nic->noc", dense(axis), x)
    np.testing.assert_allclose(axis.table.apply(x, 1), wanted, atol=1e-12)


def test_a_kernel_that_interpolates() -> None:
    """Keys' kernel is 1 at 0 and 0 at all other integers."""
    np.testing.assert_allclose(keys(np.array([-2.0, -1, 0, 1, 2, 3]), -0.75), [0, 0, 1, 0, 0, 0])


def test_errors() -> None:
    with pytest.raises(ValueError, match="kind must be one of identity, nearest"):
        AxisMap("quadratic", 3, 4)
    with pytest.raises(lm.ShapeError, match="numbers as 'linear' takes them"):
        AxisMap("linear", 3, 4)
    with pytest.raises(lm.ShapeError, match="takes elements of an axis that has none"):
        AxisMap("area", 0, 2).table  # noqa: B018
