"""What kernels read of their inputs: all, parts in place, one number, what is repeated; and what they refuse."""

import numpy as np
import pytest

from lamina.backends import NoKernel
from lamina.backends.cpu.loops import table
from lamina.backends.cpu.loops.formula import Formula
from lamina.ops.core import Op
from lamina.ops.primitives import Add, Expand, FusedElementwise, Mul, Neg, Pow, Reduce, Reshape, Slice
from lamina.runtime import Device
from lamina.spec import Layout, Spec, float32
from tests.helpers.eager import execute
from tests.helpers.loops import needs_llvm, plan, reference_of

pytestmark = needs_llvm
X = Spec((6, 40), float32).fixed


@pytest.fixture(autouse=True)
def _small_ones_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "LEAST", 0)


def expression(*steps: tuple[Op, tuple[int, ...]]) -> FusedElementwise:
    return FusedElementwise(tuple(op for op, _ in steps), tuple(read for _, read in steps))


def check(op: FusedElementwise, *arrays: np.ndarray) -> None:
    found = plan(op, [Spec(a.shape, float32).fixed for a in arrays])
    (y,) = execute(Device("cpu"), found, list(arrays))
    np.testing.assert_allclose(y, reference_of(op, list(arrays))[0], rtol=1e-5)


def normal(*shape: int) -> np.ndarray:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


LEFT, RIGHT = Slice((0, 0), (6, 20), (1, 1)), Slice((0, 20), (6, 40), (1, 1))


def test_parts_are_read_where_they_lie() -> None:
    op = expression((LEFT, (0,)), (RIGHT, (0,)), (Mul(), (~0, ~1)))
    formula = Formula.of(op, [X])
    assert [(leaf.number, leaf.start, leaf.spec.layout) for leaf in formula.leaves] == [
        (0, 0, Layout((40, 1))),
        (0, 20, Layout((40, 1))),
    ]
    check(op, normal(6, 40))


def test_parts_of_parts_with_steps_and_the_whole_beside_them() -> None:
    inner = Slice((1, 2), (6, 20), (2, 3))
    op = expression((LEFT, (0,)), (inner, (~0,)), (Slice((0, 0), (3, 6), (1, 1)), (1,)), (Add(), (~1, ~2)))
    check(op, normal(6, 40), normal(5, 8))
    check(expression((RIGHT, (0,)), (Neg(), (~0,)), (Reduce("sum", (1,)), (~1,))), normal(6, 40))
    check(expression((Slice((0, 0), (6, 1), (1, 1)), (0,)), (Mul(), (0, ~0))), normal(6, 40))


@pytest.mark.parametrize("strides", [(1, 6), (80, 2)], ids=str)
def test_parts_of_what_does_not_lie_row_major(strides: tuple[int, int]) -> None:
    found = plan(expression((RIGHT, (0,)), (Neg(), (~0,))), [Spec((6, 40), float32, Layout(strides))])
    assert found.inputs[0].layout == Layout(strides)
    x = normal(6, 40)
    (y,) = execute(Device("cpu"), found, [x])
    np.testing.assert_array_equal(y, -x[:, 20:])


def test_parts_of_blocks_are_parts_of_rows() -> None:
    spec = Spec((2, 32, 3, 5), float32).with_tag("aBcd16b")
    half = Slice((0, 16, 0, 0), (2, 32, 3, 5), (1, 1, 1, 1))
    found = plan(expression((half, (0,)), (Neg(), (~0,))), [spec])
    assert found.inputs[0].is_contiguous
    x = normal(2, 32, 3, 5)
    (y,) = execute(Device("cpu"), found, [x])
    np.testing.assert_array_equal(y, -x[:, 16:])


def test_a_part_is_not_written_over() -> None:
    op = expression((Slice((0, 0), (6, 40), (1, 1)), (0,)), (Neg(), (~0,)))
    assert plan(op, [X]).aliases == {}
    assert plan(expression((Neg(), (0,)), (Mul(), (~0, 0))), [X]).aliases == {0: 0}


def test_what_is_repeated_and_numbers_of_any_rank() -> None:
    op = expression((Reshape((1, 1)), (1,)), (Expand((6, 40)), (~0,)), (Add(), (~1, 0)))
    check(op, normal(6, 40), normal(1))
    check(expression((Expand((6, 40)), (0,)), (Mul(), (~0, ~0)), (Reduce("sum", (0,)), (~1,))), normal(6, 1))
    check(expression((Expand((6, 40)), (0,))), normal(40))


def test_what_has_no_instructions_is_refused() -> None:
    with pytest.raises(NoKernel, match="pow"):
        plan(expression((Pow(), (0, 0)), (Neg(), (~0,))), [X])
    with pytest.raises(NoKernel, match="no loops for"):
        plan(expression((Neg(), (0,)), (LEFT, (~0,))), [X])
    with pytest.raises(NoKernel, match="no loops for"):
        plan(expression((Reshape((40, 6)), (0,)), (Neg(), (~0,))), [X])
