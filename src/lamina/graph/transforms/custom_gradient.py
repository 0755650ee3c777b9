"""`custom_vjp`: a function with a user-defined gradient, as jax.custom_vjp."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import is_dataclass
from functools import update_wrapper
from typing import Any, Generic, ParamSpec, TypeVar

from lamina import _tree, ops
from lamina._tree import Structure
from lamina.graph.transforms.arguments import is_nested, is_plain_record, named_function
from lamina.ops.arguments import shown
from lamina.ops.core import Operand, bind, operand
from lamina.ops.primitives.marker import CustomGradient
from lamina.runtime import is_array
from lamina.spec import ShapeError, Spec
from lamina.tensors import Tensor, zeros

P = ParamSpec("P")
R = TypeVar("R")
#: The functions whose `forward` is running: calls to them from there are plain.
_under_way: ContextVar[tuple[Any, ...]] = ContextVar("under_way", default=())


class custom_vjp(Generic[P, R]):  # noqa: N801 - used as a decorator, called as in JAX
    """A function with a user-defined gradient.

        @lm.custom_vjp
        def clipped(x):
            return x

        def forward(x):
            return x, None

        def backward(kept, g):
            return (ops.clamp(g, -1, 1),)

        clipped.defvjp(forward, backward)

    forward(*args) returns (result, kept): the result as fn returns it, and residuals for the gradient, any tree of
    tensors and other values. backward(kept, g) gets the gradient of the result, in its structure (zeros
    for outputs without a gradient, None for those that are not floating point), and returns a tuple with one gradient
    per positional argument, in that argument's structure, or None; it is cast to the argument's dtype, and summed
    over broadcast axes. If backward is written with ops, it can be differentiated again. Outside of a
    derivative, and when forward calls it, the function is simply fn. Tensors that forward closes over (a network's
    parameters) get no gradient: pass them as arguments.
    """

    def __init__(self, fn: Callable[P, R]) -> None:
        self.fn = named_function(fn, "custom_vjp")
        self.forward: Callable[..., Any] | None = None
        self.backward: Callable[..., Any] | None = None
        update_wrapper(self, fn)

    def defvjp(self, forward: Callable[..., Any], backward: Callable[..., Any]) -> None:
        """Define the forward pass used under differentiation, and the gradient."""
        self.forward, self.backward = named_function(forward, "defvjp"), named_function(backward, "defvjp")

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """fn(*args), with its gradient under differentiation."""
        if self.forward is None or self.backward is None:
            name = _name(self.fn)
            raise TypeError(f"custom_vjp: {name} has no gradient yet; call {name}.defvjp(forward, backward)")
        around = _under_way.get()
        if not is_nested(args, kwargs) or self in around:
            return self.fn(*args, **kwargs)  # type: ignore[no-any-return]
        if kwargs:
            raise TypeError(
                f"custom_vjp: {_name(self.fn)} takes positional arguments alone, got {', '.join(kwargs)}="
            )
        token = _under_way.set((*around, self))
        try:
            given = self.forward(*args)
        finally:
            _under_way.reset(token)
        if not isinstance(given, tuple) or len(given) != 2:
            raise TypeError(
                f"custom_vjp: forward of {_name(self.fn)} must give (result, kept), got {shown(given)}"
            )
        return self._marked(args, *given)  # type: ignore[no-any-return]

    def _marked(self, args: tuple[Any, ...], result: Any, kept: Any) -> Any:
        """The result, with a marker that carries its gradient rule."""
        leaves, structure = _tree.flatten(args, is_plain_record, open_dataclasses=True)
        places = [i for i, x in enumerate(leaves) if _is_tensor(x)]
        outputs, made_of = _tree.flatten(result, open_dataclasses=True)
        outputs = [operand(y, "custom_vjp", "the result") for y in outputs]
        held, kept_of = _tree.flatten(kept, is_plain_record, open_dataclasses=True)
        tensors = [i for i, x in enumerate(held) if _is_tensor(x)]
        specs, takes = [y.spec for y in outputs], [operand(leaves[i]).spec for i in places]
        backward, name = self.backward, _name(self.fn)
        assert backward is not None

        def rule(values: Sequence[Any], grads: Sequence[Any]) -> Sequence[Any]:
            whole = list(held)
            for i, v in zip(tensors, values, strict=True):
                whole[i] = v
            arriving = _tree.unflatten(made_of, _filled(grads, specs))
            found = backward(_tree.unflatten(kept_of, whole), arriving)
            own = _gradients(found, structure, places, name)
            return [_fitted(g, spec, name) for g, spec in zip(own, takes, strict=True)]

        op = CustomGradient(rule, len(places), len(outputs))
        marked = bind(op, *(leaves[i] for i in places), *outputs, *(held[i] for i in tensors))
        return _tree.unflatten(made_of, list(marked))

    def __repr__(self) -> str:
        return f"custom_vjp({_name(self.fn)})"


def _is_tensor(x: Any) -> bool:
    return is_array(x) or isinstance(x, Operand)


def _name(fn: Any) -> str:
    return str(getattr(fn, "__name__", type(fn).__name__))


def _filled(grads: Sequence[Any], specs: Sequence[Spec]) -> list[Any]:
    """Zeros for missing gradients; None for outputs that have none."""
    some = next(g for g in grads if g is not None)
    device = some.device if isinstance(some, Tensor) else None
    return [
        None if not s.dtype.is_float else zeros(s.shape, dtype=s.dtype, device=device) if g is None else g
        for g, s in zip(grads, specs, strict=True)
    ]


def _gradients(found: Any, structure: Structure, places: Sequence[int], name: str) -> list[Any]:
    """The result of backward, one entry for each tensor among the arguments. Raises TypeError for another
    structure."""
    branches = structure.branches
    if not isinstance(found, tuple | list) or len(found) != len(branches):
        what = f"{len(found)} of them" if isinstance(found, tuple | list) else shown(found)
        raise TypeError(
            f"custom_vjp: backward of {name} must give a tuple with one gradient or None for each of its "
            f"{len(branches)} arguments, got {what}"
        )
    leaves: list[Any] = []
    for i, (branch, g) in enumerate(zip(branches, found, strict=True)):
        count = len(_tree.names(branch, ""))
        own = [None] * count if g is None else _parts(branch, g)
        if len(own) != count:
            raise TypeError(
                f"custom_vjp: backward of {name} gave {_tree.flatten(g)[1]} for argument {i}, which is {branch}"
            )
        leaves += own
    return [leaves[i] for i in places]


def _fitted(g: Any, spec: Spec, name: str) -> Any:
    """The gradient of an argument in the form that autograd expects: in its dtype, summed over broadcast axes.
    Raises TypeError for another shape."""
    if g is None:
        return None
    given = operand(g)
    try:
        given = ops.sum_to(given, spec.shape)
    except ShapeError:
        raise TypeError(
            f"custom_vjp: backward of {name} gave a gradient of shape {given.shape} for an argument {spec}"
        ) from None
    return ops.cast(given, spec.dtype) if spec.dtype.is_float else given


def _parts(structure: Structure, g: Any) -> list[Any]:
    """The gradients of the parts of an argument, None for parts without one."""
    if g is None:
        return [None] * len(_tree.names(structure, ""))
    if structure.is_leaf:
        return [] if isinstance(g, tuple | list | dict) else [g]
    if isinstance(g, dict):
        inside = [g.get(k) for k in structure.keys]
    else:
        inside = [getattr(g, k) for k in structure.keys] if is_dataclass(g) else list(g)
    if len(inside) != len(structure.branches):
        return []
    return [part for b, x in zip(structure.branches, inside, strict=True) for part in _parts(b, x)]
