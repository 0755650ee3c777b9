"""Cross-entropy on logits and its gradient, in one pass over the classes each, and the mean of its losses."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends import Plan
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.elementwise.reduce import ENOUGH, dense
from lamina.backends.cuda.elementwise.shape import plain_layout, row_major
from lamina.backends.cuda.elementwise.softmax import lanes_for
from lamina.backends.cuda.launch.indexing import Space, collapse, index_type, memory_order, offset_function
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Launch,
    Place,
    Program,
    c_type,
    constants,
    kernel_plan,
    looping,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.registry import kernels
from lamina.ops.primitives.loss import CrossEntropy, CrossEntropyGrad, LabelledMean
from lamina.runtime import Device
from lamina.spec import Policy, Spec


@kernels(CrossEntropy, source="kernel")
def cross_entropy(op: CrossEntropy, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """Losses from logits and labels."""
    out = op.infer(*specs)[0].fixed
    x, labels = dense(specs[0]), row_major(specs[1])
    steps = _steps(op, "cross_entropy", x, labels, out, [source(0), source(1), target()])
    return kernel_plan(device, [x, labels], [out], steps, label=op.name)


@kernels(CrossEntropyGrad, source="kernel")
def cross_entropy_grad(op: CrossEntropyGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The logits' gradient from logits, labels and the losses' gradient."""
    x, labels, g = dense(specs[0]), row_major(specs[1]), plain_layout(specs[2])
    out = full(op.infer(*specs)[0], x.physical)
    places = [source(0), source(1), source(2), target()]
    steps = _steps(op, "cross_entropy_grad", x, labels, g, places)
    return kernel_plan(device, [x, labels, g], [out], steps, label=op.name, aliases={0: 0})


#: The fewest losses per block when several blocks share the work.
_LEAST_PART = 4096


@kernels(LabelledMean, source="kernel")
def labelled_mean(op: LabelledMean, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """One block; for many losses several, whose sums and counts a second launch adds up."""
    losses, labels = (s.open.fixed for s in specs)
    outputs = [s.fixed for s in op.infer(losses, labels)]
    blocks = min(ENOUGH * device.machine.multiprocessors, losses.numel // _LEAST_PART)
    part = -(-losses.numel // max(1, blocks))
    parts = -(-losses.numel // max(1, part))
    text = f"typedef {index_type(losses.numel)} Index;\n"
    text += f"typedef {c_type(losses.dtype)} T;\ntypedef {c_type(labels.dtype)} L;\n"
    text += constants(COUNT=losses.numel, PART=part, PARTS=parts, IGNORE=f"{op.ignore_index}LL")
    given, results = (source(0), source(1)), (target(0), target(1))
    partial = (scratch(), scratch(8 * parts))  # counts of 8 bytes, then sums

    def launch(name: str, blocks: int, places: Sequence[Place]) -> Launch:
        program = Program(name, "elementwise/labelled_mean.cu", text)
        return Launch(program, (blocks,), (256,), tuple(places))

    if parts <= 1:
        steps = [launch("labelled_mean", 1, (*given, *results))]
    else:
        first = launch("labelled_mean_parts", parts, (*given, *partial))
        steps = [first, launch("labelled_mean_whole", 1, (*partial, *results))]
    workspace = parts * (8 + outputs[1].dtype.itemsize) if parts > 1 else 0
    return kernel_plan(device, [losses, labels], outputs, steps, label=op.name, workspace=workspace)


def _steps(
    op: CrossEntropy | CrossEntropyGrad, name: str, x: Spec, labels: Spec, loss: Spec, places: Sequence[Place]
) -> list[Launch]:
    """The launch; `loss` is the spec of the losses or of their gradient, which may be one number for all."""
    if labels.numel == 0:
        return []
    strides = x.physical.strides
    own = (strides[0], *strides[2:])
    rows = [own, labels.physical.strides, loss.physical.strides or (0,) * labels.ndim]
    space = collapse(labels.shape, rows, memory_order(labels.shape, own))
    classes = Space((x.shape[1],), ((strides[1],),))
    lanes = _lanes(Space(space.sizes, space.strides[:1]), classes, x)
    reach = space.reach + x.shape[1] * abs(strides[1])
    text = f"typedef {index_type(reach)} Index;\n"
    text += f"typedef {c_type(x.dtype)} T;\ntypedef {c_type(labels.dtype)} L;\n"
    ignore = op.ignore_index
    text += constants(
        LANES=lanes,
        OUTPUTS=space.count,
        CLASSES=x.shape[1],
        STEP=strides[1],
        SMOOTHING=repr(float(op.label_smoothing)),
        HAS_SMOOTHING=int(op.label_smoothing != 0),
        HAS_IGNORE=int(ignore is not None),
        IGNORE=f"{ignore or 0}LL",
    )
    for operand, function in enumerate(("place", "label_at", "loss_at")):
        text += offset_function(function, space, operand)
    program = Program(name, "elementwise/loss.cu", text)
    return [looping(program, space.count * lanes, places)]


#: Accesses of 16 bytes, and single classes, per lane: with less work, the reduction over lanes would take longer.
_PACKS, _SINGLE = 4, 8


def _lanes(kept: Space, classes: Space, x: Spec) -> int:
    """Threads that share a position."""
    lanes = lanes_for(kept, classes)
    if lanes != 32:
        return lanes
    packs = _PACKS * VECTOR // x.dtype.itemsize
    each = packs if classes.strides[0] == (1,) and classes.count >= 2 * packs else _SINGLE
    return min(32, 1 << (-(-classes.count // each) - 1).bit_length())
