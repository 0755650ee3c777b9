"""What a function is differentiated in: the arrays among some of its arguments, as values of their own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from operator import index
from typing import Any, Protocol, runtime_checkable

from lamina import _tree
from lamina.graph.ir.graph import Capture, EagerTape, Value, tensor_of
from lamina.ops.arguments import shown
from lamina.ops.core import Operand, is_number, recorder
from lamina.ops.primitives.marker import Alias
from lamina.runtime import is_array
from lamina.tensors import Tensor, as_tensor


@runtime_checkable
class HasParameters(Protocol):
    """A module: its derivative is that of its parameters, by name."""

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters with their names."""


class Gradients(dict[str, Any]):
    """Gradients of a module's parameters by name, which knows whose they are.

    parameters: the module's parameters by the same names. What is frozen (`requires_grad` is False) has no gradient.
    absent: the names of those that the function does not depend on, whose gradients are zeros here and None in torch.
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
        """Those that the function does not depend on, and whose zeros were neither exchanged nor written since."""
        kept = [
            (name, zero) for name, (zero, version) in self._zeros.items() if not _is_written(zero, version)
        ]
        return frozenset([name for name, zero in kept if self.get(name) is zero])

    @property
    def like(self) -> GradientsOf:
        """What makes such a dict of a plain one: trees keep whose the gradients are."""
        return GradientsOf(self.parameters, self.absent)


def _is_written(x: Any, version: int | None) -> bool:
    """Whether a tensor was written since it had this version, or a traced value since it was recorded."""
    by = recorder()
    if isinstance(x, Tensor):
        return x.version != version or (isinstance(by, Capture) and id(x) in by.written)
    return isinstance(x, Value) and isinstance(by, Capture) and by.read(x) is not x


class GradientsOf:
    """Makes gradients of the parameters of one module; equal for the same parameters and the same absent ones."""

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
    """Whether a transformation stands within another, or within a trace: then it is recorded there."""
    if recorder() is not None:
        return True
    return any(isinstance(x, Value) for x in _tree.flatten(trees, open_dataclasses=True)[0])


def is_plain_record(x: Any) -> bool:
    """Whether it is an object of a dataclass without tensors and arrays in it: a configuration, a module."""
    if not hasattr(type(x), "__dataclass_fields__") or isinstance(x, tuple | list | dict):
        return False
    if isinstance(x, HasParameters):
        return True
    return not any(isinstance(y, Operand) or is_array(y) for y in _tree.flatten(x, open_dataclasses=True)[0])


def tensors(tree: Any) -> Any:
    """The tree with the tensors of the values in it. Those that are not known stay, and all of them where something
    records: a derivative of these is still to come."""
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
    """argnums as a list. Raises TypeError and ValueError for positions that are not there."""
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
    """fn itself. Raises TypeError for what cannot be called."""
    if not callable(fn):
        raise TypeError(f"{what}: takes a function, got {shown(fn)}")
    return fn  # type: ignore[no-any-return]


class Variables:
    """A tree of arrays and modules, with a value of its own for each array and each parameter.

    tree: as a function is to get it. values: what is differentiated in.
    what, name: for messages: the transformation, and how the tree is called.
    """

    def __init__(self, tree: Any, what: str, name: str) -> None:
        found, self.structure = _tree.flatten(tree, _is_numbers)
        self.values: list[Value] = []
        self._counts: list[dict[str, Tensor] | None] = []  # of each leaf: its parameters, None for an array
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
        """The tree with results in place of the values: of a module a dict by name.

        What is None there is absent: zero gives what stands in its place.
        """
        whole = [zero(v) if g is None else g for v, g in zip(self.values, results, strict=True)]
        rest = iter(zip(whole, results, strict=True))
        made = [next(rest)[0] if held is None else _by_name(held, rest) for held in self._counts]
        return _tree.unflatten(self.structure, made)


def _by_name(held: dict[str, Tensor], rest: Iterator[tuple[Any, Any]]) -> Gradients:
    """The gradients of a module's parameters; of pairs (whole, result) the next ones are theirs."""
    found = {name: next(rest) for name in held}
    absent = [name for name, (_, result) in found.items() if result is None]
    return Gradients({name: whole for name, (whole, _) in found.items()}, held, absent)


def variable(x: Any, what: str, where: str) -> Value:
    """A value of its own with the numbers of x. Raises TypeError for what has no derivative."""
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
        return Value(x.spec, constant=x)  # of which no other derivative is taken
    return by.call_op(Alias(), [x])  # type: ignore[return-value]


def _is_numbers(tree: Any) -> bool:
    """Whether a list is an array in numbers: a leaf."""
    return isinstance(tree, list) and bool(tree) and all(is_number(x) or _is_numbers(x) for x in tree)
