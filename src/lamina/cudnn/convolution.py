"""Convolution: the descriptor, and its three directions as operations of a graph.

All three directions take the same `Convolution`: stride, padding and dilation are given once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute, data_type, integers
from lamina.cudnn.tensor import Tensor

_KIND = c.cudnnBackendDescriptorType_t
_DOUBLE = c.cudnnDataType_t.CUDNN_DATA_DOUBLE


class Convolution(Descriptor):
    """Window and arithmetic of a convolution (CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR).

    Args:
        stride, dilation: one per spatial axis.
        pre, post: padding before and after each spatial axis.
        compute: type of the sums.
        flip: true convolution (the filter is flipped) instead of cross-correlation.
    """

    kind = _KIND.CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "spatial": attribute("CONVOLUTION_SPATIAL_DIMS"),
        "compute": attribute("CONVOLUTION_COMP_TYPE", "DATA_TYPE", enum=c.cudnnDataType_t),
        "mode": attribute("CONVOLUTION_CONV_MODE", "CONVOLUTION_MODE", enum=c.cudnnConvolutionMode_t),
        "pre": attribute("CONVOLUTION_PRE_PADDINGS", many=True),
        "post": attribute("CONVOLUTION_POST_PADDINGS", many=True),
        "dilation": attribute("CONVOLUTION_DILATIONS", many=True),
        "stride": attribute("CONVOLUTION_FILTER_STRIDES", many=True),
    }

    def __init__(
        self,
        *,
        stride: Sequence[int],
        pre: Sequence[int],
        post: Sequence[int] | None = None,
        dilation: Sequence[int] | None = None,
        compute: str | int = "float32",
        flip: bool = False,
    ) -> None:
        modes = c.cudnnConvolutionMode_t
        steps = integers("Convolution: stride", stride)
        window = {
            "pre": pre,
            "post": pre if post is None else post,
            "dilation": dilation or (1,) * len(steps),
        }
        sizes = {name: integers(f"Convolution: {name}", given) for name, given in window.items()}
        for name, given in sizes.items():
            if len(given) != len(steps):
                raise ValueError(f"Convolution: {name} {given} and stride {steps} differ in length")
        super().__init__(
            spatial=len(steps),
            compute=data_type(compute),
            mode=modes.CUDNN_CONVOLUTION if flip else modes.CUDNN_CROSS_CORRELATION,
            **sizes,
            stride=steps,
        )

    @property
    def compute(self) -> c.cudnnDataType_t:
        """The type of the sums."""
        found: c.cudnnDataType_t = self._values["compute"]
        return found


class _Operation(Descriptor):
    """One direction; alpha and beta are doubles where the compute type is double, floats otherwise."""

    def __init__(
        self, convolution: Convolution, tensors: dict[str, Tensor], alpha: float, beta: float
    ) -> None:
        super().__init__(convolution=convolution, **tensors, alpha=float(alpha), beta=float(beta))

    def _set(self, name: str, value: Any, type: int | None = None) -> None:
        if name in ("alpha", "beta"):
            double = self._values["convolution"].compute == _DOUBLE
            type = c.cudnnBackendAttributeType_t["CUDNN_TYPE_" + ("DOUBLE" if double else "FLOAT")]
        super()._set(name, value, type)


def _attributes(direction: str, x: str, w: str, y: str) -> dict[str, Attribute]:
    prefix = f"OPERATION_CONVOLUTION_{direction}_"
    table = {"convolution": attribute(prefix + "CONV_DESC", "BACKEND_DESCRIPTOR", takes="CONVOLUTION")}
    for name in (x, w, y):
        table[name] = attribute(prefix + name.upper(), "BACKEND_DESCRIPTOR")
    for name in ("alpha", "beta"):
        table[name] = attribute(prefix + name.upper(), "FLOAT")
    return table


class ConvolutionForward(_Operation):
    """y = alpha * conv(x, w) + beta * y."""

    kind = _KIND.CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = _attributes("FORWARD", "x", "w", "y")

    def __init__(
        self,
        convolution: Convolution,
        x: Tensor,
        w: Tensor,
        y: Tensor,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        super().__init__(convolution, {"x": x, "w": w, "y": y}, alpha, beta)


class ConvolutionBackwardData(_Operation):
    """dx = alpha * (gradient of conv by x) + beta * dx."""

    kind = _KIND.CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = _attributes("BWD_DATA", "dx", "w", "dy")

    def __init__(
        self,
        convolution: Convolution,
        dy: Tensor,
        w: Tensor,
        dx: Tensor,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        super().__init__(convolution, {"dx": dx, "w": w, "dy": dy}, alpha, beta)


class ConvolutionBackwardFilter(_Operation):
    """dw = alpha * (gradient of conv by w) + beta * dw."""

    kind = _KIND.CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = _attributes("BWD_FILTER", "x", "dw", "dy")

    def __init__(
        self,
        convolution: Convolution,
        x: Tensor,
        dy: Tensor,
        dw: Tensor,
        *,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        super().__init__(convolution, {"x": x, "dw": dw, "dy": dy}, alpha, beta)
