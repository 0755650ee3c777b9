"""A training step, traced: the network's forward pass, the loss, the gradients, then the update."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina import _tree, ops
from lamina.graph import Value
from lamina.graph.ir.autodiff import gradients_or_none
from lamina.graph.ir.graph import constant
from lamina.graph.ir.surroundings import SameSurroundings, reads_of
from lamina.graph.passes.idioms import with_idioms
from lamina.nn.mixed_precision import cast_float
from lamina.nn.parameter import standing_in
from lamina.ops.arguments import shown
from lamina.ops.core import Operand, computing_in, operand, recording
from lamina.optim.groups import ParameterGroups, TrainedParameter
from lamina.runtime import is_array
from lamina.spec.precision import Precision
from lamina.train.averaging import AveragedModel
from lamina.train.batch_kind import BatchKind
from lamina.train.closing import StepCapture
from lamina.train.labels import IGNORED, are_labels
from lamina.train.options import Options
from lamina.train.state import State
from lamina.train.trained import TrainedModules
from lamina.train.update_trace import UpdateTrace, zeros_as

Loss = Callable[[Any, Any], Any]


@dataclass(frozen=True)
class TracedStep:
    """The values that a step computes.

    states: the next value of every state, in order.
    figures: the loss; where targets are labels, the numbers of hits and of labels.
    grads: of every trained parameter, by name; empty unless they are kept.
    exchanged: values that other ranks exchange with this one, but nothing reads.
    reached: the names of the parameters that the loss depends on.
    """

    states: Sequence[Value]
    figures: Sequence[Value]
    grads: dict[str, Value]
    exchanged: Sequence[Value]
    reached: frozenset[str]


@dataclass
class _ForwardPass:
    """The results of the forward pass.

    hits: where targets are labels, how many of them are predicted, and how many count.
    after: the next values of buffers and random states. written: the parameters that the network itself wrote.
    exchanged: see `TracedStep`.
    """

    loss: Any
    hits: list[Value]
    after: dict[str, Any]
    written: dict[str, Any]
    exchanged: list[Value]

    def recognize(self) -> None:
        """Replace formulas by equivalent ops, whose gradients keep and move less data."""
        every = [self.loss, *self.hits, *self.exchanged, *self.after.values(), *self.written.values()]
        traced = dict.fromkeys(x for x in every if isinstance(x, Value))
        made: dict[Any, Any] = dict(zip(traced, with_idioms(list(traced)), strict=True))

        def of(x: Any) -> Any:
            return made[x] if isinstance(x, Value) else x

        self.loss, self.hits = of(self.loss), [of(x) for x in self.hits]
        self.after = {n: of(x) for n, x in self.after.items()}
        self.written = {n: of(x) for n, x in self.written.items()}
        self.exchanged = [of(x) for x in self.exchanged]


@dataclass(frozen=True, eq=False)
class StepTrace:
    """Traces the step of a network for a kind of batch.

    kept_wide: frozen parameters that forward or the loss writes, by id. In a half type such a moving average of
        weights would stand still, its steps being smaller than a rounding: it is read in the master type.
    """

    modules: TrainedModules
    loss_fn: Loss
    state: State
    groups: ParameterGroups
    precision: Precision
    options: Options
    kept_wide: set[int]

    def __call__(
        self, values: dict[str, Value], kind: BatchKind, gathered: frozenset[str], known: Mapping[Value, Any]
    ) -> tuple[TracedStep, StepCapture]:
        """The step on values: the state, rates, inputs and targets, by name. Frozen parameters that turn out to be
        written are added to `kept_wide`, and the step is traced again.

        gathered: parameters that already have a gradient. Those without one are not updated, as in torch's
            optimizers. known: the arrays and tensors of the call, by value, where it is traced for one.
        """
        while True:
            capture = StepCapture()
            capture.numbers.given = known
            capture.numbers.may_serve_once = bool(known) and self.options.parallel is None
            traced = self._traced(values, kind, capture, gathered)
            rounded = self._written_in_half(capture)
            if not rounded:
                return traced, capture
            self.kept_wide.update(rounded)

    def _written_in_half(self, capture: StepCapture) -> set[int]:
        """Frozen parameters that were written in a half type."""
        if self.precision.compute == self.precision.master:
            return set()
        floats = {id(p) for p in self.state.parameters.values() if p.dtype.is_float}
        return (capture.overwritten & floats) - self._wide()

    def _wide(self) -> set[int]:
        """Parameters that forward reads in the master type, by id."""
        return {*self.modules.masters(), *self.kept_wide}

    def _traced(
        self, values: dict[str, Value], kind: BatchKind, capture: StepCapture, gathered: frozenset[str]
    ) -> TracedStep:
        parameters = {n: values[f"parameters/{n}"] for n in self.state.parameters}
        trained, wide = self._trained(), self._wide()
        half = {
            n: v if id(self.state.parameters[n]) in wide else cast_float(v, self.precision.compute)
            for n, v in parameters.items()
        }
        with contextlib.nullcontext() if self.options.parallel is None else self.options.parallel.own_part():
            forward = self._forward(half, values, kind, capture)
        forward.recognize()
        loss, scale = forward.loss, values.get("scale/scale")
        # Scaled float16 gradients are widened before they are divided, others when the optimizer reads them.
        wrt = half if scale is None else parameters
        grads = self._gradients(loss if scale is None else loss * scale[0], [wrt[n] for n, _ in trained])
        reached = frozenset([n for (n, _), g in zip(trained, grads, strict=True) if g is not None])
        pairs = zip(trained, grads, strict=True)
        arriving = [(each, g) for each, g in pairs if each[0] in reached | gathered]
        moved = self._moved(parameters, half, forward.written)
        update = UpdateTrace(self.state, self.groups, self.precision, self.options, values)
        update.run(
            [each for each, _ in arriving],
            [ops.zeros_like(wrt[n]) if g is None else g for (n, _), g in arriving],
            parameters | moved,
            [loss, *forward.hits],
            kind.updates,
        )
        new = {f"parameters/{n}": x for n, x in moved.items()} | update.new | forward.after
        if kind.updates and self.options.averaged is not None:
            new |= self._average(self.options.averaged, values, new, update.good)
        came = {n: g for ((n, _), _), g in zip(arriving, update.grads, strict=True)}
        kept = {n: came[n] if n in came else zeros_as(parameters[n]) for n, _ in trained}
        return TracedStep(
            [new.get(name, values[name]) for name in self.state.named()],
            update.figures,
            kept if self.options.keep_grads else {},
            forward.exchanged,
            reached,
        )

    def _trained(self) -> list[tuple[str, TrainedParameter]]:
        """The trained parameters, by name. Raises ValueError where there are none."""
        found = self.state.trained(self.groups)
        if not found:
            raise ValueError(
                f"train_step: {self.modules} has no parameter to train: those of the optimizer are frozen "
                "(requires_grad_(True) trains them)"
            )
        return found

    def _forward(
        self, parameters: dict[str, Value], values: dict[str, Value], kind: BatchKind, capture: StepCapture
    ) -> _ForwardPass:
        """The network and its loss, which gets outputs in the master type and reads parameters in it, too.

        Raises TypeError and ValueError for a loss that is not a scalar.
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
            capture.parameters = frozenset([id(entry.param) for _, entry in self._trained()])
            inputs, targets = kind.trees(given, compute)
            positional, named = _tree.arguments(inputs, self.modules.net.forward)
            with contextlib.nullcontext() if compute == master else computing_in(compute):
                results = self.modules.net(*positional, **named)
            found, structure = _tree.flatten(results, open_dataclasses=True, flags=True)
            places = zip(found, _tree.names(structure, "its output"), strict=True)
            read = [y if _is_object(y) else capture.read(operand(y, "forward", at)) for y, at in places]
            outputs = _tree.unflatten(
                structure, [y if _is_object(y) else cast_float(y, master) for y in read]
            )
            del found, results, places, read
            # In float16, whose gradients are scaled, the parameters themselves: see `_traced`.
            wide = (
                {n: values[f"parameters/{n}"] for n in parameters} if "scale/scale" in values else parameters
            )
            written = {n: mapping[id(self.state.parameters[n])] for n in parameters}
            written = {n: x for n, x in written.items() if x is not parameters[n]}
            mapping.update(
                (id(self.state.parameters[n]), cast_float(written.get(n, v), master)) for n, v in wide.items()
            )
            capture.guard(SameSurroundings(reads_of(self.loss_fn)))
            loss = self.loss_fn(outputs, targets)
            loss = capture.read(loss) if isinstance(loss, Value) else loss
            # Frozen parameters that were written (a moving average of weights) have new values, as buffers do.
            kept = {n: p for n, p in self.state.parameters.items() if id(p) in capture.overwritten}
            states += [(f"parameters/{n}", p) for n, p in kept.items()]
            written = {n: x for n, x in written.items() if n not in kept}
            after = {name: capture.read(mapping[id(x)]) for name, x in states}
        capture.leave_behind()
        _check_loss(loss)
        hits = _hits(outputs, targets)
        exchanged = capture.exchanged(x for x in (loss, *hits, *after.values()) if isinstance(x, Value))
        return _ForwardPass(loss, hits, after, written, list(exchanged))

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
            n: x if x.dtype == p.dtype else p + cast_float(x - half[n], p.dtype)
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
            averaged.update_parameters(self.modules.net)
        after = {n: mapping[id(x)] for n, x in own.items()}
        return after if good is None else {n: ops.where(good, x, values[n]) for n, x in after.items()}


def _check_loss(loss: Any) -> None:
    if not isinstance(loss, Operand):
        raise TypeError(f"train_step: loss_fn must give a scalar tensor, it gave {shown(loss)}")
    if loss.shape != ():
        raise ValueError(f"train_step: loss_fn must give a scalar, it gave shape {loss.shape}; use a mean")


def _is_object(y: Any) -> bool:
    """Whether a result is an object with attributes (a key-value cache), which the loss gets as it is."""
    return hasattr(y, "__dict__") and not is_array(y) and not isinstance(y, Operand)


def _hits(outputs: Any, targets: Any) -> list[Value]:
    """How often the largest output is the label, and how many labels count, if there is one output (N, C, …) and
    labels (N, …)."""
    if not (isinstance(outputs, Value) and isinstance(targets, Value)):
        return []
    if not are_labels(outputs.shape, targets.shape, targets.dtype.kind):
        return []
    labels = ops.cast(targets, "int64")
    return [ops.sum(ops.eq(ops.argmax(outputs, 1), labels)), ops.sum(ops.ne(labels, IGNORED))]
