"""Convolutions that sum their result for a batch norm while writing it; they compete with the unfused form.

Forward, the sums become the norm's statistics; backward, the gradient of the norm before a convolution sums the
convolution's data gradient. cuDNN has a pattern for the first, a convolution followed by GEN_STATS, in half types and
channels last; own kernels do both for 1x1 convolutions (`conv1x1_stats`), twice as fast. They win if the saved pass
over the result would read it from memory; elsewhere only measurements tell: those of `fastest`, or earlier ones that
`auto` looks up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lamina.backends import Plan
from lamina.backends.cuda.cudnn_graphs.conv import Operands, window_arguments
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.launch.program import Aligned, Place, SubPlan, check_join, scratch, source, target
from lamina.backends.cuda.norm import conv1x1_stats
from lamina.backends.cuda.norm.conv_batch_norm_fusion import ConvNorm, DataGradNorm
from lamina.backends.cuda.norm.norm import grad_applied, normalized
from lamina.backends.cuda.registry import kernels
from lamina.backends.cuda.select.formulations import Formulation, Problem, choose
from lamina.cudnn import Graph
from lamina.ops.primitives.fused import Fused
from lamina.ops.primitives.pointwise import Add, ReluGrad
from lamina.runtime import Device, Machine
from lamina.spec import Policy, Spec, bfloat16, channels_last, float16

#: The longest sums of a convolution whose own kernel is expected to win.
_SHORT = 256


@kernels(ConvNorm, source="cudnn")
def conv_norm(op: ConvNorm, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The faster of the convolution with fused reduction and the unfused form. Raises NoKernel for a packed
    mask where there is no fused reduction.
    """
    conv = kernels.plan(op.conv, specs[:2], device, policy)
    (y,) = conv.outputs
    norm = kernels.plan(op.norm, (y, *specs[2:]), device, policy)
    check_join(conv, norm)
    signs = [s.fixed for s in op.infer(*specs)[6:]]
    inputs, outputs = (*conv.inputs, *norm.inputs[1:]), (*norm.outputs, y, *signs)
    given = [target(5), *(source(i) for i in range(2, len(inputs)))]
    unfused = Formulation(
        "unfused",
        steps=(
            SubPlan(conv, (source(0), source(1)), (target(5),)),
            SubPlan(norm, tuple(given), tuple(target(i) for i in range(5))),
        ),
        scratch=max(conv.workspace, norm.workspace),
        parts=(conv, norm),
    )
    own, statistics = list[Formulation](), list[Formulation]()
    if _takes(conv, norm):
        x, w = conv.inputs
        o = Operands(op.conv.window, x, w, y)
        own = own_formulation(op, o, given, device.machine)
        statistics = [statistics_formulation(op, o, given, device.machine)]
    apart = [] if op.bits else [unfused]
    first = _saves_a_read(y, conv.inputs[0].shape[1], device.machine)
    formulations = (*own, *apart, *statistics) if first else (*apart, *own, *statistics)
    key = f"{op} {' '.join(map(str, inputs))}"
    label = f"conv+{norm.label.split()[1]}"
    problem = Problem(
        key,
        label,
        inputs,
        outputs,
        formulations,
        float(op.flops(*inputs)),
        aliases={3: 4, 4: 5},
        kind=f"{op.name}({op.conv.window} > {op.norm}{' by bits' * op.bits})",
    )
    return choose(problem, device, policy)


def _takes(conv: Plan, norm: Plan) -> bool:
    """Whether cuDNN's pattern is worth trying: half types, channels last, channels a multiple of eight."""
    (x, _), (y,) = conv.inputs, conv.outputs
    lies = all(s.ndim == 4 and s.physical == channels_last(s.shape) for s in (x, y)) and norm.inputs[0] == y
    return lies and y.dtype in (float16, bfloat16) and x.shape[1] % 8 == y.shape[1] % 8 == 0


def _saves_a_read(result: Spec, depth: int, machine: Machine) -> bool:
    """Whether own kernels are expected to be faster than the unfused form: they took 0.66 to 0.93 of its time for
    short sums and results beyond one and a half times the cache, 0.6 to 1.7 for smaller ones (bfloat16, compute
    capability 9.0).

    depth: the number of products summed in each element of the result.
    """
    return depth <= _SHORT and 2 * result.nbytes > 3 * machine.l2_bytes


def statistics_formulation(op: ConvNorm, o: Operands, given: list[Place], machine: Machine) -> Formulation:
    """Convolution and sums by cuDNN, then the statistics and the pass that applies them.

    given: places of the convolution's result, scale, bias, running mean and variance, and perhaps the residual.
    """
    channels = o.y.shape[1]

    def graph() -> tuple[Graph, Mapping[int, Place]]:
        made = Graph()
        big = [made.tensor(s.shape, s.physical.strides, s.dtype.name) for s in (o.x, o.w, o.y)]
        made.conv(*big, **window_arguments(o.window))
        sums = [made.packed((1, channels, 1, 1), "float32", channels_last=True) for _ in range(2)]
        made.gen_stats(big[2], *sums)
        places = (source(0), source(1), given[0], scratch(), scratch(channels * 4))
        return made, {t.uid: place for t, place in zip((*big, *sums), places, strict=True)}

    after = normalized(op.norm, o.y, given, machine, parts=1, signs=_signs(op))
    return Formulation("statistics", graph, after=after, scratch=2 * channels * 4)


def _signs(op: ConvNorm) -> Place | None:
    """The place of the mask bits."""
    return target(6) if op.bits else None


def own_formulation(op: ConvNorm, o: Operands, given: list[Place], machine: Machine) -> list[Formulation]:
    """The same by own kernels, for convolutions that they support."""
    tiles = conv1x1_stats.tiling(o.window, o.x, o.w, o.y, machine)
    if tiles is None:
        return []
    conv = conv1x1_stats.forward(tiles, o.y.dtype, given[0])
    after = normalized(op.norm, o.y, given, machine, parts=tiles.parts, signs=_signs(op))
    return [Formulation("own", steps=(Aligned(), conv, *after), scratch=tiles.workspace)]


# ------------------------------------------------------------------------------------------------------ backward


@kernels(DataGradNorm, source="kernel")
def data_grad_norm(op: DataGradNorm, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The faster of the data gradient with fused reduction and the unfused form. Raises NoKernel for a packed
    mask where there is no fused reduction, and for steps on the data gradient that no engine supports.
    """
    count, signs = len(specs) - op.rest, [specs[-op.rest - 1].open.fixed] * op.bits
    specs = tuple(op.with_output(specs))
    grad = kernels.plan(op.grad, specs[:count], device, policy)
    (g,) = grad.outputs
    laid = (full(s, g.physical) if s.ndim > 1 else s for s in specs[count:])
    norm = kernels.plan(op.norm, (g, *laid), device, policy)
    check_join(grad, norm)
    given = [source(i) for i in range(len(specs))]
    steps = (
        SubPlan(grad, tuple(given[:count]), (target(3),)),
        SubPlan(norm, (target(3), *given[count:]), tuple(target(i) for i in range(3))),
    )
    room = max(grad.workspace, norm.workspace)
    unfused = Formulation("unfused", steps=steps, scratch=room, parts=(grad, norm))
    inputs = (*grad.inputs[: count - op.bits], *signs, *norm.inputs[1:])
    outputs = (*norm.outputs, g)
    lie = all(s.physical == g.physical for s in (norm.inputs[0], norm.inputs[1], *grad.inputs[2:]))
    o = Operands(op.conv.window, g, inputs[1], inputs[0])
    own = own_gradient_formulation(op, o, given, count, device.machine) if lie else []
    key = f"{op} {' '.join(map(str, inputs))}"
    label = f"{op.grad.name}+{norm.label.split()[1]}"
    apart = [] if op.bits else [unfused]
    first = _saves_a_read(g, inputs[0].shape[1], device.machine)
    formulations = (*own, *apart) if first else (*apart, *own)
    between = "".join(f" > {step}" for step in (op.grad.ops[1:] if isinstance(op.grad, Fused) else ()))
    kind = f"{op.name}({op.conv.window}{between} > {op.norm}{' by bits' * op.bits})"
    problem = Problem(key, label, inputs, outputs, formulations, float(op.flops(*inputs)), kind=kind)
    return choose(problem, device, policy)


def own_gradient_formulation(
    op: DataGradNorm, o: Operands, given: Sequence[Place], count: int, machine: Machine
) -> list[Formulation]:
    """Data gradient and sums by own kernels, then the norm's last pass; for convolutions that they support.

    given: places of all inputs, `count` of them the data gradient's.
    """
    tiles = conv1x1_stats.tiling(o.window, o.y, o.w, o.x, machine)
    behind = steps_behind(op, given, count)
    if tiles is None or behind is None:
        return []
    conv = conv1x1_stats.data_grad(tiles, o.x.dtype, behind, target(3))
    applied = [target(3), *behind.norm[:4], behind.norm[4] if op.norm.relu else behind.norm[1]]
    after = grad_applied(op.norm, o.x, applied, machine, parts=tiles.parts)
    return [Formulation("own", steps=(Aligned(), conv, *after), scratch=tiles.workspace)]


def steps_behind(op: DataGradNorm, given: Sequence[Place], count: int) -> conv1x1_stats.Behind | None:
    """The steps after the product, if own kernels support them: at most a sum of two, then relu's gradient."""
    steps = op.grad.ops[1:] if isinstance(op.grad, Fused) else ()
    if tuple(map(type, steps)) not in ((), (Add,), (ReluGrad,), (Add, ReluGrad)) or op.norm.residual:
        return None
    operands = iter(given[2:count])
    places = {type(step): next(operands) for step in steps}
    norm = tuple(given[count:])
    return conv1x1_stats.Behind(places.get(Add), places.get(ReluGrad), norm, op.norm.hi, op.bits)
