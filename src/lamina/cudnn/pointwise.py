"""Pointwise operations: arithmetic, functions, activations and their gradients, comparisons, logic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute, data_type, named, require
from lamina.cudnn.tensor import Tensor

_KIND = c.cudnnBackendDescriptorType_t


class Pointwise(Descriptor):
    """Which function, in which arithmetic (CUDNN_BACKEND_POINTWISE_DESCRIPTOR).

    Args:
        mode: "add", "relu_fwd", "CUDNN_POINTWISE_GELU_BWD", … or a cudnnPointwiseMode_t.
        compute: type of the arithmetic.
        relu_lower, relu_upper, relu_slope: clips of ReLU and the slope below the lower one.
        elu_alpha, softplus_beta, swish_beta: parameters of these activations.
        axis: for "gen_index".
    """

    kind = _KIND.CUDNN_BACKEND_POINTWISE_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "mode": attribute("POINTWISE_MODE", "POINTWISE_MODE", enum=c.cudnnPointwiseMode_t),
        "compute": attribute("POINTWISE_MATH_PREC", "DATA_TYPE", enum=c.cudnnDataType_t),
        "relu_lower": attribute("POINTWISE_RELU_LOWER_CLIP", "DOUBLE"),
        "relu_upper": attribute("POINTWISE_RELU_UPPER_CLIP", "DOUBLE"),
        "relu_slope": attribute("POINTWISE_RELU_LOWER_CLIP_SLOPE", "DOUBLE"),
        "elu_alpha": attribute("POINTWISE_ELU_ALPHA", "DOUBLE"),
        "softplus_beta": attribute("POINTWISE_SOFTPLUS_BETA", "DOUBLE"),
        "swish_beta": attribute("POINTWISE_SWISH_BETA", "DOUBLE"),
        "axis": attribute("POINTWISE_AXIS"),
    }

    def __init__(
        self, mode: str | int, *, compute: str | int = "float32", **parameters: float | int | None
    ) -> None:
        self.mode = named(c.cudnnPointwiseMode_t, "CUDNN_POINTWISE_", mode, "pointwise mode")
        require(self.mode.name)
        super().__init__(mode=self.mode, compute=data_type(compute), **parameters)

    @property
    def is_backward(self) -> bool:
        """Whether it is the gradient of an activation: dx from dy and x."""
        return bool(self.mode.name.endswith("_BWD"))


class PointwiseOperation(Descriptor):
    """y = f(alpha1 * x, alpha2 * b, t), or for a gradient dx = f'(x) * dy."""

    kind = _KIND.CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "pointwise": attribute("OPERATION_POINTWISE_PW_DESCRIPTOR", "BACKEND_DESCRIPTOR", takes="POINTWISE"),
        "x": attribute("OPERATION_POINTWISE_XDESC", "BACKEND_DESCRIPTOR"),
        "b": attribute("OPERATION_POINTWISE_BDESC", "BACKEND_DESCRIPTOR"),
        "t": attribute("OPERATION_POINTWISE_TDESC", "BACKEND_DESCRIPTOR"),
        "y": attribute("OPERATION_POINTWISE_YDESC", "BACKEND_DESCRIPTOR"),
        "dx": attribute("OPERATION_POINTWISE_DXDESC", "BACKEND_DESCRIPTOR"),
        "dy": attribute("OPERATION_POINTWISE_DYDESC", "BACKEND_DESCRIPTOR"),
        "alpha1": attribute("OPERATION_POINTWISE_ALPHA1", "FLOAT"),
        "alpha2": attribute("OPERATION_POINTWISE_ALPHA2", "FLOAT"),
    }

    def __init__(
        self,
        pointwise: Pointwise,
        *,
        x: Tensor | None = None,
        b: Tensor | None = None,
        t: Tensor | None = None,
        y: Tensor | None = None,
        dx: Tensor | None = None,
        dy: Tensor | None = None,
        alpha1: float | None = None,
        alpha2: float | None = None,
    ) -> None:
        super().__init__(pointwise=pointwise, x=x, b=b, t=t, y=y, dx=dx, dy=dy, alpha1=alpha1, alpha2=alpha2)
