"""Values at labels on a GPU, in the emulator: labels that are no class give NaN, ignored ones 0."""

import shutil

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.ops.core import Array, Op
from lamina.ops.primitives import NllLoss, NllLossGrad
from lamina.spec import Policy, Spec, as_dtype
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs a C++ compiler")


def run(op: Op, *arrays: Array) -> list[Array]:
    plan = backend(H200).plan(op, [Spec(a.shape, as_dtype(a.dtype)).fixed for a in arrays], Policy())
    return list(run_plan(plan, list(arrays)))


def test_labels_that_are_no_class() -> None:
    x, labels = np.arange(12, dtype=np.float32).reshape(4, 3), np.array([1, 3, -1, -7])
    (losses,) = run(NllLoss(-7), x, labels)
    np.testing.assert_array_equal(losses, [-1, np.nan, np.nan, 0])
    losses, shares = run(NllLoss(-7), x, labels, np.array([1, 0.5, 2], np.float32))
    np.testing.assert_array_equal(losses, [-0.5, np.nan, np.nan, 0])
    np.testing.assert_array_equal(shares, [0.5, 0, 0, 0])
    (slopes,) = run(NllLossGrad(3, -7), labels, np.ones(4, np.float32))
    np.testing.assert_array_equal(slopes, [[0, -1, 0], [np.nan] * 3, [np.nan] * 3, [0] * 3])


def test_no_labels() -> None:
    x = np.zeros((0, 3), np.float32)
    assert run(NllLoss(), x, np.zeros(0, np.int64))[0].shape == (0,)
