"""A Lamina network as a PyTorch module computed by graphs of torch.fx, one for each mode."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from lamina import _tree
from lamina.convert.free_axes import Free, FreeAxes
from lamina.convert.torch.node import TorchConversionError
from lamina.convert.torch.writing import Constants, FxWriter
from lamina.graph import Graph, Value
from lamina.graph.ir.capture import ConstantCapture
from lamina.graph.passes.canonicalize import common_subexpressions, drop_identities, prune_outputs
from lamina.nn import Module
from lamina.nn.random import Generator
from lamina.ops.core import Operand, operand, recording
from lamina.spec import Spec
from lamina.tensors import Tensor, array_spec

#: Which modules train, in the order of `named_modules`.
Modes: TypeAlias = tuple[bool, ...]


class WrittenPart(torch.nn.Module):
    """A Lamina module's parameters and buffers, under the same names; its function is part of the whole network's
    graphs.
    """

    def __init__(self, label: str) -> None:
        super().__init__()
        self.label = label

    def forward(self, *inputs: Any, **options: Any) -> Any:
        """Only the whole network computes."""
        raise TypeError(f"{self.label} is part of a network that was written as a graph: call the network")

    def _get_name(self) -> str:
        return self.label


@dataclass(frozen=True)
class Signature:
    """The signature of a network.

    arguments: the names of forward's positional arguments. inputs: their nesting; names: of the tensors, and
    shapes, with the name of a free axis in place of its size.
    """

    arguments: tuple[str, ...]
    inputs: _tree.Structure
    names: tuple[str, ...]
    shapes: tuple[tuple[int | str, ...], ...]

    def tensors(self, label: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """The tensors of a call. Raises TypeError for another nesting, ValueError for other sizes."""
        named = inspect.Signature(
            [inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in self.arguments]
        )
        found, structure = _tree.flatten(named.bind(*args, **kwargs).args, open_dataclasses=True)
        if structure != self.inputs:
            raise TypeError(f"{label}: takes inputs nested as {self.inputs}, got {structure}")
        sizes: dict[str, int] = {}
        for name, x, shape in zip(self.names, found, self.shapes, strict=True):
            own = tuple(x.shape)
            fits = len(own) == len(shape) and all(
                n == (sizes.setdefault(m, n) if isinstance(m, str) else m)
                for n, m in zip(own, shape, strict=True)
            )
            if not fits:
                free = ", ".join(map(str, shape))
                raise ValueError(
                    f"{label}: {name} has shape {list(own)}, and the graph was made for [{free}]; write the network "
                    "with free axes: to_torch(network, *examples, dynamic=…)"
                )
        return found


@dataclass(frozen=True)
class WrittenGraph:
    """The network's function in one mode.

    module: of tensors under `names` -> (outputs, new values of the buffers `changed`). names: states, then inputs,
    then constants. outputs: the nesting of the outputs.
    """

    module: torch.fx.GraphModule
    names: tuple[str, ...]
    outputs: _tree.Structure
    changed: tuple[str, ...]


class WrittenNetwork(WrittenPart):
    """A network computed by a graph of PyTorch's functions for each mode.

    graphs: the GraphModule of each mode, whose `code` is the network as PyTorch code.
    """

    def __init__(self, label: str, signature: Signature) -> None:
        super().__init__(label)
        self.signature = signature
        self._graphs: dict[Modes, WrittenGraph] = {}

    @property
    def graphs(self) -> dict[Modes, torch.fx.GraphModule]:
        """The graphs by the modules' modes."""
        return {modes: graph.module for modes, graph in self._graphs.items()}

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """The network's outputs, in its nesting; in training mode its buffers are updated.

        Raises TypeError and ValueError for other inputs, RuntimeError for modes of its modules that have no graph.
        """
        inputs = self.signature.tensors(self.label, args, kwargs)
        modes = tuple(part.training for part in self.modules())
        graph = self._graphs.get(modes)
        if graph is None:
            raise RuntimeError(
                f"{self.label}: there are graphs for training, inference and the modes that the network was written "
                "in, not for this mixture of modules that train and that do not: write it in these modes"
            )
        given = dict(zip(self.signature.names, inputs, strict=True))
        held = [given[n] if n in given else _tensor(self, n) for n in graph.names]
        outputs, moved = graph.module(*held)
        with torch.no_grad():
            for name, value in zip(graph.changed, moved, strict=True):
                _tensor(self, name).copy_(value)
        return _tree.unflatten(graph.outputs, outputs)


def _tensor(module: torch.nn.Module, name: str) -> Any:
    path, _, own = name.rpartition(".")
    return getattr(module.get_submodule(path), own)


def write_network(
    network: Module,
    made: WrittenNetwork,
    examples: Sequence[Any],
    dynamic: Free | None,
) -> None:
    """Add the graphs to a module that has the network's parameters and buffers.

    Raises TorchConversionError for ops without a PyTorch function, naming op, module and line.
    """
    program = _WritableNetwork.of(network, made.signature, examples)
    axes = FreeAxes.of("to_torch", dict(zip(made.signature.names, program.specs, strict=True)), dynamic)
    constants = Constants()
    parts = list(network.modules())
    own = tuple(part.training for part in parts)
    for modes in dict.fromkeys([own, (True,) * len(parts), (False,) * len(parts)]):
        with _in_modes(parts, modes):
            made._graphs[modes] = program.written(axes, constants)
    for name, value in constants.tensors.items():
        made.register_buffer(name, value, persistent=False)


def signature_of(network: Module, examples: Sequence[Any], dynamic: Free | None) -> Signature:
    """The network's signature, from examples of its inputs."""
    leaves, structure = _tree.flatten(tuple(examples), _is_spec, open_dataclasses=True)
    names = tuple(_plain(n) for n in _tree.names(structure, ""))
    specs = {n: _spec(x) for n, x in zip(names, leaves, strict=True)}
    axes = FreeAxes.of("to_torch", specs, dynamic)
    shapes = [
        tuple(axes.of_input(name).get(a, n) for a, n in enumerate(spec.shape)) for name, spec in specs.items()
    ]
    return Signature(_arguments(network, len(examples)), structure, names, tuple(shapes))


def _arguments(network: Module, count: int) -> tuple[str, ...]:
    """The names of forward's first arguments, numbered for *args. Raises TypeError if it takes fewer."""
    signature = inspect.signature(network.forward)
    signature.bind(*range(count))
    found: list[str] = []
    for name, parameter in signature.parameters.items():
        several = parameter.kind is parameter.VAR_POSITIONAL
        found += [f"{name}_{i}" for i in range(count - len(found))] if several else [name]
    return tuple(found[:count])


def _plain(name: str) -> str:
    """[0]['mask'] as input_0_mask; the only input is "input"."""
    words = "".join(c if c.isalnum() else " " for c in name).split()
    return "_".join(["input", *words])


def _is_spec(x: Any) -> bool:
    return isinstance(x, Spec)


def _spec(x: Any) -> Spec:
    if isinstance(x, Spec):
        return x.open
    return array_spec(x.detach() if isinstance(x, torch.Tensor) else operand(x, "to_torch")).open


@contextmanager
def _in_modes(parts: Sequence[Module], modes: Modes) -> Iterator[None]:
    """Within the block each module has its mode."""
    before = [part.training for part in parts]
    for part, mode in zip(parts, modes, strict=True):
        part.training = mode
    try:
        yield
    finally:
        for part, mode in zip(parts, before, strict=True):
            part.training = mode


# ---- traces


class _NetworkCapture(ConstantCapture):
    """Records a whole network: its own tensors are inputs, others constants."""

    def __init__(self, own: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.own = {id(x): Value(x.spec, name=name) for name, x in own.items()}
        self.tensors.update({id(x): x for x in own.values()})
        self.inputs.update(self.own)

    def knows(self, x: Operand) -> bool:
        """Whether the values of a tensor are known already: those of unwritten constants."""
        return id(x) not in self.own and super().knows(x)


@dataclass(frozen=True)
class _WritableNetwork:
    """The traced function: the network on inputs of these specs. held: its parameters and buffers; states: of the
    random generators, which PyTorch's functions do not read."""

    network: Module
    structure: _tree.Structure
    names: tuple[str, ...]
    specs: list[Spec]
    held: dict[str, Tensor]
    states: list[Generator]

    @classmethod
    def of(cls, network: Module, signature: Signature, examples: Sequence[Any]) -> _WritableNetwork:
        leaves, structure = _tree.flatten(tuple(examples), _is_spec, open_dataclasses=True)
        held = {**dict(network.named_parameters()), **dict(network.named_buffers())}
        return cls(
            network, structure, signature.names, [_spec(x) for x in leaves], held, network.generators()
        )

    def traced(self, specs: Sequence[Spec]) -> tuple[Graph, _tree.Structure, list[str]]:
        """The graph of (states of generators, held, inputs) -> (outputs, new values of buffers); the nesting of the
        outputs; which buffers change. Raises TorchConversionError for other writes of the network."""
        states = {f"generator {i}": g.state for i, g in enumerate(self.states)}
        capture = _NetworkCapture({**states, **self.held})
        inputs = [Value(s.open, name=n) for s, n in zip(specs, self.names, strict=True)]
        with recording(capture), capture.attributes_apart(inputs):
            results, nesting = _tree.flatten(
                self.network(*_tree.unflatten(self.structure, inputs)), open_dataclasses=True
            )
            outputs = [capture.read(operand(y)) for y in results]
        del results
        capture.leave_behind()
        parameters = {id(p) for p in self.network.parameters()}
        buffers = {id(x): n for n, x in self.held.items() if id(x) not in parameters}
        others = set(capture.written) - set(buffers) - {id(g.state) for g in self.states}
        if others:
            written = capture.tensors[others.pop()]
            raise TorchConversionError(
                f"to_torch: {type(self.network).__name__} writes to a tensor {written.spec} that is none of its "
                "buffers: make it one (register_buffer)"
            )
        changed = [key for key in capture.written if key in buffers]
        values = [*outputs, *(capture.written[key] for key in changed)]
        graph = Graph([*capture.own.values(), *inputs], values, type(self.network).__name__)
        return graph, nesting, [buffers[key] for key in changed]

    def written(self, axes: FreeAxes, constants: Constants) -> WrittenGraph:
        """The graph of the mode that the network is in."""
        found: list[Any] = []

        def traced(specs: Sequence[Spec]) -> Graph:
            graph, *found[:] = self.traced(specs)
            return graph

        graphs = axes.traces(type(self.network).__name__, traced, _tidy, TorchConversionError)
        nesting, changed = found
        writer = FxWriter(constants)
        held = [writer.placeholder(n) for n in (*self.held, *self.names)]
        writer.device = held[-1].device if self.names else held[0].device if held else "cpu"
        count = len(self.states)
        states = [writer._constant(g.state.numpy()) for g in self.states]
        free = [
            dim
            for i, name in enumerate(self.names)
            for dim in axes.dims(
                name,
                held[len(self.held) + i],
                [g.inputs[count + len(self.held) + i].shape for g in graphs],
            )
        ]
        made = writer.write(graphs, [*states, *held], free)
        total = len(made) - len(changed)
        module = writer.module((tuple(made[:total]), tuple(made[total:])))
        return WrittenGraph(module, tuple(writer.names), nesting, tuple(changed))


def _tidy(graphs: Sequence[Graph]) -> list[Graph]:
    """Without dead nodes and common subexpressions."""
    return [prune_outputs(common_subexpressions(drop_identities(g))) for g in graphs]
