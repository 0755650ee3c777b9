"""Pooling and interpolation, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import ClassVar

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute, data_type, named
from lamina.cudnn.tensor import Tensor

_KIND = c.cudnnBackendDescriptorType_t


_PADDING = {
    c.cudnnResampleMode_t.CUDNN_RESAMPLE_MAXPOOL: "neg_inf_pad",
    c.cudnnResampleMode_t.CUDNN_RESAMPLE_BILINEAR: "edge_val_pad",
}


class Resample(Descriptor):
    """Mode and window of pooling or interpolation (CUDNN_BACKEND_RESAMPLE_DESCRIPTOR).

    Of interpolation cuDNN 9.19 runs one case: "bilinear" to twice the size, forward, float32, channels last, with
    window 2, stride 1/2, padding 1/2 before and 1 after. Element i of the result is the input at i * stride - pre +
    (window - 1) / 2, which is i / 2, cut off at the last element, whatever `padding` says: along an axis of 4 it is
    x0, (x0 + x1) / 2, x1, (x1 + x2) / 2, x2, (x2 + x3) / 2, x3, x3 (cuDNN 9.19 on a GPU). PyTorch and ONNX sample a
    quarter of an element before that. "nearest", other sizes, other paddings around, other layouts and the half types
    are refused.

    Args:
        mode: "maxpool", "avgpool_include_padding", "avgpool_exclude_padding", "bilinear", "nearest".
        window, stride: one per spatial axis, whole numbers or `fractions.Fraction`.
        pre, post: padding before and after each spatial axis, likewise.
        padding: "neg_inf_pad" (max), "zero_pad" (average), "edge_val_pad" (interpolation).
    """

    kind = _KIND.CUDNN_BACKEND_RESAMPLE_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "mode": attribute("RESAMPLE_MODE", "RESAMPLE_MODE", enum=c.cudnnResampleMode_t),
        "compute": attribute("RESAMPLE_COMP_TYPE", "DATA_TYPE", enum=c.cudnnDataType_t),
        "padding": attribute("RESAMPLE_PADDING_MODE", "PADDING_MODE", enum=c.cudnnPaddingMode_t),
        "spatial": attribute("RESAMPLE_SPATIAL_DIMS"),
        "window": attribute("RESAMPLE_WINDOW_DIMS", "FRACTION", many=True),
        "pre": attribute("RESAMPLE_PRE_PADDINGS", "FRACTION", many=True),
        "post": attribute("RESAMPLE_POST_PADDINGS", "FRACTION", many=True),
        "stride": attribute("RESAMPLE_STRIDES", "FRACTION", many=True),
    }

    def __init__(
        self,
        mode: str | int,
        *,
        window: Sequence[int | Fraction],
        stride: Sequence[int | Fraction],
        pre: Sequence[int | Fraction],
        post: Sequence[int | Fraction] | None = None,
        padding: str | int | None = None,
        compute: str | int = "float32",
    ) -> None:
        kind = named(c.cudnnResampleMode_t, "CUDNN_RESAMPLE_", mode, "resample mode")
        if padding is None:
            padding = _PADDING.get(kind, "zero_pad")
        super().__init__(
            mode=kind,
            compute=data_type(compute),
            padding=named(c.cudnnPaddingMode_t, "CUDNN_", padding, "padding mode"),
            spatial=len(window),
            window=tuple(window),
            pre=tuple(pre),
            post=tuple(pre if post is None else post),
            stride=tuple(stride),
        )


class ResampleForward(Descriptor):
    """y, and for max pooling the index of each maximum, from x."""

    kind = _KIND.CUDNN_BACKEND_OPERATION_RESAMPLE_FWD_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "resample": attribute("OPERATION_RESAMPLE_FWD_DESC", "BACKEND_DESCRIPTOR", takes="RESAMPLE"),
        "alpha": attribute("OPERATION_RESAMPLE_FWD_ALPHA", "DOUBLE"),
        "beta": attribute("OPERATION_RESAMPLE_FWD_BETA", "DOUBLE"),
        "x": attribute("OPERATION_RESAMPLE_FWD_XDESC", "BACKEND_DESCRIPTOR"),
        "y": attribute("OPERATION_RESAMPLE_FWD_YDESC", "BACKEND_DESCRIPTOR"),
        "index": attribute("OPERATION_RESAMPLE_FWD_IDXDESC", "BACKEND_DESCRIPTOR"),
    }

    def __init__(
        self,
        resample: Resample,
        x: Tensor,
        y: Tensor,
        *,
        index: Tensor | None = None,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> None:
        super().__init__(resample=resample, x=x, y=y, index=index, alpha=alpha, beta=beta)


class ResampleBackward(Descriptor):
    """dx from dy and, for max pooling, the index of the forward pass (or x and y)."""

    kind = _KIND.CUDNN_BACKEND_OPERATION_RESAMPLE_BWD_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "resample": attribute("OPERATION_RESAMPLE_BWD_DESC", "BACKEND_DESCRIPTOR", takes="RESAMPLE"),
        "alpha": attribute("OPERATION_RESAMPLE_BWD_ALPHA", "DOUBLE"),
        "beta": attribute("OPERATION_RESAMPLE_BWD_BETA", "DOUBLE"),
        "dx": attribute("OPERATION_RESAMPLE_BWD_DXDESC", "BACKEND_DESCRIPTOR"),
        "dy": attribute("OPERATION_RESAMPLE_BWD_DYDESC", "BACKEND_DESCRIPTOR"),
        "index": attribute("OPERATION_RESAMPLE_BWD_IDXDESC", "BACKEND_DESCRIPTOR"),
        "x": attribute("OPERATION_RESAMPLE_BWD_XDESC", "BACKEND_DESCRIPTOR"),
        "y": attribute("OPERATION_RESAMPLE_BWD_YDESC", "BACKEND_DESCRIPTOR"),
    }

    def __init__(
        self,
        resample: Resample,
        dy: Tensor,
        dx: Tensor,
        *,
        index: Tensor | None = None,
        x: Tensor | None = None,
        y: Tensor | None = None,
        alpha: float | None = None,
        beta: float | None = None,
    ) -> None:
        super().__init__(resample=resample, dx=dx, dy=dy, index=index, x=x, y=y, alpha=alpha, beta=beta)
