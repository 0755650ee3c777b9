"""Plans of each op on a CPU: samples, and larger problems of the same kinds, in float32.

    python -m tests.helpers.cpu_plans write         after a choice was changed on purpose: the difference is reviewed
    python -m tests.helpers.cpu_plans show OP       each plan of an op in full, to compare two checkouts

A row of the table is an op with how many of its plans are oneDNN's, loops, views and NumPy's, and a digest of each
plan: its implementation, its in-place outputs, and the layouts of operands and results. Values do not show
when a kernel no longer supports a problem: NumPy replaces it, and is slower.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from lamina.backends import NoKernel, Plan, get
from lamina.ops.core import REGISTRY, Op
from lamina.ops.primitives.collective import Collective
from lamina.runtime import Device
from lamina.spec import Policy, Spec, channels_last, float32
from tests.helpers.own_programs import LARGER, enlarged
from tests.helpers.processor import HAS_AVX512_VNNI
from tests.helpers.registered import registered

TABLE = Path(__file__).with_name("cpu_plans.json")
#: Ops planned on a CPU; collectives are planned by ranks.
OPS = [name for name in registered() if not issubclass(REGISTRY[name], Collective)]
#: Maximum number of elements of all operands together.
_MOST = 1 << 24


def problems(name: str) -> Iterator[tuple[Op, list[Spec]]]:
    """An op's samples in float32, or its first dtype if it does not support that, row-major, channels-last and with
    open layouts; and larger ones."""
    kind = REGISTRY[name]
    for sample in kind.samples():
        dtypes = sample.dtypes or kind.dtypes
        specs = [Spec(a.shape, a.dtype or (float32 if float32 in dtypes else dtypes[0])) for a in sample.args]
        yield sample.op, specs
        yield sample.op, [s.fixed for s in specs]
        yield sample.op, [Spec(s.shape, s.dtype, channels_last(s.shape)) for s in specs]
        for larger in (enlarged(specs, way) for way in LARGER):
            try:
                sample.op.infer(*larger)
            except (TypeError, ValueError):
                continue  # a field of the op contains a size
            if sum(s.numel for s in larger) < _MOST:
                yield sample.op, larger


def plan_text(plan: Plan) -> str:
    """The implementation of a plan, its in-place outputs, and the layouts of operands and results: oneDNN's are those
    that the processor prefers."""
    who = plan.label.split()[0]
    lies = [] if who == "onednn" else [str(s.layout) for s in (*plan.inputs, *plan.outputs)]
    return f"{who} {dict(plan.aliases)} {' '.join(lies)}"


def plans(name: str) -> Iterator[tuple[str, str]]:
    """Each problem of an op, and its plan."""
    cpu = get(Device("cpu"))
    for op, specs in problems(name):
        try:
            text = plan_text(cpu.plan(op, specs, Policy()))
        except NoKernel:
            text = "none"
        yield f"{op} {' '.join(map(str, specs))}", text


def row(name: str) -> str:
    """An op's row."""
    found = [text for _, text in plans(name)]
    kinds = Counter(text.split()[0] for text in found)
    digest = hashlib.sha256("\n".join(found).encode()).hexdigest()[:8]
    return f"{' '.join(f'{kind} {kinds[kind]}' for kind in sorted(kinds))} {digest}"


def main(arguments: list[str]) -> None:
    """The command line of the docstring."""
    if arguments == ["write"]:
        if not HAS_AVX512_VNNI:
            sys.exit("the table is of processors with AVX-512 VNNI, which this one is not")
        TABLE.write_text(json.dumps({name: row(name) for name in OPS}, indent=1) + "\n", encoding="utf-8")
    else:
        for problem, text in plans(arguments[1]):
            print(problem, "->", text)


if __name__ == "__main__":
    main(sys.argv[1:])
