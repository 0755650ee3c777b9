"""Convolutions and pools as PyTorch's functions."""

import numpy as np
import pytest

from lamina.spec import float32

pytestmark = [pytest.mark.torch, pytest.mark.feature("F101")]


def test_values_and_gradients() -> None:
    from lamina.convert.torch.functions import conv
    from lamina.ops.primitives.region_pool import RegionMax
    from tests.helpers.written_functions import all_wrong, ops_of

    assert all_wrong(ops_of(conv), takes=lambda sample: sample.op != RegionMax((2, 2))) == []


def test_regions_that_no_function_cuts_are_refused() -> None:
    import torch

    from lamina.convert.torch import TorchConversionError
    from lamina.ops.primitives.region_pool import RegionMax
    from tests.helpers.written_functions import step_of

    sample = next(s for s in RegionMax.samples() if s.op == RegionMax((2, 2)))
    arrays = sample.draw(np.random.default_rng(0), float32)
    with pytest.raises(TorchConversionError, match=r"to_torch: region_max\(.*windows that cut the axes"):
        step_of(sample.op, arrays).written([torch.from_numpy(a) for a in arrays])
