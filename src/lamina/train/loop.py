"""The loop around a training step: epochs, progress, evaluation, checkpoints."""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

from lamina.data import Epochs
from lamina.infer import Predictor
from lamina.tensors import Tensor
from lamina.train.checkpoint import Position, save_checkpoint
from lamina.train.evaluation import Scores, evaluate
from lamina.train.progress import Reporter
from lamina.train.step import Step

#: Losses are read this many steps late, so that reading one does not make the device wait for the host.
LATE = 2


@dataclass(frozen=True)
class Epoch:
    """Figures of one epoch: means over its steps, and the scores on held-out data after it."""

    number: int
    loss: float
    accuracy: float | None
    images_per_second: float
    seconds: float
    held_out: Scores | None = None

    def __str__(self) -> str:
        parts = [f"epoch {self.number + 1}: loss {self.loss:.4f}"]
        if self.accuracy is not None:
            parts.append(f"accuracy {100 * self.accuracy:.2f} %")
        if self.held_out is not None:
            parts.append(f"held out {self.held_out}")
        return ", ".join(parts) + f", {self.images_per_second:.0f} images/s, {self.seconds:.1f} s"


@dataclass
class History:
    """What a run was: the loss of every step, the figures of every epoch, and where it ended."""

    losses: list[float] = field(default_factory=list)
    epochs: list[Epoch] = field(default_factory=list)
    position: Position = field(default_factory=Position)


#: Called after each epoch; training ends early when it returns True.
Callback = Callable[[Epoch], Any]


def fit(
    step: Step,
    data: Iterable[Any],
    epochs: int,
    *,
    held_out: Iterable[Any] | None = None,
    start: Position = Position(),  # noqa: B008
    checkpoint: str | Path | None = None,
    callbacks: Sequence[Callback] = (),
    limit_steps: int | None = None,
    console: Console | None = None,
    progress: bool | None = None,
) -> History:
    """Train for `epochs` epochs in all, showing loss, accuracy, images per second and the time left.

    data: (images, labels) batches: anything with a length that can be iterated again and again; with a start
        inside, something that knows epochs (data.Batches, data.prefetch).
    held_out: evaluated after each epoch.
    start: where an earlier run ended (`load_checkpoint` returns it).
    checkpoint: a file to write after each epoch.
    callbacks: called with each Epoch; training ends when one returns True.
    limit_steps: end after so many steps.
    progress: draw a bar; by default on terminals only, with one line per epoch elsewhere.
    Raises ValueError when epochs < 1.
    """
    if epochs < 1:
        raise ValueError(f"fit: epochs must be at least 1, got {epochs}")
    run = _Run(step, data, epochs, held_out, checkpoint, limit_steps)
    total = epochs * len(data)  # type: ignore[arg-type]
    done = start.epoch * len(data) + start.batch  # type: ignore[arg-type]
    if limit_steps is not None:
        total = min(total, done + limit_steps)
    with Reporter(total, done, console, progress) as reporter:
        for number in range(start.epoch, epochs):
            first = start.batch if number == start.epoch else 0
            epoch = run.epoch(number, first, reporter)
            ends = [callback(epoch) for callback in callbacks]  # each is called, whatever the others say
            if any(ends) or run.is_over:
                break
    return run.history


class _Run:
    """One call of `fit`: the parts that stay the same, and what has been seen."""

    def __init__(
        self,
        step: Step,
        data: Iterable[Any],
        epochs: int,
        held_out: Iterable[Any] | None,
        checkpoint: str | Path | None,
        limit: int | None,
    ) -> None:
        self.step, self.data, self.epochs = step, data, epochs
        self.held_out, self.checkpoint, self.limit = held_out, checkpoint, limit
        self.history = History()
        self.predictor: Predictor | None = None

    @property
    def is_over(self) -> bool:
        """Whether the limit of steps is reached."""
        return self.limit is not None and len(self.history.losses) >= self.limit

    def epoch(self, number: int, first: int, reporter: Reporter) -> Epoch:
        """Train one epoch from batch `first` on, evaluate, write the checkpoint."""
        reporter.start_epoch(number, self.epochs)
        figures = self._train(number, first, reporter)
        whole = first + figures.steps == len(self.data)  # type: ignore[arg-type]
        self.history.position = Position(number + 1, 0) if whole else Position(number, first + figures.steps)
        summary = Epoch(
            number,
            figures.loss,
            figures.accuracy,
            figures.rate,
            figures.seconds,
            self._evaluate() if self.held_out is not None else None,
        )
        self.history.epochs.append(summary)
        reporter.line(str(summary))
        if self.checkpoint is not None:
            save_checkpoint(self.checkpoint, self.step, self.history.position)
        return summary

    def _train(self, number: int, first: int, reporter: Reporter) -> _Figures:
        figures = _Figures()
        pending: deque[tuple[Tensor, Tensor | None, int]] = deque()
        room = None if self.limit is None else self.limit - len(self.history.losses)
        for images, labels in itertools.islice(self._batches(number, first), room):
            loss = self.step(images, labels)
            pending.append((loss, self.step.correct, len(images)))
            if len(pending) > LATE:
                self._note(figures, pending.popleft(), reporter)
        while pending:
            self._note(figures, pending.popleft(), reporter)
        return figures

    def _note(self, figures: _Figures, result: tuple[Tensor, Tensor | None, int], reporter: Reporter) -> None:
        """Read the figures of a finished step."""
        loss, correct, count = result
        figures.add(float(loss.item()), None if correct is None else int(correct.item()), count)
        self.history.losses.append(figures.last)
        reporter.advance(figures.loss, figures.accuracy, figures.rate)

    def _batches(self, number: int, first: int) -> Iterator[Any]:
        if isinstance(self.data, Epochs):
            return self.data.epoch(number, first)
        return itertools.islice(iter(self.data), first, None)

    def _evaluate(self) -> Scores:
        assert self.held_out is not None
        if self.predictor is None:
            step = self.step
            self.predictor = Predictor(
                step.net, device=step.device, precision=step.precision, backend=step.backend
            )
        return evaluate(self.predictor, self.held_out)


class _Figures:
    """Sums over the steps of an epoch."""

    def __init__(self) -> None:
        self.steps = self.images = self.hits = 0
        self.sum = self.last = 0.0
        self.counts = True
        self.began = time.perf_counter()
        self.ended = self.began

    def add(self, loss: float, hits: int | None, images: int) -> None:
        """One more step."""
        self.steps, self.images = self.steps + 1, self.images + images
        self.sum, self.last = self.sum + loss, loss
        self.counts = hits is not None
        self.hits += hits or 0
        self.ended = time.perf_counter()

    @property
    def loss(self) -> float:
        """The mean loss of the steps."""
        return self.sum / max(self.steps, 1)

    @property
    def accuracy(self) -> float | None:
        """The share of labels that were hit, None where the step does not count them."""
        return self.hits / max(self.images, 1) if self.counts else None

    @property
    def seconds(self) -> float:
        """From the beginning to the last step."""
        return self.ended - self.began

    @property
    def rate(self) -> float:
        """Images per second."""
        return self.images / max(self.seconds, 1e-9)
