"""Values for operands that have none."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def test_samples_have_values_and_move_no_generator() -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    from lamina.convert.torch.samples import samples, unknown_sizes

    torch.manual_seed(0)
    before = torch.get_rng_state()
    with FakeTensorMode():
        kinds = torch.float16, torch.int64, torch.bool, torch.complex64
        empty = [torch.empty(2, 3, dtype=kind) for kind in kinds]
        found = samples(empty)
        assert unknown_sizes(empty) == []
    assert [(x.shape, x.dtype) for x in found] == [(x.shape, x.dtype) for x in empty]
    assert 0 <= found[0].min() < found[0].max() <= 1
    assert not found[1].any()
    assert found[2].all()
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("dtype", ["float32", "int64", "bool"])
def test_samples_are_where_the_operands_are(dtype: str) -> None:
    import torch

    from lamina.convert.torch.samples import samples

    (found,) = samples([torch.empty(2, 3, dtype=getattr(torch, dtype), device="meta")])
    assert (found.shape, found.dtype, found.device.type) == ((2, 3), getattr(torch, dtype), "meta")


def test_a_size_that_is_a_symbol_is_refused() -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    from lamina.convert.torch.samples import samples

    fake = FakeTensorMode(shape_env=ShapeEnv()).from_tensor(torch.zeros(3))
    with pytest.raises(TypeError, match="samples have known sizes, got s"):
        samples([fake])
