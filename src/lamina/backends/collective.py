"""Collectives on host memory, through the communicators of `lamina.runtime.ranks` (MPI or TCP).

A communicator is looked up when a plan runs: plans outlive worlds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from lamina.backends.protocol import Call, Plan, Run
from lamina.ops.core import Array, Op
from lamina.ops.primitives.collective import (
    AllGather,
    AllGatherEach,
    AllReduce,
    AllReduceEach,
    AllToAll,
    Arrived,
    Broadcast,
    Collective,
    Exchange,
    ReduceScatter,
    ReduceScatterEach,
    ReduceTo,
    StartAllReduce,
    StartReduceScatter,
)
from lamina.runtime import host_array
from lamina.runtime.ranks import Communicator, Done, Pending, current_world
from lamina.spec import Spec

#: Operations in flight, by the address that they write.
_under_way: dict[int, Pending] = {}
_Arrays = Sequence[Array]


def host_plan(op: Collective, specs: Sequence[Spec]) -> Plan:
    """The plan of a collective operation on row-major host memory. Raises what `op.infer` raises.

    Other processors may prefer other layouts, and messages between hosts do not carry the layout.
    """
    inputs = op.operands([s.open for s in specs])
    outputs = op.results(inputs)
    return Plan(
        inputs,
        outputs,
        partial(_bind, op, inputs, outputs),
        aliases=op.aliases(len(inputs)),
        label=f"ranks {op.name}",
    )


def _bind(op: Collective, inputs: Sequence[Spec], outputs: Sequence[Spec], call: Call) -> Run:
    xs = [host_array(p, s.shape, s.dtype.numpy) for p, s in zip(call.inputs, inputs, strict=True)]
    ys = [host_array(p, s.shape, s.dtype.numpy) for p, s in zip(call.outputs, outputs, strict=True)]
    run = _RUNS[type(op)]

    def start() -> None:
        run(op, current_world().communicator(op.group.ranks), xs, ys)

    return start


def _move(x: Array, y: Array) -> Array:
    """y, with the elements of x, which may be in y already."""
    if x.ctypes.data != y.ctypes.data:
        np.copyto(y, x)
    return y


def _all_reduce(op: Any, comm: Communicator, xs: _Arrays, ys: _Arrays) -> None:
    for x, y in zip(xs, ys, strict=True):
        comm.all_reduce(_move(x, y), op.reduction)


class _Together:
    """Arrays sent as one message, whose rows stand in it side by side; they are filled by `wait`."""

    def __init__(self, travelling: Pending, rows: Array, arrays: _Arrays) -> None:
        self._travelling: Pending | None = travelling
        self._rows, self._arrays = rows, arrays

    def wait(self) -> None:
        """Unpack, the first time."""
        if self._travelling is None:
            return
        self._travelling.wait()
        self._travelling = None
        _unpack(self._rows, self._arrays)


def _packed(arrays: _Arrays, rows: int = 1) -> Array:
    """Arrays [rows, ...] as one [rows, elements]."""
    return np.concatenate([x.reshape(rows, -1) for x in arrays], axis=1)


def _unpack(rows: Array, arrays: _Arrays) -> None:
    """Fill arrays [rows, ...] from one [rows, elements]."""
    begin = 0
    for y in arrays:
        size = y.size // len(rows)
        y.reshape(len(rows), size)[...] = rows[:, begin : begin + size]
        begin += size


def _start_bucket(travelling: Pending, rows: Array, ys: _Arrays) -> None:
    """Record a bucket in flight; one that has arrived at once is unpacked at once."""
    bucket = _Together(travelling, rows, ys)
    if isinstance(travelling, Done):
        bucket.wait()
    _start(bucket, ys)


def _start(travelling: Pending, ys: _Arrays) -> None:
    """Record an operation in flight; empty arrays share addresses, and have nothing to wait for."""
    _under_way.update((y.ctypes.data, travelling) for y in ys if y.size)


def _start_all_reduce(op: StartAllReduce, comm: Communicator, xs: _Arrays, ys: _Arrays) -> None:
    if len(xs) == 1:
        _start(comm.start_all_reduce(_move(xs[0], ys[0]), op.reduction), ys)
        return
    rows = _packed(xs)
    _start_bucket(comm.start_all_reduce(rows[0], op.reduction), rows, ys)


def _all_gather(op: Any, comm: Communicator, xs: _Arrays, ys: _Arrays) -> None:
    for dtype in dict.fromkeys(x.dtype for x in xs):
        alike = [i for i, x in enumerate(xs) if x.dtype == dtype]
        if len(alike) == 1:
            comm.all_gather(xs[alike[0]], ys[alike[0]])
            continue
        row = _packed([xs[i] for i in alike])[0]
        rows = np.empty((comm.size, row.size), row.dtype)
        comm.all_gather(row, rows)
        _unpack(rows, [ys[i] for i in alike])


def _reduce_scatter(op: Any, comm: Communicator, xs: _Arrays, ys: _Arrays) -> None:
    for x, y in zip(xs, ys, strict=True):
        comm.reduce_scatter(x, y, op.reduction)


def _start_reduce_scatter(op: StartReduceScatter, comm: Communicator, xs: _Arrays, ys: _Arrays) -> None:
    if len(xs) == 1:
        _start(comm.start_reduce_scatter(xs[0], ys[0], op.reduction), ys)
        return
    rows = _packed(xs, comm.size)
    own = np.empty((1, rows.shape[1]), rows.dtype)
    _start_bucket(comm.start_reduce_scatter(rows, own[0], op.reduction), own, ys)


def _arrived(op: Arrived, comm: Communicator, xs: _Arrays, ys: _Arrays) -> None:
    started = _under_way.pop(xs[0].ctypes.data, None)
    if started is not None:
        started.wait()
    _move(xs[0], ys[0])


def _reduce(op: ReduceTo, comm: Communicator, xs: _Arrays, ys: _Arrays) -> None:
    comm.all_reduce(_move(xs[0], ys[0]), op.reduction)
    if comm.rank != op.root:
        ys[0][...] = 0


def _exchange(op: Exchange, comm: Communicator, xs: _Arrays, ys: _Arrays) -> None:
    (x,), (y,) = xs, ys
    if op.source is None:
        y[...] = 0
    if op.to == op.source == comm.rank:
        _move(x, y)
    else:
        comm.exchange({} if op.to is None else {op.to: x}, {} if op.source is None else {op.source: y})


_RUNS: Mapping[type[Op], Callable[[Any, Communicator, _Arrays, _Arrays], None]] = {
    AllReduce: _all_reduce,
    AllReduceEach: _all_reduce,
    StartAllReduce: _start_all_reduce,
    Arrived: _arrived,
    AllGather: _all_gather,
    AllGatherEach: _all_gather,
    ReduceScatter: _reduce_scatter,
    ReduceScatterEach: _reduce_scatter,
    StartReduceScatter: _start_reduce_scatter,
    Broadcast: lambda op, comm, xs, ys: comm.broadcast(_move(xs[0], ys[0]), op.root),
    ReduceTo: _reduce,
    AllToAll: lambda op, comm, xs, ys: comm.all_to_all(xs[0], ys[0]),
    Exchange: _exchange,
}
