"""Sizes that depend on free axes are found from a few traces."""

import numpy as np
import pytest

from lamina.convert.sizes import (
    Dim,
    Expression,
    band,
    counted,
    difference,
    ends,
    expression,
    filled,
    free_shape,
    grid,
    powers,
    probes,
    repeated,
    triangle,
    two_values,
)
from lamina.graph import trace
from lamina.spec import Spec, float32

pytestmark = pytest.mark.feature("B026")
BATCH, TIME = Dim("x", 0, (2, 4, 7, 2, 2)), Dim("x", 1, (6, 6, 6, 8, 11))


def written(found: Expression | None) -> str:
    assert found is not None
    return found.written(lambda d: "bt"[d.axis], lambda operator, a, b: f"{operator}({a},{b})")


@pytest.mark.parametrize(
    ("numbers", "wanted"),
    [
        ((2, 4, 7, 2, 2), "b"),
        ((6, 12, 21, 6, 6), "Mul(b,3)"),
        ((3, 3, 3, 4, 5), None),  # not half of it everywhere
        ((12, 24, 42, 16, 22), "Mul(b,t)"),
        ((1, 2, 3, 1, 1), None),
        ((5, 5, 5, 7, 10), "Add(t,-1)"),
        ((4, 8, 14, 4, 4), "Mul(b,2)"),
        ((36, 144, 441, 64, 121), None),
        ((24, 96, 294, 32, 44), "Mul(Mul(b,b),t)"),
    ],
)
def test_a_number_of_each_trace_is_a_formula_of_sizes(numbers: tuple[int, ...], wanted: str | None) -> None:
    found = expression(numbers, [BATCH, TIME])
    assert (found if wanted is None else written(found)) == wanted


def test_a_share_of_a_size() -> None:
    assert written(expression((3, 6, 9), [Dim("x", 0, (6, 12, 18))])) == "Div(b,2)"


def test_a_rounded_share_needs_many_traces() -> None:
    """Three sizes agree with several formulas."""
    sizes = (8, 9, 10, 11, 13, 15, 20)
    few, many = Dim("x", 0, (8, 10, 13)), Dim("x", 0, sizes)
    assert expression(tuple(n // 3 for n in few.sizes), [few]) is None
    assert written(expression(tuple(n // 3 for n in sizes), [many])) == "Div(b,3)"
    assert written(expression(tuple((n + 1) // 2 for n in sizes), [many])) == "Div(Add(b,1),2)"
    assert written(expression(tuple((n - 3) // 4 + 1 for n in sizes), [many])) == "Div(Add(b,1),4)"


def test_one_less_than_a_product() -> None:
    assert written(expression((11, 23, 41, 15, 21), [BATCH, TIME])) == "Add(Mul(b,t),-1)"


def test_each_plan_has_every_axis_alone_and_all_together() -> None:
    added, times = probes({"batch": 2, "time": 6})
    assert added == [
        {"batch": 4, "time": 6}, {"batch": 7, "time": 6}, {"batch": 2, "time": 8}, {"batch": 2, "time": 11},
        {"batch": 4, "time": 11}, {"batch": 7, "time": 11},
    ]  # fmt: skip
    assert times[:2] == [{"batch": 4, "time": 6}, {"batch": 6, "time": 6}]
    assert len(next(probes({"batch": 3}))) == 2


def test_graphs_that_are_another_program_are_told_apart() -> None:
    specs = [Spec((n, 3), float32) for n in (2, 4)]
    same = [trace(lambda x: x.exp().sum(0), s) for s in specs]
    assert difference(same) is None
    assert difference([same[0], trace(lambda x: x.exp(), specs[1])]) == "2 and 1 ops"
    assert difference([same[0], trace(lambda x: x.log().sum(0), specs[1])]) == "exp() and log()"
    swapped = [trace(lambda x: (x.exp(), x), specs[0]), trace(lambda x: (x, x.exp()), specs[1])]
    assert difference(swapped) == "other outputs"


def test_a_shape_names_its_free_axes() -> None:
    assert free_shape([(2, 3, 6), (4, 3, 12)], {(2, 4): "batch"}) == ["batch", 3, None]


def test_constants_of_sizes_are_known_by_their_elements() -> None:
    sizes = (3, 5)
    assert filled([np.full((2, n), 7) for n in sizes]) == 7
    assert filled([np.full(n, n) for n in sizes]) is None
    row = np.array([1, 5, 2])
    again = repeated([np.tile(row, (n, 1)) for n in sizes])
    assert again is not None
    assert again.tolist() == [row.tolist()]
    assert repeated([np.tile(row, (n, 1)) * n for n in sizes]) is None
    assert repeated([np.arange(n) for n in sizes]) is None
    assert repeated([np.zeros((n, 0)) for n in sizes]) is None
    assert counted([np.arange(n)[:, None] * 2 + 1 for n in sizes]) == (0, 1, 2)
    assert counted([np.arange(n) ** 2 for n in sizes]) is None
    assert triangle([np.tri(n, k=-1, dtype=np.bool_) for n in sizes]) == (False, -1)
    assert triangle([np.triu(np.ones((n, n), np.bool_)) for n in sizes]) == (True, 0)
    assert triangle([np.eye(n, dtype=np.bool_) for n in sizes]) is None


def test_scalars_are_powers_of_whole_numbers() -> None:
    def numbers(*values: float) -> set[tuple[int, ...]]:
        return {how.numbers for how in powers([np.float32(x) for x in values])}

    assert (3, 7) in numbers(1 / 3, 1 / 7)
    assert (3, 7) in numbers(3**-0.5, 7**-0.5)
    assert (3, 7) in numbers(1 / 3 - 1, 1 / 7 - 1)
    assert (3, 7) in numbers(2 / 3, 2 / 7) or (6, 14) in numbers(4 / 6, 4 / 14)
    assert not numbers(0.1234567, 0.7654321)
    assert not list(powers([np.ones(1), np.zeros(1)]))


def test_grids_bands_and_ends_are_known_by_their_elements() -> None:
    sizes = (4, 6, 9)
    apart = grid([np.arange(n)[:, None] - 2 * np.arange(n) for n in sizes])
    assert apart is not None
    assert [[int(x) for x in step or []] for step in apart.steps] == [[1, 1, 1], [-2, -2, -2]]
    line = grid([np.linspace(-1, 1, n, dtype=np.float32)[None] for n in sizes])
    assert line is not None
    assert line.steps[0] is None
    np.testing.assert_allclose([float(x) for x in line.steps[1] or []], [2 / 3, 2 / 5, 2 / 8], rtol=1e-6)
    assert grid([np.arange(n) ** 2 for n in sizes]) is None
    near = [np.abs(np.arange(n)[:, None] - np.arange(n)) < 2 for n in sizes]
    assert band(near) == (-1, 1)
    assert band([np.tri(n, dtype=np.bool_) for n in sizes]) == (None, 0)
    assert band([np.tri(n, k=-1, dtype=np.bool_).T for n in sizes]) == (1, None)
    assert band([np.eye(n, dtype=np.bool_)[::-1] for n in sizes]) is None
    assert band([np.tri(n, k=n // 3, dtype=np.bool_) for n in sizes]) is None
    two = two_values([np.where(x, np.float32(0), np.float32(-np.inf)) for x in near])
    assert two is not None
    assert (two.there, two.elsewhere) == (-np.inf, 0)
    found = ends([np.array([5] + [2] * (n - 3) + [7, 8]) for n in sizes])
    assert found is not None
    assert [part.tolist() for part in found[1:]] == [[5], [2], [7, 8]]
    assert ends([np.arange(n) % 2 for n in sizes]) is None
