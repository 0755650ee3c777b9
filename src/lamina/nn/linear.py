"""Linear layers."""

from __future__ import annotations

from lamina import ops
from lamina.nn import init
from lamina.nn.module import Module, T
from lamina.nn.parameter import Parameter
from lamina.spec import ShapeError
from lamina.tensors import empty


class Linear(Module):
    """y = x · weightᵀ + bias with weight (out_features, in_features) and bias (out_features,)."""

    weight: Parameter
    bias: Parameter | None

    def __init__(self, in_features: int, out_features: int, bias: bool = True) -> None:
        if in_features < 1 or out_features < 1:
            raise ShapeError(f"Linear: sizes must be at least 1, got {in_features} -> {out_features}")
        self.in_features, self.out_features = in_features, out_features
        self.weight = Parameter(empty((out_features, in_features)))
        self.register_parameter("bias", Parameter(empty(out_features)) if bias else None)
        init.initialize(self)

    def forward(self, x: T) -> T:
        """x (…, in_features) -> (…, out_features), all of one float dtype. Raises ShapeError, DTypeError."""
        return ops.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        bias = self._parameters["bias"] is not None
        return f"in_features={self.in_features}, out_features={self.out_features}, bias={bias}"
