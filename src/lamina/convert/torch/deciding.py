"""Decisions of a network's code by values of the call: one graph for each path through the code.

    if (x > 0).any():
        y = self.first(x)
    while (y - f(y)).norm() > tol:
        y = f(y)
    for _ in range(int(steps)):

What Python reads of tensors (their truth, integers, lists) is taken from a path: the numbers that a call has had so
far, in order. A graph gives these numbers, too, so that each call compares them, and goes on by the graph of another
path from the first that differs. Where a path ends, the numbers are guessed: they are those that PyTorch's own run of
the call had there (`Rehearsal`). Where that tells nothing, the graph ends with the number that is asked for.

A float that is read stays a value of the graph: only what it decides in a comparison is read.
"""

from __future__ import annotations

import copy
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from sympy import sympify
from torch._subclasses.fake_tensor import is_fake
from torch.fx import Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, free_unbacked_symbols
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from lamina.convert.torch.known_numbers import MOST, READS, Values
from lamina.convert.torch.node import TorchConversionError, known
from lamina.convert.torch.raising import own_frame
from lamina.graph.ir.call_numbers import numbers_now
from lamina.ops.core import CallNeededError

#: The numbers that Python reads of tensors, in order.
Path: TypeAlias = tuple[np.ndarray[Any, Any], ...]
#: Where the place of a number in the path is kept in the metadata of the node that has it.
_META = "lamina_read"
#: What PyTorch's own run of a call was asked: file, line and name of the function.
_Place: TypeAlias = tuple[str, int, str]


class Rehearsal(TorchFunctionMode):
    """Within the block it notes what functions give: Python's numbers, and the shapes of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[_Place, Any]] = []

    @classmethod
    def of(
        cls, module: torch.nn.Module, state: Values, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Rehearsal:
        """Of a call of a copy of a module with this state; as far as it goes, whatever it raises."""
        made = cls()
        try:
            own = copy.deepcopy(module)
            with torch.no_grad():
                for name, x in (*own.named_parameters(), *own.named_buffers()):
                    if (value := state(name)) is not None:
                        x.copy_(value)
            with torch.random.fork_rng([]), warnings.catch_warnings(), torch.enable_grad(), made:
                warnings.simplefilter("ignore")
                own(*args, **kwargs)
        except Exception:  # whatever the module's code raises: these are guesses
            return made
        return made

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function, noted, and the ends of slices that are tensors."""
        if (entries := _slices(args)) and (place := _place(torch.Tensor.__index__)) is not None:
            self.seen += [(place, int(x)) for entry in entries for x in _ends(entry)]
        found = func(*args, **(kwargs or {}))
        if (place := _place(func)) is not None:
            self.seen.append((place, _seen(found)))
        return found


def _slices(args: Sequence[Any]) -> list[slice]:
    """The slices in the key of x[key] that end at tensors."""
    key = args[1] if len(args) > 1 else None
    entries = key if isinstance(key, tuple) else (key,)
    return [e for e in entries if isinstance(e, slice) and any(isinstance(x, torch.Tensor) for x in _ends(e))]


def _ends(entry: slice) -> list[Any]:
    return [x for x in (entry.start, entry.stop, entry.step) if x is not None]


def with_ends(key: Any, end: Callable[[Any], Any]) -> Any:
    """A key with other ends of its slices."""
    if isinstance(key, tuple):
        return tuple(with_ends(entry, end) for entry in key)
    return slice(end(key.start), end(key.stop), end(key.step)) if isinstance(key, slice) else key


def _place(func: Any) -> _Place | None:
    """What calls a function."""
    frame = own_frame()
    name = getattr(func, "__name__", "")
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno, name)


def _seen(found: Any) -> Any:
    """Python's numbers themselves, and the shapes of the tensors in a result."""
    shapes = [tuple(x.shape) for x in tree_leaves(found) if isinstance(x, torch.Tensor)]
    return shapes or found


class OtherPath(Exception):  # no error: the call goes on with another graph
    """A call has other numbers than those of the path that it runs.

    path: the numbers so far, of which the last one is another.
    """

    def __init__(self, path: Path) -> None:
        super().__init__("the call takes another path")
        self.path = path


class UnknownNumber(BaseException):
    """Ends the network's code at a number that is not known yet; not for the code's own handlers."""


class CallNeeded(CallNeededError, TorchConversionError):
    """Code decides by values of tensors where a graph is recorded for no call."""


class _Read(NamedTuple):
    """What is asked of tensors, as a tensor of the graph, and what Python gets for its numbers."""

    asked: torch.Tensor
    result: Callable[[np.ndarray[Any, Any]], Any]


class Decisions(TorchFunctionMode):
    """Within the block Python reads the numbers of a path, then those that are guessed.

    asked: the tensors that have the numbers, in order. path: the numbers that Python got; the last is missing where
    the code was ended.
    """

    def __init__(self, path: Path, rehearsal: Rehearsal | None) -> None:
        super().__init__()
        self.given, self.rehearsal = path, rehearsal
        self._next = 0  # the first of what the rehearsal has seen that is still to come
        self._symbols: dict[Any, Any] = {}  # guesses of numbers that are no tensors, by the exporter's symbol
        self.asked: list[torch.Tensor] = []
        self.path: list[np.ndarray[Any, Any]] = []

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function, or Python's numbers of a tensor."""
        kwargs = kwargs or {}
        if _slices(args):
            args = (args[0], with_ends(args[1], self._end), *args[2:])
        if _is_read(func, args):
            if func in _EQUAL and args[0].shape != args[1].shape:
                return False
            if (read := _read(func, args, kwargs)) is not None:
                return read.result(self._number(read.asked, self._guess(func)))
        found = func(*args, **kwargs)
        made = [n for x in tree_leaves(found) for n in (x.shape if isinstance(x, torch.Tensor) else (x,))]
        if any(map(_is_unknown, made)):
            self._note(made, self._guess(func))
            given = tree_leaves((args, kwargs))
            if any(map(_is_unknown, given)) and any(isinstance(x, torch.Tensor) for x in tree_leaves(found)):
                args, kwargs = tree_map(
                    lambda x: self.value(x) if _is_unknown(x) else x, (tuple(args), kwargs)
                )
                return func(*args, **kwargs)  # with numbers, of which a shape depends
        return found

    def _end(self, x: Any) -> Any:
        """An end of a slice: of a tensor, its number."""
        index = torch.Tensor.__index__
        if not _is_read(index, (x,)):
            return x
        read = _read(index, (x,), {})
        return x if read is None else read.result(self._number(read.asked, self._guess(index)))

    def _guess(self, func: Any) -> Any:
        """What PyTorch's own run had at the next call of a function here; None where it tells nothing."""
        place = _place(func)
        seen = [] if self.rehearsal is None else self.rehearsal.seen
        for i in range(self._next, len(seen)):
            if seen[i][0] == place:
                self._next = i + 1
                return seen[i][1]
        return None

    def _note(self, made: Sequence[Any], guess: Any) -> None:
        """Keep guesses of the sizes of results, and of numbers."""
        sizes = [n for shape in guess for n in shape] if isinstance(guess, list) else [guess]
        for x, n in zip(made, sizes, strict=False):
            if _is_unknown(x) and x.node.expr.is_symbol and isinstance(n, int | float):
                self._symbols[x.node.expr] = sympify(n)

    def _guessed(self, symbol: Any) -> Any:
        """A guess of a number that the exporter computes; None where it is not known."""
        found = symbol.node.expr.xreplace({**symbol.node.shape_env.backed_var_to_val, **self._symbols})
        return None if found.free_symbols else found

    def truth(self, symbol: torch.SymBool) -> bool:
        """The truth of a comparison of numbers that the exporter does not know."""
        asked = torch.full((), symbol, dtype=torch.bool)
        guess = self._guessed(symbol)
        return bool(self._number(asked, None if guess is None else bool(guess)))

    def value(self, symbol: torch.SymFloat | torch.SymInt) -> Any:
        """A number that Python computes with."""
        kind, dtype = (float, torch.float64) if isinstance(symbol, torch.SymFloat) else (int, torch.int64)
        asked = torch.full((), symbol, dtype=dtype)
        guess = self._guessed(symbol)
        return kind(self._number(asked, None if guess is None else kind(guess)))

    def _number(self, asked: torch.Tensor, guess: Any) -> np.ndarray[Any, Any]:
        """The next number. Raises UnknownNumber at the end of what is known."""
        self.asked.append(asked)
        place = len(self.path)
        if place < len(self.given):
            found = self.given[place]
        elif guess is None:
            raise UnknownNumber
        else:
            found = np.asarray(guess)
        self.path.append(found)
        return found

    def mark(self, nodes: Sequence[Any]) -> None:
        """Note at the nodes of a graph which number each gives."""
        for place, node in enumerate(nodes):
            if isinstance(node, Node):
                node.meta.setdefault(_META, place)


def called_to_the_end(network: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """The results of a network; () where its code is ended at a number that is not known."""
    mode = get_proxy_mode()
    entered: dict[str, Any] = {} if mode is None else getattr(mode.tracer, "module_stack", {})
    depth = len(entered)
    try:
        return network(*args, **kwargs)
    except UnknownNumber:
        while (
            len(entered) > depth
        ):  # the exporter counts the modules that are entered, and not left by an exception
            entered.popitem()
        return ()


def place_in_path(node: Node) -> int | None:
    """Which number of the path a node gives; None for others."""
    found: int | None = node.meta.get(_META)
    return found


class Compared:
    """The numbers of a call that runs a graph, compared with those of the graph's path in its order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._found: dict[int, Any] = {}
        self._next = 0

    def __call__(self, place: int, value: Any) -> None:
        """Take the number of a place. Raises OtherPath for another than that of the path, CallNeeded where it is not
        known."""
        self._found[place] = value
        while self._next in self._found:
            now = _numbers(self._found[self._next])
            if self._next == len(self._path) or not _same(now, self._path[self._next]):
                raise OtherPath((*self._path[: self._next], now))
            self._next += 1


def _numbers(value: Any) -> np.ndarray[Any, Any]:
    """The numbers of an operand in the call."""
    if isinstance(value, bool | int | float):
        return np.asarray(value)
    found = known(value)
    if found is None:
        found = numbers_now(value)
    if found is None:
        raise CallNeeded(
            "forward decides in Python by values of tensors, which are not known where a graph is recorded for no "
            "call (an export): lamina.jit and train_step compile a program for each path"
        )
    return np.array(found)


def _same(now: np.ndarray[Any, Any], then: np.ndarray[Any, Any]) -> bool:
    """Whether numbers are equal; of floats, NaN equals NaN."""
    is_float = now.dtype.kind == then.dtype.kind == "f"
    return now.shape == then.shape and np.array_equal(now, then, equal_nan=is_float)


def is_prefix(path: Path, whole: Path) -> bool:
    """Whether a path begins with the numbers of another."""
    return len(path) <= len(whole) and all(map(_same, path, whole))


def _is_read(func: Any, args: Any) -> bool:
    """Whether Python asks for the numbers of a tensor that has none while a graph is made."""
    tensors = [x for x in args[:2] if isinstance(x, torch.Tensor)]
    return func in READS and any(is_fake(x) and getattr(x, "constant", None) is None for x in tensors)


def _is_unknown(x: Any) -> bool:
    """Whether a number is one that the exporter does not know."""
    return isinstance(x, torch.SymInt | torch.SymFloat) and bool(free_unbacked_symbols(x))


def _read(func: Any, args: Any, kwargs: Mapping[str, Any]) -> _Read | None:
    """What a function asks for; None for a float, which stays a value, and for too many numbers."""
    x = args[0]
    if func in _EQUAL:
        return _Read((x == args[1]).all(), bool)
    if func in _CLOSE:
        return _Read(torch.isclose(*args, **kwargs).all(), bool)
    if func in _TRUTH:
        return _Read((x != 0).reshape(()), bool)
    if func is torch.Tensor.item and x.is_floating_point():
        return None
    if not isinstance(x.numel(), int) or x.numel() > MOST:
        return None
    if func in _INTEGERS:
        return _Read(x.detach().to(torch.int64).clone().reshape(()), int)
    if func is torch.Tensor.__float__:
        return _Read(x.detach().to(torch.float64).clone().reshape(()), float)
    dtype = x.dtype
    if func is torch.Tensor.item:
        return _Read(x.detach().clone().reshape(()), lambda n: n.item())
    if func is torch.Tensor.tolist:
        return _Read(x.detach().clone(), lambda n: n.tolist())
    if func in (torch.Tensor.numpy, torch.Tensor.__array__) and dtype is not torch.bfloat16:
        return _Read(x.detach().clone(), np.array)
    return None


_TRUTH = (torch.Tensor.__bool__, torch.is_nonzero, torch.Tensor.is_nonzero)
_INTEGERS = (torch.Tensor.__int__, torch.Tensor.__index__)
_EQUAL = (torch.equal, torch.Tensor.equal)
_CLOSE = (torch.allclose, torch.Tensor.allclose)

#: The decisions that are made in each thread.
_own = threading.local()


@contextmanager
def deciding(decisions: Decisions) -> Iterator[None]:
    """Within the block comparisons of numbers that the exporter does not know are decisions."""
    truth, number = torch.SymBool.__bool__, torch.SymFloat.__float__

    def __bool__(self: torch.SymBool) -> bool:  # noqa: N807
        try:
            return bool(truth(self))
        except GuardOnDataDependentSymNode:
            own = getattr(_own, "decisions", None)
            if own is None:
                raise
            return bool(own.truth(self))

    def __float__(self: torch.SymFloat) -> float:  # noqa: N807
        try:
            return float(number(self))
        except GuardOnDataDependentSymNode:
            own = getattr(_own, "decisions", None)
            if own is None:
                raise
            return float(own.value(self))

    torch.SymBool.__bool__, torch.SymFloat.__float__ = __bool__, __float__
    before, _own.decisions = getattr(_own, "decisions", None), decisions
    try:
        with decisions:
            yield
    finally:
        _own.decisions = before
        torch.SymBool.__bool__, torch.SymFloat.__float__ = truth, number
