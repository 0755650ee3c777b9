"""Tensors without values, which stand for computed ones."""

from __future__ import annotations

import numpy as np
import pytest

import lamina as lm

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def test_shape_dtype_and_memory_are_those_of_what_it_stands_for() -> None:
    from lamina.convert.torch.cells import Cell
    from lamina.convert.torch.stand_ins import StandIn, is_valueless, stand_in

    found = stand_in(Cell(lm.ones((2, 3), dtype=lm.int32)))
    assert is_valueless(found)
    assert not is_valueless(torch.ones(2))
    with torch._C.DisableTorchFunction():
        assert (tuple(found.shape), found.dtype, found.device.type) == ((2, 3), torch.int32, "meta")
    whole = torch.empty(4, 3, device="meta")
    part = stand_in(Cell(lm.ones((2, 3))), whole[1:3])
    assert part.meta.untyped_storage()._cdata == whole.untyped_storage()._cdata
    assert part.meta.storage_offset() == 3
    other = stand_in(Cell(lm.ones((2, 2))), whole[1:3])  # an op may give another shape than PyTorch said
    assert tuple(other.meta.shape) == (2, 2)
    assert isinstance(other, StandIn)


def test_complex_numbers_and_values_of_a_record_are_kept_as_numbers() -> None:
    from lamina.convert.torch.cells import Cell
    from lamina.convert.torch.complexes import ComplexCell
    from lamina.convert.torch.stand_ins import stand_in
    from lamina.graph import Value
    from lamina.spec import Spec, float32

    re, im = (Value(Spec((2,), float32), name=name) for name in ("re", "im"))
    numbers = {re: lm.tensor([1.0, 2.0]), im: lm.tensor([3.0, 4.0])}
    pair, single = stand_in(ComplexCell.made((re, im))), stand_in(Cell(re))
    assert pair.meta.dtype is torch.complex64
    for stand in (pair, single):
        stand.settle(numbers.__getitem__)
    np.testing.assert_array_equal(pair.cell.read().numpy(), [[1, 3], [2, 4]])
    np.testing.assert_array_equal(single.cell.read().numpy(), [1, 2])


def test_none_computes_outside_of_a_run() -> None:
    from lamina.convert.torch.cells import Cell
    from lamina.convert.torch.stand_ins import CodeMode, StandInError, running_code, stand_in

    with pytest.raises(
        StandInError, match=r"sum: a tensor that a converted network's code made.*return it from forward"
    ):
        stand_in(Cell(lm.ones(2))).sum()
    assert running_code() is None
    with CodeMode() as mode:
        assert running_code() is mode
