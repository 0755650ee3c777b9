"""Operators: Python's operators and torch.Tensor's methods, for tensors and traced values alike.

A method *is* the function of `lamina.ops` of the same name, the operand being its first argument: `METHODS`
is the one list. Written out are only the methods that torch calls otherwise than the function (`reshape(2, 3)`),
and Python's own. What a type checker knows of them is generated from here (`python -m tools.stubs write`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod
from types import EllipsisType
from typing import Any, Generic, TypeAlias, TypeVar

import numpy as np

from lamina import ops
from lamina.ops.core import Operand, operand

#: What may stand between the brackets of an index.
Index: TypeAlias = "int | slice | EllipsisType | Operand | np.ndarray[Any, Any] | Sequence[int] | None"
#: What an operand's methods give: Tensor for tensors, Value for traced values.
Own = TypeVar("Own")

#: Functions of `lamina.ops` that are methods too: those that torch.Tensor has.
METHODS = (
    "abs", "add", "addmm", "amax", "amin", "argmax", "argmin", "baddbmm", "bmm", "ceil", "chunk", "clamp",
    "cos", "cumsum", "dequantize", "div", "dot", "eq", "erf", "exp", "flatten", "floor", "ge", "gt", "le", "log",
    "log_softmax", "logical_and", "logical_not", "logical_or", "logsumexp", "lt", "matmul", "max", "maximum",
    "mean", "min", "minimum", "mm", "mul", "mv", "ne", "neg", "outer", "pow", "prelu", "prod", "reciprocal",
    "relu", "rsqrt", "sigmoid", "sign", "sin", "softmax", "split", "sqrt", "square", "squeeze", "std", "sub",
    "sum", "tan", "tanh", "transpose", "trunc", "unsqueeze", "var",
)  # fmt: skip
#: Lamina's own: what gradients and layers are often written with.
OWN_METHODS = ("cast", "gelu", "silu", "softplus", "sum_to")


class Operators(Operand, Generic[Own]):
    """An operand with operators. `==` and `!=` compare elementwise; operands are hashed by identity."""

    __slots__ = ()
    __hash__ = object.__hash__

    def __add__(self, other: Any) -> Any:
        return ops.add(self, other)

    def __radd__(self, other: Any) -> Any:
        return ops.add(other, self)

    def __sub__(self, other: Any) -> Any:
        return ops.sub(self, other)

    def __rsub__(self, other: Any) -> Any:
        return ops.sub(other, self)

    def __mul__(self, other: Any) -> Any:
        return ops.mul(self, other)

    def __rmul__(self, other: Any) -> Any:
        return ops.mul(other, self)

    def __truediv__(self, other: Any) -> Any:
        return ops.div(self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return ops.div(other, self)

    def __pow__(self, other: Any) -> Any:
        return ops.pow(self, other)

    def __rpow__(self, other: Any) -> Any:
        return ops.pow(other, self)

    def __matmul__(self, other: Any) -> Any:
        return ops.matmul(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        return ops.matmul(other, self)

    def __neg__(self) -> Any:
        return ops.neg(self)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return ops.abs(self)

    def __eq__(self, other: Any) -> Any:
        return ops.eq(self, other)

    def __ne__(self, other: Any) -> Any:
        return ops.ne(self, other)

    def __lt__(self, other: Any) -> Any:
        return ops.lt(self, other)

    def __le__(self, other: Any) -> Any:
        return ops.le(self, other)

    def __gt__(self, other: Any) -> Any:
        return ops.gt(self, other)

    def __ge__(self, other: Any) -> Any:
        return ops.ge(self, other)

    def __and__(self, other: Any) -> Any:
        return ops.logical_and(self, other)

    def __rand__(self, other: Any) -> Any:
        return ops.logical_and(other, self)

    def __or__(self, other: Any) -> Any:
        return ops.logical_or(self, other)

    def __ror__(self, other: Any) -> Any:
        return ops.logical_or(other, self)

    def __invert__(self) -> Any:
        return ops.logical_not(self)

    def __getitem__(self, key: Index | tuple[Index, ...]) -> Any:
        return ops.getitem(self, key)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("a tensor of shape () has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy's functions on an operand are the ops of the same meaning: array + x, np.maximum(x, 0)."""
        name = UFUNCS.get(ufunc.__name__, ufunc.__name__)
        if method != "__call__" or options or name not in ops.__all__:
            what = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
            raise TypeError(
                f"numpy.{what} knows no {type(self).__name__}; use lamina.ops, or x.numpy() of a tensor"
            )
        return getattr(ops, name)(*inputs)

    # ---- what it is
    def dim(self) -> int:
        """The number of axes."""
        return self.ndim

    def numel(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    def is_floating_point(self) -> bool:
        """Whether the elements are floating point numbers."""
        return self.dtype.is_float

    @property
    def T(self) -> Any:
        """The axes in reverse order."""
        return ops.permute(self, tuple(reversed(range(self.ndim))))

    @property
    def mT(self) -> Any:
        """The last two axes exchanged: matrices transposed. Raises ShapeError for less than two axes."""
        return self.transpose(-2, -1)

    # ---- shapes, given one by one or as one sequence
    def reshape(self, *shape: int | Sequence[int]) -> Any:
        """The elements under another shape; one size may be -1."""
        return ops.reshape(self, sizes(shape))

    def view(self, *shape: int | Sequence[int]) -> Any:
        """As `reshape`: the memory is shared where the layout allows it, copied elsewhere."""
        return ops.reshape(self, sizes(shape))

    def permute(self, *dims: int | Sequence[int]) -> Any:
        """The axes in another order."""
        return ops.permute(self, sizes(dims))

    def expand(self, *shape: int | Sequence[int]) -> Any:
        """Repeated along axes of size 1 and new axes in front; -1 keeps a size."""
        given = sizes(shape)
        own = (1,) * (len(given) - self.ndim) + self.shape
        return ops.expand(self, tuple(o if s == -1 else s for s, o in zip(given, own, strict=True)))

    def expand_as(self, other: Operand) -> Any:
        """Repeated up to the shape of another tensor."""
        return ops.expand(self, operand(other, "expand_as", "other").shape)

    def view_as(self, other: Operand) -> Any:
        """The elements under the shape of another tensor."""
        return ops.reshape(self, operand(other, "view_as", "other").shape)

    def flip(self, *dims: int | Sequence[int]) -> Any:
        """Reversed along axes."""
        return ops.flip(self, sizes(dims))

    # ---- choices
    def where(self, condition: Any, other: Any) -> Any:
        """This where condition (boolean) is true, else other."""
        return ops.where(condition, self, other)

    # ---- dtypes
    def type_as(self, other: Operand) -> Any:
        """In the dtype of another tensor."""
        return ops.cast(self, operand(other, "type_as", "other").dtype)

    def double(self) -> Any:
        """In float64."""
        return ops.cast(self, "float64")

    def float(self) -> Any:
        """In float32."""
        return ops.cast(self, "float32")

    def half(self) -> Any:
        """In float16."""
        return ops.cast(self, "float16")

    def bfloat16(self) -> Any:
        """In bfloat16."""
        return ops.cast(self, "bfloat16")

    def long(self) -> Any:
        """In int64."""
        return ops.cast(self, "int64")

    def int(self) -> Any:
        """In int32."""
        return ops.cast(self, "int32")

    def bool(self) -> Any:
        """In bool: whether an element is not 0."""
        return ops.ne(self, 0)


#: NumPy's functions whose op has another name.
UFUNCS = {
    "subtract": "sub", "multiply": "mul", "divide": "div", "power": "pow", "negative": "neg", "absolute": "abs",
    "equal": "eq", "not_equal": "ne", "less": "lt", "less_equal": "le", "greater": "gt", "greater_equal": "ge",
    "bitwise_and": "logical_and", "bitwise_or": "logical_or", "invert": "logical_not",
}  # fmt: skip


def sizes(given: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes given one by one or as one sequence."""
    if len(given) == 1 and not hasattr(given[0], "__index__"):
        return tuple(given[0])
    return given


for _name in METHODS + OWN_METHODS:
    setattr(Operators, _name, getattr(ops, _name))
