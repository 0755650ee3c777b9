"""The loop around a training step: epochs, progress, evaluation, checkpoints."""

from __future__ import annotations

import itertools
import math
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from rich.console import Console

from lamina._renamed import renamed
from lamina.data import Epochs
from lamina.infer import Predictor
from lamina.runtime import check_writable
from lamina.tensors import Tensor
from lamina.train.checkpoint import Position, save_checkpoint
from lamina.train.errors import DivergedError
from lamina.train.evaluation import Scores, evaluate, pair_of, samples_of
from lamina.train.interrupt import Interrupt
from lamina.train.progress import Reporter
from lamina.train.setup import Setup, check_same, data_setup
from lamina.train.step import Step

#: Losses are read this many steps late, so that reading one does not make the device wait for the host.
LATE = 2
#: float16 skips steps whose gradients overflow while its loss scale is searched: so many in a row are no divergence.
_SKIPPED = 20
_END = object()


@dataclass(frozen=True)
class Epoch:
    """Figures of one epoch: means over its steps, and the scores on validation data after it."""

    number: int
    loss: float
    accuracy: float | None
    samples_per_second: float
    seconds: float
    validation: Scores | None = None

    def __str__(self) -> str:
        parts = [f"epoch {self.number + 1}: loss {self.loss:.4f}"]
        if self.accuracy is not None:
            parts.append(f"accuracy {100 * self.accuracy:.2f} %")
        if self.validation is not None:
            parts.append(f"validation {self.validation}")
        return ", ".join(parts) + f", {self.samples_per_second:.0f} samples/s, {self.seconds:.1f} s"


@dataclass
class History:
    """What a run was: the loss of every step, the figures of every epoch, and where it ended."""

    losses: list[float] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    position: Position = field(default_factory=Position)


#: Called after each epoch; training ends early when it returns True.
Callback = Callable[[Epoch], Any]


@renamed(held_out="validation", limit_steps="max_steps")
def fit(
    step: Step,
    data: Iterable[Any],
    epochs: int,
    *,
    validation: Iterable[Any] | None = None,
    start: Position = Position(),  # noqa: B008
    checkpoint: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    max_steps: int | None = None,
    check_finite: bool = True,
    override: Collection[str] = (),
    console: Console | None = None,
    progress: bool | None = None,
) -> History:
    """Train for `epochs` epochs in all, showing loss, accuracy, samples per second and the time left.

    data: (inputs, targets) batches: anything that can be iterated again and again, or, for one epoch, once; with a
        start inside, something that knows epochs (data.Batches, data.prefetch).
    validation: evaluated after each epoch.
    start: where an earlier run ended (`load_checkpoint` returns it). What the checkpoint says of the run must be
        so again: epochs, batch size, seed and content of the data.
    checkpoint: a file to write after each epoch. After Ctrl-C the current step is finished and the file is written
        with the position inside of the epoch, before KeyboardInterrupt goes on; a second Ctrl-C ends at once.
    callbacks: called with each Epoch; training ends when one returns True.
    max_steps: end after so many steps.
    check_finite: end with DivergedError when a loss is infinite or NaN, or, before a checkpoint is written, a
        parameter: the last checkpoint stays. In float16 it takes more than 20 such losses in a row, because steps
        that overflow are skipped.
    override: what may differ from the run that wrote the checkpoint: "epochs", "data.batch_size", "data", "all".
    progress: draw a bar; by default on terminals only, with one line per epoch elsewhere.
    Raises ValueError for epochs < 1 and data without batches, TypeError for data that can be read only once where
    there are more epochs, ResumeError for another run than the checkpoint's, OSError when the checkpoint cannot be
    written.
    """
    if epochs < 1:
        raise ValueError(f"fit: epochs must be at least 1, got {epochs}")
    if isinstance(data, Iterator) and epochs - start.epoch > 1:
        raise TypeError(
            f"fit: a {type(data).__name__} can be read once, which is one epoch of {epochs}; give data that can be "
            "iterated again (a list, data.Batches, a loader)"
        )
    if checkpoint is not None:
        check_writable(checkpoint)
    setup = data_setup(data, epochs)
    check_same(start.setup, setup, override, "fit")
    run = _Run(step, data, epochs, validation, checkpoint, max_steps, check_finite, setup)
    return run.all(_at_the_same_sample(start, setup), callbacks, console, progress)


def _at_the_same_sample(start: Position, setup: Setup) -> Position:
    """The position in batches of another size (rounded down to a whole batch)."""
    old, new = start.setup.get("data.batch_size"), setup.get("data.batch_size")
    return replace(start, batch=start.batch * old // new) if old and new else start


class _Run:
    """One call of `fit`: the parts that stay the same, and what has been seen."""

    def __init__(
        self,
        step: Step,
        data: Iterable[Any],
        epochs: int,
        validation: Iterable[Any] | None,
        checkpoint: str | Path | None,
        max_steps: int | None,
        check_finite: bool,
        setup: Setup,
    ) -> None:
        self.step, self.data, self.epochs = step, data, epochs
        self.validation, self.checkpoint, self.max_steps = validation, checkpoint, max_steps
        self.check_finite, self.setup = check_finite, setup
        self.length = _length(data)
        self.history = History()
        self.first = step.number
        self.interrupt = Interrupt()
        self.predictor: Predictor | None = None
        self.bad = 0  # losses in a row that are not finite

    def all(
        self, start: Position, callbacks: Sequence[Callback], console: Console | None, progress: bool | None
    ) -> History:
        """Every epoch from `start` on."""
        done = start.epoch * (self.length or 0) + start.batch
        ends = [] if self.length is None else [self.epochs * self.length]
        ends += [] if self.max_steps is None else [done + self.max_steps]
        with Reporter(min(ends, default=None), done, console, progress) as reporter:
            for number in range(start.epoch, self.epochs):
                epoch = self.epoch(number, start.batch if number == start.epoch else 0, reporter)
                asked = [callback(epoch) for callback in callbacks]  # each is called, whatever the others say
                if any(asked) or self.is_over:
                    break
        return self.history

    @property
    def is_over(self) -> bool:
        """Whether the limit of steps is reached."""
        return self.max_steps is not None and len(self.history.losses) >= self.max_steps

    def epoch(self, number: int, first: int, reporter: Reporter) -> Epoch:
        """Train one epoch from batch `first` on, write the checkpoint, evaluate."""
        reporter.start_epoch(number, self.epochs)
        with self.interrupt:
            figures = self._train(number, first, reporter)
            self.history.position = (
                Position(number + 1, 0) if figures.whole else Position(number, first + figures.steps)
            )
            self._save()
        if self.interrupt.asked:
            raise KeyboardInterrupt(self._where())
        scores = None if self.validation is None else self._evaluate(self.validation)
        summary = Epoch(number, figures.loss, figures.accuracy, figures.rate, figures.seconds, scores)
        self.history.epochs.append(summary)
        reporter.line(str(summary))
        return summary

    def _train(self, number: int, first: int, reporter: Reporter) -> _Figures:
        figures = _Figures()
        pending: deque[_Result] = deque()
        room = None if self.max_steps is None else self.max_steps - len(self.history.losses)
        batches = self._batches(number, first)
        for batch in itertools.islice(batches, room):
            inputs, targets = pair_of(batch, f"fit: batch {first + figures.steps} of epoch {number + 1}")
            loss = self.step(inputs, targets)
            figures.steps += 1
            pending.append(_Result(loss, self.step.correct, samples_of(inputs), _labels(targets)))
            if len(pending) > LATE:
                self._note(figures, pending.popleft(), reporter)
            if self.interrupt.asked:
                break
        while pending:
            self._note(figures, pending.popleft(), reporter)
        figures.whole = self._is_whole(first + figures.steps, batches)
        if not figures.steps:
            raise ValueError(self._no_batches(number, first))
        return figures

    def _is_whole(self, position: int, batches: Iterator[Any]) -> bool:
        """Whether no batch is left: by the data's length, else by asking for one more."""
        if self.length is not None:
            return position >= self.length
        return not self.interrupt.asked and next(batches, _END) is _END

    def _no_batches(self, number: int, first: int) -> str:
        """Why there was nothing to train on."""
        if first:
            return f"fit: epoch {number + 1} has no batch {first} to go on from" + (
                f", only {self.length}" if self.length is not None else ""
            )
        again = (
            "; it gave some before: is it an iterator, which can be read only once?"
            if self.history.losses
            else ""
        )
        return f"fit: the data has no batches{again}"

    def _note(self, figures: _Figures, result: _Result, reporter: Reporter) -> None:
        """Read the figures of a finished step. Raises DivergedError."""
        loss = float(result.loss.item())
        figures.add(loss, None if result.correct is None else int(result.correct.item()), result)
        self.history.losses.append(loss)
        reporter.advance(figures.loss, figures.accuracy, figures.rate)
        self.bad = 0 if math.isfinite(loss) else self.bad + 1
        if self.check_finite and self.bad > (_SKIPPED if self.step.precision.scaled else 0):
            self._stop(f"the loss is {loss}", loss)

    def _save(self) -> None:
        """Write the checkpoint, unless training diverged."""
        if self.checkpoint is None:
            return
        if self.check_finite:
            for name, held in self.step.state.parameters.items():
                if not np.isfinite(held.numpy()).all():
                    self._stop(f"parameter {name} is not finite", self.history.losses[-1])
        save_checkpoint(self.checkpoint, self.step, self.history.position, self.setup)

    def _stop(self, why: str, loss: float) -> NoReturn:
        number = self.first + len(self.history.losses) - 1
        kept = "" if self.checkpoint is None else f" {self.checkpoint} was not written again."
        rate = self.step.optimizer.rate(number)
        raise DivergedError(
            f"fit: training diverged at step {number} with learning rate {rate:g}: {why}.{kept} "
            "A lower rate, a warm-up or clip_norm may help; check_finite=False goes on",
            number,
            loss,
        )

    def _where(self) -> str:
        """What to do after Ctrl-C."""
        at = self.history.position
        place = f"interrupted after {at.epoch} epochs and {at.batch} batches"
        return place if self.checkpoint is None else f"{place}; {self.checkpoint} goes on from there"

    def _batches(self, number: int, first: int) -> Iterator[Any]:
        if isinstance(self.data, Epochs):
            return self.data.epoch(number, first)
        return itertools.islice(iter(self.data), first, None)

    def _evaluate(self, data: Iterable[Any]) -> Scores:
        if self.predictor is None:
            step = self.step
            self.predictor = Predictor(
                step.net, device=step.device, precision=step.precision, backend=step.backend
            )
        return evaluate(self.predictor, data, self.step.loss_fn)


@dataclass(frozen=True)
class _Result:
    """A step that was started: its loss and hits, which may not be known yet, and what it was given."""

    loss: Tensor
    correct: Tensor | None
    samples: int
    labels: int


class _Figures:
    """Sums over the steps of an epoch."""

    def __init__(self) -> None:
        self.steps = self.read = self.samples = self.labels = self.hits = 0
        self.sum = 0.0
        self.whole = False  # whether it went on to the epoch's end
        self.began = self.ended = time.perf_counter()

    def add(self, loss: float, hits: int | None, result: _Result) -> None:
        """One more step is finished."""
        self.read, self.sum, self.samples = self.read + 1, self.sum + loss, self.samples + result.samples
        if hits is not None:
            self.hits, self.labels = self.hits + hits, self.labels + result.labels
        self.ended = time.perf_counter()

    @property
    def loss(self) -> float:
        """The mean loss of the steps."""
        return self.sum / max(self.read, 1)

    @property
    def accuracy(self) -> float | None:
        """The fraction of the labels that was hit, None where the targets are no labels."""
        return self.hits / self.labels if self.labels else None

    @property
    def seconds(self) -> float:
        """From the beginning to the last step."""
        return self.ended - self.began

    @property
    def rate(self) -> float:
        """Samples per second."""
        return self.samples / max(self.seconds, 1e-9)


def _length(data: Iterable[Any]) -> int | None:
    """How many batches an epoch has, None where the data does not know."""
    try:
        return len(data)  # type: ignore[arg-type]
    except TypeError:
        return None


def _labels(targets: Any) -> int:
    """How many elements the targets have, where they are one array: labels are one."""
    if isinstance(targets, tuple | dict):
        return 0
    return math.prod(targets.shape if hasattr(targets, "shape") else np.shape(targets))
