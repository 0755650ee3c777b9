"""Linear layers."""

from __future__ import annotations

import math

from lamina import ops
from lamina.nn import init
from lamina.nn.module import Module, T
from lamina.nn.parameter import Parameter
from lamina.ops.arguments import DTypeLike
from lamina.runtime import Device
from lamina.spec import ShapeError
from lamina.tensors import empty


class Linear(Module):
    """y = x · weightᵀ + bias with weight (out_features, in_features) and bias (out_features,)."""

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        if in_features < 1 or out_features < 1:
            raise ShapeError(f"Linear: sizes must be at least 1, got {in_features} -> {out_features}")
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty((out_features, in_features)))
        self.register_parameter("bias", Parameter(empty(out_features)) if bias else None)
        self.reset_parameters()
        self.to(device, dtype)

    def reset_parameters(self) -> None:
        """Reinitialize, by the scheme in force (`init.scheme`)."""
        init.initialize(self)

    def forward(self, input: T) -> T:
        """input (…, in_features) -> (…, out_features), all of one float dtype. Raises ShapeError, DTypeError."""
        return ops.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        bias = self._parameters["bias"] is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}"


class Bilinear(Module):
    """y[o] = Σ input1[i] · weight[o, i, j] · input2[j] + bias[o], over i and j."""

    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in1_features: int,
        in2_features: int,
        out_features: int,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        sizes = (out_features, in1_features, in2_features)
        if min(sizes) < 1:
            raise ShapeError(
                f"Bilinear: sizes must be at least 1, got {in1_features}, {in2_features} -> {out_features}"
            )
        self.in1_features, self.in2_features, self.out_features = in1_features, in2_features, out_features
        self.weight = Parameter(empty(sizes))
        self.register_parameter("bias", Parameter(empty(out_features)) if bias else None)
        self.reset_parameters()
        self.to(device, dtype)

    def reset_parameters(self) -> None:
        """Reinitialize: uniform within 1 / √in1_features."""
        bound = 1 / math.sqrt(self.in1_features)
        for held in self.parameters():
            init.uniform_(held, -bound, bound)

    def forward(self, input1: T, input2: T) -> T:
        """input1 (…, in1_features), input2 (…, in2_features) -> (…, out_features). Raises ShapeError."""
        return ops.bilinear(input1, input2, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        sizes = f"in1_features={self.in1_features}, in2_features={self.in2_features}"
        return f"{sizes}, out_features={self.out_features}, bias={self._parameters['bias'] is not None}"
