"""One node of an ONNX graph as its handler sees it, and the table of handlers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lamina import ops
from lamina.graph import Value
from lamina.graph.ir.graph import tensor_of
from lamina.ops.core import recording
from lamina.spec import DType
from lamina.tensors import Tensor

Array = np.ndarray[Any, Any]
#: A handler gives one value, or one per output.
Handler = Callable[["OnnxNode"], Any]
#: What runs a subgraph: its attribute's value and the values of its inputs -> its outputs.
RunGraph = Callable[[Any, Sequence[Any]], list[Any]]

#: (domain, operator) -> its handler. The default domain is "".
HANDLERS: dict[tuple[str, str], Handler] = {}
#: (domain, operator) -> the inputs whose numbers decide shapes, or which way is taken.
KNOWN: dict[tuple[str, str], tuple[int, ...]] = {}
#: (domain, operator) -> the inputs that are statistics or scales, which training does not move by a gradient.
STATISTICS: dict[tuple[str, str], tuple[int, ...]] = {}

#: The most bytes of a tensor that is made while a graph is recorded.
MOST_BYTES = 1 << 30


class OnnxError(ValueError):
    """What an ONNX model asks for and Lamina does not have, or what its operator does not allow; names the node."""


class UnknownValueError(OnnxError):
    """An input whose numbers decide shapes, or which values are taken, is known only when the program runs."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.input = name


def converts(
    *operators: str, domain: str = "", known: tuple[int, ...] = (), statistics: tuple[int, ...] = ()
) -> Callable[[Handler], Handler]:
    """The decorated function is the handler of these operators.

    known: the inputs whose numbers it asks for. statistics: those that are no parameters of a network.
    """

    def enter(handler: Handler) -> Handler:
        for operator in operators:
            HANDLERS[domain, operator] = handler
            KNOWN[domain, operator] = known
            STATISTICS[domain, operator] = statistics
        return handler

    return enter


class OnnxSequence(list[Any]):
    """A value that is a sequence of tensors (or of sequences), known in length while a graph is recorded."""


@dataclass(frozen=True, eq=False)
class OnnxTexts:
    """A value that is strings: known while a graph is recorded. array: of Python's str objects."""

    array: Array

    @classmethod
    def of(cls, words: Sequence[str], shape: tuple[int, ...]) -> OnnxTexts:
        """Strings in a shape."""
        held = np.empty(len(words), object)
        held[:] = words
        return cls(held.reshape(shape))

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes, one per axis."""
        return tuple(self.array.shape)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return self.array.ndim

    def numpy(self) -> Array:
        """The strings."""
        return self.array

    def __repr__(self) -> str:
        return f"strings{list(self.shape)}"


def is_text(x: Any) -> bool:
    """Whether an input is strings, or an array of them."""
    return isinstance(x, OnnxTexts) or (isinstance(x, np.ndarray) and x.dtype.kind in "OU")


class Absent:
    """What an optional value is that is not there."""

    def __repr__(self) -> str:
        return "an optional value that is absent"


def require_bounded(what: str, nbytes: int) -> None:
    """Raises OnnxError for a constant of more than `MOST_BYTES`."""
    if nbytes > MOST_BYTES:
        raise OnnxError(
            f"{what}: a constant of {nbytes} bytes is refused: at most {MOST_BYTES} are made while reading"
        )


@dataclass(frozen=True)
class Mode:
    """How a call of a graph runs what differs between training and inference.

    training: None where the nodes' own attributes say. batch_statistics: batch norms take those of the batch in
    training. write(name, value): keeps the next value of the tensor of this name. drop(x, p): (y, mask) of dropout.
    """

    training: bool | None = None
    batch_statistics: bool = False
    write: Callable[[str, Any], None] | None = None
    drop: Callable[[Any, float], tuple[Any, Any]] | None = None


@dataclass(frozen=True)
class OnnxNode:
    """An operator with its attributes, as Python values, and what its inputs are; None where one is left out.

    opset: the version of the operator's domain that the model asks for. values: all values by name so far.
    declared: ONNX's element types of inputs that are held in a wider one, by place. makers: the nodes of the same
    graph by what they make.
    """

    operator: str
    name: str
    opset: int
    attributes: Mapping[str, Any]
    inputs: tuple[Any, ...]
    input_names: tuple[str, ...]
    outputs: tuple[str, ...]
    run_graph: RunGraph = field(repr=False)
    mode: Mode = Mode()
    values: Mapping[str, Any] = field(default_factory=dict, repr=False)
    declared: Mapping[int, int] = field(default_factory=dict, repr=False)
    makers: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def error(self, text: str) -> OnnxError:
        """What to raise: the text with the operator and the node's name in front."""
        return OnnxError(f"{self}: {text}")

    def __str__(self) -> str:
        return f"{self.operator} {self.name!r}" if self.name else self.operator

    def get(self, attribute: str, default: Any = None) -> Any:
        """An attribute's value, or what it is by default."""
        return self.attributes.get(attribute, default)

    def needed(self, attribute: str) -> Any:
        """The value of an attribute that must be there."""
        if attribute not in self.attributes:
            raise self.error(f"needs the attribute {attribute}")
        return self.attributes[attribute]

    def input(self, index: int) -> Any:
        """An input that must be there."""
        found = self.optional(index)
        if found is None:
            raise self.error(f"needs input {index}")
        return found

    def optional(self, index: int) -> Any:
        """An input, or None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def asks(self, index: int) -> bool:
        """Whether the graph reads this output."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def known(self, index: int) -> Array:
        """The numbers of an input that must be there. Raises UnknownValueError for a traced value."""
        value = self.input(index)
        found = numbers(value)
        if found is None:
            raise self.unknown(f"input {index}", self.input_names[index])
        return found

    def unknown(self, what: str, name: str) -> UnknownValueError:
        """What to raise where a value that is known only when the program runs decides shapes."""
        return UnknownValueError(
            f"{self}: {what} ({name!r}) decides shapes, so its numbers must be known while the graph is recorded; "
            "give it as an array, store it in the model as an initializer, or call the network on tensors without "
            "compiling it: op by op shapes may depend on numbers",
            name,
        )

    def known_or_none(self, index: int) -> Array | None:
        """`known`, None where the input is left out."""
        return None if self.optional(index) is None else self.known(index)

    def integers(self, index: int, attribute: str | None = None) -> tuple[int, ...] | None:
        """Known integers: of an input, else of an attribute, where older versions have them; None if neither is."""
        found = self.known_or_none(index)
        if found is not None:
            return tuple(int(i) for i in found.reshape(-1))
        listed = None if attribute is None else self.get(attribute)
        return None if listed is None else tuple(listed)

    def number(self, index: int, default: Any = None) -> Any:
        """The one known number of an input, or the default where it is left out."""
        found = self.known_or_none(index)
        if found is None:
            return default
        if found.size != 1:
            raise self.error(f"input {index} must be one number, got shape {found.shape}")
        return found.reshape(()).item()


def numbers(value: Any) -> Array | None:
    """The numbers of a tensor or a constant; None for a value that is known only when the program runs."""
    if isinstance(value, Value):
        value = tensor_of(value)
    if value is None:
        return None
    with recording(None):  # a constant's numbers are there, whatever is traced around it
        return np.asarray(value.numpy())


def as_tensor(array: Any, dtype: DType | None = None) -> Tensor:
    """A tensor of an array or of Python numbers."""
    require_bounded("a constant", np.asarray(array).size * (8 if dtype is None else dtype.itemsize))
    from_array = np.asarray(array) if dtype is None else np.asarray(array).astype(dtype.numpy)
    return ops.operand(from_array)
