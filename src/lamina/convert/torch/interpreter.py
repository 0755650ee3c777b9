"""`FxProgram`: an interpreter that runs the nodes of a torch.fx graph in order, on any kind of operands."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache, partial
from types import FunctionType
from typing import Any, NamedTuple

import numpy as np
import torch
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node

from lamina import ops
from lamina.convert.torch.arguments import as_called
from lamina.convert.torch.asked_gradients import as_variable, variables_of
from lamina.convert.torch.autocast import Autocast, in_one_type
from lamina.convert.torch.cells import Cell, View, past_derivatives
from lamina.convert.torch.complexes import ComplexCell, called, involved, is_complex, knows
from lamina.convert.torch.deciding import place_in_path
from lamina.convert.torch.memory import real_form
from lamina.convert.torch.node import (
    ALIASES,
    HANDLERS,
    TorchCall,
    TorchConversionError,
    dtype_of,
    is_operand,
    read,
)
from lamina.convert.torch.selecting import (
    Selection,
    has_selections,
    is_number,
    is_only_checked,
    of_selections,
    taken,
)
from lamina.convert.torch.targets import (
    defaults,
    full_name,
    is_functional,
    is_torch,
    is_view,
    name_of,
    named,
    namespace,
    schemas,
    turns,
    written_operator,
)
from lamina.graph.transforms.arguments import tensors
from lamina.graph.transforms.derivatives import on_tape
from lamina.ops.core import Operand
from lamina.ops.operators import Operators
from lamina.runtime import Device
from lamina.tensors import Tensor, as_tensor

#: Options of PyTorch's tensor storage, and of the order of a product's steps (`path`); here the plan decides.
STORAGE = ("layout", "pin_memory", "memory_format", "device", "non_blocking", "generator", "cudnn_enable",
           "cudnn_enabled", "allow_tf32", "benchmark", "deterministic", "sparse_grad", "implicit", "inplace", "dtype",
           "_stacklevel", "path")  # fmt: skip

#: The prefix of NumPy's functions in Dynamo's graphs.
_NUMPY = "wrapped_"


class FxResult(NamedTuple):
    """A program's results: the outputs as the graph nests them, and the new operand of each written input.

    changed: by the name of the placeholder or, for parameters and buffers of the graph's module, of the attribute.
    """

    outputs: Any
    changed: dict[str, Any]


class FxProgram:
    """A torch.fx graph as a program of Lamina's ops: on tensors it computes, on traced values it records.

    graph_module: from Dynamo before AOTAutograd (functions of torch), from torch.export's training IR (overloads of
    ATen) or from torch.fx's symbolic trace. `unknown()` lists unsupported nodes, before anything runs.
    """

    def __init__(self, graph_module: GraphModule) -> None:
        self.graph_module = graph_module
        nodes = list(graph_module.graph.nodes)
        self.inputs = tuple(n.name for n in nodes if n.op == "placeholder")
        idle = _idle(nodes)
        self._nodes = [n for n in nodes if n not in idle]
        self.attributes = tuple(
            dict.fromkeys(
                str(n.target)
                for n in self._nodes
                if n.op == "get_attr" and isinstance(_attribute(graph_module, str(n.target)), torch.Tensor)
            )
        )
        #: The nodes with numbers by which the code decided, and their place in the order.
        self.reads = {n: i for n in self._nodes if (i := place_in_path(n)) is not None}
        #: The nodes with respect to which the graph itself asks for gradients.
        self.variables = variables_of(self._nodes)
        self._programs = {
            str(n.target): FxProgram(inner)
            for n in self._nodes
            if n.op in ("get_attr", "call_module")
            and isinstance(inner := _attribute(graph_module, str(n.target)), GraphModule)
        }

    def unknown(self) -> list[tuple[Node, str]]:
        """The unsupported nodes, including those of subgraphs, with the reason as text."""
        own = [(n, reason) for n in self._nodes if (reason := self._why_not(n))]
        return own + [pair for program in self._programs.values() for pair in program.unknown()]

    def nodes(self) -> list[Node]:
        """The calls, including those of subgraphs."""
        own = [n for n in self._nodes if n.op.startswith("call")]
        return own + [n for program in self._programs.values() for n in program.nodes()]

    def __call__(
        self,
        *values: Any,
        attributes: Mapping[str, Any] | None = None,
        compare: Callable[[int, Any], None] | None = None,
    ) -> FxResult:
        """Run the nodes. values: for the placeholders, in order. attributes: operands for the module's tensors by
        their dotted name; missing ones are the module's own, whose memory is shared. compare: gets the numbers by
        which the code decided, each with its place in the order, as soon as they are there.

        Raises TorchConversionError for the first unsupported node, and the errors of ops for their operands.
        """
        if len(values) != len(self.inputs):
            raise TorchConversionError(
                f"the graph has the inputs {list(self.inputs)}, got {len(values)} values"
            )
        run = FxRun(self, attributes or {}, compare=compare)
        if not self.differentiates():
            return run(values)
        return tensors(on_tape(lambda: run(values), values, run.attributes))  # type: ignore[no-any-return]

    def differentiates(self) -> bool:
        """Whether it asks for gradients, or one of its subgraphs does."""
        return bool(self.variables) or any(p.differentiates() for p in self._programs.values())

    def _why_not(self, node: Node) -> str:
        if node.op == "call_module":
            known = str(node.target) in self._programs
            return "" if known else f"calls the module {node.target}, whose graph is not part of this one"
        if node.op not in ("call_function", "call_method"):
            return ""
        if involved(node):
            gives = "gives" if is_complex(node) else "takes"
            return "" if knows(node) else f"{gives} complex numbers"
        if find(node) is None:
            return f"lamina.ops has no function {_plain_name(node)!r}"
        return ""


@cache
def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters


def _plain_name(node: Node) -> str:
    """The name of a function without the trailing underscore of its in-place form."""
    name = name_of(node)
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name


def find(node: Node) -> Callable[..., Any] | None:
    """The implementation of a node's function: a handler, a function of lamina.ops, a method, or itself, on plain
    numbers.
    """
    target: Any = node.target
    if (plain := written_operator(target)) is not None:
        return plain
    if not is_torch(target):
        handler = HANDLERS.get(name_of(node))
        if handler is not None and _is_another(target, handler):
            return None
        return handler or (target if _is_plain_python(target) else None)
    if (space := namespace(target)) not in ("", "aten", "torchvision", "prims", "higher_order"):
        return HANDLERS.get(f"{space}::{name_of(node)}")
    name = name_of(node)
    if name.startswith(_NUMPY) and callable(numpy_function := getattr(np, name.removeprefix(_NUMPY), None)):
        return partial(_of_numbers, numpy_function)
    for key in (name, _plain_name(node)):
        if key in HANDLERS:
            return HANDLERS[key]
    return _function(_plain_name(node), node)


def is_known(operator: Any) -> bool:
    """Whether one of PyTorch's operators has a counterpart."""
    return find(FxGraph().call_function(operator)) is not None


def _of_numbers(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """A NumPy function of numbers, which Dynamo keeps in its graphs. Raises TorchConversionError for tensors."""
    if any(map(is_operand, (*args, *kwargs.values()))):
        raise TorchConversionError(
            f"numpy.{function.__name__}: takes a tensor: call torch's function of the name"
        )
    return ops.operand(np.asarray(function(*args, **kwargs)))


def _function(name: str, node: Node) -> Callable[..., Any] | None:
    if node.op == "call_method" and hasattr(Operators, name) and not name.startswith("_"):
        found: Callable[..., Any] = getattr(Operators, name)
        return found
    for place in (ops, ops.special, Operators):
        if name in getattr(place, "__all__", ()) or (place is Operators and hasattr(place, name)):
            own = getattr(place, name)
            return own if callable(own) else None
    return None


def _is_another(target: Any, handler: Callable[..., Any]) -> bool:
    """Whether a function written in Python merely has the name of one of PyTorch's, for which a handler stands."""
    own = handler.__module__.partition(".")[0] == "lamina"
    place = (getattr(target, "__module__", None) or "").partition(".")[0]
    return own and isinstance(target, FunctionType) and place not in ("lamina", "torchvision", "torchaudio")


def _is_plain_python(target: Any) -> bool:
    """Python's operators and functions of numbers: they call the operators of their arguments."""
    return getattr(target, "__module__", "") in ("_operator", "operator", "math", "builtins")


def _place(devices: Iterable[Device]) -> Device | None:
    """The device of a program with these tensors: the GPU, if one is there; indices may be on the CPU."""
    found = dict.fromkeys(devices)
    return next((d for d in found if d.kind != "cpu"), next(iter(found), None))


class FxRun:
    """One run of a program: the result of each node, and the modes that nodes switch."""

    def __init__(
        self,
        program: FxProgram,
        attributes: Mapping[str, Any],
        outer: FxRun | None = None,
        compare: Callable[[int, Any], None] | None = None,
    ) -> None:
        self.program, self.attributes = program, attributes
        self.outer, self.compare = outer, compare
        self.values: dict[Node, Any] = {}
        self.held: dict[str, Cell] = {}
        self.device: Device | None = outer.device if outer else None
        self.selects: bool = outer.selects if outer else False
        self.with_gradient: bool = outer.with_gradient if outer else True
        self.autocast: Autocast = outer.autocast if outer else Autocast()

    def __call__(self, values: Sequence[Any]) -> FxResult:
        """The results of all nodes, with these values for the placeholders."""
        own = [v if isinstance(v, Cell) or not _is_tensor(v) else Cell(ops.operand(v)) for v in values]
        first = itertools.chain(map(read, own), self.attributes.values())
        self.device = self.device or _place(x.device for x in first if isinstance(x, Tensor))
        before = {
            n: (c, c.version) for n, c in zip(self.program.inputs, own, strict=True) if isinstance(c, Cell)
        }
        given = iter(own)
        outputs = None
        for node in self.program._nodes:
            if node.op == "placeholder":
                value = next(given)
                self.values[node] = ComplexCell.of(value) if is_complex(node) else value
            elif node.op == "output":
                outputs = self._of(node.args[0])
                if self.selects:
                    outputs = taken(outputs)
            else:
                self.values[node] = found = self.step(node)
                self.selects |= isinstance(found, Selection)
            if self.compare is not None and node in self.program.reads:
                self.compare(self.program.reads[node], read(self.values[node]))
            if node in self.program.variables:
                base = node.args[0] if node.args else None
                self.values[node] = as_variable(
                    node, self.values[node], self.values.get(base) if isinstance(base, Node) else None
                )
        changed = {n: c.read() for n, (c, version) in before.items() if c.version != version}
        changed |= {n: c.read() for n, c in self.held.items() if c.version}
        return FxResult(outputs if self.outer else read(outputs), changed)

    def step(self, node: Node) -> Any:
        """The result of one node, whose arguments have theirs in `values`: tensors in cells."""
        if node.op == "get_attr":
            value = self._attribute(str(node.target))
            return ComplexCell.of(value) if isinstance(value, Cell) and is_complex(node) else value
        args, kwargs = self._of(node.args), self._of(node.kwargs)
        if node.op == "call_module":
            return self._inner(self.program._programs[str(node.target)], args)
        function = find(node)
        if function is None and not (involved(node) and knows(node)):
            raise TorchConversionError(f"{full_name(node)}: {self.program._why_not(node)}{where(node)}")
        try:
            run = partial(self._called if self.with_gradient else self._called_past, node, function)
            if self.selects and has_selections(args, kwargs):
                return of_selections(node, args, kwargs, run)
            return called(node, args, kwargs, run) if involved(node) else run(args, kwargs)
        except Exception as error:
            error.add_note(f"in {full_name(node)}, node {node.name!r}{where(node)}")
            raise

    def _called_past(self, node: Node, function: Any, args: Any, kwargs: Any) -> Any:
        """A call within `no_grad`."""
        with past_derivatives((args, kwargs)):
            return self._called(node, function, args, kwargs)

    def _called(self, node: Node, function: Any, args: Any, kwargs: Any) -> Any:
        target: Any = node.target
        if self.autocast.active:
            args, kwargs = self.autocast.cast(node, args, kwargs)
        args, kwargs = in_one_type(node, *as_called(node, function, args, kwargs))
        if (plain := written_operator(target)) is not None:
            return self._in_place(args[0], lambda: plain(*read(args)), lambda: target(*read(args)))
        if not is_torch(target) and function is target:
            found = target(*read(args), **read(kwargs))
            return self._made(found)
        compute = partial(self._computed, node, function, args, kwargs)
        if turns(node) and isinstance(args[0], Cell):
            args[0].turn(lambda whole: read(self._computed(node, function, [Cell(whole), *args[1:]], kwargs)))
            return args[0]
        if _is_in_place(node, args, kwargs):
            return self._in_place(
                kwargs.get("out", kwargs.get("input", args[0] if args else None)), compute, compute
            )
        if args and isinstance(args[0], Cell) and is_view(node) and function not in ALIASES:
            return self._view(node, function, args, kwargs)
        return self._made(compute())

    def _computed(self, node: Node, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        if function in HANDLERS.values():
            given = {k: v for k, v in named(node, args, kwargs).items() if k != "out"}
            return function(TorchCall(node, given, self.device, self._inner, self))
        given = read({k: v for k, v in kwargs.items() if k != "out"})
        return _applied(node, function, read(args), given, self.device)

    def _in_place(self, cell: Any, compute: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
        """Write a result into the tensor that it is computed from; numbers have no memory to write."""
        if not isinstance(cell, Cell):
            return otherwise()
        found = compute()
        if not isinstance(found, Cell):
            cell.write(found if self.with_gradient else _constant(found))
        return cell

    def _view(self, node: Node, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        base, rest = args[0], args[1:]

        def get(whole: Any) -> Any:
            return read(self._computed(node, function, [Cell(whole), *rest], kwargs))

        found = get(base.read())
        if isinstance(found, (tuple, list)):
            return [View(base, partial(_part, get, i)) for i in range(len(found))]
        if found is base.read():
            return base
        return (
            View(base, get) if is_operand(found) and found.dtype == base.read().dtype else self._made(found)
        )

    def _made(self, found: Any) -> Any:
        """New tensors in their own cells."""
        if isinstance(found, Operand):
            return Cell(found if self.with_gradient else _constant(found))
        if isinstance(found, tuple) and hasattr(found, "_fields"):
            return type(found)(*map(self._made, found))
        if isinstance(found, (tuple, list)):
            return type(found)(map(self._made, found))
        return found

    def _inner(self, program: FxProgram, args: Sequence[Any], **modes: Any) -> Any:
        run = FxRun(program, self.attributes, self)
        for name, mode in modes.items():
            setattr(run, name, mode)
        return run(args).outputs

    def _of(self, arg: Any) -> Any:
        """An argument of a node with its nodes replaced by their results."""
        if isinstance(arg, Node):
            return self.values[arg]
        if isinstance(arg, slice):
            return slice(self._of(arg.start), self._of(arg.stop), self._of(arg.step))
        if isinstance(arg, Mapping):
            return {k: self._of(v) for k, v in arg.items()}
        if isinstance(arg, tuple) and hasattr(arg, "_fields"):
            return type(arg)(*map(self._of, arg))
        if isinstance(arg, (tuple, list)):
            return (tuple if isinstance(arg, tuple) else list)(map(self._of, arg))
        return arg

    def _attribute(self, name: str) -> Any:
        if name in self.program._programs:
            return self.program._programs[name]
        if name in self.held:
            return self.held[name]
        held = (
            self.attributes[name] if name in self.attributes else _attribute(self.program.graph_module, name)
        )
        if not _is_tensor(held):
            return held
        value = held if isinstance(held, Operand) else as_tensor(real_form(held.detach()))
        return self.held.setdefault(name, Cell(value))


def _part(get: Callable[[Any], Any], index: int, whole: Any) -> Any:
    return get(whole)[index]


def _constant(found: Any) -> Any:
    """Without a gradient."""
    return ops.stop_gradient(found) if is_operand(found) and found.dtype.is_float else found


def _applied(node: Node, function: Callable[..., Any], args: Any, kwargs: Any, device: Device | None) -> Any:
    """A function of lamina.ops or a method on PyTorch's arguments: matched by name, without storage options.

    Tensors created without operands are made on the program's device: PyTorch also indexes by CPU tensors.
    """
    known = _parameters(function)
    takes_any = any(p.kind in (p.VAR_KEYWORD,) for p in known.values())
    most = sum(p.kind is p.POSITIONAL_OR_KEYWORD for p in known.values())
    args = list(args)
    kwargs = {k: v for k, v in defaults(node, len(args)).items() if k in known} | dict(kwargs)
    spread = any(p.kind is p.VAR_POSITIONAL for p in known.values())
    if spread:  # x.flip(dims=(1, 2)) is x.flip(1, 2)
        args += [kwargs.pop(a.name) for s in schemas(node)[:1] for a in s.arguments[1:2] if a.name in kwargs]
    if len(args) > most and not spread:
        names = [a.name for s in schemas(node)[:1] for a in s.arguments]
        kwargs |= dict(zip(names[most:], args[most:], strict=False))
        args = args[:most]
    if "self" in kwargs and not args:
        args = [kwargs.pop("self")]
    if "inplace" in known:  # the result is written by `_in_place`
        args = args[: [*known].index("inplace")]
        kwargs.pop("inplace", None)
    kwargs = {
        k: dtype_of(v) if isinstance(v, torch.dtype) else v
        for k, v in kwargs.items()
        if takes_any or k in known or k not in STORAGE or (k == "dtype" and v is not None)
    }
    if "device" in known:
        kwargs["device"] = device
    return function(*(dtype_of(a) if isinstance(a, torch.dtype) else a for a in args), **kwargs)


def _is_in_place(node: Node, args: Any, kwargs: Any) -> bool:
    name = name_of(node)
    if kwargs.get("out") is not None:
        return True
    if name.endswith("_") and not name.endswith("__") and not name.startswith("_"):
        return True
    if kwargs.get("inplace") is True:
        return True
    if is_functional(node):
        try:
            return named(node, args, kwargs).get("inplace") is True
        except TypeError:
            return False
    return False


def _idle(nodes: Iterable[Node]) -> set[Node]:
    """What only checks: calls of modules with unused results (torch.export's checks of its inputs), and assertions of
    tensors' numbers, with the numbers that nothing else reads.
    """
    found: set[Node] = set()
    for node in nodes:
        if node.op == "call_module":
            is_idle = not node.users
        elif node.op.startswith("call") and (
            name_of(node) in ("item", "_local_scalar_dense") or is_number(node)
        ):
            is_idle = is_only_checked(node)
        else:
            is_idle = not found.isdisjoint(node.all_input_nodes)
        if is_idle:
            found.add(node)
    return found


def _is_tensor(value: Any) -> bool:
    return isinstance(value, (Operand, torch.Tensor)) or hasattr(value, "__dlpack__")


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name, None)
    return module


def where(node: Node) -> str:
    """The user's line that a node comes from, as text; "" if unknown."""
    trace = node.meta.get("stack_trace") or ""
    lines = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    return f" ({lines[-1]})" if lines else ""
