"""relu's gradient fused into the gradient of the batch norm before it, whose kernels recompute the mask from x.

The norm's passes read x anyway and compute the sign of its output on the way, so that neither a mask nor the output
is read. A library without such a kernel would recompute the norm.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lamina.backends import Fusion
from lamina.backends.cuda.registry import fusions
from lamina.backends.pattern import PatternMatch, Results, made_by, operand
from lamina.ops.primitives.norm import BatchNorm, BatchNormGrad
from lamina.ops.primitives.pointwise import ClippedReluGrad, ReluGrad


def _tells_the_mask(norm: Any) -> bool:
    """Whether x alone determines relu's mask: not if a residual was added."""
    return norm.op.relu and not norm.op.residual


def _is_unmasked(grad: Any) -> bool:
    return not grad.op.relu


_x, _scale, _bias = operand("x"), operand("scale"), operand("bias")
_norm = made_by(BatchNorm, _x, _scale, _bias, name="norm", where=_tells_the_mask, same_policy=False)
_masked = made_by(ReluGrad | ClippedReluGrad, _norm, operand("g"), same_policy=False).read_once
_PATTERN = made_by(BatchNormGrad, _masked, _x, _scale, _norm.output(1), _norm.output(2), where=_is_unmasked)


def _mask_taken_in(match: PatternMatch) -> Results:
    """batch_norm_grad(relu_grad(y, g), x, …) -> batch_norm_grad(relu=True)(g, x, …, bias), y being the norm's."""
    grad, norm = match.root, match.node("norm")
    op = replace(grad.op, relu=True, hi=norm.op.hi)
    made = match.apply(op, match["g"], *match.inputs(grad)[1:], match["bias"], at=grad)
    return dict(zip(grad.outputs, made, strict=True))


BATCH_NORM_GRAD_MASK = fusions.add(Fusion("batch_norm_grad_mask", _PATTERN, _mask_taken_in))
