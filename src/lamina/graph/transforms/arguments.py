"""The variables of differentiation: the arrays among some arguments of a function, each as a value of its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import index
from typing import Any, Protocol, runtime_checkable

from lamina import _tree
from lamina.graph.ir.capture import Capture, EagerTape
from lamina.graph.ir.graph import Value, tensor_of
from lamina.ops.arguments import shown
from lamina.ops.core import Operand, is_number, recorder
from lamina.ops.primitives.marker import Alias
from lamina.runtime import is_array
from lamina.tensors import Tensor, as_tensor


@runtime_checkable
class HasParameters(Protocol):
    """A module: differentiated with respect to its parameters, by name."""

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters with their names."""


class Gradients(dict[str, Any]):
    """Gradients of a module's parameters by name, with a reference to these parameters.

    parameters: the module's parameters by the same names. Frozen ones (`requires_grad` is False) have no gradient.
    absent: names of parameters that the function does not depend on, whose gradients are zeros here and None in
    torch.
    """

    def __init__(
        self, values: Mapping[str, Any], parameters: Mapping[str, Tensor], absent: Collection[str] = ()
    ) -> None:
        super().__init__(values)
        self.parameters = parameters
        self._zeros: dict[str, tuple[Any, int | None]] = {}
        for name in absent:
            zero = self[name]
            self._zeros[name] = zero, zero.version if isinstance(zero, Tensor) else None

    @property
    def absent(self) -> frozenset[str]:
        """Parameters that the function does not depend on, and whose zeros were neither replaced nor overwritten
        since."""
        kept = [
            (name, zero) for name, (zero, version) in self._zeros.items() if not _is_written(zero, version)
        ]
        return frozenset([name for name, zero in kept if self.get(name) is zero])

    @property
    def like(self) -> GradientsOf:
        """Makes such a dict of a plain one: trees preserve the reference to the parameters."""
        return GradientsOf(self.parameters, self.absent)


def _is_written(x: Any, version: int | None) -> bool:
    """Whether a tensor was written since this version, or a traced value since it was recorded."""
    by = recorder()
    if isinstance(x, Tensor):
        return x.version != version or (isinstance(by, Capture) and id(x) in by.written)
    return isinstance(x, Value) and isinstance(by, Capture) and by.read(x) is not x


class GradientsOf:
    """Makes `Gradients` for the parameters of one module; equal for the same parameters and the same absent ones."""

    def __init__(self, parameters: Mapping[str, Tensor], absent: frozenset[str] = frozenset()) -> None:
        self.parameters, self.absent = parameters, absent

    def __call__(self, values: dict[str, Any]) -> Gradients:
        """The gradients with these values."""
        return Gradients(values, self.parameters, self.absent)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, GradientsOf) or self.parameters.keys() != other.parameters.keys():
            return False
        same = all(p is other.parameters[n] for n, p in self.parameters.items())
        return same and self.absent == other.absent

    def __hash__(self) -> int:
        return hash(tuple(map(id, self.parameters.values())))


def is_nested(*trees: Any) -> bool:
    """Whether a transformation is called within another or within a trace, and so is recorded there."""
    if recorder() is not None:
        return True
    return any(isinstance(x, Value) for x in _tree.flatten(trees, open_dataclasses=True)[0])


def is_plain_record(x: Any) -> bool:
    """Whether it is a dataclass object without tensors or arrays (a configuration), or a module."""
    if not hasattr(type(x), "__dataclass_fields__") or isinstance(x, tuple | list | dict):
        return False
    if isinstance(x, HasParameters):
        return True
    return not any(isinstance(y, Operand) or is_array(y) for y in _tree.flatten(x, open_dataclasses=True)[0])


def tensors(tree: Any) -> Any:
    """The tree with tensors in place of known values. Unknown values stay, and within a trace all values do,
    as they are still to be differentiated."""
    if tree is None or isinstance(tree, Tensor) or recorder() is not None:
        return tree
    found, structure = _tree.flatten(tree, open_dataclasses=True)
    return _tree.unflatten(structure, [_known(x) for x in found])


def _known(x: Any) -> Any:
    if not isinstance(x, Value):
        return x
    found = tensor_of(x)
    return x if found is None else found


def as_positions(argnums: int | Sequence[int], count: int, what: str) -> list[int]:
    """argnums as a list. Raises TypeError, and ValueError for positions out of range."""
    given = argnums if isinstance(argnums, Sequence) else [argnums]
    try:
        found = [index(i) for i in given]
    except TypeError:
        raise TypeError(f"{what}: argnums must be an int or ints, got {shown(argnums)}") from None
    if not found or any(not -count <= i < count for i in found):
        raise ValueError(
            f"{what}: argnums {argnums} names a positional argument that is not there: the call has {count}"
        )
    return [i % count for i in found]


def named_function(fn: Any, what: str) -> Callable[..., Any]:
    """fn itself. Raises TypeError if it is not callable."""
    if not callable(fn):
        raise TypeError(f"{what}: takes a function, got {shown(fn)}")
    return fn  # type: ignore[no-any-return]


class Variables:
    """A tree of arrays and modules, with a value of its own for each array and each parameter.

    tree: as passed to the function. values: the variables of differentiation.
    what, name: for messages: the transformation, and the name of the tree.
    """

    def __init__(self, tree: Any, what: str, name: str) -> None:
        found, self.structure = _tree.flatten(tree, _is_numbers)
        self.values: list[Value] = []
        self._counts: list[dict[str, Tensor] | None] = []  # for each leaf: its parameters, None for an array
        standing = []
        for x, where in zip(found, _tree.names(self.structure, name), strict=True):
            standing.append(self._add(x, what, where))
        self.tree = _tree.unflatten(self.structure, standing)

    def _add(self, x: Any, what: str, where: str) -> Any:
        if not isinstance(x, Operand) and isinstance(x, HasParameters):
            every = dict(x.named_parameters())
            held = {name: p for name, p in every.items() if p.requires_grad}
            by = recorder()
            if by is None:
                raise TypeError(
                    f"{what}: {where} is a {type(x).__name__} within lamina.trace, which knows its arguments alone; "
                    "give its parameters by nn.functional_call, or trace with lamina.jit"
                )
            by.guard(lambda: all(p.requires_grad == (name in held) for name, p in every.items()))
            self.values += [by.read(p) for p in held.values()]  # type: ignore[misc]
            self._counts.append(held)
            return x
        value = variable(x, what, where)
        self.values.append(value)
        self._counts.append(None)
        return value

    def unflatten(self, results: Sequence[Any], zero: Callable[[Value], Any]) -> Any:
        """The tree with results in place of the values; a dict by name in place of a module.

        A result None is absent: `zero` makes its replacement.
        """
        whole = [zero(v) if g is None else g for v, g in zip(self.values, results, strict=True)]
        rest = iter(zip(whole, results, strict=True))
        made = [next(rest)[0] if held is None else _by_name(held, rest) for held in self._counts]
        return _tree.unflatten(self.structure, made)


def _by_name(held: dict[str, Tensor], rest: Iterator[tuple[Any, Any]]) -> Gradients:
    """The gradients of a module's parameters, taken from an iterator of pairs (gradient with zeros, result or
    None)."""
    found = {name: next(rest) for name in held}
    absent = [name for name, (_, result) in found.items() if result is None]
    return Gradients({name: whole for name, (whole, _) in found.items()}, held, absent)


def variable(x: Any, what: str, where: str) -> Value:
    """A new value with the numbers of x. Raises TypeError if x has no derivative."""
    if not (isinstance(x, Operand | list) or is_array(x) or is_number(x)):
        raise TypeError(
            f"{what}: {where} is {shown(x)}, which is no tensor, array or module: leave it out of what is "
            "differentiated (argnums)"
        )
    if not isinstance(x, Value):
        x = as_tensor(x)
    if not x.dtype.is_float:
        raise TypeError(
            f"{what}: {where} is {x.spec}; only floating point values have gradients: cast it, or leave it out of "
            "argnums"
        )
    by = recorder()
    if by is None:
        return Value.bind_op(Alias(), [x])[0]
    if isinstance(by, EagerTape) and not isinstance(x, Value) and by.knows(x) and id(x) not in by.inputs:
        return Value(x.spec, constant=x)  # not differentiated by any other transformation
    return by.call_op(Alias(), [x])  # type: ignore[return-value]


def _is_numbers(tree: Any) -> bool:
    """Whether a list is an array given as numbers: a leaf."""
    return isinstance(tree, list) and bool(tree) and all(is_number(x) or _is_numbers(x) for x in tree)
