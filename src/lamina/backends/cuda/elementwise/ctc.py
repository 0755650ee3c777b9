"""Connectionist temporal classification: a block iterates over the steps of a sequence, threads divide its states."""

from __future__ import annotations

from lamina.backends import Plan
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    LOOPING,
    WORKSPACE_ALIGNMENT,
    Launch,
    Place,
    Program,
    c_type,
    constants,
    kernel_plan,
    round_up,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.ctc import CtcLoss, CtcLossGrad
from lamina.runtime import Device
from lamina.spec import Policy, Spec

#: Bytes of shared memory that every GPU gives a block without opt-in.
_SHARED = 48 * 1024 - 256


@kernels(CtcLoss, source="kernel")
def ctc_loss(op: CtcLoss, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The losses, and the path probabilities of the states; two rows of states in shared memory, or in the workspace
    if long."""
    inputs = [s.open.fixed for s in specs]
    outputs = [s.fixed for s in op.infer(*inputs)]
    if not inputs[0].shape[1]:
        return kernel_plan(device, inputs, outputs, [], label=op.name)
    walk = _Walk(op, inputs, int(op.keep))
    alpha = target(1) if op.keep else scratch()
    launch = walk.launch("ctc_loss", (*map(source, range(4)), target(0), alpha, scratch()))
    return kernel_plan(device, inputs, outputs, [launch], label=op.name, workspace=walk.far)


@kernels(CtcLossGrad, source="kernel")
def ctc_loss_grad(op: CtcLossGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The states' posteriors in the workspace, and from them the gradient, step by step."""
    inputs = [s.open.fixed for s in specs]
    (out,) = (s.fixed for s in op.infer(*inputs))
    if not inputs[0].numel:
        return kernel_plan(device, inputs, [out], [], label=op.name)
    walk = _Walk(op, inputs, 0)
    time, batch, _ = inputs[0].shape
    places, at = [], 0
    for size in (inputs[4].nbytes, inputs[5].nbytes, 4 * max(inputs[1].numel, 1), walk.far):
        places.append(scratch(at))
        at += round_up(size, WORKSPACE_ALIGNMENT)
    share, losses, chain, rows = places
    given = tuple(map(source, range(4)))
    back = walk.launch("ctc_shares", (*given, source(4), share, losses, chain, rows))
    program = Program("ctc_grad", "elementwise/ctc.cu", walk.text)
    last = (*given, share, losses, chain, source(5), target())
    spread = Launch(program, (time * batch,), (walk.threads,), last, waves=LOOPING)
    return kernel_plan(device, inputs, [out], [back, spread], label=op.name, workspace=at)


class _Walk:
    """The constants of the kernels, their threads, and the memory of the rows of states: `far` bytes of workspace."""

    def __init__(self, op: CtcLoss | CtcLossGrad, inputs: list[Spec], keep: int) -> None:
        x, targets = inputs[:2]
        time, batch, classes = x.shape
        states = 2 * targets.shape[1] + 1
        self.batch, self.threads = batch, min(round_up(states, 32), 512)
        rows = 2 * (states + 2) * x.dtype.compute.itemsize
        self.near, self.far = (rows, 0) if rows <= _SHARED else (0, rows * batch)
        kind = index_type(time * batch * max(classes, states + 2))
        self.text = f"typedef {kind} Index;\ntypedef {c_type(x.dtype)} T;\n" + constants(
            TIME=time, BATCH=batch, CLASSES=classes, LABELS=targets.shape[1], STATES=states, BLANK=op.blank,
            THREADS=self.threads, ZERO_INFINITY=int(op.zero_infinity), NORMALIZED=int(op.normalized), KEEP=keep,
            SHARED=int(self.near > 0),
        )  # fmt: skip

    def launch(self, name: str, places: tuple[Place, ...]) -> Launch:
        """A block per sequence."""
        program = Program(name, "elementwise/ctc.cu", self.text)
        return Launch(program, (self.batch,), (self.threads,), places, shared=self.near, waves=LOOPING)
