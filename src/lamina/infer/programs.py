"""Programs that answer requests: one request per run, or several that share a run of fixed size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from lamina import _tree
from lamina._tree import Structure
from lamina.runtime import Buffer, Device, pinned
from lamina.spec import Spec, as_dtype

Array = np.ndarray[Any, Any]

_HOST = Device("cpu")
#: A trial of a program ends after this many compared numbers, or this many rounds.
_TRIED_NUMBERS, _MOST_TRIALS = 1 << 13, 64


class SamplesAlong(Protocol):
    """Where samples lie in an output: `lamina.ops.core.BatchAxis`."""

    @property
    def axis(self) -> int:
        """Along which axis."""
        ...

    @property
    def size(self) -> int:
        """How many indices each has."""
        ...


class ServedProgram:
    """A program that answers one request a run.

    executable: gives the outputs for the inputs, in order. outputs: their structure.
    seconds: the shortest time of a run of a batch so far.
    """

    most, together, seconds = 1, False, math.inf
    #: The executable's graph and the generators that it draws from, if it was compiled here.
    graph: Any = None
    generators: Sequence[Any] = ()

    def __init__(self, executable: Any, outputs: Structure) -> None:
        self.executable, self.outputs = executable, outputs

    def memory(self) -> Any:
        """Nothing yet: `write` puts copies of the request's arrays there."""
        return []

    def give_back(self, memory: Any) -> None:
        """It is not reused."""

    def write(self, memory: Any, given: Sequence[Any], start: int, count: int) -> None:
        """Copy the inputs, which may change before they are used."""
        memory += [np.array(host(x)) for x in given]

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs of one run."""
        found: Sequence[Any] = self.executable(*inputs)
        return found

    def alone(self, memory: Sequence[Any], start: int, count: int) -> Sequence[Any]:
        """The outputs for the one request."""
        return self.run(memory)

    def answer(self, outputs: Sequence[Any], start: int, count: int) -> Any:
        """The outputs in the network's structure."""
        return _tree.unflatten(self.outputs, outputs)

    def __repr__(self) -> str:
        return f"{self.executable!r}"


class BatchInputs(list[Any]):
    """The inputs of a run of many samples. places: their memory as arrays, the samples along the first axis."""

    def __init__(self, inputs: Sequence[Any], axes: Sequence[int]) -> None:
        super().__init__(inputs)
        self.places = [np.moveaxis(host(x), axis, 0) for x, axis in zip(inputs, axes, strict=True)]


class GatheredProgram(ServedProgram):
    """A program of a fixed number of samples, which answers as many requests as fit into it.

    inputs, results: where the samples lie. sample: inputs of one valid sample.
    """

    together = True

    def __init__(
        self,
        executable: Any,
        outputs: Structure,
        most: int,
        inputs: Sequence[int | None],
        results: Sequence[SamplesAlong | None],
        sample: Sequence[Array],
    ) -> None:
        super().__init__(executable, outputs)
        self.most, self.results, self.sample = most, results, sample
        self.axes = [0 if axis is None else axis for axis in inputs]
        self._spare: list[BatchInputs] = []

    def memory(self) -> BatchInputs:
        """Pinned on a GPU; its places hold samples of earlier requests, initially the valid one."""
        try:
            return self._spare.pop()
        except IndexError:
            pairs = zip(self.sample, self.axes, strict=True)
            return BatchInputs([self._repeated(x, axis) for x, axis in pairs], self.axes)

    def give_back(self, memory: BatchInputs) -> None:
        """Release it for another run; memory that a failed run read is not reused."""
        if len(self._spare) < 4:
            self._spare.append(memory)

    def _repeated(self, x: Array, axis: int) -> Any:
        """New memory with a sample at every place."""
        spec = resized(spec_of(x), axis, self.most)
        on_gpu = self.executable.device.kind == "cuda"
        found = self.array_in(pinned(spec.nbytes) if on_gpu else _HOST.allocate(spec.nbytes), spec)
        host(found)[...] = x
        return found

    def array_in(self, place: Buffer, spec: Spec) -> Any:
        """The form of inputs: an array in host memory, pinned or not."""
        return place.array(spec.shape, spec.dtype.numpy)

    def given_out(self, x: Array) -> Any:
        """The form of outputs."""
        return x

    def write(self, memory: BatchInputs, given: Sequence[Any], start: int, count: int) -> None:
        """Put a request's samples at places start to start + count - 1."""
        for place, x, axis in zip(memory.places, given, self.axes, strict=True):
            samples = host(x)
            place[start : start + count] = np.moveaxis(samples, axis, 0) if axis else samples

    def run(self, inputs: Sequence[Any]) -> Sequence[Any]:
        """The outputs of one run, as arrays, from which answers are cut."""
        return [host(y) for y in super().run(inputs)]

    def alone(self, memory: Sequence[Any], start: int, count: int) -> Sequence[Any]:
        """The outputs of a run with the request's samples alone: at their own places, the first of them at all
        others.
        """
        index = np.arange(self.most)
        index = np.where((index >= start) & (index < start + count), index, start)
        return self.run([host(x).take(index, axis) for x, axis in zip(memory, self.axes, strict=True)])

    def answer(self, outputs: Sequence[Any], start: int, count: int) -> Any:
        """A request's samples of the outputs, copied: views would keep the whole batch in memory as long as one of
        its answers is kept, and values that all samples share could be written by any of the callers."""
        pairs = zip(outputs, self.results, strict=True)
        return _tree.unflatten(
            self.outputs, [self.given_out(_cut(y, a, start, count).copy()) for y, a in pairs]
        )

    def is_placeless(self) -> bool:
        """Whether, on trial, a sample has the same result, in every bit, at other places and beside other ones.

        Kernels that round differently by position still give the same bits mostly, so many numbers are compared.
        """
        rng = np.random.default_rng(0)
        for turn in range(_MOST_TRIALS):
            x, other = self._trials(rng), self._trials(rng)
            wanted = [y.copy() for y in self.run(x)]
            shifts = {turn % (self.most - 1) + 1} if turn else {1, self.most // 2, self.most - 1}
            for shift in shifts:
                moved = [np.roll(a, shift, axis) for a, axis in zip(x, self.axes, strict=True)]
                if not self._agree(wanted, self.run(moved), range(self.most), shift):
                    return False
            at = 0 if turn else self.most - 1
            mixed = [b.copy() for b in other]
            for a, b, axis in zip(x, mixed, self.axes, strict=True):  # one sample among others
                np.moveaxis(b, axis, 0)[at] = np.moveaxis(a, axis, 0)[0]
            if not self._agree(wanted, self.run(mixed), [0], at):
                return False
            if (turn + 1) * sum(y.size for y in wanted) >= _TRIED_NUMBERS:
                return True
        return True

    def _trials(self, rng: np.random.Generator) -> list[Array]:
        return [self._trial(s, axis, rng) for s, axis in zip(self.sample, self.axes, strict=True)]

    def _trial(self, sample: Array, axis: int, rng: np.random.Generator) -> Array:
        """Inputs with other numbers at every place; values that are not floating point stay the valid sample's."""
        x = host(self._repeated(sample, axis))
        if spec_of(x).dtype.is_float:
            x[...] = rng.standard_normal(x.shape, np.float32)
        return x

    def _agree(self, a: Sequence[Array], b: Sequence[Any], samples: Sequence[int], shift: int) -> bool:
        """Whether these samples of a equal, bit by bit, those of b shifted by a number of places."""
        for y, z, axis in zip(a, b, self.results, strict=True):
            for s in samples:
                here, there = _cut(y, axis, s, 1), _cut(z, axis, (s + shift) % self.most, 1)
                if here.tobytes() != there.tobytes():
                    return False
        return True


def _cut(y: Array, axis: SamplesAlong | None, start: int, count: int) -> Array:
    """Some samples of an output; all of a value that is the same for every sample."""
    if axis is None:
        return y
    return y[(slice(None),) * axis.axis + (slice(start * axis.size, (start + count) * axis.size),)]


def spec_of(x: Array) -> Spec:
    """Shape and dtype of an array."""
    return _spec(x.shape, x.dtype)


@lru_cache(maxsize=1024)
def _spec(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Spec:
    return Spec(shape, as_dtype(dtype))


def resized(spec: Spec, axis: int, count: int) -> Spec:
    """The spec with another number of indices along an axis."""
    return Spec(tuple(count if a == axis else n for a, n in enumerate(spec.shape)), spec.dtype)


def host(x: Any) -> Array:
    """The values of an array or tensor, on the host."""
    return x if isinstance(x, np.ndarray) else x.numpy()
