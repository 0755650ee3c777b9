"""Windows: automatic padding, positions that are rounded up, attributes of another rank."""

import numpy as np
import pytest

from lamina.convert.onnx import OnnxError
from lamina.convert.onnx.window import OnnxWindow, automatic, window
from tests.convert.onnx.test_node import node


@pytest.mark.parametrize("size", range(1, 12))
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("dilation", [1, 2])
@pytest.mark.parametrize("mode", ["SAME_UPPER", "SAME_LOWER"])
def test_same_padding_gives_size_over_stride(
    size: int, stride: int, kernel: int, dilation: int, mode: str
) -> None:
    plain = OnnxWindow((kernel,), (stride,), (dilation,), (0,), (0,))
    found = automatic(node(auto_pad=mode), plain, (size,))
    room = size + found.lo[0] + found.hi[0] - plain.span[0]
    if plain.span[0] >= stride or found.lo != (0,) or found.hi != (0,):
        assert room // stride + 1 == -(-size // stride)
    more = found.hi[0] - found.lo[0]
    assert more in ((0, 1) if mode == "SAME_UPPER" else (0, -1))


@pytest.mark.torch
@pytest.mark.parametrize("size", range(3, 12))
@pytest.mark.parametrize(("kernel", "stride", "pad"), [(2, 2, 0), (3, 2, 1), (3, 3, 0), (2, 3, 1), (3, 1, 1)])
def test_rounding_up_gives_as_many_positions_as_torch(size: int, kernel: int, stride: int, pad: int) -> None:
    import torch

    found = OnnxWindow((kernel,), (stride,), (1,), (pad,), (pad,)).rounded_up((size,))
    positions = (size + found.lo[0] + found.hi[0] - kernel) // stride + 1
    x = torch.from_numpy(np.zeros((1, 1, size), np.float32))
    assert positions == torch.nn.functional.max_pool1d(x, kernel, stride, pad, ceil_mode=True).shape[2]


def test_attributes_of_another_rank_and_unknown_modes_are_refused() -> None:
    with pytest.raises(OnnxError, match=r"the window's attributes must each name 2 spatial axes"):
        window(node(strides=[1]), (3, 3), (5, 5))
    with pytest.raises(
        OnnxError, match=r"auto_pad 'SAME' is none of NOTSET, VALID, SAME_UPPER and SAME_LOWER"
    ):
        window(node(auto_pad="SAME"), (3, 3), (5, 5))
