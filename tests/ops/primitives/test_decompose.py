"""Eigenvalues and singular values as ops: signs, matrices without rows, what is not finite, wrong shapes."""

import numpy as np
import pytest

from lamina.ops.core import bind
from lamina.ops.primitives.decompose import SingularValues, SymmetricEigen
from lamina.spec import ShapeError, Spec, float32

RNG = np.random.default_rng(2)


def test_signs_are_settled_by_the_largest_element() -> None:
    x = RNG.standard_normal((3, 6, 4))
    for op, given in ((SingularValues(), x), (SymmetricEigen(), x[:, :4])):
        for sign in (1.0, -1.0):
            vectors = bind(op, sign * given)[-1].numpy()
            at = np.abs(vectors).argmax(-2)[:, None]
            assert (np.take_along_axis(vectors, at, -2) > 0).all()


def test_one_matrix_that_is_not_finite_spoils_no_other() -> None:
    x = np.stack((np.eye(3), np.full((3, 3), np.inf), np.full((3, 3), np.nan)))
    for op in (SingularValues(), SymmetricEigen()):
        for found in bind(op, x):
            assert np.isfinite(found.numpy()[0]).all()
            assert np.isnan(found.numpy()[1:]).all()


def test_matrices_without_rows_and_wrong_shapes() -> None:
    assert [s.shape for s in SingularValues().infer(Spec((2, 3, 0), float32))] == [
        (2, 3, 0),
        (2, 0),
        (2, 0, 0),
    ]
    assert [y.shape for y in bind(SymmetricEigen(), np.zeros((0, 0)))] == [(0,), (0, 0)]
    with pytest.raises(
        ShapeError, match=r"singular_values: needs matrices \[..., M, N\] with M >= N, got f32\[2,3\]"
    ):
        SingularValues().infer(Spec((2, 3), float32))
    with pytest.raises(
        ShapeError, match=r"symmetric_eigen: needs square matrices \[..., N, N\], got f32\[2,3\]"
    ):
        SymmetricEigen().infer(Spec((2, 3), float32))
