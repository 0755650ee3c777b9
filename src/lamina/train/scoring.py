"""Accumulation of an evaluation: loss, hits and metrics of each batch, compiled to run where the outputs are."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np

from lamina import _tree, ops
from lamina._tree import Structure
from lamina.distributed.data_parallel import DataParallel
from lamina.graph import Executable, Graph, Value, compile
from lamina.graph.ir.graph import traced_for
from lamina.graph.ir.surroundings import SameSurroundings, reads_of
from lamina.nn import Module
from lamina.nn.module import evaluating
from lamina.nn.parameter import standing_in
from lamina.ops.core import operand, recording
from lamina.runtime import Device
from lamina.spec import Policy, ShapeError, Spec, current_policy
from lamina.tensors import Tensor, array_spec, flatten_arrays
from lamina.train.closing import ClosedOver, StepCapture
from lamina.train.labels import are_labels
from lamina.train.metrics import Metric

#: Sums are read with a delay of this many batches, so that reading them does not make the device wait for the host.
LATE = 2


class Scoring:
    """Sums over the batches of an evaluation; `begin` starts with nothing.

    The loss, the hits and the metrics that do not need the host are one compiled program per set of shapes, queued
    after the network's.

    loss: the sum of the batches' losses times their weights; weight: the sum of these: the labels that count, or
        samples where targets are not labels. hits, labels, samples: over all batches read so far; `finish` reads the
        last ones, and, for a `parallel` evaluation, reduces over all ranks.
    """

    def __init__(
        self,
        loss_fn: Callable[[Any, Any], Any] | None,
        metrics: Mapping[str, Metric],
        ignore_index: int,
        device: Device,
        backend: str | None,
        parallel: DataParallel | None = None,
    ) -> None:
        self.parallel = parallel
        self.loss_fn, self.metrics, self.ignore_index = loss_fn, dict(metrics), ignore_index
        self.device, self.backend = device, backend
        self._programs: dict[_SumsKind, _Program] = {}
        self.begin()

    def begin(self) -> None:
        """Reset."""
        self.batches = self.samples = self.hits = self.labels = self.weight = 0
        self.loss = 0.0
        self.has_labels = True
        self._totals: dict[str, Any] = {}
        self._queued: deque[_Sums] = deque()

    def add(self, outputs: Any, targets: Any, samples: int) -> None:
        """Add one more batch. Raises TypeError for non-arrays, ShapeError where loss or metrics do not fit."""
        given, first = _tree.flatten(outputs)
        wanted, second = flatten_arrays(targets, "evaluate: targets", needed=targets is not None)
        kind = _SumsKind(first, second, tuple(array_spec(x) for x in (*given, *wanted)), current_policy())
        with self._inference():
            if kind not in self._programs or not self._programs[kind].closed.hold():
                self._programs[kind] = self._compile(kind, len(given))
        program = self._programs[kind]
        sums = program(given, wanted)
        for name, metric in self.metrics.items():
            if metric.on_host:
                sums[f"metric {name}"] = metric.sums(_on_host(first, given), _on_host(second, wanted))
        self.batches += 1
        self.has_labels &= "hits" in sums
        self._queued.append(_Sums(sums, samples))
        if len(self._queued) > LATE:
            self._read(self._queued.popleft())

    def finish(self) -> dict[str, Any]:
        """Read the remaining sums, and return the value of each metric."""
        while self._queued:
            self._read(self._queued.popleft())
        if self.parallel is not None:
            self._join(self.parallel.gather_objects(self._sums_so_far()))
        return {name: metric.result(self._totals[name]) for name, metric in self.metrics.items()}

    def _sums_so_far(self) -> tuple[Any, ...]:
        """Those of this rank's batches."""
        counts = (self.batches, self.samples, self.hits, self.labels, self.weight, self.loss)
        return counts, self.has_labels, self._totals, [*["loss"] * (self.loss_fn is not None), *self.metrics]

    def _join(self, ranks: Sequence[tuple[Any, ...]]) -> None:
        """Add up the sums of all ranks, in rank order, so that all get the same result. Raises ValueError where they
        were asked for different metrics, whose sums would cover some ranks' data alone."""
        self._check_asked([asked for *_, asked in ranks])
        numbers = zip(*(counts for counts, *_ in ranks), strict=True)
        self.batches, self.samples, self.hits, self.labels, self.weight, self.loss = map(sum, numbers)
        self.has_labels = all(has_labels for _, has_labels, *_ in ranks)
        self._totals = {}
        for _, _, totals, _ in ranks:
            for name, new in totals.items():
                old = self._totals.get(name)
                self._totals[name] = new if old is None else self.metrics[name].merge(old, new)

    def _check_asked(self, asked: Sequence[Sequence[str]]) -> None:
        """Raise ValueError, on all ranks, if one is asked for metrics other than the first's."""
        other = next((place for place, names in enumerate(asked) if names != asked[0]), None)
        if other is not None and self.parallel is not None:
            numbers = self.parallel.ranks.ranks
            told = (f"{', '.join(asked[place]) or 'none'} on rank {numbers[place]}" for place in (other, 0))
            raise ValueError(
                f"evaluate: the figures that are asked for (loss, metrics) are {' and '.join(told)}; with "
                "parallel= each rank's are of its part of the data: ask for the same on all ranks"
            )

    def _read(self, batch: _Sums) -> None:
        """Add the sums of a batch."""
        self.samples += batch.samples
        found = {name: _numbers(tree) for name, tree in batch.sums.items()}
        weight = batch.samples
        if "hits" in found:
            hits, weight = map(int, found["hits"])
            self.hits, self.labels = self.hits + hits, self.labels + weight
        if "loss" in found and weight:  # the mean over no samples is NaN
            self.loss, self.weight = self.loss + float(found["loss"]) * weight, self.weight + weight
        for name, metric in self.metrics.items():
            new, old = found[f"metric {name}"], self._totals.get(name)
            self._totals[name] = new if old is None else metric.merge(old, new)

    def _compile(self, kind: _SumsKind, count: int) -> _Program:
        """The program of the sums for a batch of this kind."""
        values, capture = [Value(spec) for spec in kind.specs], StepCapture()
        with traced_for(self.device), standing_in({}, capture.hold), recording(capture):
            outputs = _tree.unflatten(kind.outputs, values[:count])
            capture.guard(SameSurroundings(reads_of(*self._functions())))
            found = self._sums(outputs, _tree.unflatten(kind.targets, values[count:]))
            leaves, structure = _tree.flatten(found)
            leaves = [capture.read(operand(x, "evaluate", "a figure")) for x in leaves]
        capture.leave_behind()
        return _Program.of(
            values, leaves, structure, ClosedOver(capture, self.device), self.device, self.backend
        )

    def _functions(self) -> list[Callable[..., Any]]:
        """Those that are compiled."""
        own = [] if self.loss_fn is None else [self.loss_fn]
        return [*own, *(m.sums for m in self.metrics.values() if not m.on_host)]

    def _inference(self) -> AbstractContextManager[None]:
        """A loss that is a module is in inference mode."""
        loss: Any = self.loss_fn
        return evaluating(loss) if isinstance(loss, Module) else nullcontext()

    def _sums(self, outputs: Any, targets: Any) -> dict[str, Any]:
        """Of traced outputs and targets."""
        found: dict[str, Any] = {}
        if self.loss_fn is not None:
            loss = found["loss"] = self.loss_fn(outputs, targets)
            if tuple(loss.shape) != ():
                raise ShapeError(f"evaluate: loss_fn must give a scalar, it gave {loss.spec}; use a mean")
        if _tree.flatten(outputs)[1].is_leaf and _tree.flatten(targets)[1].is_leaf:
            found |= self._hits(outputs, targets)
        for name, metric in self.metrics.items():
            if not metric.on_host:
                found[f"metric {name}"] = metric.sums(outputs, targets)
        return found

    def _hits(self, outputs: Any, targets: Any) -> dict[str, Any]:
        """Hits and labels that count, where the targets are labels. An output with a NaN is never a hit."""
        if not are_labels(outputs.shape, targets.shape, targets.dtype.kind):
            return {}
        labels = ops.cast(targets, "int64")
        counted = ops.ne(labels, self.ignore_index)
        bad = ops.gt(ops.sum(ops.cast(ops.ne(outputs, outputs), "int64"), 1), 0)
        right = ops.logical_and(ops.eq(ops.argmax(outputs, 1), labels), ops.logical_not(bad))
        both = ops.logical_and(right, counted)
        return {"hits": tuple(ops.sum(ops.cast(x, "int64")) for x in (both, counted))}


@dataclass(frozen=True)
class _SumsKind:
    """The key of a program."""

    outputs: Structure
    targets: Structure
    specs: tuple[Spec, ...]
    policy: Policy


@dataclass(frozen=True, eq=False)
class _Program:
    """The compiled sums; executable None where there is nothing to compute.

    closed: what they read beside outputs and targets.
    """

    executable: Executable | None
    structure: Structure
    closed: ClosedOver

    @classmethod
    def of(
        cls,
        values: Sequence[Value],
        sums: Sequence[Value],
        structure: Structure,
        closed: ClosedOver,
        device: Device,
        backend: str | None,
    ) -> _Program:
        """Compile traced sums. Tensors of modules that the loss or a metric writes are updated in place."""
        if not sums:
            return cls(None, structure, closed)
        graph = Graph([*values, *closed.inputs], [*sums, *closed.outputs], "evaluate").unmarked()
        places = range(len(values), len(values) + len(closed.kept))
        updated = [places[i] for i in closed.updated]
        executable = compile(
            graph,
            device,
            donate={place: len(sums) + n for n, place in enumerate(updated)},
            resident=[place for place in places if place not in updated],
            backend=backend,
        )
        executable.load(dict(zip(places, closed.kept, strict=True)))
        return cls(executable, structure, closed)

    def __call__(self, outputs: Sequence[Any], targets: Sequence[Any]) -> dict[str, Any]:
        """The sums of a batch."""
        given = self.closed.given
        found = [] if self.executable is None else self.executable(*outputs, *targets, *given)
        sums: dict[str, Any] = _tree.unflatten(self.structure, found)
        return sums


@dataclass(frozen=True)
class _Sums:
    """Sums of a batch, which may not be computed yet."""

    sums: dict[str, Any]
    samples: int


def _numbers(tree: Any) -> Any:
    """The same tree of NumPy arrays, floats as float64."""
    found, structure = _tree.flatten(tree)
    arrays = [x.numpy() if isinstance(x, Tensor) else np.asarray(x) for x in found]
    wide = [a.astype(np.float64) if a.dtype.kind not in "iub" else a for a in arrays]
    return _tree.unflatten(structure, wide)


def _on_host(structure: Structure, leaves: Sequence[Any]) -> Any:
    """The tree of NumPy arrays."""
    return _tree.unflatten(structure, [x if isinstance(x, np.ndarray) else x.numpy() for x in leaves])
