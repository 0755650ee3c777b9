"""Boolean selection, x[mask], in a recorded graph, where the number of selected elements is unknown.

All elements are computed, and the mask is kept: elementwise functions, `x[mask] = values` with the same mask, the sum
and the mean of the selection have the shapes of the whole. Any other read of a selection takes its elements, as many
as there are in the call for which the graph is recorded, or is refused where it is recorded for none.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.fx import Node
from torch.fx.node import map_arg

from lamina import ops
from lamina.convert.torch.cells import Cell
from lamina.convert.torch.node import is_operand, known
from lamina.convert.torch.targets import example, name_of, written_operator
from lamina.graph import Value
from lamina.graph.ir.graph import reachable
from lamina.ops.primitives.marker import Marker
from lamina.spec import bool_

_WRITES = ("index_put", "index_put_", "_index_put_impl_", "setitem", "__setitem__")
_SIZES = ("sym_size", "sym_numel", "numel")


@dataclass(eq=False)
class Selection:
    """The elements of a tensor (`source`) at which a mask over its first axes is true.

    values: the whole tensor, or a function of it; where the mask is false it starts from one of the selected
    elements, so that computed values are finite there if they are finite for the selection.
    """

    source: Any
    mask: Any
    values: Any

    @classmethod
    def of(cls, source: Any, mask: Any) -> Selection:
        """source[mask]."""
        rows = source.reshape((mask.spec.numel, *source.shape[mask.ndim :]))
        one = rows[ops.argmax(ops.cast(mask.reshape((-1,)), "int32"))]
        found = cls(source, mask, source)
        one = ops.stop_gradient(one) if one.dtype.is_float else one
        found.values = ops.where(found._over(source), source, one)
        return found

    def _over(self, x: Any) -> Any:
        """The mask, with trailing axes to broadcast over a tensor's."""
        return self.mask.reshape(self.mask.shape + (1,) * (x.ndim - self.mask.ndim))

    def into(self, x: Any) -> Any:
        """x with the selected elements in their positions."""
        return ops.where(self._over(x), ops.cast(self.values, x.dtype), x)

    def reduced(self, mean: bool) -> Any:
        """The sum, or the mean, of all selected elements."""
        total = ops.sum(ops.where(self._over(self.values), self.values, 0))
        if not mean:
            return total
        count = ops.sum(ops.cast(self.mask, total.dtype))
        return total / (count * (self.values.spec.numel / self.mask.spec.numel))

    def is_beside(self, x: Any) -> bool:
        """Whether a tensor that is computed with has values for each selected element: the whole has other places."""
        ndim = self.values.ndim - self.mask.ndim + 1
        return bool(x.ndim > ndim or (x.ndim == ndim and x.shape[0] != 1))

    def taken(self) -> Cell:
        """The selected elements alone. Raises TypeError where their number is unknown."""
        return Cell(ops.getitem(self.values, self.mask))


def selected(x: Any, key: Any) -> Selection | None:
    """x[key] if key is a single mask with unknown values, with or without full slices behind; None otherwise."""
    key = _single(key)
    if not (is_operand(key) and is_operand(x) and key.dtype == bool_ and key.ndim and key.spec.numel):
        return None
    return Selection.of(x, key) if known(key) is None and x.shape[: key.ndim] == key.shape else None


def _single(key: Any) -> Any:
    """The only index of a key (x[mask, :] and x[mask, ...] are x[mask]); the key itself if there are several."""
    if not isinstance(key, tuple) or not key:
        return key
    full = all(k is ... or (isinstance(k, slice) and k == slice(None)) for k in key[1:])
    return key[0] if full else key


def of_selections(node: Node, args: Any, kwargs: Any, run: Callable[[Any, Any], Any]) -> Any:
    """The result of a call with selections among its arguments.

    Raises TypeError for results that depend on the selections' sizes where these are unknown.
    """
    parts = _within((args, kwargs))
    first, name = parts[0], name_of(node)
    if name in _WRITES and _writes_back(name, args, first):
        return _written(name, args, first)
    if name in _SIZES and is_only_checked(node):
        return first.mask.spec.numel
    if name in ("sum", "mean") and len(args) == 1 and not any(v is not None for v in kwargs.values()):
        return Cell(first.reduced(name == "mean"))
    direct = len(parts) == sum(isinstance(a, Selection) for a in (*args, *kwargs.values()))
    if (
        direct
        and name not in _WRITES
        and _keeps_shape(node)
        and all(_same(s.mask, first.mask) for s in parts)
        and not any(first.is_beside(x) for x in _tensors((args, kwargs)))
    ):
        found = _of_whole(args, kwargs, parts, run)
        if found is not None:
            return found
    return run(*taken((args, kwargs)))


def _keeps_shape(node: Node) -> bool:
    """Whether the result of a call has the shape of its first tensor, as far as PyTorch's graph says."""
    x, y = (getattr(example(n), "shape", None) for n in (node.all_input_nodes[0], node))
    return x is not None and y is not None and list(map(str, x)) == list(map(str, y))


def _of_whole(args: Any, kwargs: Any, parts: list[Selection], run: Callable[[Any, Any], Any]) -> Any:
    """The result of an elementwise call with selections by one mask, again a selection; None for other calls."""
    first = parts[0]
    held = {id(s): Cell(s.values) for s in parts}
    whole = run([held.get(id(a), a) for a in args], {k: held.get(id(v), v) for k, v in kwargs.items()})
    y = whole.read() if isinstance(whole, Cell) else None
    if not isinstance(y, Value) or not _each_by_itself(y, [s.values for s in parts]):
        return None
    if args and isinstance(args[0], Selection) and whole is held[id(args[0])]:  # written in place
        args[0].values = y
        return args[0]
    return replace(first, values=y)


def is_only_checked(node: Node) -> bool:
    """Whether a number is only used in PyTorch's assertions, possibly through arithmetic."""
    return all(
        name_of(user).startswith(_CHECKS) or (_is_arithmetic(user) and is_only_checked(user))
        for user in node.users
    )


def is_only_computed_with(node: Node) -> bool:
    """Whether a number is only used where it may be a tensor without axes: as a value, not as a size or an index."""
    return all(
        (is_number(user) and not name_of(user).startswith("sym_") and is_only_computed_with(user))
        or (is_number(user) and is_only_checked(user))
        or _takes_as_value(user, node)
        or name_of(user).startswith(_CHECKS)
        for user in node.users
    )


def is_number(node: Node) -> bool:
    """Whether a node is Python's arithmetic of numbers that PyTorch does not know, and not of tensors."""
    return _is_arithmetic(node) and isinstance(example(node), (torch.SymInt, torch.SymFloat, torch.SymBool))


def _takes_as_value(user: Node, number: Node) -> bool:
    """Whether a call has a number in no place but those of tensors and scalars of its schema."""
    schema = getattr(user.target, "_schema", None)
    if schema is None:
        return False
    given = {**dict(zip((a.name for a in schema.arguments), user.args, strict=False)), **user.kwargs}
    values = {
        a.name for a in schema.arguments if str(a.type).removeprefix("Optional[").rstrip("]") in _VALUES
    }
    within = [name for name, value in given.items() if number in _nodes(value)]
    return all(name in values for name in within)


def _nodes(value: Any) -> list[Node]:
    found: list[Node] = []
    map_arg(value, found.append)
    return found


#: Types of a schema's arguments that are a number or a tensor.
_VALUES = ("Tensor", "number", "Scalar")
#: Python's functions of tensors alone.
_PARTS = ("getitem", "setitem", "delitem", "matmul")
#: How the names of PyTorch's assertions start.
_CHECKS = ("_assert", "_check", "sym_constrain")


def _is_arithmetic(node: Node) -> bool:
    """Whether a node is Python's arithmetic, of numbers or of what has operators: no write, no part of a tensor."""
    if name_of(node) in _PARTS or written_operator(node.target) is not None:
        return False
    return getattr(node.target, "__module__", "") in ("_operator", "math") or name_of(node).startswith("sym_")


def _writes_back(name: str, args: Any, values: Selection) -> bool:
    """Whether a call is x[mask] = values selected by the same mask."""
    target, key, given = args[:3]
    mask = _single(key if name.endswith("setitem__") or name == "setitem" else tuple(key))
    mask = mask.read() if isinstance(mask, Cell) else mask
    alone = given is values and isinstance(target, Cell) and len(args) == 3
    return alone and is_operand(mask) and _same(mask, values.mask)


def _written(name: str, args: Any, values: Selection) -> Any:
    """x[mask] = values selected by the same mask."""
    target = args[0]
    made = values.into(target.read())
    if name == "index_put":
        return Cell(made)
    target.write(made)
    return target


def _same(a: Any, b: Any) -> bool:
    """Whether two values are equal element by element: they are identical, or computed by the same ops from equal
    values.
    """
    if a is b:
        return True
    one, other = getattr(a, "node", None), getattr(b, "node", None)
    if one is None or other is None:
        x, y = known(a), known(b)
        return x is not None and y is not None and x.dtype == y.dtype and np.array_equal(x, y)
    if one.op != other.op or a.spec != b.spec:
        return False
    return a.index == b.index and all(map(_same, one.inputs, other.inputs))


def _each_by_itself(y: Value, sources: Sequence[Any]) -> bool:
    """Whether each element of y depends only on the elements of the sources at the same position."""
    found = set(sources)
    for node in reachable([y]):
        if any(v in found for v in node.inputs):
            if not (node.op.elementwise or isinstance(node.op, Marker)):
                return False
            if any(
                v.shape != sources[0].shape for v in (*node.outputs, *(x for x in node.inputs if x in found))
            ):
                return False
            found |= set(node.outputs)
    return y in found


def _within(given: Any) -> list[Selection]:
    """The selections in nested arguments."""
    if isinstance(given, Selection):
        return [given]
    if isinstance(given, dict):
        given = list(given.values())
    return [s for part in given for s in _within(part)] if isinstance(given, (tuple, list)) else []


def _tensors(given: Any) -> list[Any]:
    """The tensors in nested arguments that are no selections."""
    if isinstance(given, Cell):
        return [given.read()]
    if isinstance(given, dict):
        given = list(given.values())
    return [x for part in given for x in _tensors(part)] if isinstance(given, (tuple, list)) else []


def has_selections(*given: Any) -> bool:
    """Whether any of nested arguments is a selection."""
    return bool(_within(list(given)))


def taken(given: Any) -> Any:
    """Nested arguments or results with the elements alone of each selection. Raises TypeError where their number is
    unknown."""
    if isinstance(given, Selection):
        return given.taken()
    if isinstance(given, dict):
        return {k: taken(v) for k, v in given.items()}
    return type(given)(map(taken, given)) if type(given) in (tuple, list) else given
