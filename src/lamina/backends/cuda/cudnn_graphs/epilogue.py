"""Epilogues of convolutions and products, as pointwise nodes of the same cuDNN graph."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from lamina.backends import NoKernel
from lamina.backends.cuda.launch.program import Place, source
from lamina.cudnn import Graph, Tensor
from lamina.ops.core import Op
from lamina.ops.primitives import pointwise
from lamina.spec import Layout, Shape, Spec, contiguous

#: (sizes, strides) of an op's tensor -> those of the graph's tensor.
Axes = Callable[[Shape, Shape], tuple[Shape, Shape]]

_BINARY: dict[type[Op], str] = {
    pointwise.Add: "add",
    pointwise.Sub: "sub",
    pointwise.Mul: "mul",
    pointwise.Div: "div",
    pointwise.Minimum: "min",
    pointwise.Maximum: "max",
}
_UNARY: dict[type[Op], str] = {
    pointwise.Relu: "relu_fwd",
    pointwise.Sigmoid: "sigmoid_fwd",
    pointwise.Tanh: "tanh_fwd",
    pointwise.Softplus: "softplus_fwd",
    pointwise.Gelu: "gelu_fwd",
    pointwise.GeluTanh: "gelu_approx_tanh_fwd",
    pointwise.Silu: "swish_fwd",
    pointwise.Neg: "neg",
    pointwise.Abs: "abs",
    pointwise.Identity: "identity",
}
#: Activations whose parameter is an attribute of the node: mode, attribute, and the op's field.
_WITH: dict[type[Op], tuple[str, str, str]] = {
    pointwise.ClippedRelu: ("relu_fwd", "relu_upper", "hi"),
    pointwise.LeakyRelu: ("relu_fwd", "relu_slope", "slope"),
    pointwise.Elu: ("elu_fwd", "elu_alpha", "alpha"),
}
#: Gradients of activations, which read the activation's input or, for relu, its output.
_GRADS: dict[Op, str] = {
    pointwise.ReluGrad(): "relu_bwd",
    pointwise.SiluGrad(): "swish_bwd",
    pointwise.GeluGrad("none"): "gelu_bwd",
    pointwise.GeluGrad("tanh"): "gelu_approx_tanh_bwd",
}

#: Activations that own kernels and cuBLASLt support, too.
_ACTIVATIONS: dict[type[Op], str] = {
    pointwise.Relu: "relu",
    pointwise.ClippedRelu: "relu",
    pointwise.GeluTanh: "gelu",
}


@dataclass(frozen=True)
class Vector:
    """The epilogue that every library supports: activation(value + bias + residual).

    bias, residual: numbers of the inputs that hold them, a vector and a tensor of the result's size. activation: "",
    "relu" or "gelu" (the tanh approximation). upper: the upper bound of relu.
    """

    bias: int | None = None
    residual: int | None = None
    activation: str = ""
    upper: float = math.inf


def _lies_along(small: Shape, shape: Shape, axis: int) -> bool:
    """Whether a tensor that is broadcast to `shape` varies along this axis only."""
    own = len(small) + axis if axis < 0 else axis - len(shape) + len(small)
    return 0 <= own < len(small) and small[own] == shape[axis] == prod(small)


@dataclass(frozen=True)
class Epilogue:
    """Steps, and the specs of their further operands (inputs from number `first` on)."""

    steps: tuple[Op, ...]
    extras: tuple[Spec, ...]
    first: int

    def arranged(self, shape: Shape, layout: Layout) -> tuple[Spec, ...]:
        """The specs in which the graph reads the further operands: full-size ones in the result's layout, others
        row-major."""
        return tuple(
            Spec(s.shape, s.dtype, layout if s.shape == shape else contiguous(s.shape)) for s in self.extras
        )

    def vector(self, shape: Shape, axis: int) -> Vector | None:
        """The steps as a `Vector`, or None where they are something else.

        shape: of the result. axis: the one along which a bias lies.
        """
        bias = residual = None
        extras = iter(enumerate(self.extras, self.first))
        for number, step in enumerate(self.steps):
            if isinstance(step, pointwise.Add):
                index, spec = next(extras)
                if spec.shape == shape and residual is None:
                    residual = index
                elif _lies_along(spec.shape, shape, axis) and bias is None:
                    bias = index
                else:
                    return None
            elif type(step) in _ACTIVATIONS and number == len(self.steps) - 1:
                return Vector(bias, residual, _ACTIVATIONS[type(step)], getattr(step, "hi", math.inf))
            else:
                return None
        return Vector(bias, residual)

    def check(self) -> None:
        """Raise NoKernel when a step has no node, or an operand's type differs from the rest."""
        for step in self.steps:
            if type(step) not in (*_BINARY, *_UNARY, *_WITH) and step not in _GRADS:
                raise NoKernel(f"cuDNN has no pointwise node for {step.name}")

    def attach(
        self,
        graph: Graph,
        value: Tensor,
        out: Tensor,
        shape: Shape,
        layout: Layout,
        axes: Axes,
    ) -> dict[int, Place]:
        """Add the nodes from `value` (virtual) to `out`; gives uid -> address of the further operands.

        axes: maps sizes and strides of the result's rank to those of the graph's tensors.
        """
        places: dict[int, Place] = {}
        extras = iter(enumerate(self.arranged(shape, layout), self.first))
        for number, step in enumerate(self.steps):
            result = out if number == len(self.steps) - 1 else None
            if type(step) in _UNARY:
                value = graph.pointwise(_UNARY[type(step)], value, out=result)
            elif type(step) in _WITH:
                mode, attribute, name = _WITH[type(step)]
                value = graph.pointwise(mode, value, None, result, t=None, **{attribute: getattr(step, name)})
            else:
                index, spec = next(extras)
                other = _operand(graph, spec, len(shape), axes)
                places[other.uid] = source(index)
                if step in _GRADS:
                    value = graph.pointwise(_GRADS[step], other, value, result)
                else:
                    value = graph.pointwise(_BINARY[type(step)], value, other, result)
        return places


def _operand(graph: Graph, spec: Spec, rank: int, axes: Axes) -> Tensor:
    """A tensor for a further operand, with leading axes of size 1 up to the result's rank."""
    lead = rank - spec.ndim
    strides = spec.physical.strides
    outer = max([1, *(n * s for n, s in zip(spec.shape, strides, strict=True))])
    sizes, steps = (1,) * lead + spec.shape, (outer,) * lead + strides
    return graph.tensor(*axes(sizes, steps), spec.dtype.name)


def split(op_steps: Sequence[Op], specs: Sequence[Spec], head: int) -> Epilogue:
    """The epilogue of a fused op whose head takes the first `head` inputs."""
    made = Epilogue(tuple(op_steps), tuple(specs[head:]), head)
    made.check()
    return made


NONE = Epilogue((), (), 0)
