"""Which steps behind a product are expected to be faster in a kernel of their own."""

from collections.abc import Sequence

import pytest

from lamina.backends.cuda.elementwise import unfused_epilogue
from lamina.backends.cuda.select.formulations import Formulation, Problem
from lamina.ops.core import Op
from lamina.ops.primitives import Add, Gelu, GeluGrad, Relu, SiluGrad
from lamina.spec import Policy, Spec, bfloat16
from tests.helpers.planned import H200, KINDS

SMALL, CACHED, LARGE = 1 << 19, 1 << 22, 1 << 25
HEURISTIC = Policy(algorithm="heuristic")


def problem(count: int) -> Problem:
    """With a result of so many elements of two bytes."""
    out = Spec((count,), bfloat16).fixed
    return Problem("key", "fused", (out,), (out,), (Formulation("fused"),), 1.0)


@pytest.mark.parametrize(
    ("steps", "count", "apart"),
    [
        ([SiluGrad()], SMALL, True),
        ([SiluGrad()], SMALL + 1, False),
        ([Add(), SiluGrad()], SMALL, True),
        ([Gelu()], LARGE, True),
        ([GeluGrad("none")], LARGE, True),
        ([GeluGrad("tanh")], LARGE, False),
        ([Gelu()], CACHED, False),
        ([Relu()], LARGE, False),
        ([Relu()], SMALL, False),
        ([], SMALL, False),
    ],
    ids=str,
)
def test_what_is_first(steps: Sequence[Op], count: int, apart: bool) -> None:
    given = problem(count)
    assert unfused_epilogue.pays_apart(given, steps, H200, HEURISTIC) == apart
    ways = unfused_epilogue.beside_fused(given, Formulation("split"), steps, H200).formulations
    assert [w.name for w in ways] == (["split", "fused"] if apart else ["fused", "split"])


def test_what_stays_in_the_cache_is_the_machines() -> None:
    """A quarter of the cache of each."""
    for device in KINDS.values():
        quarter = device.machine.l2_bytes // 4
        assert not unfused_epilogue.pays_apart(problem(quarter // 2), [Gelu()], device, HEURISTIC)
        assert unfused_epilogue.pays_apart(problem(quarter // 2 + 1), [Gelu()], device, HEURISTIC)
