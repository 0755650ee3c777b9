"""Gradient clipping, with torch's names: the values in the given dicts and lists of gradients are replaced in place.

Gradients here are values, not attributes of parameters: the result of `lamina.grad` takes the place of the parameters
in torch's functions. On tensors they compute immediately; while a function is traced they are recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping, MutableSequence
from math import inf, isinf
from typing import Any

from lamina import ops
from lamina.graph.transforms.arguments import Gradients
from lamina.nn.parameter import Parameter
from lamina.ops.arguments import checked, shown
from lamina.ops.core import Operand, recorder
from lamina.runtime import is_array
from lamina.spec import float32
from lamina.tensors import as_tensor


@checked
def clip_grad_norm_(
    grads: Any, max_norm: float, norm_type: float = 2.0, error_if_nonfinite: bool = False
) -> Any:
    """Scale gradients so that their total norm is at most max_norm (Pascanu et al. 2013); returns the norm before.

    grads: a dict or list of gradients, or nested tuples, lists and dicts of them, which get the new values.
    norm_type: p of the p-norm over all elements together; inf for the largest one. error_if_nonfinite: raise
    ValueError for an infinite or NaN norm; not while a function is traced. The norm is a float32 scalar (float64 for
    float64 gradients).
    """
    total = get_total_norm(grads, norm_type, error_if_nonfinite)
    clip_grads_with_norm_(grads, max_norm, total)
    return total


@checked
def clip_grads_with_norm_(grads: Any, max_norm: float, total_norm: Any) -> None:
    """Scale gradients by max_norm / (total_norm + 1e-6) where that is below 1."""
    if not max_norm >= 0:
        raise ValueError(f"clip_grads_with_norm_: max_norm must be at least 0, got {max_norm}")
    factor = ops.minimum(max_norm / (total_norm + 1e-6), 1.0)
    _replace(grads, lambda g: ops.mul(g, _like(factor, g.dtype)), "clip_grad_norm_")


@checked
def clip_grad_value_(grads: Any, clip_value: float) -> None:
    """Clamp each element of the gradients to [-clip_value, clip_value]."""
    if not clip_value >= 0:
        raise ValueError(f"clip_grad_value_: clip_value must be at least 0, got {clip_value}")
    _replace(grads, lambda g: ops.clamp(g, -clip_value, clip_value), "clip_grad_value_")


@checked
def get_total_norm(grads: Any, norm_type: float = 2.0, error_if_nonfinite: bool = False) -> Any:
    """The norm of all elements of all gradients together: float32 (float64 for float64 gradients), shape ()."""
    if not norm_type > 0:
        raise ValueError(f"get_total_norm: norm_type must be positive, got {norm_type}")
    given = list(_leaves(grads, "get_total_norm"))
    if not given:
        raise ValueError("get_total_norm: there are no gradients")
    wide = [g if g.dtype.name == "float64" else _like(g, float32) for g in given]
    if isinf(norm_type):
        found = _together([ops.max(ops.abs(g)) for g in wide], ops.maximum)
    elif norm_type == 2.0:
        found = ops.sqrt(_together([ops.sum(ops.square(g)) for g in wide], ops.add))
    else:
        powers = [ops.sum(ops.pow(ops.abs(g), norm_type)) for g in wide]
        found = ops.pow(_together(powers, ops.add), 1.0 / norm_type)
    if error_if_nonfinite and recorder() is None and not abs(float(found.item())) < inf:
        raise ValueError(f"clip_grad_norm_: the norm of the gradients is {found.item()}")
    return found


def _together(parts: list[Any], combine: Callable[[Any, Any], Any]) -> Any:
    result = parts[0]
    for part in parts[1:]:
        result = combine(result, part)
    return result


def _like(x: Any, dtype: Any) -> Any:
    return x if x.dtype == dtype else ops.cast(x, dtype)


def _refuse_parameters(grads: Any, what: str) -> None:
    """torch's functions take parameters, which store their gradients."""
    if isinstance(grads, Parameter) or (
        isinstance(grads, Iterator) and isinstance(next(grads, None), Parameter)
    ):
        raise TypeError(
            f"{what}: takes gradients, got parameters, which hold none here: give what lamina.grad or "
            "value_and_grad gives, which the optimizer's step then takes, or clip_norm= to a training step"
        )


def _leaves(grads: Any, what: str) -> Iterator[Any]:
    _refuse_parameters(grads, what)
    if isinstance(grads, MutableMapping):
        grads = list(grads.values())
    if isinstance(grads, MutableSequence | tuple):
        for g in grads:
            yield from _leaves(g, what)
    elif isinstance(grads, Operand) or is_array(grads):
        yield grads if isinstance(grads, Operand) else as_tensor(grads)
    elif grads is not None:
        raise TypeError(f"{what}: gradients are arrays in dicts, lists and tuples, got {shown(grads)}")


def _replace(grads: Any, change: Callable[[Any], Any], what: str) -> None:
    """Replace gradients by changed ones."""
    _refuse_parameters(grads, what)
    if isinstance(grads, MutableMapping | MutableSequence):
        absent = grads.absent if isinstance(grads, Gradients) else ()
        for i in list(grads) if isinstance(grads, MutableMapping) else range(len(grads)):
            if i in absent:
                continue  # these zeros keep their identity, by which an optimizer recognizes them
            held = grads[i]
            _refuse_parameters(held, what)
            if isinstance(held, Operand) or is_array(held):
                grads[i] = change(held if isinstance(held, Operand) else as_tensor(held))
            elif held is not None:
                _replace(held, change, what)
    elif isinstance(grads, tuple) and all(isinstance(g, dict | list | tuple) for g in grads):
        for g in grads:
            _replace(g, change, what)
    else:
        raise TypeError(
            f"{what}: gradients are changed in a dict or list that holds them, got {shown(grads)}: give [grad]"
        )
