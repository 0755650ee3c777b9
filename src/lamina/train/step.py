"""A training step as one compiled graph: forward, loss, gradients, clipping, optimizer.

Parameters, optimizer state, buffers, random state and loss scale are inputs that the graph updates in place; the
learning rate, the network's inputs and the targets are ordinary inputs. One program is compiled per structure, shapes
and dtypes of these; all share the same state.
"""

from __future__ import annotations

import contextlib
import threading
import zlib
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Self, TypeVar, overload

import numpy as np

from lamina import _tree, backends, ops
from lamina._tree import Structure
from lamina.distributed.alike import collectives_of
from lamina.distributed.collectives import all_reduce_each
from lamina.distributed.data_parallel import DataParallel, as_data_parallel
from lamina.graph import Executable, Graph, Value, compile
from lamina.graph.ir.autodiff import gradients_or_none
from lamina.graph.ir.graph import constant, traced_for
from lamina.graph.ir.surroundings import SameSurroundings, reads_of
from lamina.graph.passes.idioms import with_idioms
from lamina.graph.planning.rematerialize import as_bytes
from lamina.graph.run.collector import collector_paused
from lamina.graph.run.programs import MOST, Programs
from lamina.graph.run.rank_tuning import RankTuner
from lamina.graph.run.tuning import Tuner, TuningState
from lamina.nn import Module
from lamina.nn.mixed_precision import precision_of
from lamina.nn.parameter import become, settings_version, standing_in
from lamina.nn.utils import clip_grad_value_, clip_grads_with_norm_, get_total_norm
from lamina.ops.arguments import checked, shown
from lamina.ops.core import Operand, computing_in, operand, recording
from lamina.optim import Optimizer
from lamina.optim.groups import ParameterGroups, TrainedParameter
from lamina.runtime import Device, device, human_bytes, renew_after_fork
from lamina.runtime.ranks.progress import progress
from lamina.spec import DType, Group, Shape, ShapeError, Spec, current_policy, float32, policy
from lamina.spec.precision import Precision
from lamina.tensors import Tensor, array_spec, flatten_arrays, zeros
from lamina.train.averaging import AveragedModel
from lamina.train.closing import ClosedOver, StepCapture
from lamina.train.labels import IGNORED, are_labels
from lamina.train.scaling import all_finite, initial_scale, next_scale

_where = device  # the argument of `train_step` has the same name
Loss = Callable[[Any, Any], Any]
#: How many parameters an error message names.
_SHOWN = 4
V = TypeVar("V")


@dataclass
class State:
    """The whole training state, by name, as this rank holds it.

    masters: with a sharded optimizer, this rank's pieces of the wide (master) weights, which `parameters` has
        rounded.
    """

    parameters: dict[str, Tensor]
    buffers: dict[str, Tensor]
    optimizer: dict[str, Tensor]
    random: dict[str, Tensor]
    scale: dict[str, Tensor] = field(default_factory=dict)
    gathered: dict[str, Tensor] = field(default_factory=dict)
    averaged: dict[str, Tensor] = field(default_factory=dict)
    errors: dict[str, Tensor] = field(default_factory=dict)
    masters: dict[str, Tensor] = field(default_factory=dict)

    def named(self) -> dict[str, Tensor]:
        """Every tensor under its group's name and its own, in a fixed order."""
        groups = vars(self).items()
        return {f"{group}/{name}": x for group, tensors in groups for name, x in tensors.items()}


@checked
def train_step(
    net: Module,
    loss_fn: Loss,
    optimizer: Optimizer,
    *,
    device: Device | str = "auto",
    precision: str | Precision | None = None,
    clip_norm: float | None = None,
    clip_value: float | None = None,
    accumulate: int = 1,
    averaged: AveragedModel | None = None,
    keep_grads: bool = False,
    parallel: Literal["data"] | DataParallel | None = None,
    shard_optimizer: bool = False,
    backend: str | None = None,
    memory_limit: int | str | None = None,
    max_programs: int = MOST,
    max_program_bytes: int | str | None = None,
    tuning: bool = True,
) -> Step:
    """A function that trains net by one batch: step(inputs, targets) -> loss.

    net: its parameters become the step's state: they move to the device and are updated in place. Frozen parameters
        (`requires_grad_(False)`) get no gradient, at no cost.
    loss_fn: (outputs of net, floats in float32, targets) -> scalar, such as ops.cross_entropy. It gets the outputs in
        the structure in which net returns them, and the targets as they are given.
    optimizer: such as optim.SGD(lr=0.01, momentum=0.9); an optimizer with its own parameters or groups trains only
        these: optim.SGD(lr=0.01).over(net, groups).
    device: "auto" takes a GPU when there is one; for an absent one (`Device("cuda", machine=…)`) steps are only
        planned, by `program`, and parameters stay where they are. backend: another backend of that device
        ("reference").
    precision: "fp32"; "tf32"; "bf16" and "fp16", with float32 master weights and, for fp16, dynamic loss
        scaling; "fp64". Parameters are converted to the type of the weights. By default "fp64" for a network whose
        parameters are all in float64, "fp32" for others.
    clip_norm: gradients are scaled down to this norm, taken over all of them together. clip_value: before that, each
        of their elements is brought into [-clip_value, clip_value].
    accumulate: the number of calls over which gradients are accumulated; the last one updates the parameters by their
        mean. `step(inputs, targets, update=True)` ends a group early.
    averaged: a train.AveragedModel of net, updated in each step.
    keep_grads: `step.grads` holds the gradients of the last call, as the optimizer received them.
    parallel: "data": each rank calls the step with its part of a batch, all of one size, and all train by the mean of
        the gradients, whose communication overlaps with the backward pass. Parameters start as rank 0's; loss and
        hits are those of the whole batch. A `lamina.distributed.DataParallel` gives further options. No effect in a
        world of one rank.
    shard_optimizer: with `parallel`, each rank keeps only its shard of the optimizer's state and, in half precision,
        of the float32 parameters: gradients are reduce-scattered, the rank's shard updated, and the new parameters
        all-gathered (in the half type). For elementwise optimizers.
    memory_limit: bytes, or such as "8 GiB", for everything but parameters and state: where activations take more,
        some are rematerialized in the backward pass, with the same results.
    max_programs, max_program_bytes: each kind of batch (shapes, dtypes, structure) has a program; how many are
        cached, and in how much memory (by default a quarter of the device's). The least recently used is evicted
        first.
    tuning: under the policy "auto" on a GPU, unmeasured plans are autotuned between steps, after two seconds of
        training and in at most a tenth of the time; winners are swapped in before a step, change results within the
        type's rounding, and are cached on disk. Ranks that train together each measure a part of the candidates, and
        change plans before the same step. Nothing changes under the policy `deterministic`. False, or LAMINA_TUNING=0
        in the environment, turns it off (on one rank: on all of them, with a warning); `step.tuning` tells its
        progress.
    Raises NoGpuError, ValueError for an unknown precision, a network without parameters, or shards of an optimizer
    that needs whole tensors, RuntimeError where ranks were started but not connected (`lamina.distributed.init`),
    MemoryLimitError at the first step when it cannot be planned in so little memory.
    """
    if shard_optimizer and parallel is None:
        raise ValueError('train_step: shard_optimizer=True is for several ranks: give parallel="data", too')
    together = as_data_parallel(parallel)
    options = Options(clip_norm, clip_value, accumulate, averaged, keep_grads, together, shard_optimizer)
    return Step(
        net,
        loss_fn,
        optimizer,
        _where(device),
        precision_of(net, precision),
        options,
        backend,
        memory_limit,
        Programs(max_programs, max_program_bytes, "train_step"),
        _tuner("" if tuning else "switched off", together),
    )


def _tuner(ended: str, together: DataParallel | None) -> Tuner:
    return Tuner(ended) if together is None else RankTuner(together, ended)


@dataclass(frozen=True)
class Options:
    """How a step treats gradients; see `train_step`."""

    clip_norm: float | None = None
    clip_value: float | None = None
    accumulate: int = 1
    averaged: AveragedModel | None = None
    keep_grads: bool = False
    parallel: DataParallel | None = None
    shard_optimizer: bool = False

    def __post_init__(self) -> None:
        for name in ("clip_norm", "clip_value"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"train_step: {name} must be positive, got {value}")
        if not isinstance(self.accumulate, int) or self.accumulate < 1:
            raise ValueError(f"train_step: accumulate must be an int of at least 1, got {self.accumulate!r}")


class _ReadOnly(Generic[V]):
    """An attribute that is fixed when programs are compiled: setting it would not change them."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, step: None, owner: type) -> Self: ...
    @overload
    def __get__(self, step: Step, owner: type) -> V: ...
    def __get__(self, step: Step | None, owner: type) -> V | Self:
        return self if step is None else getattr(step, f"_{self.name}")

    def __set__(self, step: Step, value: V) -> None:
        raise AttributeError(
            f"train_step: {self.name} is compiled into the step and cannot be set; make a new step with "
            f"train_step({self.name}={shown(value)}, …)"
        )


class Step:
    """A compiled training step; made by `train_step`. Thread-safe: steps of several threads run one after another.

    Each module trains in its own mode: modules in `eval()` (a batch norm that is to keep its statistics) stay so.

    number: updates done so far; the optimizer's schedules depend on it.
    grads: of the last call, by the parameters' names, where `keep_grads` is set.
    correct, labels: of the last batch, the number of labels predicted correctly by the largest output, and the number
        of labels other than -100, as scalar tensors (None when the labels are not integers); reading them waits for
        the device, as reading the loss does.
    """

    net = _ReadOnly[Module]()
    loss_fn = _ReadOnly[Loss]()
    optimizer = _ReadOnly[Optimizer]()

    def __init__(
        self,
        net: Module,
        loss_fn: Loss,
        optimizer: Optimizer,
        where: Device,
        precision: Precision,
        options: Options,
        backend: str | None,
        memory_limit: int | str | None,
        programs: Programs[_CompiledStep],
        tuner: Tuner,
    ) -> None:
        self._net, self._loss_fn, self._optimizer = net, loss_fn, optimizer
        self.device, self.precision, self.options = where, precision, options
        self.backend = backend
        backends.get(where, backend)  # opened here, not by the first step
        self.memory_limit = None if memory_limit is None else as_bytes(memory_limit)
        shared = options.parallel if options.shard_optimizer else None
        self.shards = None if shared is None else shared.shards
        self.correct: Tensor | None = None
        self.labels: Tensor | None = None
        self.grads: dict[str, Tensor] | None = None
        self._turn = threading.RLock()  # one step at a time, each whole
        renew_after_fork(self)
        self._settings: tuple[int, Hashable] = (-1, ())
        self._compared = False  # with the other ranks' programs
        self._group_name = "" if options.parallel is None else options.parallel.name
        self._waiting: int | None = 0  # accumulated gradients; None: as in the state
        # The parameters that have a gradient since the last update; None: as in the state.
        self._gathered: frozenset[str] | None = frozenset()
        self._reached: dict[Hashable, frozenset[str]] = {}  # parameters that a program's loss depends on
        self.state, self._groups = self._initial_state()
        self._programs, self._tuner = programs, tuner

    @property
    def tuning(self) -> TuningState:
        """The progress of tuning between steps."""
        return self._tuner.state

    @property
    def number(self) -> int:
        """Updates so far."""
        return self._groups.number

    @number.setter
    def number(self, value: int) -> None:
        self._groups.number, self._waiting, self._gathered = value, None, None

    @property
    def waiting(self) -> int:
        """How many gradients were accumulated since the last update."""
        if self._waiting is None:
            count = self.state.gathered.get("count")
            self._waiting = 0 if count is None else int(count.item())
        return self._waiting

    def _with_gradient(self) -> frozenset[str]:
        """The parameters that got a gradient since the last update: for a loaded state, those whose sum is not 0."""
        if self._gathered is None:
            sums = {n: x for n, x in self.state.gathered.items() if n != "count"}
            self._gathered = frozenset([n for n, x in sums.items() if bool(ops.any(ops.ne(x, 0.0)))])
        return self._gathered

    def __call__(self, inputs: Any, targets: Any = None, update: bool | None = None) -> Tensor:
        """Train by one batch and return its loss: a scalar tensor; reading its value waits for the device.

        inputs: what net takes: an array of any library and dtype, or nested tuples, lists and dicts of them. A tuple
            or list holds net's positional arguments, a dict its keyword arguments. Floats are cast to the compute
            type, integers and booleans reach the network as they are.
        targets: what loss_fn takes, likewise an array or nested arrays, as they are; None where the network computes
            its own loss, which loss_fn passes on: lambda outputs, targets: outputs["loss"].
        update: where gradients are accumulated, whether this call updates the parameters by the mean of the
            accumulated gradients, including this batch's; by default each `accumulate`-th call since the last update
            does.
        Raises TypeError for non-arrays, and for values that may be one array or several (a tuple of numbers).
        """
        given, takes = flatten_arrays(inputs, "train_step: inputs")
        wanted, goals = flatten_arrays(targets, "train_step: targets", needed=targets is not None)
        specs = tuple([array_spec(x) for x in (*given, *wanted)])
        with self._turn:
            updates = self.waiting + 1 >= self.options.accumulate if update is None else update
            kind = _BatchKind(takes, goals, specs, updates)
            program = self._program(kind, self._with_gradient() if updates else frozenset())
            if self.options.parallel is not None:  # a rank's own steps are not compared with others'
                progress.begin_step(self.number)
                self._compare(program, kind.samples, self.options.parallel)
            with self._tuner.before(program.executable):
                try:
                    results = iter(
                        program.run(*self._groups.given(self.number, program.rates), *given, *wanted)
                    )
                except ShapeError:
                    self._check_types()
                    raise
            if updates:
                self._groups.number += 1
            self._waiting = 0 if updates else self.waiting + 1
            self._gathered = frozenset() if updates else self._with_gradient() | program.reached
            loss = next(results)
            self.correct, self.labels = (next(results), next(results)) if program.counts else (None, None)
            self.grads = {name: next(results) for name in program.grads} if self.options.keep_grads else None
            return loss

    # ---- the state in the form of a single rank
    def pieces(self) -> dict[str, tuple[Tensor, Shape]]:
        """This rank's pieces of the state shared among ranks, by the names of `whole_state`, and the shapes of the
        whole.
        """
        shapes = {n: x.shape for n, x in self.state.parameters.items()}
        found = {f"parameters/{n}": (x, shapes[n]) for n, x in self.state.masters.items()}
        for name, entry in _trained(self.state, self._groups) if self.shards is not None else ():
            rule = entry.group.rule
            for part, x, cut in zip(rule.parts, entry.held(), rule.elementwise or (), strict=True):
                if cut:
                    found[f"optimizer/{name}.{part}"] = x, shapes[name]
        return found

    def common_state(self) -> dict[str, Tensor]:
        """The replicated state, by name."""
        pieces = self.pieces()
        return {
            n: x for n, x in self.state.named().items() if n not in pieces and not n.startswith("masters/")
        }

    def whole_state(self) -> dict[str, Tensor]:
        """The state by name as a single rank would hold it: sharded state is gathered, so that all ranks must call
        it.
        """
        if self.shards is None:
            return self.state.named() | self._gathered_by_all()
        pieces = self.pieces()
        whole = {n: self.shards.whole(x, shape) for n, (x, shape) in pieces.items()}
        return self.common_state() | whole | self._gathered_by_all()

    @property
    def is_shared(self) -> bool:
        """Whether ranks hold different parts of the state, so that all of them must call `whole_state`."""
        return self.shards is not None or (self.options.parallel is not None and self.waiting > 0)

    def _gathered_by_all(self) -> dict[str, Tensor]:
        """Gradients awaiting an update are each rank's own; a single rank would hold their mean."""
        parallel = self.options.parallel
        if parallel is None or not self.waiting:
            return {}
        own = {f"gathered/{n}": x for n, x in self.state.gathered.items() if n != "count"}
        return all_reduce_each(own, "mean", group=parallel.ranks)

    def whole_specs(self) -> dict[str, Spec]:
        """Shapes and dtypes of `whole_state`, without communication."""
        pieces = {n: Spec(shape, x.dtype) for n, (x, shape) in self.pieces().items()}
        return {n: x.spec.open for n, x in self.common_state().items()} | pieces

    def take_state(self, whole: Mapping[str, Tensor], own: Mapping[str, Tensor] | None = None) -> None:
        """Load the result of `whole_state`, of any number of ranks.

        own: pieces of this rank's, in place of whole tensors. All ranks pass the same names, and must all call it.
        """
        own = own or {}
        for name, (piece, _) in self.pieces().items():
            assert self.shards is not None
            piece.copy_((own[name] if name in own else self.shards.own(whole[name])).to(piece.device))
        for name, held in self.common_state().items():
            held.copy_(whole[name].to(held.device))
        for name in self.state.masters:
            held, key = self.state.parameters[name], f"parameters/{name}"
            if key in own:
                assert self.shards is not None
                rounded = self.shards.whole(ops.cast(self.state.masters[name], held.dtype), held.shape)
            else:
                rounded = whole[key]
            held.copy_(rounded.to(held.device, held.dtype))

    def _compare(self, program: _CompiledStep, samples: int | None, parallel: DataParallel) -> None:
        """At the first step: check that all ranks have traced the same collective operations, exchange gradients of
        the same parameters, and have parts of one size. In later steps the watchdogs compare that. Raises ValueError.
        """
        if not self._compared:
            parallel.check_alike("train_step: collective operations", program.collectives)
            names = [(name, "") for name in sorted(program.reached)]
            parallel.check_alike("train_step: parameters that the loss depends on", names)
            parallel.check_parts(samples)
            self._compared = True
        progress.comes_to(self._group_name, program.told)
        progress.trains_on(self._group_name, samples if parallel.equal_parts else None)

    def renew(self) -> None:
        """In a forked child: another thread may have been in a step."""
        self._turn = threading.RLock()

    def __repr__(self) -> str:
        nbytes = sum(x.nbytes for x in self.state.named().values())
        head = (
            f"Step({type(self.net).__name__}, {self.optimizer}, {self.precision} on {self.device}; "
            f"{self.number} done, state {human_bytes(nbytes)})"
        )
        return "\n".join([head, *(f"  {p.executable!r}" for p in self._programs)])

    def __reduce__(self) -> str:
        raise TypeError(
            "a training step holds compiled programs and cannot be pickled or copied; pickle step.net, "
            "step.optimizer and step.state, or use save_checkpoint"
        )

    def program(self, inputs: Any, targets: Any = None) -> _CompiledStep:
        """The program for inputs and targets of these shapes and dtypes, compiled on first use.

        inputs, targets: a Spec, or a tree of them in the arrays' structure.
        """
        (given, takes), (wanted, goals) = _tree.flatten(inputs), _tree.flatten(targets)
        return self._program(_BatchKind(takes, goals, tuple(s.open for s in (*given, *wanted))))

    def _program(self, kind: _BatchKind, gathered: frozenset[str] = frozenset()) -> _CompiledStep:
        """gathered: parameters that already have a gradient; those of them that the program's own loss does not
        depend on are updated by that gradient alone."""
        key = (kind, current_policy(), self._modes_and_frozen(), self._groups.compiled)
        with self._turn:
            others = gathered - self._reached.get(key, frozenset())
            found = self._programs.find((key, others), _CompiledStep.holds)
            if found is None:
                with collector_paused():
                    found = self._compile(kind, others)
                self._reached[key] = found.reached
                self._programs.add((key, others - found.reached), found)
            return found

    def _modes_and_frozen(self) -> Hashable:
        """Which modules are in training mode, and which parameters are trained: recomputed only when one
        was changed."""
        if self._settings[0] != settings_version():
            self._check_parameters()
            modes = tuple([m.training for m in self.net.modules()])
            trained = tuple([p.requires_grad for p in self.state.parameters.values()])
            self._settings = settings_version(), (modes, trained)
        return self._settings[1]

    def _check_types(self) -> None:
        """Raises RuntimeError for parameters and buffers whose dtype was changed after the step was made."""
        master, compute = self.precision.master, self.precision.compute
        for name, held in (self.state.parameters | self.state.buffers).items():
            wanted = compute if name in self.state.masters else master
            if held.dtype.is_float and held.dtype != wanted:
                raise RuntimeError(
                    f"train_step: {name} of {type(self.net).__name__} is {held.dtype}, but the step, in precision "
                    f"{self.precision}, keeps it in {wanted}; make a new step after double(), half() or to(dtype), "
                    f"with the precision that is meant, or convert the network back to {wanted}"
                )

    def _check_parameters(self) -> None:
        """Raises RuntimeError where the network has other parameters or buffers than when the step was made."""
        now: dict[str, Tensor] = {**dict(self.net.named_parameters()), **dict(self.net.named_buffers())}
        then = self.state.parameters | self.state.buffers
        others = [n for n in now.keys() | then.keys() if now.get(n) is not then.get(n)]
        if others:
            raise RuntimeError(
                f"train_step: {', '.join(sorted(others)[:4])} of {type(self.net).__name__} was replaced, added or "
                "removed after the step was made, which trains what was there; make a new step (and optimizer), or "
                "write values with copy_ or load_state_dict"
            )

    @property
    def executable(self) -> Executable:
        """The compiled graph of the first shape that was run. Raises RuntimeError before the first step."""
        if not len(self._programs):
            raise RuntimeError("nothing is compiled yet: run a step first, or call program() with specs")
        return next(iter(self._programs)).executable

    # ---- state
    @property
    def _home(self) -> Device | None:
        """The device of the state; the CPU where the step is planned for an absent GPU."""
        return self.device if self.device.planned is None else None

    def _initial_state(self) -> tuple[State, ParameterGroups]:
        parameters: dict[str, Tensor] = dict(self.net.named_parameters())
        if not parameters:
            hidden = ", ".join(self.net.unregistered())
            hint = f"; {hidden} holds modules in a plain list: use nn.ModuleList" if hidden else ""
            if any(hasattr(m, "becomes") for m in self.net.modules()):
                hint = " yet: call it once on a tensor, so that its lazy layers get theirs"
            raise ValueError(f"train_step: {type(self.net).__name__} has no parameters{hint}")
        groups = (
            self.optimizer.bound if self.optimizer.is_bound else ParameterGroups(self.optimizer, self.net)
        )
        averaged = {} if self.options.averaged is None else self.options.averaged.state_dict()
        for held in (*parameters.values(), *self.net.buffers(), *averaged.values()):
            become(held, self._home, self.precision.master if held.dtype.is_float else None)
        random = {str(i): g.state for i, g in enumerate(self.net.generators())}
        scale = {"scale": initial_scale()} if self.precision.scaled else {}
        state = State(parameters, dict(self.net.named_buffers()), {}, random, scale, averaged=averaged)
        if self.options.parallel is not None:
            named = [(f"{n} {x.spec.open}", "") for n, x in state.named().items()]
            self.options.parallel.check_alike("train_step: parameters, buffers and generators", named)
            self.options.parallel.same_as_first(
                [*parameters.values(), *state.buffers.values(), *random.values()]
            )
        if self.options.shard_optimizer and averaged and self.precision.compute != self.precision.master:
            raise ValueError(
                "train_step: averaged= needs the float32 parameters whole on each rank, which in "
                f"{self.precision} shard_optimizer=True keeps in shards; leave one of them out"
            )
        self._extend(state, groups)
        return state, groups

    def _extend(self, state: State, groups: ParameterGroups) -> None:
        """Add the state of parameters that are trained now: optimizer state, accumulated gradients.

        Raises ValueError for an optimizer that trains parameters other than the network's.
        """
        known = {id(p) for p in state.parameters.values()}
        if foreign := [e.name for e in groups.entries.values() if id(e.param) not in known]:
            raise ValueError(
                f"train_step: the optimizer trains {', '.join(foreign[:4])}, which {type(self.net).__name__} does "
                "not have; for several networks write a step of your own (lamina.jit)"
            )
        trained = _trained(state, groups)
        if self.shards is not None:
            for name, entry in trained:
                entry.share(self.shards)
                entry.held()  # of the wide parameter
                self._share_master(state, name)
        for name, entry in trained:
            for part, held in zip(entry.group.rule.parts, entry.held(), strict=True):
                state.optimizer[f"{name}.{part}"] = held
            master = self.precision.master
            if self.options.accumulate > 1 and name not in state.gathered:
                state.gathered[name] = entry.gathered(master)
            if self._keeps_errors and name not in state.errors:
                state.errors[name] = zeros(entry.param.shape, dtype=master, device=self._home)
        if self.options.accumulate > 1 and "count" not in state.gathered:
            state.gathered["count"] = zeros((), device=self._home)

    def _share_master(self, state: State, name: str) -> None:
        """Keep this rank's piece of a wide parameter that the network reads only in the compute type."""
        param, compute = state.parameters[name], self.precision.compute
        if name in state.masters or param.dtype == compute or id(param) in self.net.masters():
            return
        assert self.shards is not None
        state.masters[name] = self.shards.own(param)
        become(param, None, compute)

    # ---- the program
    def _compile(self, kind: _BatchKind, gathered: frozenset[str]) -> _CompiledStep:
        self._check_types()
        self._extend(self.state, self._groups)
        held = self.state.named()
        rates = [f"rate{i}" for i in range(len(self._groups.groups))]
        given = self._groups.given_specs()
        specs = [*(x.spec.open for x in held.values()), *given, *kind.specs]
        values = {n: Value(s, name=n) for n, s in zip([*held, *rates, *kind.names], specs, strict=True)}
        capture = StepCapture()
        with policy(tf32=self.precision.tf32), traced_for(self.device):
            outputs, sent, reached = self._forward_and_back(values, kind, capture, gathered)
        closed = ClosedOver(capture, self.device)
        graph = Graph([*values.values(), *closed.inputs], [*outputs, *sent, *closed.outputs], "train_step")
        grads = [name for name, _ in self._trained()] if self.options.keep_grads else []
        counts = len(outputs) == len(held) + 3 + len(grads)  # the loss, the hits and the labels
        return _CompiledStep.of(
            graph,
            list(held.values()),
            closed,
            self.device,
            self.backend,
            counts,
            grads,
            reached,
            given,
            self.memory_limit,
            None if self.options.parallel is None else self.options.parallel.ranks,
        )

    def _trained(self) -> list[tuple[str, TrainedParameter]]:
        """The trained parameters, by the network's names. Raises ValueError where there are none."""
        found = _trained(self.state, self._groups)
        if not found:
            raise ValueError(
                f"train_step: {type(self.net).__name__} has no parameter to train: those of the optimizer are frozen "
                "(requires_grad_(True) trains them)"
            )
        return found

    def _forward_and_back(
        self, values: dict[str, Value], kind: _BatchKind, capture: StepCapture, gathered: frozenset[str]
    ) -> tuple[list[Any], list[Value], frozenset[str]]:
        """The new value of every state, in order, then the loss, the numbers of hits and of labels (if any), and the
        gradients; values exchanged with other ranks but not read; the names of the parameters that the loss depends
        on.

        gathered: parameters that already have a gradient. Those without one are not updated, as in torch's
            optimizers.
        """
        parameters = {n: values[f"parameters/{n}"] for n in self.state.parameters}
        trained = self._trained()
        wide = self.net.masters()
        half = {
            n: v if id(self.state.parameters[n]) in wide else _cast(v, self.precision.compute)
            for n, v in parameters.items()
        }
        with contextlib.nullcontext() if self.options.parallel is None else self.options.parallel.own_part():
            loss, outputs, targets, after, written = self._forward(half, values, kind, capture)
        hits = _hits(outputs, targets)
        sent = capture.exchanged(x for x in (loss, *hits, *after.values()) if isinstance(x, Value))
        loss, found, after, written = _recognized(loss, [*hits, *sent], after, written)
        hits, sent = found[: len(hits)], found[len(hits) :]
        scale = values.get("scale/scale")
        # Scaled float16 gradients are widened before they are divided, others when the optimizer reads them.
        wrt = half if scale is None else parameters
        grads = self._gradients(loss if scale is None else loss * scale[0], [wrt[n] for n, _ in trained])
        known = frozenset([n for (n, _), g in zip(trained, grads, strict=True) if g is not None])
        updated = [each for each in trained if each[0] in known | gathered]
        pairs = [(n, g) for (n, _), g in zip(trained, grads, strict=True) if n in known | gathered]
        arriving = [ops.zeros_like(wrt[n]) if g is None else g for n, g in pairs]
        moved = self._moved(parameters, half, written)
        new, arrived, (loss, *hits), good = self._update(
            updated, arriving, parameters | moved, [loss, *hits], values, kind.updates
        )
        new = {f"parameters/{n}": x for n, x in moved.items()} | new | after
        if kind.updates and self.options.averaged is not None:
            new |= self._average(self.options.averaged, values, new, good)
        results = [new.get(name, values[name]) for name in self.state.named()]
        came = {n: g for (n, _), g in zip(updated, arrived, strict=True)}
        kept = [came[n] if n in came else _zeros(parameters[n]) for n, _ in trained]
        return [*results, loss, *hits, *(kept if self.options.keep_grads else [])], sent, known

    def _moved(
        self, parameters: dict[str, Value], half: dict[str, Any], written: dict[str, Any]
    ) -> dict[str, Any]:
        """The parameters that the network itself wrote (rows scaled to a norm), in their own type: if the network
        reads a rounded copy, its change is added. Raises ValueError where several ranks would each write their own.
        """
        if written and self.options.parallel is not None:
            raise ValueError(
                f"train_step: forward writes {', '.join(written)} (max_norm), each rank what its own batch names, so "
                "that the ranks would part; leave max_norm out and scale the weight after each step"
            )
        return {
            n: x if x.dtype == p.dtype else p + _cast(x - half[n], p.dtype)
            for n, x in written.items()
            for p in (parameters[n],)
        }

    def _gradients(self, loss: Any, wrt: Sequence[Any]) -> list[Any]:
        """The gradients; None for parameters that the loss does not depend on.

        These are not communicated: ranks compare their programs, so that all leave out the same. Raises ValueError
        where the loss depends on no trained parameter.
        """
        known = isinstance(loss, Value)  # else it is a constant
        found = (
            gradients_or_none([loss], wrt, [constant(np.ones((), loss.dtype.numpy))])
            if known
            else [None] * len(wrt)
        )
        if all(g is None for g in found):
            raise ValueError(
                "train_step: the loss depends on none of the parameters that are trained: something between is "
                "without a gradient (detach, stop_gradient, argmax, a comparison, NumPy), or leaves them out"
            )
        return found

    def _average(
        self, averaged: AveragedModel, values: dict[str, Value], new: dict[str, Any], good: Any
    ) -> dict[str, Any]:
        """The averages including the new parameters and buffers; unchanged where an update was skipped (good)."""
        own = {f"averaged/{n}": x for n, x in self.state.averaged.items()}
        given = {f"parameters/{n}": x for n, x in self.state.parameters.items()}
        given |= {f"buffers/{n}": x for n, x in self.state.buffers.items()}
        standing = {id(x): values[n] for n, x in own.items()}
        standing |= {id(x): new.get(n, values[n]) for n, x in given.items()}
        with standing_in(standing) as mapping:
            averaged.update_parameters(self.net)
        after = {n: mapping[id(x)] for n, x in own.items()}
        return after if good is None else {n: ops.where(good, x, values[n]) for n, x in after.items()}

    def _forward(
        self, parameters: dict[str, Value], values: dict[str, Value], kind: _BatchKind, capture: StepCapture
    ) -> tuple[Any, Any, Any, dict[str, Any], dict[str, Any]]:
        """The loss, the outputs in the master type, the targets, the new values of buffers and random states, and
        those of parameters that the network itself wrote.

        The loss also reads parameters in the master type.
        """
        compute, master = self.precision.compute, self.precision.master
        standing: dict[int, Any] = {id(self.state.parameters[n]): v for n, v in parameters.items()}
        states = [(f"buffers/{n}", x) for n, x in self.state.buffers.items()]
        states += [(f"random/{n}", x) for n, x in self.state.random.items()]
        standing |= {id(x): values[name] for name, x in states}
        given = [values[name] for name in kind.names]
        apart = capture.attributes_apart(given)
        with standing_in(standing, capture.hold) as mapping, recording(capture), apart:
            capture.own = mapping
            capture.parameters = frozenset(map(id, self.state.parameters.values()))
            inputs, targets = kind.trees(given, compute)
            positional, named = _tree.arguments(inputs, self.net.forward)
            with contextlib.nullcontext() if compute == master else computing_in(compute):
                results = self.net(*positional, **named)
            found, structure = _tree.flatten(results, open_dataclasses=True, flags=True)
            places = zip(found, _tree.names(structure, "its output"), strict=True)
            read = [capture.read(operand(y, "forward", at)) for y, at in places]
            outputs = _tree.unflatten(structure, [_cast(y, master) for y in read])
            del found, results, places, read
            # In float16, whose gradients are scaled, the parameters themselves: see `_forward_and_back`.
            wide = (
                {n: values[f"parameters/{n}"] for n in parameters} if "scale/scale" in values else parameters
            )
            written = {n: mapping[id(self.state.parameters[n])] for n in parameters}
            written = {n: x for n, x in written.items() if x is not parameters[n]}
            mapping.update(
                (id(self.state.parameters[n]), _cast(written.get(n, v), master)) for n, v in wide.items()
            )
            capture.guard(SameSurroundings(reads_of(self.loss_fn)))
            loss = self.loss_fn(outputs, targets)
            loss = capture.read(loss) if isinstance(loss, Value) else loss
            after = {name: capture.read(mapping[id(x)]) for name, x in states}
        capture.leave_behind()
        if not isinstance(loss, Operand):
            raise TypeError(f"train_step: loss_fn must give a scalar tensor, it gave {shown(loss)}")
        if loss.shape != ():
            raise ValueError(
                f"train_step: loss_fn must give a scalar, it gave shape {loss.shape}; use a mean"
            )
        return loss, outputs, targets, after, written

    def _update(
        self,
        trained: Sequence[tuple[str, TrainedParameter]],
        arriving: Sequence[Any],
        parameters: dict[str, Value],
        figures: Sequence[Any],
        values: dict[str, Value],
        updates: bool,
    ) -> tuple[dict[str, Any], Sequence[Any], Sequence[Any], Any]:
        """The new parameters, optimizer states, accumulated gradients and loss scale; the gradients; the loss and the
        hits (figures), over all ranks where these update together; whether it updates (None: always).

        trained: those with a gradient, in the order of arriving, their gradients."""
        scale, names = values.get("scale/scale"), [name for name, _ in trained]
        new: dict[str, Any] = {}
        good = None  # whether there is a gradient to update by: with a loss scale it may overflow
        alone = updates and self.options.accumulate == 1
        if alone:
            arriving, figures = self._averaged(names, arriving, figures, values, new)
        if scale is not None:
            good = all_finite(arriving)
            if self.options.parallel is not None and not (alone and self.shards is None):
                good = self.options.parallel.all_agree(good)
            new["scale/scale"] = next_scale(scale, good)
            arriving = [_cast(g, self.precision.master) / scale[0] for g in arriving]
        if self.options.accumulate > 1:
            arriving, good = self._gather(names, arriving, good, values, new, updates)
        if not updates:
            return new, arriving, figures, good
        if not alone:
            arriving, figures = self._averaged(names, arriving, figures, values, new)
        arriving = self._clipped(arriving)
        before = [self._own_piece(name, parameters, values) for name in names]
        after = []
        for (name, entry), held, g in zip(trained, before, arriving, strict=True):
            rule = entry.group.rule
            keys = [f"optimizer/{name}.{part}" for part in rule.parts]
            rate = values[f"rate{self._groups.groups.index(entry.group)}"]
            fresh, states = rule.update(held, g, tuple(values[k] for k in keys), rate)
            changed = dict(zip(keys, states, strict=True))
            new |= changed if good is None else {k: ops.where(good, v, values[k]) for k, v in changed.items()}
            after.append(fresh if good is None else ops.where(good, fresh, held))
        new |= self._whole_parameters(names, after)
        return new, self._whole_gradients(names, arriving), figures, good

    def _own_piece(self, name: str, parameters: dict[str, Value], values: dict[str, Value]) -> Any:
        """The part of a parameter that this rank updates."""
        if self.shards is None:
            return parameters[name]
        return values[f"masters/{name}"] if name in self.state.masters else self.shards.own(parameters[name])

    def _whole_parameters(self, names: Sequence[str], after: Sequence[Any]) -> dict[str, Any]:
        """The new parameters, from the parts that each rank has updated, and the new pieces of wide ones."""
        if self.shards is None:
            return {f"parameters/{n}": x for n, x in zip(names, after, strict=True)}
        masters = {f"masters/{n}": x for n, x in zip(names, after, strict=True) if n in self.state.masters}
        own = [self.state.parameters[n] for n in names]
        sent = [_cast(x, p.dtype) for x, p in zip(after, own, strict=True)]
        whole = self.shards.whole_of_each(sent, [p.shape for p in own])
        return masters | {f"parameters/{n}": x for n, x in zip(names, whole, strict=True)}

    def _whole_gradients(self, names: Sequence[str], arriving: Sequence[Any]) -> Sequence[Any]:
        """The gradients as the optimizer received them, if requested."""
        if self.shards is None or not self.options.keep_grads:
            return arriving
        return self.shards.whole_of_each(arriving, [self.state.parameters[n].shape for n in names])

    def _averaged(
        self,
        names: Sequence[str],
        arriving: Sequence[Any],
        figures: Sequence[Any],
        values: dict[str, Value],
        new: dict[str, Any],
    ) -> tuple[Sequence[Any], Sequence[Any]]:
        """Gradients and the loss averaged over the ranks, the hits summed; also stores the new rounding errors."""
        parallel = self.options.parallel
        if parallel is None:
            return arriving, figures
        wide = [_cast(g, self.precision.master) for g in arriving]
        errors = [values[f"errors/{n}"] for n in names] if self._keeps_errors else None
        loss, *hits = figures
        sums = [ops.cast(h, float32) for h in hits]
        means, others, left = parallel.averages(
            wide, [loss, *sums], errors, in_shards=self.shards is not None
        )
        new |= {f"errors/{n}": e for n, e in zip(names, left, strict=True)} if self._keeps_errors else {}
        return means, [others[0], *(ops.cast(ops.round(m * parallel.size), "int64") for m in others[1:])]

    @property
    def _keeps_errors(self) -> bool:
        """Whether gradients are communicated in a half type with error feedback (rounding errors are kept)."""
        return self.options.parallel is not None and self.options.parallel.keeps_errors

    def _gather(
        self,
        names: Sequence[str],
        arriving: Sequence[Any],
        good: Any,
        values: dict[str, Value],
        new: dict[str, Any],
        updates: bool,
    ) -> tuple[Sequence[Any], Any]:
        """Add gradients to the accumulated ones; return their mean if the parameters are updated now.

        good: whether the gradients are finite (None: not checked); returned: whether there is a mean.
        """
        before = [values[f"gathered/{name}"] for name in names]
        sums = [held + _cast(g, held.dtype) for held, g in zip(before, arriving, strict=True)]
        count = values["gathered/count"]
        grown = count + 1.0
        if good is not None:
            sums = [ops.where(good, a, b) for a, b in zip(sums, before, strict=True)]
            grown = ops.where(good, grown, count)
        if not updates:
            new |= {f"gathered/{n}": x for n, x in zip(names, sums, strict=True)}
            new["gathered/count"] = grown
            return arriving, good
        new |= {f"gathered/{n}": _zeros(x) for n, x in zip(names, sums, strict=True)}
        new["gathered/count"] = _zeros(count)
        mean = [x / _cast(ops.maximum(grown, 1.0), x.dtype) for x in sums]
        return mean, None if good is None else ops.gt(grown, 0.0)

    def _clipped(self, arriving: Sequence[Any]) -> list[Any]:
        """The gradients, clipped."""
        grads = list(arriving)
        if self.options.clip_value is not None:
            clip_grad_value_(grads, self.options.clip_value)
        if self.options.clip_norm is not None:
            norm = get_total_norm(grads)
            norm = norm if self.shards is None else ops.sqrt(self.shards.total(ops.square(norm)))
            clip_grads_with_norm_(grads, self.options.clip_norm, norm)
        return grads


def _trained(state: State, groups: ParameterGroups) -> list[tuple[str, TrainedParameter]]:
    """The trained parameters, by the network's names."""
    known = [(name, groups.entries.get(id(p))) for name, p in state.parameters.items()]
    return [(name, e) for name, e in known if e is not None and e.is_trained]


@dataclass(frozen=True)
class _BatchKind:
    """The key of a program: the structures of inputs and targets, the specs of both's arrays in order, and whether it
    updates the parameters."""

    inputs: Structure
    targets: Structure
    specs: tuple[Spec, ...]
    updates: bool = True

    @property
    def samples(self) -> int | None:
        """The size of the first axis of all arrays, None where these differ."""
        found = {s.shape[0] for s in self.specs if s.ndim}
        return found.pop() if len(found) == 1 else None

    @property
    def names(self) -> list[str]:
        """Names of the arrays."""
        return [*_tree.names(self.inputs, "inputs"), *_tree.names(self.targets, "targets")]

    def trees(self, values: Sequence[Value], compute: DType) -> tuple[Any, Any]:
        """Inputs, their floats in the compute type, and targets."""
        count = len(_tree.names(self.inputs, ""))
        given = [_cast(v, compute) for v in values[:count]]
        return _tree.unflatten(self.inputs, given), _tree.unflatten(self.targets, values[count:])


def _recognized(
    loss: Any, hits: list[Value], after: dict[str, Any], written: dict[str, Any]
) -> tuple[Any, list[Value], dict[str, Any], dict[str, Any]]:
    """The forward pass's results with formulas replaced by equivalent ops, whose gradients keep and move
    less data."""
    every = [loss, *hits, *after.values(), *written.values()]
    traced = dict.fromkeys(v for v in every if isinstance(v, Value))
    made = dict(zip(traced, with_idioms(list(traced)), strict=True))
    loss, *rest = [made.get(v, v) if isinstance(v, Value) else v for v in every]
    own = iter(rest)
    return loss, [next(own) for _ in hits], {n: next(own) for n in after}, {n: next(own) for n in written}


def _hits(outputs: Any, targets: Any) -> list[Value]:
    """How often the largest output is the label, and how many labels count, if there is one output (N, C, …) and
    labels (N, …)."""
    if not (isinstance(outputs, Value) and isinstance(targets, Value)):
        return []
    if not are_labels(outputs.shape, targets.shape, targets.dtype.kind):
        return []
    labels = ops.cast(targets, "int64")
    return [ops.sum(ops.eq(ops.argmax(outputs, 1), labels)), ops.sum(ops.ne(labels, IGNORED))]


@dataclass
class _CompiledStep:
    """One compiled graph on the shared state."""

    executable: Executable
    counts: bool
    grads: Sequence[str]
    collectives: Sequence[tuple[str, str]]
    closed: ClosedOver
    reached: frozenset[str]  # parameters that the loss depends on
    rates: Sequence[Spec]  # specs of each group's inputs
    told: str = field(init=False)

    def __post_init__(self) -> None:
        self.told = f"a step with gradients of {_in_short(sorted(self.reached))}"

    @classmethod
    def of(
        cls,
        graph: Graph,
        held: Sequence[Tensor],
        closed: ClosedOver,
        where: Device,
        backend: str | None,
        counts: bool,
        grads: Sequence[str],
        reached: frozenset[str],
        rates: Sequence[Spec],
        memory_limit: int | None,
        ranks: Group | None,
    ) -> _CompiledStep:
        """Compile: the first len(held) inputs are state, updated by the outputs of the same index; the last inputs
        are the closed-over tensors, updated by the last outputs. ranks: those that train together.

        State that the program only passes through (a buffer that is not updated) stays where it is.
        """
        graph = graph.unmarked()
        same = [i for i in range(len(held)) if graph.outputs[i] is graph.inputs[i]]
        kept = [i for i in range(len(graph.outputs)) if i not in same]
        donate = {i: place for place, i in enumerate(kept) if i < len(held)}
        first = len(graph.inputs) - len(closed.inputs)
        updated = [first + i for i in closed.updated]
        donate |= {i: len(kept) - len(updated) + n for n, i in enumerate(updated)}
        places = range(first, first + len(closed.kept))
        slim = Graph(graph.inputs, [graph.outputs[i] for i in kept], "train_step")
        executable = compile(
            slim,
            where,
            donate=donate,
            resident=[*same, *(i for i in places if i not in updated)],
            backend=backend,
            memory_limit=memory_limit,
        )
        executable.load(dict(enumerate(held)) | dict(zip(places, closed.kept, strict=True)))
        return cls(executable, counts, grads, collectives_of(graph, ranks), closed, reached, rates)

    def run(self, *inputs: Any) -> tuple[Tensor, ...]:
        """One step on the rates, inputs and targets: the loss, the hits and labels (if any), and the gradients."""
        return self.executable(*inputs, *self.closed.given)

    def holds(self) -> bool:
        """Whether a trace made now would be the same."""
        return self.closed.hold()


def _in_short(names: Sequence[str]) -> str:
    """A few of the names, with a checksum over all if truncated."""
    if len(names) <= _SHOWN:
        return ", ".join(names)
    seal = zlib.crc32("\n".join(names).encode())
    return f"{', '.join(names[:_SHOWN])}, … ({len(names)} parameters, checksum {seal:08x})"


def _zeros(x: Any) -> Any:
    return ops.expand(constant(np.zeros((), x.dtype.numpy)), x.shape)


def _cast(x: Any, dtype: Any) -> Any:
    return x if x.dtype == dtype or not x.dtype.is_float else ops.cast(x, dtype)
