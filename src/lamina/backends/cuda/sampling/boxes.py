"""Features in boxes, whose gradient is summed in fixed point, and non-maximum suppression."""

from __future__ import annotations

from math import prod

from lamina.backends import Plan
from lamina.backends.cuda.launch.indexing import index_type
from lamina.backends.cuda.launch.program import (
    WORKSPACE_ALIGNMENT,
    Launch,
    Place,
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
    round_up,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.backends.cuda.sampling.fixed_sum import count_bits, fixed_sum
from lamina.ops.primitives.boxes import MOST_SAMPLES, KeepBoxes, RoiAlign, RoiAlignGrad
from lamina.runtime import Device
from lamina.spec import Policy, Spec

_FILE = "sampling/boxes.cu"


@kernels(RoiAlign, source="kernel")
def roi_align(op: RoiAlign, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """A thread per bin and channel."""
    x, boxes = (s.open.fixed for s in specs)
    y = op.infer(x.open, boxes.open)[0].fixed
    steps = []
    if y.numel:
        steps.append(_launch("roi_align", op, x, y, (source(0), source(1), target())))
    return kernel_plan(device, [x, boxes], [y], steps, label=op.name)


@kernels(RoiAlignGrad, source="kernel")
def roi_align_grad(op: RoiAlignGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """All samples of a bin together add at most the bin's gradient to an element."""
    g, boxes = (s.open.fixed for s in specs)
    dx = op.infer(g.open, boxes.open)[0].fixed
    bits = count_bits(boxes.shape[0] * prod(op.output))

    def add(sums: Place, found: Place) -> tuple[Launch, Launch]:
        adding = _launch("roi_align_grad", op, dx, g, (source(0), source(1), sums, found), bits)
        return adding, _launch("roi_align_odd", op, dx, g, (source(0), source(1), found, target()), bits)

    steps, workspace = fixed_sum(g, source(0), dx, boxes.shape[0] * prod(op.output), add)
    return kernel_plan(device, [g, boxes], [dx], steps, label=op.name, workspace=workspace)


def _launch(
    name: str, op: RoiAlign | RoiAlignGrad, x: Spec, y: Spec, places: tuple[Place, ...], bits: int = 1
) -> Launch:
    text = f"typedef {index_type(max(x.numel, y.numel))} Index;\ntypedef {c_type(x.dtype)} T;\n"
    text += constants(
        COUNT=y.shape[0], N=x.shape[0], C=x.shape[1], H=x.shape[2], W=x.shape[3], BINS_H=op.output[0],
        BINS_W=op.output[1], SCALE=float(op.scale).hex(), RATIO=op.ratio, ALIGNED=int(op.aligned), COUNT_BITS=bits,
        MOST_SAMPLES=MOST_SAMPLES,
    )  # fmt: skip
    return looping(Program(name, _FILE, text), y.numel, places)


@kernels(KeepBoxes, source="kernel")
def keep_boxes(op: KeepBoxes, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """All overlaps as bits in the workspace, then one block that iterates over the boxes."""
    boxes = specs[0].open.fixed
    kept = op.infer(boxes.open)[0].fixed
    count, words = boxes.shape[0], -(-boxes.shape[0] // 64)
    if not count:
        return kernel_plan(device, [boxes], [kept], [], label=op.name)
    text = f"typedef {c_type(boxes.dtype)} T;\n"
    text += constants(BOXES=count, WORDS=words, THRESHOLD=float(op.threshold).hex())
    room = round_up(8 * count * words, WORKSPACE_ALIGNMENT)
    steps = [
        looping(Program("overlaps", _FILE, text), count * words, (source(), scratch())),
        Launch(Program("keep_boxes", _FILE, text), (1,), (256,), (scratch(), scratch(room), target())),
    ]
    return kernel_plan(device, [boxes], [kept], steps, label=op.name, workspace=room + 8 * words)
