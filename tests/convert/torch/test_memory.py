"""Memory shared with PyTorch's tensors."""

from typing import Any

import pytest

pytestmark = pytest.mark.torch


def test_specs_and_devices() -> None:
    import torch

    from lamina.convert.torch.memory import device_of_tensors, spec_of
    from lamina.runtime import Device
    from lamina.spec import Spec, bfloat16

    assert spec_of(torch.zeros(2, 3, dtype=torch.bfloat16)) == Spec((2, 3), bfloat16)
    assert device_of_tensors([torch.zeros(2), torch.zeros(())]) == Device("cpu")
    assert device_of_tensors([]) == Device("cpu")
    with pytest.raises(ValueError, match="several devices: cpu, meta"):
        device_of_tensors([torch.zeros(2), torch.zeros(2, device="meta")])


def test_what_is_lent_is_row_major_and_aligned() -> None:
    import torch

    from lamina.convert.torch.memory import is_lendable, lent, shown
    from lamina.runtime import Device
    from lamina.spec import Spec, float32
    from lamina.tensors import Tensor

    x = torch.arange(6.0).reshape(2, 3)
    assert is_lendable(x)
    assert not is_lendable(x.t())
    assert not is_lendable(x.flatten()[1:])
    assert not is_lendable(torch._neg_view(x))  # PyTorch negates when it is read
    pairs = torch.complex(x, x)
    assert is_lendable(pairs)
    assert not is_lendable(pairs.conj())
    y: Any = shown(Tensor(lent(x, Device("cpu")), Spec((2, 3), float32)))
    x[0, 0] = 7
    assert y.data_ptr() == x.data_ptr()
    assert y[0, 0] == 7


def test_tensors_that_share_an_element() -> None:
    import torch

    from lamina.convert.torch.memory import overlaps

    x = torch.zeros(4, 4)
    assert overlaps([x, x[1]], [0])
    assert overlaps([torch.zeros(2), x[:3], x[2:].t()], [2])
    assert not overlaps([torch.zeros(2), x[:3], x[2:].t()], [0])
    assert not overlaps([x[:2], x[2:]], [0, 1])
    assert not overlaps([x, x[2:2]], [0])


def test_a_module_that_keeps_a_computed_tensor_is_copied() -> None:
    import warnings

    import torch

    from lamina.convert.torch import check, from_torch, to_torch
    from lamina.convert.torch.memory import copied

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        net = torch.nn.utils.weight_norm(torch.nn.Linear(3, 2))
    x = torch.randn(4, 3)
    twin = copied(net)
    torch.testing.assert_close(twin(x), net(x))
    assert twin.weight_g is not net.weight_g
    converted = from_torch(net, x)
    assert check(net, converted, x).gradient < 1e-5
    torch.testing.assert_close(to_torch(converted)(x), net(x))
