"""Floor 6: functions of tensors, compiled for each set of shapes: `lamina.jit`."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, ParamSpec, TypeVar, overload

import numpy as np

from lamina import _tree
from lamina._tree import Structure
from lamina.graph import Executable, Graph, Value, compile
from lamina.graph.ir.graph import Capture
from lamina.ops.core import Operand, bind, recorder, recording
from lamina.ops.primitives.pointwise import Identity
from lamina.runtime import Device, device, is_array, renew_after_fork
from lamina.spec import Spec, current_policy
from lamina.tensors import Tensor, as_tensor

P = ParamSpec("P")
R = TypeVar("R")
_where = device


@overload
def jit(
    fn: Callable[P, R],
    *,
    device: Device | str | None = None,
    backend: str | None = None,
    memory_limit: int | str | None = None,
    max_programs: int = 64,
) -> Jitted[P, R]: ...
@overload
def jit(
    fn: None = None,
    *,
    device: Device | str | None = None,
    backend: str | None = None,
    memory_limit: int | str | None = None,
    max_programs: int = 64,
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...
def jit(
    fn: Callable[P, R] | None = None,
    *,
    device: Device | str | None = None,
    backend: str | None = None,
    memory_limit: int | str | None = None,
    max_programs: int = 64,
) -> Jitted[P, R] | Callable[[Callable[P, R]], Jitted[P, R]]:
    """Compile a function of tensors: each set of shapes and dtypes is traced, planned and placed once, then only run.

        @lm.jit
        def step(x, y):
            return ops.relu(net(x)) + y

    Args:
        fn: takes and gives tensors, and nested tuples, lists and dicts of them. NumPy arrays and arrays that speak
            DLPack count as tensors. Everything else among the arguments (numbers, strings, None, modules) must be
            hashable and is fixed: another value is traced anew. It runs once per trace, so its Python side effects
            happen once.
        device: where it runs; None: where its tensors are (arguments first, then what it closes over), else the CPU.
        backend, memory_limit: as in `compile`.
        max_programs: how many traces are kept; the one that was not used for longest goes first.

    Tensors that fn closes over, such as the parameters of a network, stay where they are and are read by reference:
    a program sees what training or `copy_` made of them. What fn writes to them (running statistics, the state of a
    random generator, `copy_`) is written by every call. Memory that another library owns may change at any time and
    is read anew by each call. Modules that are switched between training and inference are traced for both.

    Calls are thread-safe. Inside another trace (`jit`, `trace`, `grad`) the function is simply called.

    Raises TypeError for what cannot be traced: branches on a tensor's values, numbers made of them, arguments that
    are neither arrays nor hashable; ValueError for tensors on several devices.
    """
    if fn is None:
        return functools.partial(
            Jitted, device=device, backend=backend, memory_limit=memory_limit, max_programs=max_programs
        )
    return Jitted(fn, device=device, backend=backend, memory_limit=memory_limit, max_programs=max_programs)


class Jitted(Generic[P, R]):
    """A function that is compiled for each set of shapes; made by `jit`."""

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        device: Device | str | None = None,
        backend: str | None = None,
        memory_limit: int | str | None = None,
        max_programs: int = 64,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"jit: fn must be a function, got {type(fn).__name__}")
        if max_programs < 1:
            raise ValueError(f"jit: max_programs must be at least 1, got {max_programs}")
        self.fn = fn
        self.device = None if device is None else _where(device)
        self.backend, self.memory_limit, self.max_programs = backend, memory_limit, max_programs
        self._programs: OrderedDict[Hashable, list[Traced]] = OrderedDict()
        self._lock = threading.RLock()
        renew_after_fork(self)
        functools.update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """What fn gives for these arguments, as tensors in fn's own structure."""
        given = _Arguments.of(args, kwargs)
        if recorder() is not None or any(isinstance(x, Value) for x in given.leaves):
            return self.fn(*args, **kwargs)
        arrays = [x if isinstance(x, np.ndarray) else as_tensor(x) for x in given.arrays]
        return self._program(given).run(arrays)  # type: ignore[no-any-return]

    def program(self, *args: P.args, **kwargs: P.kwargs) -> Executable:
        """The executable for arguments of these shapes, compiled if there is none yet, not run."""
        return self._program(_Arguments.of(args, kwargs)).executable

    def clear(self) -> None:
        """Drop all programs."""
        with self._lock:
            self._programs.clear()

    def renew(self) -> None:
        """In a forked child: another thread may have been compiling."""
        self._lock = threading.RLock()

    def __reduce__(self) -> str:
        raise TypeError(
            "a jitted function holds compiled programs and cannot be pickled or copied; pickle its function"
        )

    def __repr__(self) -> str:
        held = [p for programs in self._programs.values() for p in programs]
        lines = [f"jit({_name(self.fn)}): {len(held)} of at most {self.max_programs} programs"]
        return "\n".join([*lines, *(f"  {p.executable!r}" for p in held)])

    def _program(self, given: _Arguments) -> Traced:
        """The program for these arguments, traced and compiled when there is none."""
        key = given.structure, given.keys(), current_policy()
        with self._lock:
            for known in self._programs.get(key, ()):
                if known.holds():
                    self._programs.move_to_end(key)
                    return known
            made = self._compile(given)
            programs = [p for p in self._programs.get(key, ()) if p.may_hold_again()]
            self._programs[key] = [*programs, made]
            self._programs.move_to_end(key)
            self._bound()
            return made

    def _bound(self) -> None:
        """Drop what was not used for longest."""
        while sum(map(len, self._programs.values())) > self.max_programs:
            oldest = next(iter(self._programs))
            self._programs[oldest].pop(0)
            if not self._programs[oldest]:
                del self._programs[oldest]

    def _compile(self, arguments: _Arguments) -> Traced:
        """Trace fn on values in place of the arrays, and compile what it did."""
        pairs = zip(arguments.names, arguments.leaves, strict=True)
        inputs = [Value(_spec(x), name=name) for name, x in pairs if is_array(x)]
        values = iter(inputs)
        standing = [next(values) if is_array(x) else x for x in arguments.leaves]
        args, kwargs = _tree.unflatten(arguments.structure, standing)
        capture = Capture()
        with recording(capture):
            result = self.fn(*args, **kwargs)
            given = [capture.read(x) for x in _tree.leaves(result) if is_array(x) or isinstance(x, Operand)]
        held = [x for x in capture.tensors.values() if x is not None]
        where = self.device or self._device(arguments.arrays, held, capture)
        return Traced.of(self, result, inputs, given, capture, where)

    def _device(self, arrays: Sequence[Any], held: Sequence[Tensor], capture: Capture) -> Device:
        """Where the arguments are, or what fn closes over. Raises ValueError where these differ."""
        own = [x.device for x in arrays if isinstance(x, Tensor)]
        states = [x.device for x in held if id(x) not in capture.written]
        found = list(dict.fromkeys([*own, *states]))
        if len(found) > 1:
            names = ", ".join(map(str, found))
            raise ValueError(
                f"jit: {_name(self.fn)} reads tensors on {names}; move arguments and parameters to one device (.to)"
            )
        return (*found, *(x.device for x in held), Device("cpu"))[0]


@dataclass(frozen=True)
class Traced:
    """One compiled trace.

    result: what fn gave: the structure of the results, and those that are no tensors. held: tensors that each call
    reads as they are then; state: what fn closes over, with what it was when it was traced.
    """

    executable: Executable
    result: Any
    held: tuple[Tensor, ...]
    state: tuple[tuple[Tensor, Spec, Device], ...]
    guards: tuple[Callable[[], bool], ...]

    @classmethod
    def of(
        cls,
        owner: Jitted[Any, Any],
        result: Any,
        inputs: Sequence[Value],
        outputs: Sequence[Value],
        capture: Capture,
        where: Device,
    ) -> Traced:
        """Compile: what fn writes to is updated in place, the rest stays, borrowed memory is read by each call."""
        tensors = list(capture.tensors.values())
        stays = [x for x in tensors if id(x) in capture.written or not x.buffer.borrowed]
        read = [x for x in tensors if not any(x is y for y in stays)]
        every = [*inputs, *(capture.inputs[id(x)] for x in (*read, *stays))]
        # Each output is a value of its own: what is only handed through is copied.
        taken = [capture.written[id(x)] for x in stays if id(x) in capture.written]
        finals = [_own(v, every) for v in (*outputs, *taken)]
        first, places = len(inputs) + len(read), len(outputs)
        written = [first + i for i, x in enumerate(stays) if id(x) in capture.written]
        executable = compile(
            Graph(every, finals, _name(owner.fn)),
            where,
            donate={i: places + n for n, i in enumerate(written)},
            resident=[first + i for i in range(len(stays)) if first + i not in written],
            backend=owner.backend,
            memory_limit=owner.memory_limit,
        )
        if stays:
            executable.load({first + i: x for i, x in enumerate(stays)})
        state = tuple((x, x.spec.open, x.device) for x in tensors)
        return cls(executable, _without_values(result), tuple(read), state, tuple(capture.guards))

    def run(self, inputs: Sequence[Any]) -> Any:
        """The results for the arrays among the arguments."""
        made = iter(self.executable(*inputs, *self.held))
        found, structure = _tree.flatten(self.result)
        return _tree.unflatten(structure, [next(made) if x is _PLACE else x for x in found])

    def holds(self) -> bool:
        """Whether a trace made now would be the same."""
        same = self.executable.is_settled() or self.may_hold_again()
        return same and all(guard() for guard in self.guards)

    def may_hold_again(self) -> bool:
        """Whether what fn closes over still is of the same dtype and on the same device."""
        return all(x.spec.open == spec and x.device == where for x, spec, where in self.state)


#: Where a tensor is among the results.
_PLACE = object()


def _without_values(result: Any) -> Any:
    """The results with a mark in place of each tensor."""
    found, structure = _tree.flatten(result)
    marked = [_PLACE if is_array(x) or isinstance(x, Operand) else x for x in found]
    return _tree.unflatten(structure, marked)


def _own(value: Value, inputs: Sequence[Value]) -> Value:
    """The value, computed: an input or a constant is copied."""
    made: Value = bind(Identity(), value)[0] if value.node is None else value
    return made


@dataclass(frozen=True)
class _Arguments:
    """What a function is called with, taken apart."""

    leaves: list[Any]
    structure: Structure

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
        """Positional and named arguments."""
        return cls(*_tree.flatten((args, kwargs)))

    @property
    def arrays(self) -> list[Any]:
        """Those of the leaves that count as tensors."""
        return [x for x in self.leaves if is_array(x)]

    @property
    def names(self) -> list[str]:
        """A readable name of each leaf: args[0], kwargs['mask']."""
        positional, named = self.structure.branches
        return [*_tree.names(positional, "args"), *_tree.names(named, "kwargs")]

    def keys(self) -> tuple[Hashable, ...]:
        """What a program depends on, for each leaf."""
        return tuple([self._key(i, x) for i, x in enumerate(self.leaves)])

    def _key(self, index: int, x: Any) -> Hashable:
        if is_array(x):
            return _spec(x), x.device if isinstance(x, Tensor) else None
        try:
            hash(x)
        except TypeError:
            raise TypeError(
                f"jit: {self.names[index]} is a {type(x).__name__}: an argument is a tensor or array, a tuple, list "
                "or dict of such, or a hashable value that stays fixed"
            ) from None
        return type(x), x


def _spec(x: Any) -> Spec:
    return (x if isinstance(x, Tensor) else as_tensor(x)).spec.open


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__).strip("<>")
