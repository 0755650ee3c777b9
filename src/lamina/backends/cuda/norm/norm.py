"""Normalization at memory bandwidth: sums per channel or row, then one pass that applies them.

Batch norm reads x twice (sums, apply), its gradient g and x twice; relu and a residual's sum run in the same passes.
The sums are split over blocks and combined in a fixed order, relative to each channel's first element, so that they
are reproducible and avoid cancellation. Layer, RMS and group norm hold a row in registers and read it once. Under
`fastest` batch norm in one launch competes (`batch_persistent`), and cuDNN's where it has one: half types, channels
last, relu forward only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from itertools import islice

from lamina.backends import Call, Plan
from lamina.backends.cuda.elementwise.fused_elementwise import device_function
from lamina.backends.cuda.elementwise.pointwise import full
from lamina.backends.cuda.launch.indexing import KernelSizes, Space, collapse, index_type, memory_order
from lamina.backends.cuda.launch.program import (
    VECTOR,
    WORKSPACE_ALIGNMENT,
    Bindable,
    Copy,
    Fill,
    Launch,
    Launches,
    Place,
    Program,
    Table,
    c_type,
    constants,
    kernel_plan,
    lanes_of,
    looping,
    round_up,
    scratch,
    source,
    target,
)
from lamina.backends.cuda.norm import batch_persistent
from lamina.backends.cuda.norm.batch_norm_of_activation_fusion import NormOfActivationGrad
from lamina.backends.cuda.norm.layer_norm_backward import ShortRows
from lamina.backends.cuda.norm.norm_activation_fusion import ActivationNormGrad
from lamina.backends.cuda.registry import kernels
from lamina.backends.cuda.select.formulations import Formulation, Problem, choose
from lamina.backends.cuda.select.known import ProblemPlace, known_choices
from lamina.cudnn import Graph, Tensor
from lamina.ops.core import Op
from lamina.ops.primitives.full_like import FullLike
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.norm import (
    BatchNorm,
    BatchNormGrad,
    BatchNormInfer,
    Frame,
    GroupNorm,
    GroupNormGrad,
    LayerNorm,
    LayerNormGrad,
    RmsNorm,
    RmsNormGrad,
)
from lamina.runtime import Device, Machine
from lamina.spec import DType, Layout, Policy, Spec, bfloat16, channels_last, contiguous, float16, float32

_FILE = "norm/norm.cu"
#: Blocks of 256 threads that fill a multiprocessor, for sums; writing passes use up to four times as many.
SUMMING, WRITING = 8, 32
#: Up to this multiple of the L2 cache, x is read once by a launch with all blocks resident.
_RESIDENT = 2.2
#: The most accesses per thread for which a row is held in registers; the most elements per thread for which scales
#: that all rows share are, too.
_HELD, _SAME = 4, 16
#: Bytes of a row, or of two, that a block holds in registers.
HELD_BYTES = 2 * _HELD * 256 * VECTOR
#: Elements that must be contiguous for a group to be read in its own layout.
TOGETHER = 16


# ------------------------------------------------------------------------------------------------------ geometry


@dataclass(frozen=True)
class Blocks:
    """Blocks over kept indices (channels, scales) and parts of the elements of each.

    kept, reduced: their strides in the big tensors (operand 0), and in the statistics (operand 1).
    """

    kept: Space
    reduced: Space
    itemsize: int
    aligned: bool
    most: int

    @cached_property
    def by_rows(self) -> bool:
        """Whether the reduced elements are contiguous, rather than the kept ones."""
        inner = [s for s in self.reduced.strides[0] if s]
        outer = [s for s in self.kept.strides[0] if s]
        return bool(inner) and min(inner) < min(outer or [1 << 62])

    @cached_property
    def width(self) -> int:
        """Elements per access."""
        along, across = (self.reduced, self.kept) if self.by_rows else (self.kept, self.reduced)
        fixed = (
            0 if self.by_rows else None
        )  # the V elements of an access along a row share one row's statistics
        if fixed is not None and along.strides[1][-1] != fixed:
            return 1
        return vector_width(along, across, self.itemsize) if self.aligned else 1

    @cached_property
    def lanes(self) -> int:
        """Threads along the kept indices."""
        lanes = 1
        while lanes < 32 and lanes * self.width < self.kept.count:
            lanes *= 2
        return lanes

    @property
    def across(self) -> int:
        """Blocks along the kept indices."""
        return self.kept.count if self.by_rows else -(-self.kept.count // (self.lanes * self.width))

    @cached_property
    def split(self) -> tuple[int, int]:
        """(elements per part, parts)."""
        step = 256 * self.width if self.by_rows else 256 // self.lanes
        parts = max(1, min(self.most // max(1, self.across), -(-self.reduced.count // (step * 4))))
        part = round_up(-(-self.reduced.count // parts), self.width)
        return part, -(-self.reduced.count // part)

    @property
    def grid(self) -> tuple[int, int]:
        """The grid."""
        return self.across, self.split[1]

    def head(self, spec: Spec) -> KernelHead:
        """Types, sizes and offsets."""
        part, splits = self.split
        shares = {"BLOCK_ROWS": 1} if self.by_rows else {"LANES": self.lanes, "ROWS": 256 // self.lanes}
        head = KernelHead.of(spec, self.width, self.kept, self.reduced)
        head.types += constants(**shares)
        head.sizes.add(PART=part, SPLITS=splits)
        return head


def vector_width(along: Space, across: Space, itemsize: int) -> int:
    """Elements that are contiguous along `along`, and aligned for every index of `across`, at most 16 bytes."""
    width = VECTOR // itemsize
    rest = (*along.strides[0][:-1], *across.strides[0])
    while width > 1 and (
        along.strides[0][-1] != 1 or along.sizes[-1] % width or any(s % width for s in rest)
    ):
        width //= 2
    return width


@dataclass
class KernelHead:
    """The header of a norm.cu kernel: types and constants, and run-time numbers."""

    types: str
    sizes: KernelSizes

    @classmethod
    def of(cls, spec: Spec, width: int, kept: Space, reduced: Space) -> KernelHead:
        """The header of a pass over a tensor. Offsets from run-time sizes cost a few more instructions; an access of
        16 bytes hides these, and a constant step from element to element needs none.
        """
        index = index_type(kept.reach + reduced.reach + spec.numel)
        whole = width * spec.dtype.itemsize == VECTOR or len(reduced.sizes) == 1
        sizes = KernelSizes(known=index != "i32" or not whole)
        sizes.add(OUTPUTS=kept.count, COUNT=reduced.count)
        sizes.add_real(PER=1 / reduced.count)
        sizes.add_offset("kept", kept)
        sizes.add_offset("reduced", reduced)
        return cls(f"{types(index, spec)}{constants(V=width)}", sizes)

    @classmethod
    def bare(cls, text: str, known: bool = False) -> KernelHead:
        """A header with types only, so far."""
        return cls(text, KernelSizes(known=known))

    def launch(self, name: str, switches: str, grid: Sequence[int], places: Sequence[Place]) -> Launch:
        """A launch of 256 threads per block."""
        program = Program(name, _FILE, f"{self.types}{self.sizes.text}{switches}")
        return Launch(program, tuple(grid), (256,), (*places, Table(self.sizes.values)))


def types(index: str, spec: Spec) -> str:
    """Index, and T: the type of its elements."""
    return f"typedef {index} Index;\ntypedef {c_type(spec.dtype)} T;\n"


def totals(
    spec: Spec, outputs: int, parts: int, places: Sequence[Place], *, centred: bool, scaled: bool
) -> Launch:
    """The gradients of scale and bias from partial sums [2, outputs, parts]. scaled: by r of each output."""
    head = KernelHead.bare(types("i32", spec))
    head.sizes.add(OUTPUTS=outputs, SPLITS=parts)
    switches = constants(V=1, GRAD_TOTALS=1) + flags(CENTRED=centred, SCALED=scaled)
    return head.launch("grad_totals", switches, (-(-outputs // 8),), places)


def resident(*specs: Spec) -> Layout:
    """The common layout of the big tensors: that of the first with a dense one, else channels last."""
    for spec in specs:
        if spec.layout is not None and spec.tag is not None and not spec.physical.is_blocked:
            return spec.physical
    return channels_last(specs[0].shape)


def flags(**values: bool) -> str:
    """`#define`s of 0 or 1."""
    return constants(**{name: int(value) for name, value in values.items()})


# ---------------------------------------------------------------------------------------------------- batch norm


@dataclass(frozen=True)
class NormFunctions:
    """Functions of the norm's operand and of its result that are computed in the norm's passes.

    op: the whole op. before: from x to the norm's operand. behind: applied to the norm's result; in its gradient, to
        the result and the incoming gradient. leaving: x's gradient, from x and the gradient of the norm's operand.
    """

    op: Op
    before: FusedElementwise | None = None
    behind: FusedElementwise | None = None
    leaving: FusedElementwise | None = None

    @property
    def is_grad(self) -> bool:
        """Whether it is the norm's gradient."""
        return isinstance(self.op, ActivationNormGrad | NormOfActivationGrad)

    @property
    def again(self) -> bool:
        """Whether a gradient needs the norm's result."""
        return self.is_grad and self.behind is not None

    def text_before(self, dtype: DType) -> str:
        """The code for passes that only read the norm's operand, for a norm of this type."""
        return _function("before", self.before, 1, dtype)

    def text(self, dtype: DType) -> str:
        """The code for the other passes."""
        name = "function_grad" if self.is_grad else "function"
        made = _function(name, self.behind, 1 + self.is_grad, dtype)
        return made + self.text_before(dtype) + _function("before_grad", self.leaving, 2, dtype)

    def label(self, norm: str) -> str:
        """The names of all steps around the norm's, in order of computation."""
        given, result = (() if self.is_grad else _names(self.before)), _names(self.behind)
        return "+".join((*given, norm, *result, *_names(self.leaving)))


def _function(name: str, steps: FusedElementwise | None, count: int, dtype: DType) -> str:
    """Steps as a C++ function, and a constant that marks its presence."""
    return (
        "" if steps is None else constants(**{name.upper(): 1}) + device_function(name, steps, count, dtype)
    )


def _names(steps: FusedElementwise | None) -> tuple[str, ...]:
    return () if steps is None else tuple(op.name for op in steps.ops if not isinstance(op, FullLike))


def activation(
    op: BatchNorm | BatchNormInfer | BatchNormGrad,
    functions: NormFunctions | None = None,
    dtype: DType = float32,
) -> str:
    """The residual and relu after the norm, or a function of its result."""
    text = flags(RELU=op.relu, RESIDUAL=op.residual)
    if op.hi is not None:
        text += constants(HI=repr(float(op.hi)))
    return text if functions is None else text + functions.text(dtype)


def channel_blocks(x: Spec, aligned: bool, machine: Machine, waves: int = SUMMING) -> Blocks:
    """Channels kept, everything else reduced; at most `waves` blocks per multiprocessor."""
    strides = x.physical.strides
    order = memory_order(x.shape, strides)
    rows = [strides, tuple(0 for _ in strides)]
    kept = collapse(x.shape, rows, [1])
    rest = collapse(x.shape, rows, [a for a in order if a != 1])
    return Blocks(kept, rest, x.dtype.itemsize, aligned, waves * machine.multiprocessors)


def sums_bytes(x: Spec, machine: Machine) -> int:
    """Bytes of workspace for partial sums, whether addresses are aligned or not."""
    most = max(channel_blocks(x, aligned, machine).split[1] for aligned in (True, False))
    return 2 * most * x.shape[1] * x.dtype.compute.itemsize


@kernels(BatchNorm, source="kernel")
def batch_norm(
    op: BatchNorm,
    specs: tuple[Spec, ...],
    device: Device,
    policy: Policy,
    functions: NormFunctions | None = None,
) -> Plan:
    """Moments of each channel, statistics, then the normalized result."""
    machine = device.machine
    outs = op.infer(*specs)
    big, small = [specs[0], *specs[5:]], [s.open.fixed for s in specs[1:5]]
    x, *added = (full(s, resident(*big)) for s in big)
    y = full(outs[0], x.physical)
    inputs, outputs = [x, *small, *added], [y, *(s.fixed for s in outs[1:])]
    if x.numel == 0:
        return kernel_plan(device, inputs, outputs, [], label=op.name)

    def steps(aligned: bool) -> tuple[Bindable, ...]:
        sums, given = channel_blocks(x, aligned, machine), [source(i) for i in range(len(inputs))]
        applied = normalized(op, x, given, machine, aligned, functions=functions)
        return (moments(x, sums, functions), *applied)

    aliases = {3: 3, 4: 4} | ({0: 5} if op.residual else {})
    own = kernel_plan(
        device,
        inputs,
        outputs,
        steps(True),
        label=_label(op, functions),
        workspace=sums_bytes(x, machine),
        aliases=aliases,
        plain=lambda: steps(False),
    )
    text = activation(op, functions, x.dtype)
    formulations = [batch_persistent.forward(op, x, text, steps(True), own.workspace, machine)]
    if functions is not None:
        return _best(functions.op, own, formulations, device, policy)
    if _competes(op, own, device, policy) and (op.relu or not op.residual) and _cudnn_takes(x):
        formulations.append(cudnn_norm(op, x))
        own = replace(own, aliases={3: 3, 4: 4})  # cuDNN does not allow y to overwrite the residual
    return _best(op, own, formulations, device, policy)


def moments(x: Spec, sums: Blocks, functions: NormFunctions | None = None) -> Launch:
    """Each channel's sums, at the start of the workspace."""
    switches = constants(MOMENTS=1) + _before(functions, x)
    return sums.head(x).launch("batch_moments", switches, sums.grid, (source(0), scratch()))


def _before(functions: NormFunctions | None, x: Spec) -> str:
    return "" if functions is None else functions.text_before(x.dtype)


def normalized(
    op: BatchNorm,
    x: Spec,
    given: Sequence[Place],
    machine: Machine,
    aligned: bool = True,
    parts: int = 0,
    signs: Place | None = None,
    functions: NormFunctions | None = None,
) -> tuple[Bindable, ...]:
    """The statistics from partial sums at the start of the workspace, then the pass that applies them.

    given: places of the inputs. parts: the sums were computed elsewhere, of x itself and of its square:
        [2, C, parts].
    signs: receives a sign bit per element of the result; x is of a half type, channels last, eight at a time.
    """
    passes = channel_blocks(x, aligned, machine, WRITING)
    residual = given[5 if op.residual else 0]
    applied = [*given[:3], target(1), target(2), residual, target(0), signs or target(0)]
    switches = constants(APPLY=1) + flags(INFERENCE=False, SIGNS=signs is not None)
    switches += activation(op, functions, x.dtype)
    return (
        _statistics(op, x, given, channel_blocks(x, aligned, machine), parts, _before(functions, x)),
        passes.head(x).launch("batch_apply", switches, passes.grid, applied),
    )


def _statistics(
    op: BatchNorm, x: Spec, given: Sequence[Place], sums: Blocks, parts: int, before: str = ""
) -> Launch:
    """Mean, r and running statistics of each channel; arguments as for `normalized`."""
    count, channels = sums.reduced.count, x.shape[1]
    index = index_type(sums.kept.reach + x.numel)
    head = KernelHead.bare(types(index, x), known=index != "i32")
    head.sizes.add(OUTPUTS=channels, COUNT=count, SPLITS=parts or sums.split[1])
    head.sizes.add_real(UNBIASED=count / (count - 1))
    head.sizes.add_offset("kept", sums.kept)
    numbers = constants(V=1, STATISTICS=1, EPSILON=repr(op.epsilon), MOMENTUM=repr(op.momentum))
    places = [given[0], scratch(), given[3], given[4], *(target(i) for i in (1, 2, 3, 4))]
    switches = numbers + flags(SHIFTED=not parts) + before
    return head.launch("batch_statistics", switches, (-(-channels // 8),), places)


def _residual(op: BatchNorm | BatchNormInfer) -> Place:
    """The residual, or any address if there is none."""
    return source(5) if op.residual else source(0)


def _label(op: BatchNorm | BatchNormInfer | BatchNormGrad, functions: NormFunctions | None) -> str:
    relu = ("+relu" if op.hi is None else "+clipped_relu") * op.relu
    name = op.name + "+add" * op.residual + relu
    return name if functions is None else functions.label(name)


@kernels(BatchNormInfer, source="kernel")
def batch_norm_infer(
    op: BatchNormInfer,
    specs: tuple[Spec, ...],
    device: Device,
    policy: Policy,
    functions: NormFunctions | None = None,
) -> Plan:
    """One pass."""
    machine = device.machine
    (out,) = op.infer(*specs)
    big, small = [specs[0], *specs[5:]], [s.open.fixed for s in specs[1:5]]
    x, *added = (full(s, resident(*big)) for s in big)
    y = full(out, x.physical)
    inputs = [x, *small, *added]
    if x.numel == 0:
        return kernel_plan(device, inputs, [y], [], label=op.name)

    def steps(aligned: bool) -> tuple[Bindable, ...]:
        passes = channel_blocks(x, aligned, machine, WRITING)
        switches = constants(APPLY=1, EPSILON=repr(op.epsilon)) + activation(op, functions, x.dtype)
        switches += flags(INFERENCE=True, SIGNS=False)
        places = [*(source(i) for i in range(5)), _residual(op), target(), target()]
        return (passes.head(x).launch("batch_apply", switches, passes.grid, places),)

    return kernel_plan(
        device,
        inputs,
        [y],
        steps(True),
        label=_label(op, functions),
        aliases={0: 0},
        plain=lambda: steps(False),
    )


def grad_applied(
    op: BatchNormGrad,
    x: Spec,
    given: Sequence[Place],
    machine: Machine,
    aligned: bool = True,
    parts: int = 0,
    functions: NormFunctions | None = None,
) -> tuple[Bindable, ...]:
    """dscale and dbias from partial sums at the start of the workspace, then the pass that writes dx.

    given: places of g (masked where a residual was added), x, scale, mean, r, and the bias (without relu or another
    function, any). parts: the sums were computed elsewhere, of g and of g (x - mean): [2, C, parts].
    """
    passes = channel_blocks(x, aligned, machine, WRITING)
    parts = parts or channel_blocks(x, aligned, machine).split[1]
    summed = [scratch(), given[4], target(1), target(2)]
    places = [*given, target(1), target(2), target(0)]
    switches = activation(op, functions, x.dtype) + flags(MOVING=op.moving) + constants(GRAD_APPLY=1)
    return (
        totals(x, x.shape[1], parts, summed, centred=True, scaled=True),
        passes.head(x).launch("batch_grad_apply", switches, passes.grid, places),
    )


@kernels(BatchNormGrad, source="kernel")
def batch_norm_grad(
    op: BatchNormGrad,
    specs: tuple[Spec, ...],
    device: Device,
    policy: Policy,
    functions: NormFunctions | None = None,
) -> Plan:
    """Sums of each channel, dscale and dbias from them, then dx."""
    machine = device.machine
    again = functions is not None and functions.again
    outs = op.infer(*(specs[:-1] if again else specs))
    layout = resident(specs[1], specs[0])
    inputs = [full(s, layout) if s.shape == specs[1].shape and s.ndim > 1 else s.open.fixed for s in specs]
    outputs = [full(s, layout) if i in (0, 3) else s.fixed for i, s in enumerate(outs)]
    x = inputs[1]
    if x.numel == 0:
        return kernel_plan(device, inputs, outputs, [], label=op.name)
    last = source(5) if op.relu or again else source(2)  # y or the bias; else any address
    bias, y = (source(2), last) if op.residual else (last, source(0))
    masked, dz = (target(3), target(3)) if op.residual else (source(0), target(0))
    given = [masked, *(source(i) for i in (1, 2, 3, 4)), bias]

    def steps(aligned: bool) -> tuple[Bindable, ...]:
        sums = channel_blocks(x, aligned, machine)
        switches = activation(op, functions, x.dtype) + constants(GRAD_SUMS=1)
        read = [source(0), source(1), source(2), source(3), source(4), bias, y, dz, scratch()]
        applied = grad_applied(op, x, given, machine, aligned, functions=functions)
        return (sums.head(x).launch("batch_grad_sums", switches, sums.grid, read), *applied)

    own = kernel_plan(
        device,
        inputs,
        outputs,
        steps(True),
        label=_label(op, functions),
        workspace=sums_bytes(x, machine),
        aliases={0: 0},
        plain=lambda: steps(False),
    )
    text = activation(op, functions, x.dtype)
    formulations = [batch_persistent.backward(op, x, text, steps(True), own.workspace, machine, again)]
    if functions is not None:
        return _best(functions.op, own, formulations, device, policy)
    if _competes(op, own, device, policy) and not op.relu and op.moving and _cudnn_takes(x):
        formulations.append(Formulation("cudnn", lambda: cudnn_norm_grad(x)))
        own = replace(own, aliases={})  # cuDNN does not allow dx to overwrite g
    return _best(op, own, formulations, device, policy)


# --------------------------------------------------------------------------------------------------- cuDNN's own


@dataclass(frozen=True)
class _Fixed(Place):
    """A fixed address, the same in every call: `offset` itself."""

    def address(self, call: Call) -> int:
        """The address."""
        return self.offset

    def __reduce__(self) -> tuple[Callable[[float], _Fixed], tuple[float]]:
        return _place_of, (ctypes.c_float.from_address(self.offset).value,)


@lru_cache(maxsize=256)
def _number(value: float) -> tuple[ctypes.Array[ctypes.c_float], _Fixed]:
    """A float32 on the host for cuDNN, kept alive for good, and its place (a multiple of 16 bytes)."""
    memory = (ctypes.c_float * 8)()
    lead = -ctypes.addressof(memory) % VECTOR
    memory[lead // 4] = value
    return memory, _Fixed("host", 0, ctypes.addressof(memory) + lead)


def _place_of(value: float) -> _Fixed:
    """The address of a number."""
    return _number(value)[1]


def _cudnn_takes(x: Spec) -> bool:
    """Whether cuDNN's norms are worth trying: they need half types, channels last, channels a multiple of eight."""
    lies = x.ndim in (4, 5) and x.physical == channels_last(x.shape) and x.shape[1] % 8 == 0
    return lies and x.dtype in (float16, bfloat16)


def _competes(op: BatchNorm | BatchNormGrad, own: Plan, device: Device, policy: Policy) -> bool:
    """Whether cuDNN's formulation is timed against the own kernels, or known to be faster."""
    if policy.algorithm != "auto":
        return policy.algorithm == "fastest"
    place = ProblemPlace.of(str(op), own.inputs, own.outputs)
    return any(choice.formulation == "cudnn" for choice in islice(known_choices(place, device), 1))


def _best(
    op: Op,
    own: Plan,
    others: Sequence[Formulation | None],
    device: Device,
    policy: Policy,
) -> Plan:
    """The best of the own kernels and the other formulations; unaligned addresses always use the own ones.

    Without timing that is the single launch if much of x stays in the cache between the passes: up to one and a
    half times the cache it took 0.65 of the time of the passes, up to 2.2 times 0.94, and beyond that 1.02 (bfloat16,
    compute capability 9.0). Where both passes compute an activation's gradient, it is faster at any size (0.8).
    """
    assert isinstance(own.make, Launches)
    passes = Formulation("kernel", steps=own.make.steps, scratch=own.workspace)
    made = [w for w in others if w]
    if not made:
        return own
    small = own.inputs[0].nbytes <= _RESIDENT * device.machine.l2_bytes or isinstance(op, ActivationNormGrad)
    formulations = (*made[:1], passes, *made[1:]) if small and made[0].graph is None else (passes, *made)
    key, label = f"{op} {own.inputs[0]}", own.label.removeprefix("kernel ")
    problem = Problem(
        key,
        label,
        own.inputs,
        own.outputs,
        formulations,
        0.0,
        aliases=own.aliases,
        kind=str(op),
    )
    found = choose(problem, device, policy)
    assert isinstance(found.make, Launches)
    workspace = max(found.workspace, own.workspace)
    launches = Launches(device, found.make.steps, own.make.plain)
    return replace(found, make=launches, workspace=workspace, open=None)


def _tensors(
    graph: Graph, x: Spec, count: int, names: Sequence[str]
) -> tuple[list[Tensor], dict[str, Tensor]]:
    """`count` tensors like x, and one number per channel for each name."""
    big = [graph.tensor(x.shape, x.physical.strides, x.dtype.name) for _ in range(count)]
    ones = (1, x.shape[1], *(1,) * (x.ndim - 2))
    return big, {name: graph.packed(ones, "float32", channels_last=True) for name in names}


def cudnn_norm(op: BatchNorm, x: Spec) -> Formulation:
    """Batch norm as one operation, with relu and a residual in front of it. The new running statistics go through the
    workspace, since they may overwrite the old ones, which cuDNN does not support.
    """
    size = x.shape[1] * 4
    second = round_up(size, WORKSPACE_ALIGNMENT)

    def make() -> tuple[Graph, Mapping[int, Place]]:
        graph = Graph()
        (big, y, *residual), small = _tensors(graph, x, 2 + op.residual, _FORWARD[1:])
        epsilon, momentum = graph.scalar(x.ndim), graph.scalar(x.ndim)
        normal = graph.like(y) if op.relu else y
        graph.norm("batch", big, normal, epsilon=epsilon, momentum=momentum, **small)
        if residual:
            normal = graph.pointwise("add", normal, residual[0])
        if op.relu:
            graph.pointwise("relu_fwd", normal, out=y, relu_upper=op.hi)
        places = [*(source(i) for i in range(1, 5)), target(1), target(2), scratch(), scratch(second)]
        found = {t.uid: place for t, place in zip(small.values(), places, strict=True)}
        found |= {big.uid: source(0), y.uid: target(0)}
        found |= {added.uid: _residual(op) for added in residual}
        return graph, found | {epsilon.uid: _number(op.epsilon)[1], momentum.uid: _number(op.momentum)[1]}

    after = (Copy(target(3), scratch(), size), Copy(target(4), scratch(second), size))
    return Formulation("cudnn", make, after=after, scratch=second + size)


_FORWARD = (
    "x",
    "scale",
    "bias",
    "running_mean",
    "running_var",
    "mean",
    "inv_variance",
    "next_mean",
    "next_var",
)


def cudnn_norm_grad(x: Spec) -> tuple[Graph, Mapping[int, Place]]:
    """The gradients of batch norm as one operation."""
    graph = Graph()
    (dy, big, dx), small = _tensors(graph, x, 3, ("scale", "mean", "inv_variance", "dscale", "dbias"))
    graph.norm_grad("batch", dy, big, dx, **small)
    places = [source(2), source(3), source(4), target(1), target(2)]
    found: dict[int, Place] = {t.uid: place for t, place in zip(small.values(), places, strict=True)}
    return graph, found | {dy.uid: source(0), big.uid: source(1), dx.uid: target(0)}


# ------------------------------------------------------------------------------------- layer, RMS and group norm

Rows = LayerNorm | RmsNorm | GroupNorm
RowsGrad = LayerNormGrad | RmsNormGrad | GroupNormGrad


@dataclass(frozen=True)
class Lines:
    """A tensor's axes, split as by a frame, with three strides each: in memory, of its statistics, its scale."""

    x: Spec
    frame: Frame

    @property
    def strides(self) -> list[tuple[int, ...]]:
        """Per operand (the tensor, the statistics, the scale) the strides along `frame.split`."""
        given = list(self.x.physical.strides)
        if len(self.frame.split) > len(given):  # channels split into groups
            given[1:2] = [given[1] * self.frame.split[2], given[1]]
        kept, scale = contiguous(self.frame.kept).strides, contiguous(self.frame.scale).strides
        stats = [0 if n == 1 else s for n, s in zip(self.frame.kept, kept, strict=True)]
        scales = [0 if n == 1 else s for n, s in zip(self.frame.scale, scale, strict=True)]
        return [tuple(given), tuple(stats), tuple(scales)]

    def space(self, axes: Sequence[int]) -> Space:
        """Some axes of `frame.split` in memory order."""
        rows = self.strides
        order = memory_order(self.frame.split, rows[0])
        return collapse(self.frame.split, rows, [a for a in order if a in axes])

    def rows(self) -> tuple[Space, Space]:
        """Rows in the order of their statistics, and the elements of each."""
        rows, axes = self.strides, self.frame.axes
        kept = [a for a in range(len(self.frame.split)) if a not in axes]
        return collapse(self.frame.split, rows, kept), self.space(axes)

    def scales(self, aligned: bool, machine: Machine) -> Blocks:
        """Scales in their own order, and the elements that share each."""
        others = self.frame.others
        own = [a for a in range(len(self.frame.split)) if a not in others]
        kept = collapse(self.frame.split, self.strides, own)
        most = SUMMING * machine.multiprocessors
        return Blocks(kept, self.space(others), self.x.dtype.itemsize, aligned, most)


def lines_of(op: Rows | RowsGrad, x: Spec, *others: Spec) -> Lines:
    """x in its own layout if its rows can be read efficiently there, else row-major."""
    grouped = isinstance(op, (GroupNorm, GroupNormGrad))
    layout = resident(x, *others) if grouped else contiguous(x.shape)
    lines = Lines(full(x, layout), op.frame(x))
    if not grouped or x.numel == 0:
        return lines
    inner = lines.rows()[1]
    together = inner.strides[0][-1] == 1 and (inner.sizes[-1] >= TOGETHER or len(inner.sizes) == 1)
    return lines if together else Lines(full(x, contiguous(x.shape)), lines.frame)


def row_launch(
    name: str,
    lines: Lines,
    aligned: bool,
    numbers: str,
    places: Sequence[Place],
    held_tensors: int,
    out: DType | None = None,
) -> Launch:
    """A part of a warp, a warp or a block per row. out: the type of a norm's result."""
    kept, inner = lines.rows()
    # An access has one scale, or as many contiguous ones.
    step = inner.strides[2][-1]
    width = vector_width(inner, kept, lines.x.dtype.itemsize) if aligned and step in (0, 1) else 1
    if step == 1 and any(s % width for row in (inner.strides[2][:-1], kept.strides[2]) for s in row):
        width = 1
    accesses = -(-inner.count // width)
    group, turns = lanes_of(accesses, _HELD)
    if turns > _HELD:
        group, turns = 256, -(-accesses // 256)
    held, head = turns * held_tensors <= 2 * _HELD, KernelHead.of(lines.x, width, kept, inner)
    same = held and turns * width <= _SAME and not any(kept.strides[2])
    head.sizes.add_offset("scale_kept", kept, 2)
    head.sizes.add_offset("scale_reduced", inner, 2)
    text = numbers + constants(GROUP=group, SCALE_STEP=step)
    even = inner.count == turns * group * width
    text += flags(HELD=held, EVEN=even, SAME_SCALE=same, **{name.upper(): True})
    text += "" if out is None else f"typedef {c_type(out)} Y;\n"
    if held:
        text += constants(TURNS=turns)
    else:
        head.sizes.add(TURNS=turns)
    made = head.launch(name, text, (), places)
    return looping(made.program, kept.count * group, made.arguments)


@kernels(LayerNorm, RmsNorm, source="kernel")
def row_norm(op: Rows, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """One kernel."""
    outs = op.infer(*specs)
    lines = lines_of(op, specs[0])
    x = lines.x
    inputs = [x, *(s.open.fixed for s in specs[1:])]
    outputs = [full(outs[0], x.physical), *(s.fixed for s in outs[1:])]
    if x.numel == 0:
        return kernel_plan(device, inputs, outputs, [], label=op.name)
    numbers = flags(CENTRED=op.centred) + constants(EPSILON=repr(op.epsilon))
    bias = source(2) if op.centred else source(1)
    places = [source(0), source(1), bias, target(0), target(1), target(1 + op.centred)]

    def steps(aligned: bool) -> tuple[Bindable, ...]:
        return (row_launch("row_norm", lines, aligned, numbers, places, 1, x.dtype),)

    return kernel_plan(device, inputs, outputs, steps(True), label=op.name, plain=lambda: steps(False))


def short_rows(
    op: RowsGrad, lines: Lines, machine: Machine, *, added: bool = False, aligned: bool = True
) -> ShortRows | None:
    """The tensor as rows for the single-pass kernel, if that supports it. added: a tensor added to x's gradient."""
    if isinstance(op, GroupNormGrad):
        return None
    kept, inner = lines.rows()
    short = ShortRows(lines.x, kept.count, inner.count, op.centred, machine, added, aligned)
    return short if short.fits else None


@kernels(LayerNormGrad, RmsNormGrad, source="kernel")
def row_norm_grad(op: RowsGrad, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """dx row by row; dscale and dbias by sums across the rows. Short rows are read once."""
    outs = op.infer(*specs)
    lines = lines_of(op, specs[1], specs[0])
    x = lines.x
    inputs = [full(specs[0], x.physical), x, *(s.open.fixed for s in specs[2:])]
    outputs = [full(outs[0], x.physical), *(s.fixed for s in outs[1:])]
    switches = flags(CENTRED=op.centred)
    if x.numel == 0:
        zeros = [Fill(target(i), 0, s.nbytes) for i, s in enumerate(outputs[1:], 1) if s.nbytes]
        return kernel_plan(device, inputs, outputs, zeros, label=op.name)
    spread, dbias = (source(4), target(2)) if op.centred else (source(3), target(1))

    def steps(aligned: bool) -> tuple[Bindable, ...]:
        sums = lines.scales(aligned, device.machine)
        head, step = sums.head(x), 0 if sums.by_rows else sums.kept.strides[1][-1]
        head.sizes.add_offset("stat_kept", sums.kept, 1)
        head.sizes.add_offset("stat_reduced", sums.reduced, 1)
        summing = switches + constants(SCALE_SUMS=1, STAT_STEP=step)
        read = [source(0), source(1), source(3), spread]
        outputs, parts = sums.kept.count, sums.split[1]
        places = [scratch(), spread, target(1), dbias]
        return (
            head.launch("row_scale_sums", summing, sums.grid, [*read, scratch()]),
            totals(x, outputs, parts, places, centred=op.centred, scaled=False),
            row_launch(
                "row_norm_grad", lines, aligned, switches, [*read[:2], source(2), *read[2:], target(0)], 2
            ),
        )

    most = max(lines.scales(aligned, device.machine).split[1] for aligned in (True, False))
    short = short_rows(op, lines, device.machine)
    places = [source(0), source(1), source(2), source(3), spread, source(0)]
    ends, sums = (target(0), target(0)), (target(1), dbias)
    return kernel_plan(
        device,
        inputs,
        outputs,
        short.gradients(places, ends, scratch(), sums, x.dtype) if short else steps(True),
        label=op.name,
        workspace=max(
            2 * most * lines.scales(True, device.machine).kept.count * x.dtype.compute.itemsize,
            short.nbytes if short else 0,
        ),
        aliases={0: 0},
        plain=lambda: steps(False),
    )
