"""`torch.compile(model, backend="lamina")`: a network inside an unchanged PyTorch program, run by Lamina.

Dynamo passes its graph of torch functions before AOTAutograd decomposes it. The graph becomes one of Lamina's
ops with its own gradients, compiled for each set of sizes; unsupported parts fall back to PyTorch.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph as FxGraph
from torch.fx import GraphModule, Node

from lamina.backends import NoKernel
from lamina.convert.torch.casts import with_casts
from lamina.convert.torch.compiled import CompiledGraph
from lamina.convert.torch.complexes import is_complex
from lamina.convert.torch.frames import take_recurrent_layers
from lamina.convert.torch.interpreter import FxProgram
from lamina.convert.torch.levels import flattened, levels
from lamina.convert.torch.memory import device_of_tensors, overlaps, real_form
from lamina.convert.torch.opening import opened
from lamina.convert.torch.partition import (
    example,
    is_region,
    is_sized_within,
    is_without_gradient,
    left_with,
    memory_of,
    note_gradient_modes,
    split,
    writer,
    writes,
    written,
)
from lamina.convert.torch.recording import record
from lamina.convert.torch.report import GraphNotes
from lamina.convert.torch.sharing import ancestors, shared_roots
from lamina.graph import constant
from lamina.graph.run.call_tuning import CallTuner
from lamina.graph.run.collector import collector_paused
from lamina.graph.run.programs import MOST, Programs
from lamina.graph.run.tuning import TuningState
from lamina.spec import policy
from lamina.tensors import tensor

log = logging.getLogger("lamina.convert")
#: Errors for graphs that cannot be compiled unchanged.
_REFUSALS = (TypeError, ValueError, NotImplementedError, NoKernel, IndexError, KeyError, AttributeError)
#: The reason why a node that could be compiled falls back to PyTorch.
_DRAWN = "shares memory, results or sizes with what PyTorch runs"
#: The reason why a call falls back whose graph is compiled for other calls.
_SHARED = "an argument that it writes shares memory with another argument"
_OPTIONS = ("max_programs", "max_program_bytes", "tuning")


def lamina(
    graph_module: GraphModule,
    example_inputs: Sequence[Any],
    *,
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> GraphFunction:
    """The backend: returns a replacement for one of Dynamo's graphs.

    mode: as for PyTorch's own backend; on a GPU each pass is one CUDA graph in all of them, and "max-autotune" times
    candidates for each kernel (`lamina.policy(algorithm="fastest")`).
    options: max_programs, max_program_bytes: how many programs for different sizes are cached, and in how much
    memory, as for `lamina.jit`. tuning: whether unmeasured plans are autotuned between forward passes, as there
    (default True); `.tuning` of the result tells its progress. The policy (`lamina.policy`) at the first call holds
    for its program.

    Raises ValueError for other options.
    """
    given = dict(options or {})
    if unknown := sorted(set(given) - set(_OPTIONS)):
        raise ValueError(f"backend='lamina': unknown options {unknown}; there are {', '.join(_OPTIONS)}")
    tuner = CallTuner("" if given.pop("tuning", True) else "switched off")
    tuned = (mode or "").startswith("max-autotune")
    return GraphFunction(
        with_casts(opened(flattened(graph_module))),
        **given,
        policies={"algorithm": "fastest"} if tuned else {},
        tuner=tuner,
    )


class GraphFunction:
    """A graph of torch.fx as a function: compiled for each set of sizes, or in parts if some nodes are unsupported.

    left: the nodes that PyTorch runs, with the reason. notes: the outcome for it and all its parts.
    """

    def __init__(
        self,
        graph_module: GraphModule,
        *,
        max_programs: int = MOST,
        max_program_bytes: int | str | None = None,
        policies: Mapping[str, Any] | None = None,
        notes: GraphNotes | None = None,
        tuner: CallTuner | None = None,
    ) -> None:
        self.graph_module = graph_module
        self._tuner = tuner or CallTuner("switched off")
        self.notes = notes or GraphNotes()
        self._policies = dict(policies or {})
        self._options: dict[str, Any] = {
            "max_programs": max_programs,
            "max_program_bytes": max_program_bytes,
            "policies": policies,
            "tuner": self._tuner,
        }
        self._interface = _Interface.of(graph_module)
        self._program = FxProgram(_giving(graph_module, self._interface.hidden))
        self._programs: Programs[CompiledGraph] = Programs(
            max_programs, max_program_bytes, "backend='lamina'"
        )
        self._attributes = [_attribute(graph_module, name) for name in self._program.attributes]
        self._only: CompiledGraph | None = None  # if no size is symbolic
        self._said = False
        #: Whether nothing in it has a gradient, so that parameters may be written.
        self._without_gradient = is_without_gradient(graph_module)
        #: The arguments that programs take. Floats are among them until their values must be known.
        self._operands = self._interface.operands
        self.left: dict[str, str] = {n.name: reason for n, reason in self._program.unknown()}
        self.instead: Callable[..., Any] | None = None
        if not self._interface.results and not any(writes(n) for n in graph_module.graph.nodes):
            self.instead = graph_module.forward  # views and numbers alone
        elif self.left:
            self._split()
        else:
            self.notes.programs.append(self._program)

    @property
    def tuning(self) -> TuningState:
        """The progress of tuning between calls, over all its parts."""
        return self._tuner.state

    def __call__(self, *args: Any) -> Any:
        """The graph's outputs, in its nesting."""
        if self.instead is not None:
            return self.instead(*args)
        compiled = self._only
        if compiled is None or torch.is_grad_enabled() != self._with_gradient:
            compiled = self._find(args)
            if compiled is None:
                assert self.instead is not None
                return self.instead(*args)
        shape = self._interface
        given: Sequence[Any] = args
        if self._attributes or len(self._operands) != len(args):
            given = [*[args[i] for i in self._operands], *self._attributes]
        given = list(map(real_form, given)) if shape.takes_complex else given
        if compiled.written and overlaps(given, compiled.written):
            self._say_once(_SHARED)
            return self.graph_module.forward(*args)
        results = compiled(given)
        if shape.complex_results:
            results = [
                torch.view_as_complex(y) if i in shape.complex_results else y for i, y in enumerate(results)
            ]
        return results if shape.plain else shape.assembled(results, args)

    def _find(self, args: Sequence[Any]) -> CompiledGraph | None:
        """The program for these numbers among the arguments; None if the graph cannot be compiled."""
        grads = torch.is_grad_enabled() and not self._without_gradient
        numbers = [i for i in range(len(args)) if i not in self._operands]
        key = grads, *[args[i].item() if i in self._interface.wrapped else args[i] for i in numbers]
        found = self._programs.find(key)
        if found is None:
            try:
                with collector_paused(), torch.no_grad(), policy(**self._policies):
                    found = self._compile(args, grads)
            except Exception as error:
                if self._operands != self._interface.tensors:  # then a program for each value of its floats
                    self._operands, self._only = self._interface.tensors, None
                    return self._find(args)
                if not isinstance(error, _REFUSALS):
                    raise
                self._refuse(error)
                return None
            self._programs.add(key, found)
        if not numbers:
            self._only, self._with_gradient = found, torch.is_grad_enabled()
        return found

    def _compile(self, args: Sequence[Any], grads: bool) -> CompiledGraph:
        whole = [
            real_form(x) if isinstance(x, torch.Tensor) else x for x in (*self._held(args), *self._attributes)
        ]
        tensors = [x for x in whole if isinstance(x, torch.Tensor)]
        device = device_of_tensors(tensors)
        needs = [grads and x.requires_grad for x in tensors]
        recorded = record(self._program, whole, self._interface.results, needs)
        places = [i for i, x in enumerate(whole) if isinstance(x, torch.Tensor)]
        for i in recorded.written:
            if needs[i]:
                error = ValueError("it writes to an argument that needs a gradient")
                names = [*self._program.inputs, *self._program.attributes]
                error.add_note(f"node {writer(self.graph_module, names[places[i]])!r}")
                raise error
        stays = [i for i, x in enumerate(tensors) if _stays(x) or i >= len(self._operands)]
        unsaved = [k for k, i in enumerate(places) if i in self._interface.unsaved]
        return CompiledGraph(recorded, tensors, stays, device, unsaved, self._tuner)

    def _held(self, args: Sequence[Any]) -> list[Any]:
        """The arguments with wrapped numbers as constants, or as tensors if they are operands: in float64 only with
        float64 tensors, because a Python number does not widen its operands.
        """
        wrapped, operands = self._interface.wrapped, self._operands
        wide = any(args[i].dtype == torch.float64 for i in self._interface.tensors)
        kind = torch.float64 if wide else torch.float32
        return [
            x if i not in wrapped else x.to(kind) if i in operands else constant(tensor(x.numpy()))
            for i, x in enumerate(args)
        ]

    # ---- fallback to PyTorch
    def _refuse(self, error: BaseException) -> None:
        """Leave the node that could not be compiled to PyTorch, or the whole graph if the node is unknown."""
        named = [m[1] for note in getattr(error, "__notes__", ()) if (m := re.search(r"node '(\w+)'", note))]
        names = {n.name for n in self.graph_module.graph.nodes}
        reason = str(error).partition("\n")[0]
        culprit = next((n for n in named if n in names), None)
        self.notes.programs.remove(self._program)
        if culprit is None:
            _say(self.notes.left.add_graph(len(names), reason))
            self.instead = self.graph_module.forward
        else:
            self.left[culprit] = reason
            self._split()

    def _split(self) -> None:
        note_gradient_modes(self.graph_module)
        nodes = {n.name: n for n in self.graph_module.graph.nodes}
        for line in self.notes.left.add((nodes[n], reason) for n, reason in self.left.items() if n in nodes):
            _say(line)
        within = {n.name for stretch in levels(self.graph_module) for n in stretch}
        left = left_with(self.graph_module, within | set(self.left))
        calls = [n.name for n in nodes.values() if n.op.startswith("call")]
        left = set(calls) if is_sized_within(self.graph_module) else left
        self.notes.left.add((nodes[n], _DRAWN) for n in sorted(left - set(self.left)) if n in nodes)
        if all(name in left for name in calls) and not any(map(is_region, nodes.values())):
            self.instead = self.graph_module.forward
        else:
            self.instead = split(self.graph_module, left, self._part)

    def _say_once(self, reason: str) -> None:
        """Note that PyTorch runs calls of the whole graph, which stays compiled for others."""
        if not self._said:
            _say(self.notes.left.add_graph(len(self.graph_module.graph.nodes), reason))
        self._said = True

    def _part(self, part: GraphModule) -> GraphFunction:
        return GraphFunction(part, **self._options, notes=self.notes)


def _say(line: str) -> None:
    log.warning("backend='lamina': PyTorch runs %s", line)


class _Interface:
    """The interface of a graph: which arguments are tensors and numbers, where each output comes from.

    results: the output indices of the tensors that are computed here; after the outputs come `hidden`
    ones, of which several outputs are views. The other outputs are arguments, views of them or of results, and
    numbers, which PyTorch computes itself (`rest`).
    """

    def __init__(self, graph_module: GraphModule) -> None:
        nodes = list(graph_module.graph.nodes)
        inputs = [n for n in nodes if n.op == "placeholder"]
        #: The user's numbers that Dynamo wraps in tensors, because they may change from call to call.
        self.wrapped = [i for i, n in enumerate(inputs) if _is_wrapped(n)]
        self.tensors = [
            i for i, n in enumerate(inputs) if isinstance(example(n), torch.Tensor) and i not in self.wrapped
        ]
        floats = all(example(inputs[i]).dtype.is_floating_point for i in self.wrapped)
        self.operands = sorted([*self.tensors, *self.wrapped]) if floats else self.tensors
        kept = _kept(nodes)
        #: The tensors that PyTorch's autograd would not save for the backward pass.
        self.unsaved = {i for i in self.tensors if memory_of(example(inputs[i])) not in kept}
        given = nodes[-1].args[0]
        self.outputs: list[Any] = list(given) if isinstance(given, (tuple, list)) else [given]
        shared = {memory_of(example(n)) for n in nodes if n.op in ("placeholder", "get_attr")}
        computed = [isinstance(x, Node) and _is_new(x, shared) for x in self.outputs]
        seen_through = shared_roots(
            [x for x, own in zip(self.outputs, computed, strict=True) if own], nodes, shared
        )
        views = [
            own and seen_through.get(x, x) is not x for x, own in zip(self.outputs, computed, strict=True)
        ]
        roots = list(dict.fromkeys(seen_through.values()))
        self.hidden = [r for r in roots if r not in self.outputs]
        self.results = [i for i, own in enumerate(computed) if own and not views[i]]
        self.results += range(len(self.outputs), len(self.outputs) + len(self.hidden))
        self.single = not isinstance(given, (tuple, list))
        self.plain = len(self.results) == len(self.outputs) and not self.single and not any(views)
        self.others = [i for i, own in enumerate(computed) if not own or views[i]]
        everything = [*self.outputs, *self.hidden]
        #: Complex tensors go in and come out as real ones [..., 2] over the same memory.
        self.takes_complex = any(is_complex(n) for n in nodes if n.op in ("placeholder", "get_attr"))
        self.complex_results = {k for k, i in enumerate(self.results) if is_complex(everything[i])}
        self.roots = [everything.index(r) for r in roots]
        self.rest = (
            _rest(graph_module, [self.outputs[i] for i in self.others], roots) if self.others else None
        )

    @classmethod
    def of(cls, graph_module: GraphModule) -> _Interface:
        """The interface of a graph."""
        return cls(graph_module)

    def assembled(self, results: Sequence[torch.Tensor], args: Sequence[Any]) -> Any:
        """The outputs in their order."""
        made: list[Any] = [*self.outputs, *self.hidden]
        for i, y in zip(self.results, results, strict=True):
            made[i] = y
        if self.rest is not None:
            for i, y in zip(self.others, self.rest(*args, *(made[i] for i in self.roots)), strict=True):
                made[i] = y
        return made[0] if self.single else tuple(made[: len(self.outputs)])


def _is_wrapped(node: Node) -> bool:
    """Whether an input is a number wrapped in a host tensor, which the graph only reads by item()."""
    seen = example(node)
    if not (isinstance(seen, torch.Tensor) and seen.ndim == 0 and seen.device.type == "cpu" and node.users):
        return False
    return all(n.op == "call_method" and n.target == "item" for n in node.users)


def _is_new(node: Node, shared: set[int | None]) -> bool:
    """Whether a node's result is a tensor with its own memory."""
    seen = example(node)
    return node.op.startswith("call") and isinstance(seen, torch.Tensor) and memory_of(seen) not in shared


def _kept(nodes: Sequence[Node]) -> set[int | None]:
    """The memory read by calls whose results need gradients: autograd may save these tensors for the
    backward pass."""
    found: set[int | None] = set()
    for node in nodes:
        seen = example(node)
        leaves = seen if isinstance(seen, (tuple, list)) else [seen]
        if any(not isinstance(y, torch.Tensor) or y.requires_grad for y in leaves):
            found |= {memory_of(example(x)) for x in node.all_input_nodes} - {memory_of(seen)}
    return found


def _rest(graph_module: GraphModule, outputs: Sequence[Any], roots: Sequence[Node]) -> GraphModule:
    """The graph of the outputs that are only views of arguments, or of tensors (`roots`) passed after the arguments.

    In-place writes have been done by then.
    """
    graph = FxGraph()
    copies: dict[Node, Any] = {}
    needed = ancestors(outputs, roots)
    inputs = [n for n in graph_module.graph.nodes if n.op == "placeholder"]
    for node in inputs:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    for node in roots:
        copies[node] = graph.placeholder(f"root_{node.name}")
    for node in graph_module.graph.nodes:
        if node.op == "output":
            graph.output(torch.fx.node.map_arg(tuple(outputs), copies.__getitem__))
        elif node in needed and node not in copies:
            target = written(node)
            copies[node] = graph.node_copy(node, copies.__getitem__) if target is None else copies[target]
    return GraphModule(graph_module, graph)


def _giving(graph_module: GraphModule, more: Sequence[Node]) -> GraphModule:
    """The graph with more outputs after its own."""
    if not more:
        return graph_module
    graph, copies = FxGraph(), dict[Node, Node]()
    outputs = graph.graph_copy(graph_module.graph, copies)
    own = list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]
    graph.output((*own, *(copies[n] for n in more)))
    return GraphModule(graph_module, graph)


def _stays(x: torch.Tensor) -> bool:
    """Whether a tensor is a parameter or a buffer: Dynamo marks those."""
    return isinstance(x, torch.nn.Parameter) or getattr(x, "_dynamo_static_input_type", None) is not None


def _attribute(module: Any, path: str) -> Any:
    for name in path.split("."):
        module = getattr(module, name)
    return module


# Dynamo's frames with recurrent layers are passed to this backend, even if other backends refused them.
take_recurrent_layers(lamina)
