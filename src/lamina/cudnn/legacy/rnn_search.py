"""Which algorithm of a recurrent network is fastest: cuDNN 9 has no search for these, so each is run and timed.

Calls are timed as captured CUDA graphs where possible: the algorithms differ in their number of kernel launches, and
a program that runs often is captured, too.

found = search_rnn(handle, rnn, x_desc, deterministic=True)
rnn = rnn.replace(algorithm=found[0].algorithm)
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from lamina.c import cudnn as c
from lamina.c.errors import CudnnError
from lamina.cudnn.legacy.flags import MathType, Name, flag, short
from lamina.cudnn.legacy.handles import Handle
from lamina.cudnn.legacy.rnn import RNN, RNNAlgorithm, TempSpaces
from lamina.cudnn.legacy.rnn_data import RNNData
from lamina.cudnn.legacy.rnn_weights import numpy_type
from lamina.runtime import (
    Buffer,
    DeviceError,
    Event,
    OutOfMemoryError,
    Stream,
    from_host,
    memset,
    to_host,
)

ALGORITHMS = ("standard", "persist_static", "persist_dynamic", "persist_static_small_h")
_TILE = 1 << 16  # elements of the random data with which buffers are filled repeatedly


class RNNPerformance(NamedTuple):
    """One algorithm as `search_rnn` found it."""

    algorithm: RNNAlgorithm
    reason: str
    """ "" if it ran; else why not."""
    time: float
    """Milliseconds of all that was asked for: forward, and with training both gradients (medians)."""
    forward: float
    backward_data: float
    backward_weights: float
    spaces: TempSpaces
    """Bytes of workspace and reserve."""
    deterministic: bool
    """Two runs on the same data agreed in every bit: seen, not promised."""
    math_type: MathType


def search_rnn(
    handle: Handle,
    rnn: RNN,
    x_desc: RNNData,
    *,
    training: bool = True,
    algorithms: Sequence[Name] = ALGORITHMS,
    deterministic: bool = False,
    workspace_limit: int | None = None,
    repeats: int = 5,
) -> list[RNNPerformance]:
    """The algorithms for this network and batch, fastest first; those that do not run come last, with the reason.

    Everything runs on memory of its own and random data; the handle's stream is waited for.

    Args:
        handle: on which device and stream.
        rnn: the network; its own algorithm does not matter.
        x_desc: the batch.
        training: time forward and both gradients; False: inference alone.
        algorithms: which to try.
        deterministic: list only those whose two runs agreed bit by bit.
        workspace_limit: the most bytes of workspace.
        repeats: timed runs after the first one.

    Raises:
        ValueError: repeats below 1. CudnnError, OutOfMemoryError: only from what all algorithms share.
    """
    if repeats < 1:
        raise ValueError(f"search_rnn: repeats must be at least 1, got {repeats}")
    found = []
    with _runtime_stream(handle) as stream:
        for name in algorithms:
            kind = flag(RNNAlgorithm, name)
            found.append(_tried(handle, stream, rnn, kind, x_desc, training, workspace_limit, repeats))
    fitting = [p for p in found if not (deterministic and not p.reason and not p.deterministic)]
    return sorted(fitting, key=lambda p: (bool(p.reason), p.time))


@contextmanager
def _runtime_stream(handle: Handle) -> Iterator[Stream]:
    """A stream that events can be put on: the handle's own, or for a foreign one the device's default stream."""
    present = handle.runtime_stream
    if present is not None:
        yield present
        return
    before = handle.given
    handle.device.synchronize()
    handle.use(handle.device.default_stream)
    try:
        yield handle.device.default_stream
    finally:
        handle.synchronize()
        handle.use(before)


def _tried(
    handle: Handle,
    stream: Stream,
    rnn: RNN,
    kind: RNNAlgorithm,
    x_desc: RNNData,
    training: bool,
    limit: int | None,
    repeats: int,
) -> RNNPerformance:
    math_type, spaces = rnn.get().math_type, TempSpaces(0, 0)
    try:
        with rnn.replace(algorithm=kind) as one:
            if kind == c.CUDNN_RNN_ALGO_PERSIST_DYNAMIC:
                one.build_dynamic(handle, x_desc.batch)
            spaces = one.temp_space_sizes(handle, x_desc, training=training)
            if limit is not None and spaces.workspace > limit:
                reason = f"needs a workspace of {spaces.workspace} bytes, the limit is {limit}"
                return _refused(kind, reason, spaces, math_type)
            times, same = _RnnTrial(handle, stream, one, x_desc, training, spaces).measure(repeats)
    except (CudnnError, OutOfMemoryError) as error:
        return _refused(kind, str(error), spaces, math_type)
    forward, data, weights = times
    return RNNPerformance(kind, "", sum(times), forward, data, weights, spaces, same, math_type)


def _refused(kind: RNNAlgorithm, reason: str, spaces: TempSpaces, math_type: MathType) -> RNNPerformance:
    never = float("inf")
    return RNNPerformance(kind, reason, never, never, never, never, spaces, False, math_type)


class _RnnTrial:
    """The memory of one algorithm's runs."""

    def __init__(
        self, handle: Handle, stream: Stream, rnn: RNN, x_desc: RNNData, training: bool, spaces: TempSpaces
    ) -> None:
        self.handle, self.stream, self.rnn, self.x_desc, self.training = handle, stream, rnn, x_desc, training
        self.y_desc = RNNData(
            data_type=x_desc.data_type,
            max_length=x_desc.max_length,
            batch=x_desc.batch,
            vector_size=rnn.output_size,
            lengths=x_desc.lengths,
            layout=x_desc.layout,
        )
        weights = rnn.weight_space_size(handle)
        self.x, self.weights = self._random(x_desc.nbytes, 1.0), self._random(weights, 0.1)
        self.y = self._empty(self.y_desc.nbytes)
        self.workspace, self.reserve = self._empty(spaces.workspace), self._empty(spaces.reserve)
        self.calls: list[Callable[[], object]] = [self._forward]
        if training:
            self.dy = self._zeroed(self.y_desc)
            self.dx, self.dweights = self._empty(x_desc.nbytes), self._empty(weights)
            self.calls += [self._backward_data, self._backward_weights]

    def _empty(self, nbytes: int) -> Buffer:
        return self.handle.device.allocate(nbytes, stream=self.stream)

    def _random(self, nbytes: int, scale: float) -> Buffer:
        dtype = numpy_type(self.x_desc.data_type)
        count = -(-nbytes // dtype.itemsize)
        tile = np.random.default_rng(0).uniform(-scale, scale, min(count, _TILE)).astype(dtype)
        return from_host(
            np.resize(tile, count).view(np.uint8)[:nbytes], self.handle.device, stream=self.stream
        )

    def _zeroed(self, desc: RNNData) -> Buffer:
        """Random numbers, and zeros after the ends of sequences."""
        dtype = numpy_type(desc.data_type)
        data = np.random.default_rng(1).uniform(-1, 1, desc.shape).astype(dtype)
        if len(desc.shape) == 3:
            steps = data if desc.layout == c.CUDNN_RNN_DATA_LAYOUT_SEQ_MAJOR_UNPACKED else data.swapaxes(0, 1)
            past = np.arange(desc.max_length)[:, None] >= np.asarray(desc.lengths)
            steps[past] = 0
        return from_host(data, self.handle.device, stream=self.stream)

    def measure(self, repeats: int) -> tuple[list[float], bool]:
        """Median milliseconds of forward and both gradients (0 where not run), and whether two runs agree."""
        first = self._outputs()
        self.calls = [self._recorded(call) for call in self.calls]
        runs = [self._timed() for _ in range(repeats)]
        same = all(np.array_equal(a, b) for a, b in zip(first, self._results(), strict=True))
        return [statistics.median(times) for times in zip(*runs, strict=True)], same

    def _outputs(self) -> list[Any]:
        self._timed()
        return self._results()

    def _results(self) -> list[Any]:
        buffers = [self.y] + ([self.dx, self.dweights] if self.training else [])
        return [to_host(buffer, stream=self.stream) for buffer in buffers]

    def _timed(self) -> list[float]:
        memset(self.y, 0, self.stream)
        if self.training:
            memset(self.dx, 0, self.stream)
            memset(self.dweights, 0, self.stream)
        marks = [Event(timing=True) for _ in range(1 + len(self.calls))]
        marks[0].record(self.stream)
        for call, mark in zip(
            self.calls, marks[1:], strict=True
        ):  # all queued at once: host time does not count
            call()
            mark.record(self.stream)
        times = [start.elapsed(end) for start, end in pairwise(marks)]
        return times + [0.0] * (3 - len(times))

    def _recorded(self, call: Callable[[], object]) -> Callable[[], object]:
        """The call as a CUDA graph, or as it is where it cannot be captured."""
        try:
            with self.stream.capture() as graph:
                call()
            return graph.bind()
        except (CudnnError, DeviceError):
            return call

    def _forward(self) -> None:
        self.rnn.forward(
            self.handle,
            x_desc=self.x_desc,
            x=self.x,
            y_desc=self.y_desc,
            y=self.y,
            weights=self.weights,
            training=self.training,
            workspace=self.workspace,
            reserve=self.reserve,
        )

    def _backward_data(self) -> None:
        self.rnn.backward_data(
            self.handle,
            y_desc=self.y_desc,
            y=self.y,
            dy=self.dy,
            x_desc=self.x_desc,
            dx=self.dx,
            weights=self.weights,
            workspace=self.workspace,
            reserve=self.reserve,
        )

    def _backward_weights(self) -> None:
        self.rnn.backward_weights(
            self.handle,
            x_desc=self.x_desc,
            x=self.x,
            y_desc=self.y_desc,
            y=self.y,
            dweights=self.dweights,
            workspace=self.workspace,
            reserve=self.reserve,
        )


def table(found: Sequence[RNNPerformance]) -> str:
    """The result of `search_rnn` as human-readable text."""
    lines = [
        f"{'algorithm':24} {'ms':>9} {'forward':>9} {'data':>9} {'weights':>9} {'workspace':>12} same bits"
    ]
    for p in found:
        name = short(p.algorithm)
        if p.reason:
            lines.append(f"{name:24} {p.reason}")
            continue
        times = " ".join(f"{t:9.3f}" for t in (p.time, p.forward, p.backward_data, p.backward_weights))
        lines.append(f"{name:24} {times} {p.spaces.workspace:12} {'yes' if p.deterministic else 'no'}")
    return "\n".join(lines)
