"""Operators: Python's operators and torch.Tensor's methods, for tensors and traced values alike.

A method *is* the function of `lamina.ops` of the same name with the operand as its first argument: `METHODS` is the
single list. Written out are only methods whose signature differs from the function's in torch (`reshape(2, 3)`), and
Python's own. Type stubs are generated from here (`python -m tools.stubs write`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from math import log1p, pi, prod
from types import EllipsisType
from typing import TYPE_CHECKING, Any, Generic, TypeAlias, TypeVar

import numpy as np

from lamina import ops
from lamina.ops.arguments import DTypeLike, is_dtype, one_by_one, shown
from lamina.ops.core import DeviceLike, Operand, operand, owned
from lamina.ops.names import ALIASES, RENAMED
from lamina.ops.primitives.arrange import windows
from lamina.ops.primitives.generator import GeneratorLike
from lamina.ops.primitives.index import At
from lamina.spec import ShapeError, as_dtype, as_shape

#: Types allowed in an index expression.
Index: TypeAlias = "int | slice | EllipsisType | Operand | np.ndarray[Any, Any] | Sequence[int] | None"
#: Return type of an operand's methods: Tensor for tensors, Value for traced values.
Own = TypeVar("Own")

#: Functions of `lamina.ops` that are also methods: those that torch.Tensor has.
METHODS = (
    "abs", "acos", "acosh", "add", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "all", "allclose",
    "amax", "amin", "aminmax", "angle", "any", "argmax", "argmin", "argsort", "argwhere", "asin", "asinh", "atan",
    "atan2", "atanh", "baddbmm", "bernoulli", "bincount", "bitwise_and", "bitwise_left_shift", "bitwise_not",
    "bitwise_or", "bitwise_right_shift", "bitwise_xor", "bmm", "ceil", "cholesky_inverse", "cholesky_solve",
    "chunk", "clamp", "clamp_max", "clamp_min", "copysign", "corrcoef", "cos", "cosh", "count_nonzero", "cov",
    "cross", "cummax", "cummin", "cumprod", "cumsum", "deg2rad", "dequantize", "det", "diag", "diag_embed",
    "diagflat", "diagonal", "diagonal_scatter", "diff", "digamma", "dist", "div", "dot", "dsplit", "eq", "equal",
    "erf", "erfc", "erfinv", "exp", "exp2", "expm1", "flatten", "fliplr", "flipud", "float_power", "floor",
    "floor_divide", "fmax", "fmin", "fmod", "frac", "frexp", "gather", "gcd", "ge", "gt", "hardshrink", "heaviside",
    "histc", "hsplit", "hypot", "i0", "igamma", "igammac", "index_add", "index_copy", "index_fill", "index_put",
    "index_reduce", "index_select", "inner", "inverse", "is_nonzero", "isclose", "isfinite", "isinf", "isnan",
    "isneginf", "isposinf", "isreal", "istft", "kron", "kthvalue", "lcm", "ldexp", "le", "lerp", "lgamma", "log",
    "log10", "log1p", "log2", "log_softmax", "logaddexp", "logaddexp2", "logcumsumexp", "logdet", "logical_and",
    "logical_not", "logical_or", "logical_xor", "logit", "logsumexp", "lt", "masked_fill", "masked_scatter",
    "masked_select", "matmul", "matrix_exp", "matrix_power", "max", "maximum", "mean", "median", "min", "minimum",
    "mm", "mode", "movedim", "msort", "mul", "multinomial", "mv", "mvlgamma", "nan_to_num", "nanmean", "nanmedian",
    "nanquantile", "nansum", "narrow", "ne", "neg", "nextafter", "nonzero", "norm", "outer", "pinverse", "positive",
    "pow", "prelu", "prod", "put", "quantile", "rad2deg", "ravel", "reciprocal", "relu", "remainder", "renorm",
    "repeat_interleave", "roll", "rot90", "round", "rsqrt", "scatter", "scatter_add", "scatter_reduce", "select",
    "select_scatter", "sgn", "sigmoid", "sign", "signbit", "sin", "sinc", "sinh", "slice_scatter", "slogdet",
    "softmax", "sort", "split", "split_with_sizes", "sqrt", "square", "squeeze", "std", "stft", "sub", "sum",
    "swapaxes", "t", "take", "take_along_dim", "tan", "tanh", "tensor_split", "topk", "trace", "transpose", "tril",
    "triu", "true_divide", "trunc", "unbind", "unflatten", "unique", "unique_consecutive", "unsqueeze", "var",
    "vdot", "vsplit", "xlogy",
)  # fmt: skip
#: Those that torch also has with a trailing underscore: the result is written to the operand in place.
IN_PLACE = (
    "abs", "acos", "acosh", "add", "addbmm", "addcdiv", "addcmul", "addmm", "addmv", "addr", "asin", "asinh", "atan",
    "atan2", "atanh", "baddbmm", "bitwise_and", "bitwise_left_shift", "bitwise_not", "bitwise_or",
    "bitwise_right_shift", "bitwise_xor", "ceil", "clamp", "clamp_max", "clamp_min", "copysign", "cos", "cosh",
    "cumprod", "cumsum", "deg2rad", "digamma", "div", "eq", "erf", "erfc", "erfinv", "exp", "exp2", "expm1",
    "float_power", "floor", "floor_divide", "fmod", "frac", "gcd", "ge", "gt", "heaviside", "hypot", "i0", "igamma",
    "igammac", "index_add", "index_copy", "index_fill", "index_put", "index_reduce", "lcm", "ldexp", "le", "lerp",
    "lgamma", "log", "log10", "log1p", "log2", "logical_and", "logical_not", "logical_or", "logical_xor", "logit",
    "lt", "masked_fill", "masked_scatter", "mul", "mvlgamma", "nan_to_num", "ne", "neg", "nextafter", "pow", "put",
    "rad2deg", "reciprocal", "relu", "remainder", "renorm", "round", "rsqrt", "scatter", "scatter_add",
    "scatter_reduce", "sgn", "sigmoid", "sign", "sin", "sinc", "sinh", "sqrt", "square", "sub", "tan", "tanh", "tril",
    "triu", "true_divide", "trunc", "xlogy",
)  # fmt: skip
#: Lamina's own: functions that gradients and layers use often.
OWN_METHODS = ("cast", "gelu", "silu", "softplus", "sum_to")


#: Attributes of torch.Tensor that an operand lacks, and what to write instead.
INSTEAD = {
    "backward": "no operand remembers how it was made: take lamina.grad or lamina.value_and_grad of a function, or "
    "lamina.train_step",
    "grad": "gradients are values of their own: lamina.grad and lamina.value_and_grad give them",
    "grad_fn": "no operand remembers how it was made: lamina.trace gives the graph of a function",
    "requires_grad": "what a derivative is taken of are the arguments of the function; parameters alone say it",
    "requires_grad_": "what a derivative is taken of are the arguments of the function; a parameter is frozen by "
    "its requires_grad",
    "register_hook": "a gradient is changed on its way back by lamina.custom_vjp",
    "as_strided": "windows of an axis are x.unfold(dimension, size, step), parts x[…] and x.narrow, repeats x.expand",
    "data_ptr": "x.buffer.pointer is where a tensor's memory begins",
    "resize_": "a tensor keeps its size: make another, or x = x.reshape(…)",
    "set_": "a tensor keeps its memory: copy_ writes its values",
    "pin_memory": "what goes to a GPU goes by way of pinned memory in any case: leave the line out",
    "retain_grad": "a gradient of something in between is taken by a function that begins there: lamina.grad",
}


class Operators(Operand, Generic[Own]):
    """An operand with operators. `==` and `!=` compare elementwise (None and strings differ from any operand, as in
    torch); operands are hashed by identity."""

    __slots__ = ()
    __hash__ = object.__hash__

    if not TYPE_CHECKING:  # to a type checker it would mean that every attribute exists

        def __getattr__(self, name: str) -> Any:
            """Say what to write instead. Raises AttributeError."""
            if hasattr(type(self), name):
                return object.__getattribute__(self, name)  # a property that raised it
            raise AttributeError(_without(self, name), name=name, obj=self)

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

    def __floordiv__(self, other: Any) -> Any:
        return ops.floor_divide(self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return ops.floor_divide(other, self)

    def __mod__(self, other: Any) -> Any:
        return ops.remainder(self, other)

    def __rmod__(self, other: Any) -> Any:
        return ops.remainder(other, self)

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
        return NotImplemented if other is None or isinstance(other, str) else ops.eq(self, other)

    def __ne__(self, other: Any) -> Any:
        return NotImplemented if other is None or isinstance(other, str) else ops.ne(self, other)

    def __lt__(self, other: Any) -> Any:
        return ops.lt(self, other)

    def __le__(self, other: Any) -> Any:
        return ops.le(self, other)

    def __gt__(self, other: Any) -> Any:
        return ops.gt(self, other)

    def __ge__(self, other: Any) -> Any:
        return ops.ge(self, other)

    def __and__(self, other: Any) -> Any:
        return ops.bitwise_and(self, other)

    def __rand__(self, other: Any) -> Any:
        return ops.bitwise_and(other, self)

    def __or__(self, other: Any) -> Any:
        return ops.bitwise_or(self, other)

    def __ror__(self, other: Any) -> Any:
        return ops.bitwise_or(other, self)

    def __xor__(self, other: Any) -> Any:
        return ops.bitwise_xor(self, other)

    def __rxor__(self, other: Any) -> Any:
        return ops.bitwise_xor(other, self)

    def __lshift__(self, other: Any) -> Any:
        return ops.bitwise_left_shift(self, other)

    def __rlshift__(self, other: Any) -> Any:
        return ops.bitwise_left_shift(other, self)

    def __rshift__(self, other: Any) -> Any:
        return ops.bitwise_right_shift(self, other)

    def __rrshift__(self, other: Any) -> Any:
        return ops.bitwise_right_shift(other, self)

    def __invert__(self) -> Any:
        return ops.bitwise_not(self)

    def __getitem__(self, key: Index | tuple[Index, ...]) -> Any:
        return ops.getitem(self, key)

    @property
    def at(self) -> At:
        """`x.at[key].set(values)`, `.add`, `.mul`, `.min`, `.max`: a copy of x updated at a key; x is unchanged."""
        return At(self)

    def __len__(self) -> int:
        if self.ndim == 0:
            raise TypeError("a tensor of shape () has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[Any]:
        return (self[i] for i in range(len(self)))

    def __contains__(self, element: Any) -> bool:
        """Whether any element equals a number, or, as in torch, the corresponding element of a tensor."""
        return bool(ops.any(ops.eq(self, element)))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        """NumPy functions on an operand map to the corresponding ops: array + x, np.maximum(x, 0)."""
        name = UFUNCS.get(ufunc.__name__, ufunc.__name__)
        if method != "__call__" or options or name not in ops.__all__:
            what = ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"
            raise TypeError(
                f"numpy.{what} knows no {type(self).__name__}; use lamina.ops, or x.numpy() of a tensor"
            )
        return getattr(ops, name)(*inputs)

    # ---- properties
    def dim(self) -> int:
        """The number of axes."""
        return self.ndim

    def numel(self) -> int:
        """The number of elements."""
        return prod(self.shape)

    def nelement(self) -> int:
        """The number of elements."""
        return self.numel()

    def size(self, dim: int | None = None) -> Any:
        """The shape, or the size of one axis. Raises IndexError for an axis out of range."""
        if dim is None:
            return self.shape
        if not isinstance(dim, (int, np.integer)) or isinstance(dim, bool):
            raise TypeError(f"size: dim must be an int, got {shown(dim)}")
        if not -self.ndim <= dim < self.ndim:
            raise IndexError(f"size: dim must be within the {self.ndim} axes of {self.spec}, got {dim}")
        return self.shape[dim]

    def element_size(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def itemsize(self) -> int:
        """Bytes of one element."""
        return self.dtype.itemsize

    @property
    def is_leaf(self) -> bool:
        """Whether it is not the result of an op: True for tensors, which record no history, and a trace's inputs."""
        return True

    def stride(self, dim: int | None = None) -> Any:
        """The strides in elements, or that of one axis; row-major for a traced value.

        Raises IndexError for an axis out of range, TypeError for a blocked layout, which has no strides.
        """
        if dim is None:
            return self._strides()
        if not -self.ndim <= dim < self.ndim:
            raise IndexError(f"stride: dim must be within the {self.ndim} axes of {self.spec}, got {dim}")
        return self._strides()[dim]

    def _strides(self) -> tuple[int, ...]:
        return tuple(prod(self.shape[i + 1 :]) for i in range(self.ndim))

    def storage_offset(self) -> int:
        """0: an operand starts at the beginning of its memory, also a view, which has memory of its own."""
        return 0

    def is_signed(self) -> bool:
        """Whether the elements may be negative."""
        return self.dtype.kind in "if"

    def is_complex(self) -> bool:
        """Always False: there are no complex dtypes."""
        return False

    def is_same_size(self, other: Operand) -> bool:
        """Whether another operand has the same shape."""
        return self.shape == operand(other, "is_same_size", "other").shape

    def ndimension(self) -> int:
        """The number of axes."""
        return self.ndim

    def get_device(self) -> int:
        """The number of the GPU, -1 on a CPU."""
        return self.device.index if self.device.kind == "cuda" else -1

    def is_floating_point(self) -> bool:
        """Whether the elements are floating point numbers."""
        return self.dtype.is_float

    @property
    def T(self) -> Any:
        """The axes in reverse order."""
        return ops.permute(self, tuple(reversed(range(self.ndim))))

    @property
    def mT(self) -> Any:
        """The last two axes swapped: matrices transposed. Raises ShapeError for fewer than two axes."""
        return self.transpose(-2, -1)

    @property
    def H(self) -> Any:
        """A matrix transposed. Raises ShapeError unless there are two axes."""
        if self.ndim != 2:
            raise ShapeError(f"H: needs a matrix, got {self.spec}; x.mH transposes the last two axes")
        return self.mT

    @property
    def mH(self) -> Any:
        """Like `mT`: there are no complex numbers to conjugate."""
        return self.mT

    def adjoint(self) -> Any:
        """Like `mT`: there are no complex numbers to conjugate."""
        return self.mT

    # ---- shapes, as separate arguments or one sequence
    @one_by_one
    def reshape(self, *shape: int | Sequence[int]) -> Any:
        """The elements in another shape; one size may be -1."""
        return ops.reshape(self, sizes(shape))

    @one_by_one
    def view(self, *size: int | Sequence[int]) -> Any:
        """Like `reshape`: shares memory where the layout allows it, otherwise copies.

        Raises TypeError for a dtype: reinterpreting bits is not supported.
        """
        if size and not isinstance(size[0], (int, tuple, list)) and is_dtype(size[0]):
            raise TypeError(
                f"view: takes sizes, got {shown(size[0])}: to(dtype) converts numbers; the bits of another dtype are "
                "those of NumPy's array, lamina.from_dlpack(x.numpy().view(…))"
            )
        return ops.reshape(self, sizes(size))

    @one_by_one
    def permute(self, *dims: int | Sequence[int]) -> Any:
        """The axes in another order."""
        return ops.permute(self, sizes(dims))

    @one_by_one
    def expand(self, *size: int | Sequence[int]) -> Any:
        """Repeated along axes of size 1 and new leading axes; -1 keeps a size."""
        given = sizes(size)
        own = (1,) * (len(given) - self.ndim) + self.shape
        if len(given) < self.ndim:
            raise ShapeError(f"expand: size {given} has fewer axes than {self.spec}")
        return ops.expand(self, tuple(o if s == -1 else s for s, o in zip(given, own, strict=True)))

    @one_by_one
    def broadcast_to(self, *size: int | Sequence[int]) -> Any:
        """`expand` under NumPy's name."""
        return ops.broadcast_to(self, sizes(size))

    def expand_as(self, other: Operand) -> Any:
        """Expanded to the shape of another tensor."""
        return ops.expand(self, operand(other, "expand_as", "other").shape)

    def reshape_as(self, other: Operand) -> Any:
        """The elements in the shape of another tensor."""
        return ops.reshape(self, operand(other, "reshape_as", "other").shape)

    def view_as(self, other: Operand) -> Any:
        """The elements in the shape of another tensor."""
        return ops.reshape(self, operand(other, "view_as", "other").shape)

    @one_by_one
    def repeat(self, *repeats: int | Sequence[int]) -> Any:
        """Repeated along its axes and new leading ones: one count each. torch.Tensor.repeat."""
        counts = sizes(repeats)
        if len(counts) < self.ndim:
            raise ShapeError(
                f"repeat: needs {self.ndim} numbers or more for {self.spec}, got {tuple(counts)}"
            )
        return ops.tile(self, counts)

    @one_by_one
    def tile(self, *dims: int | Sequence[int]) -> Any:
        """Repeated along its axes, the last ones if there are fewer counts. torch.Tensor.tile."""
        return ops.tile(self, sizes(dims))

    @one_by_one
    def flip(self, *dims: int | Sequence[int]) -> Any:
        """Reversed along axes."""
        return ops.flip(self, sizes(dims))

    def unfold(self, dimension: int, size: int, step: int) -> Any:
        """Windows of an axis with stride `step`, their elements along a new last axis. torch.Tensor.unfold."""
        return windows(self, dimension, size, step)

    def sum_to_size(self, *size: int | Sequence[int]) -> Any:
        """Summed to a shape that broadcasts to its own: `ops.sum_to`. Raises ShapeError otherwise."""
        return ops.sum_to(self, sizes(size))

    # ---- derived tensors
    def detach(self) -> Any:
        """Itself as a constant for derivatives: `ops.stop_gradient`."""
        return ops.stop_gradient(self)

    @property
    def data(self) -> Any:
        """Itself detached from differentiation, like `detach`."""
        return self.detach()

    # ---- device and memory
    @property
    def device(self) -> DeviceLike:
        """The device of the values; for a traced value, that of its program."""
        raise NotImplementedError

    @property
    def is_cuda(self) -> bool:
        """Whether the values are on a GPU."""
        return self.device.kind == "cuda"

    @property
    def is_cpu(self) -> bool:
        """Whether the values are on the CPU."""
        return self.device.kind == "cpu"

    def to(
        self,
        *where: DeviceLike | DTypeLike | Operand | None,
        device: DeviceLike | str | None = None,
        dtype: DTypeLike | None = None,
        non_blocking: bool = False,
        copy: bool = False,
    ) -> Any:
        """Moved to another device, dtype, or both. where: one, both in any order, or a tensor that has them."""
        raise NotImplementedError

    def cpu(self) -> Any:
        """On the CPU; itself if already there."""
        return self.to("cpu")

    def cuda(self, device: int | str | DeviceLike = 0) -> Any:
        """On a GPU; itself if already there. Raises NoGpuError."""
        return self.to(f"cuda:{device}" if isinstance(device, int) else device)

    def is_contiguous(self) -> bool:
        """Whether the elements are row-major; always True for a traced value, whose layout is not observable."""
        return True

    def contiguous(self) -> Any:
        """Itself for a traced value: its layout is decided when the graph is planned."""
        return self

    def clone(self) -> Any:
        """A copy of the values, unaffected by writes to this one; gradients pass through."""
        return self

    def new_full(
        self,
        size: int | Sequence[int],
        fill_value: complex,
        *,
        dtype: DTypeLike | None = None,
        device: DeviceLike | str | None = None,
    ) -> Any:
        """A constant tensor of this dtype unless one is given, placed where it is used or on a device."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        # In the target dtype at once: a tensor of the function's own may be written, whereas a cast would be
        # recorded.
        values = np.full(as_shape(size), fill_value)
        with np.errstate(all="ignore"):
            found = owned(operand(values if values.dtype.kind == "c" else values.astype(kind.numpy)))
        return found if device is None else found.to(device)

    @one_by_one
    def new_zeros(
        self,
        *size: int | Sequence[int],
        dtype: DTypeLike | None = None,
        device: DeviceLike | str | None = None,
    ) -> Any:
        """Zeros, of this dtype unless one is given, placed where they are used or on a device."""
        return self.new_full(sizes(size), 0, dtype=dtype, device=device)

    @one_by_one
    def new_ones(
        self,
        *size: int | Sequence[int],
        dtype: DTypeLike | None = None,
        device: DeviceLike | str | None = None,
    ) -> Any:
        """Ones, of this dtype unless one is given, placed where they are used or on a device."""
        return self.new_full(sizes(size), 1, dtype=dtype, device=device)

    @one_by_one
    def new_empty(
        self,
        *size: int | Sequence[int],
        dtype: DTypeLike | None = None,
        device: DeviceLike | str | None = None,
    ) -> Any:
        """Like `new_zeros`: uninitialized memory is never returned."""
        return self.new_zeros(*size, dtype=dtype, device=device)

    def new_tensor(
        self, data: Any, *, dtype: DTypeLike | None = None, device: DeviceLike | str | None = None
    ) -> Any:
        """A copy of data, of this dtype unless one is given, placed where it is used or on a device."""
        kind = self.dtype if dtype is None else as_dtype(dtype)
        found = ops.cast(data if isinstance(data, Operand) else owned(operand(np.array(data))), kind)
        return found if device is None else found.to(device)

    # ---- selection
    def where(self, condition: Any, other: Any) -> Any:
        """This where condition (boolean) is true, other elsewhere."""
        return ops.where(condition, self, other)

    def polygamma(self, n: int) -> Any:
        """The n-th derivative of the digamma function. `ops.polygamma` has n first, as in torch."""
        return ops.polygamma(n, self)

    # ---- dtypes
    def type(self, dtype: DTypeLike) -> Any:
        """In another dtype. Raises TypeError for what is no dtype."""
        return ops.cast(self, dtype)

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

    def short(self) -> Any:
        """In int16."""
        return ops.cast(self, "int16")

    def char(self) -> Any:
        """In int8."""
        return ops.cast(self, "int8")

    def byte(self) -> Any:
        """In uint8."""
        return ops.cast(self, "uint8")

    def long(self) -> Any:
        """In int64."""
        return ops.cast(self, "int64")

    def int(self) -> Any:
        """In int32."""
        return ops.cast(self, "int32")

    def bool(self) -> Any:
        """In bool: whether an element is not 0."""
        return ops.ne(self, 0)


class InPlace(Operators[Own]):
    """In-place operators: for each method in `IN_PLACE`, torch's variant with a trailing `_`.

    The result is computed as usual and then written to the operand (`copy_`), in its dtype.
    """

    __slots__ = ()

    def copy_(self, values: Any, non_blocking: bool = False) -> Any:
        """Overwrite the values."""
        raise NotImplementedError

    def _overwrite(self, name: str, made: Any) -> Any:
        """Write the result of an op over this operand (`inplace=True`); returns it."""
        return self._take(_kept(self, name, made))

    def _take(self, values: Any) -> Any:
        """Overwrite the values, those of a compiled function's argument for this function alone."""
        return self.copy_(values)

    @property
    def data(self) -> Any:
        """Itself detached from differentiation, like `detach`; assigning writes the values without affecting
        derivatives, as `x.data.copy_(values)` does.

        Raises TypeError for values of another dtype, ShapeError for another shape.
        """
        return self.detach()

    @data.setter
    def data(self, values: Any) -> None:
        made, held = (
            ops.operand(values, "data"),
            self.data,
        )  # in mixed precision a trace holds a parameter rounded
        if made.dtype != held.dtype:
            raise TypeError(
                f"data: {made.spec} cannot be written over {self.spec}; convert the values, values.to(x.dtype), or "
                "the module, net.to(dtype)"
            )
        if made.shape != self.shape:
            raise ShapeError(
                f"data: {made.spec} cannot be written over {self.spec}; another shape is another parameter: "
                "net.weight = nn.Parameter(values)"
            )
        held.copy_(made)

    def fill_diagonal_(self, fill_value: float) -> Any:
        """Overwrite the elements x[i, i, …] with a number. Raises ShapeError for less than two axes."""
        if self.ndim < 2:
            raise ShapeError(f"fill_diagonal_: needs at least two axes, got {self.spec}")
        places = ops.operand(np.arange(min(self.shape)))
        value = self.new_full(places.shape, fill_value)
        return self.copy_(ops.index_put(self, (places,) * self.ndim, value))

    def fill_(self, value: complex) -> Any:
        """Overwrite every element with a number. Raises TypeError for one that does not fit the dtype."""
        return self.copy_(_kept(self, "fill_", self.new_full(self.shape, value)))

    def zero_(self) -> Any:
        """Overwrite every element with 0."""
        return self.fill_(0)

    def normal_(self, mean: float = 0.0, std: float = 1.0, *, generator: GeneratorLike | None = None) -> Any:
        """Overwrite the elements with numbers drawn from the normal distribution."""
        return self.copy_(ops.normal(mean, std, self.shape, generator=generator))

    def uniform_(self, from_: float = 0.0, to: float = 1.0, *, generator: GeneratorLike | None = None) -> Any:
        """Overwrite the elements with numbers drawn uniformly from [from_, to)."""
        return self.copy_(ops.rand(self.shape, generator=generator) * (to - from_) + from_)

    def unsqueeze_(self, dim: int) -> Any:
        """Become the result of `unsqueeze`. Raises TypeError for a view."""
        return self._become("unsqueeze_", ops.unsqueeze(self, dim))

    def squeeze_(self, dim: int | Sequence[int] | None = None) -> Any:
        """Become the result of `squeeze`. Raises TypeError for a view."""
        return self._become("squeeze_", ops.squeeze(self, dim))

    def t_(self) -> Any:
        """Become the result of `t`. Raises TypeError for a view."""
        return self._become("t_", ops.t(self))

    def transpose_(self, dim0: int, dim1: int) -> Any:
        """Become the result of `transpose`. Raises TypeError for a view."""
        return self._become("transpose_", ops.transpose(self, dim0, dim1))

    def swapaxes_(self, axis0: int, axis1: int) -> Any:
        """Become the result of `swapaxes`. Raises TypeError for a view."""
        return self._become("swapaxes_", ops.swapaxes(self, axis0, axis1))

    def detach_(self) -> Any:
        """Itself: tensors record no history."""
        return self

    def _become(self, name: str, made: Any) -> Any:
        raise NotImplementedError

    def exponential_(self, lambd: float = 1.0, *, generator: GeneratorLike | None = None) -> Any:
        """Overwrite the elements with numbers drawn from the exponential distribution. Raises ValueError for lambd
        <= 0."""
        if not lambd > 0:
            raise ValueError(f"exponential_: lambd must be above 0, got {lambd}")
        return self.copy_(-ops.log1p(-ops.rand(self.shape, generator=generator)) / lambd)

    def geometric_(self, p: float, *, generator: GeneratorLike | None = None) -> Any:
        """Overwrite the elements with the number of trials up to the first success, of probability p.

        Raises ValueError unless 0 < p < 1.
        """
        if not 0 < p < 1:
            raise ValueError(f"geometric_: p must be in (0, 1), got {p}")
        return self.copy_(
            ops.ceil(ops.log1p(-ops.rand(self.shape, generator=generator)) / log1p(-p)).clamp_min(1.0)
        )

    def log_normal_(
        self, mean: float = 1.0, std: float = 2.0, *, generator: GeneratorLike | None = None
    ) -> Any:
        """Overwrite the elements with exp of numbers drawn from the normal distribution."""
        return self.copy_(ops.exp(ops.normal(mean, std, self.shape, generator=generator)))

    def cauchy_(
        self, median: float = 0.0, sigma: float = 1.0, *, generator: GeneratorLike | None = None
    ) -> Any:
        """Overwrite the elements with numbers drawn from the Cauchy distribution."""
        return self.copy_(ops.tan((ops.rand(self.shape, generator=generator) - 0.5) * pi) * sigma + median)

    def random_(
        self, from_: int = 0, to: int | None = None, *, generator: GeneratorLike | None = None
    ) -> Any:
        """Overwrite the elements with integers drawn uniformly from [from_, to), or [0, from_) if only that is given.

        Without either: up to the largest integer that the dtype represents exactly. Raises ValueError for an empty
        range.
        """
        low, high = (0, from_) if to is None and from_ else (from_, to)
        if high is None:
            high = 2 ** (
                np.finfo(self.dtype.numpy).nmant + 1 if self.dtype.is_float else 8 * self.dtype.itemsize - 1
            )
            high = min(high, 2**47)
        if not low < high:
            raise ValueError(f"random_: [{low}, {high}) is empty")
        return self.copy_(ops.randint(low, high, self.shape, generator=generator))

    def bernoulli_(self, p: float = 0.5, *, generator: GeneratorLike | None = None) -> Any:
        """Overwrite the elements with 1 with probability p, otherwise 0."""
        return self.copy_(ops.bernoulli(self.new_zeros(self.shape), p, generator=generator))


#: NumPy's functions whose op has another name.
UFUNCS = {
    "power": "pow", "equal": "eq", "invert": "bitwise_not", "left_shift": "bitwise_left_shift",
    "right_shift": "bitwise_right_shift", "rint": "round", "mod": "remainder",
}  # fmt: skip


def sizes(given: tuple[Any, ...]) -> tuple[int, ...]:
    """Sizes given as separate arguments or as one sequence."""
    if len(given) == 1 and not hasattr(given[0], "__index__"):
        return tuple(given[0])
    return given


def _without(x: Operand, name: str) -> str:
    """The error message for an attribute that an operand lacks."""
    base, plain = f"{type(x).__name__} has no attribute {name!r}", name.removesuffix("_")
    instead = INSTEAD.get(name, "")
    if not instead and plain in RENAMED:
        instead = f"it is {RENAMED[plain]}{'_' * (plain != name)}"
    return f"{base}; {instead}" if instead else base


def _kept(x: Operand, name: str, made: Operand) -> Operand:
    """The value to write to x. Raises ShapeError for another shape, TypeError if fractions would be lost."""
    if made.shape != x.shape:
        raise ShapeError(
            f"{name}: the result has shape {made.shape}, which cannot be written over {x.spec}; "
            f"take the result, {name.removesuffix('_')}(…)"
        )
    if made.dtype.is_float and not x.dtype.is_float:
        raise TypeError(
            f"{name}: the result is {made.dtype}, whose fractions {x.spec} does not hold; "
            f"take the result, {name.removesuffix('_')}(…), or write over x.float()"
        )
    return made


def _writing(name: str) -> Callable[..., Any]:
    """The in-place variant of a method."""
    function = getattr(ops, name)

    @wraps(function)
    def write(self: InPlace[Any], *args: Any, **kwargs: Any) -> Any:
        return self.copy_(_kept(self, f"{name}_", function(self, *args, **kwargs)))

    write.__name__ = write.__qualname__ = f"{name}_"
    write.__doc__ = f"`{name}`, written over the operand's values, in its dtype. torch.Tensor.{name}_."
    return write


for _name in METHODS + OWN_METHODS:
    setattr(Operators, _name, getattr(ops, _name))
for _name in IN_PLACE:
    setattr(InPlace, f"{_name}_", _writing(_name))
for _other, _name in ALIASES.items():
    for _class, _found, _wanted in ((Operators, _name, _other), (InPlace, f"{_name}_", f"{_other}_")):
        if hasattr(_class, _found):
            setattr(_class, _wanted, getattr(_class, _found))
