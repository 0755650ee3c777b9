"""A training step as one compiled graph: forward, loss, gradients, clipping, optimizer.

Parameters, optimizer state, buffers, random state and loss scale are inputs that the graph updates in place; the
learning rate, the network's inputs and the targets are ordinary inputs. One program is compiled per structure, shapes
and dtypes of these; all share the same state.
"""

from __future__ import annotations

import threading
from collections.abc import Hashable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, Generic, Literal, Self, TypeVar, overload

from lamina import _tree, backends, ops
from lamina.distributed.collectives import all_reduce_each
from lamina.distributed.data_parallel import DataParallel, as_data_parallel
from lamina.graph import Executable, Value
from lamina.graph.ir.call_numbers import MANY, warn_of_many, warn_of_values
from lamina.graph.ir.graph import traced_for
from lamina.graph.planning.rematerialize import as_bytes
from lamina.graph.run.collector import collector_paused
from lamina.graph.run.programs import MOST, Programs
from lamina.graph.run.rank_tuning import RankTuner
from lamina.graph.run.tuning import Tuner, TuningState
from lamina.nn import Module
from lamina.nn.mixed_precision import precision_of
from lamina.nn.parameter import Parameter, settings_version
from lamina.ops.arguments import checked, shown
from lamina.optim import Optimizer
from lamina.optim.groups import ParameterGroups
from lamina.runtime import Device, device, human_bytes, renew_after_fork
from lamina.runtime.ranks.progress import progress
from lamina.spec import Shape, ShapeError, Spec, current_policy, policy
from lamina.spec.precision import Precision
from lamina.tensors import Tensor, array_spec, flatten_arrays
from lamina.train.averaging import AveragedModel
from lamina.train.batch_kind import BatchKind
from lamina.train.closing import ClosedOver
from lamina.train.compiled_step import CompiledStep, ComputedStep
from lamina.train.options import Options
from lamina.train.state import State
from lamina.train.step_trace import Loss, StepTrace
from lamina.train.trained import TrainedModules

_where = device  # the argument of `train_step` has the same name
V = TypeVar("V")


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
        the structure in which net returns them, and the targets as they are given. A loss may have parameters of its
        own (a module, or a function that reads modules or parameters): those that the optimizer trains are part of
        the state, as are the buffers beside them and those of a module, under names that begin with "loss_fn". They
        keep the type of the weights, in which losses are computed.
    optimizer: such as optim.SGD(lr=0.01, momentum=0.9), which trains the parameters of net and, if the loss is a
        module, of loss_fn; an optimizer with its own parameters or groups trains only these:
        optim.SGD(lr=0.01).over(net, groups), optim.Adam([*net.parameters(), *loss_fn.parameters()]).
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
    Raises NoGpuError, ValueError for an unknown precision, a network without parameters, an optimizer of parameters
    that neither net nor loss_fn has, or shards of an optimizer that needs whole tensors, RuntimeError where ranks
    were started but not connected (`lamina.distributed.init`), MemoryLimitError at the first step when it cannot be
    planned in so little memory.
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


#: `requires_grad` of classes that tell `settings_version` when it changes.
_OWN_FLAGS = (Tensor.requires_grad, Parameter.requires_grad)


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
        programs: Programs[CompiledStep],
        tuner: Tuner,
    ) -> None:
        self._net, self._loss_fn, self._optimizer = net, loss_fn, optimizer
        self.device, self.precision, self.options = where, precision, options
        self.backend = backend
        backends.get(where, backend)  # opened here, not by the first step
        self.memory_limit = None if memory_limit is None else as_bytes(memory_limit)
        self.shards = options.shards
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
        self._kept_wide: set[int] = set()  # frozen parameters that forward or the loss writes, by id
        self.modules = TrainedModules(net, loss_fn, optimizer)
        self.state = State.of(self.modules, precision, options, self._home)
        # The class of these finds out what requires_grad is when it is read.
        self._following = [
            p for p in self.state.parameters.values() if type(p).requires_grad not in _OWN_FLAGS
        ]
        named = list(self.modules.named_parameters())
        self._groups = optimizer.bound if optimizer.is_bound else ParameterGroups(optimizer, named)
        self._extend()
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
            or list holds net's positional arguments, a dict its keyword arguments; () for a net without any. Floats
            are cast to the compute type, integers and booleans reach the network as they are.
        targets: what loss_fn takes, likewise an array or nested arrays, as they are; None where the network computes
            its own loss, which loss_fn passes on: lambda outputs, targets: outputs["loss"].
        update: where gradients are accumulated, whether this call updates the parameters by the mean of the
            accumulated gradients, including this batch's; by default each `accumulate`-th call since the last update
            does.
        Raises TypeError for non-arrays, and for values that may be one array or several (a tuple of numbers).
        """
        none = isinstance(inputs, tuple | dict) and not inputs  # a network of parameters alone
        given, takes = flatten_arrays(inputs, "train_step: inputs", needed=not none)
        wanted, goals = flatten_arrays(targets, "train_step: targets", needed=targets is not None)
        specs = tuple([array_spec(x) for x in (*given, *wanted)])
        with self._turn:
            updates = self.waiting + 1 >= self.options.accumulate if update is None else update
            kind = BatchKind(takes, goals, specs, updates)
            others = self._with_gradient() if updates else frozenset()
            program = self._program(kind, others, (*given, *wanted))
            if self.options.parallel is not None:  # a rank's own steps are not compared with others'
                assert isinstance(program, CompiledStep)
                progress.begin_step(self.number)
                self._compare(program, kind.samples, self.options.parallel)
            tuned = None if isinstance(program, ComputedStep) else self._tuner.before(program.executable)
            with tuned or nullcontext():
                try:
                    results = iter(
                        program.run(*self._groups.given(self.number, program.rates), *given, *wanted)
                    )
                except ShapeError:
                    self.state.check_types(self.modules, self.precision)
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
        for name, entry in self.state.trained(self._groups) if self.shards is not None else ():
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

    @property
    def untrained_of_loss(self) -> list[str]:
        """The names in `whole_state` of the loss's buffers and random state, which older checkpoints do not have."""
        buffers = [f"buffers/{n}" for n in self.modules.buffers_of_loss()]
        return buffers + [f"random/{n}" for n in self.state.random if not n.isdigit()]

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

    def _compare(self, program: CompiledStep, samples: int | None, parallel: DataParallel) -> None:
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

    def program(self, inputs: Any, targets: Any = None) -> CompiledStep:
        """The program for inputs and targets of these shapes and dtypes, compiled on first use.

        inputs, targets: a Spec, or a tree of them in the arrays' structure.
        """
        (given, takes), (wanted, goals) = _tree.flatten(inputs), _tree.flatten(targets)
        found = self._program(BatchKind(takes, goals, tuple(s.open for s in (*given, *wanted))))
        assert isinstance(found, CompiledStep)  # what is traced for no call serves all
        return found

    def _program(
        self, kind: BatchKind, gathered: frozenset[str] = frozenset(), arrays: Sequence[Any] = ()
    ) -> CompiledStep | ComputedStep:
        """gathered: parameters that already have a gradient; those of them that the program's own loss does not
        depend on are updated by that gradient alone. arrays: the batch's, where there is one."""

        def serves(program: CompiledStep) -> bool:
            return program.holds() and (not arrays or program.numbers(arrays))

        key = (kind, current_policy(), self._modes_and_frozen(), self._groups.compiled)
        with self._turn:
            others = gathered - self._reached.get(key, frozenset())
            found = self._programs.find((key, others), serves)
            if found is not None:
                return found
            with collector_paused():
                made = self._compile(kind, others, arrays, self._programs.count((key, others)))
            if isinstance(made, CompiledStep):
                self._reached[key] = made.reached
                self._keep((key, others - made.reached), made)
            return made

    def _keep(self, key: Hashable, made: CompiledStep) -> None:
        """Keep a new program, and say what makes many of them."""
        before = self._programs.newest(key)
        self._programs.add(key, made)
        if made.numbers:
            warn_of_many(self._programs.count(key), "train_step")
        elif before is not None:
            warn_of_values(self._programs.count(key), "train_step", before.closed.changed)

    def _modes_and_frozen(self) -> Hashable:
        """Which modules are in training mode, and which parameters are trained: recomputed only when one
        was changed."""
        for p in self._following:
            _ = p.requires_grad  # a change that happened elsewhere becomes one of settings_version
        if self._settings[0] != settings_version():
            self.state.check_parameters(self.modules)
            modes = tuple([m.training for m in self.modules.modules()])
            trained = tuple([p.requires_grad for p in self.state.parameters.values()])
            self._settings = settings_version(), (modes, trained)
        return self._settings[1]

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

    def _extend(self) -> None:
        """Add the state of parameters that are trained now."""
        self.state.extend(self.modules, self._groups, self.precision, self.options, self._home)

    # ---- the program
    def _compile(
        self, kind: BatchKind, gathered: frozenset[str], arrays: Sequence[Any], count: int
    ) -> CompiledStep | ComputedStep:
        """count: of the programs of such batches: from `MANY` on, one that depends on a batch's numbers is computed
        once instead."""
        self.state.check_types(self.modules, self.precision)
        self._extend()
        held = self.state.named()
        rates = [f"rate{i}" for i in range(len(self._groups.groups))]
        given = self._groups.given_specs()
        specs = [*(x.spec.open for x in held.values()), *given, *kind.specs]
        values = {n: Value(s, name=n) for n, s in zip([*held, *rates, *kind.names], specs, strict=True)}
        trace = StepTrace(
            self.modules,
            self.loss_fn,
            self.state,
            self._groups,
            self.precision,
            self.options,
            self._kept_wide,
        )
        batch = [values[name] for name in kind.names]
        known = {values[name]: x for name, x in held.items()} | dict(zip(batch, arrays, strict=bool(arrays)))
        with policy(tf32=self.precision.tf32), traced_for(self.device):
            traced, capture = trace(values, kind, gathered, known if arrays else {})
        closed, numbers = ClosedOver(capture, self.device), capture.numbers
        if numbers.serves_once or (numbers.may_serve_once and numbers.asked and count >= MANY):
            placed = [values[name] for name in rates]
            state = [(x, values[name]) for name, x in held.items()]
            return ComputedStep(traced, state, placed, closed, given, numbers)
        return CompiledStep.of(
            list(values.values()),
            traced,
            list(held.values()),
            closed,
            given,
            self.options,
            self.device,
            self.backend,
            self.memory_limit,
            capture.numbers,
            batch,
        )
