"""Conversion between specs and oneDNN's descriptors, and plans from primitive descriptors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple

from lamina._cached import cached_property
from lamina.backends import Again, Call, Kernels, NoKernel, Plan, PlanTape, Run
from lamina.backends.quiet import Quiet, sequence
from lamina.c.errors import DnnlInvalidArguments, DnnlUnimplemented
from lamina.onednn import ARG, Memory, MemoryDesc, Primitive, PrimitiveDesc
from lamina.onednn.recipe import RecipeError, encode, encode_desc
from lamina.ops.core import Array, Op
from lamina.spec import DType, Layout, Shape, Spec, bfloat16, float16, float32, int8, int32, uint8
from lamina.spec.layout import channels_last, contiguous, dense, physical_elements

kernels = Kernels("cpu")

TYPES = {float32: "f32", bfloat16: "bf16", float16: "f16", int32: "s32", int8: "s8", uint8: "u8"}
#: The types in which oneDNN computes; other types run on NumPy.
FLOATS = (float32, bfloat16, float16)
#: More axes no descriptor of oneDNN has.
_MOST_AXES = 12
#: Scratch memory starts at multiples of this many bytes.
ALIGNMENT = 256
#: The errors of oneDNN when it has no kernel for a combination.
Refused = (DnnlUnimplemented, DnnlInvalidArguments)


# ------------------------------------------------------------------------------------------ specs, descriptors
_blocked: dict[Spec, MemoryDesc] = {}  # layouts that oneDNN chose, with its descriptors


@lru_cache(maxsize=4096)
def desc(spec: Spec) -> MemoryDesc:
    """The descriptor of a spec with a named layout; a scalar has one axis. Raises NoKernel."""
    ranked(spec.shape)
    spec, kind = spec.fixed, data_type(spec.dtype)
    layout = spec.physical
    if not layout.is_blocked:
        return MemoryDesc(spec.shape or (1,), kind, strides=_told(spec.shape, layout.strides) or (1,))
    if spec in _blocked:
        return _blocked[spec]
    try:
        return MemoryDesc(spec.shape, kind, tag=spec.tag or "")
    except ValueError as error:
        raise NoKernel(f"cpu: {spec} has no oneDNN descriptor: {error}") from None


@lru_cache(maxsize=4096)
def _told(shape: Shape, strides: Shape) -> Shape:
    """Strides for oneDNN, which identifies layouts by them: those of axes of size 1 are arbitrary, and are set to
    those of a row-major or channels-last tensor if the other axes match one, else as if these axes were inside their
    neighbours."""
    usual = [contiguous(shape).strides, *([channels_last(shape).strides] if len(shape) > 2 else [])]
    if strides in usual:
        return strides
    for packed in usual:
        if all(n == 1 or a == b for n, a, b in zip(shape, strides, packed, strict=True)):
            return packed
    found, behind = list(strides), 1
    for axis in reversed(range(len(shape))):
        if shape[axis] == 1:
            found[axis] = behind
        behind = found[axis] * shape[axis]
    return tuple(found)


def open_desc(spec: Spec, tag: str = "any") -> MemoryDesc:
    """The descriptor of the spec's shape and type in a layout by tag; "any" is left to the primitive."""
    return _tagged(spec.shape, data_type(spec.dtype), tag)


@lru_cache(maxsize=1024)
def _tagged(shape: Shape, kind: str, tag: str) -> MemoryDesc:
    """One cached object for all primitives, so that its strides are queried once. Not every order of axes has a
    tag. Raises NoKernel."""
    ranked(shape)
    try:
        return MemoryDesc(shape, kind, tag=tag)
    except ValueError:
        order = tuple(ord(letter) - ord("a") for letter in tag)
        if sorted(order) != list(range(len(shape))):
            raise
        return MemoryDesc(shape, kind, strides=dense(shape, order).strides)


@lru_cache(maxsize=1024)
def spec_of(found: MemoryDesc, dtype: DType) -> Spec:
    """The spec of a descriptor with strides and blocks. Raises NoKernel for opaque ones."""
    if not found.is_strided:
        raise NoKernel(f"cpu: oneDNN's layout {found} cannot be expressed by strides and blocks")
    spec = Spec(found.dims, dtype, Layout(found.strides, found.blocks))
    if found.blocks:
        _blocked.setdefault(spec, found)
    return spec


def ranked(shape: Shape) -> Shape:
    """The shape, if oneDNN has descriptors of as many axes. Raises NoKernel."""
    if len(shape) > _MOST_AXES:
        raise NoKernel(f"cpu: oneDNN has no descriptors of {len(shape)} axes, {_MOST_AXES} at most")
    return shape


def data_type(dtype: DType) -> str:
    """oneDNN's name of a dtype. Raises NoKernel where it has none."""
    if dtype not in TYPES:
        raise NoKernel(f"cpu: oneDNN does not compute in {dtype}")
    return TYPES[dtype]


def computes(*specs: Spec) -> None:
    """Raise NoKernel unless oneDNN computes in these types and no operand is empty."""
    for spec in specs:
        if spec.dtype not in FLOATS:
            raise NoKernel(f"cpu: oneDNN does not compute in {spec.dtype}")
        if spec.numel == 0:
            raise NoKernel(f"cpu: {spec} has no elements")


def flat(spec: Spec) -> MemoryDesc | None:
    """All elements in memory order as one axis, padding included; None where there are gaps."""
    if spec.tag is None:
        return None
    return MemoryDesc((physical_elements(spec.physical, spec.shape),), data_type(spec.dtype))


def is_padded(spec: Spec) -> bool:
    """Whether the layout holds padding, which must stay zero."""
    return spec.tag is not None and physical_elements(spec.physical, spec.shape) > spec.numel


def memory_order(spec: Spec) -> tuple[int, ...]:
    """The axes from the outermost to the innermost in memory, of a layout with a tag."""
    return tuple(ord(letter) - ord("a") for letter in (spec.tag or "")[: spec.ndim].lower())


def alike(given: Spec, other: Spec) -> Spec:
    """`other` with the axis order and the blocks of `given`."""
    layout = dense(other.shape, memory_order(given), given.physical.blocks)
    return Spec(other.shape, other.dtype, layout)


def attempt(create: Callable[..., PrimitiveDesc], *args: Any) -> PrimitiveDesc | None:
    """create(*args), or None where oneDNN has no kernel but its slow reference code, or pooling's plain loops."""
    try:
        made = create(*args)
    except (*Refused, NoKernel):
        return None
    return None if made.implementation.startswith(("ref", "simple_nchw")) else made


# ------------------------------------------------------------------------------------------------------ plans
class Location(NamedTuple):
    """The place of an operand: an input, an output, or bytes at an offset of the workspace."""

    kind: str
    where: int
    offset: int = 0

    def at(self, nbytes: int) -> Location:
        """The place this many bytes further on."""
        return self._replace(offset=self.offset + nbytes)

    def address(self, call: Call) -> int:
        """The address in a call."""
        if self.kind == "workspace":
            return call.workspace + self.where + self.offset
        return (call.inputs if self.kind == "input" else call.outputs)[self.where] + self.offset


@dataclass(frozen=True, eq=False)
class Held:
    """A constant operand, kept by the plan."""

    values: Array

    def address(self, call: Call) -> int:
        """Where the values are, in every call."""
        return int(self.values.ctypes.data)


def at_input(index: int) -> Location:
    """The input at `index`."""
    return Location("input", index)


def at_output(index: int = 0) -> Location:
    """The output at `index`."""
    return Location("output", index)


Operands = Mapping[int, tuple[MemoryDesc, Location | Held]]


#: For how many operands, and addresses of each, a primitive keeps memory objects.
_MOST_MEMORIES = 32


@dataclass
class PrimitiveStage:
    """One primitive with its operands; created at the first bind, since that generates code."""

    desc: PrimitiveDesc
    operands: Operands
    _memories: dict[tuple[int, int], Memory] = field(default_factory=dict, repr=False, compare=False)

    @cached_property
    def primitive(self) -> Primitive:
        """The kernel."""
        return Primitive(self.desc)

    def recorded(self, call: Call, scratch: int, tape: PlanTape) -> list[Any]:
        """The stage as data. Raises RecipeError where the primitive cannot be encoded."""
        operands = []
        for argument, (desc, place) in self.operands.items():
            address = tape.keep(place.values) if isinstance(place, Held) else place.address(call)
            told = self.desc.argument(argument).ndim > 0
            operands.append([argument, None if told else encode_desc(desc), address])
        room = self.desc.scratchpad.nbytes
        return ["onednn", encode(self.desc), self.desc.implementation, operands, scratch if room else 0, room]

    def bind(self, call: Call, scratch: int) -> Run:
        """Fix the addresses; `scratch` is the address of the primitive's scratchpad."""
        memories = {a: self._memory(a, d, place.address(call)) for a, (d, place) in self.operands.items()}
        if self.desc.scratchpad.nbytes:
            memories[ARG.SCRATCHPAD] = self._memory(ARG.SCRATCHPAD, self.desc.scratchpad, scratch)
        return self.primitive.bind(memories)

    def _memory(self, argument: int, desc: MemoryDesc, address: int) -> Memory:
        """The operand at an address. In eager calls each operand meets the same few addresses, in ever new
        combinations."""
        found = self._memories.get((argument, address))
        if found is None:
            if len(self._memories) >= _MOST_MEMORIES:
                self._memories.clear()
            found = self._memories[argument, address] = Memory(desc, address)
        return found


@dataclass(frozen=True, eq=False)
class PlanStage:
    """Another plan, with the places of its operands and of its workspace.

    op: the computed op; a saved program replans it where its kernels cannot be encoded.
    """

    plan: Plan
    inputs: tuple[Location, ...]
    outputs: tuple[Location, ...]
    room: Location
    op: Op | None = None

    def bind(self, call: Call) -> Run:
        """Fix the addresses."""
        return self.plan.bind(self._call(call))

    def recorded(self, call: Call, tape: PlanTape) -> list[Any] | None:
        """Its steps as data; None where they cannot be encoded."""
        own = self._call(call)
        found = self.plan.recorded(own, tape)
        if found is None and self.op is not None:
            return [Again(self.op, self.plan, own)]
        return found

    def _call(self, call: Call) -> Call:
        read, written = (tuple([p.address(call) for p in places]) for places in (self.inputs, self.outputs))
        return Call(read, written, self.room.address(call))


Bind = Callable[[Call], Run]


@dataclass
class Chain:
    """A plan under construction: primitives and Python functions, one after another."""

    inputs: list[Spec]
    outputs: list[Spec]
    stages: list[PrimitiveStage | PlanStage | Bind] = field(default_factory=list)
    workspace: int = 0
    warns: bool = False  # whether NumPy may warn of what the Python functions compute

    def temporary(self, nbytes: int) -> Location:
        """Workspace of its own."""
        place = Location("workspace", self.workspace)
        self.workspace += -(-nbytes // ALIGNMENT) * ALIGNMENT
        return place

    def run(self, made: PrimitiveDesc, operands: Operands) -> None:
        """Append a primitive."""
        self.stages.append(PrimitiveStage(made, operands))

    def follow(
        self, plan: Plan, inputs: Sequence[Location], outputs: Sequence[Location], op: Op | None = None
    ) -> None:
        """Append another plan, which reads and writes these places; op: the op that it computes."""
        self.stages.append(PlanStage(plan, tuple(inputs), tuple(outputs), self.temporary(plan.workspace), op))

    def call(self, bind: Bind, *, warns: bool = True) -> None:
        """Append a Python function, created when addresses are known; warns: whether NumPy may warn in it."""
        self.stages.append(bind)
        self.warns |= warns

    def plan(self, label: str = "", aliases: Mapping[int, int] | None = None) -> Plan:
        """The finished plan. The primitives share one piece of scratch memory."""
        described = [s.desc for s in self.stages if isinstance(s, PrimitiveStage)]
        scratch = max((d.scratchpad.nbytes for d in described), default=0)
        text = label or "onednn " + ", ".join(dict.fromkeys(d.implementation for d in described))
        make = Stages(tuple(self.stages), self.workspace, self.warns)
        return Plan(
            tuple(self.inputs),
            tuple(self.outputs),
            make,
            self.workspace + scratch,
            dict(aliases or {}),
            label=text,
        )


@dataclass(frozen=True, eq=False)
class Stages:
    """The stages of a plan; called with a `Call` it binds them. scratch: where their scratchpad begins."""

    stages: tuple[PrimitiveStage | PlanStage | Bind, ...]
    scratch: int
    warns: bool = False

    def __call__(self, call: Call) -> Run:
        """Bind to addresses."""
        place = call.workspace + self.scratch
        runs = [self._bound(stage, call, place) for stage in self.stages]
        return Quiet(sequence(runs)) if self.warns else sequence(runs)

    @staticmethod
    def _bound(stage: PrimitiveStage | PlanStage | Bind, call: Call, place: int) -> Run:
        if isinstance(stage, PrimitiveStage):
            return stage.bind(call, place)
        return stage.bind(call) if isinstance(stage, PlanStage) else stage(call)

    def recorded(self, call: Call, tape: PlanTape) -> list[Any] | None:
        """As data, if all primitives and plans in it can be encoded."""
        place, found = call.workspace + self.scratch, []
        for stage in self.stages:
            steps = self._told(stage, call, place, tape)
            if steps is None:
                return None
            found += steps
        return found

    @staticmethod
    def _told(
        stage: PrimitiveStage | PlanStage | Bind, call: Call, place: int, tape: PlanTape
    ) -> list[Any] | None:
        if isinstance(stage, PlanStage):
            return stage.recorded(call, tape)
        if not isinstance(stage, PrimitiveStage):
            return None
        try:
            return [stage.recorded(call, place, tape)]
        except RecipeError:
            return None


def single(
    made: PrimitiveDesc,
    inputs: Sequence[Spec],
    outputs: Sequence[Spec],
    operands: Operands,
    aliases: Mapping[int, int] | None = None,
) -> Plan:
    """The plan of one primitive."""
    chain = Chain(list(inputs), list(outputs))
    chain.run(made, operands)
    return chain.plan(aliases=aliases)
