"""Sums in fixed point: their places, how exact they are, and that nothing to add gives zeros."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.cuda.launch.program import Fill, Launch, Place, source
from lamina.backends.cuda.sampling.fixed_sum import count_bits, fixed_sum
from lamina.ops.primitives import GridSampleGrad
from lamina.spec import Policy, Spec, float32, float64
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200


def test_bits_for_the_count_of_terms() -> None:
    assert [count_bits(n) for n in (0, 1, 2, 3, 4, 5, 1 << 20)] == [1, 1, 1, 2, 2, 3, 20]


def test_nothing_to_add_gives_zeros() -> None:
    def add(sums: Place, found: Place) -> tuple[Launch, Launch]:
        raise AssertionError("there is nothing to add")

    steps, workspace = fixed_sum(Spec((0,), float32), source(), Spec((3,), float32).fixed, 1, add)
    assert workspace == 0
    assert [(type(s), s.nbytes) for s in steps if isinstance(s, Fill)] == [(Fill, 12)]
    assert fixed_sum(Spec((2,), float32), source(), Spec((0,), float32).fixed, 1, add) == ([], 0)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_a_sum_of_many_terms_is_nearly_exact(scale: float) -> None:
    """Thousands of terms of all sizes on one element, against exact arithmetic in a fixed number of bits."""
    g = np.random.default_rng(0).standard_normal((1, 1, 60, 70)) * scale
    op, grid = GridSampleGrad("nearest", "border", False, (1, 1)), np.zeros((1, 60, 70, 2))
    specs = [Spec(g.shape, float64), Spec(grid.shape, float64)]
    (found,) = run_plan(backend(H200).plan(op, specs, Policy()), [g, grid])
    wanted = float(np.sum(g.astype(np.longdouble)))
    assert abs(found.item() - wanted) < 4200 * 2.0**-48 * np.abs(g).max()
