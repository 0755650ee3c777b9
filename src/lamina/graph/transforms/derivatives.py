"""Derivatives of functions: `grad`, `value_and_grad`, `vjp`, `jvp`, `hvp`; called as in torch.func and JAX.

Called on tensors, a function runs at once and is recorded on a tape: its branches may depend on tensor values, and
state that it updates (running statistics, random generators) is updated once. Within another transformation,
`lamina.jit` or `lamina.trace` the derivative is recorded there, so that it can be compiled and differentiated again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple

import numpy as np

from lamina import _tree
from lamina._tree import Structure
from lamina.graph.ir.autodiff import arriving_gradients, gradients, known_gradients, zero_gradient
from lamina.graph.ir.capture import EagerTape
from lamina.graph.ir.graph import Value, constant, tensor_of
from lamina.graph.transforms.arguments import Variables, as_positions, is_nested, named_function, tensors
from lamina.ops.arguments import shown
from lamina.ops.core import Operand, operand, recorder, recording
from lamina.tensors import Tensor, as_tensor, zeros


def value_and_grad(
    fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns (fn(*args), the gradient of fn with respect to args[argnums]).

    Args:
        fn: returns a floating point scalar (shape ()); with has_aux (scalar, anything else).
        argnums: positions of the arguments to differentiate; several give a tuple of gradients.
        has_aux: the result is ((value, aux), gradient).

    An argument is an array of any library, a number, a module, or nested tuples, lists and dicts of these, and its
    gradient has the same structure, shapes and dtypes; a module's is a dict by its parameters' names. Named arguments
    are passed on. State that fn updates (running statistics, random generators, `copy_`) is updated once, when fn has
    returned. Raises TypeError for arguments that are not floating point and for non-differentiable ops; ValueError if
    fn returns no scalar.
    """
    return _differentiated(fn, argnums, has_aux, "value_and_grad")


def grad(
    fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns the gradient of the scalar fn(*args) with respect to args[argnums]; see
    `value_and_grad`.

    has_aux: fn returns (scalar, aux), and the result is (gradient, aux).
    """
    both = _differentiated(fn, argnums, has_aux, "grad")

    @wraps(fn, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        value, found = both(*args, **kwargs)
        return (found, value[1]) if has_aux else found

    return run


def _differentiated(
    fn: Callable[..., Any], argnums: int | Sequence[int], has_aux: bool, what: str
) -> Callable[..., Any]:
    named_function(fn, what)

    @wraps(fn, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        positions = as_positions(argnums, len(args), what)
        nested = is_nested(args, kwargs)
        if not nested:
            args, kwargs = _of_tensors((args, kwargs))

        def call() -> tuple[Value, Any, list[Variables]]:
            own = [Variables(args[i], what, f"args[{i}]") for i in positions]
            standing = dict(zip(positions, (v.tree for v in own), strict=True))
            value, aux = _parts(
                fn(*(standing.get(i, a) for i, a in enumerate(args)), **kwargs), has_aux, what
            )
            return _scalar(value, what), aux, own

        if nested:
            value, aux, own = call()
            found = arriving_gradients(value, _values(own))
        else:
            tape = EagerTape()
            with recording(tape):
                value, aux, own = call()
            value, aux, found = _backwards(value, aux, _values(own))
            tape.commit()
        slopes = _split(own, found)
        return (value, aux) if has_aux else value, slopes if isinstance(argnums, Sequence) else slopes[0]

    return run


def _of_tensors(tree: Any) -> Any:
    """The tree with NumPy arrays as tensors on their memory, so that a function gets the same as when compiled."""
    found, structure = _tree.flatten(tree)
    if not any([isinstance(x, np.ndarray) for x in found]):  # noqa: C419 - every call asks
        return tree
    return _tree.unflatten(structure, [as_tensor(x) if isinstance(x, np.ndarray) else x for x in found])


def _backwards(value: Value, aux: Any, wrt: Sequence[Value]) -> tuple[Any, Any, list[Any]]:
    """Value, aux and gradients as tensors; as traced values if they depend on another trace. The gradient is None
    for inputs that value does not depend on."""
    known = tensor_of(value)
    if known is None:
        return value, aux, list(arriving_gradients(value, wrt))
    aux = tensors(aux)
    one = as_tensor(np.ones((), known.dtype.numpy))
    one = one if one.device is known.device else one.to(known.device)
    return known, aux, known_gradients([value], wrt, [one], last=True)


def vjp(fn: Callable[..., Any], *primals: Any, has_aux: bool = False) -> tuple[Any, ...]:
    """(fn(*primals), pull): pull(cotangents) is a tuple of vector-Jacobian products, one per primal.

    fn: returns arrays in any structure; cotangents have that structure, its shapes and dtypes. With has_aux fn
    returns (result, aux), and the result is (result, pull, aux). pull may be called any number of times.
    Raises TypeError and ShapeError for cotangents that do not fit.
    """
    named_function(fn, "vjp")

    def call() -> tuple[_Outputs, Any, list[Variables]]:
        own = [Variables(x, "vjp", f"primals[{i}]") for i, x in enumerate(primals)]
        result, aux = _parts(fn(*(v.tree for v in own)), has_aux, "vjp")
        return _Outputs.of(result, "vjp"), aux, own

    outputs, aux, own = on_tape(call, primals)
    wrt = _values(own)

    def pull(cotangents: Any) -> tuple[Any, ...]:
        """One gradient per primal, in its structure."""
        given = outputs.cotangents(cotangents, "vjp: cotangents")
        kept = [(y, g) for y, g in zip(outputs.values, given, strict=True) if y.dtype.is_float]
        ys, gs = [y for y, _ in kept], [g for _, g in kept]
        if is_nested(gs) or any(tensor_of(y) is None for y in ys):
            found: list[Any] = list(arriving_gradients(ys, wrt, gs)) if ys else [None] * len(wrt)
        else:
            found = known_gradients(ys, wrt, list(map(as_tensor, gs)), last=False)
        return tuple(_split(own, found))

    return (outputs.tree(), pull, tensors(aux)) if has_aux else (outputs.tree(), pull)


def jvp(
    fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any], *, has_aux: bool = False
) -> tuple[Any, ...]:
    """(fn(*primals), its derivative in the direction of tangents), the Jacobian-vector product.

    tangents: one per primal, in its structure, shapes and dtypes. The product has the structure of fn's result, with
    zeros for entries that are not floating point. With has_aux fn returns (result, aux), and aux comes third.
    It is computed as the derivative of the VJP, which is linear in its cotangents: every op with a gradient has it.
    """
    named_function(fn, "jvp")
    given = _pairs(primals, tangents, "jvp")

    def call() -> tuple[_Outputs, Any, list[Any]]:
        own = [Variables(x, "jvp", f"primals[{i}]") for i, x in enumerate(primals)]
        result, aux = _parts(fn(*(v.tree for v in own)), has_aux, "jvp")
        outputs, along = _Outputs.of(result, "jvp"), _directions(own, given, "jvp")
        floats = [y for y in outputs.values if y.dtype.is_float]
        dummies = [_dummy(y) for y in floats]
        pulled = gradients(floats, _values(own), dummies) if floats else []
        found = iter(gradients(pulled, dummies, along) if floats else [])
        return outputs, aux, [next(found) if y.dtype.is_float else _dummy(y) for y in outputs.values]

    outputs, aux, found = on_tape(call, primals, tangents)
    product = tensors(_tree.unflatten(outputs.structure, found))
    return (outputs.tree(), product, tensors(aux)) if has_aux else (outputs.tree(), product)


def hvp(fn: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Any, Any]:
    """(fn(*primals), the Hessian of the scalar fn times tangents): one product per primal, in its structure.

    As torch.autograd.functional.hvp, with primals and tangents as `jvp` has them. It costs about two gradients.
    """
    named_function(fn, "hvp")
    given = _pairs(primals, tangents, "hvp")

    def call() -> tuple[Value, list[Variables], list[Value]]:
        own = [Variables(x, "hvp", f"primals[{i}]") for i, x in enumerate(primals)]
        value, wrt = _scalar(fn(*(v.tree for v in own)), "hvp"), _values(own)
        along = _directions(own, given, "hvp")
        return value, own, gradients(gradients(value, wrt), wrt, along)

    value, own, found = on_tape(call, primals, tangents)
    return tensors(value), tensors(tuple(_split(own, found)))


# ---- shared helpers


def on_tape(call: Callable[[], Any], *given: Any) -> Any:
    """The result of `call`: recorded within a trace, else computed on a tape."""
    if is_nested(*given):
        return call()
    tape = EagerTape()
    with recording(tape):
        result = call()
    tape.commit()
    return result


class _Outputs(NamedTuple):
    """The result of a function: its arrays as values, and their structure."""

    values: list[Value]
    structure: Structure

    @classmethod
    def of(cls, result: Any, what: str) -> _Outputs:
        found, structure = _tree.flatten(result, open_dataclasses=True)
        return cls([_value(y, what) for y in found], structure)

    def tree(self) -> Any:
        """The result, with tensors where they are known."""
        return tensors(_tree.unflatten(self.structure, self.values))

    def cotangents(self, given: Any, what: str) -> list[Any]:
        """The cotangent of each value. Raises TypeError for another structure, shape or dtype."""
        found, structure = _tree.flatten(given, open_dataclasses=True)
        if structure != self.structure:
            raise TypeError(
                f"{what} must have the structure {self.structure} of fn's result, got {structure}"
            )
        return [_like(y, g, what) for y, g in zip(self.values, found, strict=True)]


def _like(value: Value, x: Any, what: str) -> Any:
    """x, checked for the shape and dtype of a value."""
    found = x if isinstance(x, Operand) else as_tensor(np.asarray(x, value.dtype.numpy))
    if found.shape != value.shape or found.dtype != value.dtype:
        raise TypeError(f"{what} must be {value.spec} here, as fn's result or primal is, got {found.spec}")
    return found


def _pairs(primals: Sequence[Any], tangents: Sequence[Any], what: str) -> Sequence[Any]:
    """tangents. Raises TypeError unless there is one for each primal."""
    for name, given in (("primals", primals), ("tangents", tangents)):
        if not isinstance(given, tuple | list):
            raise TypeError(f"{what}: {name} must be a tuple, one per argument of fn, got {shown(given)}")
    if len(primals) != len(tangents):
        raise TypeError(f"{what}: {len(primals)} primals need as many tangents, got {len(tangents)}")
    return tangents


def _directions(own: Sequence[Variables], tangents: Sequence[Any], what: str) -> list[Value]:
    """A tangent for each of the variables. Raises TypeError if structure, shape or dtype differ."""
    found: list[Value] = []
    for i, (v, t) in enumerate(zip(own, tangents, strict=True)):
        given = _tree.leaves(t)
        wanted = v.values
        if len(given) != len(wanted):
            raise TypeError(f"{what}: tangents[{i}] has {len(given)} arrays, its primal {len(wanted)}")
        found += [
            _value(_like(x, g, f"{what}: tangents[{i}]"), what) for x, g in zip(wanted, given, strict=True)
        ]
    return found


def _parts(result: Any, has_aux: bool, what: str) -> tuple[Any, Any]:
    """The result, and aux."""
    if not has_aux:
        return result, None
    if not isinstance(result, tuple) or len(result) != 2:
        raise TypeError(f"{what}: with has_aux fn must give (result, aux), got {shown(result)}")
    return result[0], _as_left(result[1])


def _as_left(aux: Any) -> Any:
    """The tree with the contents of its values at the return of the function."""
    by = recorder()
    if by is None or aux is None:
        return aux
    found, structure = _tree.flatten(aux, open_dataclasses=True)
    return _tree.unflatten(structure, [by.read(x) if isinstance(x, Value) else x for x in found])


def _scalar(value: Any, what: str) -> Value:
    if isinstance(value, tuple | list | dict) or value is None:
        raise TypeError(
            f"{what}: fn must give one scalar, got a {type(value).__name__}; has_aux=True takes (scalar, aux)"
        )
    found = _value(value, what)
    if not isinstance(value, Operand):
        raise TypeError(
            f"{what}: fn must give a tensor, got {shown(value)}, which does not remember what it was made of: "
            "numbers and arrays (float, item, numpy) are constants"
        )
    if found.shape != () or not found.dtype.is_float:
        raise ValueError(
            f"{what}: fn must give a scalar of floating point numbers, got {found.spec}; take ops.mean or ops.sum of "
            "it, or use vjp"
        )
    return found


def _value(x: Any, what: str) -> Value:
    """The value that stands for a result in the current trace."""
    try:
        x = operand(x)
    except (TypeError, ValueError) as error:
        raise TypeError(f"{what}: fn must give tensors, got {shown(x)}: {error}") from None
    by = recorder()
    found = constant(x) if by is None and not isinstance(x, Value) else x if by is None else by.read(x)
    assert isinstance(found, Value)
    return found


def _dummy(y: Value) -> Value:
    """A variable of the shape of a result: the point at which a linear function is differentiated is arbitrary."""
    return constant(_zeros_like(y))


def _zeros_like(v: Value) -> Tensor:
    """Zeros of the same shape and dtype, on the same device if that is known."""
    known = tensor_of(v)
    return zeros(v.shape, dtype=v.dtype, device=None if known is None else known.device)


def _values(own: Sequence[Variables]) -> list[Value]:
    return [v for each in own for v in each.values]


def _split(own: Sequence[Variables], found: Sequence[Any]) -> list[Any]:
    """The results for all variables, in each one's structure; zeros in place of None, as tensors if the others
    are."""
    zero = _zeros_like if all(g is None or isinstance(g, Tensor) for g in found) else zero_gradient
    rest = iter(found)
    return [v.unflatten([next(rest) for _ in v.values], zero) for v in own]
