"""The arguments of a call in the form of PyTorch's function, however a graph gives them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.fx import Node

from lamina.convert.torch.cells import Cell
from lamina.convert.torch.node import known
from lamina.convert.torch.targets import name_of, schemas, spelled
from lamina.ops.operators import Operators


def as_called(
    node: Node, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call in the form of PyTorch's function.

    If no overload takes a tensor (for a size, an axis), a known tensor becomes its number; the object of a method
    call is passed where the function expects it (`where`). function: the converted function; Lamina's methods are
    called alike.
    """
    found = schemas(node)
    places = {i for s in found for i, a in enumerate(s.arguments) if "Tensor" in str(a.type)}
    names = {spelled(a.name) for s in found for a in s.arguments if "Tensor" in str(a.type)}
    lists = [i for s in found for i, a in enumerate(s.arguments) if "List[Tensor]" in str(a.type)]
    last = min(lists, default=len(args))  # functions that accept tensors one by one: broadcast_tensors(a, b)
    placed = [_numbers(a) if found and i not in places and i < last else a for i, a in enumerate(args)]
    named = {k: v if spelled(k) in names or not found else _numbers(v) for k, v in kwargs.items()}
    at = {
        [a.name for a in s.arguments].index("self")
        for s in found
        if any(a.name == "self" for a in s.arguments)
    }
    if (
        node.op == "call_method"
        and len(at) == 1
        and 0 not in at
        and function is not getattr(Operators, name_of(node), None)
    ):
        placed.insert(at.pop(), placed.pop(0))
    return placed, named


def _numbers(value: Any) -> Any:
    """Replace known tensors of one element by their numbers, in sequences too."""
    if isinstance(value, (tuple, list)) and any(isinstance(v, Cell) for v in value):
        return [_numbers(v) for v in value]
    if not isinstance(value, Cell):
        return value
    array = known(value.read())
    return value if array is None or array.size != 1 else array.item()
