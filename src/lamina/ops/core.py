"""`Op`: one frozen value that says everything about an operation but how a device runs it.

An op has

    fields       the attributes: its hash, its repr, its plan key, its line in a printed graph
    infer        output specs from input specs, and the error messages
    vjp          the gradient, as calls to ops, so that second order comes for free
    reference    its meaning in NumPy
    samples      example calls, which drive every test on every backend

`bind(op, *operands)` lets the operands decide: tensors compute, traced values record.
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

#: The array API's functions on operands stand above this floor: they are looked up when somebody asks for them.
_package = lazy("lamina", {"array_api": "lamina.array_api", "tensors": "lamina.tensors"})
Array = np.ndarray[Any, Any]
#: What running an op does beside giving its outputs; see `Op.effect`.
Effect = Literal["pure", "update", "collective"]

INTEGERS = tuple(d for d in DTYPES if d.kind in "iu")
NUMBERS = (*FLOATS, *INTEGERS)


class Operand:
    """What ops take and give: a tensor (computes at once) or a traced value (records)."""

    __slots__ = ()
    #: Among several kinds of operands the one with the highest priority decides.
    bind_priority: ClassVar[int] = 0
    #: Whether ops on it are recorded, and not only computed.
    records: ClassVar[bool] = False

    @property
    def spec(self) -> Spec:
        """Shape, dtype and layout."""
        raise NotImplementedError

    @classmethod
    def bind_op(cls, op: Op, operands: Sequence[Any]) -> tuple[Operand, ...]:
        """Apply op to operands, of which at least one is of this class."""
        raise NotImplementedError

    @classmethod
    def call_op(cls, op: Op, operands: Sequence[Any]) -> Operand:
        """The first output alone: those who compute at once may leave out the others."""
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
    """Where the samples of a batch are: sample j is what has the indices j * size to (j + 1) * size along an axis."""

    axis: int
    size: int = 1


#: One for each input or output; None where a tensor is the same for all samples.
BatchAxes = Sequence[BatchAxis | None]


class Folded(NamedTuple):
    """An op for many samples at once, and the axes of its inputs and outputs into which they are folded: in front of
    the axis' own index. None: the input is the same for all."""

    op: Op
    inputs: tuple[int | None, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
class Op:
    """Base class of ops. Subclasses are frozen dataclasses whose fields are the op's attributes."""

    #: Name in printed and saved graphs; set from the class name.
    name: ClassVar[str]
    #: Whether `vjp` exists. Comparisons, index ops and updates are not differentiable.
    differentiable: ClassVar[bool] = True
    #: Element types of the first input that the op takes.
    dtypes: ClassVar[tuple[DType, ...]] = FLOATS
    #: Output index -> input index whose memory the output may take over when that input is dead after the op.
    inplace: ClassVar[Mapping[int, int]] = {}
    #: Inputs that one output alone depends on (running statistics): that output, by the input.
    alone: ClassVar[Mapping[int, int]] = {}
    #: True when each output element depends only on the input elements at the same place (after broadcast).
    elementwise: ClassVar[bool] = False
    #: The number of inputs; None where the op takes any number.
    arity: ClassVar[int | None] = 1
    #: Whether what `infer` gives is remembered: not where an op's fields hold functions and values of a program.
    remembered: ClassVar[bool] = True
    #: As a step of `Fused`: the input that takes the running value.
    chained: ClassVar[int] = 0
    #: "update": the op brings state (a parameter, its moments) to the next step. It runs once, nothing of that step
    #: waits for it, and it may run beside the backward pass. "collective": other ranks take part in it, so that it
    #: runs once, in the order of the program, whatever else is there. "pure": it may also run twice, to save memory.
    effect: ClassVar[Effect] = "pure"
    #: Whether a backend may apply it to many tensors in one launch (`Foreach`).
    foreach: ClassVar[bool] = False
    #: Inputs that may come in a half type: the op widens them itself, so that no cast has to stand before it.
    widens: ClassVar[tuple[int, ...]] = ()
    #: Whether the result has the type of input 0 and is computed in a wider one: a half type costs one rounding, as a
    #: cast behind the op would.
    rounds_last: ClassVar[bool] = False
    #: Inputs that may be one number, of shape (), for all places: no expansion has to stand before the op.
    broadcasts: ClassVar[tuple[int, ...]] = ()
    #: Why no kernel of it gives the same bits from run to run (sums by atomic operations); "" where kernels decide.
    varies: ClassVar[str] = ""
    #: Whether its two inputs may change places.
    commutative: ClassVar[bool] = False
    #: Whether op(-x, …) is -op(x, …) bit by bit for floats, x the first input.
    odd: ClassVar[bool] = False
    #: Whether the output may be a part of input 0 (`strides_within`).
    takes_part: ClassVar[bool] = False
    #: Whether it draws numbers from the state of a generator, one of its inputs.
    draws: ClassVar[bool] = False

    def __init_subclass__(cls, *, abstract: bool = False, **kwargs: Any) -> None:
        """abstract: the class is a base of ops, and no op itself."""
        super().__init_subclass__(**kwargs)
        cls.name = _snake(cls.__name__)
        if not abstract and not cls.__name__.startswith("_"):
            _register(cls)

    # `infer`, `composed`, `reference` and `flops` get operands by position. They are typed as taking anything, so
    # that an op may give its operands their number and names (`infer(self, x: Spec, w: Spec)`).

    def infer(self, *inputs: Any, **named: Any) -> tuple[Spec, ...]:
        """Output specs of input specs, layouts left open.

        Raises ShapeError or DTypeError, naming the op and the shapes.
        """
        raise NotImplementedError(f"{self.name}: the class {type(self).__name__} has no method infer")

    def vjp(self, grads: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Sequence[Any]:
        """One gradient (or None) per input, from one gradient (or None) per output, written with ops."""
        raise NotImplementedError(f"{self.name} has no gradient")

    def composed(self, *inputs: Any, **named: Any) -> Sequence[Any] | None:
        """Its outputs written with other ops, for the derivatives of an op without `vjp`; None where nobody has.

        Outputs at the end that have no derivative may be left out.
        """
        return None

    def reference(self, *inputs: Any, **named: Any) -> tuple[Array, ...]:
        """The meaning, in NumPy arrays, in the arithmetic of the inputs' dtypes."""
        raise NotImplementedError(f"{self.name}: the class {type(self).__name__} has no method reference")

    def flops(self, *inputs: Any, **named: Any) -> int:
        """Multiplications and additions of its matrix products; 0 for ops that are bound by memory alone."""
        return 0

    def prune(self, used: Sequence[bool]) -> Op:
        """An op that leaves out trailing outputs that nobody uses, or itself when it has no such form."""
        return self

    def unrounded(self) -> Op:
        """An op that rounds neither its result nor what its steps make to a float type: what passes are proven with,
        in float64. Itself where nothing is rounded."""
        return self

    def batch_axes(self, inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
        """Where the samples of a batch are in each output, when they are along `axes` of the inputs (not all None).

        An axis is given where each sample of the output depends on the same sample of the inputs alone. None for all
        where the op mixes samples, or where nobody has said that it does not.
        """
        return _elementwise_axes(inputs, axes) if self.elementwise else None

    def stacked(self, size: int, inputs: Sequence[Spec], batched: Sequence[bool]) -> Op | None:
        """The op that does for `size` samples at once what this one does for one; None where there is no such op.

        inputs: specs of one sample's operands. Where `batched`, the operand has one more axis in front, the samples.
        The outputs have it in front, too, but for those that are the same for all (which keep their shape).
        """
        return None

    def folded(self, size: int) -> Folded | None:
        """The op on operands into which `size` samples are folded along some axis; None where there is no such op."""
        return None

    def strides_within(self, shape: Shape, strides: Shape) -> Shape | None:
        """Where the output's elements lie among those of input 0, of this shape and with these strides, when they are
        its elements, each once at most, and `vjp` puts them back at their places (a view); else None."""
        return None

    def first_within(self, strides: Shape) -> int:
        """How many places after the first element of input 0, with these strides, the first one of such a part is."""
        return 0

    @classmethod
    def samples(cls) -> Iterator[Sample]:
        """Example calls for tests, documentation and benchmarks: five or more for a differentiable op."""
        raise NotImplementedError

    def check_float(self, *inputs: Spec) -> None:
        """Raise DTypeError unless the first input has one of `dtypes` and the other inputs have the same."""
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
        """The spec of an output. Raises ShapeError that names the op when it is past 2^63 - 1 elements or bytes."""
        try:
            return Spec(tuple(shape), dtype)
        except ShapeError as error:
            raise ShapeError(f"{self.name}: output {error}") from None

    def __str__(self) -> str:
        said = (f for f in fields(self) if not f.kw_only or getattr(self, f.name) != f.default)
        return f"{self.name}({', '.join(f'{f.name}={_short(getattr(self, f.name))}' for f in said)})"


def inferred(op: Op, *inputs: Spec) -> tuple[Spec, ...]:
    """The output specs of an op. Raises what `infer` raises, and TypeError where it gives no tuple of specs."""
    return (_remembered if op.remembered else _inferred)(op, *inputs)


def _inferred(op: Op, *inputs: Spec) -> tuple[Spec, ...]:
    found = op.infer(*inputs)
    if isinstance(found, tuple) and all(isinstance(s, Spec) for s in found):
        return found
    raise TypeError(
        f"{op.name}.infer must give a tuple with one Spec for each output, got {shown(found)}: "
        "write return (Spec(shape, dtype),)"
    )


#: Layers are alike, and passes and plans ask again.
_remembered = lru_cache(maxsize=8192)(_inferred)


def _elementwise_axes(inputs: Sequence[Spec], axes: BatchAxes) -> BatchAxes | None:
    """By the rules of broadcasting: all samples along one axis of the result."""
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
    """The rule of ops that treat each index of some axes of input 0 alike: there the samples stay where they are.

    allowed: these axes. The other inputs must be the same for all samples.
    """
    b = axes[0]
    if b is None or b.axis not in allowed or any(axes[1:]):
        return None
    return (b,) * outputs


#: Every op by name: for saved graphs, tests and coverage tables.
REGISTRY: dict[str, type[Op]] = {}


def _register(op: type[Op]) -> None:
    """Enter an op class by its name; a class that is defined anew (in a notebook) takes its own place.

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
    """How a sample's input is drawn: standard normal unless a range or an integer range is given."""

    shape: Shape
    dtype: DType | None = None  # None: the dtype under test
    low: float | None = None
    high: float | None = None
    integers: bool = False
    distinct: bool = False  # all elements differ by at least 0.1: no ties for max, no kinks within a step
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
        if self.low is not None or self.high is not None:
            return rng.uniform(self.low or 0.0, self.high or 1.0, self.shape).astype(kind)
        return rng.standard_normal(self.shape).astype(kind)


@dataclass(frozen=True)
class Sample:
    """One example call: an op and how to draw its inputs. `dtypes` restricts what it is tested with."""

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
    """Name the function that turns foreign arrays into operands."""
    _adopt[:] = [adopt]


def _entries(x: Any) -> Iterable[Any]:
    return x.values() if isinstance(x, dict) else x


def operand(x: Any, what: str = "", name: str = "input") -> Any:
    """x itself when it is an operand, else x adopted (any DLPack array, array-like or number).

    what, name: the op and its parameter, for the error. Raises TypeError or DTypeError for what is no array.
    """
    if isinstance(x, Operand):
        return x
    if not _adopt:
        _package("tensors")  # registers its own
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
    """A tensor in host memory as an array, which goes where the other operands are; anything else as it is.

    For what torch takes from the host whatever the device (lengths). Programs that are compiled keep their inputs.
    """
    held: Any = x
    if not isinstance(x, Operand) or x.records or held.device.kind != "cpu":
        return x
    by = recorder()
    return held.numpy() if by is None or by.knows(x) else x


class DeviceLike(Protocol):
    """What ops, which know no hardware, see of a `lamina.Device`."""

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda"."""

    @property
    def index(self) -> int:
        """Which one of its kind."""


class Recorder(Protocol):
    """What records every op within `recording`, also ops on tensors alone, and what is written to tensors."""

    #: Whether what is recorded serves again later, so that guards matter.
    lasts: bool

    def bind_op(self, op: Op, operands: Sequence[Any]) -> tuple[Operand, ...]:
        """Record op; all its outputs."""

    def call_op(self, op: Op, operands: Sequence[Any]) -> Operand:
        """Record op; its first output."""

    def read(self, x: Any) -> Operand:
        """What stands for an operand now."""

    def write(self, target: Operand, values: Any) -> None:
        """Record that a tensor's values are overwritten."""

    def stands_for(self, x: Operand) -> bool:
        """Whether it reads and writes a module's tensor by a value that stands for it."""

    def guard(self, holds: Callable[[], bool]) -> None:
        """What is recorded is right only as long as this gives True."""

    def knows(self, x: Operand) -> bool:
        """Whether the numbers of a tensor that it closes over are there already."""

    def assigns(self, holder: Any, name: str) -> None:
        """An attribute of an object is about to be assigned."""

    def placed(self, x: Operand, beside: Operand | DeviceLike | str) -> Operand:
        """x on a device, or where an operand lies, if the numbers of both are there already; else x."""

    def feed(self, spec: Spec, ask: Callable[[], Any]) -> Operand:
        """What `ask` gives at each call of what is recorded: a number or array of this spec."""

    def finally_(self, done: Callable[[], None]) -> int:
        """Call `done` after each call of what is recorded; returns how often it was asked for before."""

    def note(self, owner: object, make: Callable[[], Any]) -> Any:
        """What an owner keeps for as long as this records, made when it is first asked for."""


_recorder: ContextVar[Recorder | None] = ContextVar("lamina_recorder", default=None)


def recorder() -> Recorder | None:
    """What records the ops of this thread, within `recording`."""
    return _recorder.get()


class recording:  # noqa: N801 - a statement's word
    """Within the block every op of this thread is recorded, whatever its operands; with None, not recorded."""

    __slots__ = ("_by", "_token")

    def __init__(self, by: Recorder | None) -> None:
        self._by = by

    def __enter__(self) -> None:
        self._token = _recorder.set(self._by)

    def __exit__(self, *raised: object) -> None:
        _recorder.reset(self._token)


_compute: ContextVar[DType | None] = ContextVar("lamina_compute_type", default=None)


def compute_type() -> DType | None:
    """The type that a network computes in here, None where nobody says so (see `computing_in`)."""
    return _compute.get()


@contextmanager
def computing_in(dtype: DType) -> Iterator[None]:
    """Within the block an op that takes one float type alone has operands of others cast to this one, if it is a half
    type and one operand is of it.

    So that a float32 table or an embedding of the time meets weights of the half type in a product, as under torch's
    autocast; what takes two types, such as sums, gives the wider one.
    """
    token = _compute.set(dtype)
    try:
        yield
    finally:
        _compute.reset(token)


OpKind = TypeVar("OpKind", bound=Op)


@lru_cache(maxsize=4096, typed=True)
def made(kind: type[OpKind], *fields: Any) -> OpKind:
    """The op of these attributes (texts, ints and tuples of ints), one object however often it is asked for: plans
    are found by it, and what is the same object need not be compared."""
    return kind(*fields)


def bind(op: Op, *operands: Any) -> tuple[Any, ...]:
    """Apply op and return all its outputs. The operands decide what that means."""
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
    """The floats among operands in the type that is computed in; None where they are not of it and others."""
    kind = _compute.get()
    if kind is None or kind.itemsize > 2:
        return None
    found = [operand(x) for x in operands]
    floats = {x.dtype for x in found if x.dtype.is_float}
    if kind not in floats or len(floats) == 1:
        return None
    return [x.to(kind) if x.dtype.is_float else x for x in found]


def _decide(op: Op, operands: tuple[Any, ...]) -> tuple[type[Operand] | Recorder, tuple[Any, ...]]:
    """The class of operands that decides, and the operands, adopted where none is one."""
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
    """The class that decides among those of operands; None where none of them is one's."""
    return max((k for k in kinds if issubclass(k, Operand)), key=lambda k: k.bind_priority, default=None)


def _check_count(op: Op, count: int) -> None:
    """Raise TypeError for a number of operands that an op does not take."""
    if op.arity is not None:
        raise TypeError(f"{op.name}: takes {op.arity} operands, got {count}")
    if not count:
        raise TypeError(f"{op.name}: takes at least one operand, got none")


def spec_of(x: Any) -> Spec:
    """The spec of an operand or of an array that can be adopted."""
    found: Spec = operand(x).spec
    return found


def listing(specs: Sequence[Spec]) -> str:
    """Specs as they stand in error messages: f32[2,3], i64[2]."""
    return ", ".join(map(str, specs)) or "nothing"


def is_number(x: Any) -> bool:
    """Whether x is a number that takes the dtype of the tensor beside it."""
    return isinstance(x, _NUMBERS)


_NUMBERS = (bool, int, float, np.generic)


def together(what: str, a: Any, b: Any) -> tuple[Any, Any]:
    """Two operands in the dtype that torch computes them in; one of them may be a Python number.

    A number is of the tensor's dtype unless its kind is higher (2 beside booleans is int64, 0.5 beside integers
    float32). A tensor without axes counts like a number beside one with axes. Raises DTypeError for an integer that
    the dtype does not hold, TypeError for what is neither a tensor nor a number.
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
    """As `together`, of floats: where neither is one, each becomes float32 by itself, since the dtype of the one may
    not hold the other (uint8 beside a count of 300, or beside -1)."""
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
    """The dtype that two tensors, or a tensor and a number, are computed in, as torch.result_type: what has no axes,
    and a number even less, only counts if its kind is higher. Raises TypeError for what is neither."""
    a, b = together("result_type", tensor1, tensor2)
    return common_dtype(a, b)


def common_dtype(a: Any, b: Any) -> DType:
    """The common dtype of two tensors by torch's rule: one without axes only counts if its kind is higher."""
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
    """x, adopted unless it is a NumPy array (which a traced value beside it takes as a constant)."""
    return x if isinstance(x, (Operand, np.ndarray)) else operand(x, what, name)


def _dtype(x: Any) -> DType:
    return as_dtype(x.dtype) if isinstance(x, np.ndarray) else x.dtype


def _in_dtype(x: Any, dtype: DType) -> Any:
    if _dtype(x) == dtype:
        return x
    return x.astype(dtype.numpy) if isinstance(x, np.ndarray) else x.cast(dtype)


def _beside(what: str, x: Any, number: Any) -> tuple[Any, Any]:
    """A tensor and a number in one dtype."""
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
    """What a tensor is computed in beside a number of Python's; None beside what is none."""
    rank = {bool: 0, int: 1, float: 2}.get(number)
    if rank is None or rank <= dtype.category:
        return None if rank is None else dtype
    return float32 if rank == 2 else int64


def _snake(name: str) -> str:
    text = "".join("_" + c.lower() if c.isupper() else c for c in name)
    return text.lstrip("_")


def _short(value: Any) -> str:
    return str(value).replace(" ", "") if isinstance(value, tuple) else str(value)
