"""A training step as one compiled graph: forward, loss, gradients, clipping, optimizer.

Parameters, optimizer state, buffers, random state and loss scale are inputs that the graph updates in place;
the learning rate, the network's inputs and the targets are ordinary inputs. One program is compiled per structure,
shapes and dtypes of these, all of them on the same state.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lamina import _tree, ops
from lamina._tree import Structure
from lamina.graph import Executable, Graph, Value, compile, gradients, trace
from lamina.graph.planning.rematerialize import as_bytes
from lamina.nn import Module
from lamina.nn.module import mode_version
from lamina.nn.parameter import become, standing_in
from lamina.optim import Optimizer
from lamina.runtime import Device, device, human_bytes, renew_after_fork
from lamina.spec import DType, Spec, current_policy, float32, policy
from lamina.spec.precision import Precision, as_precision
from lamina.tensors import Tensor, array_spec, flatten_arrays
from lamina.train.labels import are_labels
from lamina.train.scaling import all_finite, initial_scale, next_scale, total

_where = device  # the argument of `train_step` has the same name
Loss = Callable[[Any, Any], Any]


@dataclass
class State:
    """All that training changes, by name: what a checkpoint holds."""

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]
    scale: dict[str, Tensor] = field(default_factory=dict)

    def named(self) -> dict[str, Tensor]:
        """Every tensor under its group's name and its own, in a fixed order."""
        groups = vars(self).items()
        return {f"{group}/{name}": x for group, tensors in groups for name, x in tensors.items()}


def train_step(
    net: Module,
    loss_fn: Loss,
    optimizer: Optimizer,
    *,
    device: Device | str = "auto",
    precision: str | Precision = "fp32",
    clip_norm: float | None = None,
    backend: str | None = None,
    memory_limit: int | str | None = None,
) -> Step:
    """A function that trains net by one batch: step(inputs, targets) -> loss.

    net: its parameters become the step's state: they move to the device and are updated in place.
    loss_fn: (outputs of net, floats in float32, targets) -> scalar, such as ops.cross_entropy. It gets the outputs in
        the structure in which net returns them, and the targets in that in which they are given.
    optimizer: such as optim.SGD(lr=0.01, momentum=0.9).
    device: "auto" takes a GPU when there is one. backend: another backend of that device ("reference").
    precision: "fp32"; "tf32"; "bf16" and "fp16", with float32 master weights and, for fp16, dynamic loss
        scaling;
        "fp64" converts the parameters.
    clip_norm: gradients are scaled down to this norm, taken over all of them together.
    memory_limit: bytes, or such as "8 GiB", for everything but parameters and state: where activations take more,
        some are computed again in the backward pass instead of being kept, with the same results.
    Raises NoGpuError, ValueError for an unknown precision or a network without parameters, MemoryLimitError at the
    first step when it cannot be planned in so little memory.
    """
    where, kind = _where(device), as_precision(precision)
    return Step(net, loss_fn, optimizer, where, kind, clip_norm, backend, memory_limit)


class Step:
    """A compiled training step; made by `train_step`. Threads may share it: their steps run one after another, whole.

    Each module trains in its own mode: what is in `eval()` (a batch norm that is to keep its statistics) stays so.

    number: steps done so far; the optimizer's schedule goes by it.
    correct: of the last batch, how many labels the largest output hit, as a scalar tensor (None when the
        labels
        are not integers); reading it waits for the device, as reading the loss does.
    """

    def __init__(
        self,
        net: Module,
        loss_fn: Loss,
        optimizer: Optimizer,
        where: Device,
        precision: Precision,
        clip_norm: float | None,
        backend: str | None,
        memory_limit: int | str | None = None,
    ) -> None:
        if clip_norm is not None and clip_norm <= 0:
            raise ValueError(f"train_step: clip_norm must be positive, got {clip_norm}")
        self.net, self.loss_fn, self.optimizer = net, loss_fn, optimizer
        self.device, self.precision = where, precision
        self.clip_norm, self.backend = clip_norm, backend
        self.memory_limit = None if memory_limit is None else as_bytes(memory_limit)
        self.number = 0
        self.correct: Tensor | None = None
        self._turn = threading.RLock()  # one step at a time, each whole
        renew_after_fork(self)
        self._modes: tuple[int, tuple[bool, ...]] = (-1, ())
        self.state = self._initial_state()
        self._programs: dict[Hashable, _CompiledStep] = {}

    def __call__(self, inputs: Any, targets: Any) -> Tensor:
        """Train by one batch and return its loss: a scalar tensor; reading its value waits for the device.

        inputs: what net takes: an array of any library and dtype, or nested tuples, lists and dicts of them. A tuple
            or list holds net's positional arguments, a dict its named ones. Floats are cast to the compute type,
            integers and booleans reach the network as they are.
        targets: what loss_fn takes, likewise an array or nested arrays, as they are.
        Raises TypeError for what is no array, or may be one or several (a tuple of numbers).
        """
        given, takes = flatten_arrays(inputs, "train_step: inputs")
        wanted, goals = flatten_arrays(targets, "train_step: targets")
        kind = _BatchKind(takes, goals, tuple([array_spec(x) for x in (*given, *wanted)]))
        with self._turn:
            program = self._program(kind)
            rate = np.asarray(self.optimizer.rate(self.number), np.float32)
            results = program.run(rate, *given, *wanted)
            self.number += 1
            self.correct = results[1] if program.counts else None
            return results[0]

    def renew(self) -> None:
        """In a forked child: another thread may have been in a step."""
        self._turn = threading.RLock()

    def __repr__(self) -> str:
        nbytes = sum(x.nbytes for x in self.state.named().values())
        head = (
            f"Step({type(self.net).__name__}, {self.optimizer}, {self.precision} on {self.device}; "
            f"{self.number} done, state {human_bytes(nbytes)})"
        )
        return "\n".join([head, *(f"  {p.executable!r}" for p in self._programs.values())])

    def __reduce__(self) -> str:
        raise TypeError(
            "a training step holds compiled programs and cannot be pickled or copied; pickle step.net, "
            "step.optimizer and step.state, or use save_checkpoint"
        )

    def program(self, inputs: Any, targets: Any) -> _CompiledStep:
        """The program for inputs and targets of these shapes and dtypes, compiled on first use.

        inputs, targets: a Spec, or a tree of them as the arrays will be.
        """
        (given, takes), (wanted, goals) = _tree.flatten(inputs), _tree.flatten(targets)
        return self._program(_BatchKind(takes, goals, tuple(s.open for s in (*given, *wanted))))

    def _program(self, kind: _BatchKind) -> _CompiledStep:
        key = (kind, current_policy(), self._modules_modes())
        with self._turn:
            if key not in self._programs:
                self._programs[key] = self._compile(kind)
            return self._programs[key]

    def _modules_modes(self) -> tuple[bool, ...]:
        """Which modules are in training mode: asked anew only when some module's mode was set."""
        if self._modes[0] != mode_version():
            self._modes = mode_version(), tuple(m.training for m in self.net.modules())
        return self._modes[1]

    @property
    def executable(self) -> Executable:
        """The compiled graph of the first shape that was run. Raises RuntimeError before the first step."""
        if not self._programs:
            raise RuntimeError("nothing is compiled yet: run a step first, or call program() with specs")
        return next(iter(self._programs.values())).executable

    # ---- state
    def _initial_state(self) -> State:
        parameters: dict[str, Tensor] = dict(self.net.named_parameters())
        if not parameters:
            hidden = ", ".join(self.net.unregistered())
            hint = f"; {hidden} holds modules in a plain list: use nn.ModuleList" if hidden else ""
            raise ValueError(f"train_step: {type(self.net).__name__} has no parameters{hint}")
        for held in (*parameters.values(), *self.net.buffers()):
            become(held, self.device, self.precision.master if held.dtype.is_float else None)
        own = {
            f"{name}.{part}": held
            for name, p in parameters.items()
            for part, held in zip(self.optimizer.parts, self.optimizer.init(p), strict=True)
        }
        random = {str(i): g.state for i, g in enumerate(self.net.generators())}
        scale = {"scale": initial_scale()} if self.precision.scaled else {}
        return State(parameters, dict(self.net.named_buffers()), own, random, scale)

    # ---- the program
    def _compile(self, kind: _BatchKind) -> _CompiledStep:
        held = self.state.named()
        names = [*held, "rate", *kind.names]
        with policy(tf32=self.precision.tf32):
            graph = trace(
                lambda *values: self._forward_and_back(dict(zip(names, values, strict=True)), kind),
                *(x.spec.open for x in held.values()),
                Spec((), float32),
                *kind.specs,
                names=names,
            )
        counts = len(graph.outputs) == len(held) + 2  # the loss and the hits
        return _CompiledStep.of(
            graph, list(held.values()), self.device, self.backend, counts, self.memory_limit
        )

    def _forward_and_back(self, values: dict[str, Value], kind: _BatchKind) -> list[Any]:
        """The new value of every state, in order, then the loss and perhaps the number of hits."""
        parameters = {n: values[f"parameters/{n}"] for n in self.state.parameters}
        wide = self.net.masters()
        half = {
            n: v if id(self.state.parameters[n]) in wide else _cast(v, self.precision.compute)
            for n, v in parameters.items()
        }
        loss, outputs, targets, after = self._forward(half, values, kind)
        scale = values.get("scale/scale")
        # Scaled float16 gradients are widened before they are divided, others when the optimizer reads them.
        wrt = half if scale is None else parameters
        arriving = gradients(loss if scale is None else loss * scale[0], list(wrt.values()))
        new = self._update(parameters, arriving, values, scale)
        new |= after
        results = [new.get(name, values[name]) for name in self.state.named()]
        return [*results, loss, *_hits(outputs, targets)]

    def _forward(
        self, parameters: dict[str, Value], values: dict[str, Value], kind: _BatchKind
    ) -> tuple[Value, Any, Any, dict[str, Any]]:
        """The loss, the outputs in the master type, the targets, and the new values of buffers and random states."""
        compute, master = self.precision.compute, self.precision.master
        standing: dict[int, Any] = {id(self.state.parameters[n]): v for n, v in parameters.items()}
        states = [(f"buffers/{n}", x) for n, x in self.state.buffers.items()]
        states += [(f"random/{n}", x) for n, x in self.state.random.items()]
        standing |= {id(x): values[name] for name, x in states}
        with standing_in(standing) as mapping:
            inputs, targets = kind.trees([values[name] for name in kind.names], compute)
            positional, named = _tree.arguments(inputs)
            found, structure = _tree.flatten(self.net(*positional, **named))
        outputs = _tree.unflatten(structure, [_cast(y, master) for y in found])
        loss = self.loss_fn(outputs, targets)
        if loss.shape != ():
            raise ValueError(
                f"train_step: loss_fn must give a scalar, it gave shape {loss.shape}; use a mean"
            )
        return loss, outputs, targets, {name: mapping[id(x)] for name, x in states}

    def _update(
        self,
        parameters: dict[str, Value],
        arriving: Sequence[Value],
        values: dict[str, Value],
        scale: Value | None,
    ) -> dict[str, Any]:
        """The new parameters, optimizer states and loss scale."""
        finite = None
        if scale is not None:
            finite = all_finite(arriving)
            arriving = [g / scale[0] for g in arriving]
        if self.clip_norm is not None:
            arriving = _clipped(arriving, self.clip_norm)
        new: dict[str, Any] = {}
        for (name, p), g in zip(parameters.items(), arriving, strict=True):
            keys = [f"optimizer/{name}.{part}" for part in self.optimizer.parts]
            fresh, states = self.optimizer.update(p, g, tuple(values[k] for k in keys), values["rate"])
            new |= {f"parameters/{name}": fresh, **dict(zip(keys, states, strict=True))}
        if finite is not None:
            new = {name: ops.where(finite, v, values[name]) for name, v in new.items()}
            new["scale/scale"] = next_scale(scale, finite)
        return new


@dataclass(frozen=True)
class _BatchKind:
    """What a program is made for: the structures of inputs and targets, and the specs of both's arrays in order."""

    inputs: Structure
    targets: Structure
    specs: tuple[Spec, ...]

    @property
    def names(self) -> list[str]:
        """Names of the arrays."""
        return [*_tree.names(self.inputs, "inputs"), *_tree.names(self.targets, "targets")]

    def trees(self, values: Sequence[Value], compute: DType) -> tuple[Any, Any]:
        """Inputs, their floats in the compute type, and targets."""
        count = len(_tree.names(self.inputs, ""))
        given = [_cast(v, compute) for v in values[:count]]
        return _tree.unflatten(self.inputs, given), _tree.unflatten(self.targets, values[count:])


def _hits(outputs: Any, targets: Any) -> list[Value]:
    """How often the largest output is the label, where there is one output (N, C, …) and labels (N, …)."""
    if not (isinstance(outputs, Value) and isinstance(targets, Value)):
        return []
    if not are_labels(outputs.shape, targets.shape, targets.dtype.kind):
        return []
    return [ops.sum(ops.eq(ops.argmax(outputs, 1), ops.cast(targets, "int64")))]


@dataclass
class _CompiledStep:
    """One compiled graph on the shared state."""

    executable: Executable
    counts: bool

    @classmethod
    def of(
        cls,
        graph: Graph,
        held: Sequence[Tensor],
        where: Device,
        backend: str | None,
        counts: bool,
        memory_limit: int | None = None,
    ) -> _CompiledStep:
        """Compile: the first len(held) inputs are state, updated by the outputs of the same index.

        State that the program only hands through (a buffer that is not updated) stays where it is.
        """
        same = [i for i in range(len(held)) if graph.outputs[i] is graph.inputs[i]]
        kept = [o for i, o in enumerate(graph.outputs) if i not in same]
        places = {id(o): n for n, o in enumerate(kept)}
        donate = {i: places[id(graph.outputs[i])] for i in range(len(held)) if i not in same}
        slim = Graph(graph.inputs, kept, "train_step")
        executable = compile(
            slim, where, donate=donate, resident=same, backend=backend, memory_limit=memory_limit
        )
        if executable.backend.name != "null":
            executable.load(dict(enumerate(held)))
        return cls(executable, counts)

    def run(self, *inputs: Any) -> tuple[Tensor, ...]:
        """One step on the rate, inputs and targets: the loss and perhaps the number of hits."""
        return self.executable(*inputs)


def _clipped(arriving: Sequence[Value], limit: float) -> list[Any]:
    """Gradients scaled down so that their common norm is at most `limit` (Pascanu et al. 2013)."""
    norm = ops.sqrt(total(ops.square(g) for g in arriving))
    factor = ops.minimum(limit / (norm + 1e-6), 1.0)
    return [g * _cast(factor, g.dtype) for g in arriving]


def _cast(x: Any, dtype: Any) -> Any:
    return x if x.dtype == dtype or not x.dtype.is_float else ops.cast(x, dtype)
