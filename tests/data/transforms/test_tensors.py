"""The network's input: values by hand, what is erased, errors."""

import numpy as np
import pytest

import lamina as lm
from lamina.data import transforms as t
from lamina.spec import ShapeError
from tests.helpers.pictures import IMAGE, rng


def test_tensors() -> None:
    made = t.ToTensor()(IMAGE, rng())
    assert (type(made), made.dtype, made.shape) == (lm.Tensor, lm.float32, (3, 10, 14))
    np.testing.assert_allclose(made, IMAGE.transpose(2, 0, 1) / 255, rtol=1e-6)
    normal = t.Normalize([0.5, 0.4, 0.3], (0.2, 0.1, 0.5))
    expected = (made.numpy() - np.float32([0.5, 0.4, 0.3])[:, None, None]) / np.float32([0.2, 0.1, 0.5])[
        :, None, None
    ]
    for given in (IMAGE, made, made.numpy()):
        found = normal(given, rng())
        assert isinstance(found, lm.Tensor) == isinstance(given, lm.Tensor)
        np.testing.assert_allclose(found, expected, rtol=1e-5)
    assert t.Normalize(0.5, 0.5)(IMAGE, rng()).shape == (3, 10, 14)
    with pytest.raises(ShapeError, match="Normalize: 2 numbers in mean for 3 channels"):
        t.Normalize([0, 1], 1.0)(IMAGE, rng())
    with pytest.raises(ValueError, match="std must not be 0"):
        t.Normalize(0.0, [1, 0, 1])


def test_erasing() -> None:
    tensor = t.ToTensor()(IMAGE, rng()) + 1
    made = tensor.numpy().copy()
    np.testing.assert_array_equal(t.RandomErasing(0)(made, rng()), made)
    for seed in range(20):
        erased = t.RandomErasing(1, (0.1, 0.3))(made, rng(seed))
        also = t.RandomErasing(1, (0.1, 0.3))(tensor, rng(seed))
        np.testing.assert_array_equal(also, erased)
        assert isinstance(also, lm.Tensor)
        hole = erased[0] == 0
        assert 0.05 < hole.mean() < 0.4
        rows, columns = np.flatnonzero(hole.any(1)), np.flatnonzero(hole.any(0))
        assert hole[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1].all()
        np.testing.assert_array_equal(erased[:, ~hole], made[:, ~hole])


def test_what_makes_tensors_may_be_chosen_and_ordered() -> None:
    several = [t.Normalize(0.5, 0.5), t.RandomErasing(1.0)]
    for made in (t.RandomApply(several, p=1), t.RandomChoice(several), t.RandomOrder(several)):
        chain = t.Compose([t.ToTensor(), made, t.Lambda(lambda x: x.view(-1))])
        assert chain(IMAGE, rng()).size() == (3 * 10 * 14,)
