"""Activations: elementwise layers. Names and arguments as in torch.nn.

`inplace` writes the result over the input, as torch's does; it saves nothing: whether results share memory with
inputs that nothing reads any more is decided when a graph's memory is planned.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Literal

from lamina import ops
from lamina.nn.module import Module, T
from lamina.nn.parameter import Parameter
from lamina.nn.random import Generator, default_generator
from lamina.ops.arguments import DTypeLike
from lamina.runtime import Device
from lamina.tensors import full


def _inplace(layer: Any) -> str:
    return ", inplace=True" if layer.inplace else ""


class _Plain(Module):
    """An activation without parameters."""

    function: ClassVar[Callable[..., Any]]
    inplace = False

    def __init__(self, inplace: bool = False) -> None:
        self.inplace = inplace

    def forward(self, x: T) -> T:
        """The activation of every element; shape and dtype stay."""
        y: T = type(self).function(x, inplace=True) if self.inplace else type(self).function(x)
        return y

    def extra_repr(self) -> str:
        """The argument, if it is set."""
        return "inplace=True" if self.inplace else ""


class _Bare(_Plain):
    """An activation that takes no arguments at all."""

    def __init__(self) -> None:
        pass


class ReLU(_Plain):
    """max(x, 0)."""

    function = staticmethod(ops.relu)


class ReLU6(_Plain):
    """min(max(x, 0), 6)."""

    function = staticmethod(ops.relu6)


class Sigmoid(_Bare):
    """1 / (1 + exp(-x))."""

    function = staticmethod(ops.sigmoid)


class Tanh(_Bare):
    """tanh(x)."""

    function = staticmethod(ops.tanh)


class SiLU(_Plain):
    """x · sigmoid(x) (also called swish)."""

    function = staticmethod(ops.silu)


class Hardsigmoid(_Plain):
    """clip(x / 6 + 1/2, 0, 1)."""

    function = staticmethod(ops.hardsigmoid)


class Hardswish(_Plain):
    """x · hardsigmoid(x)."""

    function = staticmethod(ops.hardswish)


class Mish(_Plain):
    """x · tanh(softplus(x)) (Misra 2020)."""

    function = staticmethod(ops.mish)


class SELU(_Plain):
    """1.0507 · elu(x, 1.6733), which keeps mean 0 and variance 1 (Klambauer et al. 2017)."""

    function = staticmethod(ops.selu)


class Softsign(_Bare):
    """x / (1 + |x|)."""

    function = staticmethod(ops.softsign)


class Tanhshrink(_Bare):
    """x - tanh(x)."""

    function = staticmethod(ops.tanhshrink)


class LogSigmoid(_Bare):
    """log(1 / (1 + exp(-x))), without overflow."""

    function = staticmethod(ops.logsigmoid)


class CELU(Module):
    """x where x > 0, alpha · (exp(x / alpha) - 1) elsewhere (Barron 2017)."""

    inplace = False

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        self.alpha, self.inplace = alpha, inplace

    def forward(self, x: T) -> T:
        """The activation of every element; shape and dtype stay."""
        return ops.celu(x, self.alpha, self.inplace)

    def extra_repr(self) -> str:
        """The argument."""
        return f"alpha={self.alpha}" + _inplace(self)


class _Shrink(Module):
    """Elements of small magnitude become 0."""

    function: ClassVar[Callable[..., Any]]

    def __init__(self, lambd: float = 0.5) -> None:
        self.lambd = lambd

    def forward(self, x: T) -> T:
        """The activation of every element; shape and dtype stay."""
        y: T = type(self).function(x, self.lambd)
        return y

    def extra_repr(self) -> str:
        """The argument, as torch prints it."""
        return str(self.lambd)


class Softshrink(_Shrink):
    """x - lambd where x > lambd, x + lambd where x < -lambd, 0 between. lambd: at least 0."""

    function = staticmethod(ops.softshrink)


class Hardshrink(_Shrink):
    """x where |x| > lambd, 0 elsewhere."""

    function = staticmethod(ops.hardshrink)


class RReLU(Module):
    """x where x > 0, slope · x elsewhere: slopes uniform in [lower, upper) in training, their mean in inference.

    (Xu et al. 2015.) The slopes depend only on the generator's seed and counter, like Dropout's mask. Raises
    ValueError unless lower <= upper.
    """

    inplace = False

    def __init__(
        self,
        lower: float = 1 / 8,
        upper: float = 1 / 3,
        inplace: bool = False,
        *,
        generator: Generator | None = None,
    ) -> None:
        if not lower <= upper:
            raise ValueError(f"RReLU: lower must be at most upper, got {lower} and {upper}")
        self.lower, self.upper, self.inplace = lower, upper, inplace
        self.generator = generator or default_generator

    def forward(self, x: T) -> T:
        """The activation of every element; shape and dtype stay."""
        y: T = ops.rrelu(x, self.lower, self.upper, self.training, self.inplace, generator=self.generator)
        return y

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        return f"lower={self.lower}, upper={self.upper}" + _inplace(self)


class ClippedReLU(Module):
    """min(max(x, 0), ceiling): CUDNN_ACTIVATION_CLIPPED_RELU."""

    def __init__(self, ceiling: float) -> None:
        self.ceiling = ceiling

    def forward(self, x: T) -> T:
        """The activation of every element; shape and dtype stay."""
        return ops.clipped_relu(x, self.ceiling)

    def extra_repr(self) -> str:
        """The argument."""
        return f"ceiling={self.ceiling}"


class LeakyReLU(Module):
    """x where x > 0, negative_slope · x elsewhere."""

    inplace = False

    def __init__(self, negative_slope: float = 0.01, inplace: bool = False) -> None:
        self.negative_slope, self.inplace = negative_slope, inplace

    def forward(self, x: T) -> T:
        """The activation of every element; shape and dtype stay."""
        return ops.leaky_relu(x, self.negative_slope, self.inplace)

    def extra_repr(self) -> str:
        """The argument."""
        return f"negative_slope={self.negative_slope}" + _inplace(self)


class ELU(Module):
    """x where x > 0, alpha · (exp(x) - 1) elsewhere."""

    inplace = False

    def __init__(self, alpha: float = 1.0, inplace: bool = False) -> None:
        self.alpha, self.inplace = alpha, inplace

    def forward(self, x: T) -> T:
        """The activation of every element; shape and dtype stay."""
        return ops.elu(x, self.alpha, self.inplace)

    def extra_repr(self) -> str:
        """The argument."""
        return f"alpha={self.alpha}" + _inplace(self)


class GELU(Module):
    """x · Φ(x); approximate="tanh" uses the tanh approximation (Hendrycks & Gimpel 2016)."""

    def __init__(self, approximate: Literal["none", "tanh"] = "none") -> None:
        self.approximate = approximate

    def forward(self, x: T) -> T:
        """The activation of every element; shape and dtype stay."""
        return ops.gelu(x, self.approximate)

    def extra_repr(self) -> str:
        """The argument."""
        return f"approximate={self.approximate!r}"


class Softplus(Module):
    """log(1 + exp(beta · x)) / beta; x itself where beta · x is above threshold."""

    def __init__(self, beta: float = 1.0, threshold: float = 20.0) -> None:
        self.beta, self.threshold = beta, threshold

    def forward(self, x: T) -> T:
        """The activation of every element; shape and dtype stay."""
        return ops.softplus(x, self.beta, self.threshold)

    def extra_repr(self) -> str:
        """The argument."""
        return f"beta={self.beta}, threshold={self.threshold}"


class Threshold(Module):
    """x where x > threshold, value elsewhere."""

    inplace = False

    def __init__(self, threshold: float, value: float, inplace: bool = False) -> None:
        self.threshold, self.value, self.inplace = threshold, value, inplace

    def forward(self, x: T) -> T:
        """The activation of every element; shape and dtype stay."""
        return ops.threshold(x, self.threshold, self.value, self.inplace)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"threshold={self.threshold}, value={self.value}" + _inplace(self)


class Hardtanh(Module):
    """clip(x, min_val, max_val)."""

    inplace = False

    def __init__(self, min_val: float = -1.0, max_val: float = 1.0, inplace: bool = False) -> None:
        self.min_val, self.max_val, self.inplace = min_val, max_val, inplace

    def forward(self, x: T) -> T:
        """The activation of every element; shape and dtype stay."""
        return ops.hardtanh(x, self.min_val, self.max_val, self.inplace)

    def extra_repr(self) -> str:
        """The arguments."""
        return f"min_val={self.min_val}, max_val={self.max_val}" + _inplace(self)


class PReLU(Module):
    """x where x > 0, weight · x elsewhere, with one learned slope or one per channel (He et al. 2015)."""

    def __init__(
        self,
        num_parameters: int = 1,
        init: float = 0.25,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        self.num_parameters = num_parameters
        self.weight = Parameter(full(num_parameters, init))
        self.to(device, dtype)

    def forward(self, x: T) -> T:
        """The activation of every element; channels are axis 1."""
        return ops.prelu(x, self.weight)

    def extra_repr(self) -> str:
        """The argument."""
        return f"num_parameters={self.num_parameters}"


class GLU(Module):
    """a · sigmoid(b) for the two halves a, b of an axis (Dauphin et al. 2017)."""

    def __init__(self, dim: int = -1) -> None:
        self.dim = dim

    def forward(self, x: T) -> T:
        """x with half the size along the axis. Raises ShapeError if that is odd."""
        return ops.glu(x, self.dim)

    def extra_repr(self) -> str:
        """The argument, as torch prints it."""
        return f"dim={self.dim}"
