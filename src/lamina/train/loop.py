"""The loop around a training step: epochs, progress, evaluation, checkpoints."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
import warnings
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from rich.console import Console

from lamina._renamed import renamed
from lamina.data import Epochs, Prefetch
from lamina.distributed.data_parallel import DataParallel
from lamina.distributed.ranks import rank
from lamina.distributed.watch import patience
from lamina.graph.ir.surroundings import users_frame
from lamina.graph.run.timeline import host_span
from lamina.infer import Predictor
from lamina.ops.arguments import checked
from lamina.runtime import check_writable
from lamina.spec import Group
from lamina.tensors import Tensor
from lamina.train.callbacks import Callback, Run, as_callback
from lamina.train.checkpoint import Position, save_checkpoint
from lamina.train.checkpoint_folder import CheckpointFolder
from lamina.train.errors import DivergedError
from lamina.train.evaluation import Scores, check_unpadded, pair_of, samples_of, scored
from lamina.train.history import Epoch, History
from lamina.train.interrupt import Interrupt
from lamina.train.metrics import Metric, named_metrics
from lamina.train.preemption import Preempted, Preemption
from lamina.train.progress import Reporter
from lamina.train.scoring import LATE, Scoring
from lamina.train.setup import Setup, check_same, data_setup, step_setup
from lamina.train.step import Step

#: float16 skips steps whose gradients overflow while its loss scale is searched: this many in a row are tolerated.
_SKIPPED = 20
_COUNTS = ("read", "samples", "labels", "hits")
_END = object()
#: Seconds that other ranks wait for the one that writes a checkpoint.
_WRITING = 600.0


@renamed(held_out="validation", limit_steps="max_steps")
@checked
def fit(
    step: Step,
    data: Iterable[Any],
    epochs: int,
    *,
    validation: Iterable[Any] | None = None,
    metrics: Iterable[Metric | Callable[[Any, Any], Any]] | Mapping[str, Any] = (),
    start: Position = Position(),  # noqa: B008
    checkpoint: str | Path | CheckpointFolder | None = None,
    checkpoint_every: int | None = None,
    callbacks: Sequence[Callback | Callable[[Epoch], Any]] = (),
    max_steps: int | None = None,
    check_finite: bool = True,
    override: Collection[str] = (),
    console: Console | None = None,
    progress: bool | None = None,
) -> History:
    """Train for `epochs` epochs in all, showing loss, accuracy, samples per second and the time left.

    step: with several ranks (`parallel="data"`) each reads its part of every batch (`Batches(…, parallel="data")`);
        rank 0 logs and saves, figures and validation are of all.
    data: (inputs, targets) batches, or dicts of inputs without targets: any iterable that can be iterated repeatedly,
        or, for one epoch, once; to start within an epoch, data that knows epochs (data.Batches, data.prefetch).
    validation: evaluated after each epoch. metrics: computed on it beside loss and accuracy, as in `evaluate`.
    start: where an earlier run ended (`load_checkpoint` returns it). The run must match the checkpoint's: epochs,
        batch size, seed and content of the data.
    checkpoint: a file to write after each epoch. After Ctrl-C the current step is finished and the file is written
        with the position inside the epoch, before KeyboardInterrupt is raised, on all ranks if any of several is
        interrupted; a second Ctrl-C ends immediately. A `CheckpointFolder` of the step is written asynchronously,
        each rank writing its part. SIGTERM and SIGUSR1, by which schedulers announce the end of a job, are handled
        likewise: all ranks stop after one step, the checkpoint is written, and Preempted ends the process with status
        85.
    checkpoint_every: also write it every so many steps.
    callbacks: of `lamina.train.callbacks`, custom ones, or functions that are called with each Epoch; training ends
        on all ranks when one returns True on any. Their state is in the checkpoint.
    max_steps: end after so many steps.
    check_finite: end with DivergedError when a loss is infinite or NaN, or, before a checkpoint is written, a
        parameter: the last checkpoint stays. In float16 it takes more than 20 such losses in a row, because
            overflowing steps are skipped.
    override: settings that may differ from the run that wrote the checkpoint: "epochs", "data.batch_size", "data",
        "all".
    progress: draw a bar; by default on terminals only, with one line per epoch elsewhere.
    Raises ValueError for epochs < 1, for data without batches, for batches of which ranks have different numbers of
    samples, where data is a list or reports it (`uneven`, as `data.Batches` do: other data must ensure it itself),
    and for ranks with different settings, TypeError for one-shot iterables with more than one epoch, ResumeError for
    a run other than the checkpoint's, OSError when the checkpoint cannot be written.
    """
    if epochs < 1:
        raise ValueError(f"fit: epochs must be at least 1, got {epochs}")
    if isinstance(data, Iterator) and epochs - start.epoch > 1:
        raise TypeError(
            f"fit: a {type(data).__name__} can be read once, which is one epoch of {epochs}; give data that can be "
            "iterated again (a list, data.Batches, a loader)"
        )
    if step.options.parallel is not None and getattr(data, "uneven", False):
        raise ValueError(
            f"fit: ranks may have different numbers of samples of the last batch of {data!r}, and gradients of all "
            "ranks count alike: drop_last=True leaves that batch out, pad_last=True, where the data takes it, fills "
            "it up"
        )
    if isinstance(checkpoint, CheckpointFolder):
        if checkpoint.step is not step:
            raise ValueError(f"fit: checkpoint={checkpoint.path} is a folder of another step")
    elif checkpoint is not None:
        check_writable(checkpoint)
    if checkpoint_every is not None and (checkpoint is None or checkpoint_every < 1):
        raise ValueError(f"fit: checkpoint_every={checkpoint_every} needs checkpoint= and at least 1")
    wanted = named_metrics(metrics)
    if wanted and validation is None:
        raise ValueError(f"fit: metrics ({', '.join(wanted)}) are of validation data; give validation=")
    setup = data_setup(data, epochs)
    check_same(start.setup, setup, override, "fit")
    start = _at_the_same_sample(start, setup)
    _check_ranks(step, data, setup, start, max_steps)
    _check_validations(step, validation, wanted)
    leads = step.options.parallel is None or step.options.parallel.place == 0  # one rank logs and saves
    watched = Run(step, epochs, History(position=start), start, wanted, setup, leads)
    saving = _Saving(checkpoint, checkpoint_every, check_finite, _is_saved(step, checkpoint))
    if validation is not None:
        check_unpadded(validation, "fit: validation")
    run = _Loop(watched, data, validation, saving, max_steps, [as_callback(c) for c in callbacks])
    return run.all(console, progress)


def _check_ranks(
    step: Step, data: Iterable[Any], setup: Setup, start: Position, max_steps: int | None
) -> None:
    """Raise ValueError where ranks that train together have different settings: of the step, of the run's length, or
    of batches that they share (except their content, which may be random), or of batches given as a list (their
    sizes)."""
    if step.options.parallel is None:
        return
    told = _shared(data, setup)
    told |= {**step_setup(step), "epoch": start.epoch, "batch": start.batch, "max_steps": max_steps}
    length = _length(data)
    if length is not None:  # a limit may cut them short, on ranks that have more
        told["batches"] = length if max_steps is None else min(length, start.batch + max_steps)
    if isinstance(data, list | tuple) and step.options.parallel.equal_parts:
        told |= _samples(data if max_steps is None else data[start.batch : start.batch + max_steps])
    lines = [(f"{name}={value}", "") for name, value in told.items()]
    step.options.parallel.check_alike("fit: settings", lines)
    _warn_of_same_batches(step.options.parallel, data, setup)


def _warn_of_same_batches(parallel: DataParallel, data: Any, setup: Setup) -> None:
    """Warn, on the first rank, where all ranks read the same whole batches: N ranks then do the work of one."""
    source = data.source if isinstance(data, Prefetch) else data
    facts = {name: x for name, x in setup.items() if name.startswith("data.")}
    whole = getattr(source, "world_size", 0) == 1 and "data.content" in facts
    # A custom sampler may give each rank different samples.
    sampled = any(getattr(source, name, None) is not None for name in ("sampler", "batch_sampler"))
    given = parallel.gather_objects(facts if whole and not sampled else None)
    if parallel.place == 0 and given[0] is not None and all(other == given[0] for other in given):
        warnings.warn(
            f"fit: all {parallel.size} ranks read the same batches of {source!r}, so that they train as one would: "
            'parallel="data" gives each its part of every batch, of which batch_size is that of all ranks',
            stacklevel=users_frame(),
        )


def _check_validations(step: Step, validation: Iterable[Any] | None, metrics: Mapping[str, Metric]) -> None:
    """Raise ValueError where ranks that train together are to evaluate different things."""
    if step.options.parallel is None:
        return
    shared = getattr(validation, "world_size", 1) > 1
    setup = data_setup(validation, 0) if validation is not None and shared else {}
    told = {"given": validation is not None, "metrics": list(metrics), **_shared(validation, setup)}
    lines = [(f"{name}={value}", "") for name, value in told.items()]
    step.options.parallel.check_alike("fit: settings of validation", lines)


def _shared(data: Any, setup: Setup) -> dict[str, Any]:
    """The part of a setup that ranks share: all but the data's content, or the data, where each rank has its own."""
    own = "data.content" if getattr(data, "world_size", 1) > 1 else "data."
    return {name: x for name, x in setup.items() if not name.startswith(own)}


def _samples(batches: Sequence[Any]) -> dict[str, int]:
    """The number of samples of each batch. Raises ValueError for what is not a batch."""
    pairs = (pair_of(batch, f"fit: batch {i}") for i, batch in enumerate(batches))
    return {f"samples of batch {i}": samples_of(inputs) for i, (inputs, _) in enumerate(pairs)}


def _is_saved(step: Step, checkpoint: str | Path | CheckpointFolder | None) -> bool:
    """Whether any rank writes checkpoints: then all of them handle the signals that request one."""
    parallel = step.options.parallel
    given = [checkpoint is not None] if parallel is None else parallel.gather_objects(checkpoint is not None)
    if parallel is not None and step.shards is not None and any(given) and not all(given):
        raise ValueError(
            f"fit: rank {parallel.ranks.ranks[given.index(False)]} has no checkpoint=, rank "
            f"{parallel.ranks.ranks[given.index(True)]} has: with shard_optimizer=True each rank gives its pieces"
        )
    return any(given)


def _at_the_same_sample(start: Position, setup: Setup) -> Position:
    """The position in batches of another size (rounded down to a whole batch)."""
    old, new = start.setup.get("data.batch_size"), setup.get("data.batch_size")
    return replace(start, batch=start.batch * old // new) if old and new else start


@dataclass(frozen=True)
class _Saving:
    """When checkpoints are written, and whether non-finite values are an error. by_any: whether any rank
    writes them."""

    checkpoint: str | Path | CheckpointFolder | None
    every: int | None
    check_finite: bool
    by_any: bool


class _Loop:
    """One call of `fit`: the parts that stay the same, and the state so far."""

    def __init__(
        self,
        run: Run,
        data: Iterable[Any],
        validation: Iterable[Any] | None,
        saving: _Saving,
        max_steps: int | None,
        callbacks: Sequence[Callback],
    ) -> None:
        self.run, self.step, self.history = run, run.step, run.history
        self.data, self.validation, self.max_steps = data, validation, max_steps
        self.saving, self.callbacks = saving, callbacks
        self.length = _length(data)
        self.first = run.step.number
        self.parallel = run.step.options.parallel
        self.leads = run.leads
        self.ranks = 1 if self.parallel is None else self.parallel.size
        group = Group(rank()) if self.parallel is None else self.parallel.ranks
        self.interrupt, self.preemption = Interrupt(group), Preemption(group)
        self.preempted = ""  # by which signal
        self.evaluation: tuple[Predictor, Scoring] | None = None
        self.bad = 0  # consecutive losses that are not finite

    def all(self, console: Console | None, progress: bool | None) -> History:
        """All epochs from the start on."""
        start, epochs = self.run.start, self.run.epochs
        done = start.epoch * (self.length or 0) + start.batch
        ends = [] if self.length is None else [epochs * self.length]
        ends += [] if self.max_steps is None else [done + self.max_steps]
        begun: list[Callback] = []
        try:
            for callback, state in zip(self.callbacks, self._states(), strict=True):
                if state is not None:
                    callback.load_state(state)
                begun.append(callback)
                callback.begin(self.run)
            console = console if self.leads else Console(quiet=True)
            signals = self.preemption if self.saving.by_any else contextlib.nullcontext()
            with Reporter(min(ends, default=None), done, console, progress) as reporter, signals:
                for number in range(start.epoch, epochs):
                    asked = self.epoch(number, start.batch if number == start.epoch else 0, reporter)
                    if asked or self.is_over:
                        break
        finally:
            self._end(begun)
        return self.history

    def _end(self, begun: Sequence[Callback]) -> None:
        """End each callback, and complete the checkpoint, even if others raise."""
        with contextlib.ExitStack() as ends:  # runs its callbacks last in, first out
            if isinstance(self.saving.checkpoint, CheckpointFolder):
                ends.callback(self.saving.checkpoint.wait)
            for callback in reversed(begun):
                ends.callback(callback.end)

    def _states(self) -> list[Mapping[str, Any] | None]:
        """The saved state of each callback at the start: the first of its class not yet taken by another callback."""
        left = [tuple(entry) for entry in self.run.start.loop.get("callbacks", ())]
        found: list[Mapping[str, Any] | None] = []
        for callback in self.callbacks:
            mine = next((entry for entry in left if entry[0] == type(callback).__name__), None)
            if mine is not None:
                left.remove(mine)
            found.append(None if mine is None else mine[1])
        return found

    @property
    def is_over(self) -> bool:
        """Whether the limit of steps is reached."""
        return self.max_steps is not None and len(self.history.losses) >= self.max_steps

    def epoch(self, number: int, first: int, reporter: Reporter) -> bool:
        """Train one epoch from batch `first` on, evaluate, call the callbacks, and save; whether one wants to end.

        The work after the last step may take long: the checkpoint is written before it, with the figures so far, and
        once more at the end of the epoch.
        """
        reporter.start_epoch(number, self.run.epochs)
        figures = _Figures(self.run.start.loop.get("figures") if first else None)
        with self.interrupt:
            self._train(number, first, figures, reporter)
            if self.parallel is not None and self.step.options.accumulate > 1:
                figures.join(self.parallel)
            done = figures.whole and self.validation is None
            if not done:
                self._save(number, first + figures.steps, figures)
        if self.interrupt.asked and not done:
            raise KeyboardInterrupt(self._where())
        if self.preempted and not done:
            self._leave(reporter)
        try:
            scores = None if self.validation is None else self._evaluate(self.validation, number)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._where()) from None
        rate = self.step.optimizer.rate(max(self.step.number - 1, 0))
        summary = Epoch(
            number, figures.loss, figures.accuracy, figures.rate, figures.seconds, scores, learning_rate=rate
        )
        self.history.epochs.append(summary)
        reporter.line(str(summary))
        asked = [callback.epoch(summary) for callback in self.callbacks]  # each, whatever the others return
        if figures.whole:
            self._save(number + 1, 0)
        for callback in self.callbacks:
            callback.after_epoch(self.history.position)
        if self.interrupt.asked:
            raise KeyboardInterrupt(self._where())
        if self._is_preempted():
            self._leave(reporter)
        return self._is_asked_by_any(any(asked))

    def _is_asked_by_any(self, asked: bool) -> bool:
        """Whether a callback on any rank wants to end, such as one that watches its own clock: all stop together."""
        return asked if self.parallel is None else any(self.parallel.gather_objects(asked))

    def _is_preempted(self) -> bool:
        """Whether a signal has reached any rank; all ranks ask, and stop together."""
        if not self.preempted and self.saving.by_any:
            self.preempted = self.preemption.asked
        return bool(self.preempted)

    def _leave(self, reporter: Reporter) -> NoReturn:
        """Exit with the status of a preempted process; the checkpoint is complete by then."""
        if isinstance(self.saving.checkpoint, CheckpointFolder):
            self.saving.checkpoint.wait()
        where = self._where().removeprefix("interrupted")
        reporter.line(f"ended by {self.preempted}{where}")
        raise Preempted(f"ended by {self.preempted}{where}")

    def _train(self, number: int, first: int, figures: _Figures, reporter: Reporter) -> None:
        pending: deque[_Result] = deque()
        room = None if self.max_steps is None else self.max_steps - len(self.history.losses)
        batches = _Ahead(self._batches(number, first))
        for batch in itertools.islice(batches, room):
            inputs, targets = pair_of(batch, f"fit: batch {first + figures.steps} of epoch {number + 1}")
            last = self._is_last(first + figures.steps, batches)
            loss = self.step(
                inputs, targets, update=True if last else None
            )  # an incomplete accumulation group ends here
            figures.steps += 1
            pending.append(
                _Result(
                    loss,
                    self.step.correct,
                    self.step.labels,
                    self.ranks * samples_of(inputs),
                    own=self.parallel is not None and self.step.waiting > 0,
                )
            )
            every, updated = self.saving.every, not self.step.waiting
            saves = every is not None and updated and self.step.number % every == 0
            while len(pending) > (0 if saves else LATE):
                self._note(figures, pending.popleft(), reporter)
            if self.interrupt.asked or self._is_preempted():
                break
            if saves:
                self._save(number, first + figures.steps, figures)
        while pending:
            self._note(figures, pending.popleft(), reporter)
        figures.whole = self._is_whole(first + figures.steps, batches)
        if not figures.read:
            raise ValueError(self._no_batches(number, first))

    def _is_last(self, position: int, batches: _Ahead) -> bool:
        """Whether the batch at this position ends the epoch and must therefore end an incomplete accumulation group.
        Only then, and if the data's length is unknown, is the next batch waited for."""
        if self.length is not None:
            return position + 1 == self.length
        return self.step.waiting + 1 < self.step.options.accumulate and batches.is_over()

    def _is_whole(self, position: int, batches: _Ahead) -> bool:
        """Whether no batch is left: by the data's length, else by fetching one more."""
        if self.length is not None:
            return position >= self.length
        return not (self.interrupt.asked or self.preempted) and batches.is_over()

    def _no_batches(self, number: int, first: int) -> str:
        """The reason why there was nothing to train on."""
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
        figures.add(loss, result)
        self.history.losses.append(loss)
        reporter.advance(figures.loss, figures.accuracy, figures.rate)
        for callback in self.callbacks:
            callback.step(self.first + len(self.history.losses) - 1, loss)
        self.bad = 0 if math.isfinite(loss) else self.bad + 1
        if self.saving.check_finite and self.bad > (_SKIPPED if self.step.precision.scaled else 0):
            self._stop(f"the loss is {loss}", loss)

    def _save(self, epoch: int, batch: int, figures: _Figures | None = None) -> None:
        """Record the position, and write the checkpoint, unless training diverged."""
        loop: dict[str, Any] = {"callbacks": [[type(c).__name__, c.state()] for c in self.callbacks]}
        if figures is not None:
            loop["figures"] = figures.state()
        self.history.position = Position(epoch, batch, self.run.setup, loop)
        to = self.saving.checkpoint
        together = self.step.is_shared or isinstance(to, CheckpointFolder)
        if to is None or not (self.leads or together):
            return
        if self.saving.check_finite:
            for name, held in self.step.state.parameters.items():
                if not np.isfinite(held.numpy()).all():
                    self._stop(f"parameter {name} is not finite", self.history.losses[-1])
        with patience(_WRITING, "writing a checkpoint"):
            self._write(to)

    def _write(self, to: str | Path | CheckpointFolder) -> None:
        if isinstance(to, CheckpointFolder):
            to.save(self.history.position, self.run.setup)
        else:
            save_checkpoint(to, self.step, self.history.position, self.run.setup)

    def _stop(self, why: str, loss: float) -> NoReturn:
        number = self.first + len(self.history.losses) - 1
        file = _name_of(self.saving.checkpoint)
        kept = "" if file is None else f" {file} was not written again."
        rate = self.step.optimizer.rate(number)
        raise DivergedError(
            f"fit: training diverged at step {number} with learning rate {rate:g}: {why}.{kept} "
            "A lower rate, a warm-up or clip_norm may help; check_finite=False goes on",
            number,
            loss,
        )

    def _where(self) -> str:
        """Instructions for resuming after Ctrl-C."""
        at, file = self.history.position, _name_of(self.saving.checkpoint)
        place = f"interrupted after {at.epoch} epochs and {at.batch} batches"
        if file is None:
            return f"{place}; nothing is saved (fit(…, checkpoint=FILE) saves)"
        load = f"load_checkpoint({file!r}, step)"
        load = "folder.load()" if isinstance(self.saving.checkpoint, CheckpointFolder) else load
        return f"{place}; {file} goes on from there: fit(…, start={load})"

    def _batches(self, number: int, first: int) -> Iterator[Any]:
        if isinstance(self.data, Epochs):
            return self.data.epoch(number, first)
        return itertools.islice(iter(self.data), first, None)

    def _evaluate(self, data: Iterable[Any], number: int) -> Scores:
        """The scores on validation data; data that knows epochs (random crops) gives this epoch's."""
        if self.evaluation is None:
            step = self.step
            predictor = Predictor(
                step.net, device=step.device, precision=step.precision, backend=step.backend
            )
            scoring = Scoring(step.loss_fn, self.run.metrics, -100, step.device, step.backend, self.parallel)
            self.evaluation = predictor, scoring
        predictor, scoring = self.evaluation
        if self.parallel is not None:  # statistics that were not synchronized are each rank's own
            self.parallel.same_as_first(self.step.state.buffers.values())
        return scored(predictor, data.epoch(number) if isinstance(data, Epochs) else data, scoring)


def _name_of(checkpoint: str | Path | CheckpointFolder | None) -> str | None:
    if isinstance(checkpoint, CheckpointFolder):
        return str(checkpoint.path)
    return None if checkpoint is None else str(checkpoint)


class _Ahead:
    """Batches with one of lookahead; timelines show the waiting time for each."""

    def __init__(self, batches: Iterator[Any]) -> None:
        self._batches = batches
        self._fetched: list[Any] = []

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.is_over():
            raise StopIteration
        return self._fetched.pop()

    def is_over(self) -> bool:
        """Whether none is left."""
        if not self._fetched:
            with host_span("data"):
                batch = next(self._batches, _END)
            if batch is _END:
                return True
            self._fetched.append(batch)
        return False


@dataclass(frozen=True)
class _Result:
    """A launched step: its loss, hits and labels, which may not be computed yet, and its inputs.

    own: these are of this rank's part of the batch alone: gradients are accumulated without communication.
    """

    loss: Tensor
    correct: Tensor | None
    labels: Tensor | None
    samples: int
    own: bool = False


class _Figures:
    """Sums over the steps of an epoch; with the `state` of an interrupted one, over its steps as well.

    steps: of this run. read: steps whose loss is known. whole: whether the epoch ran to its end.
    """

    def __init__(self, state: Mapping[str, Any] | None = None) -> None:
        self.steps = self.read = self.samples = self.labels = self.hits = 0
        self.sum = 0.0
        self._own = [0.0, 0, 0]  # this rank's part of the sum, hits and labels, not yet reduced
        self.whole = False
        self.began = self.ended = time.perf_counter()
        if state is not None:
            self.read, self.samples, self.labels, self.hits = (int(state[n]) for n in _COUNTS)
            self.sum = float(state["sum"])
            self.began -= float(state["seconds"])

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return {**{n: getattr(self, n) for n in _COUNTS}, "sum": self.sum, "seconds": self.seconds}

    def add(self, loss: float, result: _Result) -> None:
        """One more step is finished."""
        self.read, self.samples = self.read + 1, self.samples + result.samples
        hits = labels = 0
        if result.correct is not None and result.labels is not None:
            hits, labels = int(result.correct.item()), int(result.labels.item())
        self.sum, self.hits, self.labels = self.sum + loss, self.hits + hits, self.labels + labels
        if result.own:
            self._own = [a + b for a, b in zip(self._own, (loss, hits, labels), strict=True)]
        self.ended = time.perf_counter()

    def join(self, parallel: DataParallel) -> None:
        """Reduce the ranks' own sums over all ranks, so that these decide alike. All of them call it."""
        sums, hits, labels = (sum(x) for x in zip(*parallel.gather_objects(self._own), strict=True))
        self.sum += sums / parallel.size - self._own[0]
        self.hits += int(hits - self._own[1])
        self.labels += int(labels - self._own[2])
        self._own = [0.0, 0, 0]

    @property
    def loss(self) -> float:
        """The mean loss of the steps."""
        return self.sum / max(self.read, 1)

    @property
    def accuracy(self) -> float | None:
        """The fraction of the labels predicted correctly (-100 is ignored), None where there are none."""
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
    """The number of batches of an epoch, None if the data does not know it."""
    try:
        return len(data)  # type: ignore[arg-type]
    except TypeError:
        return None
