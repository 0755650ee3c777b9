"""One rank alone, and reductions."""

import ml_dtypes
import numpy as np
import pytest

from lamina.runtime.ranks import current_world
from lamina.runtime.ranks.communicator import Alone, RankError, reduced
from tests.helpers.rank_programs import check


def test_one_rank_alone() -> None:
    assert check(current_world().communicator()) == []
    with pytest.raises(RankError, match="rank 0 is alone in its group"):
        Alone((0,), 0).exchange({1: np.zeros(1)}, {})


def test_half_types_are_summed_in_float32() -> None:
    parts = np.array([[256.0]] + [[1.0]] * 8, ml_dtypes.bfloat16)
    assert reduced(parts, "sum")[0] == 264  # in bfloat16 256 + 1 is 256
    assert reduced(parts, "sum").dtype == ml_dtypes.bfloat16
