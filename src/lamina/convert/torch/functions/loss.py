"""Losses, 8-bit numbers, and random ops: PyTorch's generator draws other numbers than Lamina's."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from lamina.convert.torch.functions.step import TorchStep, refuses, torch_dtype, writes
from lamina.ops.primitives.collective import Collective
from lamina.ops.primitives.criterion import BinaryCrossEntropy
from lamina.ops.primitives.ctc import CtcLoss
from lamina.ops.primitives.dropout import Dropout, DropoutMask
from lamina.ops.primitives.foreach import Foreach
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.loss import CrossEntropy, LabelledMean
from lamina.ops.primitives.nll_loss import NllLoss
from lamina.ops.primitives.quantize import Dequantize, Quantize
from lamina.ops.primitives.random import RandomNormal, RandomUniform
from lamina.ops.primitives.update import Update

_COMPILED = "it stands in compiled graphs alone"

refuses(
    {
        Collective: "several ranks take part in it; give one rank's network",
        Foreach: _COMPILED,
        Fused: _COMPILED,
        FusedElementwise: _COMPILED,
        Update: "an optimizer's update is no part of a network; torch.optim has its own",
    }
)


@writes(Dropout)
def dropout(step: TorchStep, x: Any, state: Any) -> Any:
    """F.dropout; the state is passed on unchanged."""
    p = step.op.p
    if not step.wanted[1]:
        return functional.dropout(x, p, True), None, state
    mask = torch.rand_like(x) >= p
    return torch.where(mask, x * (0.0 if p == 1 else 1 / (1 - p)), 0.0), mask, state


@writes(DropoutMask)
def dropout_mask(step: TorchStep, state: Any) -> Any:
    """Zeros and ones from torch.rand."""
    op = step.op
    return (step.call(torch.rand, op.shape, device=step.device) >= op.p).to(torch_dtype(op.dtype)), state


@writes(RandomUniform)
def random_uniform(step: TorchStep, state: Any) -> Any:
    """torch.rand, scaled to the bounds."""
    op = step.op
    drawn = step.call(torch.rand, op.shape, dtype=torch_dtype(op.dtype), device=step.device)
    return drawn * (op.high - op.low) + op.low, state


@writes(RandomNormal)
def random_normal(step: TorchStep, state: Any) -> Any:
    """torch.randn, scaled and shifted."""
    op = step.op
    drawn = step.call(torch.randn, op.shape, dtype=torch_dtype(op.dtype), device=step.device)
    return drawn * op.std + op.mean, state


@writes(CrossEntropy)
def cross_entropy(step: TorchStep, x: Any, labels: Any) -> Any:
    """F.cross_entropy of each sample."""
    op = step.op
    ignored = -100 if op.ignore_index is None else op.ignore_index
    return functional.cross_entropy(
        x.to(torch_dtype(step.results[0].dtype)), labels.long(), ignore_index=ignored, reduction="none",
        label_smoothing=op.label_smoothing,
    )  # fmt: skip


@writes(NllLoss)
def nll_loss(step: TorchStep, x: Any, labels: Any, weight: Any = None) -> Any:
    """F.nll_loss of each sample; with weights, which may have gradients, its formula, and the samples' weights."""
    ignored = -100 if step.op.ignore_index is None else step.op.ignore_index
    if weight is None:
        return functional.nll_loss(x, labels.long(), ignore_index=ignored, reduction="none")
    counts = labels != ignored
    places = torch.where(counts, labels, 0).long()
    shares = torch.where(counts, weight[places], 0.0)
    picked = torch.squeeze(torch.gather(x, 1, torch.unsqueeze(places, 1)), 1)
    return torch.where(shares != 0, -picked * shares, 0.0).to(torch_dtype(step.dtype)), shares


@writes(LabelledMean)
def labelled_mean(step: TorchStep, losses: Any, labels: Any) -> Any:
    """The sum divided by the number of labels that count."""
    wide = torch_dtype(step.results[1].dtype)
    share = torch.reciprocal(torch.sum(labels != step.op.ignore_index).to(wide))
    return (torch.sum(losses.to(wide)) * share).to(torch_dtype(step.dtype)), share


@writes(BinaryCrossEntropy)
def binary_cross_entropy(step: TorchStep, p: Any, t: Any) -> Any:
    """F.binary_cross_entropy of each element."""
    return functional.binary_cross_entropy(p, t, reduction="none")


@writes(CtcLoss)
def ctc_loss(step: TorchStep, log_probs: Any, targets: Any, steps: Any, labels: Any) -> Any:
    """F.ctc_loss of each sequence, whose gradient assumes a preceding log_softmax: corrected if there is none."""
    op = step.op
    if len(step.wanted) > 1 and step.wanted[1]:
        raise step.error("PyTorch's function does not give the forward variables")
    losses = functional.ctc_loss(
        log_probs, targets, steps, labels, op.blank, reduction="none", zero_infinity=op.zero_infinity
    )
    if op.normalized:
        return losses
    read = step.call(torch.arange, log_probs.size(0), device=step.device)[:, None] < steps
    total = torch.sum(torch.exp(log_probs).sum(2) * read, 0) * (losses != 0)
    return losses - (total - total.detach())


@writes(Quantize)
def quantize(step: TorchStep, x: Any, scale: Any) -> Any:
    """The nearest number of the 8-bit type."""
    found, kind = x.to(torch.float32) / scale, torch_dtype(step.op.dtype)
    if kind == torch.int8:
        return torch.clamp(torch.round(found), -128, 127).to(kind)
    largest = torch.finfo(kind).max
    return torch.clamp(found, -largest, largest).to(kind)


@writes(Dequantize)
def dequantize(step: TorchStep, q: Any, scale: Any) -> Any:
    """The number times the scale."""
    return q.to(torch.float32) * scale
