"""One program of a training step."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from lamina.distributed.alike import collectives_of
from lamina.graph import Executable, Graph, Value, compile
from lamina.graph.ir.call_numbers import CallNumbers, SameNumbers
from lamina.graph.run.turn import turns_of
from lamina.runtime import Device
from lamina.spec import Spec
from lamina.tensors import Tensor
from lamina.train.closing import ClosedOver
from lamina.train.options import Options
from lamina.train.step_trace import TracedStep

#: How many parameters an error message names.
_SHOWN = 4


@dataclass
class CompiledStep:
    """One compiled graph on the shared state.

    counts: whether it gives the numbers of hits and of labels. grads: the parameters whose gradients it gives.
    collectives: its communication, to be compared among ranks. reached: the parameters that the loss depends on.
    rates: the specs of the rates' inputs. numbers: whether a batch has the numbers that the trace depends on. told:
    what it is, in errors of other ranks.
    """

    executable: Executable
    counts: bool
    grads: Sequence[str]
    collectives: Sequence[tuple[str, str]]
    closed: ClosedOver
    reached: frozenset[str]  # parameters that the loss depends on
    rates: Sequence[Spec]  # specs of each group's inputs
    numbers: SameNumbers
    told: str = field(init=False)

    def __post_init__(self) -> None:
        self.told = f"a step with gradients of {_in_short(sorted(self.reached))}"

    @classmethod
    def of(
        cls,
        inputs: Sequence[Value],
        traced: TracedStep,
        held: Sequence[Tensor],
        closed: ClosedOver,
        rates: Sequence[Spec],
        options: Options,
        where: Device,
        backend: str | None,
        memory_limit: int | None,
        numbers: CallNumbers,
        batch: Sequence[Value],
    ) -> CompiledStep:
        """Compile a traced step for a device.

        inputs: the traced values of the state, held, then of what each call passes. The state is updated in place,
        and so are tensors that the step closes over; what it only passes through (a buffer that is not updated)
        stays where it is. numbers: of the batch for which it was traced; batch: the values of its arrays.
        """
        outputs = [
            *traced.states,
            *traced.figures,
            *traced.grads.values(),
            *traced.exchanged,
            *closed.outputs,
        ]
        graph = Graph([*inputs, *closed.inputs], outputs, "train_step").unmarked()
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
        ranks = None if options.parallel is None else options.parallel.ranks
        return cls(
            executable,
            len(traced.figures) == 3,
            list(traced.grads),
            collectives_of(graph, ranks),
            closed,
            traced.reached,
            rates,
            SameNumbers(numbers, batch, lambda graph: compile(graph, where, backend=backend)),
        )

    def run(self, *inputs: Any) -> tuple[Tensor, ...]:
        """One step on the rates, inputs and targets: the loss, the hits and labels (if any), and the gradients."""
        return self.executable(*inputs, *self.closed.given)

    def holds(self) -> bool:
        """Whether a trace made now would be the same."""
        return self.closed.hold()


@dataclass
class ComputedStep:
    """One step that no program serves: the values of its trace are computed one by one.

    held: the state, with the value of each. placed: the values of the rates. The others are as in `CompiledStep`.
    """

    traced: TracedStep
    held: Sequence[tuple[Tensor, Value]]
    placed: Sequence[Value]
    closed: ClosedOver
    rates: Sequence[Spec]
    numbers: CallNumbers
    executable: None = None

    @property
    def counts(self) -> bool:
        """As in `CompiledStep`."""
        return len(self.traced.figures) == 3

    @property
    def grads(self) -> Sequence[str]:
        """As in `CompiledStep`."""
        return list(self.traced.grads)

    @property
    def reached(self) -> frozenset[str]:
        """As in `CompiledStep`."""
        return self.traced.reached

    def run(self, *inputs: Any) -> list[Tensor]:
        """The step on the rates and the batch for which it was traced: as `CompiledStep.run`."""
        rates = dict(zip(self.placed, inputs, strict=False))
        self.numbers.given = {**self.numbers.given, **rates}
        figures = [*self.traced.figures, *self.traced.grads.values()]
        pairs = zip(self.held, self.traced.states, strict=True)
        moved = [(x, new) for (x, value), new in pairs if new is not value]
        updated = [self.closed.kept[i] for i in self.closed.updated]
        moved += zip(updated, self.closed.outputs, strict=True)
        tensors = [x for x, _ in moved]
        with turns_of(tensors, tensors):
            made = self.numbers.results([*figures, *(v for _, v in moved)])
            for x, new in zip(tensors, made[len(figures) :], strict=True):
                x.copy_(new)
        return made[: len(figures)]


def _in_short(names: Sequence[str]) -> str:
    """A few of the names, with a checksum over all if truncated."""
    if len(names) <= _SHOWN:
        return ", ".join(names)
    seal = zlib.crc32("\n".join(names).encode())
    return f"{', '.join(names[:_SHOWN])}, … ({len(names)} parameters, checksum {seal:08x})"
