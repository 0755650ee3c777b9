"""Plans of the CUDA backend made without a GPU: samples of all ops, larger problems, and single Lamina kernels.

    python -m tests.helpers.cuda_plans write         after a plan was changed on purpose: the difference is reviewed
    python -m tests.helpers.cuda_plans show [PART]   each plan in full, to compare two checkouts

A row of the table is an op (or a kind of kernel) with its number of plans, their total workspace and blocks, and a
digest of each plan: its name, aliases and results, and for each step the kernel, the grid, the block, the shared
memory, the macros of the kernel's source and the places of its arguments. Results of kernels are tested by running
them (`tests/helpers/emulator`); only this table checks the choice of sizes and limits.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import fields
from functools import partial
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import pytest

from lamina.backends import NoKernel, Plan
from lamina.backends.cuda import backend
from lamina.backends.cuda.conv.conv import conv_problem
from lamina.backends.cuda.cudnn_graphs.conv import Operands
from lamina.backends.cuda.launch.program import (
    Copy,
    DeviceTable,
    Fill,
    Launch,
    Launches,
    Place,
    SubPlan,
    Table,
    Together,
)
from lamina.backends.cuda.norm import batch_persistent
from lamina.backends.cuda.norm.conv1x1_stats import ProductTiling
from lamina.backends.cuda.norm.norm import activation
from lamina.backends.cuda.rnn import persistent
from lamina.backends.cuda.select import formulations
from lamina.backends.cuda.select.formulations import Candidate, Formulation, MakeGraph, Problem
from lamina.c.errors import CudnnError
from lamina.ops.core import Op
from lamina.ops.primitives import BatchNorm, BatchNormGrad, Window
from lamina.ops.primitives.conv import Conv, ConvDataGrad, ConvFilterGrad
from lamina.ops.primitives.rnn import Rnn, RnnGrad, Sizes
from lamina.runtime import Machine
from lamina.spec import Policy, Spec, bfloat16, channels_last, float32
from tests.helpers.fuzz import network_convolutions
from tests.helpers.own_kernels import KINDS as KERNELS
from tests.helpers.own_programs import LARGER, LIBRARY, OWN, cases, enlarged
from tests.helpers.planned import H200, KINDS
from tools.mutate import forget

TABLE = Path(__file__).with_name("cuda_plans.json")
#: One of each size: much and little shared memory, many and few multiprocessors.
MACHINES = {name: KINDS[name] for name in ("h200", "a100", "rtx5090")}
#: The op or kind, the problem, and its plan.
Row = tuple[str, str, str]
#: Computed by cuDNN graphs; its recurrent networks need a GPU for planning.
GRAPHED = sorted(LIBRARY - {"rnn", "rnn_grad"})


# ------------------------------------------------------------------------------------------------------- as text


def digest(*what: object) -> str:
    """An eight-character digest of a text."""
    return hashlib.sha256(repr(what).encode()).hexdigest()[:8]


def argument(value: Any) -> str:
    """An argument as text: the place of an address, a number, a table."""
    if isinstance(value, Place):
        return f"{value.kind}{value.index}+{value.offset}"
    if isinstance(value, Table):
        return f"[{' '.join(map(argument, value.entries))}]"
    if isinstance(value, DeviceTable):
        return f"{value.values.dtype}{value.values.shape} {digest(value.values.tobytes())}"
    return repr(value)


def step_text(step: Any, machine: Machine) -> str:
    """A step as text."""
    if isinstance(step, Launch | Together):
        given = step.arguments if isinstance(step, Launch) else (*step.first, "|", *step.last)
        grid = step.grid_on(machine) if isinstance(step, Launch) else step.grid
        known = digest(step.program.file, step.program.text, [argument(a) for a in given])
        more = f" else ({steps_text(step.otherwise, machine)})" if isinstance(step, Together) else ""
        sizes = f"{'x'.join(map(str, grid))} {'x'.join(map(str, step.block))}"
        return f"{step.program.name} {sizes} {step.shared} {known}{more}"
    if isinstance(step, Fill):
        return f"fill {argument(step.place)} {step.byte} {step.nbytes}"
    if isinstance(step, Copy):
        return f"copy {argument(step.to)} {argument(step.origin)} {step.nbytes}"
    if isinstance(step, SubPlan):
        places = " ".join(map(argument, (*step.inputs, *step.outputs)))
        return f"plan at {step.offset} of {places} ({plan_text(step.plan, machine)})"
    return type(step).__name__


def steps_text(steps: Iterable[Any], machine: Machine) -> str:
    """Steps as text."""
    return "; ".join(step_text(step, machine) for step in steps)


def plan_text(plan: Plan, machine: Machine) -> str:
    """A plan as text: its name, workspace, aliases and steps, and those for unaligned addresses."""
    head = f"{plan.label}, {plan.workspace} bytes, {dict(plan.aliases)}, {' '.join(map(str, plan.outputs))}"
    if not isinstance(plan.make, Launches):
        return head
    plain = steps_text(plan.make.plain(), machine) if plan.make.plain else ""
    return f"{head}: {steps_text(plan.make.steps, machine)}" + (f" / {digest(plain)}" if plain else "")


def formulation_text(found: Formulation | None, machine: Machine) -> str:
    """A formulation as text: the work of its kernels, and its memory in addition to the graph's."""
    if found is None:
        return "none"
    parts = [steps_text(s, machine) for s in (found.before, found.steps, found.after)]
    parts += [graph_text(found.graph)] if found.graph else []
    return f"{found.name} {found.scratch} {'graph ' * (found.graph is not None)}{digest(*parts)}"


def graph_text(make: MakeGraph) -> str:
    """A cuDNN graph as text: its operations, and the place of each tensor with an address."""
    try:
        graph, places = make()
    except NoKernel as error:
        return str(error)
    given = [argument(places[uid]) if uid in places else "?" for uid in sorted(places)]
    return f"{graph.operations} {given}"


# -------------------------------------------------------------------------------------------------------- problems


def samples() -> Iterator[Row]:
    """Each op's samples, row-major and channels-last."""
    cuda = backend(H200)
    for name in OWN:
        for op, specs in cases(name, few=True):
            if all(s.layout is not None for s in specs):
                plan = cuda.plan(op, specs, Policy())
                yield name, f"{op} {' '.join(map(str, specs))}", plan_text(plan, H200.machine)


def larger_problems() -> Iterator[tuple[Op, list[Spec]]]:
    """Samples with other sizes, if the op accepts them: planned, never computed."""
    for name, larger in product(OWN, LARGER):
        for op, specs in cases(name, few=True):
            if all(s.layout is None for s in specs) and any(s.ndim for s in specs):
                yield op, enlarged(specs, larger)


def enlarged_plans(name: str) -> Iterator[Row]:
    """Their plans for a machine, as digests."""
    device = MACHINES[name]
    cuda = backend(device)
    for op, specs in larger_problems():
        try:
            op.infer(*specs)
        except (TypeError, ValueError):
            continue  # a field of the op contains a size
        if sum(s.numel for s in specs) < 1 << 33:
            plan = cuda.plan(op, specs, Policy(check_indices=True))
            yield op.name, f"{op} {' '.join(map(str, specs))}", plan_text(plan, device.machine)


def huge() -> Iterator[Row]:
    """Samples with one operand of just more than 2³¹ elements, along its first or its second axis."""
    cuda = backend(H200)
    for op, specs in beyond_32_bits():
        yield (
            op.name,
            f"{op} {' '.join(map(str, specs))}",
            plan_text(cuda.plan(op, specs, Policy()), H200.machine),
        )


def beyond_32_bits() -> Iterator[tuple[Op, list[Spec]]]:
    """A few problems of each op whose number of elements exceeds 32-bit integers."""
    for name in OWN:
        found = (
            (op, longer)
            for op, specs in cases(name, few=True)
            if all(s.layout is None for s in specs)
            for axis in (0, 1)
            if (longer := _lengthened(op, specs, axis)) is not None
        )
        yield from itertools.islice(found, 3)


def _lengthened(op: Op, specs: Sequence[Spec], axis: int) -> list[Spec] | None:
    """The specs with one axis of the largest operand, and axes of the same size, extended as needed; None if the op
    refuses."""
    largest = max(specs, key=lambda s: s.numel, default=Spec((), float32))
    if largest.ndim <= axis or largest.numel == 0 or (n := largest.shape[axis]) < 2:
        return None
    more = -(-((1 << 31) + 1) // largest.numel)
    made = [
        Spec(
            tuple(size * more if (a, size) == (axis, n) else size for a, size in enumerate(s.shape)), s.dtype
        )
        for s in specs
    ]
    try:
        op.infer(*made)
    except (TypeError, ValueError):
        return None  # a field contains a size
    return made


def convolutions() -> Iterator[Row]:
    """The formulations of convolutions, in order, with the kernels around each.

    Those of networks, and of windows with each number of channels up to 80.
    """
    swept = [
        (
            Window((stride, stride), ((1, 1), (1, 1)), (1, 1), groups),
            (1, channels, 32, 32),
            (64, channels // groups, k, k),
        )
        for channels in range(1, 81)
        for k, stride, groups in ((3, 2, 1), (7, 1, 1), (3, 1, 1 if 64 % channels else channels))
    ]
    known = [(win, xs, ws) for win, xs, ws in network_convolutions()[::25] if win.rank == 2]
    for (win, xs, ws), batch in (*product(known, (1, 64)), *((one, 8) for one in swept)):
        xs = (batch, *xs[1:])
        shapes = xs, ws, (batch, ws[0], *win.output(xs[2:], ws[2:]))
        dtypes = (bfloat16, float32) if batch != 8 else (bfloat16,)
        for dtype, direction in product(dtypes, (Conv, ConvDataGrad, ConvFilterGrad)):
            o = Operands(win, *(Spec(s, dtype, channels_last(s)) for s in shapes))
            for found in conv_problem(direction, o, H200).formulations:
                text = formulation_text(found, H200.machine)
                yield f"{direction.name} {found.name}", f"{win} {o.x} {o.w}", text


def libraries() -> Iterator[Row]:
    """The alternatives of samples computed by cuDNN: formulations in their order, with their graphs."""
    found: list[str] = []

    def first(problem: Problem, *rest: Any) -> Candidate:
        texts = "; ".join(formulation_text(f, H200.machine) for f in problem.formulations)
        found.append(f"{problem.key} {problem.family} {problem.flops:.6g} {problem.aliases}: {texts}")
        if not problem.formulations:
            raise NoKernel("nothing to choose among")
        return Candidate(problem.formulations[0], None, (), problem.formulations[0].scratch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(formulations, "_first_choice", first)
        forget()
        for name in GRAPHED:
            for op, specs in cases(name):
                found.clear()
                try:
                    text = plan_text(backend(H200).plan(op, specs, Policy()), H200.machine)
                except (NoKernel, CudnnError) as error:
                    text = str(error)
                yield name, f"{op} {' '.join(map(str, specs))}", f"{text} of {' and '.join(found)}"
    forget()


def kernels() -> Iterator[Row]:
    """Lamina's kernels on their own, in their largest shapes."""
    for kind, made in KERNELS.items():
        for case in made():
            yield kind, case.name, f"{case.workspace} bytes: {steps_text(case.steps, H200.machine)}"


def networks(machine: Machine) -> Iterator[Row]:
    """The layout of recurrent networks with persistent weights, and their estimated time."""
    for mode, hidden, batch, layers in product(
        ("lstm", "gru"), (64, 128, 200, 256, 512, 1024), (1, 8, 40, 128), (1, 3)
    ):
        sizes = Sizes(50, batch, hidden)
        for op in (Rnn(mode, hidden, layers, reserve=True), RnnGrad(mode, hidden, layers, reserve=True)):
            found = persistent.tiling(op, sizes, [bfloat16], machine)
            yield op.name, f"{op} {tuple(sizes)}", "none" if found is None else properties(found)


def properties(value: Any) -> str:
    """The public fields and properties of a tiling as text."""
    names = [f.name for f in fields(value) if f.name != "machine"]
    names += [n for n, v in vars(type(value)).items() if isinstance(v, property) and n[0] != "_"]
    return " ".join(f"{n}={getattr(value, n)}" for n in names)


def launched_once(machine: Machine) -> Iterator[Row]:
    """Norms in one launch, if there is room for them."""
    for shape in ((64, 256, 14, 14), (3, 2048, 7, 7), (8, 64, 56, 56), (256, 64, 112, 112), (2, 40, 9, 9)):
        for dtype, residual in product((bfloat16, float32), (False, True)):
            x = Spec(shape, dtype, channels_last(shape))
            norm, grad = BatchNorm(1e-5, 0.1, True, residual), BatchNormGrad(True, residual)
            made = batch_persistent.forward(norm, x, activation(norm), (), 0, machine)
            yield norm.name, f"{norm} {x}", formulation_text(made, machine)
            made = batch_persistent.backward(grad, x, activation(grad), (), 0, machine)
            yield grad.name, f"{grad} {x}", formulation_text(made, machine)


def products(machine: Machine) -> Iterator[Row]:
    """Products with a norm's sums."""
    swept = product((12544,), (64, 128, 256, 512), range(16, 1025, 16))  # up to the limit of shared memory
    for sizes in (*product((49, 900, 12544, 802816), (64, 256, 1024), (32, 64, 512)), *swept):
        yield "product", str(sizes), properties(ProductTiling(*sizes, machine))


def tilings() -> Iterator[Row]:
    """Choices that depend on a machine's sizes, for each machine."""
    for name, device in MACHINES.items():
        for part in (networks, launched_once, products):
            yield from ((f"{name} {kind}", what, text) for kind, what, text in part(device.machine))


PARTS: dict[str, Callable[[], Iterator[Row]]] = {
    "samples": samples,
    **{f"enlarged {name}": partial(enlarged_plans, name) for name in MACHINES},
    "huge": huge,
    "convolutions": convolutions,
    "libraries": libraries,
    "kernels": kernels,
    "tilings": tilings,
}


def table(part: str) -> dict[str, str]:
    """A part's rows: the totals of each kind, and a digest."""
    found: dict[str, list[str]] = {}
    for kind, what, text in PARTS[part]():
        found.setdefault(kind, []).append(f"{what}: {text}")
    return {kind: row(plans) for kind, plans in sorted(found.items())}


def row(plans: list[str]) -> str:
    """A summary of plans."""
    plans = sorted(set(plans))
    workspace = sum(int(n) for text in plans for n in re.findall(r"(\d+) bytes", text))
    blocks = sum(
        prod(map(int, n.split("x"))) for text in plans for n in re.findall(r" ([\dx]+) \d+ \d+ \w{8}", text)
    )
    return f"{len(plans)} plans, {workspace} bytes, {blocks} blocks, {digest(plans)}"


def main(argv: list[str]) -> int:
    """The command line."""
    if argv == ["write"]:
        TABLE.write_text(json.dumps({part: table(part) for part in PARTS}, indent=0) + "\n", encoding="utf-8")
        return 0
    if argv[:1] != ["show"]:
        print(__doc__)
        return 2
    for part in argv[1:] or PARTS:
        for kind, what, text in PARTS[part]():
            print(f"{part}: {kind}: {what}: {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
