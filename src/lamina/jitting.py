"""Floor 6: functions of tensors, compiled for each set of shapes: `lamina.jit`."""

from __future__ import annotations

import functools
import threading
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field, fields
from types import MethodType
from typing import Any, Generic, ParamSpec, TypeVar, overload
from weakref import ref

from lamina import _tree
from lamina._cached import cached_property
from lamina._tree import Structure
from lamina.graph import Executable, Graph, Value, compile
from lamina.graph.ir.call_numbers import MANY, CallNumbers, SameNumbers, warn_of_many, warn_of_values
from lamina.graph.ir.capture import Capture
from lamina.graph.ir.graph import traced_for
from lamina.graph.ir.surroundings import SameSurroundings, changed_variables, is_number, reads_of
from lamina.graph.run.call_tuning import CallTuner
from lamina.graph.run.collector import collector_paused
from lamina.graph.run.programs import MOST, Programs
from lamina.graph.run.tuning import TuningState
from lamina.graph.run.turn import Turns, turns_of
from lamina.graph.transforms.arguments import HasParameters, is_plain_record
from lamina.ops.core import Operand, bind, recorder, recording
from lamina.ops.primitives.pointwise import Identity
from lamina.runtime import Device, device, is_array, renew_after_fork
from lamina.spec import Policy, Spec, current_policy
from lamina.tensors import Tensor, array_spec, home_of, plain_array

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
    max_programs: int = MOST,
    max_program_bytes: int | str | None = None,
    tuning: bool = True,
) -> Jitted[P, R]: ...
@overload
def jit(
    fn: None = None,
    *,
    device: Device | str | None = None,
    backend: str | None = None,
    memory_limit: int | str | None = None,
    max_programs: int = MOST,
    max_program_bytes: int | str | None = None,
    tuning: bool = True,
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...
def jit(
    fn: Callable[P, R] | None = None,
    *,
    device: Device | str | None = None,
    backend: str | None = None,
    memory_limit: int | str | None = None,
    max_programs: int = MOST,
    max_program_bytes: int | str | None = None,
    tuning: bool = True,
) -> Jitted[P, R] | Callable[[Callable[P, R]], Jitted[P, R]]:
    """Compile a function of tensors: each set of shapes and dtypes is traced, planned and laid out only once.

        @lm.jit
        def step(x, y):
            return ops.relu(net(x)) + y

    Args:
        fn: takes and returns tensors, and nested tuples, lists, dicts and dataclasses of them. NumPy arrays and
            arrays that support DLPack count as tensors. All other arguments (numbers, strings, None, modules)
            must be hashable and are static: another value is traced anew. fn runs once per trace, so its Python
            side effects happen once; a flag that it switches takes effect in the next call.
        device: where it runs; None: where its tensors are (arguments first, then its closure), else the CPU.
        backend, memory_limit: as in `compile`.
        max_programs, max_program_bytes: limits of the traces kept and of their memory (arenas, inputs and results;
            by default a quarter of the device's); the least recently used is evicted first.
        tuning: under the policy "auto" on a GPU, plans without measurements are timed between calls, after two
            seconds of calls and in at most a tenth of their time; winners are installed before a call, and
            remembered on disk. From then on results differ within the dtype's rounding. Nothing changes under the
            policy `deterministic`. False, or LAMINA_TUNING=0 in the environment, turns it off; `.tuning` of the
            compiled function tells its progress.

    Tensors that fn closes over, such as the parameters of a network, stay where they are and are read by reference:
    a program sees updates by training or `copy_`. Every call performs fn's writes to them (running statistics, the
    state of a random generator, `copy_`). Memory that another library owns may change at any time and is read anew
    by each call. Modules that are switched between training and inference are traced for both. A change of anything
    else that fn reads (numbers, lists, objects in its closure and in that of user functions that it calls) leads to
    a new trace: better pass values that change in each call as tensors.

    It may decorate a method: the object is then the first static argument, and is kept alive by its programs.

    An argument that is also a tensor of fn's closure which fn writes stays one tensor, as without `jit`: fn sees its
    writes in the argument, and such arguments have a program of their own.

    What a program depends on of the arguments' numbers (how many elements a mask selects) is compared in each call.
    From 16 such programs for arguments of one kind on, calls with other numbers are computed op by op, and so are
    those of converted networks that run their own code (`from_torch`).

    Calls are thread-safe. Inside another trace (`jit`, `trace`, `grad`) the function is simply called.

    Raises TypeError for code that cannot be traced (branches on a tensor's values, Python numbers made of them) and
    for arguments that are neither arrays nor hashable; ValueError for tensors on several devices.
    """
    made = functools.partial(
        Jitted,
        device=device,
        backend=backend,
        memory_limit=memory_limit,
        max_programs=max_programs,
        max_program_bytes=max_program_bytes,
        tuning=tuning,
    )
    return made if fn is None else made(fn)


class Jitted(Generic[P, R]):
    """A function compiled for each set of shapes; made by `jit`."""

    def __init__(
        self,
        fn: Callable[P, R],
        *,
        device: Device | str | None = None,
        backend: str | None = None,
        memory_limit: int | str | None = None,
        max_programs: int = MOST,
        max_program_bytes: int | str | None = None,
        tuning: bool = True,
    ) -> None:
        if not callable(fn):
            raise TypeError(f"jit: fn must be a function, got {type(fn).__name__}")
        self.fn = fn
        self.device = None if device is None else _where(device)
        self.backend, self.memory_limit = backend, memory_limit
        self._programs: Programs[Traced] = Programs(max_programs, max_program_bytes, "jit")
        # A part of the programs, by `_identity` of the arguments.
        self._known: dict[tuple[int, ...], _KnownTrace] = {}
        self._written: dict[int, ref[Tensor]] = {}  # tensors of the closure that fn writes, by id
        # The numbers among the arguments of which programs were made, by the other arguments.
        self._tried: dict[Hashable, list[dict[int, Any]]] = {}
        self._lock = threading.RLock()
        self._tuner = CallTuner("" if tuning else "switched off")
        renew_after_fork(self)
        functools.update_wrapper(self, fn)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """fn's result for these arguments, as tensors in fn's own structure."""
        found, policy = self._known, current_policy()
        key = None if kwargs or recorder() is not None or self._shared(args) else _identity(args)
        if key is not None:
            known = found.get(key)
            if known is not None and known.policy is policy and known.program.holds():
                self._programs.touch(known.program)
                return known.program.run(args)  # type: ignore[no-any-return]
        given = _Arguments.of(args, kwargs)
        if recorder() is not None or any(isinstance(x, Value) for x in given.leaves):
            return self.fn(*args, **kwargs)
        arrays = [plain_array(x) for x in given.arrays]
        while isinstance(program := self._program(given), ComputedOnce):
            with program.turns():
                if program.numbers.is_current():
                    return program.run()  # type: ignore[no-any-return]
        if key is not None and len(found) < _MOST_KNOWN and not program.numbers:
            kept = [(x.spec, x.device) for x in given.leaves]
            found[key] = _KnownTrace(kept, policy, program)
        return program.run(arrays)  # type: ignore[no-any-return]

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a method: the object is prepended to the arguments, and is static."""
        return self if instance is None else MethodType(self, instance)

    @property
    def tuning(self) -> TuningState:
        """The progress of tuning between calls."""
        return self._tuner.state

    def program(self, *args: P.args, **kwargs: P.kwargs) -> Executable:
        """The executable for arguments of these shapes, compiled if there is none yet, not run.

        Raises TypeError for a function that is computed op by op.
        """
        found = self._program(_Arguments.of(args, kwargs))
        if isinstance(found, ComputedOnce):
            raise TypeError(
                f"jit: {_name(self.fn)} is computed op by op for such arguments, without a program"
            )
        return found.executable

    def clear(self) -> None:
        """Drop all programs."""
        with self._lock:
            self._programs.clear()
            self._tried = {}
            self._known = {}  # a concurrent lookup writes into the previous dictionary

    def renew(self) -> None:
        """In a forked child: another thread of the parent may have been compiling, with the lock held."""
        self._lock = threading.RLock()

    def __reduce__(self) -> str:
        raise TypeError(
            "a jitted function holds compiled programs and cannot be pickled or copied; pickle its function"
        )

    def __repr__(self) -> str:
        lines = [f"jit({_name(self.fn)}): {len(self._programs)} of at most {self._programs.most} programs"]
        return "\n".join([*lines, *(f"  {p.executable!r}" for p in self._programs)])

    def _program(self, given: _Arguments) -> Traced | ComputedOnce:
        """The program for these arguments, traced and compiled if there is none."""
        shared = self._shared(given.leaves)
        same = tuple([(i, id(given.leaves[i])) for i in shared])
        key = given.structure, given.keys(), current_policy(), same
        with self._lock:
            arrays = given.arrays
            found = self._programs.find(key, lambda program: program.holds() and program.numbers(arrays))
            if found is not None:
                return found
            with collector_paused():
                made = self._compile(given, shared, self._programs.count(key))
            if made is None:
                return self._program(given)
            if isinstance(made, Traced):
                before = self._programs.newest(key)
                self._programs.add(key, made, Traced.may_hold_again)
                self._known = {}
                self._warn_of_many(given, key, before, made)
            return made

    def _warn_of_many(self, given: _Arguments, key: Hashable, before: Traced | None, found: Traced) -> None:
        """Say what makes so many programs. found: the newest one of this key, before: the one before it."""
        what, count = f"jit: {_name(self.fn)}", self._programs.count(key)
        if before is None:
            self._warn_of_numbers(given, what)
        elif found.numbers:
            warn_of_many(count, what)
        else:
            warn_of_values(count, what, changed_variables(before.guards))

    def _warn_of_numbers(self, given: _Arguments, what: str) -> None:
        """Say which numbers among the arguments make so many programs."""
        numbers = {i: x for i, x in enumerate(given.leaves) if is_number(x)}
        others = tuple([key for i, key in enumerate(given.keys()) if i not in numbers])
        tried = self._tried.setdefault((given.structure, others, tuple(numbers)), [])
        if numbers and len(tried) < MANY and numbers not in tried:
            tried.append(numbers)
            changed = [given.names[i] for i in numbers if len({values[i] for values in tried}) > 1]
            warn_of_values(len(tried), what, changed)

    def _shared(self, leaves: Sequence[Any]) -> tuple[int, ...]:
        """The arguments that are tensors which fn writes by its closure: fn sees its writes in them, and a program is
        specific to these very tensors."""
        if not self._written:
            return ()
        return tuple([i for i, x in enumerate(leaves) if isinstance(x, Tensor) and self._writes(x)])

    def _writes(self, x: Tensor) -> bool:
        """Whether fn writes a tensor, or the one that it is a view of."""
        known = self._written.get(id(x))
        if known is not None and known() is x:
            return True
        wholes = () if x._part is None else (x._part.whole(), x._part.first())
        return any(y is not None and self._writes(y) for y in wholes)  # type: ignore[arg-type]

    def _compile(
        self, arguments: _Arguments, shared: Sequence[int], count: int
    ) -> Traced | ComputedOnce | None:
        """Trace fn on values in place of the arrays, and compile the record; from `MANY` programs of such arguments
        on, one that depends on their numbers is computed once instead. None if it turns out that further arguments
        are shared (see `_shared`).

        count: of programs of such arguments.
        """
        pairs = zip(arguments.names, arguments.leaves, strict=True)
        inputs = [Value(array_spec(x), name=name) for name, x in pairs if is_array(x)]
        values = iter(inputs)
        standing = [next(values) if is_array(x) else x for x in arguments.leaves]
        for i in shared:
            standing[i] = arguments.leaves[i]
        args, kwargs = _tree.unflatten(arguments.structure, standing)
        capture = Capture()
        capture.numbers.given = dict(zip(inputs, arguments.arrays, strict=True))
        capture.numbers.may_serve_once = True
        fixed = [x for x in arguments.leaves if not is_array(x)]
        capture.guard(SameSurroundings(reads_of(self.fn, objects=fixed)))
        there = self.device or next(iter(_homes(arguments.arrays)), None)
        with traced_for(there), recording(capture), capture.attributes_apart(inputs):
            result = self.fn(*args, **kwargs)
            given = [
                capture.read(x)
                for x in _tree.flatten(result, open_dataclasses=True)[0]
                if is_array(x) or isinstance(x, Operand)
            ]
            _require_open(result)
            result = _without_values(result)
        capture.leave_behind()
        before = {i: x for i, x in self._written.items() if x() is not None}
        self._written = before | {i: ref(capture.tensors[i]) for i in capture.written}
        if len(self._shared(arguments.leaves)) > len(shared):
            return None
        held = list(capture.tensors.values())
        where = self.device or self._device(arguments.arrays, held, capture)
        if capture.numbers.serves_once or (capture.numbers.asked and count >= MANY):
            return ComputedOnce(result, given, capture)
        return Traced.of(self, result, inputs, given, capture, where)

    def _device(self, arrays: Sequence[Any], held: Sequence[Tensor], capture: Capture) -> Device:
        """The device of the arguments, or of the closure. Raises ValueError if these differ."""
        own = _homes(arrays)
        # Borrowed memory (NumPy arrays) is uploaded with each call.
        states = [x.device for x in held if id(x) not in capture.written and not x.buffer.borrowed]
        found = list(dict.fromkeys([*own, *states]))
        if len(found) > 1:
            names = ", ".join(map(str, found))
            raise ValueError(
                f"jit: {_name(self.fn)} reads tensors on {names}; move arguments and parameters to one device (.to)"
            )
        return (*found, *(x.device for x in held), Device("cpu"))[0]


@dataclass(eq=False)
class Traced:
    """One compiled trace.

    result: fn's result: its structure, and the entries that are no tensors. held: tensors that each call reads with
    their current values; state: the tensors of the closure, with their specs and devices at the time of the trace.
    feeds: called before each call for further inputs; finals: called at the end of each call (an optimizer's rate,
    its number of updates). numbers: whether a call has the numbers that the trace depends on. calls: how the
    executable is called.
    """

    executable: Executable
    result: Any
    held: tuple[Tensor, ...]
    state: tuple[tuple[Tensor, Spec, Device], ...]
    guards: tuple[Callable[[], bool], ...]
    numbers: SameNumbers
    feeds: tuple[Callable[[], Any], ...] = ()
    finals: tuple[Callable[[], None], ...] = ()
    turn: threading.RLock = field(default_factory=threading.RLock)
    calls: Any = field(init=False)

    def __post_init__(self) -> None:
        self.calls = self.executable

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
        """Compile: tensors that fn writes are updated in place, others stay put, borrowed memory is read by each
        call."""
        tensors = list(capture.tensors.values())
        fed = [value for value, _ in capture.feeds]
        stays = [x for x in tensors if id(x) in capture.written or not x.buffer.borrowed]
        read = [x for x in tensors if not any(x is y for y in stays)]
        every = [*inputs, *fed, *(capture.inputs[id(x)] for x in (*read, *stays))]
        # Each output is a value of its own: inputs that are only returned are copied.
        taken = [capture.written[id(x)] for x in stays if id(x) in capture.written]
        results = [_own(v, every) for v in (*outputs, *taken)]
        results += capture.exchanged(results)  # after the results for the caller
        first, places = len(inputs) + len(fed) + len(read), len(outputs)
        written = [first + i for i, x in enumerate(stays) if id(x) in capture.written]
        executable = compile(
            Graph(every, results, _name(owner.fn)).unmarked(),
            where,
            donate={i: places + n for n, i in enumerate(written)},
            resident=[first + i for i in range(len(stays)) if first + i not in written],
            backend=owner.backend,
            memory_limit=owner.memory_limit,
        )
        if stays:
            beside = [program.executable for program in owner._programs]
            executable.load({first + i: x for i, x in enumerate(stays)}, beside)
        state = tuple((x, x.spec.open, x.device) for x in tensors)
        asks = tuple(ask for _, ask in capture.feeds)
        finals = tuple(capture.finals)
        numbers = SameNumbers(
            capture.numbers, inputs, lambda graph: compile(graph, where, backend=owner.backend)
        )
        made = cls(executable, result, tuple(read), state, tuple(capture.guards), numbers, asks, finals)
        made.calls = owner._tuner.calls(executable, made)
        return made

    def run(self, inputs: Sequence[Any]) -> Any:
        """The results for the arrays among the arguments."""
        made = self._outputs(inputs)
        return made[0] if self.result is _PLACE else _filled(self.results, made)

    @cached_property
    def results(self) -> tuple[list[Any], Structure]:
        """The marks and values in the result, and its structure."""
        return _tree.flatten(self.result, open_dataclasses=True)

    def _outputs(self, inputs: Sequence[Any]) -> Sequence[Tensor]:
        found: Sequence[Tensor]
        if not self.finals:
            found = self.calls(*inputs, *[ask() for ask in self.feeds], *self.held)
            return found
        with self.turn:
            found = self.calls(*inputs, *[ask() for ask in self.feeds], *self.held)
            for done in self.finals:
                done()
            return found

    def holds(self) -> bool:
        """Whether tracing now would give the same program."""
        same = self.executable.is_settled() or self.may_hold_again()
        return same and all(guard() for guard in self.guards)

    def may_hold_again(self) -> bool:
        """Whether the tensors of the closure still have the same dtype and device."""
        return all(x.spec.open == spec and x.device == where for x, spec, where in self.state)


@dataclass(eq=False)
class ComputedOnce:
    """One trace of a call that no program serves: its values are computed one by one.

    result: as in `Traced`. outputs: the values of the tensors in it.
    """

    result: Any
    outputs: Sequence[Value]
    capture: Capture

    @property
    def numbers(self) -> CallNumbers:
        """Those that the trace depends on."""
        return self.capture.numbers

    def turns(self) -> Turns:
        """Within the block no other call updates what this one updates, or reads."""
        tensors = self.capture.tensors
        return turns_of(tensors.values(), [tensors[key] for key in self.capture.written])

    def run(self) -> Any:
        """The results of the call for which it was traced, and what the function writes."""
        capture, written = self.capture, list(self.capture.written.items())
        self.numbers.given = {**self.numbers.given, **{value: ask() for value, ask in capture.feeds}}
        results = [*self.outputs, *(value for _, value in written)]
        made = self.numbers.results([*results, *capture.exchanged(results)])
        for (key, _), new in zip(written, made[len(self.outputs) :], strict=False):
            capture.tensors[key].copy_(new)
        for done in capture.finals:
            done()
        return _filled(_tree.flatten(self.result, open_dataclasses=True), made)


def _filled(results: tuple[list[Any], Structure], made: Sequence[Tensor]) -> Any:
    """A result with its tensors in the places of the marks."""
    rest = iter(made)
    found, structure = results
    return _tree.unflatten(structure, [next(rest) if x is _PLACE else x for x in found])


#: Number of argument kinds that are cached by identity.
_MOST_KNOWN = 64


@dataclass(frozen=True, eq=False, slots=True)
class _KnownTrace:
    """A program for arguments with these very specs and devices, under this very policy."""

    kept: list[tuple[Spec, Device]]
    policy: Policy
    program: Traced


def _homes(arrays: Iterable[Any]) -> list[Device]:
    """The devices on which those of the arrays that are tensors were placed."""
    found = [home_of(x) for x in arrays if isinstance(x, Tensor)]
    return [place for place in found if place is not None]


def _identity(args: tuple[Any, ...]) -> tuple[int, ...] | None:
    """The specs and devices of positional tensors, by identity; None if an argument is something else."""
    found = []
    for x in args:
        if not isinstance(x, Tensor):
            return None
        found.append(id(x.spec))
        found.append(id(home_of(x)))
    return tuple(found)


#: The mark for a tensor among the results.
_PLACE = object()


def _without_values(result: Any) -> Any:
    """The result with a mark in place of each tensor."""
    found, structure = _tree.flatten(result, open_dataclasses=True)
    marked = [_PLACE if is_array(x) or isinstance(x, Operand) else x for x in found]
    return _tree.unflatten(structure, marked)


def _own(value: Value, inputs: Sequence[Value]) -> Value:
    """The value as the output of a node: an input or a constant is copied."""
    made: Value = bind(Identity(), value)[0] if value.behind.node is None else value
    return made


@dataclass(frozen=True)
class _Arguments:
    """The arguments of a call, flattened."""

    leaves: list[Any]
    structure: Structure

    @classmethod
    def of(cls, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Arguments:
        """Positional and named arguments."""
        return cls(*_tree.flatten((args, kwargs), _is_static, open_dataclasses=True))

    @property
    def arrays(self) -> list[Any]:
        """The leaves that count as tensors."""
        return [x for x in self.leaves if isinstance(x, Tensor) or is_array(x)]

    @property
    def names(self) -> list[str]:
        """A readable name of each leaf: args[0], kwargs['mask']."""
        positional, named = self.structure.branches
        return [*_tree.names(positional, "args"), *_tree.names(named, "kwargs")]

    def keys(self) -> tuple[Hashable, ...]:
        """For each leaf the part that a program depends on."""
        return tuple([self._key(i, x) for i, x in enumerate(self.leaves)])

    def _key(self, index: int, x: Any) -> Hashable:
        if isinstance(x, Tensor):
            return x.spec.open, home_of(x)
        if is_array(x):
            return array_spec(x), None
        if isinstance(x, slice):  # not hashable in Python 3.11
            return slice, x.start, x.stop, x.step
        try:
            hash(x)
        except TypeError:
            raise TypeError(
                f"jit: {self.names[index]} is a {type(x).__name__}: an argument is a tensor or array, a tuple, list, "
                "dict or dataclass of such, or a hashable value that stays fixed"
            ) from None
        return _static_key(x)


def _is_static(x: Any) -> bool:
    """Whether a container stays as it is: a hashable record without tensors. One that is not is opened: its fields
    tell a changed one."""
    return is_plain_record(x) and type(x).__hash__ is not None


#: The hash of objects that are compared by identity.
_BY_IDENTITY: Any = object.__hash__


def _static_key(x: Any) -> Hashable:
    """What tells a hashable value from an equal one that computes something else: 1, 1.0 and True, 0.0 and -0.0, also
    in records and frozen sets. NaN, which is not equal to itself, is one value."""
    if isinstance(x, float | complex):
        return type(x), repr(x)
    if isinstance(x, tuple):
        return type(x), tuple(map(_static_key, x))
    if isinstance(x, frozenset):
        return type(x), frozenset((y, _static_key(y)) for y in x)
    by_fields = is_plain_record(x) and type(x).__hash__ is not _BY_IDENTITY
    if by_fields and not isinstance(x, HasParameters):
        told = [f.name for f in fields(x) if (f.compare if f.hash is None else f.hash)]
        return type(x), x, tuple([_static_key(getattr(x, name)) for name in told])
    return type(x), x


def _require_open(result: Any) -> None:
    """Raises TypeError for an object among the results that hides traced values, which would leave the trace."""
    found, structure = _tree.flatten(result, open_dataclasses=True)
    for name, x in zip(_tree.names(structure, "result"), found, strict=True):
        if is_array(x) or isinstance(x, Operand | HasParameters | type):
            continue
        held = x if isinstance(x, deque | set | frozenset) else getattr(x, "__dict__", {}).values()
        if any(isinstance(y, Value) for y in held):
            raise TypeError(
                f"jit: {name} is a {type(x).__name__} that holds traced values: return them as tensors in a tuple, "
                "list, dict or dataclass, and make the object of the results outside"
            )


def _name(fn: Callable[..., Any]) -> str:
    return getattr(fn, "__name__", type(fn).__name__).strip("<>")
