"""Inference as a compiled graph."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from lamina import _tree, backends, ops
from lamina._tree import Structure
from lamina.graph import Executable, Graph, compile, constant, trace
from lamina.graph.ir.batch_axis import Batch, batch_of, output_axes
from lamina.graph.ir.call_numbers import warn_of_no_program
from lamina.graph.ir.graph import traced_for
from lamina.graph.run.call_tuning import CallTuner
from lamina.graph.run.collector import collector_paused
from lamina.graph.run.programs import MOST, Programs
from lamina.graph.run.tuning import TuningState
from lamina.graph.transforms.arguments import tensors
from lamina.graph.transforms.derivatives import on_tape
from lamina.nn import Module
from lamina.nn.mixed_precision import precision_of
from lamina.nn.module import evaluating
from lamina.nn.parameter import become, check_unwritten, standing_in
from lamina.nn.random import Generator, UnknownGenerator
from lamina.nn.settings import SameModules
from lamina.ops.arguments import Checked
from lamina.ops.core import BatchAxis, CallNeededError, operand
from lamina.runtime import Device, device, human_bytes, renew_after_fork
from lamina.runtime.fork import RenewedLock
from lamina.spec import Policy, Spec, current_policy, policy
from lamina.spec.precision import Precision
from lamina.tensors import Tensor, array_spec, as_tensor, flatten_arrays, plain_array

_where = device


class Predictor(Checked):
    """A network compiled for inference: predictor(inputs) -> outputs, floats in float32 (float64 for fp64).

    Inputs are an array, or nested tuples, lists and dicts of arrays of any dtype: predictor((a, b)) is net(a, b),
    predictor({"x": a}) is net(x=a). Floating point inputs are cast to the precision's compute type; integers and
    booleans reach the network as they are (a network of uint8 images casts them itself). Outputs have the network's
    structure.

    precision: as in `train_step`; by default "fp64" for a network whose parameters are all in float64, "fp32" for
    others.

    The weights are the network's own tensors, resident on the device; call `refresh` after changing them. If a
    module's numbers, hooks or submodules were changed, programs are made anew. Every module is in inference mode
    here, and in its own mode elsewhere. A network that draws random numbers moves its generators on with every call.
    Each kind of inputs (shapes, dtypes, structure, policy) has a program, unless the network's code takes its way, or
    its sizes, from the values of a call (masks that select elements, converted networks that run call by call): then
    each op is computed at once, as the code calls it. A
    smaller batch than one seen before is padded to it, if the ops prove that no sample depends on another.
    max_programs, max_program_bytes: how many are cached, and in how much memory (by default a quarter of the
    device's); the least recently used is evicted first.

    tuning: under the policy "auto" on a GPU, unmeasured plans are autotuned between calls, after two seconds of calls
    and in at most a tenth of their time; winners are swapped in before a call, and cached on disk. From then on
    outputs differ within the type's rounding. Nothing changes under the policy `deterministic`. False, or
    LAMINA_TUNING=0 in the environment, turns it off; `predictor.tuning` tells its progress.

    Thread-safe: calls run concurrently, with the same results as alone.
    """

    def __init__(
        self,
        net: Module,
        *,
        device: Device | str = "auto",
        precision: str | Precision | None = None,
        backend: str | None = None,
        max_programs: int = MOST,
        max_program_bytes: int | str | None = None,
        tuning: bool = True,
    ) -> None:
        self.net, self.device, self.backend = net, _where(device), backend
        backends.get(self.device, backend)  # opened while the network is set up, not by the first call
        self.precision = precision_of(net, precision)
        self._same = SameModules(net)
        self._held = self._weights_of_net()
        self._programs: Programs[_CompiledNet] = Programs(
            max_programs, max_program_bytes, type(self).__name__
        )
        self._uses: dict[_InputKind, _Use] = {}
        self._known: dict[int, _KnownUse] = {}  # some of the uses, by the id of a single input's spec
        self._uncompiled: dict[_InputKind, str] = {}  # of which no graph can be recorded, and why
        self._compiling = threading.RLock()
        self._tuner = CallTuner("" if tuning else "switched off")
        renew_after_fork(self)

    def __call__(self, inputs: Any, *more: Any) -> Any:
        """The network's outputs for arrays of any library, in the order of the samples.

        inputs, more: the network's arguments, one by one, or all as one tuple or dict.
        Raises TypeError for non-arrays, and the errors of the network's ops for shapes and dtypes.
        """
        if not self._same():
            self.renewed()
        policy, found = current_policy(), self._known
        alone = not more and (isinstance(inputs, Tensor) or _is_plain(inputs))
        if alone:
            spec = inputs.spec if isinstance(inputs, Tensor) else array_spec(inputs)
            known = found.get(id(spec))
            if known is not None and known.policy is policy:
                self._programs.touch(known.use.program)
                return known.use((inputs,))
        given, structure = flatten_arrays((inputs, *more) if more else inputs, type(self).__name__)
        kind = _InputKind(structure, tuple([array_spec(x) for x in given]), policy)
        use = self._uses.get(kind) or self._use_if_recorded(kind)
        if use is None:
            return self._at_once(structure, given)
        self._programs.touch(use.program)
        if alone and len(found) < _MOST_KNOWN:
            found[id(spec)] = _KnownUse(spec, policy, use)
        return use(given)

    def renew(self) -> None:
        """In a forked child: another thread may have been compiling."""
        self._compiling = threading.RLock()

    def __repr__(self) -> str:
        head = f"{type(self).__name__}({type(self.net).__name__}, {self._told()})"
        return "\n".join([head, *(f"  {p.executable!r}" for p in self._programs)])

    def _told(self) -> str:
        """Its precision, device, and size."""
        nbytes = sum(x.nbytes for x in self._held.values())
        return f"{self.precision} on {self.device}; weights {human_bytes(nbytes)}"

    def __reduce__(self) -> str:
        raise TypeError(
            f"a {type(self).__name__} holds compiled programs and cannot be pickled or copied; pickle its network"
        )

    @property
    def tuning(self) -> TuningState:
        """The progress of tuning between calls."""
        return self._tuner.state

    @property
    def held(self) -> list[Tensor]:
        """The network's parameters and buffers: the first inputs of its graphs."""
        return list(self._held.values())

    def refresh(self) -> None:
        """Load weights that were changed in place since the last call."""
        done: list[Executable] = []
        for program in self._programs:
            self._load(program.executable, done)
            done.append(program.executable)

    def renewed(self) -> bool:
        """Drop all programs if a module's numbers, hooks or submodules were changed since; returns whether
        they were."""
        with self._compiling:
            changed = not self._same()
            if changed:
                self._same = SameModules(self.net)
                self._held = self._weights_of_net()
                self._programs.clear()
                self._uses, self._uncompiled = {}, {}
                self._known = {}  # after the uses: concurrent look-ups write into the previous one
            return changed

    def program(self, inputs: Any) -> Executable:
        """The compiled graph for inputs of these shapes and dtypes: a Spec, or a tree of them in the inputs'
        structure.
        """
        specs, structure = _tree.flatten(inputs)
        return self.compiled(self.traced(structure, [s.open for s in specs]).graph)

    # ---- overridden by other kinds of predictors
    def traced(self, structure: Structure, specs: Sequence[Spec]) -> TracedNet:
        """The network in inference mode, traced anew with each generator from which it turns out to draw."""
        generators: list[Generator] = []
        while True:
            try:
                return self._traced(structure, specs, tuple(generators))
            except UnknownGenerator as error:
                if any(error.generator is known for known in generators):
                    raise
                generators.append(error.generator)

    def _traced(
        self, structure: Structure, specs: Sequence[Spec], generators: tuple[Generator, ...]
    ) -> TracedNet:
        names = [
            *self._held,
            *_tree.names(structure, "inputs"),
            *(f"generator{i}" for i in range(len(generators))),
        ]
        made: list[Structure] = []
        forward = self._forward(structure, generators, made)
        held = [x.spec.open for x in self._held.values()]
        drawn = [g.state.spec.open for g in generators]
        with self._computing():
            graph = trace(forward, *held, *specs, *drawn, names=names)
        self._same.settle()
        return TracedNet(graph, made[-1], generators)

    def _forward(
        self, structure: Structure, generators: tuple[Generator, ...], made: list[Structure]
    ) -> Callable[..., list[Any]]:
        """The network as a function of its weights, its inputs and the states of generators that returns its outputs
        and the next states. made: gets the structure of the outputs."""
        compute, master = self.precision.compute, self.precision.master
        wide = self.net.masters()
        labels = {id(x): name for name, x in self._held.items()}

        def cast(x: Tensor, v: Any) -> Any:
            return v.cast(compute) if v.dtype.is_float and id(x) not in wide else v

        def forward(*values: Any) -> Any:
            states = {id(x): cast(x, v) for x, v in zip(self._held.values(), values, strict=False)}
            end = len(values) - len(generators)
            given, moved = values[len(states) : end], values[end:]
            drawn = {id(g.state): v for g, v in zip(generators, moved, strict=True)}
            with standing_in(states | drawn) as after:
                found = flat_outputs(self.net, structure, given, compute, master, made)
                check_unwritten(type(self.net).__name__, labels, states, after)
                return [*found, *(after[key] for key in drawn)]

        return forward

    @contextmanager
    def _computing(self) -> Iterator[None]:
        """Within the block the network is in inference mode, on the predictor's device."""
        with evaluating(self.net), policy(tf32=self.precision.tf32), traced_for(self.device):
            yield

    def _at_once(self, structure: Structure, inputs: Sequence[Any]) -> Any:
        """The outputs without a program: each op is computed as the network's code calls it."""
        given = [as_tensor(plain_array(x)).to(self.device) for x in inputs]
        generators: tuple[Generator, ...] = ()
        while True:
            made: list[Structure] = []
            forward = self._forward(structure, generators, made)
            try:
                with self._computing(), _drawing.lock if generators else nullcontext():
                    held = (*self._held.values(), *given, *(g.state.clone() for g in generators))
                    values = [constant(x.to(self.device)) for x in held]
                    found = tensors(on_tape(partial(forward, *values)))
                    count = len(found) - len(generators)
                    for generator, after in zip(generators, found[count:], strict=True):
                        generator.state.copy_(after)
            except UnknownGenerator as error:
                generators = (*generators, error.generator)
                continue
            return _tree.unflatten(made[-1], found[:count])

    def compiled(self, graph: Graph) -> Executable:
        """The executable of a traced graph."""
        resident = range(len(self._held))
        return compile(graph, self.device, resident=resident, backend=self.backend)

    def _weights_of_net(self) -> dict[str, Tensor]:
        """Its parameters and buffers by name, in float64 if that is the compute type."""
        held: dict[str, Tensor] = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        if self.precision.master.name == "float64":
            for x in held.values():
                become(x, None, self.precision.master if x.dtype.is_float else None)
        return held

    # ---- programs
    def _load(self, executable: Executable, beside: Sequence[Executable]) -> None:
        """beside: executables that share the current weights."""
        if self._held:
            executable.load(dict(enumerate(self._held.values())), beside)

    def _use_if_recorded(self, kind: _InputKind) -> _Use | None:
        """The program that serves inputs of a kind; None where no graph serves calls with other numbers."""
        try:
            return self._use(kind)
        except CallNeededError:
            return None

    def _use(self, kind: _InputKind) -> _Use:
        """The program that serves inputs of a kind: one for more samples if proven equivalent, else its own."""
        with self._compiling:
            if kind in self._uncompiled and self._same():
                raise CallNeededError(self._uncompiled[kind])
            if kind not in self._uses:
                with collector_paused():
                    self.renewed()  # changes since then invalidate the existing programs, too
                    try:
                        traced = self.traced(kind.structure, kind.specs)
                    except CallNeededError as error:
                        self._uncompiled[kind] = str(error)
                        warn_of_no_program(f"{type(self).__name__} of {type(self.net).__name__}", error)
                        raise
                    use = self._filled(kind, traced.graph) or self._exact(kind, traced)
                self._uses[kind] = use
            return self._uses[kind]

    def _filled(self, kind: _InputKind, graph: Graph) -> _Use | None:
        """The smallest program of a larger batch that computes this graph."""
        found: list[tuple[int, int, _Use]] = []
        for program in self._programs:
            large = program.kind
            if large.structure != kind.structure or large.policy != kind.policy:
                continue
            batch = batch_of([v.spec for v in graph.inputs], [v.spec for v in program.graph.inputs])
            axes = None if batch is None else output_axes(graph, program.graph, batch)
            if batch is not None and axes is not None:
                inputs = batch._replace(axes=batch.axes[len(self._held) :])
                found.append((batch.large, len(found), _Use(program, inputs, axes)))
        return min(found)[2] if found else None

    def _exact(self, kind: _InputKind, traced: TracedNet) -> _Use:
        executable = self.compiled(traced.graph)
        self._load(executable, [p.executable for p in self._programs])
        program = _CompiledNet(kind, traced.graph, executable, traced.outputs, traced.generators)
        program.calls = self._tuner.calls(executable, program)
        self._programs.add(kind, program)
        kept = {id(p) for p in self._programs}
        self._uses = {k: use for k, use in self._uses.items() if id(use.program) in kept}
        self._known = {}
        return _Use(program)


#: How many uses for single tensors and arrays are cached by the spec's identity.
_MOST_KNOWN = 64


class _KnownUse(NamedTuple):
    """The use for tensors and arrays of a spec under a policy; found by identity, so that both are kept alive."""

    spec: Spec
    policy: Policy
    use: _Use


class _InputKind(NamedTuple):
    """The key of a program."""

    structure: Structure
    specs: tuple[Spec, ...]
    policy: Policy


class TracedNet(NamedTuple):
    """A graph of weights, inputs and states of generators, in this order, whose results are outputs and next states.

    outputs: the structure of the outputs.
    """

    graph: Graph
    outputs: Structure
    generators: tuple[Generator, ...] = ()


@dataclass(eq=False)
class _CompiledNet:
    """A compiled graph, its traced form, and the structure of its outputs. calls: how it is called."""

    kind: _InputKind
    graph: Graph
    executable: Executable
    outputs: Structure
    generators: tuple[Generator, ...]
    calls: Any = field(init=False)

    def __post_init__(self) -> None:
        self.calls = self.executable

    def results(self, inputs: Sequence[Any]) -> Sequence[Tensor]:
        """The outputs of a call."""
        if self.generators:
            return drawn(self.calls, inputs, self.generators)
        found: Sequence[Tensor] = self.calls(*inputs)
        return found


#: One call at a time of programs that draw random numbers: it reads its generators' states, and moves them on.
_drawing = RenewedLock()


def drawn(calls: Any, inputs: Sequence[Any], generators: Sequence[Generator]) -> Sequence[Tensor]:
    """The outputs of a program that also takes and gives the states of generators, which are moved on."""
    with _drawing.lock:
        found: Sequence[Tensor] = calls(*inputs, *(g.state for g in generators))
        count = len(found) - len(generators)
        for generator, after in zip(generators, found[count:], strict=True):
            generator.state.copy_(after)
    return found[:count]


@dataclass(frozen=True, eq=False)
class _Use:
    """A program, and how a smaller batch is padded and its outputs cut (None: it has the full size)."""

    program: _CompiledNet
    batch: Batch | None = None
    axes: tuple[BatchAxis | None, ...] = ()

    def __call__(self, inputs: Sequence[Any]) -> Any:
        if self.batch is None:
            found = self.program.results(inputs)
        else:
            more = self.batch.large - self.batch.small
            filled = [_repeated(x, axis, more) for x, axis in zip(inputs, self.batch.axes, strict=True)]
            results = self.program.results(filled)
            found = [_first(y, b, self.batch.small) for y, b in zip(results, self.axes, strict=True)]
        return _tree.unflatten(self.program.outputs, found)


def _is_plain(x: Any) -> bool:
    """Whether it is a NumPy array in native byte order."""
    return type(x) is np.ndarray and x.dtype.isnative


def flat_outputs(
    net: Module, structure: Structure, inputs: Sequence[Any], compute: Any, master: Any, made: list[Structure]
) -> list[Any]:
    """The outputs of net for traced inputs, its floats computed in `compute` and returned in `master`.

    made: receives the structure of the outputs.
    """
    tree = _tree.unflatten(structure, [_as(x, compute) for x in inputs])
    positional, named = _tree.arguments(tree, net.forward)
    outputs, shape = _tree.flatten(net(*positional, **named), open_dataclasses=True, flags=True)
    made.append(shape)
    places = _tree.names(shape, "its output")
    return [_as(operand(y, "forward", at), master) for y, at in zip(outputs, places, strict=True)]


def _as(x: Any, dtype: Any) -> Any:
    return x.cast(dtype) if x.dtype.is_float else x


def _repeated(x: Any, axis: int | None, more: int) -> Any:
    """x with its last sample repeated: as valid as the others, whatever the numbers mean."""
    if axis is None:
        return x
    host = x if isinstance(x, np.ndarray) else x.numpy() if x.device.kind == "cpu" else None
    if host is not None:
        return np.concatenate([host, np.repeat(host.take([-1], axis), more, axis)], axis)
    last = x[(slice(None),) * axis + (slice(x.shape[axis] - 1, x.shape[axis]),)]
    shape = (*x.shape[:axis], more, *x.shape[axis + 1 :])
    return ops.cat([x, ops.expand(last, shape)], axis)


def _first(y: Tensor, b: BatchAxis | None, count: int) -> Tensor:
    """The first samples of an output."""
    if b is None:
        return y
    cut: Tensor = y[(slice(None),) * b.axis + (slice(0, count * b.size),)]
    return cut
