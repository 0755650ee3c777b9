"""Callbacks: observe a training run, and may end it, keep its best state, change its learning rate, or log it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from lamina import distributed
from lamina._lazy import listing
from lamina.graph import Timeline, clock_offset
from lamina.ops.arguments import Checked
from lamina.optim.scaled import multiply_rate, rate_factor, scale_rate
from lamina.runtime import check_writable, write_atomically
from lamina.train.checkpoint import Position, save_checkpoint
from lamina.train.events import EventFile
from lamina.train.history import Epoch, History
from lamina.train.metrics import Metric
from lamina.train.setup import Setup
from lamina.train.step import Step

__all__ = [
    "BestCheckpoint",
    "CSVLogger",
    "Callback",
    "EarlyStopping",
    "ReduceLROnPlateau",
    "Run",
    "TensorBoard",
    "Trace",
]
__dir__ = listing(__all__)


@dataclass
class Run:
    """A call of `fit`, as callbacks see it.

    start: the position where training begins. epochs: their total number. metrics: those of the validation data, by
        name. setup: of the data.
    leads: whether this rank writes files, where several ranks have the same callbacks.
    """

    step: Step
    epochs: int
    history: History
    start: Position = field(default_factory=Position)
    metrics: Mapping[str, Metric] = field(default_factory=dict)
    setup: Setup = field(default_factory=dict)
    leads: bool = True


class Callback(Checked):
    """Observes a run; subclasses override the methods that they need. A plain function of an `Epoch` is one, too.

    The result of `state` is kept in checkpoints, so that a resumed run equals an uninterrupted one.
    """

    def begin(self, run: Run) -> None:
        """Training begins; run.start tells whether it is resumed. Files that cannot be written are refused here."""

    def step(self, number: int, loss: float) -> None:
        """Step `number` of the network, counted from 0, had this loss."""

    def epoch(self, epoch: Epoch) -> bool | None:
        """An epoch has ended; True ends training."""

    def after_epoch(self, position: Position) -> None:
        """All callbacks have seen the epoch; `fit` would write a checkpoint of this position, with the callbacks'
        states."""

    def end(self) -> None:
        """Training has ended, for whatever reason."""

    def state(self) -> dict[str, Any]:
        """The callback's state, as JSON values."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the state of an earlier run."""


class OfEpochs(Callback):
    """A function of epochs as a callback."""

    def __init__(self, function: Callable[[Epoch], Any]) -> None:
        self.function = function

    def epoch(self, epoch: Epoch) -> bool:
        """The function's result."""
        return bool(self.function(epoch))


def as_callback(given: Any) -> Callback:
    """Callbacks unchanged, functions of epochs wrapped. Raises TypeError."""
    if isinstance(given, Callback):
        return given
    if isinstance(given, type) or not callable(given):
        raise TypeError(f"fit: callbacks must be Callbacks or functions of an Epoch, got {given!r}")
    return OfEpochs(given)


class Monitor(Callback):
    """Compares one figure of each epoch with the best so far.

    monitor: its name (`Epoch.figures`); None takes "validation.loss" if present, else "loss".
    mode: "min" or "max", which is better; None decides by the name: smaller losses and errors are better.
    min_delta: the smallest change that counts as an improvement.
    """

    def __init__(
        self, monitor: str | None = None, *, mode: str | None = None, min_delta: float = 0.0
    ) -> None:
        if mode not in (None, "min", "max"):
            raise ValueError(f"{type(self).__name__}: mode must be 'min' or 'max', got {mode!r}")
        if not min_delta >= 0:
            raise ValueError(f"{type(self).__name__}: min_delta must be at least 0, got {min_delta}")
        self.monitor, self.mode, self.min_delta = monitor, mode, min_delta
        self.best: float | None = None
        self.run: Run | None = None

    def begin(self, run: Run) -> None:
        """Store the run."""
        self.run = run

    def value(self, epoch: Epoch) -> float:
        """The figure of an epoch. Raises ValueError where there is none of this name."""
        found = epoch.figures()
        name = self.monitor or ("validation.loss" if "validation.loss" in found else "loss")
        if name not in found:
            raise ValueError(
                f"{type(self).__name__}: epoch {epoch.number + 1} has no figure {name!r}, only "
                + ", ".join(found)
            )
        return found[name]

    def larger_is_better(self) -> bool:
        """The direction of improvement."""
        if self.mode is not None:
            return self.mode == "max"
        name = (self.monitor or "loss").rpartition(".")[2]
        metric = self.run.metrics.get(name) if self.run else None
        return metric.larger_is_better if metric else name == "accuracy"

    def improved(self, epoch: Epoch) -> bool:
        """Whether the figure is the best so far; if so, it is stored. NaN never is."""
        value = self.value(epoch)
        if math.isnan(value):
            return False
        better = self.best is None or (
            value > self.best + self.min_delta
            if self.larger_is_better()
            else value < self.best - self.min_delta
        )
        if better:
            self.best = value
        return better

    def state(self) -> dict[str, Any]:
        """The best figure."""
        return {"best": self.best}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """The best figure."""
        self.best = state["best"]


class EarlyStopping(Monitor):
    """Ends training when a figure has not improved for `patience` epochs.

    Comparing and counting restart with each run, except one resumed from a checkpoint.

    restore_best: at the end the network gets the parameters and buffers of its best epoch of this run.
    """

    def __init__(
        self,
        monitor: str | None = None,
        *,
        patience: int = 5,
        min_delta: float = 0.0,
        mode: str | None = None,
        restore_best: bool = False,
    ) -> None:
        if patience < 1:
            raise ValueError(f"EarlyStopping: patience must be at least 1, got {patience}")
        super().__init__(monitor, mode=mode, min_delta=min_delta)
        self.patience, self.restore_best = patience, restore_best
        self.waited = 0
        self._kept: dict[str, np.ndarray[Any, Any]] = {}

    def begin(self, run: Run) -> None:
        """Reset, unless the run is resumed."""
        super().begin(run)
        if run.start == Position():
            self.best, self.waited = None, 0

    def epoch(self, epoch: Epoch) -> bool:
        """Whether patience has run out."""
        if self.improved(epoch):
            self.waited = 0
            if self.restore_best and self.run is not None:
                self._kept = {n: x.numpy().copy() for n, x in _weights(self.run.step).items()}
        else:
            self.waited += 1
        return self.waited >= self.patience

    def end(self) -> None:
        """Restore the best weights."""
        if self._kept and self.run is not None:
            for name, held in _weights(self.run.step).items():
                held.copy_(self._kept[name])
            self._kept = {}

    def state(self) -> dict[str, Any]:
        """The best figure, and the number of epochs since."""
        return {**super().state(), "waited": self.waited}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        super().load_state(state)
        self.waited = int(state["waited"])


def _weights(step: Step) -> dict[str, Any]:
    """Parameters and buffers by name, and this rank's pieces of the master weights that its network holds rounded."""
    groups = ("parameters", "buffers", "masters")
    return {f"{group}/{n}": x for group in groups for n, x in getattr(step.state, group).items()}


class BestCheckpoint(Monitor):
    """Writes a checkpoint whenever a figure is the best so far; runs resume from it as from `fit`'s own."""

    def __init__(
        self, path: str | Path, monitor: str | None = None, *, mode: str | None = None, min_delta: float = 0.0
    ) -> None:
        super().__init__(monitor, mode=mode, min_delta=min_delta)
        self.path = Path(path)
        self._due = False

    def begin(self, run: Run) -> None:
        """Refuse a file that cannot be written. Raises OSError."""
        super().begin(run)
        if run.leads:
            check_writable(self.path)

    def epoch(self, epoch: Epoch) -> None:
        """Whether the epoch is the best; it is written after the other callbacks have seen it."""
        self._due = self.improved(epoch)

    def after_epoch(self, position: Position) -> None:
        """Write it if the epoch is the best; a sharded state is gathered by all ranks."""
        due, self._due = self._due, False
        if due and self.run is not None and (self.run.leads or self.run.step.shards is not None):
            save_checkpoint(self.path, self.run.step, position, self.run.setup)


class ReduceLROnPlateau(Monitor):
    """Reduces the learning rate when a figure has not improved for a while (torch's ReduceLROnPlateau, by epochs).

    factor: multiplies the current rate (also a schedule's, whoever else has changed it) after more than `patience`
        epochs without improvement.
    threshold: the required improvement: a fraction of the best (threshold_mode "rel"), or a difference ("abs").
    cooldown: how many epochs after a change do not count. min_factor: this callback's changes in a run together never
        reduce the rate below this multiple of its initial value (torch's min_lr as a fraction, which fits schedules).
    """

    def __init__(
        self,
        monitor: str | None = None,
        *,
        mode: str | None = None,
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_factor: float = 0.0,
    ) -> None:
        super().__init__(monitor, mode=mode)
        if not 0 < factor < 1:
            raise ValueError(f"ReduceLROnPlateau: factor must be between 0 and 1, got {factor}")
        if patience < 0 or cooldown < 0:
            raise ValueError(
                f"ReduceLROnPlateau: patience and cooldown must be at least 0: {patience}, {cooldown}"
            )
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(
                f"ReduceLROnPlateau: threshold_mode must be 'rel' or 'abs', got {threshold_mode!r}"
            )
        self.factor, self.patience, self.cooldown, self.min_factor = factor, patience, cooldown, min_factor
        self.threshold, self.relative = threshold, threshold_mode == "rel"
        self.scale, self.waited, self.cooling = 1.0, 0, 0
        self._found: float | None = None  # product of the factors of all such callbacks, in a state

    def begin(self, run: Run) -> None:
        """Restore the rate of a resumed run; in another run, reset and start from the current rate."""
        super().begin(run)
        if run.start == Position():
            self.best, self.scale, self.waited, self.cooling, self.min_delta = None, 1.0, 0, 0, 0.0
        elif self._found is not None:
            scale_rate(run.step.optimizer, self._found)
        self._found = None

    def epoch(self, epoch: Epoch) -> None:
        """Compare, count, and change the rate when due."""
        if self.best is not None:
            self.min_delta = self.threshold * (abs(self.best) if self.relative else 1.0)
        self.waited = 0 if self.improved(epoch) else self.waited + 1
        if self.cooling:
            self.cooling, self.waited = self.cooling - 1, 0
        if self.waited > self.patience:
            self._reduce()
            self.cooling, self.waited = self.cooldown, 0

    def _reduce(self) -> None:
        least = self.scale * self.factor < self.min_factor
        change = self.min_factor / self.scale if least else self.factor
        self.scale = self.min_factor if least else self.scale * change
        if self.run is not None:
            multiply_rate(self.run.step.optimizer, change)

    def state(self) -> dict[str, Any]:
        """The comparison state, counters, changes made, and the total factor applied to the rate."""
        found = {**super().state(), "scale": self.scale, "waited": self.waited, "cooling": self.cooling}
        return found | ({"rate_factor": rate_factor(self.run.step.optimizer)} if self.run is not None else {})

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore them."""
        super().load_state(state)
        self.scale = float(state["scale"])
        self._found = float(state.get("rate_factor", self.scale))  # older files have the scale alone
        self.waited, self.cooling = int(state["waited"]), int(state["cooling"])


# ---- logging


class CSVLogger(Callback):
    """Writes the figures of each epoch as a line of a CSV file; a resumed run continues the file.

    The file is complete at every moment. Lines of epochs that are trained again are replaced.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._rows: list[dict[str, str]] = []
        self._leads = True

    def begin(self, run: Run) -> None:
        """Take over the lines of earlier epochs. Raises OSError for a file that cannot be written."""
        self._rows, self._leads = [], run.leads
        if not run.leads:
            return
        check_writable(self.path)
        if run.start != Position() and self.path.is_file():
            with self.path.open(newline="", encoding="utf-8") as file:
                rows = list(csv.DictReader(file))
            self._rows = [
                r for r in rows if (r.get("epoch") or "").isdigit() and int(r["epoch"]) <= run.start.epoch
            ]

    def epoch(self, epoch: Epoch) -> None:
        """Rewrite the file with one more line."""
        if not self._leads:
            return
        rest = {
            "learning_rate": epoch.learning_rate,
            "samples_per_second": epoch.samples_per_second,
            "seconds": epoch.seconds,
        }
        row = {"epoch": str(epoch.number + 1)} | {n: repr(v) for n, v in (epoch.figures() | rest).items()}
        self._rows.append(row)
        columns = list(dict.fromkeys(name for r in self._rows for name in r))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(self._rows)
        write_atomically(self.path, [text.getvalue().encode()])


class TensorBoard(Callback):
    """Writes losses of steps and figures of epochs as TensorBoard's event files, without TensorBoard.

    folder: created if missing; each run writes its own file. `tensorboard --logdir FOLDER` (of the package
        tensorboard, which is not needed for writing) shows them.
    every: the number of steps between two recorded losses.
    """

    def __init__(self, folder: str | Path, *, every: int = 1) -> None:
        if every < 1:
            raise ValueError(f"TensorBoard: every must be at least 1, got {every}")
        self.folder, self.every = Path(folder), every
        self._file: EventFile | None = None
        self._last = 0

    def begin(self, run: Run) -> None:
        """Open the file. Raises OSError."""
        self._last = run.step.number
        if run.leads:
            self._file = EventFile(self.folder, purge_step=self._last if self._last else None)

    def step(self, number: int, loss: float) -> None:
        """Write the loss."""
        self._last = number
        if self._file is not None and number % self.every == 0:
            self._file.scalars(number, {"step/loss": loss})

    def epoch(self, epoch: Epoch) -> None:
        """Write the figures, at the number of the epoch's last step."""
        if self._file is not None:
            speed = {"learning_rate": epoch.learning_rate, "samples_per_second": epoch.samples_per_second}
            found = epoch.figures() | speed
            self._file.scalars(self._last, {f"epoch/{n.replace('.', '/')}": v for n, v in found.items()})
            self._file.flush()

    def end(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None


class Trace(Callback):
    """Records a timeline of some steps, for chrome://tracing and https://ui.perfetto.dev.

    These steps train as usual, but are synchronized one by one.

    path: a JSON file. With several ranks, all of which must have this callback, each writes one, `run.rank3.json` for
        `run.json`, by rank 0's clock; `lamina trace` joins them.
    first: number of program calls before recording begins (kernels are loaded and captured in the first two). steps:
        number of recorded calls.
    """

    def __init__(self, path: str | Path, *, first: int = 2, steps: int = 3) -> None:
        if first < 0 or steps < 1:
            raise ValueError(f"Trace: first must be at least 0 and steps at least 1, got {first} and {steps}")
        self.path, self.first, self.steps = Path(path), first, steps
        self.timeline = Timeline(steps, skip=first)
        self._recording = ExitStack()

    def begin(self, run: Run) -> None:
        """Begin recording. Raises OSError for a file that cannot be written."""
        rank = distributed.rank()
        check_writable(self.own_path)
        self.timeline = Timeline(self.steps, skip=self.first, rank=rank)
        if distributed.world_size() > 1:
            self.timeline.offset, self.timeline.error = clock_offset(distributed.all_gather_object, rank)
        self._recording.enter_context(self.timeline.record())

    def end(self) -> None:
        """Write what was recorded."""
        self._recording.close()
        self.timeline.save(self.own_path)

    @property
    def own_path(self) -> Path:
        """This rank's file."""
        if distributed.world_size() == 1:
            return self.path
        return self.path.with_suffix(f".rank{distributed.rank()}{self.path.suffix}")
