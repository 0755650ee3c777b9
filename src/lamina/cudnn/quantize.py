"""Block scaling: narrow floats that share one scale per block of elements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute, data_type, tensors
from lamina.cudnn.tensor import Tensor

_KIND = c.cudnnBackendDescriptorType_t
_QUANTIZE, _DEQUANTIZE = "OPERATION_BLOCK_SCALE_QUANTIZE_", "OPERATION_BLOCK_SCALE_DEQUANTIZE_"


class BlockScaleQuantize(Descriptor):
    """y and one scale per block from x (cuDNN 9.7).

    Args:
        x: float tensor. y: narrow floats of the same sizes ("float8_e4m3fn", "float4_e2m1fn").
        scale: as x with the blocked axis divided by `block` ("float8_e8m0fnu" or "float8_e4m3fn").
        block: elements that share a scale, 16 or 32.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_BLOCK_SCALE_QUANTIZE_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        **tensors(_QUANTIZE, x="XDESC", y="YDESC", scale="SCALE_DESC"),
        "compute": attribute(_QUANTIZE + "MATH_PREC", "DATA_TYPE", enum=c.cudnnDataType_t),
        "block": attribute(_QUANTIZE + "BLOCK_SIZE", "INT32"),
    }

    def __init__(
        self, x: Tensor, y: Tensor, scale: Tensor, *, block: int, compute: str | int = "float32"
    ) -> None:
        super().__init__(x=x, y=y, scale=scale, compute=data_type(compute), block=block)


class BlockScaleDequantize(Descriptor):
    """y = x times the scale of its block (cuDNN 9.7).

    Args:
        block: sizes of a block, one or several numbers.
        negative: the scale's sign bit is used (cuDNN 9.13).
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_BLOCK_SCALE_DEQUANTIZE_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        **tensors(_DEQUANTIZE, x="XDESC", scale="SCALE_DESC", y="YDESC"),
        "compute": attribute(_DEQUANTIZE + "MATH_PREC", "DATA_TYPE", enum=c.cudnnDataType_t),
        "block": attribute(_DEQUANTIZE + "BLOCK_SIZE", "INT32", many=True),
        "negative": attribute(_DEQUANTIZE + "NEG_SCALE", "BOOLEAN"),
    }

    def __init__(
        self,
        x: Tensor,
        scale: Tensor,
        y: Tensor,
        *,
        block: int | Sequence[int],
        compute: str | int = "float32",
        negative: bool | None = None,
    ) -> None:
        sizes = (block,) if isinstance(block, int) else tuple(block)
        super().__init__(x=x, scale=scale, y=y, compute=data_type(compute), block=sizes, negative=negative)
