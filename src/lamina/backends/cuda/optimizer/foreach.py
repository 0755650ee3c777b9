"""One op on many dense tensors in one launch: a table of addresses is passed as a parameter.

Updates; elementwise ops of one or more steps, on operands of the result's size and on scalars; and full reductions of
each tensor, in two launches: partial results per block, and their combination.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda.elementwise.fused_elementwise import FusedBody
from lamina.backends.cuda.elementwise.loop import Statement
from lamina.backends.cuda.elementwise.pointwise import expression_of, op_value
from lamina.backends.cuda.elementwise.reduce import reduction_text
from lamina.backends.cuda.elementwise.shape import row_major
from lamina.backends.cuda.launch.program import (
    VECTOR,
    Launch,
    Program,
    Table,
    c_type,
    constants,
    kernel_plan,
    scratch,
    wide_type,
)
from lamina.backends.cuda.optimizer.table import MOST_BYTES, address_table
from lamina.backends.cuda.optimizer.update import update_launches, update_workspace
from lamina.backends.cuda.registry import kernels
from lamina.ops.core import Op
from lamina.ops.primitives.foreach import Foreach
from lamina.ops.primitives.fused_elementwise import FusedElementwise
from lamina.ops.primitives.reduce import Reduce
from lamina.ops.primitives.update import Update
from lamina.runtime import Device
from lamina.spec import DType, Policy, Spec

Parts = Sequence[tuple[Spec, ...]]
#: The most blocks that reduce one tensor: a single warp combines as many partial results.
_MOST_SHARES = 64


@kernels(Foreach, source="kernel")
def foreach(op: Foreach, specs: tuple[Spec, ...], device: Device, policy: Policy) -> Plan:
    """The parts in the layouts that the op alone would give them; raises NoKernel where they do not suit one
    kernel."""
    single = op.op
    if not (isinstance(single, Update | Reduce | FusedElementwise) or expression_of(single)):
        raise NoKernel(f"cuda: no kernel for many of {single.name}")
    parts = list(op.parts([s if s.tag else row_major(s) for s in specs]))
    alike = {part: kernels.plan(single, part, device, policy) for part in dict.fromkeys(parts)}
    plans = [alike[part] for part in parts]
    inputs, outputs = [p.inputs for p in plans], [p.outputs for p in plans]
    _check(single, inputs, outputs)
    steps: Callable[[bool], tuple[Launch, ...]]
    if isinstance(single, Update):
        steps = partial(update_launches, single, inputs, outputs)
        workspace = update_workspace(single, inputs, outputs)
    else:
        group = _ManyKernel(single, inputs, outputs)
        steps, workspace = group.launches, group.workspace
    n_in, n_out = len(inputs[0]), len(outputs[0])
    aliases = {i * n_out + o: i * n_in + k for i, plan in enumerate(plans) for o, k in plan.aliases.items()}
    return kernel_plan(
        device,
        [s for part in inputs for s in part],
        [s for part in outputs for s in part],
        steps(True),
        label=f"foreach {op.count} x {single.name}",
        workspace=workspace,
        aliases=aliases,
        plain=lambda: steps(False),
    )


def _check(op: Op, inputs: Parts, outputs: Parts) -> None:
    """One kernel needs equal dtypes, dense elements in one order, and a table that fits."""
    kinds = {tuple(s.dtype for s in (*i, *o)) for i, o in zip(inputs, outputs, strict=True)}
    if len(kinds) > 1:
        raise NoKernel(f"cuda: many of {op.name} need equal dtypes, got {len(kinds)} kinds")
    for i, o in zip(inputs, outputs, strict=True):
        most = max(s.numel for s in (*i, *o))
        full = [s for s in (*i, *o) if s.numel == most]
        if any(s.tag is None or s.physical.is_blocked or _order(s) != _order(full[0]) for s in full):
            raise NoKernel(f"cuda: many of {op.name} need operands that lie alike, got {i}")
    if len(inputs) * (2 + len(inputs[0]) + len(outputs[0])) * 8 > MOST_BYTES:
        raise NoKernel(f"cuda: {len(inputs)} of {op.name} are more than a launch can be told of")


def _order(spec: Spec) -> object:
    """Sizes and strides of the axes with several elements: equal if element i is the same in memory."""
    pairs = zip(spec.shape, spec.physical.strides, strict=True)
    return [(n, s) for n, s in pairs if n > 1]


@dataclass(frozen=True)
class _Element:
    """The computation of an element. reads: for each operand a0, a1, … its input, and whether that has all elements.

    dtype: of the value `result`, after the statements.
    """

    reads: tuple[tuple[int, bool], ...]
    statements: tuple[Statement, ...]
    result: str
    dtype: DType


class _ManyKernel:
    """Kernels that are not updates. sizes: elements of each part."""

    def __init__(self, op: Op, inputs: Parts, outputs: Parts) -> None:
        self.op, self.inputs, self.outputs = op, inputs, outputs
        self.last = op.ops[-1] if isinstance(op, FusedElementwise) else op
        self.sizes = [
            max((s.numel for s in (*i, *o)), default=0) for i, o in zip(inputs, outputs, strict=True)
        ]
        if any(not s.numel for part in (*inputs, *outputs) for s in part):
            raise NoKernel(f"cuda: many of {op.name} need elements")
        largest = self.sizes.index(max(self.sizes))
        self.element = _element(op, inputs[largest], outputs[largest], self.sizes[largest])
        for part, size in zip(inputs, self.sizes, strict=True):
            self._check_part(part, size)
        self.reduction = ""
        if isinstance(self.last, Reduce):
            if any(s.numel != 1 for part in outputs for s in part) or self.last.kind == "mean":
                raise NoKernel(f"cuda: many of {op.name} make one number of each tensor")
            self.reduction = reduction_text(self.last, self.element.dtype, outputs[0][0].dtype)

    def _check_part(self, part: Sequence[Spec], size: int) -> None:
        for index, whole in self.element.reads:
            if part[index].numel != (size if whole else 1):
                raise NoKernel(
                    f"cuda: many of {self.op.name} need operands of one element where others have one"
                )

    @property
    def workspace(self) -> int:
        """Bytes of the blocks' partial results; the launches for unaligned addresses have the most blocks."""
        return 8 * self._table(1)[1] if self.reduction else 0

    def _table(self, width: int) -> tuple[Table, int, str]:
        most = _MOST_SHARES if self.reduction else 1 << 30
        return address_table(self.sizes, self.inputs, self.outputs, width, most)

    def launches(self, aligned: bool) -> tuple[Launch, ...]:
        """One launch, or two for full reductions."""
        read = [self.inputs[0][k].dtype for k, _ in self.element.reads]
        out = self.outputs[0][0].dtype
        width = VECTOR // max(d.itemsize for d in (*read, out)) if aligned else 1
        table, blocks, parts = self._table(width)
        text = f"typedef {c_type(out)} R;\n{parts}{constants(V=width, BLOCKS=blocks)}"
        text += self._reading(read)
        if not self.reduction:
            return (
                Launch(
                    self._program("foreach_elements", f"{text}#define ELEMENTS\n"),
                    (blocks,),
                    (256,),
                    (table,),
                ),
            )
        text += self.reduction
        first = self._program("foreach_shares", f"{text}#define SHARES\n")
        second = self._program("foreach_totals", f"{text}#define TOTALS\n")
        return (
            Launch(first, (blocks,), (256,), (table, scratch())),
            Launch(second, (len(self.sizes),), (32,), (table, scratch())),
        )

    def _program(self, name: str, text: str) -> Program:
        """Fused steps are rounded as in the op's own kernel, so that results are bitwise equal."""
        return Program(name, "optimizer/elements.cu", text, stepwise=isinstance(self.op, FusedElementwise))

    def _reading(self, read: Sequence[DType]) -> str:
        """The operands of a table row, V elements of each, and the values of the k-th of them."""
        locate, load, packed, single = [], [], [], []
        for i, ((index, whole), dtype) in enumerate(zip(self.element.reads, read, strict=True)):
            pointer = f"(const {c_type(dtype)} *)row[{2 + index}]"
            if whole:
                locate.append(f"const {c_type(dtype)} *in{i} = {pointer};")
                load.append(f"const auto p{i} = load<V>(in{i} + i);")
                packed.append(f"const {wide_type(dtype)} a{i} = widen(p{i}.v[k]);")
                single.append(f"const {wide_type(dtype)} a{i} = widen(in{i}[k]);")
            else:
                locate.append(f"const {wide_type(dtype)} a{i} = widen(*{pointer});")
        statements = [f"const {s.type} {s.name} = {s.expression};" for s in self.element.statements]
        result = f"const auto made = narrow<{c_type(self.element.dtype)}>({self.element.result});"
        lines = {
            "LOCATE": locate, "LOAD": load, "PACKED": [*packed, *statements, result],
            "SINGLE": [*single, *statements, result],
        }  # fmt: skip
        text = "".join(f"#define {name} {' '.join(code)}\n" for name, code in lines.items())
        return f"{text}#define RESULT row[{2 + len(self.inputs[0])}]\n"


def _element(op: Op, inputs: Sequence[Spec], outputs: Sequence[Spec], size: int) -> _Element:
    """The computation of an element of a part."""
    if isinstance(op, FusedElementwise):
        body = FusedBody(op, inputs)
        value = body.value(op.reads[-1][0] if isinstance(op.ops[-1], Reduce) else -len(op.ops))
        for view in body.views:
            given = inputs[view.index]
            if view.spec.numel != 1 and (view.offset or view.strides != given.physical.strides):
                raise NoKernel(f"cuda: many of {op.name} read whole tensors")
        reads = tuple((v.index, inputs[v.index].numel == size) for v in body.views)
        return _Element(reads, tuple(body.statements), value.name, value.spec.dtype)
    reads = tuple((i, s.numel == size) for i, s in enumerate(inputs))
    if isinstance(op, Reduce):
        return _Element(reads, (), "a0", inputs[0].dtype)
    names = [f"a{i}" for i in range(len(inputs))]
    made = op_value(op, names, [wide_type(s.dtype) for s in inputs], "s0", outputs[0].dtype)
    return _Element(reads, (made,), made.name, outputs[0].dtype)
