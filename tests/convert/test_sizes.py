"""Sizes that depend on free axes are found from a few traces."""

import numpy as np
import pytest

from lamina.convert.sizes import (
    Dim,
    Expression,
    counted,
    difference,
    expression,
    filled,
    free_shape,
    probes,
    repeated,
    triangle,
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


def test_each_plan_has_every_axis_alone_and_all_together() -> None:
    added, times = probes({"batch": 2, "time": 6})
    assert added == [
        {"batch": 4, "time": 6}, {"batch": 7, "time": 6}, {"batch": 2, "time": 8}, {"batch": 2, "time": 11},
        {"batch": 4, "time": 11},
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
