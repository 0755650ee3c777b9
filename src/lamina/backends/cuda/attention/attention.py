"""Scaled dot-product attention.

windows few queries and keys in half types: own kernels that keep scores on chip (`windows.py`)
tiles   the same for many; the gradient of a bias that has all rows and columns (`tiles.py`)
sdpa    cuDNN's single operation, forward in half types
steps   cuDNN's pattern of attention as separate operations (`lamina.cudnn.composed`), forward and backward in half
        types
padded  the same on copies whose features are zero-padded to a multiple of 16 bytes, as cuDNN requires: scores are
        the same, and the padding is left out of results ("padded-sdpa", "padded-steps")
rows    any dtype and size: matrix products, and an own kernel on the rows of scores in the workspace

cuDNN, `windows` and `tiles` read q, k and v and write their gradients by strides: heads within a projection of all
three stay where they are. `rows` takes row-major operands.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda.attention import tiles, windows
from lamina.backends.cuda.attention.joint_attention_fusion import JointAttention, JointAttentionGrad
from lamina.backends.cuda.attention.parted_attention_fusion import PartedAttention
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.elementwise.shape import strided_copy
from lamina.backends.cuda.launch.indexing import broadcast_strides, index_type, memory_order
from lamina.backends.cuda.launch.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Aligned,
    Bindable,
    Copy,
    Fill,
    HostNumber,
    Launch,
    Number,
    Place,
    Program,
    SubPlan,
    c_type,
    constants,
    kernel_plan,
    looping,
    round_up,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.matmul.matmul import matmul_plan
from lamina.backends.cuda.matmul.padded import repack
from lamina.backends.cuda.registry import kernels
from lamina.backends.cuda.select.formulations import Formulation, Problem, choose
from lamina.cudnn import Graph, Tensor
from lamina.cudnn.composed import GivenMask
from lamina.cudnn.composed import attention as forward_steps
from lamina.cudnn.composed import attention_grad as backward_steps
from lamina.ops.primitives.attention import Attention, AttentionGrad
from lamina.ops.primitives.matmul import Matmul
from lamina.ops.primitives.reduce import Reduce
from lamina.runtime import Device
from lamina.spec import Layout, Policy, Spec, bfloat16, contiguous, dense, float16

#: An operand: its spec and its place.
Term = tuple[Spec, Place]
AnyAttention = Attention | AttentionGrad | JointAttention | JointAttentionGrad | PartedAttention

#: The value of masked scores in cuDNN's graphs: low enough for a weight of zero, without causing NaN.
_NEVER = -1e30
#: With fewer scores, attention over features that are not a multiple of 16 bytes is left to own kernels.
_FEWEST_SCORES = 1 << 12


# ------------------------------------------------------------------------------------------------------------ plans


@kernels(Attention, source="cudnn")
def attention(op: Attention, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(o, stats) from q, k, v and perhaps a bias; all row-major, unless cuDNN reads them in place."""
    strided = _strided(specs[:3])
    if strided is None:
        return _attention(op, [s.open.fixed for s in specs], device, policy)
    inputs = [*strided, *(s.open.fixed for s in specs[3:])]
    try:
        return _attention(op, inputs, device, policy)
    except NoKernel:
        return _attention(op, [s.open.fixed for s in specs], device, policy)


@kernels(JointAttention, source="cudnn")
def joint_attention(op: JointAttention, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(o, stats) from q, k and v in one tensor, which cuDNN reads in place."""
    op.infer(*specs)
    more = [s.open.fixed for s in specs[1:]]
    return _where_it_lies(specs[0], lambda joint: _joint_attention(op, joint, more, device, policy))


@kernels(JointAttentionGrad, source="cudnn")
def joint_attention_grad(
    op: JointAttentionGrad, specs: tuple[Spec, ...], device: Device, policy: Policy
) -> Plan:
    """The gradients of q, k and v in one tensor of the same layout."""
    op.infer(*specs)
    more = [s.open.fixed for s in specs[4:]]
    return _where_it_lies(specs[0], lambda joint: _joint_gradient(op, joint, more, device, policy))


@kernels(AttentionGrad, source="cudnn")
def attention_grad(op: AttentionGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """(dq, dk, dv, dbias) from q, k, v, o, stats, do and perhaps a bias; row-major, unless cuDNN takes their own
    layouts."""
    strided = _strided((*specs[:4], specs[5]))
    if strided is None:
        return _gradient(op, [s.open.fixed for s in specs], device, policy)
    q, k, v, _, _ = strided
    o = like_q(specs[3], q)
    try:
        others = [s.open.fixed for s in (specs[4], *specs[6:])]
        return _gradient(op, [q, k, v, o, others[0], o, *others[1:]], device, policy)
    except NoKernel:
        return _gradient(op, [s.open.fixed for s in specs], device, policy)


def _attention(op: Attention, inputs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """The plan for operands in the layouts of their specs."""
    o, *stats = op.infer(*inputs)
    outputs = [like_q(o, inputs[0]), *(s.fixed for s in stats)]
    terms = [(s, source(i)) for i, s in enumerate(inputs)]
    targets = [(s, target(i)) for i, s in enumerate(outputs)]
    return chosen(op, inputs, outputs, terms, targets, device, policy)


def _gradient(op: AttentionGrad, inputs: Sequence[Spec], device: Device, policy: Policy) -> Plan:
    """The plan for operands in the layouts of their specs."""
    found = op.infer(*inputs)
    bias, _ = op.parted(inputs[6:])
    outputs = [full(s, x.physical) for s, x in zip(found, (*inputs[:3], *bias), strict=False)]
    terms = [(s, source(i)) for i, s in enumerate(inputs)]
    targets = [(s, target(i)) for i, s in enumerate(outputs)]
    return chosen(op, inputs, outputs, terms, targets, device, policy)


def _joint_attention(
    op: JointAttention, joint: Spec, more: Sequence[Spec], device: Device, policy: Policy
) -> Plan:
    """The plan for a joint tensor in the layout of its spec. more: the bias and the dropout mask, if any."""
    if joint.numel and not _aligned(joint):
        return _apart(op, joint, more, device, policy)
    terms = [*_parts(joint, source), *((s, source(1 + i)) for i, s in enumerate(more))]
    o, *stats = op.infer(joint, *more)
    outputs = [like_q(o, terms[0][0]), *(s.fixed for s in stats)]
    targets = [(s, target(i)) for i, s in enumerate(outputs)]
    return chosen(op, [joint, *more], outputs, terms, targets, device, policy)


def _joint_gradient(
    op: JointAttentionGrad, joint: Spec, more: Sequence[Spec], device: Device, policy: Policy
) -> Plan:
    """The plan for a joint tensor in the layout of its spec; o and do have the layout in which the forward pass
    writes o."""
    parts = _parts(joint, source)
    (q, _), *_ = parts
    o, stats = Attention(op.scale, op.causal, stats=True).infer(*(s.open for s, _ in parts))
    o, stats = like_q(o, q), stats.fixed
    others = [o, stats, o, *more]
    if joint.numel and not _aligned(joint):
        return _apart(op, joint, others, device, policy)
    terms = [*parts, *((s, source(1 + i)) for i, s in enumerate(others))]
    _, *dbias = (s.fixed for s in op.infer(joint, *others))
    targets = [*_parts(joint, target), *((s, target(1 + i)) for i, s in enumerate(dbias))]
    return chosen(op, [joint, *others], [joint, *dbias], terms, targets, device, policy)


def _apart(
    op: JointAttention | JointAttentionGrad,
    joint: Spec,
    others: Sequence[Spec],
    device: Device,
    policy: Policy,
) -> Plan:
    """The plan of the op on separate q, k and v: copies of the parts of a row-major tensor, whose own addresses are
    not aligned."""
    part = Spec(joint.shape[1:], joint.dtype).fixed
    size = round_up(part.nbytes, WORKSPACE_ALIGNMENT)
    plan = kernels.plan(op.unfused, [part] * 3 + list(others), device, policy)
    copies = [scratch(i * size) for i in range(6)]
    own = [Copy(copies[i], source(0, i * part.nbytes), part.nbytes) for i in range(3)]
    inputs = (*copies[:3], *(source(1 + i) for i in range(len(others))))
    end, made = 6 * size, [s.fixed for s in op.infer(joint, *others)]
    found = [target(i) for i in range(len(made))]
    back: list[Bindable] = []
    if isinstance(op, JointAttentionGrad):
        found[:1] = copies[3:]
        back = [Copy(target(0, i * part.nbytes), copies[3 + i], part.nbytes) for i in range(3)]
    steps: list[Bindable] = [*own, SubPlan(plan, inputs, tuple(found), end), *back]
    return kernel_plan(device, [joint, *others], made, steps, label=op.name, workspace=end + plan.workspace)


def chosen(
    op: AnyAttention,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    terms: Sequence[Term],
    targets: Sequence[Term],
    device: Device,
    policy: Policy,
) -> Plan:
    """The best formulation; zeros where there are no keys. terms: begin with q, k and v."""
    (q, _), (k, _), (v, _) = terms[:3]
    if any(s.numel == 0 for s in (q, k, v)):
        zeros = [Fill(target(i), 0, s.nbytes) for i, s in enumerate(outputs) if s.nbytes]
        return kernel_plan(device, inputs, outputs, zeros, label=op.name)
    unfused = op if isinstance(op, Attention | AttentionGrad) else op.unfused
    if isinstance(unfused, Attention):
        products, plain = 2, _plain_forward(unfused, terms, targets)
        formulations = _forward_formulations(unfused, terms, targets, device, policy)
    else:
        products, plain = 5, _plain_backward(unfused, terms, targets, device, policy)
        formulations = _backward_formulations(unfused, terms, targets, device, policy)
    steps, room = plain or ((), 0)
    problem = Problem(
        key=f"{op} {', '.join(map(str, inputs))}",
        label=op.name,
        inputs=tuple(inputs),
        outputs=tuple(outputs),
        formulations=tuple(replace(one, scratch=max(one.scratch, room)) for one in formulations),
        plain=tuple(steps),
        kind=f"parted {unfused}" if isinstance(op, PartedAttention) else str(op),
        flops=products * (q.shape[3] + v.shape[3]) * float(prod(q.shape[:3]) * k.shape[2]),
    )
    return choose(problem, device, policy)


def _plain_forward(
    op: Attention, terms: Sequence[Term], targets: Sequence[Term]
) -> tuple[Sequence[Bindable], int] | None:
    """Own kernels for operands at arbitrary addresses, and their scratch memory, if there are any."""
    for own in (windows, tiles):
        if own.fit(terms):
            return [own.forward(op, terms, targets, aligned=False)], 0
    return None


def _plain_backward(
    op: AttentionGrad, terms: Sequence[Term], targets: Sequence[Term], device: Device, policy: Policy
) -> tuple[Sequence[Bindable], int] | None:
    """The same for the backward pass."""
    if windows.fit(terms, gradient=True):
        return windows.backward(op, terms, targets, device, policy, aligned=False)
    if tiles.fit_gradients(terms, targets):
        return tiles.backward(op, terms, targets, device, policy, aligned=False)
    return None


def _forward_formulations(
    op: Attention, terms: Sequence[Term], targets: Sequence[Term], device: Device, policy: Policy
) -> list[Formulation]:
    """Preferred ones first; own kernels only on row-major operands."""
    first, last = list[Formulation](), list[Formulation]()
    if windows.fit(terms):
        first.append(Formulation("windows", steps=(windows.forward(op, terms, targets),)))
    elif tiles.fit(terms):
        own = Formulation("tiles", steps=(tiles.forward(op, terms, targets),))
        (first if tiles.reads_bias_faster(op, terms) else last).append(own)
    if _row_major(terms):
        last.append(forward_rows(op, terms, targets, device, policy))
    if terms[0][0].dtype not in (float16, bfloat16):
        return [*first, *last]
    copies = _Copies()
    given, made = [copies.read(t) for t in terms[:3]], [copies.written(targets[0]), *targets[1:]]
    more = _spread(op, terms[3:], terms, copies)
    graphs = [Formulation("steps", lambda: forward_graph(op, [*given, *more], made))]
    if not op.causal and len(terms) == 3:  # neither bias nor dropout
        graphs.insert(0, Formulation("sdpa", lambda: one_operation(op, given, made)))
    return [*first, *(copies.around(graph) for graph in graphs if copies.pay(terms)), *last]


def _backward_formulations(
    op: AttentionGrad, terms: Sequence[Term], targets: Sequence[Term], device: Device, policy: Policy
) -> list[Formulation]:
    """Preferred ones first; own kernels only on row-major operands, and for the gradient of a bias: cuDNN's engines
    accept its sum in the pattern, and write zeros."""
    first, last = list[Formulation](), list[Formulation]()
    if windows.fit(terms, gradient=True):
        steps, size = windows.backward(op, terms, targets, device, policy)
        first.append(Formulation("windows", steps=tuple(steps), scratch=size))
    elif tiles.fit_gradients(terms, targets):
        launches, size = tiles.backward(op, terms, targets, device, policy)
        own = Formulation("tiles", steps=tuple(launches), scratch=size)
        (first if op.keep < 1 and tiles.reads_masks_whole(terms) else last).append(own)
    if _row_major(terms):
        last.append(backward_rows(op, terms, targets, device, policy))
    if terms[0][0].dtype not in (float16, bfloat16) or targets[3:]:
        return [*first, *last]
    copies = _Copies()
    more = _spread(op, terms[6:], terms, copies)
    q, k, v, o, g = (copies.read(terms[i]) for i in (0, 1, 2, 3, 5))
    made = [copies.written(t) for t in targets]
    if not copies.pay(terms):
        return [*first, *last]
    graph = _backward_formulation(op, [q, k, v, o, terms[4], g, *more], made, copies.size)
    return [*first, copies.around(graph), *last]


def _spread(
    op: Attention | AttentionGrad, more: Sequence[Term], terms: Sequence[Term], copies: _Copies
) -> list[Term]:
    """The bias, expanded to all rows and columns, and the dropout mask."""
    bias, mask = op.parted(more)
    sizes = terms[0][0].shape[2], terms[1][0].shape[2]
    return [*(copies.spread(b, sizes) for b in bias), *mask]


class _Copies:
    """Copies in scratch memory of operands [B, H, S, D] whose D elements are no multiple of 16 bytes, zero-padded,
    and of a bias that broadcasts over rows or columns, which cuDNN's engines misread."""

    def __init__(self) -> None:
        self.size, self._padded = 0, ""
        self._before: list[Bindable] = []
        self._after: list[Bindable] = []

    def read(self, term: Term) -> Term:
        """An operand as the graph reads it."""
        spec, place = term
        wide, at = self._copy(spec)
        if wide is spec:
            return term
        if _is_dense(spec):
            self._before.append(repack(1, _lines(spec), _lines(wide), spec.dtype, place, at))
        else:
            self._before.append(Fill(at, 0, wide.nbytes))
            strides = spec.physical.strides, wide.physical.strides
            self._before.append(strided_copy(spec.shape, wide, *strides, place, at))
        return wide, at

    def spread(self, term: Term, sizes: tuple[int, int]) -> Term:
        """A bias as the graph reads it: expanded to rows and columns."""
        spec, place = term
        shape = (*spec.shape[:2], *sizes)
        if spec.shape == shape:
            return term
        whole, at = Spec(shape, spec.dtype).fixed, scratch(self.size)
        self.size += round_up(whole.nbytes, WORKSPACE_ALIGNMENT)
        read = tuple(step if n > 1 else 0 for n, step in zip(spec.shape, spec.physical.strides, strict=True))
        self._before.append(strided_copy(shape, whole, read, whole.physical.strides, place, at))
        return whole, at

    def written(self, term: Term) -> Term:
        """A result as the graph writes it."""
        spec, place = term
        wide, at = self._copy(spec)
        if wide is spec:
            return term
        if _is_dense(spec):
            self._after.append(repack(1, _lines(wide), _lines(spec), spec.dtype, at, place))
        else:
            strides = wide.physical.strides, spec.physical.strides
            self._after.append(strided_copy(spec.shape, spec, *strides, at, place))
        return wide, at

    def pay(self, terms: Sequence[Term]) -> bool:
        """Whether there are enough scores for the padding copies to be worth their launches."""
        (q, _), (k, _) = terms[:2]
        return not self._padded or prod(q.shape[:3]) * k.shape[2] >= _FEWEST_SCORES

    def around(self, graph: Formulation) -> Formulation:
        """A formulation on the copies, whose own scratch memory comes after them."""
        if not self.size:
            return graph
        return replace(
            graph,
            name=f"{self._padded}{graph.name}",
            before=(Aligned(), *self._before, *graph.before),
            after=tuple(self._after),
            scratch=max(self.size, graph.scratch),
        )

    def _copy(self, spec: Spec) -> tuple[Spec, Place]:
        """The copy's spec, with the operand's axis order, and its place; the spec itself if no copy is needed."""
        features = round_up(spec.shape[3], VECTOR // spec.dtype.itemsize)
        if features == spec.shape[3]:
            return spec, scratch()
        order = memory_order(spec.shape[:3], spec.physical.strides[:3])
        wide = Spec((*spec.shape[:3], features), spec.dtype)
        wide = full(wide, dense(wide.shape, (*order, 3)))
        at = scratch(self.size)
        self.size += round_up(wide.nbytes, WORKSPACE_ALIGNMENT)
        self._padded = "padded-"
        return wide, at


def _is_dense(spec: Spec) -> bool:
    """Whether features are contiguous, and their lines dense."""
    order = memory_order(spec.shape[:3], spec.physical.strides[:3])
    return spec.physical == dense(spec.shape, (*order, 3))


def _lines(spec: Spec) -> tuple[int, int]:
    """A dense operand [B, H, S, D] as a matrix of lines of features."""
    return prod(spec.shape[:3]), spec.shape[3]


# --------------------------------------------------------------------------------------------------------- layouts


def _row_major(terms: Sequence[Term]) -> bool:
    return all(s.physical == contiguous(s.shape) for s, _ in terms)


def _strided(specs: Sequence[Spec]) -> list[Spec] | None:
    """The operands in their own layouts, where cuDNN supports these and not all are row-major; else None."""
    half = specs[0].dtype in (float16, bfloat16)
    if not half or any(s.numel == 0 or s.layout is None or s.physical.is_blocked for s in specs):
        return None
    found = [s if s.tag is not None and s.physical.strides[3] == 1 else s.open.fixed for s in specs]
    return None if all(s.physical == contiguous(s.shape) for s in found) else found


def like_q(o: Spec, q: Spec) -> Spec:
    """o [B, H, S, E], dense, with the axis order of q."""
    return full(o, dense(o.shape, memory_order(q.shape, q.physical.strides)))


def _where_it_lies(joint: Spec, plan: Callable[[Spec], Plan]) -> Plan:
    """The plan for a joint tensor in its own layout if there is one, else for a row-major one, which own kernels
    take."""
    given = joint.fixed
    if joint.numel and joint.tag is not None and given.physical.strides[4] == 1 and _aligned(given):
        try:
            return plan(given)
        except NoKernel:
            pass
    return plan(joint.open.fixed)


def _aligned(joint: Spec) -> bool:
    """Whether k and v begin at addresses that cuDNN accepts."""
    return joint.physical.strides[0] * joint.dtype.itemsize % VECTOR == 0


def _parts(joint: Spec, make: Callable[[int, int], Place]) -> list[Term]:
    """q, k and v of a joint tensor [3, B, H, S, D], and the offset of each."""
    step, *strides = joint.physical.strides
    part = full(Spec(joint.shape[1:], joint.dtype), Layout(tuple(strides)))
    return [(part, make(0, i * step * joint.dtype.itemsize)) for i in range(3)]


# --------------------------------------------------------------------------------------------------- cuDNN's graphs


def _tensor(graph: Graph, spec: Spec) -> Tensor:
    """A [B, H, T, D] in its own layout."""
    return graph.tensor(spec.shape, spec.physical.strides, spec.dtype.name)


def _transposed(graph: Graph, spec: Spec) -> Tensor:
    """A [B, H, T, D] as [B, H, D, T]."""
    (b, h, t, d), (p, q, r, s) = spec.shape, spec.physical.strides
    return graph.tensor((b, h, d, t), (p, q, s, r), spec.dtype.name)


def _stats(graph: Graph, q: Spec) -> Tensor:
    return graph.packed((*q.shape[:3], 1), "float32")


def one_operation(
    op: Attention, terms: Sequence[Term], targets: Sequence[Term]
) -> tuple[Graph, Mapping[int, Place]]:
    """The graph of one node."""
    graph = Graph("float32")
    q, k, v, o = (_tensor(graph, s) for s, _ in (*terms, targets[0]))
    scale, stats = graph.scalar(), _stats(graph, terms[0][0]) if op.stats else None
    graph.attention(q, k, v, o, scale=scale, stats=stats)
    places = _placed((q, k, v, o), (*terms, targets[0])) | {scale.uid: HostNumber.of(op.scale)}
    return graph, places | ({} if stats is None else {stats.uid: targets[1][1]})


def _placed(tensors: Sequence[Tensor], terms: Sequence[Term]) -> dict[int, Place]:
    return {t.uid: place for t, (_, place) in zip(tensors, terms, strict=True)}


def forward_graph(
    op: Attention, terms: Sequence[Term], targets: Sequence[Term]
) -> tuple[Graph, Mapping[int, Place]]:
    """The pattern, with a bias and the causal mask."""
    graph = Graph("float32")
    q, v, o = (_tensor(graph, s) for s, _ in (terms[0], terms[2], targets[0]))
    k = _transposed(graph, terms[1][0])
    scale, causal = graph.scalar(), graph.scalar() if op.causal else None
    given, drawn = op.parted(terms[3:])
    bias = _tensor(graph, given[0][0]) if given else None
    dropout, dropping = _dropout(graph, op, drawn)
    stats = _stats(graph, terms[0][0]) if op.stats else None
    forward_steps(
        graph, q, k, v, o, scale=scale, stats=stats, dropout=dropout, bias=bias, causal=causal
    )  # fmt: skip
    places = _placed((q, k, v, o), (*terms[:3], targets[0])) | {scale.uid: HostNumber.of(op.scale)} | dropping
    if bias is not None:
        places[bias.uid] = given[0][1]
    if stats is not None:
        places[stats.uid] = targets[1][1]
    return graph, places if causal is None else places | {causal.uid: HostNumber.of(_NEVER)}


def _dropout(
    graph: Graph, op: Attention | AttentionGrad, mask: Sequence[Term]
) -> tuple[GivenMask | None, dict[int, Place]]:
    """Dropout with the mask operand, if there is one, and the places of the mask and its factor."""
    if not mask:
        return None, {}
    ((spec, place),) = mask
    made = GivenMask(_tensor(graph, spec), graph.scalar())
    return made, {made.mask.uid: place, made.scale.uid: HostNumber.of(op.growth)}


def _backward_formulation(
    op: AttentionGrad, terms: Sequence[Term], targets: Sequence[Term], start: int
) -> Formulation:
    """The backward pattern; it accumulates dq in float32, from zeros.

    With dropout the pattern multiplies the sum of do o by the fraction kept. The engines of 9.19 ignore that factor
    (dq and dk were 7 % off), so that they get o times it, and 1 as the factor.
    start: the offset of its scratch memory.
    """
    q, o = terms[0][0], terms[3]
    row_sum = prod(q.shape[:3]) * 4
    at = start + round_up(row_sum, WORKSPACE_ALIGNMENT)
    dq_sum = q.numel * 4
    steps: list[Bindable] = [Fill(scratch(at), 0, dq_sum)]
    end, given = at + round_up(dq_sum, WORKSPACE_ALIGNMENT), list(terms)
    if op.keep < 1:
        given[3] = o[0], scratch(end)
        steps.append(scaled(o, scratch(end), op.keep))
        end += o[0].nbytes
    sums = scratch(start), scratch(at)
    return Formulation(
        "steps", lambda: backward_graph(op, given, targets, sums), before=tuple(steps), scratch=end
    )


def scaled(x: Term, y: Place, factor: float) -> Launch:
    """y = factor x, for a half type and a multiple of eight elements."""
    spec, place = x
    program = Program("scaled", "attention/scaled.cu", f"typedef {c_type(spec.dtype)} T;\n")
    packs = spec.numel // 8
    return looping(program, packs, (place, y, Number(packs, "i64"), Number(factor, "f64")))


def backward_graph(
    op: AttentionGrad, terms: Sequence[Term], targets: Sequence[Term], sums: tuple[Place, Place]
) -> tuple[Graph, Mapping[int, Place]]:
    """The backward pattern. sums: the places of the row sums and of dq's sum."""
    graph = Graph("float32")
    (q_spec, _), (k_spec, _), (v_spec, _) = terms[:3]
    q, o, do = (_tensor(graph, terms[i][0]) for i in (0, 3, 5))
    k, v = _transposed(graph, k_spec), _transposed(graph, v_spec)
    dq, dk, dv = (_tensor(graph, s) for s, _ in targets)
    stats, row_sum = _stats(graph, q_spec), _stats(graph, q_spec)
    dq_sum = graph.packed(q_spec.shape, "float32")
    scale, one, causal = graph.scalar(), graph.scalar(), graph.scalar() if op.causal else None
    given, drawn = op.parted(terms[6:])
    bias = _tensor(graph, given[0][0]) if given else None
    dropout, dropping = _dropout(graph, op, drawn)
    backward_steps(
        graph, do, q, k, v, o, stats=stats, dq=dq, dk=dk, dv=dv, scale=scale, one=one, row_sum=row_sum,
        dq_sum=dq_sum, dropout=dropout, bias=bias, causal=causal,
    )  # fmt: skip
    places = _placed((q, k, v, o, stats, do), terms[:6]) | _placed((dq, dk, dv), targets) | dropping
    places |= {} if bias is None else {bias.uid: given[0][1]}
    places |= {row_sum.uid: sums[0], dq_sum.uid: sums[1]}
    places |= {scale.uid: HostNumber.of(op.scale), one.uid: HostNumber.of(1.0)}
    return graph, places if causal is None else places | {causal.uid: HostNumber.of(_NEVER)}


# ----------------------------------------------------------------------------------------------- products and rows


class _Steps:
    """Steps under construction, with pieces of the workspace."""

    def __init__(self, device: Device, policy: Policy) -> None:
        self.device, self.policy = device, replace(policy, algorithm="heuristic")
        self.steps: list[Bindable] = []
        self.size = 0

    def temporary(self, nbytes: int) -> Place:
        """A piece of its own."""
        place = scratch(self.size)
        self.size += round_up(nbytes, WORKSPACE_ALIGNMENT)
        return place

    def plan(self, plan: Plan, inputs: Sequence[Place], output: Place) -> None:
        """Another plan."""
        self.steps.append(SubPlan(plan, tuple(inputs), (output,), self.temporary(plan.workspace).offset))

    def product(self, op: Matmul, a: Term, b: Term, out: Place) -> None:
        """A matrix product."""
        plan = matmul_plan(op, (a[0], b[0]), NONE, self.device, self.policy)
        self.plan(plan, (a[1], b[1]), out)


def forward_rows(
    op: Attention, terms: Sequence[Term], targets: Sequence[Term], device: Device, policy: Policy
) -> Formulation:
    """q kᵀ, the rows, weights times v."""
    q, k, v, *more = terms
    bias, mask = op.parted(more)
    made, scores = _Steps(device, policy), _scores(q, k)
    s = made.temporary(scores.nbytes)
    made.product(Matmul(False, True), q, k, s)
    places = (s, bias[0][1] if bias else s, targets[1][1] if op.stats else s, mask[0][1] if mask else s)
    made.steps.append(weights_launch(op, scores, [b for b, _ in bias], places))
    made.product(Matmul(), (scores, s), v, targets[0][1])
    return Formulation("rows", steps=tuple(made.steps), scratch=made.size)


def backward_rows(
    op: AttentionGrad, terms: Sequence[Term], targets: Sequence[Term], device: Device, policy: Policy
) -> Formulation:
    """q kᵀ and do vᵀ, the rows, then a product for each gradient."""
    q, k, v, _, (_, stats), g, *more = terms
    bias, mask = op.parted(more)
    made, scores = _Steps(device, policy), _scores(q, k)
    s, d = made.temporary(scores.nbytes), made.temporary(scores.nbytes)
    summed = bias if op.bias_grad else []
    plain = made.temporary(scores.nbytes) if summed else d
    made.product(Matmul(False, True), q, k, s)
    made.product(Matmul(False, True), g, v, d)
    places = (s, bias[0][1] if bias else s, stats, d, plain, mask[0][1] if mask else s)
    made.steps.append(slopes_launch(op, scores, [b for b, _ in bias], places))
    dq, dk, dv = (place for _, place in targets[:3])
    made.product(Matmul(), (scores, d), k, dq)
    made.product(Matmul(True), (scores, d), q, dk)
    made.product(Matmul(True), (scores, s), g, dv)
    for spec, _ in summed:
        axes = tuple(i for i, (n, m) in enumerate(zip(spec.shape, scores.shape, strict=True)) if n != m)
        if axes:
            made.plan(kernels.plan(Reduce("sum", axes), [scores], device, policy), (plain,), targets[3][1])
        else:
            made.steps.append(Copy(targets[3][1], plain, scores.nbytes))
    return Formulation("rows", steps=tuple(made.steps), scratch=made.size)


def _scores(q: Term, k: Term) -> Spec:
    """[B, H, S, T]."""
    return Spec((*q[0].shape[:3], k[0].shape[2]), q[0].dtype).fixed


def weights_launch(op: Attention, scores: Spec, bias: Sequence[Spec], places: tuple[Place, ...]) -> Launch:
    """Turn the products [B, H, S, T] into weights.

    places: of the products, the bias, the statistics, and the dropout mask.
    """
    text, threads = _rows(op, scores, bias, STATS=int(op.stats), UNSCALED=0)
    return looping(Program("attention_weights", "attention/attention.cu", text), threads, places)


def slopes_launch(op: AttentionGrad, scores: Spec, bias: Sequence[Spec], places: tuple[Place, ...]) -> Launch:
    """Turn the products q kᵀ into weights, the products do vᵀ into gradients of the scores.

    places: of q kᵀ, the bias, the statistics, do vᵀ, for a bias with a gradient also of the unscaled gradients, and
        of the dropout mask.
    """
    text, threads = _rows(op, scores, bias, STATS=0, UNSCALED=int(bool(bias) and op.bias_grad))
    return looping(Program("attention_slopes", "attention/attention.cu", text), threads, places)


def _rows(op: Attention | AttentionGrad, scores: Spec, bias: Sequence[Spec], **flags: int) -> tuple[str, int]:
    """The constants of the row kernels, and their number of threads."""
    rows, columns = prod(scores.shape[:3]), scores.shape[3]
    lanes = 32 if columns <= 2048 else 256
    index = index_type(rows * columns)
    text = f"typedef {index} Index;\ntypedef {c_type(scores.dtype)} T;\n"
    text += constants(
        LANES=lanes, ROWS=rows, HEIGHT=scores.shape[2], COUNT=columns, SCALE=repr(float(op.scale)),
        CAUSAL=int(op.causal), BIAS=len(bias), HEADS=scores.shape[1], DROPS=int(op.keep < 1),
        GROWTH=repr(float(op.growth)), **flags,
    )  # fmt: skip
    for spec in bias:
        steps = broadcast_strides(spec, scores.shape)
        text += constants(**{f"BIAS_{axis}": step for axis, step in zip("BHST", steps, strict=True)})
    return text, rows * lanes
