"""A PyTorch module as a graph for one mode and one kind of inputs, by torch.export before any decomposition."""

from __future__ import annotations

import logging
import threading
import traceback
import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, is_dataclass
from typing import Any, NamedTuple

import torch
import torch.export._trace
from torch.export.graph_signature import InputKind, OutputKind
from torch.fx import Node
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_unflatten

from lamina._tree import Structure, flatten, unflatten
from lamina.convert.torch.asked_gradients import AskedGradientError, AskedGradients
from lamina.convert.torch.assigned import Replaced, in_new_shapes, other_shape, same_calls, write_assigned
from lamina.convert.torch.attention import flexible_on_every_device
from lamina.convert.torch.batch_first import attention_batch_first
from lamina.convert.torch.capturing import capture
from lamina.convert.torch.carrying import Carried, Dependent, Seeds
from lamina.convert.torch.causal import without_numbers
from lamina.convert.torch.deciding import Compared, Decisions, Path, Rehearsal, called_to_the_end, deciding
from lamina.convert.torch.free_sizes import FreeSizes
from lamina.convert.torch.interpreter import FxProgram
from lamina.convert.torch.known_numbers import KnownNumbers, Values
from lamina.convert.torch.levels import flattened, levels, levels_kept
from lamina.convert.torch.linalg import LinalgMode
from lamina.convert.torch.loss import LossMode
from lamina.convert.torch.memory import real_form
from lamina.convert.torch.node import TorchConversionError
from lamina.convert.torch.norm import cumulative_norms
from lamina.convert.torch.objects import ObjectAttributes, holds_tensors, is_container, objects
from lamina.convert.torch.packed import PackingMode, batches_of_any_size
from lamina.convert.torch.partition import memory_of
from lamina.convert.torch.raising import LIBRARIES, RaisingBranches
from lamina.convert.torch.random import BoundedDraws
from lamina.convert.torch.report import LeftCalls
from lamina.graph.ir.surroundings import GENERATORS, PLAIN, SameSurroundings, comparable, reads_of
from lamina.ops.core import CallNeededError, Operand
from lamina.spec import Shape
from lamina.tensors import as_tensor

#: torch.export changes process-wide switches: one thread makes graphs at a time.
EXPORTING = threading.RLock()


@dataclass(frozen=True)
class Inputs:
    """The inputs of a call: the tensors in order, and everything else as part of the structure.

    others: the leaves that are not tensors, by their leaf index.
    """

    structure: Structure
    others: tuple[tuple[int, Any], ...]
    count: int

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Inputs)
            and (other.structure, other.count) == (self.structure, self.count)
            and [i for i, _ in other.others] == [i for i, _ in self.others]
            and all(_alike(x, y) for (_, x), (_, y) in zip(self.others, other.others, strict=True))
        )

    __hash__ = None  # type: ignore[assignment]  # of what is in `others` not all have one

    @classmethod
    def of(cls, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Inputs, list[Any]]:
        """The inputs without their tensors, and the tensors."""
        leaves, structure = flatten((tuple(args), dict(kwargs)), open_dataclasses=True, opens=is_container)
        tensors = [x for x in leaves if is_tensor(x)]
        others = tuple((i, x) for i, x in enumerate(leaves) if not is_tensor(x))
        return cls(structure, others, len(leaves)), tensors

    def arguments(self, tensors: Sequence[Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """(args, kwargs) with these tensors."""
        given, others = iter(tensors), dict(self.others)
        leaves = [others[i] if i in others else next(given) for i in range(self.count)]
        args, kwargs = unflatten(self.structure, leaves)
        return args, kwargs


def _alike(x: Any, y: Any) -> bool:
    """Whether a graph that was made with x holds for y: not for 2 and 2.0, or 0.0 and -0.0."""
    return type(x) is type(y) and (comparable(x) == comparable(y) if isinstance(x, PLAIN) else bool(x == y))


def is_tensor(x: Any) -> bool:
    """Whether x is an array of any library."""
    return isinstance(x, (Operand, torch.Tensor)) or hasattr(x, "__dlpack__")


@dataclass(frozen=True)
class ExportedGraph:
    """A graph and the meaning of its placeholders.

    sources: for each placeholder ("state", dotted name), ("constant", tensor) or ("input", its number).
    outputs: the nesting of the results and of the new attributes of the arguments' objects; fixed: those of them
    that are not tensors, by their leaf index.
    sizes: the input sizes for which it holds. decided: the buffers with whose values it was made, and for which it
    holds. path: the numbers of the call by which its code decides, compared in each call.
    """

    program: FxProgram
    sources: tuple[tuple[str, Any], ...]
    outputs: Structure
    fixed: Mapping[int, Any]
    sizes: FreeSizes
    decided: Mapping[str, torch.Tensor] = field(default_factory=dict)
    path: Path = ()

    @property
    def draws(self) -> bool:
        """Whether it draws random numbers, and may find that another graph draws them in its place."""
        return bool(self.path) and any(map(_is_drawn, self.program.nodes()))

    def takes(self, shapes: Sequence[Shape]) -> bool:
        """Whether the graph holds for inputs of these shapes."""
        return self.sizes.hold(shapes)

    def __call__(self, state: Mapping[str, Any], tensors: Sequence[Any]) -> GraphResults:
        """The results as the module nests them, and everything that it wrote. Raises OtherPath for a call with other
        numbers than those of its path."""
        given = (_source(kind, key, state, tensors) for kind, key in self.sources)
        found = self.program(*given, compare=Compared(self.path))
        sources = dict(zip(self.program.inputs, self.sources, strict=True))
        new = [(*sources[n], v) for n, v in found.changed.items() if n in sources]
        changed = {key: v for kind, key, v in new if kind == "state"}
        written = {key: v for kind, key, v in new if kind == "input"}
        made = iter(found.outputs)
        count = len(found.outputs) - len(self.path) + len(self.fixed)
        leaves = [self.fixed[i] if i in self.fixed else next(made) for i in range(count)]
        results, attributes = unflatten(self.outputs, leaves)
        return GraphResults(results, changed, written, attributes)


class NoGraphError(TorchConversionError):
    """No graph can be made of a module's code, which PyTorch runs."""


class DecidedError(NoGraphError):
    """A module's code decides by values, for which a graph is made only for a call that has them."""


class UnknownCallError(CallNeededError, DecidedError):
    """A module's code decides by values where a graph is recorded for no call."""


class DecidingCall(NamedTuple):
    """What a module's code decides by in a call: the numbers that it is known to read first, and PyTorch's own run of
    it, from which the following ones are guessed."""

    path: Path
    rehearsal: Rehearsal | None = None


def _is_drawn(node: Node) -> bool:
    """Whether a call draws random numbers."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


class GraphResults(NamedTuple):
    """The results of a graph as the module nests them, and the new values of what it wrote.

    state: by dotted name. inputs: by their number. attributes: of the arguments' objects, by the number of the
    object (`objects`).
    """

    results: Any
    state: dict[str, Any]
    inputs: dict[int, Any]
    attributes: dict[int, dict[str, Any]]


def _source(kind: str, key: Any, state: Mapping[str, Any], tensors: Sequence[Any]) -> Any:
    if kind == "state":
        return state[key]
    return tensors[key] if kind == "input" else key


class _Nesting:
    """The nesting of results. A separate object: the exporter undoes assignments to a module."""

    def __init__(self) -> None:
        self.keep(Structure(), {})

    def keep(self, structure: Structure, fixed: dict[int, Any]) -> None:
        """The last call's: its structure, and the leaves that are not tensors."""
        self.structure, self.fixed = structure, fixed


class _DataMode(TorchFunctionMode):
    """Within the block x.data is x.detach(), whose memory the exporter can track; assigning to it is a write."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function, or the replacement of x.data."""
        if getattr(func, "__self__", None) is torch.Tensor.data:
            return args[0].detach() if func.__name__ == "__get__" else _assign_data(*args)
        return func(*args, **(kwargs or {}))


class _ElementMode(TorchFunctionMode):
    """Within the block x[:, i] with a one-element integer tensor i is a gather: as an int its value would
    be needed."""

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function, or its replacement."""
        if func not in (torch.Tensor.__getitem__, torch.Tensor.__setitem__):
            return func(*args, **(kwargs or {}))
        x, key, *value = args
        entries = key if isinstance(key, tuple) else (key,)
        return func(*args) if _single_integer(x, entries) is None else _at(x, entries, *value)


def _at(x: torch.Tensor, key: tuple[Any, ...], *value: Any) -> Any:
    """x[key], or, with a value, x[key] = value. Integer tensors of one element with unknown values are gathered."""
    if (found := _single_integer(x, key)) is None:
        return x.__setitem__(key, *value) if value else x[key]
    place, axis = found
    index, rest = key[place].reshape(1), (*key[:place], 0, *key[place + 1 :])
    part = x[(*[slice(None)] * axis, index)]
    made = _at(part, rest, *value)
    if value:
        x.index_copy_(axis, torch.where(index < 0, index + x.shape[axis], index).to(torch.int64), part)
    return made


def _single_integer(x: torch.Tensor, key: tuple[Any, ...]) -> tuple[int, int] | None:
    """The position in a key of the first one-element integer tensor with an unknown value, and the axis that it
    indexes.
    """
    taken = [_axes_taken(k) for k in key]
    axis = 0
    for place, k in enumerate(key):
        if (
            isinstance(k, torch.Tensor)
            and not k.ndim
            and taken[place]
            and getattr(k, "constant", None) is None
        ):
            return place, axis
        axis += x.ndim - sum(taken) if k is Ellipsis else taken[place]
    return None


def _axes_taken(entry: Any) -> int:
    """How many axes of a tensor an entry of a key takes; `...` takes the remaining ones."""
    if isinstance(entry, torch.Tensor) and entry.dtype in (torch.bool, torch.uint8):
        return int(entry.ndim)
    return 0 if entry is None or entry is Ellipsis or isinstance(entry, bool) else 1


def _assign_data(x: torch.Tensor, value: torch.Tensor) -> None:
    """x.data = value. `x.data *= 2` assigns x's own memory, which is already written."""
    if x.shape != value.shape or x.dtype != value.dtype:
        raise TorchConversionError(
            f"x.data of {tuple(x.shape)} {x.dtype} becomes {tuple(value.shape)} {value.dtype}: a graph's tensors "
            "keep shape and dtype; use a tensor of its own"
        )
    if memory_of(x) != memory_of(value):
        x.detach().copy_(value.detach())


def rewriting_modes() -> tuple[TorchFunctionMode, ...]:
    """Within these blocks functions without a counterpart are called by others that have one."""
    return PackingMode(), LossMode(), LinalgMode(), BoundedDraws(), _DataMode()


class _Flat(torch.nn.Module):
    """The module as a function of its tensors that returns only tensors; records the nesting of the results.

    Dynamo (`strict`) records nothing: there it returns the module's results, and the exporter gives their nesting.
    """

    def __init__(
        self,
        network: torch.nn.Module,
        inputs: Inputs,
        strict: bool,
        carried: Carried,
        branches: RaisingBranches,
        call: DecidingCall | None = None,
    ) -> None:
        super().__init__()
        self.network, self.inputs, self.strict, self.carried = network, inputs, strict, carried
        self.decisions = None if call is None else Decisions(call.path, call.rehearsal)
        self.branches, self.known = branches, branches.known
        self.nesting = _Nesting()
        self.replaced = Replaced()

    def next(self) -> _Flat:
        """The same for the next call, which finds other buffers where forward replaced them."""
        branches = RaisingBranches(KnownNumbers(self.known.values))
        call = None if self.decisions is None else DecidingCall(tuple(self.decisions.path))
        made = _Flat(self.network, self.inputs, self.strict, self.carried, branches, call)
        made.replaced = Replaced(self.replaced.shapes)
        return made

    def forward(self, tensors: list[torch.Tensor]) -> Any:
        args, kwargs = self.inputs.arguments(tensors)
        before = [(part._buffers, dict(part._buffers)) for part in self.network.modules()]
        if self.strict:
            found = self.network(*args, **kwargs)
            write_assigned(before)
            return found
        made = Dependent(tensors)
        modes = (*rewriting_modes(), _ElementMode(), AskedGradients())
        with ExitStack() as stack:
            decisions = nullcontext() if self.decisions is None else deciding(self.decisions)
            known = self.known.of(self.network)
            for mode in (made, *modes, decisions, known, self.branches):  # the last decide first
                stack.enter_context(mode)
            own = ObjectAttributes((args, kwargs))
            found = called_to_the_end(self.network, args, kwargs)
            leaves, structure = flatten((found, own.changed()), open_dataclasses=True, opens=holds_tensors)
            self.carried.look(made)
            buffers = [b for _, own in before for b in own.values()]
            leaves = [x.clone() if any(x is b for b in buffers if b is not None) else x for x in leaves]
            write_assigned(before, self.replaced)
        self.nesting.keep(structure, {i: x for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)})
        asked = [] if self.decisions is None else self.decisions.asked
        return [*(x for x in leaves if isinstance(x, torch.Tensor)), *asked]


def export(
    module: torch.nn.Module,
    inputs: Inputs,
    tensors: Sequence[torch.Tensor],
    values: Values | None = None,
    call: DecidingCall | None = None,
) -> ExportedGraph:
    """The graph of a module in its current mode. The first axes of the inputs may have any size, if it allows.

    values: of the buffers by which the module's code decides; by default the module's own. call: what it decides by
    in the call for which the graph is made.
    Warns of state that the module carries from call to call, of random numbers not drawn by PyTorch, of seeds, and
    of checks of values that the graph leaves out.
    Raises TorchConversionError with torch.export's message: DecidedError if the code may decide by values of a call.
    """
    reads = reads_of(*[part.forward for part in module.modules()])
    carried = Carried(module, reads)
    drawn = SameSurroundings([read for read in reads if isinstance(read.holder, GENERATORS)])
    with exporting(), Seeds() as seeds:
        given = values or dict(module.named_buffers()).get
        graph, branches = _tried(module, inputs, tensors, carried, given, call)
    carried.warn()
    branches.warn()
    seeds.warn(type(module))
    drawn.settle("torch")
    return graph


def _tried(
    module: torch.nn.Module,
    inputs: Inputs,
    tensors: Sequence[torch.Tensor],
    carried: Carried,
    values: Values,
    call: DecidingCall | None,
) -> tuple[ExportedGraph, RaisingBranches]:
    """The graph by the first method that succeeds, and branches that it leaves out."""
    said: list[str] = []
    by_dynamo = all(
        map(is_dataclass, objects(inputs.arguments(tensors)))
    )  # others' new attributes it does not give
    by_dynamo = by_dynamo and call is None  # which lets nothing be decided
    lacks = False
    for strict, dynamic in ((False, True), (False, False), *([(True, False)] if by_dynamo else [])):
        branches = RaisingBranches(KnownNumbers(values))
        try:
            with levels_kept():
                flat = _Flat(module, inputs, strict, carried, branches, call)
                return _exported(flat, tensors, dynamic), branches
        except AskedGradientError as error:
            raise TorchConversionError(f"{type(module).__name__}: {error}{_place(error)}") from None
        except Exception as error:  # whatever the module's own code or the exporter raises
            said.append(f"(strict={strict}, any batch={dynamic}) {type(error).__name__}: {_first(error)}")
            lacks = lacks or branches.known.lacks or isinstance(error, GuardOnDataDependentSymNode)
            if lacks and call is not None:
                break
    if by_dynamo:
        try:
            branches = RaisingBranches(KnownNumbers(values))
            return _captured(_Flat(module, inputs, True, carried, branches), tensors), branches
        except Exception as error:  # whatever the module's own code or Dynamo raises
            said.append(f"(torch.compile) {type(error).__name__}: {_first(error)}")
    kind = DecidedError if lacks else NoGraphError
    raise kind(
        f"{type(module).__name__}: torch.export makes no graph of it:\n  " + "\n  ".join(said) + "\n"
        "What is decided in Python by values of tensors (whether to drop a layer) has none where no call gives these "
        '(a Predictor, an export): switch that off, or let torch.compile(module, backend="lamina") run the module in '
        "parts."
    )


def _first(error: Exception) -> str:
    """The first lines of an error, and the network's line that it comes from."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:400] + _place(error)


def _place(error: Exception) -> str:
    """The network's line that an error comes from, if it was being run."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if not f.filename.startswith((*LIBRARIES, "<"))]
    entered = [f for f in frames if f.filename == __file__]
    return f" ({own[-1].filename}:{own[-1].lineno}: {own[-1].line})" if own and entered else ""


def _made(flat: _Flat, tensors: Sequence[torch.Tensor], dynamic: bool) -> Any:
    """The program of torch.export."""
    any_size = {0: torch.export.Dim.AUTO}
    free = [any_size if dynamic and x.ndim and x.shape[0] > 1 else None for x in tensors]
    try:
        return torch.export.export(flat, (list(tensors),), dynamic_shapes=(free,), strict=flat.strict)
    finally:
        flat.carried.take_back()  # before constants are taken from tensors that forward wrote


def _require_unread(flat: _Flat, made: Any, tensors: Sequence[torch.Tensor], dynamic: bool) -> None:
    """Raise TorchConversionError where the next call would read what forward put in place of a buffer of another
    shape."""
    if not flat.replaced.shapes:
        return
    following = flat.next()
    with in_new_shapes(flat.network, flat.replaced):
        found = _made(following, tensors, dynamic)
    if following.nesting.fixed != flat.nesting.fixed or not same_calls(made, found):
        parts = list(flat.network.modules())
        (part, name), shape = next(iter(flat.replaced.shapes.items()))
        raise other_shape(name, tuple(parts[part]._buffers[name].shape), shape)
    flat.carried.leave(name for _, name in flat.replaced.shapes)


def _exported(flat: _Flat, tensors: Sequence[torch.Tensor], dynamic: bool) -> ExportedGraph:
    made = _made(flat, tensors, dynamic)
    _require_unread(flat, made, tensors, dynamic)
    if levels(flattened(made.graph_module)) and dynamic:
        raise TorchConversionError("a transformation of torch.func over an axis of any size")
    sources: list[tuple[str, Any]] = []
    shapes: list[Sequence[Any]] = []
    network = flat.network
    own = {_place_of(x): n for n, x in (*network.named_buffers(), *network.named_parameters())}
    for spec, node in zip(made.graph_signature.input_specs, made.graph.nodes, strict=False):
        if spec.kind in (InputKind.PARAMETER, InputKind.BUFFER):
            sources.append(("state", str(spec.target).removeprefix("network.")))
        elif spec.kind is InputKind.USER_INPUT:
            sources.append(("input", len(shapes)))
            shapes.append(node.meta["val"].shape)
        else:
            sources.append(_held(made, str(spec.target), own))
    if flat.strict:
        _arrange(made, flat.nesting)
    decided = flat.known.decided
    flat.known.require_kept(made.graph.nodes, sources)
    structure, fixed = flat.nesting.structure, flat.nesting.fixed
    if any(s.kind is not OutputKind.USER_OUTPUT for s in made.graph_signature.output_specs):
        raise TorchConversionError("the graph gives other results than the module's")
    path: Path = ()
    if flat.decisions is not None:
        path = tuple(flat.decisions.path)
        asked = len(flat.decisions.asked)
        output = next(n for n in made.graph_module.graph.nodes if n.op == "output")
        flat.decisions.mark(output.args[0][len(output.args[0]) - asked :])
    given = [tuple(x.shape) for x in tensors]
    sizes = FreeSizes.of(shapes, made.range_constraints, given, list(fixed.values()))
    program = FxProgram(made.graph_module)
    return ExportedGraph(program, tuple(sources), structure, _numbers(fixed), sizes, decided, path)


def _captured(flat: _Flat, tensors: Sequence[torch.Tensor]) -> ExportedGraph:
    try:
        with levels_kept():
            made = capture(flat, list(tensors))
    finally:
        flat.carried.take_back()
    program = FxProgram(made.module)
    if unknown := LeftCalls().add(program.unknown()):
        raise TorchConversionError(f"calls without a counterpart: {'; '.join(unknown)}")
    held = dict(flat.network.named_parameters()) | dict(flat.network.named_buffers())
    names = {id(x): name for name, x in held.items()}
    numbers = {id(x): i for i, x in enumerate(tensors)}
    sources: list[tuple[str, Any]] = []
    for x in made.inputs:
        if id(x) in numbers:
            sources.append(("input", numbers[id(x)]))
        elif id(x) in names:
            sources.append(("state", names[id(x)]))
        else:
            sources.append(("constant", as_tensor(real_form(x.detach().clone()))))
    sizes = FreeSizes([tuple(x.shape) for x in tensors])
    structure = Structure(tuple, (), (made.structure, Structure(dict)))
    return ExportedGraph(program, tuple(sources), structure, _numbers(made.others), sizes)


def _arrange(made: Any, nesting: _Nesting) -> None:
    """Record the nesting of the results from the exporter; the graph then returns the tensors in leaf order."""
    output = next(n for n in made.graph.nodes if n.op == "output")
    given = list(output.args[0])
    standing = [torch.empty(0) if isinstance(x, Node) else x for x in given]
    leaves, structure = flatten((tree_unflatten(standing, made.call_spec.out_spec), {}))
    nesting.keep(structure, {i: x for i, x in enumerate(leaves) if not isinstance(x, torch.Tensor)})
    places = [
        next(i for i, own in enumerate(standing) if own is x) for x in leaves if isinstance(x, torch.Tensor)
    ]
    output.args = (tuple(given[i] for i in places),)


def _numbers(fixed: Mapping[int, Any]) -> dict[int, Any]:
    """Results that are not tensors, with symbolic numbers as plain ones."""
    plain = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}
    return {i: plain.get(type(x), _same)(x) for i, x in fixed.items()}


def _same(x: Any) -> Any:
    return x


def _held(made: Any, name: str, own: Mapping[Hashable, str]) -> tuple[str, Any]:
    """The source of a tensor that the exporter calls a constant: one of the network's own, by its place in memory,
    that forward reads by another path (a list, a dict), or a copy of it.
    """
    held = made.constants[name] if name in made.constants else made.state_dict[name]
    place = _place_of(held)
    known = None if place is None else own.get(place)
    return ("constant", as_tensor(real_form(held.detach().clone()))) if known is None else ("state", known)


def _place_of(x: torch.Tensor) -> Hashable:
    """Where a tensor's elements are, and how they lie; None for one without memory of its own."""
    if x.layout is not torch.strided or not x.numel() or not x.data_ptr():
        return None
    return x.data_ptr(), x.device, x.dtype, x.shape, x.stride()


@contextmanager
def exporting() -> Iterator[None]:
    """Within the block only this thread makes graphs, and torch.distributions do not validate their arguments'
    values, which a graph lacks.
    """
    checked = torch.distributions.Distribution._validate_args
    torch.distributions.Distribution.set_default_validate_args(False)
    try:
        with EXPORTING, _quietly():
            yield
    finally:
        torch.distributions.Distribution.set_default_validate_args(checked)


#: The exporter's, in which it tells what it could not do.
_LOGS = ("_subclasses.fake_tensor", "fx.experimental.symbolic_shapes")


@contextmanager
def _quietly() -> Iterator[None]:
    """Without fused inference kernels, which only this path would call, without the exporter's output (warnings, and
    errors and the whole graph of each failed attempt), and without checks of masks' values.
    """
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    logs = [logging.getLogger(f"torch.{name}") for name in _LOGS]
    silent = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    printing = vars(torch.export._trace)
    printing["print"] = lambda *texts, **options: None
    try:
        with (
            warnings.catch_warnings(), torch.enable_grad(), attention_batch_first(), without_numbers(),
            cumulative_norms(), batches_of_any_size(), _kept_as_they_are(), flexible_on_every_device(),
        ):  # fmt: skip
            warnings.simplefilter("ignore")
            yield
    finally:
        del printing["print"]
        for log, before in zip(logs, silent, strict=True):
            log.disabled = before
        torch.backends.mha.set_fastpath_enabled(fast)


@contextmanager
def _kept_as_they_are() -> Iterator[None]:
    """Within the block moving or converting a module to its present device and dtype leaves it unchanged: the
    exporter, whose tensors cannot be replaced, would fail.
    """
    apply = torch.nn.Module._apply

    def applied(self: torch.nn.Module, function: Any, recurse: bool = True) -> torch.nn.Module:
        held = [*self.parameters(recurse), *self.buffers(recurse)]
        return self if all(function(x) is x for x in held) else apply(self, function, recurse)

    torch.nn.Module._apply = applied
    try:
        yield
    finally:
        torch.nn.Module._apply = apply
