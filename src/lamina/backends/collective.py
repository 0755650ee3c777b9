"""Collective operations on host memory, by the communicators of `lamina.runtime.ranks` (MPI or TCP).

A communicator is looked up when a plan runs: plans are kept while worlds come and go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from lamina.backends.protocol import Call, Plan, Run
from lamina.ops.core import Array, Op, inferred
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
from lamina.runtime.ranks import Communicator, Pending, current_world
from lamina.spec import Spec, contiguous

#: What was started, by the address of what they write.
_under_way: dict[int, Pending] = {}
_Arrays = Sequence[Array]


def host_plan(op: Collective, specs: Sequence[Spec]) -> Plan:
    """The plan of a collective operation on row-major host memory. Raises what `op.infer` raises."""
    inputs = tuple(Spec(s.shape, s.dtype, contiguous(s.shape)) for s in specs)
    outputs = tuple(s.fixed for s in inferred(op, *inputs))
    aliases = {i: i for i in range(len(inputs))} if isinstance(op, AllReduceEach) else dict(op.inplace)
    return Plan(
        inputs, outputs, partial(_bind, op, inputs, outputs), aliases=aliases, label=f"ranks {op.name}"
    )


def _bind(op: Collective, inputs: Sequence[Spec], outputs: Sequence[Spec], call: Call) -> Run:
    xs = [host_array(p, s.shape, s.dtype.numpy) for p, s in zip(call.inputs, inputs, strict=True)]
    ys = [host_array(p, s.shape, s.dtype.numpy) for p, s in zip(call.outputs, outputs, strict=True)]
    run = _RUNS[type(op)]

    def start() -> None:
        run(op, current_world().communicator(op.group.ranks), xs, ys)

    return start


def _move(x: Array, y: Array) -> Array:
    """y, with the elements of x, which may lie there already."""
    if x.ctypes.data != y.ctypes.data:
        np.copyto(y, x)
    return y


def _all_reduce(op: Any, comm: Communicator, xs: _Arrays, ys: _Arrays) -> None:
    for x, y in zip(xs, ys, strict=True):
        comm.all_reduce(_move(x, y), op.reduction)


def _start_all_reduce(op: StartAllReduce, comm: Communicator, xs: _Arrays, ys: _Arrays) -> None:
    _under_way[ys[0].ctypes.data] = comm.start_all_reduce(_move(xs[0], ys[0]), op.reduction)


def _all_gather(op: Any, comm: Communicator, xs: _Arrays, ys: _Arrays) -> None:
    for x, y in zip(xs, ys, strict=True):
        comm.all_gather(x, y)


def _reduce_scatter(op: Any, comm: Communicator, xs: _Arrays, ys: _Arrays) -> None:
    for x, y in zip(xs, ys, strict=True):
        comm.reduce_scatter(x, y, op.reduction)


def _start_reduce_scatter(op: StartReduceScatter, comm: Communicator, xs: _Arrays, ys: _Arrays) -> None:
    _under_way[ys[0].ctypes.data] = comm.start_reduce_scatter(xs[0], ys[0], op.reduction)


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
