"""Activation functions."""

from __future__ import annotations

from typing import NamedTuple

from lamina.c import cudnn as c
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call
from lamina.cudnn.legacy.flags import ActivationMode, Name, NanPropagation, flag
from lamina.cudnn.legacy.tensor import TensorDescriptor


class ActivationSettings(NamedTuple):
    """What `Activation.get` returns."""

    mode: ActivationMode
    coef: float
    nan: NanPropagation
    swish_beta: float


class Activation(Descriptor):
    """An activation function (cudnnSetActivationDescriptor).

    Args:
        mode: "sigmoid", "relu", "tanh", "clipped_relu", "elu", "identity" (in fused convolutions only) or
            "swish" (x * sigmoid(swish_beta * x)).
        coef: the ceiling of "clipped_relu" (it must be given), or alpha of "elu" (1 if left out).
        nan: "not_propagate" or "propagate".
        swish_beta: see "swish".
    """

    kind = "ActivationDescriptor"

    def __init__(
        self,
        mode: Name = "relu",
        *,
        coef: float | None = None,
        nan: Name = "not_propagate",
        swish_beta: float = 1.0,
    ) -> None:
        super().__init__()
        which = flag(ActivationMode, mode)
        if coef is None:
            if which == ActivationMode.CUDNN_ACTIVATION_CLIPPED_RELU:
                raise ValueError("mode='clipped_relu' needs coef, its ceiling")
            coef = 1.0 if which == ActivationMode.CUDNN_ACTIVATION_ELU else 0.0
        call(c.cudnnSetActivationDescriptor, self, which, flag(NanPropagation, nan), float(coef))
        call(c.cudnnSetActivationDescriptorSwishBeta, self, float(swish_beta))

    def get(self) -> ActivationSettings:
        """Read from cuDNN (cudnnGetActivationDescriptor, ...SwishBeta)."""
        found = call(c.cudnnGetActivationDescriptor, self)
        swish_beta = call(c.cudnnGetActivationDescriptorSwishBeta, self)
        return ActivationSettings(found.mode, found.coef, found.reluNanOpt, swish_beta)

    def forward(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        x: Memory,
        y_desc: TensorDescriptor,
        y: Memory,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """y = alpha * f(x) + beta * y (cudnnActivationForward); y may be x where the descriptors are equal."""
        call(c.cudnnActivationForward, handle, self, alpha, x_desc, x, beta, y_desc, y)

    def backward(
        self,
        handle: AnyHandle,
        *,
        y_desc: TensorDescriptor,
        y: Memory,
        dy_desc: TensorDescriptor,
        dy: Memory,
        x_desc: TensorDescriptor,
        x: Memory,
        dx_desc: TensorDescriptor,
        dx: Memory,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """dx = alpha * f'(x) * dy + beta * dx (cudnnActivationBackward); y is f(x).

        Exactly at a kink (0 of "relu", 0 and the ceiling of "clipped_relu") the slope is 0 or 1, as the library has
        it: at the ceiling of bfloat16 in NHWC it is 1 (seen on 9.19). Values of 16 bits do fall there.
        """
        given = (y_desc, y, dy_desc, dy, x_desc, x)
        call(c.cudnnActivationBackward, handle, self, alpha, *given, beta, dx_desc, dx)
