"""Epilogues of convolutions and products, as pointwise nodes of the same cuDNN graph."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from lamina.backends import NoKernel
from lamina.backends.cuda.elementwise.pointwise import expression_of
from lamina.backends.cuda.launch.program import HostNumber, Place, source
from lamina.cudnn import Graph, Tensor
from lamina.ops.core import Op
from lamina.ops.primitives import activation, pointwise
from lamina.ops.primitives.cast import Cast
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


@dataclass(frozen=True)
class Vector:
    """The usual epilogue: activations of (value + bias + residual).

    bias, residual: numbers of the inputs that hold them, a vector and a tensor of the result's size. activations:
    steps of one operand, one after the other.
    """

    bias: int | None = None
    residual: int | None = None
    activations: tuple[Op, ...] = ()


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
        activations: tuple[Op, ...] = ()
        extras = iter(enumerate(self.extras, self.first))
        for step in self.steps:
            if step.arity == 1:
                activations += (step,)
            elif isinstance(step, pointwise.Add) and not activations:
                index, spec = next(extras)
                if spec.shape == shape and residual is None:
                    residual = index
                elif _lies_along(spec.shape, shape, axis) and bias is None:
                    bias = index
                else:
                    return None
            else:
                return None
        return Vector(bias, residual, activations)

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

        axes: maps sizes and strides of the result's rank to those of the graph's tensors. Raises NoKernel where cuDNN
        has no node for a step.
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
            elif type(step) in _COMPOSED:
                value = _COMPOSED[type(step)](graph, value, result, places)
            elif type(step) not in _BINARY and step not in _GRADS:
                raise NoKernel(f"cuDNN has no pointwise node for {step.name}")
            else:
                index, spec = next(extras)
                other = _operand(graph, spec, len(shape), axes)
                places[other.uid] = source(index)
                if step in _GRADS:
                    value = graph.pointwise(_GRADS[step], other, value, result)
                else:
                    value = graph.pointwise(_BINARY[type(step)], value, other, result)
        return places


def _hard_swish(graph: Graph, x: Tensor, out: Tensor | None, places: dict[int, Place]) -> Tensor:
    """x * clip(x / 6 + 0.5, 0, 1), as its reference has it."""

    def number(value: float) -> Tensor:
        made = graph.scalar(len(x.dimensions))
        places[made.uid] = HostNumber.of(value)
        return made

    rising = graph.pointwise("add", graph.pointwise("mul", x, number(1 / 6)), number(0.5))
    return graph.pointwise("mul", x, graph.pointwise("relu_fwd", rising, relu_upper=1.0), out)


def _mish(graph: Graph, x: Tensor, out: Tensor | None, places: dict[int, Place]) -> Tensor:
    """x * tanh(softplus(x))."""
    return graph.pointwise("mul", x, graph.pointwise("tanh_fwd", graph.pointwise("softplus_fwd", x)), out)


#: Steps of several nodes: (graph, operand, result or None for a virtual one, places of further tensors) -> result.
_COMPOSED: dict[type[Op], Callable[[Graph, Tensor, Tensor | None, dict[int, Place]], Tensor]] = {
    pointwise.HardSwish: _hard_swish,
    activation.Mish: _mish,
}


def _operand(graph: Graph, spec: Spec, rank: int, axes: Axes) -> Tensor:
    """A tensor for a further operand, with leading axes of size 1 up to the result's rank."""
    lead = rank - spec.ndim
    strides = spec.physical.strides
    outer = max([1, *(n * s for n, s in zip(spec.shape, strides, strict=True))])
    sizes, steps = (1,) * lead + spec.shape, (outer,) * lead + strides
    return graph.tensor(*axes(sizes, steps), spec.dtype.name)


def split(op_steps: Sequence[Op], specs: Sequence[Spec], head: int) -> Epilogue:
    """The epilogue of a fused op whose head takes the first `head` inputs.

    Raises NoKernel for steps that change the type, and those that kernels have no expression for.
    """
    for step in op_steps:
        if expression_of(step) is None or isinstance(step, Cast):
            raise NoKernel(f"{step.name} is no step of an epilogue")
    return Epilogue(tuple(op_steps), tuple(specs[head:]), head)


NONE = Epilogue((), (), 0)
