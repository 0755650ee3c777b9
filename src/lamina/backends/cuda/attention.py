"""Scaled dot-product attention.

sdpa    cuDNN's one operation, forward in half types
steps   cuDNN's pattern of attention written out (`lamina.cudnn.composed`), forward and backward in half types
rows    any dtype and size: matrix products, and an own kernel on the rows of scores, which lie in the workspace
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np

from lamina.backends import Call, Plan, Run
from lamina.backends.cuda.choice import Problem, Way, choose
from lamina.backends.cuda.epilogue import NONE
from lamina.backends.cuda.indexing import broadcast_strides
from lamina.backends.cuda.matmul import matmul_plan
from lamina.backends.cuda.program import (
    WORKSPACE_ALIGNMENT,
    Copy,
    Fill,
    Launch,
    Place,
    Program,
    Step,
    blocks_for,
    c_type,
    constants,
    kernel_plan,
    round_up,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.table import kernels
from lamina.cudnn import Graph, Tensor
from lamina.cudnn.composed import attention as forward_steps
from lamina.cudnn.composed import attention_grad as backward_steps
from lamina.ops.attention import Attention, AttentionGrad
from lamina.ops.core import Array
from lamina.ops.matmul import Matmul
from lamina.ops.reduce import Reduce
from lamina.runtime import Device
from lamina.spec import Policy, Spec, bfloat16, float16

#: What stands at masked scores in cuDNN's graphs: low enough for a weight of zero, and no NaN comes of it.
_NEVER = -1e30


@dataclass(frozen=True)
class PlanStep:
    """Another plan as a step: where its operands lie, and its workspace within the call's."""

    plan: Plan
    inputs: tuple[Place, ...]
    outputs: tuple[Place, ...]
    workspace: Place

    def bind(self, device: Device, call: Call) -> Run:
        """Fix the addresses."""
        inputs, outputs = (tuple(p.address(call) for p in places) for places in (self.inputs, self.outputs))
        return self.plan.bind(Call(inputs, outputs, self.workspace.address(call), call.stream))


@dataclass(frozen=True, eq=False)
class Number(Place):
    """One number on the host, as cuDNN takes numbers by value."""

    values: Array = None  # type: ignore[assignment]

    @classmethod
    def of(cls, value: float) -> Number:
        """A float32 number."""
        return cls("number", values=np.full(4, value, np.float32))

    def address(self, call: Call) -> int:
        """Where it is, in every call."""
        return int(self.values.ctypes.data)


# ------------------------------------------------------------------------------------------------------------ plans


@kernels(Attention, source="cudnn")
def attention(op: Attention, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(o, stats) from q, k, v and perhaps a bias; all row-major."""
    inputs = [s.open.fixed for s in specs]
    outputs = [s.fixed for s in op.infer(*inputs)]
    if outputs[0].numel == 0:
        return kernel_plan(device, inputs, outputs, [], label=op.name)
    rows = forward_rows(op, inputs, device, policy)
    ways = [rows]
    if inputs[0].dtype in (float16, bfloat16):
        ways = [Way("steps", lambda: forward_graph(op, inputs)), rows]
        if not op.causal and len(inputs) == 3:
            ways = [Way("sdpa", lambda: one_operation(op, inputs)), *ways]
    return choose(_problem(op, inputs, outputs, ways), device, policy)


@kernels(AttentionGrad, source="cudnn")
def attention_grad(op: AttentionGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(dq, dk, dv, dbias) from q, k, v, o, stats, do and perhaps a bias; all row-major."""
    inputs = [s.open.fixed for s in specs]
    outputs = [s.fixed for s in op.infer(*inputs)]
    if any(s.numel == 0 for s in inputs):
        zeros = [Fill(target(i), 0, s.nbytes) for i, s in enumerate(outputs) if s.nbytes]
        return kernel_plan(device, inputs, outputs, zeros, label=op.name)
    ways = [backward_rows(op, inputs, device, policy)]
    if inputs[0].dtype in (float16, bfloat16) and len(inputs) == 6:
        ways = [_backward_way(op, inputs), *ways]
    return choose(_problem(op, inputs, outputs, ways), device, policy)


def _problem(
    op: Attention | AttentionGrad, inputs: Sequence[Spec], outputs: Sequence[Spec], ways: Sequence[Way]
) -> Problem:
    q, k, v = inputs[:3]
    products = 2 if isinstance(op, Attention) else 5
    return Problem(
        key=f"{op} {', '.join(map(str, inputs))}",
        label=op.name,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        ways=tuple(ways),
        flops=products * (q.shape[3] + v.shape[3]) * float(prod(q.shape[:3]) * k.shape[2]),
    )


# --------------------------------------------------------------------------------------------------- cuDNN's graphs


def _turned(graph: Graph, spec: Spec) -> Tensor:
    """A row-major [B, H, T, D] as [B, H, D, T]."""
    b, h, t, d = spec.shape
    return graph.tensor((b, h, d, t), (h * t * d, t * d, 1, d), spec.dtype.name)


def _stats(graph: Graph, q: Spec) -> Tensor:
    return graph.packed((*q.shape[:3], 1), "float32")


def one_operation(op: Attention, inputs: Sequence[Spec]) -> tuple[Graph, Mapping[int, Place]]:
    """The graph of one node."""
    graph = Graph("float32")
    q, k, v = (graph.packed(s.shape, s.dtype.name) for s in inputs)
    o = graph.packed((*inputs[0].shape[:3], inputs[2].shape[3]), inputs[0].dtype.name)
    scale, stats = graph.scalar(), _stats(graph, inputs[0]) if op.stats else None
    graph.attention(q, k, v, o, scale=scale, stats=stats)
    places = {q.uid: source(0), k.uid: source(1), v.uid: source(2), o.uid: target(0)}
    places[scale.uid] = Number.of(op.scale)
    return graph, places | ({} if stats is None else {stats.uid: target(1)})


def forward_graph(op: Attention, inputs: Sequence[Spec]) -> tuple[Graph, Mapping[int, Place]]:
    """The pattern, with a bias and the causal mask."""
    graph = Graph("float32")
    kind = inputs[0].dtype.name
    q, v = (graph.packed(inputs[i].shape, kind) for i in (0, 2))
    k = _turned(graph, inputs[1])
    o = graph.packed((*inputs[0].shape[:3], inputs[2].shape[3]), kind)
    scale, causal = graph.scalar(), graph.scalar() if op.causal else None
    bias = graph.packed(inputs[3].shape, kind) if len(inputs) > 3 else None
    stats = _stats(graph, inputs[0]) if op.stats else None
    forward_steps(graph, q, k, v, o, scale=scale, stats=stats, bias=bias, causal=causal)
    places = {q.uid: source(0), k.uid: source(1), v.uid: source(2), o.uid: target(0)}
    places[scale.uid] = Number.of(op.scale)
    more = ((bias, source(3)), (causal, Number.of(_NEVER)), (stats, target(1)))
    return graph, places | {t.uid: place for t, place in more if t is not None}


def _backward_way(op: AttentionGrad, inputs: Sequence[Spec]) -> Way:
    """The pattern backwards; it sums dq up in float32, from zeros."""
    q = inputs[0]
    row_sum = prod(q.shape[:3]) * 4
    at = round_up(row_sum, WORKSPACE_ALIGNMENT)
    dq_sum = q.numel * 4
    clear = Fill(scratch(at), 0, dq_sum)
    return Way("steps", lambda: backward_graph(op, inputs, at), before=(clear,), scratch=at + dq_sum)


def backward_graph(
    op: AttentionGrad, inputs: Sequence[Spec], dq_sum_at: int
) -> tuple[Graph, Mapping[int, Place]]:
    """The pattern backwards; its sums lie at the start of the workspace."""
    graph = Graph("float32")
    kind, (q_spec, k_spec, v_spec) = inputs[0].dtype.name, inputs[:3]
    q, o, do = (graph.packed(inputs[i].shape, kind) for i in (0, 3, 5))
    k, v = _turned(graph, k_spec), _turned(graph, v_spec)
    dq, dk, dv = (graph.packed(s.shape, kind) for s in (q_spec, k_spec, v_spec))
    stats, row_sum = _stats(graph, q_spec), _stats(graph, q_spec)
    dq_sum = graph.packed(q_spec.shape, "float32")
    scale, one, causal = graph.scalar(), graph.scalar(), graph.scalar() if op.causal else None
    backward_steps(
        graph, do, q, k, v, o, stats=stats, dq=dq, dk=dk, dv=dv, scale=scale, one=one, row_sum=row_sum,
        dq_sum=dq_sum, causal=causal,
    )  # fmt: skip
    places: dict[int, Place] = {t.uid: source(i) for i, t in enumerate((q, k, v, o, stats, do))}
    places |= {t.uid: target(i) for i, t in enumerate((dq, dk, dv))}
    places |= {row_sum.uid: scratch(), dq_sum.uid: scratch(dq_sum_at)}
    places |= {scale.uid: Number.of(op.scale), one.uid: Number.of(1.0)}
    return graph, places if causal is None else places | {causal.uid: Number.of(_NEVER)}


# ----------------------------------------------------------------------------------------------- products and rows


class _Steps:
    """Steps in the making, with pieces of the workspace."""

    def __init__(self, device: Device, policy: Policy) -> None:
        self.device, self.policy = device, replace(policy, algorithm="heuristic")
        self.steps: list[Step] = []
        self.size = 0

    def temporary(self, nbytes: int) -> Place:
        """A piece of its own."""
        place = scratch(self.size)
        self.size += round_up(nbytes, WORKSPACE_ALIGNMENT)
        return place

    def plan(self, plan: Plan, inputs: Sequence[Place], output: Place) -> None:
        """Another plan."""
        self.steps.append(PlanStep(plan, tuple(inputs), (output,), self.temporary(plan.workspace)))

    def product(self, op: Matmul, a: tuple[Spec, Place], b: tuple[Spec, Place], out: Place) -> None:
        """A matrix product."""
        plan = matmul_plan(op, (a[0], b[0]), NONE, self.device, self.policy)
        self.plan(plan, (a[1], b[1]), out)


def forward_rows(op: Attention, inputs: Sequence[Spec], device: Device, policy: Policy) -> Way:
    """q kᵀ, the rows, weights times v."""
    q, k, v = inputs[:3]
    made, scores = _Steps(device, policy), Spec((*q.shape[:3], k.shape[2]), q.dtype).fixed
    s = made.temporary(scores.nbytes)
    made.product(Matmul(False, True), (q, source(0)), (k, source(1)), s)
    bias = source(3) if len(inputs) > 3 else s
    stats = target(1) if op.stats else s
    made.steps.append(weights_launch(op, scores, inputs[3:], (s, bias, stats)))
    made.product(Matmul(), (scores, s), (v, source(2)), target(0))
    return Way("rows", steps=tuple(made.steps), scratch=made.size)


def backward_rows(op: AttentionGrad, inputs: Sequence[Spec], device: Device, policy: Policy) -> Way:
    """q kᵀ and do vᵀ, the rows, then a product for each gradient."""
    q, k, v, _, _, g, *bias = inputs
    made, scores = _Steps(device, policy), Spec((*q.shape[:3], k.shape[2]), q.dtype).fixed
    s, d = made.temporary(scores.nbytes), made.temporary(scores.nbytes)
    plain = made.temporary(scores.nbytes) if bias else d
    made.product(Matmul(False, True), (q, source(0)), (k, source(1)), s)
    made.product(Matmul(False, True), (g, source(5)), (v, source(2)), d)
    places = (s, source(6) if bias else s, source(4), source(3), source(5), d, plain)
    made.steps.append(slopes_launch(op, scores, v.shape[3], bias, places))
    made.product(Matmul(), (scores, d), (k, source(1)), target(0))
    made.product(Matmul(True), (scores, d), (q, source(0)), target(1))
    made.product(Matmul(True), (scores, s), (g, source(5)), target(2))
    for spec in bias:
        axes = tuple(i for i, (n, m) in enumerate(zip(spec.shape, scores.shape, strict=True)) if n != m)
        if axes:
            made.plan(kernels.plan(Reduce("sum", axes), [scores], device, policy), (plain,), target(3))
        else:
            made.steps.append(Copy(target(3), plain, scores.nbytes))
    return Way("rows", steps=tuple(made.steps), scratch=made.size)


def weights_launch(op: Attention, scores: Spec, bias: Sequence[Spec], places: tuple[Place, ...]) -> Launch:
    """The products [B, H, S, T] become weights. places: of the products, the bias, and the statistics."""
    text, grid = _rows(op, scores, 1, bias, STATS=int(op.stats), UNSCALED=0)
    return Launch(Program("attention_weights", "attention.cu", text), grid, (256,), places)


def slopes_launch(
    op: AttentionGrad, scores: Spec, width: int, bias: Sequence[Spec], places: tuple[Place, ...]
) -> Launch:
    """The products q kᵀ become weights, the products do vᵀ gradients of the scores.

    width: features of o. places: of q kᵀ, the bias, the statistics, o, do, do vᵀ, and with a bias of the
    gradients without the scale.
    """
    text, grid = _rows(op, scores, width, bias, STATS=0, UNSCALED=int(bool(bias)))
    return Launch(Program("attention_slopes", "attention.cu", text), grid, (256,), places)


def _rows(
    op: Attention | AttentionGrad, scores: Spec, width: int, bias: Sequence[Spec], **flags: int
) -> tuple[str, tuple[int]]:
    """The constants of the kernels on rows, and their grid."""
    rows, columns = prod(scores.shape[:3]), scores.shape[3]
    lanes = 32 if columns <= 2048 else 256
    index = "i32" if rows * max(columns, width) < 2**31 - 2**26 else "i64"
    text = f"typedef {index} Index;\ntypedef {c_type(scores.dtype)} T;\n"
    text += constants(
        LANES=lanes, ROWS=rows, HEIGHT=scores.shape[2], COUNT=columns, WIDTH=width, SCALE=repr(op.scale),
        CAUSAL=int(op.causal), BIAS=len(bias), HEADS=scores.shape[1], **flags,
    )  # fmt: skip
    for spec in bias:
        steps = broadcast_strides(spec, scores.shape)
        text += constants(**{f"BIAS_{axis}": step for axis, step in zip("BHST", steps, strict=True)})
    return text, (blocks_for(rows * lanes, 256),)
