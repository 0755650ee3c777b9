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
#: Runs a subgraph: its attribute's value and the values of its inputs -> its outputs.
RunGraph = Callable[[Any, Sequence[Any]], list[Any]]

#: (domain, operator) -> its handler. The default domain is "".
HANDLERS: dict[tuple[str, str], Handler] = {}
#: (domain, operator) -> the inputs whose values determine shapes or control flow.
KNOWN: dict[tuple[str, str], tuple[int, ...]] = {}
#: (domain, operator) -> the inputs that are statistics or scales, which are not trained by gradients.
STATISTICS: dict[tuple[str, str], tuple[int, ...]] = {}

#: The maximum bytes of a tensor that is computed at trace time.
MOST_BYTES = 1 << 30


class OnnxError(ValueError):
    """A part of an ONNX model that Lamina does not support, or that its operator does not allow; names the node."""


class UnknownValueError(OnnxError):
    """An input whose values determine shapes or control flow is known only at run time."""

    def __init__(self, text: str, name: str) -> None:
        super().__init__(text)
        self.input = name


def converts(
    *operators: str, domain: str = "", known: tuple[int, ...] = (), statistics: tuple[int, ...] = ()
) -> Callable[[Handler], Handler]:
    """Registers the decorated function as the handler of these operators.

    known: the inputs whose values it needs. statistics: those that are not parameters of a network.
    """

    def enter(handler: Handler) -> Handler:
        for operator in operators:
            HANDLERS[domain, operator] = handler
            KNOWN[domain, operator] = known
            STATISTICS[domain, operator] = statistics
        return handler

    return enter


class OnnxSequence(list[Any]):
    """A sequence of tensors (or of sequences), of a length known at trace time."""


@dataclass(frozen=True, eq=False)
class OnnxTexts:
    """A string tensor, known at trace time. array: of Python's str objects."""

    array: Array

    @classmethod
    def of(cls, words: Sequence[str], shape: tuple[int, ...]) -> OnnxTexts:
        """The strings in another shape."""
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
    """An absent optional value."""

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
    """The behavior of a call in training or inference.

    training: None if the nodes' own attributes decide. batch_statistics: batch norms use those of the batch in
    training. write(name, value): stores the next value of the tensor of this name. drop(x, p): (y, mask) of dropout.
    """

    training: bool | None = None
    batch_statistics: bool = False
    write: Callable[[str, Any], None] | None = None
    drop: Callable[[Any, float], tuple[Any, Any]] | None = None


@dataclass(frozen=True)
class OnnxNode:
    """An operator with its attributes, as Python values, and its inputs' values; None for an omitted one.

    opset: the version of the operator's domain that the model requests. values: all values by name so far.
    declared: ONNX's element types of inputs that are held in a wider type, by index. makers: the producers in the
    same graph, by output name.
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
        """The exception to raise: the text prefixed with the operator and the node's name."""
        return OnnxError(f"{self}: {text}")

    def __str__(self) -> str:
        return f"{self.operator} {self.name!r}" if self.name else self.operator

    def get(self, attribute: str, default: Any = None) -> Any:
        """An attribute's value, or its default."""
        return self.attributes.get(attribute, default)

    def needed(self, attribute: str) -> Any:
        """The value of a required attribute."""
        if attribute not in self.attributes:
            raise self.error(f"needs the attribute {attribute}")
        return self.attributes[attribute]

    def input(self, index: int) -> Any:
        """A required input."""
        found = self.optional(index)
        if found is None:
            raise self.error(f"needs input {index}")
        return found

    def optional(self, index: int) -> Any:
        """An input, or None if it is omitted."""
        return self.inputs[index] if index < len(self.inputs) else None

    def asks(self, index: int) -> bool:
        """Whether the graph reads this output."""
        return index < len(self.outputs) and bool(self.outputs[index])

    def known(self, index: int) -> Array:
        """The values of a required input. Raises UnknownValueError for a traced value."""
        value = self.input(index)
        found = numbers(value)
        if found is None:
            raise self.unknown(f"input {index}", self.input_names[index])
        return found

    def unknown(self, what: str, name: str) -> UnknownValueError:
        """The exception to raise if a value known only at run time determines shapes."""
        return UnknownValueError(
            f"{self}: {what} ({name!r}) decides shapes, so its numbers must be known while the graph is recorded; "
            "give it as an array, store it in the model as an initializer, or call the network on tensors without "
            "compiling it: op by op shapes may depend on numbers",
            name,
        )

    def known_or_none(self, index: int) -> Array | None:
        """`known`, None if the input is omitted."""
        return None if self.optional(index) is None else self.known(index)

    def integers(self, index: int, attribute: str | None = None) -> tuple[int, ...] | None:
        """Known integers: from an input, else from an attribute, as in older versions; None if neither is there."""
        found = self.known_or_none(index)
        if found is not None:
            return tuple(int(i) for i in found.reshape(-1))
        listed = None if attribute is None else self.get(attribute)
        return None if listed is None else tuple(listed)

    def number(self, index: int, default: Any = None) -> Any:
        """The single known number of an input, or the default if it is omitted."""
        found = self.known_or_none(index)
        if found is None:
            return default
        if found.size != 1:
            raise self.error(f"input {index} must be one number, got shape {found.shape}")
        return found.reshape(()).item()


def numbers(value: Any) -> Array | None:
    """The values of a tensor or a constant; None for a value known only at run time."""
    if isinstance(value, Value):
        value = tensor_of(value)
    if value is None:
        return None
    with recording(None):  # a constant's values are known, whatever is traced around it
        return np.asarray(value.numpy())


def as_tensor(array: Any, dtype: DType | None = None) -> Tensor:
    """A tensor from an array or from Python numbers."""
    require_bounded("a constant", np.asarray(array).size * (8 if dtype is None else dtype.itemsize))
    from_array = np.asarray(array) if dtype is None else np.asarray(array).astype(dtype.numpy)
    return ops.operand(from_array)
