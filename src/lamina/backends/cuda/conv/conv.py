"""Convolution and its gradients: cuDNN graph plans in several formulations (conv/transforms.py), and own kernels.

    plain           the operation as it is
    depthwise       one filter per channel: own kernels
    small channels  few input channels: own tensor-core kernels that read the image as it is stored
    undilated       dilation along one axis as a reshape of the same memory (conv/undilated.py)
    patches         windows side by side as a product of matrices (conv/patches.py)
    merged          small groups as fewer, larger ones, or as one: "dense" (conv/merged.py)
    slices          few large groups one after the other, channels of each made contiguous (conv/slices.py)
    fast FIR        many taps: three convolutions of half as many on half as many rows (conv/fast_fir.py)
    direct          own kernels straight from the definition

Reports and stored plans call small channels "stem" and fast FIR "halved".

Half types and TF32 are channels last; float32 and float64, whose engines prefer it, row-major. Own direct kernels
serve problems that no engine supports, and as reference for engines where there is little arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from itertools import chain
from math import prod

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda.conv.depthwise import depthwise_formulation, is_depthwise
from lamina.backends.cuda.conv.direct import direct
from lamina.backends.cuda.conv.fast_fir import fast_fir_formulation, takes_fast_fir
from lamina.backends.cuda.conv.filter_products import filter_products
from lamina.backends.cuda.conv.merged import merged, merged_formulation
from lamina.backends.cuda.conv.patches import patches, patches_formulations
from lamina.backends.cuda.conv.slices import Slices, slices, slices_formulation, that_pay
from lamina.backends.cuda.conv.small_channels import small_channels_formulation, takes_small_channels
from lamina.backends.cuda.conv.transforms import (
    CHANNELS,
    can_swap,
    layout_formulation,
    multiplies,
    padded_formulation,
    pads,
    product_formulations,
    space_to_depth_formulation,
    squeezed_formulations,
    swapped_direction_formulation,
    takes_space_to_depth,
    upcast_formulation,
)
from lamina.backends.cuda.conv.undilated import undilated, undilated_formulation
from lamina.backends.cuda.cudnn_graphs.conv import (
    Direction,
    Operands,
    is_channels_last,
    plain_formulation,
    sides,
)
from lamina.backends.cuda.cudnn_graphs.epilogue import NONE, Epilogue, Vector
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.elementwise.unfused_epilogue import (
    beside_fused,
    pays_apart,
    unfused_formulation,
)
from lamina.backends.cuda.launch.program import VECTOR, Fill, kernel_plan, target
from lamina.backends.cuda.registry import kernels
from lamina.backends.cuda.select.formulations import (
    Formulation,
    Problem,
    choose,
    nothing_to_do,
)
from lamina.backends.cuda.select.known import known_choices
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.runtime import Device
from lamina.spec import Policy, Spec, bfloat16, channels_last, contiguous, float16, float32

#: The most taps of a filter in Hopper's forward kernels; those of the data gradient have no limit.
_MANY_TAPS = 32
#: Own kernels for few input channels are fastest forward, and as a filter gradient with at most this many weights per
#: filter.
_FEW_WEIGHTS = 196


# ----------------------------------------------------------------------------------------------------- ops


@kernels(Conv, source="cudnn")
def conv(op: Conv, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """y from x and the filter."""
    return forward_plan(op, specs, NONE, device, policy)


def forward_plan(op: Conv, specs: Sequence[Spec], epilogue: Epilogue, device: Device, policy: Policy) -> Plan:
    """y from x and the filter, with an epilogue."""
    (y,) = op.infer(*specs[:2])
    return _plan(op, (specs[0], specs[1], y), epilogue, device, policy)


@kernels(ConvDataGrad, source="cudnn")
def conv_data_grad(op: ConvDataGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The gradient of x from that of y and the filter."""
    return data_grad_plan(op, specs, NONE, device, policy)


def data_grad_plan(
    op: ConvDataGrad, specs: Sequence[Spec], epilogue: Epilogue, device: Device, policy: Policy
) -> Plan:
    """The gradient of x, with an epilogue."""
    (x,) = op.infer(*specs[:2])
    return _plan(op, (x, specs[1], specs[0]), epilogue, device, policy)


@kernels(ConvFilterGrad, source="cudnn")
def conv_filter_grad(op: ConvFilterGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The gradient of the filter from x and the gradient of y."""
    (w,) = op.infer(*specs)
    return _plan(op, (specs[0], w, specs[1]), NONE, device, policy)


def _plan(
    op: Conv | ConvDataGrad | ConvFilterGrad,
    specs: tuple[Spec, Spec, Spec],
    epilogue: Epilogue,
    device: Device,
    policy: Policy,
) -> Plan:
    """The plan for (x, filter, y). Own kernels for one filter per channel read a part of images where it lies."""
    x, w, y = (s.open for s in specs)
    epilogue, policy = _opened(epilogue), policy.of(op.name)
    if _is_part(specs[0]) and _reads_parts(op, (x, w, y), epilogue, device, policy):
        return _cached(op, (specs[0], w, y), epilogue, device, policy)
    return _cached(op, (x, w, y), epilogue, device, policy)


def _is_part(x: Spec) -> bool:
    """Whether x is a part of images channels last, whose channels are whole accesses of adjacent elements."""
    if x.layout is None or x.tag is not None or x.overlaps or x.dtype not in (float16, bfloat16):
        return False
    apart = [s for axis, s in enumerate(x.layout.strides) if axis != 1 and x.shape[axis] > 1]
    return x.layout.strides[1] == 1 and not any(s * x.dtype.itemsize % VECTOR for s in apart)


def _reads_parts(
    op: Conv | ConvDataGrad | ConvFilterGrad,
    specs: tuple[Spec, Spec, Spec],
    epilogue: Epilogue,
    device: Device,
    policy: Policy,
) -> bool:
    """Whether a kernel that takes x with gaps is expected to be the fastest for dense operands."""
    o = Operands(op.window, *(full(s, channels_last(s.shape)) for s in specs))
    result, _ = sides(type(op), o)
    if isinstance(op, ConvDataGrad) or not is_depthwise(type(op), o, epilogue.vector(result.shape, 1)):
        return False
    asks = policy.algorithm in ("auto", "fastest")
    place = conv_problem(type(op), o, device, epilogue, policy).place
    known = next(known_choices(place, device), None) if asks else None
    return known is None or known.formulation in ("depthwise", "direct")


def _opened(epilogue: Epilogue) -> Epilogue:
    return replace(epilogue, extras=tuple(e.open for e in epilogue.extras))


@lru_cache(maxsize=1024)
def _cached(
    op: Conv | ConvDataGrad | ConvFilterGrad,
    specs: tuple[Spec, Spec, Spec],
    epilogue: Epilogue,
    device: Device,
    policy: Policy,
) -> Plan:
    """Plans are cached: the layouts that they need do not depend on the operands' present layouts, unless named."""
    arrange = channels_last if _prefers_channels_last(specs[0], policy) else contiguous
    x, w, y = (full(s, s.layout or arrange(s.shape)) for s in specs)
    o = Operands(op.window, x, w, y)
    if 0 in (x.numel, w.numel, y.numel):
        result, operands = sides(type(op), o)
        inputs = (*operands, *epilogue.arranged(result.shape, result.physical))
        if result.numel == 0:
            return nothing_to_do(inputs, (result,), device, op.name)
        if epilogue.steps:
            raise NoKernel(f"{op.name}: steps on a result of no elements are left to their own kernels")
        return kernel_plan(device, inputs, [result], [Fill(target(), 0, result.nbytes)], label=op.name)
    problem = conv_problem(type(op), o, device, epilogue, policy)
    if epilogue.steps:
        apart = partial(_apart, op, specs, epilogue, device, policy, problem)
        if policy.named:
            problem, policy = (
                replace(problem, formulations=(apart(),)),
                replace(policy, algorithm="heuristic"),
            )
        elif _runs_apart(type(op), o, epilogue, device, policy):
            problem = replace(problem, formulations=(apart(), *problem.formulations))
        elif pays_apart(problem, epilogue.steps, device, policy):
            problem = beside_fused(problem, apart(), epilogue.steps, device)
        else:
            problem = replace(problem, apart=apart)
    return choose(problem, device, policy)


def _apart(
    op: Conv | ConvDataGrad | ConvFilterGrad,
    specs: tuple[Spec, Spec, Spec],
    epilogue: Epilogue,
    device: Device,
    policy: Policy,
    problem: Problem,
) -> Formulation:
    """The convolution, then its epilogue as a separate kernel."""
    head = _cached(op, specs, NONE, device, policy)
    out, extras = problem.outputs[0], problem.inputs[2:]
    return unfused_formulation(head, epilogue.steps, out, extras, epilogue.first)


def _runs_apart(
    direction: Direction, o: Operands, epilogue: Epilogue, device: Device, policy: Policy
) -> bool:
    """Whether an own kernel, a product of patches that pays, or cuDNN's engine for strided data gradients supports
    the convolution but not its epilogue: cuDNN's fused engines are slower (for strided data gradients they take 1.0
    to 1.9 times as long as the gradient and a separate kernel; bfloat16, compute capability 9.0).
    """
    if direction is ConvDataGrad and max(o.window.stride) > 1 and is_channels_last(o):
        return True
    form = patches(direction, o)
    if form is not None:
        return form.pays(device.machine, policy) and form.epilogue(epilogue) is None
    if not is_channels_last(o) or not is_depthwise(direction, o, Vector()):
        return False
    result, _ = sides(direction, o)
    return not is_depthwise(direction, o, epilogue.vector(result.shape, 1))


def _prefers_channels_last(spec: Spec, policy: Policy) -> bool:
    return spec.dtype in (float16, bfloat16) or (spec.dtype == float32 and policy.tf32)


# --------------------------------------------------------------------------------------------------- problems


def conv_problem(
    direction: Direction,
    o: Operands,
    device: Device,
    epilogue: Epilogue = NONE,
    policy: Policy | None = None,
) -> Problem:
    """The formulations of one direction, the most promising first; cuBLASLt's only with the device present."""
    name = direction.name
    result, operands = sides(direction, o)
    extras = epilogue.arranged(result.shape, result.physical)
    steps = "".join(f" > {step}" for step in epilogue.steps)
    formulations = _formulations(direction, o, epilogue, device, policy or Policy())
    form = _form(formulations[0].name, direction, o)
    plain = () if epilogue.steps else (direct(direction, o),)
    if plain and o.x.tag is not None:
        formulations.append(layout_formulation(direction, o))
        formulations += [upcast_formulation(direction, o)] if o.x.dtype in (float16, bfloat16) else []
    if plain:
        formulations.append(Formulation("direct", steps=plain))
    return Problem(
        family=f"{name}({o.window}) {o.w} {o.x.dtype}{steps}",
        key=f"{name}({o.window}) x={o.x} w={o.w} y={o.y}{steps} {', '.join(map(str, extras))}".strip(),
        label=name + ("+" + "+".join(s.name for s in epilogue.steps) if epilogue.steps else ""),
        inputs=(*operands, *extras),
        outputs=(result,),
        formulations=tuple(formulations),
        flops=o.flops,
        plain=plain,
        kind=f"{name}({replace(o.window, groups=1)}) {_grouping(o)}{steps}{form}",
    )


def _form(first: str, direction: Direction, o: Operands) -> str:
    """The form that is expected to be best, if it is one about which cuDNN's engines on the original problem say
    nothing: results for neighbouring problems then count only if these have the form, too."""
    if first.startswith("patches-"):
        return " patches"
    if first in ("slices", "dense") and slices(direction, o) is not None:
        return " few groups"
    if first in ("few rows", "small"):
        return f" {first}"
    return " few filters" if first == "stem" and o.w.shape[0] % 32 else ""


def _grouping(o: Operands) -> str:
    """The grouping of channels, without their number."""
    groups, channels = o.window.groups, o.x.shape[1]
    return "dense" if groups == 1 else "depthwise" if groups == channels else "grouped"


#: Formulations, and whether they are expected to be faster than those that were offered before them.
_Offer = tuple[Sequence[Formulation], bool]


def _formulations(
    direction: Direction, o: Operands, epilogue: Epilogue, device: Device, policy: Policy
) -> list[Formulation]:
    """The formulations, the most promising first: a policy without timing takes the first."""
    plain = plain_formulation(direction, o, epilogue)
    if not is_channels_last(o):
        return [plain]
    result, _ = sides(direction, o)
    vector = epilogue.vector(result.shape, 1)
    if is_depthwise(direction, o, vector):
        return [depthwise_formulation(direction, o, vector, device.machine), plain]
    found = [plain]
    for offered, first in chain(
        _rearranged(direction, o, epilogue, device, policy),
        _of_few_channels(direction, o, epilogue, vector, device),
        _of_dilated_filters(direction, o, epilogue, device),
        _of_groups(direction, o, epilogue, device, policy),
        _as_products(direction, o, epilogue, vector, device, policy),
        _in_parts(direction, o, epilogue, device, policy),
    ):
        found = [*offered, *found] if first else [*found, *offered]
    return found


def _rearranged(
    direction: Direction, o: Operands, epilogue: Epilogue, device: Device, policy: Policy
) -> Iterator[_Offer]:
    """Engines on operands with more channels: blocks of pixels as channels, padded channels, patches."""
    found = []
    if direction is not ConvDataGrad and takes_space_to_depth(o):
        found.append(space_to_depth_formulation(direction, o, epilogue))
    if pads(o) and not (direction is ConvDataGrad and epilogue.steps):
        found.append(padded_formulation(direction, o, epilogue))
    yield found, o.x.shape[1] < CHANNELS or pads(o)
    form = patches(direction, o)
    if form is not None:
        yield patches_formulations(form, epilogue, device, policy), form.pays(device.machine, policy)


def _of_few_channels(
    direction: Direction, o: Operands, epilogue: Epilogue, vector: Vector | None, device: Device
) -> Iterator[_Offer]:
    """The kernels for few input channels, and the opposite direction for few output channels."""
    if takes_small_channels(direction, o, vector, device.machine):
        first = direction is Conv or prod(o.w.shape[1:]) <= _FEW_WEIGHTS
        yield [small_channels_formulation(direction, o, vector, device.machine)], first
    if can_swap(o) and not pads(o):
        first = direction is Conv and prod(o.w.shape[2:]) > _MANY_TAPS and not epilogue.steps
        yield [swapped_direction_formulation(direction, o, epilogue)], first


def _of_dilated_filters(
    direction: Direction, o: Operands, epilogue: Epilogue, device: Device
) -> Iterator[_Offer]:
    """The undilated form, before the dilated engines: those of the filter gradient take 16 to 70 times as long, the
    others about as long for dilations up to 8, and 1.3 to 1.8 times as long beyond that (bfloat16, compute
    capability 9.0). The filter gradient by products for each tap, which small filters have without dilation, too.
    """
    form, (result, _) = undilated(o), sides(direction, o)
    made = None if form is None else undilated_formulation(direction, form, epilogue, result.shape)
    yield [] if made is None else [made], True
    split = filter_products(direction, o, device.machine)
    dilated = max(o.window.dilation) > 1
    if split is not None and (dilated or split.is_little):
        yield [split.formulation()], dilated


def _of_groups(
    direction: Direction, o: Operands, epilogue: Epilogue, device: Device, policy: Policy
) -> Iterator[_Offer]:
    """Groups merged with zeros between them, or few groups one after the other."""
    forms = merged(direction, o, device.machine, policy)
    likely = [merged_formulation(direction, form, epilogue) for form in forms if form.pays(device.machine)]
    others = [
        merged_formulation(direction, form, epilogue) for form in forms if not form.pays(device.machine)
    ]
    few = _few_groups(direction, o, epilogue, device, policy)
    names = {one.name for one in few}
    yield [*likely, *few], True
    yield [one for one in others if one.name not in names], False


def _as_products(
    direction: Direction,
    o: Operands,
    epilogue: Epilogue,
    vector: Vector | None,
    device: Device,
    policy: Policy,
) -> Iterator[_Offer]:
    """1x1 filters as matrix products: by cuBLASLt and cuDNN; for images of one position each, by own kernels."""
    if multiplies(o):
        products = product_formulations(direction, o, vector, device, policy)
        first = pads(o) and max(o.window.stride) == 1
        if first:  # odd line lengths: padded took 1.5 to 3 times as long; cuBLASLt before cuDNN's graphs
            products = sorted(products, key=lambda one: one.graph is not None)
        yield products, first
    for squeezed, first in squeezed_formulations(direction, o, epilogue, device):
        yield [squeezed], first


def _in_parts(
    direction: Direction, o: Operands, epilogue: Epilogue, device: Device, policy: Policy
) -> Iterator[_Offer]:
    """A fast FIR algorithm: several smaller convolutions, each planned like any other."""
    parts = policy.algorithm in ("fastest", "halved") and not epilogue.steps
    if parts and takes_fast_fir(direction, o, device.machine):
        yield [fast_fir_formulation(direction, o, partial(_part, device, policy, Conv))], False


def _few_groups(
    direction: Direction, o: Operands, epilogue: Epilogue, device: Device, policy: Policy
) -> list[Formulation]:
    """Few large groups one after the other, or merged into one with zeros between them: the forms that are expected
    to be clearly faster than engines for groups; all of them where formulations compete."""
    form = slices(direction, o)
    if form is None:
        return []
    found = that_pay(form, device.machine, policy, steps=bool(epilogue.steps))
    if policy.algorithm in ("fastest", "slices") and not epilogue.steps and form not in found:
        found.append(form)

    return [
        slices_formulation(one, partial(_part, device, policy, direction))
        if isinstance(one, Slices)
        else merged_formulation(direction, one, epilogue)
        for one in found
    ]


def _part(device: Device, policy: Policy, direction: Direction, o: Operands) -> Plan:
    """The plan of a convolution that is part of another one: timed if the whole is."""
    part = replace(policy, algorithm="heuristic") if policy.named else policy
    sizes = {Conv: (), ConvDataGrad: (o.x.shape[2:],), ConvFilterGrad: (o.w.shape[2:],)}[direction]
    return _cached(direction(o.window, *sizes), (o.x.open, o.w.open, o.y.open), NONE, device, part)
