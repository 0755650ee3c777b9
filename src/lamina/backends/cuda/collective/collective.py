"""Plans of collectives: one NCCL call on the plan's stream, or a copy for a group of one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lamina.backends import Call, Plan, Run, passing_plan
from lamina.backends.cuda.registry import kernels
from lamina.ops.core import Op
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
from lamina.runtime import Device, as_stream
from lamina.runtime.ranks import current_world
from lamina.runtime.ranks.nccl import NcclCommunicator
from lamina.spec import Policy, Spec


@kernels(
    AllGather, AllGatherEach, AllReduce, AllReduceEach, AllToAll, Broadcast, Exchange, ReduceScatter,
    ReduceScatterEach, ReduceTo, StartAllReduce, StartReduceScatter,
    source="nccl",
)  # fmt: skip
def collective(op: Collective, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """In the memory layout that the op takes. Raises what `op.infer` raises."""
    inputs = op.operands(specs)
    outputs = op.results(inputs)
    make = partial(_copy if op.group.size == 1 else _bind, op, inputs, device)
    return Plan(inputs, outputs, make, aliases=op.aliases(len(inputs)), label=f"nccl {op.name}")


@kernels(Arrived, source="view")
def arrived(op: Arrived, specs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """The result of a started collective, in place: streams wait for it."""
    return passing_plan(specs, op.name)


def _bind(op: Collective, inputs: Sequence[Spec], device: Device, call: Call) -> Run:
    queue = _CALLS[type(op)]

    def run() -> None:
        queue(op, current_world().gpu_communicator(op.group.ranks, device), inputs, call)

    return run


def _copy(op: Collective, inputs: Sequence[Spec], device: Device, call: Call) -> Run:
    """For a group of one: its result is its operand."""
    stream = as_stream(call.stream, device)

    def run() -> None:
        for x, y, spec in zip(call.inputs, call.outputs, inputs, strict=True):
            if isinstance(op, Exchange) and op.source is None:
                device.platform.fill(y, 0, spec.nbytes, stream)
            elif x != y and spec.nbytes:
                device.platform.copy(y, x, spec.nbytes, stream)

    return run


def _all_reduce(op: Any, comm: NcclCommunicator, inputs: Sequence[Spec], call: Call) -> None:
    places = zip(call.inputs, call.outputs, inputs, strict=True)
    comm.grouped(
        [
            partial(comm.all_reduce, x, y, s.numel, s.dtype.name, op.reduction, call.stream)
            for x, y, s in places
        ]
    )


def _reduce(op: ReduceTo, comm: NcclCommunicator, inputs: Sequence[Spec], call: Call) -> None:
    (x,), (y,), (s,) = call.inputs, call.outputs, inputs
    comm.reduce(x, y, s.numel, s.dtype.name, op.reduction, op.root, call.stream)
    if comm.rank != op.root:
        comm.device.platform.fill(y, 0, s.nbytes, as_stream(call.stream, comm.device))


def _reduce_scatter(op: Any, comm: NcclCommunicator, inputs: Sequence[Spec], call: Call) -> None:
    places = zip(call.inputs, call.outputs, inputs, strict=True)
    comm.grouped(
        [
            partial(comm.reduce_scatter, x, y, s.numel // comm.size, s.dtype.name, op.reduction, call.stream)
            for x, y, s in places
        ]
    )


def _all_gather(op: Any, comm: NcclCommunicator, inputs: Sequence[Spec], call: Call) -> None:
    places = zip(call.inputs, call.outputs, inputs, strict=True)
    comm.grouped([partial(comm.all_gather, x, y, s.nbytes, call.stream) for x, y, s in places])


def _broadcast(op: Broadcast, comm: NcclCommunicator, inputs: Sequence[Spec], call: Call) -> None:
    comm.broadcast(call.inputs[0], call.outputs[0], inputs[0].nbytes, op.root, call.stream)


def _all_to_all(op: AllToAll, comm: NcclCommunicator, inputs: Sequence[Spec], call: Call) -> None:
    part = inputs[0].nbytes // comm.size
    sends = [(call.inputs[0] + r * part, r) for r in range(comm.size)]
    receives = [(call.outputs[0] + r * part, r) for r in range(comm.size)]
    comm.exchange(sends, receives, part, call.stream)


def _exchange(op: Exchange, comm: NcclCommunicator, inputs: Sequence[Spec], call: Call) -> None:
    nbytes = inputs[0].nbytes
    if op.source is None:
        comm.device.platform.fill(call.outputs[0], 0, nbytes, as_stream(call.stream, comm.device))
    sends = [] if op.to is None else [(call.inputs[0], op.to)]
    receives = [] if op.source is None else [(call.outputs[0], op.source)]
    comm.exchange(sends, receives, nbytes, call.stream)


_CALLS: Mapping[type[Op], Callable[[Any, NcclCommunicator, Sequence[Spec], Call], None]] = {
    AllReduce: _all_reduce,
    AllReduceEach: _all_reduce,
    StartAllReduce: _all_reduce,
    ReduceTo: _reduce,
    ReduceScatter: _reduce_scatter,
    ReduceScatterEach: _reduce_scatter,
    StartReduceScatter: _reduce_scatter,
    AllGather: _all_gather,
    AllGatherEach: _all_gather,
    Broadcast: _broadcast,
    AllToAll: _all_to_all,
    Exchange: _exchange,
}
