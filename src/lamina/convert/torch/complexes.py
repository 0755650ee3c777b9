"""Complex tensors of a graph: a real and an imaginary part, each a cell of real numbers.

There are no complex dtypes. Functions that are linear in their tensors run once for each part, whatever they do with
shapes, views and writes; products run for each combination of parts; the others are implemented here. Where a complex
tensor enters or leaves the program it has a last axis of size 2, as in torch.view_as_real.
"""

from __future__ import annotations

import cmath
import itertools
import math
from collections.abc import Callable, Iterator
from functools import partial
from operator import itemgetter
from typing import Any

import torch
from torch.fx import Node

from lamina import ops
from lamina.convert.torch.autocast import plain_name
from lamina.convert.torch.cells import Cell, View
from lamina.convert.torch.targets import example, named, own_name
from lamina.ops import fft
from lamina.ops.core import Operand

#: (node, args, kwargs) -> the results of the real function for them.
Run = Callable[[Any, Any], Any]
Parts = tuple[Any, Any]

#: Linear in all float tensors together: run for the real parts, then for the imaginary ones.
LINEAR = frozenset({
    "__getitem__", "__setitem__", "_assert_tensor_metadata", "add", "alias", "as_strided", "cat", "chunk",
    "clone", "contiguous", "copy", "cumsum", "detach", "diag", "diag_embed", "diagonal", "dim", "empty",
    "empty_like", "expand", "expand_as", "fftshift", "fill", "flatten", "flip", "full", "full_like", "gather",
    "getitem", "hstack", "iadd", "ifftshift", "index", "index_add", "index_copy", "index_put", "index_select",
    "is_contiguous", "isub", "lift_fresh", "lift_fresh_copy", "masked_fill", "mean", "movedim", "mT",
    "narrow", "neg", "new_empty", "new_full", "new_zeros", "numel", "numpy_T", "pad", "permute", "pos",
    "positive", "repeat", "repeat_interleave", "reshape", "reshape_as", "roll", "rsub", "scatter",
    "scatter_add", "select", "setitem", "size", "slice", "split", "split_with_sizes", "squeeze", "stack",
    "sub", "sum", "swapaxes", "sym_numel", "sym_size", "sym_stride", "t", "tensor_split", "tile", "trace",
    "transpose", "tril", "triu", "unbind", "unflatten", "unsafe_chunk", "unsafe_split", "unsqueeze", "view",
    "view_as", "vstack", "where", "zero", "zeros", "zeros_like",
})  # fmt: skip
#: Linear in each tensor and number: run for each combination of parts.
PRODUCTS = frozenset({
    "__matmul__", "bmm", "dot", "einsum", "imul", "kron", "matmul", "mm", "mul", "mv", "outer", "tensordot",
})  # fmt: skip
#: Functions that are linear in number arguments too (added or written ones): these have parts as well.
NUMBERS = {"add": (0, 1), "sub": (0, 1), "rsub": (1,), "iadd": (1,), "isub": (1,), "setitem": (2,),
           "__setitem__": (2,), "fill": (1,), "masked_fill": (2,), "full": (1,), "full_like": (1,), "new_full": (2,),
           "pad": (3,), "where": (1, 2)}  # fmt: skip
NAMED = ("value", "fill_value", "other")


class ComplexCell(Cell):
    """A complex tensor: two cells of real numbers. Read, it has a last axis of size 2."""

    def __init__(self, re: Cell, im: Cell) -> None:
        self.re, self.im = re, im
        self.is_seen = False

    @classmethod
    def of(cls, cell: Cell) -> ComplexCell:
        """A view of a cell [..., 2], sharing its memory."""
        return cls(View(cell, itemgetter((..., 0))), View(cell, itemgetter((..., 1))))

    @classmethod
    def made(cls, parts: Parts) -> ComplexCell:
        """From new real and imaginary parts."""
        return cls(Cell(parts[0]), Cell(parts[1]))

    @property
    def version(self) -> int:
        """How often it was written (its version)."""
        return self.re.version + self.im.version

    @property
    def roots(self) -> list[Cell]:
        """Those of both parts."""
        return [*self.re.roots, *self.im.roots]

    def read(self) -> Any:
        """[..., 2]."""
        return ops.stack((self.re.read(), self.im.read()), -1)

    @property
    def parts(self) -> Parts:
        """The current real and imaginary part."""
        return self.re.read(), self.im.read()

    def replace(self, value: Any) -> None:
        """Replace the parts by [..., 2]."""
        self.re.replace(value[..., 0])
        self.im.replace(value[..., 1])


#: Transforms to real numbers, of real ones, too: their imaginary part is zero.
BACK_TO_REAL = frozenset(("irfft", "irfft2", "irfftn", "hfft"))


def is_complex(node: Node) -> bool:
    """Whether a node returns a complex tensor, or several."""
    seen = example(node)
    parts = seen if isinstance(seen, (tuple, list)) else (seen,)
    return any(isinstance(x, torch.Tensor) and x.is_complex() for x in parts)


def involved(node: Node) -> bool:
    """Whether a call takes or returns complex numbers (a call of a subgraph is judged by the calls within), or real
    ones in place of complex ones.
    """
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        return False
    if plain_name(node) in BACK_TO_REAL:
        return True
    return node.op.startswith("call") and (is_complex(node) or any(map(is_complex, node.all_input_nodes)))


def knows(node: Node) -> bool:
    """Whether such a call has a counterpart."""
    name = plain_name(node)
    return name in LINEAR or name in PRODUCTS or name in FUNCTIONS or own_name(node) in FUNCTIONS


def called(node: Node, args: Any, kwargs: Any, run: Run) -> Any:
    """The results of a call, in cells. run: the function on real arguments."""
    args, kwargs = _real_types(args), _real_types(kwargs)
    name = plain_name(node)
    if (handler := FUNCTIONS.get(own_name(node)) or FUNCTIONS.get(name)) is not None:
        return _written(node, args, _cells(handler(ComplexCall(node, args, kwargs, run))))
    if name in PRODUCTS:
        parts = _product(args, kwargs, run)
        return _written(node, args, ComplexCell.made(parts) if parts[1] is not None else Cell(parts[0]))
    both = [run(_part(name, args, i), _part(name, kwargs, i)) for i in (0, 1)]
    return _joined(*both)


# ------------------------------------------------------------------------------------------------------------- parts
def _cells(found: Any) -> Any:
    """A handler's result in cells: two parts, or one real tensor; non-tensors unchanged."""
    if isinstance(found, tuple) and found and isinstance(found[0], Operand):
        return ComplexCell.made((found[0], found[1]))
    return Cell(found) if isinstance(found, Operand) else found


def _written(node: Node, args: Any, found: Any) -> Any:
    """The result, written to the first argument by in-place functions."""
    name = own_name(node)
    in_place = (name.endswith("_") and not name.endswith("__")) or name == "imul" or name == "itruediv"
    if not in_place or not isinstance(args[0], ComplexCell):
        return found
    re, im = parts_of(found)
    args[0].re.write(re)
    args[0].im.write(ops.zeros_like(re) if im is None else im)
    return args[0]


def parts_of(value: Any) -> Parts:
    """Real and imaginary part of a tensor or a number; None for a zero part."""
    if isinstance(value, ComplexCell):
        return value.parts
    if isinstance(value, complex):
        return value.real, value.imag
    return (value.read() if isinstance(value, Cell) else value), None


def _joined(re: Any, im: Any) -> Any:
    if isinstance(re, Cell):
        return ComplexCell(re, im)
    if isinstance(re, (tuple, list)) and any(isinstance(x, Cell) for x in re):
        return type(re)(_joined(a, b) for a, b in zip(re, im, strict=True))
    return re


def _part(name: str, given: Any, which: int) -> Any:
    """Arguments with the real (0) or imaginary (1) part of each tensor; floats have the imaginary part 0."""

    def one(x: Any, place: Any, outer: bool) -> Any:
        if isinstance(x, ComplexCell):
            return x.im if which else x.re
        if isinstance(x, Cell):
            zero = which and x.read().dtype.is_float
            return Cell(ops.zeros_like(x.read())) if zero else x
        if type(x) in (tuple, list):
            return type(x)(one(v, None, False) for v in x)
        counts = outer and (place in NUMBERS.get(name, ()) or (name in NUMBERS and place in NAMED))
        if counts and isinstance(x, (int, float, complex)) and not isinstance(x, bool):
            return complex(x).imag if which else complex(x).real
        return x

    if isinstance(given, dict):
        return {k: one(v, k, True) for k, v in given.items()}
    return [one(v, i, True) for i, v in enumerate(given)]


def _real_types(given: Any) -> Any:
    """Arguments with complex dtypes replaced by those of the parts."""
    if isinstance(given, dict):
        return {k: _real_types(v) for k, v in given.items()}
    if isinstance(given, torch.dtype) and given.is_complex:
        return given.to_real()
    return type(given)(map(_real_types, given)) if type(given) in (tuple, list) else given


def _product(args: Any, kwargs: Any, run: Run) -> Parts:
    """Sums of the function over combinations of parts, by their power of i."""
    places = list(_complex_places(args))
    sums: list[Any] = [None, None]
    for choice in itertools.product((0, 1), repeat=len(places)):
        found = run(_chosen(args, dict(zip(places, choice, strict=True))), kwargs).read()
        turns, into = divmod(sum(choice), 2)
        signed = -found if turns % 2 else found
        sums[into] = signed if sums[into] is None else sums[into] + signed
    return sums[0], sums[1]


def _complex_places(args: Any, at: tuple[int, ...] = ()) -> Iterator[tuple[int, ...]]:
    for i, x in enumerate(args):
        if isinstance(x, (ComplexCell, complex)):
            yield (*at, i)
        elif isinstance(x, (tuple, list)):
            yield from _complex_places(x, (*at, i))


def _chosen(args: Any, choice: dict[tuple[int, ...], int], at: tuple[int, ...] = ()) -> Any:
    made: list[Any] = []
    for i, x in enumerate(args):
        which = choice.get((*at, i))
        if isinstance(x, complex):
            made.append(x.imag if which else x.real)
        elif which is not None:
            made.append(Cell((x.im if which else x.re).read()))  # written by in-place functions
        else:
            made.append(_chosen(x, choice, (*at, i)) if isinstance(x, (tuple, list)) else x)
    return made


# ---------------------------------------------------------------------------------------------------------- functions
class ComplexCall:
    """A call as the handlers below see it."""

    def __init__(self, node: Node, args: Any, kwargs: Any, run: Run) -> None:
        self.node, self.args, self.kwargs, self.run = node, args, kwargs, run

    @property
    def first(self) -> Parts:
        """The parts of the first argument; zeros where it is real."""
        re, im = parts_of(self.args[0] if self.args else next(iter(self.kwargs.values())))
        return re, ops.zeros_like(re) if im is None else im

    def named(self) -> dict[str, Any]:
        """The arguments by name."""
        return named(self.node, self.args, self.kwargs)


FUNCTIONS: dict[str, Callable[[ComplexCall], Any]] = {}


def _enter(*names: str) -> Callable[[Callable[[ComplexCall], Any]], Callable[[ComplexCall], Any]]:
    def enter(handler: Callable[[ComplexCall], Any]) -> Callable[[ComplexCall], Any]:
        FUNCTIONS.update(dict.fromkeys(names, handler))
        return handler

    return enter


@_enter("view_as_real")
def view_as_real(call: ComplexCall) -> Any:
    """[..., 2]."""
    return ops.stack(call.first, -1)


@_enter("view_as_complex")
def view_as_complex(call: ComplexCall) -> Any:
    """Of [..., 2]."""
    return ComplexCell.of(call.args[0])


@_enter("real", "imag")
def one_part(call: ComplexCall) -> Any:
    """One part, sharing memory."""
    return getattr(call.args[0], "re" if plain_name(call.node) == "real" else "im")


@_enter("getattr")
def attribute(call: ComplexCall) -> Any:
    """One part; properties common to both parts; transposed matrices."""
    z, name = call.args
    if name in ("real", "imag"):
        return z.re if name == "real" else z.im
    both = [call.run([part, name], {}) for part in (z.re, z.im)]
    if not isinstance(both[0], Cell):
        return both[0]
    return (both[0].read(), -both[1].read()) if name in ("H", "mH") else ComplexCell(*both)


@_enter("matrix_H", "mH", "adjoint")
def adjoint(call: ComplexCall) -> Any:
    """Conjugate transpose."""
    re, im = (x.mT for x in call.first)
    return re, -im


@_enter("complex")
def of_parts(call: ComplexCall) -> Any:
    """From a real and an imaginary part."""
    given = call.named()
    return given["real"].read(), given["imag"].read()


@_enter("polar")
def polar(call: ComplexCall) -> Any:
    """From magnitude and angle."""
    given = call.named()
    return _turned(given["abs"].read(), given["angle"].read())


def _turned(size: Any, angle: Any) -> Parts:
    return size * ops.cos(angle), size * ops.sin(angle)


@_enter("abs")
def magnitude(call: ComplexCall) -> Any:
    """|z|, whose gradient is 0 at 0."""
    return ops.hypot(*call.first)


@_enter("angle")
def angle(call: ComplexCall) -> Any:
    """Between -pi and pi."""
    re, im = call.first
    return ops.atan2(im, re)


@_enter("_conj", "conj", "conj_physical")
def conjugate(call: ComplexCall) -> Any:
    """The conjugate."""
    re, im = call.first
    return re, -im


@_enter("resolve_conj", "resolve_neg")
def same(call: ComplexCall) -> Any:
    """The tensor itself."""
    return call.args[0]


@_enter("div", "truediv", "itruediv")
def divided(call: ComplexCall) -> Any:
    """By a complex or a real number."""
    (a, b), (c, d) = map(parts_of, call.args[:2])
    if d is None:
        return a / c, b / c
    size = c * c + d * d
    b = ops.zeros_like(c) if b is None else b
    return (a * c + b * d) / size, (b * c - a * d) / size


@_enter("reciprocal")
def reciprocal(call: ComplexCall) -> Any:
    """1 / z."""
    re, im = call.first
    size = re * re + im * im
    return re / size, -im / size


@_enter("exp")
def exponential(call: ComplexCall) -> Any:
    """e^re, rotated by im."""
    re, im = call.first
    return _turned(ops.exp(re), im)


@_enter("log", "log2", "log10", "log1p")
def logarithm(call: ComplexCall) -> Any:
    """(log |z|, angle) in the base; log1p of z + 1."""
    name = plain_name(call.node)
    re, im = call.first
    re = re + 1 if name == "log1p" else re
    found = ops.log(ops.hypot(re, im)), ops.atan2(im, re)
    scale = math.log({"log2": 2, "log10": 10}.get(name, math.e))
    return found if scale == 1 else (found[0] / scale, found[1] / scale)


@_enter("sin", "cos", "sinh", "cosh")
def wave(call: ComplexCall) -> Any:
    """By the functions of the parts."""
    re, im = call.first
    name = plain_name(call.node)
    if name == "sin":
        return ops.sin(re) * ops.cosh(im), ops.cos(re) * ops.sinh(im)
    if name == "cos":
        return ops.cos(re) * ops.cosh(im), -ops.sin(re) * ops.sinh(im)
    if name == "sinh":
        return ops.sinh(re) * ops.cos(im), ops.cosh(re) * ops.sin(im)
    return ops.cosh(re) * ops.cos(im), ops.sinh(re) * ops.sin(im)


@_enter("tanh", "sigmoid")
def saturated(call: ComplexCall) -> Any:
    """tanh(a + ib) = (t (1 + tan² b) + i tan b (1 - t²)) / (1 + t² tan² b), with t = tanh a; sigmoid(z) is
    (1 + tanh(z / 2)) / 2."""
    is_tanh = plain_name(call.node) == "tanh"
    re, im = call.first if is_tanh else [x / 2 for x in call.first]
    t, u = ops.tanh(re), ops.tan(im)
    size = 1 + t * t * u * u
    re, im = t * (1 + u * u) / size, u * (1 - t * t) / size
    return (re, im) if is_tanh else ((1 + re) / 2, im / 2)


@_enter("eq", "ne")
def compared(call: ComplexCall) -> Any:
    """Whether both parts are equal, or not."""
    (a, b), (c, d) = map(parts_of, call.args[:2])
    if isinstance(call.args[1], ComplexCell) and b is None:
        (a, b), (c, d) = (c, d), (a, b)
    same = (a == c) & (b == (0.0 if d is None else d))
    return ~same if plain_name(call.node) == "ne" else same


@_enter("sqrt", "rsqrt", "square", "pow", "__pow__", "__rpow__")
def power(call: ComplexCall) -> Any:
    """Base and exponent are tensors or numbers, complex or real."""
    name = plain_name(call.node)
    known = {"sqrt": 0.5, "rsqrt": -0.5, "square": 2}
    base, exponent = (call.args[0], known[name]) if name in known else call.args[:2]
    if own_name(call.node) == "__rpow__":
        base, exponent = exponent, base
    if isinstance(exponent, int) and 1 <= exponent <= 4:
        re, im = made = parts_of(base)
        for _ in range(exponent - 1):
            made = made[0] * re - made[1] * im, made[0] * im + made[1] * re
        return made
    size, angle = _polar(*parts_of(base))
    c, d = parts_of(exponent)
    if d is None:
        return _turned(size**c, angle * c)
    # z^(c + i d) = e^((c + i d) (log |z| + i angle))
    return _turned(size**c * ops.exp(-d * angle), c * angle + d * ops.log(size))


def _polar(re: Any, im: Any) -> Parts:
    """Magnitude and angle of a number of parts; im: None for a real one."""
    if not isinstance(re, Operand):
        return cmath.polar(complex(re, im or 0.0))
    x: Any = re
    im = ops.zeros_like(x) if im is None else im
    return ops.hypot(x, im), ops.atan2(im, x)


@_enter("sgn", "sign")
def direction(call: ComplexCall) -> Any:
    """z / |z|; 0 at 0."""
    re, im = call.first
    size = ops.hypot(re, im)
    safe = ops.where(size == 0, 1.0, size)
    return re / safe, im / safe


@_enter("to", "_to_copy", "type", "type_as", "convert_element_type", "cfloat", "cdouble", "float", "double")
def to(call: ComplexCall) -> Any:
    """In another dtype: the real part alone if that is real."""
    seen = example(call.node)
    kind = str(seen.real.dtype if seen.is_complex() else seen.dtype).removeprefix("torch.")
    parts = tuple(x.cast(kind) for x in call.first)
    return parts if seen.is_complex() else parts[0]


@_enter("ones", "ones_like", "new_ones", "eye")
def ones(call: ComplexCall) -> Any:
    """Ones have no imaginary part."""
    made = call.run(*(_part("", x, 0) for x in (call.args, call.kwargs))).read()
    return made, ops.zeros_like(made)


@_enter("linear")
def linear(call: ComplexCall) -> Any:
    """x wT + b."""
    given = call.named()
    re, im = _product([given["input"], given["weight"]], {}, call.run)
    if (bias := given.get("bias")) is not None:
        more = parts_of(bias)
        re, im = re + more[0], im if more[1] is None else im + more[1]
    return re, im


# ------------------------------------------------------------------------------------------------------------ Fourier
def _transform(name: str, call: ComplexCall) -> Any:
    given = call.named()
    re, im = parts_of(given["input"])
    two = name.endswith("2")
    s = given.get("s") if two or name.endswith("n") else given.get("n")
    dims = given.get("dim", (-2, -1) if two else None if name.endswith("n") else -1)
    s = (s,) if isinstance(s, int) else s
    if dims is None:
        dims = range(-re.ndim if s is None else -len(s), 0)
    dims, norm = (dims,) if isinstance(dims, int) else tuple(dims), given.get("norm")
    re = re if re.dtype.is_float else re.cast("float32")
    if name.startswith("rfft"):
        return fft.real_transformed(name, re, s, dims, norm)
    if name.startswith("irfft"):
        return fft.back_to_real(name, (re, ops.zeros_like(re) if im is None else im), s, dims, norm)
    return fft.transformed(name, (re, im), s, dims, norm, 1 if name.startswith("i") else -1)


FUNCTIONS |= {
    f"{name}{axes}": partial(_transform, name + axes)
    for name in ("fft", "ifft", "rfft", "irfft")
    for axes in ("", "2", "n")
}


@_enter("hfft")
def hfft(call: ComplexCall) -> Any:
    """The transform of a signal whose second half is the conjugate of the first."""
    given = call.named()
    re, im = parts_of(given.pop("input"))
    return fft.hfft(ops.stack((re, ops.zeros_like(re) if im is None else im), -1), **given)


@_enter("ihfft")
def ihfft(call: ComplexCall) -> Any:
    """The inverse of `hfft`."""
    given = call.named()
    found = fft.ihfft(parts_of(given.pop("input"))[0], **given)
    return found[..., 0], found[..., 1]


@_enter("stft")
def stft(call: ComplexCall) -> Any:
    """[F, T] of a signal."""
    given = {k: v.read() if isinstance(v, Cell) else v for k, v in call.named().items()}
    target: Any = call.node.target
    if isinstance(target, torch._ops.OpOverload) and "center" not in {
        a.name for a in target._schema.arguments
    }:
        given["center"] = False  # the signal was padded before
    found = ops.stft(given.pop("input"), **_of_frames(given))
    return found[..., 0], found[..., 1]


@_enter("istft")
def istft(call: ComplexCall) -> Any:
    """The signal of [F, T]."""
    given = {k: v.read() if isinstance(v, Cell) else v for k, v in call.named().items()}
    return ops.istft(given.pop("input"), **_of_frames(given))


def _of_frames(given: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in given.items() if k not in ("return_complex", "align_to_window")}
