"""Whole Jacobians and Hessians: `jacrev`, `jacfwd`, `hessian`, called as in torch.func and JAX.

A Jacobian is `vjp` or `jvp` mapped over the rows of an identity matrix: one pass over the function, with the rows as
an additional axis of every derivative op.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import numpy as np

from lamina import _tree, ops
from lamina.graph.transforms.arguments import as_positions, named_function
from lamina.graph.transforms.batching import vmap
from lamina.graph.transforms.derivatives import jvp, vjp
from lamina.ops.core import Operand, operand


def jacrev(
    fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """A function that returns the Jacobian of fn in args[argnums], row by row (reverse mode): for few results.

    Args:
        fn: returns floating point arrays in any structure; with has_aux (these, aux).
        argnums: positions of the arguments, arrays or trees of them, or modules; several give a tuple.
        has_aux: the result is (Jacobian, aux).

    The Jacobian has fn's structure, and in place of each array y the structure of the argument, with arrays
    (*y.shape, *x.shape). Raises TypeError for arrays that are not floating point and for non-differentiable ops.
    """
    named_function(fn, "jacrev")

    @wraps(fn, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        positions = as_positions(argnums, len(args), "jacrev")
        at = _placed(fn, args, kwargs, positions)
        result, pull, *aux = vjp(at, *(args[i] for i in positions), has_aux=has_aux)
        given, structure = _tree.flatten(result, open_dataclasses=True)
        _check_floats(given, "jacrev", "fn gives")
        found = [
            _one_or_all(_rows_as(y.shape, _pulled(pull, given, i, structure)), argnums)
            for i, y in enumerate(given)
        ]
        jacobian = _tree.unflatten(structure, found)
        return (jacobian, *aux) if has_aux else jacobian

    return run


def jacfwd(
    fn: Callable[..., Any], argnums: int | Sequence[int] = 0, has_aux: bool = False
) -> Callable[..., Any]:
    """As `jacrev`, column by column (forward mode): for few inputs, and for derivatives of derivatives. Arguments are
    arrays and trees of them, no modules."""
    named_function(fn, "jacfwd")

    @wraps(fn, updated=())
    def run(*args: Any, **kwargs: Any) -> Any:
        positions = as_positions(argnums, len(args), "jacfwd")
        at = _placed(fn, args, kwargs, positions)
        primals = tuple(args[i] for i in positions)
        given, structure = _tree.flatten(primals)
        given = [operand(x, "jacfwd") for x in given]
        _check_floats(given, "jacfwd", "arguments are")
        primals = _tree.unflatten(structure, given)
        columns: list[Any] = []
        aux: list[Any] = []
        for i, x in enumerate(given):
            tangents = _basis(given, i)

            def along(*directions: Any) -> Any:
                return jvp(at, primals, _tree.unflatten(structure, list(directions)), has_aux=has_aux)[1:]

            product, *aux = vmap(along, 0, (-1, None) if has_aux else -1)(*tangents)
            columns.append(_columns_as(x.shape, product))
        jacobian = _joined(columns, structure, argnums)
        return (jacobian, *aux) if has_aux else jacobian

    return run


def hessian(fn: Callable[..., Any], argnums: int | Sequence[int] = 0) -> Callable[..., Any]:
    """A function that returns the second derivatives of fn in args[argnums], as torch.func.hessian: forward over
    reverse mode. For a scalar fn of one array x the shape is (*x.shape, *x.shape)."""
    return jacfwd(jacrev(fn, argnums), argnums)


def _placed(
    fn: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any], positions: Sequence[int]
) -> Callable[..., Any]:
    """fn as a function of the arguments at these positions."""

    def at(*own: Any) -> Any:
        standing = dict(zip(positions, own, strict=True))
        return fn(*(standing.get(i, a) for i, a in enumerate(args)), **kwargs)

    return at


def _check_floats(arrays: Sequence[Any], what: str, who: str) -> None:
    for x in arrays:
        if not isinstance(x, Operand) or not x.dtype.is_float:
            kind = x.spec if isinstance(x, Operand) else type(x).__name__
            raise TypeError(f"{what}: {who} {kind}; derivatives are of floating point arrays")


def _basis(like: Sequence[Any], place: int) -> list[Any]:
    """For each array a stack of directions, in front: the identity for the array at `place`, zeros for others."""
    size = like[place].spec.numel
    found = []
    for i, x in enumerate(like):
        rows = np.eye(size) if i == place else np.zeros((size, x.spec.numel))
        found.append(ops.zeros_like(x) + rows.reshape(size, *x.shape).astype(x.dtype.numpy))
    return found


def _pulled(pull: Callable[[Any], Any], like: Sequence[Any], place: int, structure: Any) -> Any:
    """The pullback of each element of one result: arrays with the elements as the first axis."""
    return vmap(lambda *rows: pull(_tree.unflatten(structure, list(rows))))(*_basis(like, place))


def _rows_as(shape: Sequence[int], tree: Any) -> Any:
    """The leading axis reshaped to a result's shape."""
    found, structure = _tree.flatten(tree)
    return _tree.unflatten(structure, [ops.reshape(x, (*shape, *x.shape[1:])) for x in found])


def _columns_as(shape: Sequence[int], tree: Any) -> Any:
    """The trailing axis reshaped to an argument's shape."""
    found, structure = _tree.flatten(tree)
    return _tree.unflatten(structure, [ops.reshape(x, (*x.shape[:-1], *shape)) for x in found])


def _joined(columns: Sequence[Any], structure: Any, argnums: int | Sequence[int]) -> Any:
    """One tree in fn's structure from one such tree per argument array: each of its arrays becomes a tree in the
    arguments' structure."""
    found, outside = zip(*map(_tree.flatten, columns), strict=True)
    each: Iterator[Any] = zip(*found, strict=True)
    return _tree.unflatten(
        outside[0], [_one_or_all(_tree.unflatten(structure, list(row)), argnums) for row in each]
    )


def _one_or_all(tree: Any, argnums: int | Sequence[int]) -> Any:
    return tuple(tree) if isinstance(argnums, Sequence) else tree[0]
