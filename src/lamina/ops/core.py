"""`Op`: a frozen value that defines everything about an operation except how a device runs it.

An op has

    fields       the attributes: its hash, its repr, its plan key, its line in a printed graph
    infer        output specs from input specs, and the error messages
    vjp          the gradient, as calls to ops, so that second order comes for free
    reference    its semantics in NumPy
    samples      example calls, used by every test on every backend

`bind(op, *operands)` dispatches on the operands: tensors compute, traced values record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields
from functools import lru_cache
from types import ModuleType
from typing import Any, ClassVar, Literal, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from lamina._lazy import lazy
from lamina.ops.arguments import shown
from lamina.spec import (
    DTYPES,
    FLOATS,
    DType,
    DTypeError,
    Shape,
    ShapeError,
    Spec,
    as_dtype,
    float32,
    int64,
    promote_types,
)

#: The array API's functions on operands are on a higher floor: they are imported lazily.
_package = lazy("lamina", {"array_api": "lamina.array_api", "tensors": "lamina.tensors"})
Array = np.ndarray[Any, Any]
#: The side effect of running an op; see `Op.effect`.
Effect = Literal["pure", "update", "collective"]

INTEGERS = tuple(d for d in DTYPES if d.kind in "iu")
NUMBERS = (*FLOATS, *INTEGERS)


class Operand:
    """Input or output of an op: a tensor (computes immediately) or a traced value (records)."""

    __slots__ = ()
    #: Dispatch priority: among several kinds of operands the highest one decides.
    bind_priority: ClassVar[int] = 0
    #: Whether ops on it are recorded rather than only computed.
    records: ClassVar[bool] = False

    @property
    def spec(self) -> Spec:
        """Shape, dtype and layout."""
        raise NotImplementedError

    @classmethod
    def bind_op(cls, op: Op, operands: Sequence[Any]) -> tuple[Operand, ...]:
        """Apply op to operands, at least one of which is of this class."""
        raise NotImplementedError

    @classmethod
    def call_op(cls, op: Op, operands: Sequence[Any]) -> Operand:
        """The first output alone: eager operands may skip the others."""
        return cls.bind_op(op, operands)[0]

    def __array_namespace__(self, *, api_version: str | None = None) -> ModuleType:
        """The array API standard's functions (`lamina.array_api`). Raises ValueError for another version."""
        found: ModuleType = _package("array_api")
        if api_version not in (None, found.__array_api_version__):
            raise ValueError(
                f"__array_namespace__: api_version is {found.__array_api_version__}, got {api_version!r}"
            )
        return found

    @property
    def shape(self) -> Shape:
        """Sizes, one per axis."""
        return self.spec.shape

    @property
    def dtype(self) -> DType:
        """The element type."""
        return self.spec.dtype

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.spec.shape)


class BatchAxis(NamedTuple):
    """Position of a batch's samples: sample j occupies the indices j * size to (j + 1) * size along an axis."""

    axis: int
    size: int = 1


#: One per input or output; None where a tensor is shared by all samples.
BatchAxes = Sequence[BatchAxis | None]


class Folded(NamedTuple):
    """An op for many samples at once, and the axes of its inputs and outputs into which the samples are folded (in
    front of the axis' own index). None: the input is shared by all samples."""

    op: Op
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """Base class of ops. Subclasses are frozen dataclasses whose fields are the op's attributes."""

    #: Name in printed and saved graphs; set from the class name.
    name: ClassVar[str]
    #: Whether `vjp` is defined. Comparisons, index ops and updates are not differentiable.
    differentiable: ClassVar[bool] = True
    #: Supported element types of the first input.
    dtypes: ClassVar[tuple[DType, ...]] = FLOATS
    #: Output index -> index of the input whose memory the output may reuse if that input is dead after the op.
    inplace: ClassVar[Mapping[int, int]] = {}
    #: Inputs that only one output depends on (running statistics): input -> output.
    alone: ClassVar[Mapping[int, int]] = {}
    #: True if each output element depends only on the input elements at the same position (after broadcasting).
    elementwise: ClassVar[bool] = False
    #: The number of inputs; None for any number.
    arity: ClassVar[int | None] = 1
    #: Whether results of `infer` are cached: not for ops whose fields hold functions and values of a program.
    remembered: ClassVar[bool] = True
    #: As a step of `Fused`: the input that receives the running value.
    chained: ClassVar[int] = 0
    #: "update": the op carries state (a parameter, its moments) to the next step. It runs exactly once, nothing in
    #: that step waits for it, and it may overlap the backward pass. "collective": other ranks participate, so it runs
    #: exactly once and in program order, whatever else there is. "pure": it may also be recomputed to save memory.
    effect: ClassVar[Effect] = "pure"
    #: Whether a backend may apply it to many tensors in one kernel launch (`Foreach`).
    foreach: ClassVar[bool] = False
    #: Inputs that may be of a half type: the op widens them itself, so that no cast is needed before it.
    widens: ClassVar[tuple[int, ...]] = ()
    #: Whether the result has the dtype of input 0 but is computed in a wider one: a half type is then rounded once,
    #: as by a cast after the op.
    rounds_last: ClassVar[bool] = False
    #: Inputs that may be a scalar, of shape (), for all elements: no expansion is needed before the op.
    broadcasts: ClassVar[tuple[int, ...]] = ()
    #: Why all of its kernels are nondeterministic (sums by atomic operations); "" where that depends on the kernel.
    varies: ClassVar[str] = ""
    #: Whether it is commutative in its two inputs.
    commutative: ClassVar[bool] = False
    #: Whether op(-x, …) equals -op(x, …) bitwise for floats, with x the first input.
    odd: ClassVar[bool] = False
    #: Whether the output may be a view of input 0 (`strides_within`).
    takes_part: ClassVar[bool] = False
    #: Whether it draws random numbers from a generator's state, one of its inputs.
    draws: ClassVar[bool] = False
    #: Whether a CUDA graph may hold its kernels. If not, what is before and behind it are graphs of their own.
    capturable: ClassVar[bool] = True
    #: Whether the result depends on the numbers of its inputs, and not on their shapes and dtypes alone.
    reads_numbers: ClassVar[bool] = True

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        """abstract: the class is a base class of ops rather than an op."""
        super().__init_subclass__(**kwargs)
        cls.name = _snake(cls.__name__)
        if not abstract and not cls.__name__.startswith("_"):
            _register(cls)

    # `infer`, `composed`, `reference` and `flops` get operands by position. They are typed as accepting anything, so
    # that an op may declare the number and names of its operands (`infer(self, x: Spec, w: Spec)`).

    def infer(self, *inputs: Any, **named: Any) -> tuple[Spec, ...]:
        """Output specs from input specs, with layouts left open.

        Raises ShapeError or DTypeError, naming the op and the shapes.
        """
        raise NotImplementedError(f"{self.name}: the class {type(self).__name__} has no method infer")

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """One gradient (or None) per input, from one gradient (or None) per output, expressed in ops."""
        raise NotImplementedError(f"{self.name} has no gradient")

    def composed(self, *inputs: Any, **named: Any) -> Sequence[Any] | None:
        """Its outputs expressed in other ops, for the derivatives of an op without `vjp`; None if not implemented.

        Trailing outputs without a derivative may be omitted.
        """
        return None

    def reference(self, *inputs: Any, **named: Any) -> tuple[Array, ...]:
        """The semantics on NumPy arrays, in the arithmetic of the inputs' dtypes."""
        raise NotImplementedError(f"{self.name}: the class {type(self).__name__} has no method reference")

    def flops(self, *inputs: Any, **named: Any) -> int:
        """Multiplications and additions of its matrix products; 0 for memory-bound ops."""
        return 0

    def prune(self, used: Sequence[bool]) -> Op:
        """An op that omits unused trailing outputs, or itself where it has no such form."""
        return self

    def unrounded(self) -> Op:
        """An op that rounds neither its result nor its intermediate values to a float type, used to verify passes in
        float64. Itself where nothing is rounded."""
        return self

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        """The position of a batch's samples in each output, given their `axes` in the inputs (not all None).

        An axis is returned where each sample of the output depends only on the same sample of the inputs. None for
        all outputs where the op mixes samples, or where no rule is implemented.
        """
        return _elementwise_axes(inputs, axes) if self.elementwise else None

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        """The op that does for `size` samples at once what this one does for one; None if there is no such op.

        inputs: specs of one sample's operands. Where `batched`, the operand has a leading axis of samples. So do the
        outputs, except those shared by all samples (which keep their shape).
        """
        return None

    def folded(self, size: int) -> Folded | None:
        """The op on operands with `size` samples folded along some axis; None if there is no such op."""
        return None

    def strides_within(self, shape: Shape, strides: Shape) -> Shape | None:
        """The strides of the output's elements within input 0, of this shape and strides, if the output is a view:
        each element of the input occurs at most once, and `vjp` puts it back in place. Otherwise None."""
        return None

    def first_within(self, strides: Shape) -> int:
        """The offset of such a view's first element from the first element of input 0, with these strides."""
        return 0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        """Example calls for tests, documentation and benchmarks: five or more for a differentiable op."""
        raise NotImplementedError

    def check_float(self, *inputs: Spec) -> None:
        """Raise DTypeError unless the first input has one of `dtypes` and all others the same one."""
        first = inputs[0].dtype
        if first not in self.dtypes:
            known = ", ".join(map(str, self.dtypes))
            raise DTypeError(f"{self.name}: dtype {first} is not among {known}; cast with ops.cast")
        for i, spec in enumerate(inputs[1:], 1):
            if spec.dtype != first:
                raise DTypeError(
                    f"{self.name}: input {i} is {spec.dtype} but input 0 is {first}; cast one with ops.cast"
                )

    def result(self, shape: Sequence[int], dtype: DType) -> Spec:
        """The spec of an output. Raises ShapeError naming the op if it exceeds 2^63 - 1 elements or bytes."""
        try:
            return Spec(tuple(shape), dtype)
        except ShapeError as error:
            raise ShapeError(f"{self.name}: output {error}") from None

    def __str__(self) -> str:
        said = (f for f in fields(self) if not f.kw_only or getattr(self, f.name) != f.default)
        return f"{self.name}({', '.join(f'{f.name}={_short(getattr(self, f.name))}' for f in said)})"


def inferred(op: Op, *inputs: Spec) -> tuple[Spec, ...]:
    """The output specs of an op. Raises what `infer` raises, and TypeError if it does not return a tuple of specs."""
    return (_remembered if op.remembered else _inferred)(op, *inputs)


def _inferred(op: Op, *inputs: Spec) -> tuple[Spec, ...]:
    found = op.infer(*inputs)
    if isinstance(found, tuple) and all(isinstance(s, Spec) for s in found):
        return found
    raise TypeError(
        f"{op.name}.infer must give a tuple with one Spec for each output, got {shown(found)}: "
        "write return (Spec(shape, dtype),)"
    )


#: Layers repeat, and passes and plans ask again.
_remembered = lru_cache(maxsize=8192)(_inferred)


def _elementwise_axes(inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
    """By broadcasting rules: all samples along one axis of the result."""
    rank = max(x.ndim for x in inputs)
    found = {BatchAxis(b.axis + rank - x.ndim, b.size) for x, b in zip(inputs, axes, strict=True) if b}
    if len(found) != 1:
        return None
    (result,) = found
    for x, b in zip(inputs, axes, strict=True):
        own = result.axis - (rank - x.ndim)
        if b is None and own >= 0 and x.shape[own] != 1:
            return None
    return (result,)


def first_axis(axes: BatchAxes, outputs: int = 1, allowed: Sequence[int] = (0,)) -> BatchAxes | None:
    """The rule for ops that treat each index of some axes of input 0 alike: there the samples keep their axis.

    allowed: these axes. The other inputs must be shared by all samples.
    """
    b = axes[0]
    if b is None or b.axis not in allowed or any(axes[1:]):
        return None
    return (b,) * outputs


#: Every op by name: for saved graphs, tests and coverage tables.
REGISTRY: dict[str, type[Op]] = {}


def _register(op: type[Op]) -> None:
    """Register an op class by name; a class that is redefined (in a notebook) replaces its previous definition.

    Raises TypeError for a name that another class has.
    """
    known = REGISTRY.get(op.name)
    if known is not None and (known.__module__, known.__qualname__) != (op.__module__, op.__qualname__):
        raise TypeError(
            f"class {op.__name__}: there is an op {op.name!r} already, {known.__module__}.{known.__qualname__}; "
            "an op is found by its class's name, so give it another"
        )
    REGISTRY[op.name] = op


@dataclass(frozen=True)
class Arg:
    """How a sample's input is generated: standard normal unless a range or an integer range is given."""

    shape: Shape
    dtype: DType | None = None  # None: the dtype under test
    low: float | None = None
    high: float | None = None
    integers: bool = False
    distinct: bool = False  # all elements differ by at least 0.1: no ties for max, no kinks within a step
    dominant: bool = False  # square matrices whose diagonal outweighs each row: far from singular
    differentiable: bool = True
    value: tuple[float, ...] | None = None  # fixed values, for state such as a generator's counter

    def draw(self, rng: np.random.Generator, dtype: DType) -> Array:
        """An array of this shape in `dtype` (or the argument's own)."""
        kind = (self.dtype or dtype).numpy
        if self.value is not None:
            return np.array(self.value, kind).reshape(self.shape)
        if self.integers:
            return rng.integers(int(self.low or 0), int(self.high or 2), self.shape).astype(kind)
        if self.distinct:
            count = int(np.prod(self.shape))
            return ((rng.permutation(count) - count / 2 + 0.3) * 0.13).reshape(self.shape).astype(kind)
        if self.dominant:
            return (rng.uniform(-0.5, 0.5, self.shape) + self.shape[-1] * np.eye(self.shape[-1])).astype(kind)
        if self.low is not None or self.high is not None:
            return rng.uniform(self.low or 0.0, self.high or 1.0, self.shape).astype(kind)
        return rng.standard_normal(self.shape).astype(kind)


@dataclass(frozen=True)
class Sample:
    """One example call: an op and how to generate its inputs. `dtypes` restricts the dtypes under test."""

    op: Op
    args: tuple[Arg, ...] = field(default=())
    dtypes: tuple[DType, ...] | None = None

    @classmethod
    def of(cls, op: Op, *args: Arg | Shape, dtypes: tuple[DType, ...] | None = None) -> Self:
        """A sample whose plain shapes are drawn from a standard normal distribution."""
        return cls(op, tuple(a if isinstance(a, Arg) else Arg(a) for a in args), dtypes)

    def draw(self, rng: np.random.Generator, dtype: DType) -> list[Array]:
        """The inputs as arrays."""
        return [arg.draw(rng, dtype) for arg in self.args]

    def __str__(self) -> str:
        return f"{self.op} {'x'.join(str(list(a.shape)).replace(' ', '') for a in self.args)}"


#: Turns an array of any library (NumPy, PyTorch, CuPy, JAX) into an operand; set by `lamina.tensors`.
_adopt: list[Callable[[Any], Operand]] = []


def register_adopter(adopt: Callable[[Any], Operand]) -> None:
    """Set the function that turns foreign arrays into operands."""
    _adopt[:] = [adopt]


def _entries(x: Any) -> Iterable[Any]:
    return x.values() if isinstance(x, dict) else x


def operand(x: Any, what: str = "", name: str = "input") -> Any:
    """x itself when it is an operand, else x adopted (any DLPack array, array-like or number).

    what, name: the op and its parameter, for the error message. Raises TypeError or DTypeError for non-arrays.
    """
    if isinstance(x, Operand):
        return x
    if not _adopt:
        _package("tensors")  # registers its own adopter
    if not _adopt:
        raise TypeError(f"{type(x).__name__} is not a tensor; import lamina to have arrays adopted")
    if what and isinstance(x, tuple | list | dict) and any(isinstance(y, Operand) for y in _entries(x)):
        raise TypeError(
            f"{what}: {name} must be one tensor, got a {type(x).__name__} of {len(x)}: take one of them ([0] or its "
            "key), or join them by ops.cat or ops.stack; a network with several outputs needs a loss of all of them"
        )
    try:
        return _adopt[0](x)
    except (TypeError, ValueError, OverflowError) as error:
        if not what:
            raise
        kind = DTypeError if isinstance(error, DTypeError) else TypeError
        raise kind(
            f"{what}: {name} must be a tensor, an array or a number, got {shown(x)}: {error}"
        ) from None


def from_host(x: Any) -> Any:
    """A host tensor as an array, which adopts the other operands' device; anything else unchanged.

    For arguments that torch takes from the host whatever the device (lengths). Compiled programs keep their inputs.
    """
    held: Any = x
    if not isinstance(x, Operand) or x.records or held.device.kind != "cpu":
        return x
    by = recorder()
    return held.numpy() if by is None or by.knows(x) else x


class DeviceLike(Protocol):
    """The view of a `lamina.Device` that ops, which are hardware-independent, have."""

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda"."""

    @property
    def index(self) -> int:
        """The index among devices of its kind."""


class Recorder(Protocol):
    """Records every op within `recording`, including ops on tensors alone, and writes to tensors."""

    #: Whether the recording is reused later, so that guards matter.
    lasts: bool

    def bind_op(self, op: Op, operands: Sequence[Any]) -> tuple[Operand, ...]:
        """Record op; all its outputs."""

    def call_op(self, op: Op, operands: Sequence[Any]) -> Operand:
        """Record op; its first output."""

    def read(self, x: Any) -> Operand:
        """The value that currently stands for an operand."""

    def write(self, target: Operand, values: Any, within: bool = False) -> None:
        """Record that a tensor's values are overwritten."""

    def stands_for(self, x: Operand) -> bool:
        """Whether it reads and writes a module's tensor through a stand-in value."""

    def guard(self, holds: Callable[[], bool]) -> None:
        """Add a guard: the recording is valid only as long as this returns True."""

    def knows(self, x: Operand) -> bool:
        """Whether the values of a captured tensor are already available."""

    def makes(self, x: Operand) -> None:
        """Called with a tensor that was made of numbers, in memory of its own."""

    def numbers_in(self, x: Operand) -> Operand | None:
        """The tensor whose numbers an input of the recording has in every call; None if calls give others."""

    def numbers_now(self, x: Operand, asks: bool = True) -> Operand | None:
        """The numbers of a value in the call that is recorded; the recording then serves calls that have the same,
        if it asks. None if they are not known."""

    def serves_once(self) -> bool:
        """Asks that the recording serve this call alone, its values being computed one by one; whether it will."""

    def numbers_once(self, x: Operand) -> Operand | None:
        """The numbers of a value in the call that is recorded, if the recording serves this call alone."""

    def assigns(self, holder: Any, name: str) -> None:
        """Called before an attribute of an object is assigned."""

    def placed(self, x: Operand, beside: Operand | DeviceLike | str) -> Operand:
        """x on the device given or of the operand given, if the values of both are already available; else x."""

    def feed(self, spec: Spec, ask: Callable[[], Any]) -> Operand:
        """An input set to the result of `ask` at each call of the recording: a number or array of this spec."""

    def finally_(self, done: Callable[[], None]) -> int:
        """Call `done` after each call of the recording; returns the number of earlier registrations."""

    def note(self, owner: object, make: Callable[[], Any]) -> Any:
        """A value kept per owner for as long as this records, created on first request."""


class CallNeededError(Exception):
    """What is recorded depends on the numbers of a call, and it is recorded for none: a call alone has them."""


class UnrecordedWriteError(TypeError):
    """A write to a traced value, or of one to a tensor, where nothing records writes."""


_recorder: ContextVar[Recorder | None] = ContextVar("lamina_recorder", default=None)


#: A new tensor, whatever its class.
Made = TypeVar("Made", bound=Operand)


def recorder() -> Recorder | None:
    """The recorder of this thread's ops, within `recording`."""
    return _recorder.get()


def owned(x: Made) -> Made:
    """x itself, a new tensor of numbers in memory of its own: what records the function that makes it is told."""
    if (by := recorder()) is not None:
        by.makes(x)
    return x


class recording:  # noqa: N801 - a statement's word
    """Within the block every op of this thread is recorded, whatever its operands; with None, recording is off."""

    __slots__ = ("_by", "_token")

    def __init__(self, by: Recorder | None) -> None:
        self._by = by

    def __enter__(self) -> None:
        self._token = _recorder.set(self._by)

    def __exit__(self, *raised: object) -> None:
        _recorder.reset(self._token)


_compute: ContextVar[DType | None] = ContextVar("lamina_compute_type", default=None)


def compute_type() -> DType | None:
    """The compute dtype in force; None if unset (see `computing_in`)."""
    return _compute.get()


@contextmanager
def computing_in(dtype: DType) -> Iterator[None]:
    """Within the block an op that requires a single float dtype has its float operands cast to this one, if it is a
    half type and one operand has it.

    A float32 table or time embedding can thus meet half-type weights in a product, as under torch's autocast; ops
    that accept two dtypes, such as sums, return the wider one.
    """
    token = _compute.set(dtype)
    try:
        yield
    finally:
        _compute.reset(token)


OpKind = TypeVar("OpKind", bound=Op)


@lru_cache(maxsize=4096, typed=True)
def made(kind: type[OpKind], *fields: Any) -> OpKind:
    """The op with these attributes (strings, ints and tuples of ints), always the same object: it is the key of plan
    lookups, and identity makes comparisons cheap."""
    return kind(*fields)


def bind(op: Op, *operands: Any) -> tuple[Any, ...]:
    """Apply op and return all its outputs. The operands determine how it runs."""
    kind, given = _decide(op, operands)
    try:
        return kind.bind_op(op, given)
    except DTypeError:
        if (alike := _in_compute_type(given)) is None:
            raise
    return kind.bind_op(op, alike)


def call(op: Op, *operands: Any) -> Any:
    """Apply op and return its first output."""
    kind, given = _decide(op, operands)
    try:
        return kind.call_op(op, given)
    except DTypeError:
        if (alike := _in_compute_type(given)) is None:
            raise
    return kind.call_op(op, alike)


def _in_compute_type(operands: Sequence[Any]) -> list[Any] | None:
    """The floats among operands cast to the compute dtype; None unless they mix it with other float dtypes."""
    kind = _compute.get()
    if kind is None or kind.itemsize > 2:
        return None
    found = [operand(x) for x in operands]
    floats = {x.dtype for x in found if x.dtype.is_float}
    if kind not in floats or len(floats) == 1:
        return None
    return [x.to(kind) if x.dtype.is_float else x for x in found]


def _decide(op: Op, operands: tuple[Any, ...]) -> tuple[type[Operand] | Recorder, tuple[Any, ...]]:
    """The class of operands that decides, and the operands, adopted where none of them is one."""
    if op.arity != len(operands):
        _check_count(op, len(operands))
    if (by := _recorder.get()) is not None:
        return by, operands
    kind = _deciding(tuple(map(type, operands)))
    if kind is None:
        operands = tuple(operand(x, op.name, f"operand {i}") for i, x in enumerate(operands))
        kind = _deciding(tuple(map(type, operands)))
        assert kind is not None  # what `operand` gives is one
    return kind, operands


@lru_cache(maxsize=1024)
def _deciding(kinds: tuple[type, ...]) -> type[Operand] | None:
    """The class with the highest priority among the operands; None where none of them is an operand."""
    return max((k for k in kinds if issubclass(k, Operand)), key=lambda k: k.bind_priority, default=None)


def _check_count(op: Op, count: int) -> None:
    """Raise TypeError for a wrong number of operands."""
    if op.arity is not None:
        raise TypeError(f"{op.name}: takes {op.arity} operands, got {count}")
    if not count:
        raise TypeError(f"{op.name}: takes at least one operand, got none")


def spec_of(x: Any) -> Spec:
    """The spec of an operand or of an adoptable array."""
    found: Spec = operand(x).spec
    return found


def listing(specs: Sequence[Spec]) -> str:
    """Specs as formatted in error messages: f32[2,3], i64[2]."""
    return ", ".join(map(str, specs)) or "nothing"


def is_number(x: Any) -> bool:
    """Whether x is a number that adopts the dtype of the tensor next to it."""
    return isinstance(x, _NUMBERS)


_NUMBERS = (bool, int, float, np.generic)


def together(what: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands in the dtype that torch computes them in; one of them may be a Python number.

    A number adopts the tensor's dtype unless its kind is higher (2 with booleans is int64, 0.5 with integers
    float32). A 0-d tensor counts like a number next to one with axes. Raises DTypeError for an integer that does not
    fit the dtype, TypeError for anything but a tensor or a number.
    """
    if isinstance(a, Operand) and isinstance(b, Operand) and a.dtype is b.dtype:
        return a, b
    if is_number(a) and is_number(b):
        a = operand(a, what)
    if is_number(b):
        return _beside(what, a, b)
    if is_number(a):
        b, a = _beside(what, b, a)
        return a, b
    a, b = _arraylike(a, what, "input"), _arraylike(b, what, "other")
    kind = common_dtype(a, b)
    return _in_dtype(a, kind), _in_dtype(b, kind)


def together_floats(what: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Like `together`, as floats: where neither is a float, each becomes float32 by itself, since one's dtype may not
    hold the other (uint8 with a count of 300, or with -1)."""
    if is_number(a) and is_number(b):
        a = operand(a, what)
    pair = [
        x.item() if isinstance(x, np.generic) else x if is_number(x) else _arraylike(x, what, name)
        for x, name in ((a, "input"), (b, "other"))
    ]
    if any(isinstance(x, float) if is_number(x) else _dtype(x).is_float for x in pair):
        return together(what, pair[0], pair[1])
    first, second = (np.array(x, np.float32) if is_number(x) else _in_dtype(x, float32) for x in pair)
    return first, second


def result_type(tensor1: Any, tensor2: Any) -> DType:
    """The dtype in which two tensors, or a tensor and a number, are computed, as in torch.result_type: a 0-d tensor,
    and a number even less, counts only if its kind is higher. Raises TypeError for anything else."""
    a, b = together("result_type", tensor1, tensor2)
    return common_dtype(a, b)


def common_dtype(a: Any, b: Any) -> DType:
    """The common dtype of two tensors by torch's rule: a 0-d tensor counts only if its kind is higher."""
    first, second = _dtype(a), _dtype(b)
    if first == second:
        return first
    if (a.ndim == 0) != (b.ndim == 0):
        strong, weak = (first, second) if a.ndim else (second, first)
        if weak.category <= strong.category:
            return strong
    return promote_types(first, second)


def floating(x: Any, what: str) -> Any:
    """x as an operand of a float dtype: integers and booleans become float32, as in torch."""
    x = operand(x, what)
    return x if x.dtype.is_float else x.cast(float32)


def _arraylike(x: Any, what: str, name: str) -> Any:
    """x, adopted unless it is a NumPy array (which a traced operand takes as a constant)."""
    return x if isinstance(x, (Operand, np.ndarray)) else operand(x, what, name)


def _dtype(x: Any) -> DType:
    return as_dtype(x.dtype) if isinstance(x, np.ndarray) else x.dtype


def _in_dtype(x: Any, dtype: DType) -> Any:
    if _dtype(x) == dtype:
        return x
    return x.astype(dtype.numpy) if isinstance(x, np.ndarray) else x.cast(dtype)


def _beside(what: str, x: Any, number: Any) -> tuple[Any, Any]:
    """A tensor and a number in a common dtype."""
    x = _arraylike(x, what, "input")
    value = number.item() if isinstance(number, np.generic) else number
    kind: type = type(value)
    dtype = _dtype_beside(_dtype(x), kind)
    if dtype is None:
        raise DTypeError(
            f"{what}: {shown(number)} is no number that a tensor of {_dtype(x)} can be combined with"
        )
    if dtype.kind in "iu":
        limits = np.iinfo(dtype.numpy)
        if not limits.min <= value <= limits.max:
            raise DTypeError(f"{what}: {shown(number)} is outside {dtype}; cast the tensor with ops.cast")
    return _in_dtype(x, dtype), np.array(value, dtype.numpy)


@lru_cache(maxsize=256)
def _dtype_beside(dtype: DType, number: type) -> DType | None:
    """The dtype in which a tensor is computed with a Python number; None for anything but a number."""
    rank = {bool: 0, int: 1, float: 2}.get(number)
    if rank is None or rank <= dtype.category:
        return None if rank is None else dtype
    return float32 if rank == 2 else int64


def _snake(name: str) -> str:
    text = "".join("_" + c.lower() if c.isupper() else c for c in name)
    return text.lstrip("_")


def _short(value: Any) -> str:
    return str(value).replace(" ", "") if isinstance(value, tuple) else str(value)
