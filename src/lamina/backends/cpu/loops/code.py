"""A kernel under construction: typed values, loops, loads and stores, as LLVM assembly.

    code = Code()
    x, y = code.array(float32), code.array(float32)
    with code.share() as (first, last), code.loop(first, last) as i:
        y[i] = np.exp(-x[i])
    text = code.text()

Values are elements of vectors to come: LLVM's vectoriser runs several steps of the innermost loop at once. No
operation is reordered or assumed to be finite, except for the sums of `Variable.add`.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from lamina.backends.protocol import NoKernel
from lamina.spec import DType, as_dtype, bfloat16, bool_, float16

Array = np.ndarray[Any, Any]

#: NumPy's dtype -> LLVM's type of a value. Half types are loaded as float32; bool is an i1.
TYPES = {
    np.dtype(np.float32): "float", np.dtype(np.float64): "double", np.dtype(np.int64): "i64",
    np.dtype(np.int32): "i32", np.dtype(np.int16): "i16", np.dtype(np.int8): "i8", np.dtype(np.uint8): "i8",
    np.dtype(np.bool_): "i1",
}  # fmt: skip
#: Lamina's dtype -> LLVM's type in memory.
_STORED = {float16: "half", bfloat16: "i16", bool_: "i8"}
_HALVES = (float16.numpy, bfloat16.numpy)
INDEX, BOOL = np.dtype(np.int64), np.dtype(np.bool_)
#: dtypes of memory that kernels read and write.
KNOWN = {"float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"}


class Scalar(NDArrayOperatorsMixin):
    """A scalar that a kernel computes: with a NumPy dtype, without axes, known when the kernel runs.

    NumPy's functions and operators on it emit instructions and give another value, with NumPy's dtype promotion.
    Raises NoKernel for functions without instructions.
    """

    shape, ndim, size = (), 0, 1
    if TYPE_CHECKING:

        def __add__(self, other: Any) -> Scalar: ...

        def __radd__(self, other: Any) -> Scalar: ...

        def __sub__(self, other: Any) -> Scalar: ...

        def __rsub__(self, other: Any) -> Scalar: ...

        def __mul__(self, other: Any) -> Scalar: ...

        def __rmul__(self, other: Any) -> Scalar: ...

        def __truediv__(self, other: Any) -> Scalar: ...

        def __rtruediv__(self, other: Any) -> Scalar: ...

        def __and__(self, other: Any) -> Scalar: ...

        def __or__(self, other: Any) -> Scalar: ...

        def __xor__(self, other: Any) -> Scalar: ...

        def __lt__(self, other: Any) -> Scalar: ...

        def __le__(self, other: Any) -> Scalar: ...

        def __gt__(self, other: Any) -> Scalar: ...

        def __ge__(self, other: Any) -> Scalar: ...

    def __init__(self, code: Code, dtype: np.dtype[Any], text: str) -> None:
        self.code, self.dtype, self.text = code, dtype, text

    def astype(self, dtype: Any, copy: bool = True) -> Scalar:
        """The value in another dtype; float to integer rounds towards zero, NaN to 0."""
        return self.code.convert(self, np.dtype(dtype))

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Scalar:
        # `out` is supported only for x += y, which rebinds the name.
        if method != "__call__" or set(options) - {"out"}:
            raise NoKernel(f"cpu: a kernel has no {ufunc.__name__}.{method}")
        return self.code.call(ufunc.__name__, inputs)

    def __array_function__(self, function: Callable[..., Any], types: Any, args: Any, kwargs: Any) -> Scalar:
        return self.code.call(function.__name__, args, **kwargs)

    def __array__(self, *args: Any, **options: Any) -> Array:
        raise NoKernel("cpu: a kernel knows a value only when it runs")

    def __bool__(self) -> bool:
        raise NoKernel("cpu: a kernel knows a value only when it runs")


@dataclass(frozen=True)
class Elements:
    """An array of a kernel: elements by index, from the start."""

    code: Code
    dtype: DType
    pointer: str

    def __getitem__(self, index: Any) -> Scalar:
        return self.code.load(self, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self.code.store(self, index, value)


class Variable:
    """A mutable scalar: a loop-carried value."""

    def __init__(self, code: Code, initial: Scalar) -> None:
        self.code, self.dtype = code, initial.dtype
        self.place = code.reserve(TYPES[initial.dtype])
        self.set(initial)

    def get(self) -> Scalar:
        """The current value."""
        return self.code.made(self.dtype, f"load {TYPES[self.dtype]}, ptr {self.place}")

    def set(self, value: Any) -> None:
        """Assign a value."""
        given = self.code.convert(self.code.value(value, self.dtype), self.dtype)
        self.code.emit(f"store {TYPES[self.dtype]} {given.text}, ptr {self.place}")

    def add(self, value: Any) -> None:
        """Add to a sum whose order does not matter: LLVM may keep several partial sums (NaN and infinities are
        kept)."""
        self._gather("add", value)

    def multiply(self, value: Any) -> None:
        """The same for a product."""
        self._gather("mul", value)

    def choose(self, larger: bool, value: Scalar) -> None:
        """Replace by a float that is larger (or smaller). After a NaN the value is unspecified."""
        kind, way = TYPES[self.dtype], "ogt" if larger else "olt"
        now, given = self.get(), self.code.convert(value, self.dtype)
        taken = self.code.made(BOOL, f"fcmp nnan nsz {way} {kind} {given.text}, {now.text}")
        chosen = f"select nnan nsz i1 {taken.text}, {kind} {given.text}, {kind} {now.text}"
        self.set(self.code.made(self.dtype, chosen))

    def _gather(self, name: str, value: Any) -> None:
        given = self.code.convert(self.code.value(value, self.dtype), self.dtype)
        kind = f"f{name} reassoc" if self.dtype.kind == "f" else name
        self.set(self.code.made(self.dtype, f"{kind} {TYPES[self.dtype]} {self.get().text}, {given.text}"))


class Code:
    """Instructions in order. Parameters are passed in one array of 64-bit words: addresses and sizes."""

    def __init__(self) -> None:
        self._reserved: list[str] = []
        self._lines: list[str] = []
        self._parameters: list[str] = []
        self._constants: list[str] = []
        self._declared: dict[str, str] = {}
        self._groups: list[str] = []
        self._names = 0
        self._masked: list[bool] = []  # per independent loop
        self._doubt = ""

    # ---- parameters

    def array(self, dtype: DType) -> Elements:
        """The next parameter: the address of an array."""
        if dtype.name not in KNOWN:
            raise NoKernel(f"cpu: kernels do not compute in {dtype}")
        return Elements(self, dtype, self._parameter("ptr"))

    def size(self) -> Scalar:
        """The next parameter: an integer."""
        return Scalar(self, INDEX, self._parameter("i64"))

    def sizes(self, count: int) -> list[Scalar]:
        """The next `count` parameters, integers."""
        return [self.size() for _ in range(count)]

    def _parameter(self, type: str) -> str:
        number = len(self._parameters) // 2
        self._parameters += [
            f"%a{number} = getelementptr i64, ptr %arguments, i64 {number}",
            f"%p{number} = load {type}, ptr %a{number}",
        ]
        return f"%p{number}"

    def share(self) -> tuple[Scalar, Scalar]:
        """This call's share of the outermost loop: first step, and one past the last."""
        return Scalar(self, INDEX, "%first"), Scalar(self, INDEX, "%last")

    # ---- instructions

    def emit(self, line: str) -> None:
        """Append an instruction without a result."""
        self._lines.append(line)

    def name(self) -> str:
        """A new name."""
        self._names += 1
        return f"v{self._names}"

    def made(self, dtype: np.dtype[Any], instruction: str) -> Scalar:
        """The result of an instruction."""
        name = f"%{self.name()}"
        self.emit(f"{name} = {instruction}")
        return Scalar(self, dtype, name)

    def reserve(self, type: str, count: str = "1") -> str:
        """Stack memory for the whole call."""
        name = f"%{self.name()}"
        self._reserved.append(f"{name} = alloca {type}, i64 {count}, align 64")
        return name

    def scratch(self, dtype: DType, count: Scalar) -> Elements:
        """Memory private to this call; `count` is a parameter, and small."""
        return Elements(self, dtype, self.reserve(_STORED.get(dtype) or TYPES[dtype.numpy], count.text))

    @property
    def doubts(self) -> bool:
        """Whether a result may be wrong, which the kernel reports through its last parameter."""
        return bool(self._doubt)

    def doubt(self, condition: Scalar) -> None:
        """Mark the results as doubtful where the condition holds: the caller then recomputes everything."""
        if not self._doubt:
            self._doubt = self.reserve("i1")
            self._reserved.append(f"store i1 false, ptr {self._doubt}")
        before = self.made(BOOL, f"load i1, ptr {self._doubt}")
        now = self.made(BOOL, f"or i1 {before.text}, {self.convert(condition, BOOL).text}")
        self.emit(f"store i1 {now.text}, ptr {self._doubt}")

    def _tell_doubts(self) -> None:
        flag = self.array(as_dtype("int64"))
        with self.when(self.made(BOOL, f"load i1, ptr {self._doubt}")):
            flag[0] = 1

    def variable(self, initial: Any, dtype: Any = INDEX) -> Variable:
        """A number that changes."""
        return Variable(self, self.convert(self.value(initial, np.dtype(dtype)), np.dtype(dtype)))

    def value(self, number: Any, dtype: np.dtype[Any] | None = None) -> Scalar:
        """A Python or NumPy number as a value; dtype: for Python numbers, which have none."""
        if isinstance(number, Scalar):
            return number
        given = np.asarray(number)
        if given.ndim:
            raise NoKernel(f"cpu: a kernel's value has no axes, got an array of shape {given.shape}")
        weak = isinstance(number, bool | int | float)
        kind = dtype if weak and dtype is not None else given.dtype
        if kind not in TYPES:
            raise NoKernel(f"cpu: kernels do not compute in {kind}")
        return Scalar(self, kind, literal(given.astype(kind)[()]))

    def table(self, values: Array) -> Elements:
        """A constant array."""
        kind = TYPES[values.dtype]
        items = ", ".join(f"{kind} {literal(v)}" for v in values)
        name = f"@t{len(self._constants)}"
        self._constants.append(
            f"{name} = internal unnamed_addr constant [{len(values)} x {kind}] [{items}], align 64"
        )
        return Elements(self, as_dtype(values.dtype), name)

    def convert(self, x: Scalar, dtype: np.dtype[Any]) -> Scalar:
        """A value in another dtype."""
        if x.dtype == dtype:
            return x
        x = self.rounded(x)
        if x.dtype not in TYPES or dtype not in TYPES:
            if dtype in _HALVES and x.dtype.kind == "f":  # rounded when it is stored or used
                return Scalar(self, dtype, self.convert(x, np.dtype(np.float32)).text)
            raise NoKernel(f"cpu: kernels do not convert {x.dtype} to {dtype}")
        if dtype == BOOL:
            return self.call("not_equal", (x, 0))
        old, new = TYPES[x.dtype], TYPES[dtype]
        if old == new:
            return Scalar(self, dtype, x.text)
        if x.dtype.kind == "f" and dtype.kind in "iu":
            return self._truncated(x, dtype)
        return self.made(dtype, f"{_conversion(x.dtype, dtype)} {old} {x.text} to {new}")

    def rounded(self, x: Scalar) -> Scalar:
        """A value of a half type, computed in float32 so far, rounded to it; other values unchanged."""
        if x.dtype not in _HALVES:
            return x
        kept = Scalar(self, np.dtype(np.float32), x.text)
        if x.dtype == float16.numpy:
            half = self.made(kept.dtype, f"fptrunc float {kept.text} to half")
            return self.made(kept.dtype, f"fpext half {half.text} to float")
        return self._from_bfloat16(self._rounded_to_bfloat16(kept))

    def _truncated(self, x: Scalar, dtype: np.dtype[Any]) -> Scalar:
        """As NumPy on x86: through 32 or 64 bits, whose lowest integer stands for all values out of range."""
        bits = 64 if dtype.itemsize == 8 else 32
        wide, least = np.dtype(f"int{bits}"), -(2.0 ** (bits - 1))
        x = self.call("where", ((x >= least) & (x < -least), x, least))
        return self.convert(self.made(wide, f"fptosi {TYPES[x.dtype]} {x.text} to {TYPES[wide]}"), dtype)

    def intrinsic(self, name: str, dtype: np.dtype[Any], *args: Scalar) -> Scalar:
        """An LLVM intrinsic."""
        types, kind = ", ".join(TYPES[a.dtype] for a in args), TYPES[dtype]
        self._declared[name] = f"declare {kind} @llvm.{name}({types})"
        given = ", ".join(f"{TYPES[a.dtype]} {a.text}" for a in args)
        return self.made(dtype, f"call {kind} @llvm.{name}({given})")

    def bits(self, x: Scalar, dtype: Any) -> Scalar:
        """Bit cast to another type of the same size."""
        return self.made(np.dtype(dtype), f"bitcast {TYPES[x.dtype]} {x.text} to {TYPES[np.dtype(dtype)]}")

    def call(self, name: str, args: Sequence[Any], **options: Any) -> Scalar:
        """A NumPy function on values and numbers. Raises NoKernel for one without instructions."""
        found = FUNCTIONS.get(name)
        if found is None or options:
            raise NoKernel(f"cpu: a kernel has no {name}")
        return found(self, *(self.rounded(a) if isinstance(a, Scalar) else a for a in args))

    def together(self, *args: Any) -> list[Scalar]:
        """The operands in their common dtype, by NumPy's promotion."""
        dtype = np.result_type(*(a.dtype if isinstance(a, Scalar) else a for a in args))
        if dtype not in TYPES:
            raise NoKernel(f"cpu: kernels do not compute in {dtype}")
        return [self.convert(self.value(a, dtype), dtype) for a in args]

    # ---- memory

    def load(self, memory: Elements, index: Any) -> Scalar:
        """An element; half types as float32."""
        dtype, kind = memory.dtype, _STORED.get(memory.dtype) or TYPES[memory.dtype.numpy]
        place = self._element(memory, kind, index)
        name = f"%{self.name()}"
        self.emit(f"{name} = load {kind}, ptr {place}{self._group()}")
        if dtype == float16:
            return self.made(np.dtype(np.float32), f"fpext half {name} to float")
        if dtype == bfloat16:
            return self._from_bfloat16(name)
        if dtype == bool_:
            return self.made(BOOL, f"icmp ne i8 {name}, 0")
        return Scalar(self, dtype.numpy, name)

    def store(self, memory: Elements, index: Any, value: Any) -> None:
        """Store an element, rounded to nearest in its type."""
        kind = _STORED.get(memory.dtype) or TYPES[memory.dtype.numpy]
        given = self._stored(self.value(value, memory.dtype.compute.numpy), memory.dtype)
        place = self._element(memory, kind, index)
        self.emit(f"store {kind} {given}, ptr {place}{self._group()}")

    def copy(self, target: Elements, to: Any, source: Elements, start: Any, count: Scalar) -> None:
        """Copy `count` contiguous elements by the C library's memcpy, which is tuned for many lengths."""
        kind = _STORED.get(target.dtype) or TYPES[target.dtype.numpy]
        name = "memcpy.p0.p0.i64"
        self._declared[name] = f"declare void @llvm.{name}(ptr, ptr, i64, i1)"
        places = ", ".join(f"ptr {self._element(m, kind, i)}" for m, i in ((target, to), (source, start)))
        nbytes = count * target.dtype.itemsize
        self.emit(f"call void @llvm.{name}({places}, i64 {nbytes.text}, i1 false)")

    def _element(self, memory: Elements, kind: str, index: Any) -> str:
        at = self.convert(self.value(index, INDEX), INDEX)
        name = f"%{self.name()}"
        self.emit(f"{name} = getelementptr inbounds {kind}, ptr {memory.pointer}, i64 {at.text}")
        return name

    def _group(self) -> str:
        return f", !llvm.access.group {self._groups[-1]}" if self._groups and self._groups[-1] else ""

    def _stored(self, x: Scalar, dtype: DType) -> str:
        if x.dtype == dtype.numpy and x.dtype not in TYPES:  # a half type, held as float32
            x = Scalar(self, np.dtype(np.float32), x.text)
        x = self.convert(x, dtype.compute.numpy)
        if dtype == float16:
            return self.made(x.dtype, f"fptrunc float {x.text} to half").text
        if dtype == bfloat16:
            return self._rounded_to_bfloat16(x)
        if dtype == bool_:
            return self.made(x.dtype, f"zext i1 {x.text} to i8").text
        return x.text

    def _rounded_to_bfloat16(self, x: Scalar) -> str:
        """The upper half of the bits, rounded to nearest, ties to even; NaN stays NaN."""
        bits = self.bits(x, np.int32)
        odd = np.bitwise_and(self.shifted(bits, 16), 1)
        nearest = self.shifted(bits + odd + np.int32(0x7FFF), 16)
        quiet = np.bitwise_or(self.shifted(bits, 16), np.int32(0x40))
        whole = self.call("where", (np.not_equal(x, x), quiet, nearest))
        return self.made(whole.dtype, f"trunc i32 {whole.text} to i16").text

    def _from_bfloat16(self, bits: str) -> Scalar:
        wide = self.made(np.dtype(np.int32), f"zext i16 {bits} to i32")
        return self.bits(self.made(np.dtype(np.int32), f"shl i32 {wide.text}, 16"), np.float32)

    def quotient(self, x: Scalar, y: Scalar) -> Scalar:
        """x // y of non-negative integers."""
        return self.made(x.dtype, f"udiv {TYPES[x.dtype]} {x.text}, {y.text}")

    def remainder(self, x: Scalar, y: Scalar) -> Scalar:
        """x % y of non-negative integers."""
        return self.made(x.dtype, f"urem {TYPES[x.dtype]} {x.text}, {y.text}")

    def shifted(self, x: Scalar, by: int) -> Scalar:
        """Bits shifted right (by > 0, filling with zeros) or left."""
        kind, way = TYPES[x.dtype], "lshr" if by > 0 else "shl"
        return self.made(x.dtype, f"{way} {kind} {x.text}, {abs(by)}")

    # ---- control

    @contextmanager
    def loop(
        self, first: Any, last: Any, step: Any = 1, *, independent: bool = False, masked: bool = False
    ) -> Iterator[Scalar]:
        """Iterate from first to before last.

        independent: no iteration reads or writes what another one writes. masked: of these, the rest after full
            vectors is a masked vector, too, and not computed one by one: for short rows.
        """
        count = self.variable(first)
        end, by = (self.convert(self.value(v, INDEX), INDEX) for v in (last, step))
        head, body, after = (f"{part}{self.name()}" for part in ("head", "body", "after"))
        self.emit(f"br label %{head}\n{head}:")
        now = count.get()
        going = self.made(BOOL, f"icmp slt i64 {now.text}, {end.text}")
        self.emit(f"br i1 {going.text}, label %{body}, label %{after}\n{body}:")
        number = len(self._masked)
        if independent:
            self._masked.append(masked)
        self._groups.append(f"!{3 * number}" if independent else "")
        yield now
        self._groups.pop()
        count.set(self.made(INDEX, f"add nsw i64 {now.text}, {by.text}"))
        mark = f", !llvm.loop !{3 * number + 1}" if independent else ""
        self.emit(f"br label %{head}{mark}\n{after}:")

    @contextmanager
    def when(self, condition: Scalar) -> Iterator[None]:
        """Emit a block that runs only where a condition holds."""
        then, after = f"then{self.name()}", f"after{self.name()}"
        given = self.convert(condition, BOOL)
        self.emit(f"br i1 {given.text}, label %{then}, label %{after}\n{then}:")
        yield
        self.emit(f"br label %{after}\n{after}:")

    # ---- the whole

    def text(self) -> str:
        """The function kernel(arguments, first, last) as LLVM assembly."""
        if self._doubt:
            self._tell_doubts()
        body = "\n".join([*self._parameters, *self._reserved, *self._lines])
        mark = 3 * len(self._masked)
        groups = "\n".join(
            f"!{3 * n} = distinct !{{}}\n"
            f"!{3 * n + 1} = distinct !{{!{3 * n + 1}, !{3 * n + 2}{f', !{mark}' if masked else ''}}}\n"
            f'!{3 * n + 2} = !{{!"llvm.loop.parallel_accesses", !{3 * n}}}'
            for n, masked in enumerate(self._masked)
        )
        if any(self._masked):
            groups += f'\n!{mark} = !{{!"llvm.loop.vectorize.predicate.enable", i1 true}}'
        return "\n".join(
            [
                *self._constants,
                *self._declared.values(),
                f"define void @kernel(ptr noalias %arguments, i64 %first, i64 %last) #0 {{\n{body}\nret void\n}}",
                groups,
            ]
        )


_SHORT = {"float": "f32", "double": "f64"}


def _conversion(old: np.dtype[Any], new: np.dtype[Any]) -> str:
    """The instruction that converts between two types that differ."""
    if old.kind == "f" and new.kind == "f":
        return "fpext" if new.itemsize > old.itemsize else "fptrunc"
    unsigned = old.kind in "ub"
    if new.kind == "f":
        return "uitofp" if unsigned else "sitofp"
    if new.itemsize < old.itemsize:
        return "trunc"
    return "zext" if unsigned else "sext"


def literal(value: Any) -> str:
    """A number in LLVM's syntax: floats by the bits of a double."""
    if isinstance(value, np.bool_):
        return "true" if value else "false"
    if isinstance(value, np.floating):
        return f"0x{struct.unpack('<Q', struct.pack('<d', float(value)))[0]:016X}"
    return str(int(value))


# ------------------------------------------------------------------------------------------------------- functions

#: Implementations of NumPy's functions, by name: (code, *operands) -> value.
FUNCTIONS: dict[str, Callable[..., Scalar]] = {}
F = Callable[..., Scalar]


def function(*names: str) -> Callable[[F], F]:
    """Register the implementation of NumPy functions."""

    def register(f: F) -> F:
        FUNCTIONS.update(dict.fromkeys(names, f))
        return f

    return register


def _arithmetic(name: str, floats: str, integers: str) -> None:
    def compute(code: Code, a: Any, b: Any) -> Scalar:
        x, y = code.together(a, b)
        kind = floats if x.dtype.kind == "f" else integers
        if not kind or x.dtype == BOOL:
            raise NoKernel(f"cpu: a kernel has no {name} of {x.dtype}")
        return code.made(x.dtype, f"{kind} {TYPES[x.dtype]} {x.text}, {y.text}")

    FUNCTIONS[name] = compute


def _comparison(name: str, floats: str, integers: str) -> None:
    def compare(code: Code, a: Any, b: Any) -> Scalar:
        x, y = code.together(a, b)
        if x.dtype.kind == "f":
            return code.made(BOOL, f"fcmp {floats} {TYPES[x.dtype]} {x.text}, {y.text}")
        sign = "" if integers in ("eq", "ne") else "s" if x.dtype.kind == "i" else "u"
        return code.made(BOOL, f"icmp {sign}{integers} {TYPES[x.dtype]} {x.text}, {y.text}")

    FUNCTIONS[name] = compare


def _bitwise(name: str, instruction: str, logical: bool) -> None:
    def combine(code: Code, a: Any, b: Any) -> Scalar:
        x, y = (code.convert(code.value(v), BOOL) for v in (a, b)) if logical else code.together(a, b)
        if x.dtype.kind == "f":
            raise NoKernel(f"cpu: a kernel has no {name} of {x.dtype}")
        return code.made(x.dtype, f"{instruction} {TYPES[x.dtype]} {x.text}, {y.text}")

    FUNCTIONS[name] = combine


for _name, _floats, _integers in (
    ("add", "fadd", "add"), ("subtract", "fsub", "sub"), ("multiply", "fmul", "mul"), ("divide", "fdiv", ""),
):  # fmt: skip
    _arithmetic(_name, _floats, _integers)
for _name, _floats, _integers in (
    ("equal", "oeq", "eq"), ("not_equal", "une", "ne"), ("less", "olt", "lt"), ("less_equal", "ole", "le"),
    ("greater", "ogt", "gt"), ("greater_equal", "oge", "ge"),
):  # fmt: skip
    _comparison(_name, _floats, _integers)
for _name, _instruction, _logical in (
    ("logical_and", "and", True), ("logical_or", "or", True), ("bitwise_and", "and", False),
    ("bitwise_or", "or", False), ("bitwise_xor", "xor", False),
):  # fmt: skip
    _bitwise(_name, _instruction, _logical)


def _shift(name: str, signed: str, unsigned: str) -> None:
    def move(code: Code, a: Any, b: Any) -> Scalar:
        """Shift; b is within the bit width, as NumPy demands."""
        x, y = code.together(a, b)
        if x.dtype.kind not in "iu":
            raise NoKernel(f"cpu: a kernel has no {name} of {x.dtype}")
        way = signed if x.dtype.kind == "i" else unsigned
        return code.made(x.dtype, f"{way} {TYPES[x.dtype]} {x.text}, {y.text}")

    FUNCTIONS[name] = move


_shift("left_shift", "shl", "shl")
_shift("right_shift", "ashr", "lshr")


def _of_floats(name: str, intrinsic: str) -> None:
    def compute(code: Code, a: Any) -> Scalar:
        x = floating(code, name, a)
        return code.intrinsic(f"{intrinsic}.{_SHORT[TYPES[x.dtype]]}", x.dtype, x)

    FUNCTIONS[name] = compute


for _name, _intrinsic in (
    ("floor", "floor"), ("ceil", "ceil"), ("trunc", "trunc"), ("rint", "roundeven"), ("sqrt", "sqrt"),
    ("fabs", "fabs"),
):  # fmt: skip
    _of_floats(_name, _intrinsic)


def floating(code: Code, name: str, a: Any) -> Scalar:
    """An operand that must be a float."""
    x = code.value(a)
    if x.dtype.kind != "f" or x.dtype not in TYPES:
        raise NoKernel(f"cpu: a kernel has no {name} of {x.dtype}")
    return x


def _larger(name: str, floats: str, integers: str) -> None:
    def choose(code: Code, a: Any, b: Any) -> Scalar:
        x, y = code.together(a, b)
        if x.dtype == BOOL:
            raise NoKernel(f"cpu: a kernel has no {name} of {x.dtype}")
        if x.dtype.kind == "f":
            return code.intrinsic(f"{floats}.{_SHORT[TYPES[x.dtype]]}", x.dtype, x, y)
        sign = "s" if x.dtype.kind == "i" else "u"
        return code.intrinsic(f"{sign}{integers}.{TYPES[x.dtype]}", x.dtype, x, y)

    FUNCTIONS[name] = choose


_larger("maximum", "maximum", "max")
_larger("minimum", "minimum", "min")
_larger("fmax", "maxnum", "max")
_larger("fmin", "minnum", "min")


@function("negative")
def _negative(code: Code, a: Any) -> Scalar:
    x = code.value(a)
    if x.dtype.kind == "f":
        return code.made(x.dtype, f"fneg {TYPES[x.dtype]} {x.text}")
    return code.call("subtract", (code.value(0, x.dtype), x))


@function("absolute")
def _absolute(code: Code, a: Any) -> Scalar:
    x = code.value(a)
    if x.dtype.kind == "f":
        return code.call("fabs", (x,))
    return x if x.dtype.kind == "u" else code.call("where", (x < 0, -x, x))


@function("sign")
def _sign(code: Code, a: Any) -> Scalar:
    x = code.value(a)
    one = code.value(1, x.dtype)
    found = code.call("where", (x > 0, one, code.call("where", (x == 0, 0 * one, x))))
    return found if x.dtype.kind == "u" else code.call("where", (x < 0, -one, found))


@function("positive")
def _positive(code: Code, a: Any) -> Scalar:
    return code.value(a)


@function("square")
def _square(code: Code, a: Any) -> Scalar:
    return code.call("multiply", (a, a))


@function("reciprocal")
def _reciprocal(code: Code, a: Any) -> Scalar:
    return code.call("divide", (1, floating(code, "reciprocal", a)))


@function("logical_not")
def _not(code: Code, a: Any) -> Scalar:
    return code.made(BOOL, f"xor i1 {code.convert(code.value(a), BOOL).text}, true")


@function("isnan")
def _is_nan(code: Code, a: Any) -> Scalar:
    return code.call("not_equal", (a, a))


@function("isfinite")
def _is_finite(code: Code, a: Any) -> Scalar:
    return code.call("less", (code.call("absolute", (a,)), np.inf))


@function("copysign")
def _copysign(code: Code, a: Any, b: Any) -> Scalar:
    x, y = code.together(a, b)
    x = floating(code, "copysign", x)
    return code.intrinsic(f"copysign.{_SHORT[TYPES[x.dtype]]}", x.dtype, x, y)


@function("where")
def _where(code: Code, condition: Any, a: Any, b: Any) -> Scalar:
    chosen = code.convert(code.value(condition), BOOL)
    x, y = code.together(a, b)
    kind = TYPES[x.dtype]
    return code.made(x.dtype, f"select i1 {chosen.text}, {kind} {x.text}, {kind} {y.text}")


@function("ones_like")
def _ones_like(code: Code, a: Any) -> Scalar:
    return code.value(1, code.value(a).dtype)


@function("zeros_like")
def _zeros_like(code: Code, a: Any) -> Scalar:
    return code.value(0, code.value(a).dtype)


@function("fmod")
def _fmod(code: Code, a: Any, b: Any) -> Scalar:
    """The remainder of a after whole multiples of b, exact; doubtful where the quotient is too large for that."""
    x, y = code.together(a, b)
    x = floating(code, "fmod", x)
    quotient = code.call("trunc", (x / y,))
    code.doubt((np.abs(quotient) >= 2.0 ** np.finfo(x.dtype).nmant) & (np.abs(x) < np.inf) & (y != 0))
    rest = code.intrinsic(f"fma.{_SHORT[TYPES[x.dtype]]}", x.dtype, -quotient, y, x)
    over = (rest != 0) & ((rest < 0) != (x < 0))  # the quotient was rounded up
    rest = where(over, rest + code.call("copysign", (y, x)), rest)
    return code.call("copysign", (where((np.abs(y) == np.inf) & (np.abs(x) < np.inf), x, rest), x))


@function("remainder")
def _remainder(code: Code, a: Any, b: Any) -> Scalar:
    """Remainder with the sign of b; for a power of two in two steps."""
    x = floating(code, "remainder", a)
    if not isinstance(b, Scalar) and np.frexp(b)[0] == 0.5:
        return code.call("subtract", (x, np.floor(x * (1 / float(b))) * float(b)))
    rest, (x, y) = _fmod(code, a, b), code.together(a, b)
    moved = where((rest < 0) != (y < 0), rest + y, rest)
    return where(rest == 0, np.copysign(0.0 * rest, y), moved)


@function("clip")
def _clip(code: Code, a: Any, low: Any, high: Any) -> Scalar:
    return code.call("minimum", (code.call("maximum", (a, low)), high))


@function("nan_to_num")
def _nan_to_num(code: Code, a: Any) -> Scalar:
    """0 for NaN, the largest numbers for infinities."""
    x = floating(code, "nan_to_num", a)
    limit = float(np.finfo(x.dtype).max)
    return code.call("where", (np.not_equal(x, x), 0.0, code.call("clip", (x, -limit, limit))))


@function("lookup")
def _lookup(code: Code, table: Any, index: Any) -> Scalar:
    if isinstance(table, Scalar) or np.ndim(table) != 1:
        raise NoKernel("cpu: a kernel takes elements of a constant array of one axis")
    return code.table(np.asarray(table))[index]


def where(condition: Scalar, a: Any, b: Any) -> Scalar:
    """a where a condition holds, else b."""
    return condition.code.call("where", (condition, a, b))


def least(x: Scalar, y: Any) -> Scalar:
    """The smaller of two."""
    return x.code.call("minimum", (x, y))


def fused(code: Code, a: Any, b: Any, c: Any) -> Scalar:
    """a * b + c, rounded once where the machine can."""
    x, y, z = code.together(a, b, c)
    return code.intrinsic(f"fmuladd.{_SHORT[TYPES[x.dtype]]}", x.dtype, x, y, z)
