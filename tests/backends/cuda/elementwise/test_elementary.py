"""Mathematical functions in the emulator against the reference: every row of the tables, ends and integers."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.cuda.elementwise import elementary
from lamina.backends.reference import run_reference
from lamina.ops.primitives.elementary import BINARY, UNARY, BinaryFunction, Polygamma, UnaryFunction
from lamina.spec import Policy, Spec, as_dtype, float32, float64
from tests.helpers.eager import mismatch
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")
CUDA = backend(H200)
ENDS = np.array([np.nan, np.inf, -np.inf, 0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 3.0, -30.2, 0.99])


@pytest.mark.parametrize("name", UNARY)
def test_functions_of_one_number(name: str) -> None:
    op = UnaryFunction(name)
    (wanted,) = run_reference(op, [ENDS])
    (found,) = run_plan(CUDA.plan(op, [Spec(ENDS.shape, float64)], Policy()), [ENDS])
    np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("name", BINARY)
def test_functions_of_two_numbers(name: str) -> None:
    op, kind = BinaryFunction(name), BINARY[name].kind
    pairs = []
    if kind in ("float", "wide", "number"):
        pairs.append([v.reshape(-1) for v in np.meshgrid(ENDS, ENDS)])
    if kind not in ("float", "wide"):
        numbers = np.arange(-6, 7)
        pairs += [[v.reshape(-1).astype(t) for v in np.meshgrid(numbers, numbers)] for t in ("int64", "int8")]
    for a, b in pairs:
        arrays = [np.ascontiguousarray(a), np.ascontiguousarray(b)]
        (wanted,) = run_reference(op, arrays)
        specs = [Spec(v.shape, as_dtype(v.dtype)) for v in arrays]
        (found,) = run_plan(CUDA.plan(op, specs, Policy()), arrays)
        np.testing.assert_allclose(found, wanted, rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("n", [1, 3])
def test_polygamma(n: int) -> None:
    x = np.concatenate([ENDS, np.linspace(-20, 20, 33) + 0.3]).astype(np.float32)
    (wanted,) = run_reference(Polygamma(n), [x], float64)
    (found,) = run_plan(CUDA.plan(Polygamma(n), [Spec(x.shape, float32)], Policy()), [x])
    same = np.isfinite(wanted) & (np.abs(wanted) < 1e30)
    assert not mismatch(found[same], wanted[same], float32)


def test_every_row_has_an_expression() -> None:
    for name in UNARY:
        assert elementary.expression(UnaryFunction(name), ["x"], "f32").endswith("(x)")
    for name in BINARY:
        assert "x" in elementary.expression(BinaryFunction(name), ["x", "y"], "i32")
