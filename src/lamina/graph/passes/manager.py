"""The passes that turn a graph into an equivalent, better one, in order, and a report of each.

Dead code needs no pass: a graph holds only what its outputs depend on.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from lamina.backends import Backend
from lamina.graph.ir.graph import Graph, Value
from lamina.graph.passes.algebraic import (
    EXPANSION_ABSORBED,
    HEADS_AS_ROWS,
    MASK_BEFORE_SPREADING,
    SLICE_BEFORE_NORM,
    STEP_BEFORE_SPREADING,
    SUM_BEFORE_SPREADING,
)
from lamina.graph.passes.attention import join_parts, reshape_behind
from lamina.graph.passes.canonicalize import (
    common_subexpressions,
    drop_identities,
    fold_constants,
    prune_outputs,
)
from lamina.graph.passes.collectives import bucket_reductions, keep_order
from lamina.graph.passes.fold_batch_norm import fold_batch_norm
from lamina.graph.passes.foreach import absorb_casts, group_small
from lamina.graph.passes.fuse_batch_norm import fuse_batch_norm
from lamina.graph.passes.fusion import fuse_elementwise, fuse_patterns
from lamina.graph.passes.idioms import recognize_idioms
from lamina.graph.passes.join_elementwise import join_elementwise
from lamina.graph.passes.pattern import Report, rewrite
from lamina.graph.passes.steps_behind_parts import steps_behind_parts
from lamina.graph.passes.verify import Checker, checked_passes


@dataclass(frozen=True)
class Compilation:
    """The target of the passes: a backend, and the inputs that do not change between runs."""

    backend: Backend
    stays: Collection[Value] = ()


@dataclass(frozen=True)
class Pass:
    """One rewrite of a whole graph. needs: names of passes that must have run before."""

    name: str
    run: Callable[[Graph, Compilation, Report], Graph]
    needs: tuple[str, ...] = ()


def _fusions(graph: Graph, target: Compilation, report: Report, stage: str) -> Graph:
    found = [f for f in target.backend.fusions() if f.stage == stage]
    return fuse_patterns(graph, found, target.backend, report)


_ALGEBRAIC = [
    MASK_BEFORE_SPREADING,
    SUM_BEFORE_SPREADING,
    STEP_BEFORE_SPREADING,
    EXPANSION_ABSORBED,
    HEADS_AS_ROWS,
    SLICE_BEFORE_NORM,
]

PIPELINE: list[Pass] = [
    Pass("bucket_reductions", lambda g, _, r: bucket_reductions(g, r)),
    Pass("keep_order", lambda g, _, r: keep_order(g, r), ("bucket_reductions",)),
    Pass("fold_constants", lambda g, _, r: fold_constants(g, r)),
    Pass("drop_identities", lambda g, _, r: drop_identities(g, r)),
    Pass("common_subexpressions", lambda g, _, r: common_subexpressions(g, r)),
    Pass("recognize_idioms", lambda g, _, r: recognize_idioms(g, r), ("common_subexpressions",)),
    Pass("fold_batch_norm", lambda g, t, r: fold_batch_norm(g, t.stays, r, t.backend), ("fold_constants",)),
    Pass("fold_constants_of_norms", lambda g, _, r: fold_constants(g, r), ("fold_batch_norm",)),
    Pass("algebraic", lambda g, _, r: rewrite(g, _ALGEBRAIC, r)),
    Pass("fuse_batch_norm", lambda g, _, r: fuse_batch_norm(g, r), ("fold_batch_norm",)),
    Pass("reshape_behind", lambda g, _, r: reshape_behind(g, r)),
    Pass("join_parts", lambda g, _, r: join_parts(g, r)),
    Pass("steps_behind_parts", lambda g, _, r: steps_behind_parts(g, r), ("join_parts",)),
    Pass("fuse_patterns", lambda g, t, r: _fusions(g, t, r, "ops"), ("fuse_batch_norm", "steps_behind_parts")),
    Pass("drop_identities_of_fusions", lambda g, _, r: drop_identities(g, r), ("fuse_patterns",)),
    Pass("absorb_casts", lambda g, _, r: absorb_casts(g, r)),
    Pass("prune_outputs", lambda g, _, r: prune_outputs(g, r), ("fuse_patterns",)),
    Pass("fuse_elementwise", lambda g, t, r: fuse_elementwise(g, t.backend, r, t.stays), ("prune_outputs",)),
    Pass("fuse_patterns_on_chains", lambda g, t, r: _fusions(g, t, r, "chains"), ("fuse_elementwise",)),
    Pass("join_elementwise", lambda g, t, r: join_elementwise(g, t.backend, t.stays, r), ("fuse_elementwise",)),
    Pass("fuse_patterns_on_expressions", lambda g, t, r: _fusions(g, t, r, "expressions"), ("join_elementwise",)),
    Pass("group_small", lambda g, t, r: group_small(g, t.backend, t.stays, r), ("absorb_casts",)),
]  # fmt: skip


def optimize(
    graph: Graph, backend: Backend, stays: Collection[Value] = (), reports: list[Report] | None = None
) -> Graph:
    """The graph after all passes of PIPELINE.

    stays: inputs that do not change between runs: what is computed from them alone is not mixed with other work.
    reports: receives a report of each pass.
    """
    target, checker = Compilation(backend, stays), Checker(graph) if checked_passes() else None
    for one in PIPELINE:
        report = Report(one.name, len(graph.nodes))
        better = one.run(graph, target, report)
        report.after = len(better.nodes)
        if checker is not None and better is not graph:
            checker.check(one.name, better)
        if reports is not None:
            reports.append(report)
        graph = better
    return graph


def refusals(reports: Collection[Report]) -> list[str]:
    """The fusions that passes refused, with the reasons."""
    return [reason for report in reports for reason in report.refused]
