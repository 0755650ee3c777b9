"""Each type is held in one of Lamina's that has all of its values."""

import numpy as np
import pytest

from lamina.files.element_types import ELEMENT_TYPES, as_held
from lamina.spec import DTypeError

EIGHT_BITS = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize("kind", ELEMENT_TYPES, ids=lambda t: t.torch)
def test_no_value_is_lost(kind) -> None:
    if kind.numpy.kind == "c":
        given = np.array([1 + 2j, -0.5j], kind.numpy)
        assert as_held("x", given).numpy().tolist() == [[1, 2], [0, -0.5]]
        return
    if kind.numpy.itemsize == 1 and kind.numpy.kind not in "b":
        given = EIGHT_BITS.view(kind.numpy)
    elif kind.numpy.kind == "u":
        given = np.array([0, np.iinfo(kind.numpy).max >> (kind.numpy == np.uint64)], kind.numpy)
    else:
        given = np.array([0, 1], kind.numpy)
    found = as_held("x", given).numpy()
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(found.astype(np.float64), given.astype(np.float64))


def test_whole_numbers_beyond_int64_are_refused() -> None:
    with pytest.raises(DTypeError, match="tensor 'x' has whole numbers beyond int64"):
        as_held("x", np.array([2**63], np.uint64))
