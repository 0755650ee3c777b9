"""The residual sum and relu behind a batch norm, fused into it.

A norm's last pass writes each element once; the fused sum and relu then cost only the residual's bytes (Jung et al.
2019, "Restructuring batch normalization to accelerate CNN training").
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from lamina.backends.pattern import PatternNode, Results, either, made_by, operand
from lamina.graph.ir.graph import Graph
from lamina.graph.passes.pattern import Match, Report, RewriteRule, rewrite
from lamina.ops.primitives.norm import BatchNorm, BatchNormInfer
from lamina.ops.primitives.pointwise import Add, ClippedRelu, Relu


def fuse_batch_norm(graph: Graph, report: Report | None = None) -> Graph:
    """relu(batch_norm(x)) and relu(batch_norm(x) + z) as one node each, where the values in between have no other
    reader.

    relu may be clipped. z, like x in shape and dtype, must be there when the norm runs.
    """
    return rewrite(graph, [RewriteRule("batch norm with relu", _RELU, _activated)], report)


def _is_bare(norm: Any) -> bool:
    return not norm.op.relu


def _may_be_joined(norm: Any) -> bool:
    return not norm.op.relu and not norm.op.residual


def _alike(node: PatternNode) -> bool:
    """Whether a sum's operands are tensors of one shape and dtype, so that neither is broadcast."""
    a, b = node.inputs
    return a.spec == b.spec


_NORMS = BatchNorm | BatchNormInfer
_norm = made_by(_NORMS, name="norm", where=_is_bare).read_once
_joined = made_by(_NORMS, name="norm", where=_may_be_joined).read_once
_sum = made_by(Add, _joined, operand("residual"), where=_alike).read_once
_RELU = made_by(Relu | ClippedRelu, either(_sum, _norm))


def _activated(match: Match) -> Results | None:
    """The norm with relu, and perhaps the residual, at its original place."""
    norm, op = match.node("norm"), match.root.op
    assert isinstance(norm.op, BatchNorm | BatchNormInfer)
    residual = (match["residual"],) if "residual" in match else ()
    if not all(match.exists(v, at=norm) for v in residual):
        return None
    fused = replace(
        norm.op,
        relu=True,
        hi=op.hi if isinstance(op, ClippedRelu) else None,
        residual=bool(residual) or norm.op.residual,
    )
    y, *others = match.apply(fused, *match.inputs(norm), *residual, at=norm)
    return {match.root.outputs[0]: y, **dict(zip(norm.outputs[1:], others, strict=True))}
