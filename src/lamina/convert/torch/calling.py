"""A network's own code, run by each call: for what no graph holds.

Python runs `forward` as PyTorch does, with loops and branches by values, with data structures and other libraries in
between. Its tensors are stand-ins without values. Each call of one of PyTorch's functions is computed here by the op
that a graph would have for it, and recorded for gradients; what Python reads of a tensor are the numbers computed so
far. No call is compiled, and each goes through PyTorch's and Lamina's dispatch: a tenth of a millisecond for one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from types import FunctionType, GetSetDescriptorType
from typing import Any, TypeAlias
from weakref import ref

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map

from lamina import ops
from lamina._tree import flatten, unflatten
from lamina.convert.torch.asked_gradients import AskedGradients
from lamina.convert.torch.assigned import Buffers
from lamina.convert.torch.autocast import Autocast
from lamina.convert.torch.cells import Cell
from lamina.convert.torch.complexes import ComplexCell, involved, knows
from lamina.convert.torch.deciding import CallNeeded, with_ends
from lamina.convert.torch.exporting import EXPORTING, GraphResults, Inputs, NoGraphError, rewriting_modes
from lamina.convert.torch.interpreter import FxProgram, FxRun, find
from lamina.convert.torch.known_numbers import READS
from lamina.convert.torch.memory import real_form, torch_tensor
from lamina.convert.torch.node import TorchConversionError, dtype_of, known
from lamina.convert.torch.objects import ObjectAttributes, holds_tensors
from lamina.convert.torch.own_gradients import applied
from lamina.convert.torch.raising import own_frame
from lamina.convert.torch.selecting import taken
from lamina.convert.torch.stand_ins import CodeMode, StandIn, stand_in
from lamina.convert.torch.staying import call_of, standing
from lamina.convert.torch.targets import PYTHON, full_name, own_name, schemas
from lamina.graph.ir.call_numbers import MANY, numbers_now
from lamina.graph.ir.surroundings import users_frame
from lamina.graph.transforms.arguments import tensors
from lamina.graph.transforms.derivatives import on_tape
from lamina.ops.core import Operand, recorder, recording
from lamina.runtime import Device
from lamina.tensors import as_tensor

#: What a graph is made for, beside shapes and plain attributes: which modules train, the inputs, their dtypes.
CallKind: TypeAlias = tuple[tuple[bool, ...], Inputs, tuple[str, ...]]
#: How many kinds of calls have no graph before a graph is tried for no more.
KINDS = 4
#: How many calls one after the other may take a new path through the code.
IN_A_ROW = 6
#: What a function gives on tensors without values, where it needs them.
_UNKNOWN = object()
#: Functions for which Python needs numbers.
_READS = frozenset((*READS, torch.Tensor.__repr__, torch.Tensor.__format__))
#: Those that give arrays of NumPy, which has no bfloat16.
_TO_NUMPY = (torch.Tensor.numpy, torch.Tensor.__array__)
#: Attributes of a stand-in that are those of what it stands for.
_ATTRIBUTES = frozenset(
    ("device", "is_cuda", "is_cpu", "is_meta", "requires_grad", "is_leaf", "grad_fn", "grad")
)
#: What a function's module has to find out whether modes are to be asked.
_ASKS = ("has_torch_function", "has_torch_function_unary", "has_torch_function_variadic")


class CodeKinds:
    """The kinds of calls whose code is run call by call, and whether calls keep taking new paths.

    A network of whose calls `KINDS` kinds have no graph has none for further kinds either. in_a_row: how many calls
    one after the other have taken new paths.
    """

    def __init__(self, network: str) -> None:
        self._network = network
        self._kinds: list[tuple[CallKind, str]] = []
        self.in_a_row = 0
        self._said = False

    def add(self, kind: CallKind, reason: NoGraphError) -> None:
        """Such calls have no graph."""
        self._kinds.append((kind, str(reason)))

    def require_graph(self, kind: CallKind, always: bool) -> None:
        """Raise NoGraphError for calls that have none; always: even though there may be one."""
        alike = [(other, reason) for other, reason in self._kinds if other[0] == kind[0]]
        for other, reason in alike:
            if not always and (other == kind or len(alike) >= KINDS):
                raise NoGraphError(reason)

    def is_another_path(self, paths: int) -> bool:
        """Count a call that takes a new path; returns whether they are too many: altogether, or one after the
        other."""
        self.in_a_row += 1
        return paths >= MANY or self.in_a_row > IN_A_ROW

    def warn(self, reason: NoGraphError) -> None:
        """Say once that code is run, and why."""
        if not self._said:
            self._said = True
            warnings.warn(
                f"from_torch: {self._network} runs call by call, uncompiled (fullgraph=True refuses that): {reason}",
                stacklevel=users_frame(),
            )


class _GradientAsked(BaseException):
    """Ends a run that asks for gradients: it starts anew on a tape. Not for the code's own handlers."""


def run_code(
    module: torch.nn.Module,
    stays: Sequence[str],
    inputs: Inputs,
    state: Mapping[str, Any],
    operands: Sequence[Any],
) -> GraphResults:
    """The results of a module's forward as it nests them, and everything that it wrote.

    stays: the parts that PyTorch computes. state: the operands of parameters and buffers by dotted name. Within a
    record it is of the numbers of its call.
    Raises TorchConversionError for a function without a counterpart, and what the module's code raises.
    """

    def run(on_a_tape: bool) -> GraphResults:
        return _CodeRun(module, stays, state, operands, on_a_tape)(inputs)

    try:
        return run(False)
    except _GradientAsked:
        return tensors(on_tape(lambda: run(True), operands, dict(state)))  # type: ignore[no-any-return]


class _CodeRun(CodeMode):
    """One run of a module's code: within it every call of PyTorch's functions is computed by ops."""

    def __init__(
        self,
        module: torch.nn.Module,
        stays: Sequence[str],
        state: Mapping[str, Any],
        operands: Sequence[Any],
        on_a_tape: bool,
    ) -> None:
        super().__init__()
        self.module, self.stays, self.state, self.operands = module, stays, state, operands
        self.on_a_tape = on_a_tape
        self._names = {id(x): name for name, x in _held(module)}
        #: Stand-ins for tensors with memory, by id; and all that were made.
        self._of_torch: dict[int, tuple[torch.Tensor, StandIn]] = {}
        self._made: list[ref[StandIn]] = []
        self._run = FxRun(FxProgram(GraphModule({}, FxGraph())), {})
        self._run.device = next(
            (x.device for x in (*operands, *map(state.get, state)) if x is not None), None
        )

    def __call__(self, inputs: Inputs) -> GraphResults:
        """Run the module for such inputs."""
        given = [Cell(_recorded(ops.operand(x))) for x in self.operands]
        before = [(part._buffers, dict(part._buffers)) for part in self.module.modules()]
        with EXPORTING, standing(self.module, self.stays):
            args, kwargs = inputs.arguments([stand_in(cell) for cell in given])
            own = ObjectAttributes((args, kwargs))
            try:
                with self._running():
                    found = self.module(*args, **kwargs)
                leaves, structure = flatten(
                    (found, own.changed()), open_dataclasses=True, opens=holds_tensors
                )
                results, attributes = unflatten(structure, [self._value(x) for x in leaves])
                assigned = self._assigned(before)
            finally:
                for buffers, own_buffers in before:
                    buffers.update(own_buffers)
        self._settle()
        written = {i: cell.read() for i, cell in enumerate(given) if cell.version}
        return GraphResults(results, self._changed() | assigned, written, attributes)

    def apply(self, function: Any, args: Sequence[Any]) -> Any:
        """The results of a `torch.autograd.Function`: its forward and its backward pass are run here, too."""
        return applied(function, args, self._stand_in, self._backward)

    def _backward(self, function: Callable[..., Any], args: Sequence[Any]) -> list[Any]:
        """What a function's backward gives for gradients: operands, and None."""

        def run() -> list[Any]:
            given = [stand_in(Cell(x)) if isinstance(x, Operand) else x for x in args]
            with self._running():
                found = function(*given)
                several = found if isinstance(found, tuple) else (found,)
                return [None if x is None else self._value(x) for x in several]

        before, self.on_a_tape = self.on_a_tape, True
        try:
            with EXPORTING, standing(self.module, self.stays):
                return tensors(on_tape(run, args))  # type: ignore[no-any-return]
        finally:
            self.on_a_tape = before

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Within the block each call of a function is computed."""
        with torch.enable_grad(), ExitStack() as stack:
            for mode in (self, *rewriting_modes(), _NumbersOfRun(self)):  # the last decide first
                stack.enter_context(mode)
            yield

    def _value(self, x: Any) -> Any:
        """A result: the operand of a tensor."""
        return self._stand_in(x).cell.read() if isinstance(x, torch.Tensor) else x

    def _changed(self) -> dict[str, Any]:
        """The new values of parameters and buffers that were written, by dotted name."""
        held = [(self._names[i], s.cell) for i, (_, s) in self._of_torch.items() if i in self._names]
        return {name: cell.read() for name, cell in held if cell.version}

    def _assigned(self, before: Buffers) -> dict[str, Any]:
        """What was put in the place of buffers, by their dotted names."""
        paths = [path for path, _ in self.module.named_modules()]
        return {
            f"{path}.{name}".lstrip("."): self._value(held[name])
            for path, (held, own) in zip(paths, before, strict=True)
            for name, buffer in own.items()
            if buffer is not None and held.get(name) is not buffer and held.get(name) is not None
        }

    def _settle(self) -> None:
        """What the code keeps beside parameters and buffers gets its numbers: now, or when those of a record's call
        are computed."""
        items = self._of_torch.items()
        written = [(x, stand) for i, (x, stand) in items if i not in self._names and stand.cell.version]
        kept = [stand for made in self._made if (stand := made()) is not None]

        def settle(numbers: Callable[[Any], Any]) -> None:
            for stand in (*kept, *(stand for _, stand in written)):
                stand.settle(numbers)
            for x, stand in written:
                with torch.no_grad():
                    x.copy_(_with_numbers(stand))

        by: Any = recorder()
        if by is not None and by.lasts:
            by.numbers.finals.append(settle)
        else:
            settle(lambda value: value)

    # ------------------------------------------------------------------------------------------------------- calls
    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function, computed by an op; Python's numbers of a tensor; or what follows from shapes alone."""
        kwargs = dict(kwargs or {})
        if func in (torch.autograd.grad, torch.Tensor.backward):
            return self._gradients(func, types, args, kwargs)
        if (out := kwargs.pop("out", None)) is not None:
            return self._into(out, self.__torch_function__(func, types, args, kwargs))
        name, is_set = _attribute_of(func)
        if name in _ATTRIBUTES:
            return self._attribute(name, is_set, func, args)
        args = self._with_numbers_as_ends(args)
        given = {id(x): x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)}
        stands = {i: self._stand_in(x) for i, x in given.items()}
        call = TorchFunctionCall(func, args, kwargs, given, stands, name, is_set)
        node = call.node()
        if not given and not schemas(node) and own_name(node) not in PYTHON:
            return func(*args, **kwargs)  # a mode of PyTorch, or a tensor of what is none
        inner = None if _is_known(node) else _without_asking(func)
        if inner is None:
            return self._computed(call, node)
        with self:  # what a function written in Python calls
            return inner(*args, **kwargs)

    def _into(self, out: Any, found: Any) -> Any:
        """`out`, one tensor or several, with the results written into it."""
        for x, y in zip(_tensors(out), _tensors(found), strict=True):
            self._stand_in(x).cell.write(self._stand_in(y).cell.read())
        return out

    def numbers(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """What a function gives of the numbers of tensors."""
        leaves = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        stands = {id(x): self._stand_in(x) for x in leaves}
        with torch._C.DisableTorchFunction():
            args, kwargs = (_mapped(x, stands, _with_numbers) for x in (args, kwargs))
            if func in _TO_NUMPY and args[0].dtype is torch.bfloat16:
                args = (args[0].float(), *args[1:])  # mixed precision: the code is of float32
            return func(*args, **kwargs)

    def _with_numbers_as_ends(self, args: Any) -> Any:
        """Arguments whose slices, in the key of x[key], end at numbers where they end at tensors."""

        def end(x: Any) -> Any:
            return self.numbers(torch.Tensor.__index__, (x,), {}) if isinstance(x, torch.Tensor) else x

        return (args[0], with_ends(args[1], end), *args[2:]) if len(args) > 1 else args

    def _computed(self, call: TorchFunctionCall, node: Node) -> Any:
        """What an op gives, or what follows from shapes alone."""
        shown, is_written = call.shown()
        if shown is not _UNKNOWN and not is_written and not _tensors(shown):
            return self._of_place(call.func, shown)
        call.show(node, shown)
        if not _is_known(node):
            if call.given:
                raise TorchConversionError(f"{full_name(node)}: {self._run.program._why_not(node)}{_line()}")
            return call.func(*call.args, **call.kwargs)
        run = self._run
        run.values = {n: call.stands[i].cell for i, n in call.nodes.items()}
        run.with_gradient = torch.is_grad_enabled()
        run.autocast = _autocast_now(run.device)
        try:
            found = taken(run.step(node))
        except Exception as error:
            error.add_note(f"called{_line()}")
            raise
        finally:
            run.values = {}
        return call.results(found, shown, self._made)

    def _of_place(self, func: Any, shown: Any) -> Any:
        """What follows from shapes alone, where it names the device of the tensors that are stood for."""
        device = self._run.device
        on_gpu = device is not None and device.kind != "cpu"
        if isinstance(shown, str):
            return shown.replace("torch.meta.", "torch.cuda." if on_gpu else "torch.")
        if func in (torch.Tensor.get_device, torch.get_device):
            return device.index if device is not None and on_gpu else -1
        return shown

    def _gradients(self, func: Any, types: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """torch.autograd.grad, on a tape. Raises AskedGradientError for `backward()`."""
        if func is torch.autograd.grad and not self.on_a_tape:
            raise _GradientAsked
        with self:
            return AskedGradients().__torch_function__(func, types, args, kwargs)

    def _attribute(self, name: str, is_set: bool, func: Any, args: Any) -> Any:
        """An attribute that a tensor without a value has otherwise than what it stands for."""
        x = args[0]
        if not isinstance(x, StandIn):
            return func(*args)
        if is_set:
            if name == "requires_grad" and args[1]:
                self._stand_in(x).meta.requires_grad_()
            return None
        value = x.cell.read()
        differentiated = x.meta.requires_grad or bool(value.dtype.is_float and _is_recorded(value))
        device = torch.device(str(self._run.device or "cpu"))
        return {
            "device": device, "is_cuda": device.type == "cuda", "is_cpu": device.type == "cpu", "is_meta": False,
            "requires_grad": differentiated, "is_leaf": not differentiated, "grad_fn": None, "grad": None,
        }[name]  # fmt: skip

    # ------------------------------------------------------------------------------------------------------ tensors
    def _stand_in(self, x: torch.Tensor) -> StandIn:
        """What stands for a tensor: itself, or that of a parameter, a buffer or another tensor that has memory."""
        if isinstance(x, StandIn):
            return x
        if id(x) not in self._of_torch:
            self._of_torch[id(x)] = x, stand_in(self._cell(x))
        return self._of_torch[id(x)][1]

    def _cell(self, x: torch.Tensor) -> Cell:
        if (name := self._names.get(id(x))) is not None:
            cell = Cell(_recorded(ops.operand(self.state[name])))
        else:
            if x.device.type == "meta" or x.layout is not torch.strided:
                raise TorchConversionError(
                    f"a tensor {tuple(x.shape)} of layout {x.layout} on {x.device}, made by what is no function of "
                    f"PyTorch's{_line()}: the network's code runs call by call, on dense tensors"
                )
            with torch._C.DisableTorchFunction():
                found = as_tensor(real_form(x.detach()))
            cell = Cell(found if self._run.device is None else found.to(self._run.device))
        return ComplexCell.of(cell) if x.is_complex() else cell


class _NumbersOfRun(TorchFunctionMode):
    """Within the block Python's numbers of tensors are those that the run has computed."""

    def __init__(self, run: _CodeRun) -> None:
        super().__init__()
        self.run = run

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """The function, or what it gives of the numbers."""
        if func in _READS:
            return self.run.numbers(func, args, dict(kwargs or {}))
        return func(*args, **(kwargs or {}))


class TorchFunctionCall:
    """A call of one of PyTorch's functions.

    given: the tensors among its arguments, by id; stands: what stands for each; nodes: its place in the node.
    """

    def __init__(
        self,
        func: Any,
        args: Any,
        kwargs: dict[str, Any],
        given: dict[int, torch.Tensor],
        stands: dict[int, StandIn],
        name: str,
        is_set: bool,
    ) -> None:
        self.func, self.args, self.kwargs, self.given, self.stands = func, args, kwargs, given, stands
        self.name, self.is_set = name, is_set
        self.nodes: dict[int, Node] = {}

    def node(self) -> Node:
        """The call as a node of a graph."""
        graph = FxGraph()
        for i, stand in self.stands.items():
            self.nodes[i] = graph.placeholder(f"x{len(self.nodes)}")
            self.nodes[i].meta["val"] = stand.meta
        args, kwargs = _mapped(self.args, self.nodes), _mapped(self.kwargs, self.nodes)
        if self.name:
            return graph.call_function(setattr if self.is_set else getattr, (args[0], self.name, *args[1:]))
        if _is_method(self.func):
            return graph.call_method(self.func.__name__, tuple(args), kwargs)
        return graph.call_function(self.func, tuple(args), kwargs)

    def shown(self) -> tuple[Any, bool]:
        """What the function gives on tensors without values, and whether it writes one."""
        args, kwargs = (_on_meta(_mapped(x, self.stands, _meta)) for x in (self.args, self.kwargs))
        metas = [stand.meta for stand in self.stands.values()]
        versions = [x._version for x in metas]
        with torch._C.DisableTorchFunction(), torch.no_grad():
            try:
                if self.func is torch.ops.lamina.torch_module:
                    return _of_fakes(self.func, args), False
                found = self.func(*args, **kwargs)
            except Exception:  # whatever is not defined without values, or for these arguments: the op tells
                return _UNKNOWN, False
        return found, versions != [x._version for x in metas]

    def show(self, node: Node, shown: Any) -> None:
        """Note at the node what it gives."""
        if shown is not _UNKNOWN:
            node.meta["val"] = shown
        if self.func is torch.ops.lamina.torch_module:
            node.meta["stays"] = call_of(self.args[1])

    def results(self, found: Any, shown: Any, made: list[ref[StandIn]]) -> Any:
        """Results in cells as the function gives them, with a stand-in for each; new ones are added to `made`."""
        owners: dict[int, Any] = {id(self.stands[i].cell): x for i, x in self.given.items()}
        cells, metas = _cells(found), _tensors(shown)
        alike = len(metas) == len(cells)
        for cell, meta in zip(cells, metas if alike else [None] * len(cells), strict=True):
            if id(cell) not in owners:
                owners[id(cell)] = stand = stand_in(cell, meta)
                made.append(ref(stand))
        if not alike:
            return tree_map(lambda x: owners[id(x)] if isinstance(x, Cell) else x, found)
        each = {id(meta): owners[id(cell)] for meta, cell in zip(metas, cells, strict=True)}
        return tree_map(lambda x: each.get(id(x), x), shown)


def _is_known(node: Node) -> bool:
    """Whether a call has a counterpart."""
    return find(node) is not None or (involved(node) and knows(node))


def _held(module: torch.nn.Module) -> list[tuple[str, torch.Tensor]]:
    """Parameters and buffers by dotted name."""
    return [*module.named_parameters(), *module.named_buffers()]


def _mapped(given: Any, of: Mapping[int, Any], as_: Callable[[Any], Any] = lambda x: x) -> Any:
    """Nested arguments with something else for each tensor."""
    return tree_map(lambda x: as_(of[id(x)]) if isinstance(x, torch.Tensor) else x, given)


def _meta(x: StandIn) -> torch.Tensor:
    return x.meta


def _with_numbers(x: StandIn) -> torch.Tensor:
    """A tensor of PyTorch with the numbers computed so far."""
    value = x.cell.read()
    found = known(value)
    if found is None:
        found = numbers_now(value)
    if found is None:
        raise CallNeeded(f"{value.spec} has no numbers where a graph is recorded for no call{_line()}")
    with recording(None):
        own = torch_tensor(as_tensor(found))
    return torch.view_as_complex(own) if isinstance(x.cell, ComplexCell) else own


def _on_meta(given: Any) -> Any:
    """Nested arguments with PyTorch's device "meta" in place of any other."""
    if isinstance(given, dict):
        return {k: "meta" if k == "device" and v is not None else _on_meta(v) for k, v in given.items()}
    return tree_map(lambda x: torch.device("meta") if isinstance(x, torch.device) else x, given)


def _of_fakes(func: Any, args: Any) -> Any:
    """What a call that stays PyTorch's gives: its code may ask tensors for a device."""
    with FakeTensorMode():
        found = func([torch.empty(x.shape, dtype=x.dtype) for x in args[0]], args[1])
    return [torch.empty(x.shape, dtype=x.dtype, device="meta") for x in found]


def _tensors(found: Any) -> list[torch.Tensor]:
    return [x for x in tree_leaves(found) if isinstance(x, torch.Tensor)]


def _cells(found: Any) -> list[Cell]:
    return [x for x in tree_leaves(found) if isinstance(x, Cell)]


def _attribute_of(func: Any) -> tuple[str, bool]:
    """The name of the attribute that a function reads or sets, and whether it sets it; "" for other functions."""
    owner = getattr(func, "__self__", None)
    if isinstance(owner, GetSetDescriptorType | property) and func.__name__ in ("__get__", "__set__"):
        name = (
            owner.__name__ if isinstance(owner, GetSetDescriptorType) else getattr(owner.fget, "__name__", "")
        )
        return name, func.__name__ == "__set__"
    return "", False


@cache
def _is_method(func: Any) -> bool:
    """Whether a function is a method of tensors."""
    return getattr(torch.Tensor, getattr(func, "__name__", ""), None) is func


@cache
def _without_asking(func: Any) -> Callable[..., Any] | None:
    """A function written in Python that does not ask modes, while what it calls does; None for others."""
    if not isinstance(func, FunctionType) or not func.__module__.startswith("torch"):
        return None
    names = dict.fromkeys(_ASKS, _never)
    inner = FunctionType(
        func.__code__, {**func.__globals__, **names}, func.__name__, func.__defaults__, func.__closure__
    )
    inner.__kwdefaults__ = func.__kwdefaults__
    return inner


def _never(*_: Any) -> bool:
    return False


def _autocast_now(device: Device | None) -> Autocast:
    """The region of torch.autocast that the code is in."""
    kind, made = "cpu" if device is None else device.kind, Autocast()
    if torch.is_autocast_enabled(kind):
        made.enter(dtype_of(torch.get_autocast_dtype(kind)))
    return made


def _recorded(x: Operand) -> Operand:
    """The value that stands for an operand where calls are recorded, so that gradients may be asked for of it."""
    return x if (by := recorder()) is None else by.read(x)


def _is_recorded(x: Operand) -> bool:
    """Whether a gradient reaches an operand."""
    return bool(x.records or getattr(x, "requires_grad", False))


def _line() -> str:
    """The line of the network's code that is run, as text."""
    frame = own_frame()
    return "" if frame is None else f" ({frame.f_code.co_filename}:{frame.f_lineno})"
