"""Losses, 8-bit numbers and random numbers as PyTorch's functions."""

from __future__ import annotations

import numpy as np
import pytest

from lamina.ops.core import Sample
from lamina.ops.primitives.ctc import CtcLoss
from lamina.ops.primitives.dropout import Dropout, DropoutMask
from lamina.ops.primitives.random import RandomNormal, RandomUniform
from lamina.spec import float32, float64

pytestmark = [pytest.mark.torch, pytest.mark.feature("F101")]

DRAWN = (Dropout, DropoutMask, RandomNormal, RandomUniform)


def taken(sample: Sample) -> bool:
    """But for what ctc keeps, and no sequences at all, which PyTorch refuses."""
    return not isinstance(sample.op, CtcLoss) or (not sample.op.keep and 0 not in sample.args[0].shape)


def test_values_and_gradients() -> None:
    from lamina.convert.torch.functions import loss
    from tests.helpers.written_functions import all_wrong, ops_of

    assert all_wrong([op for op in ops_of(loss) if op not in DRAWN], takes=taken) == []


def test_what_ctc_keeps_is_refused() -> None:
    import torch

    from lamina.convert.torch import TorchConversionError
    from tests.helpers.written_functions import step_of

    op = CtcLoss(0, False, False, True)
    arrays = next(s for s in CtcLoss.samples() if s.op == op).draw(np.random.default_rng(0), float32)
    with pytest.raises(
        TorchConversionError, match=r"to_torch: ctc_loss\(.*does not give the forward variables"
    ):
        step_of(op, arrays).written([torch.from_numpy(a) for a in arrays])


def test_dropout_drops_a_share_and_scales_the_rest() -> None:
    import torch

    from tests.helpers.written_functions import step_of

    torch.manual_seed(0)
    x = np.ones((100, 100), np.float32)
    state = np.zeros(2, np.int64)
    given = [torch.from_numpy(x), torch.from_numpy(state)]
    y, mask, after = step_of(Dropout(0.25), [x, state]).written(given)
    assert abs(float(mask.double().mean()) - 0.75) < 0.02
    assert torch.equal(y, torch.where(mask, 1 / 0.75, 0.0).float())
    assert torch.equal(after, given[1])
    kept, _ = step_of(DropoutMask((100, 100), float64, 0.25), [state]).written(given[1:])
    assert kept.dtype == torch.float64
    assert set(kept.unique().tolist()) == {0.0, 1.0}
    assert abs(float(kept.mean()) - 0.75) < 0.02


def test_numbers_are_drawn_of_the_shape_and_from_the_distribution() -> None:
    import torch

    from tests.helpers.written_functions import step_of

    torch.manual_seed(0)
    state = np.zeros(2, np.int64)
    given = [torch.from_numpy(state)]
    uniform, _ = step_of(RandomUniform((5000, 2), float32, -1.0, 3.0), [state]).written(given)
    normal, _ = step_of(RandomNormal((5000, 2), float64, 2.0, 0.5), [state]).written(given)
    assert (tuple(uniform.shape), uniform.dtype) == ((5000, 2), torch.float32)
    assert float(uniform.min()) >= -1
    assert float(uniform.max()) < 3
    assert abs(float(uniform.mean()) - 1) < 0.1
    assert normal.dtype == torch.float64
    assert abs(float(normal.mean()) - 2) < 0.05
    assert abs(float(normal.std()) - 0.5) < 0.05
