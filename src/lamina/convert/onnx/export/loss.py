"""Losses, 8-bit numbers, and ops that draw random numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.export.writer import OpExport, Written, composes, exports, refuses
from lamina.ops.primitives.collective import Collective
from lamina.ops.primitives.criterion import BinaryCrossEntropy
from lamina.ops.primitives.ctc import CtcLoss
from lamina.ops.primitives.decompose import SingularValues, SymmetricEigen
from lamina.ops.primitives.dropout import Dropout, DropoutMask
from lamina.ops.primitives.foreach import Foreach
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.loss import CrossEntropy, LabelledMean
from lamina.ops.primitives.nll_loss import NllLoss
from lamina.ops.primitives.pool import MaxPoolGather
from lamina.ops.primitives.quantize import Dequantize, Quantize
from lamina.ops.primitives.random import RandomNormal, RandomUniform
from lamina.spec import float32

_DRAWN = (
    "it draws numbers from a state that goes in and comes out, and ONNX's operators keep theirs to themselves"
)

refuses(
    {
        Collective: "several ranks take part in it, and a model of ONNX runs alone; export one rank's network",
        CtcLoss: "ONNX has no operator for it, and its recursion over time has no fixed number of operators",
        SymmetricEigen: "ONNX has no operator for it, and its rotations have no fixed number",
        SingularValues: "ONNX has no operator for it, and its rotations have no fixed number",
        DropoutMask: f"{_DRAWN}; export the network in inference mode",
        Dropout: f"{_DRAWN}; export the network in inference mode",
        RandomNormal: f"{_DRAWN}; give the numbers as an input",
        RandomUniform: f"{_DRAWN}; give the numbers as an input",
        Foreach: "it stands in compiled graphs alone; export the graph as it was traced",
        FusedElementwise: "it stands in compiled graphs alone; export the graph as it was traced",
        Fused: "it stands in compiled graphs alone; export the graph as it was traced",
        MaxPoolGather: "it is the gradient of a gradient",
    }
)


@composes(CrossEntropy)
def cross_entropy(op: CrossEntropy, x: Any, labels: Any) -> Any:
    """-log_softmax at the label, mixed with the mean over all classes for label smoothing; 0 where it is ignored."""
    wide = x.cast(x.dtype.compute)
    logs = ops.log_softmax(wide, 1)
    index = labels.cast("int64").unsqueeze(1)  # [N, 1, *spatial]
    ignored = None if op.ignore_index is None else index == op.ignore_index
    safe = index if ignored is None else ops.where(ignored, 0, index)
    loss = -ops.gather(logs, 1, safe)
    if op.label_smoothing:
        loss = loss * (1 - op.label_smoothing) - logs.mean(1, keepdim=True) * op.label_smoothing
    loss = loss if ignored is None else ops.where(ignored, 0.0, loss)
    return loss.squeeze(1)


@composes(NllLoss)
def nll_loss(op: NllLoss, x: Any, labels: Any, *weight: Any) -> Any:
    """-x at the label times its weight; 0 where it is ignored, and where the weight is 0."""
    index = labels.cast("int64")
    counts = None if op.ignore_index is None else index != op.ignore_index
    safe = index if counts is None else ops.where(counts, index, 0)
    losses = -ops.gather(x, 1, safe.unsqueeze(1)).squeeze(1)
    if not weight:
        return losses if counts is None else ops.where(counts, losses, 0.0)
    shares = ops.gather(weight[0], 0, safe.flatten()).reshape(safe.shape)
    shares = shares if counts is None else ops.where(counts, shares, 0.0)
    return ops.where(shares != 0, losses * shares.cast(x.dtype), 0.0), shares


@composes(LabelledMean)
def labelled_mean(op: LabelledMean, losses: Any, labels: Any) -> Any:
    """The sum divided by the number of labels that count."""
    wide = losses.cast(losses.dtype.compute)
    axes = tuple(range(losses.ndim))
    share = ops.reciprocal(ops.sum((labels != op.ignore_index).cast(wide.dtype), axes))
    return (ops.sum(wide, axes) * share).cast(losses.dtype), share


@composes(BinaryCrossEntropy)
def binary_cross_entropy(op: BinaryCrossEntropy, p: Any, t: Any) -> Any:
    """-(t log(p) + (1 - t) log(1 - p)), with logarithms clamped to at least -100."""
    logs = [ops.clamp(ops.log(v), -100.0, None) for v in (p, 1.0 - p)]
    return -(t * logs[0] + (1.0 - t) * logs[1])


@exports(Quantize)
def quantize(step: OpExport) -> Written:
    """QuantizeLinear to a type given by the zero point."""
    x = step.inputs[0] if step.dtype == float32 else step.cast(step.inputs[0], float32)
    if step.op.dtype.is_float and step.opset < 19:
        raise step.error("float8 came with opset 19; write the model with opset=19 or later")
    return step.add("QuantizeLinear", x, step.inputs[1], step.constant(np.zeros(()), step.op.dtype))


@exports(Dequantize)
def dequantize(step: OpExport) -> Written:
    """DequantizeLinear."""
    return step.add("DequantizeLinear", *step.inputs)
