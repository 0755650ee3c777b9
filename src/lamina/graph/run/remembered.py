"""A disk cache of programs that took long to plan: a process that asks for the same program reads it from there.

A cached program is the answer to a question: the traced graph, the donated and resident inputs, the backend's
machine, and all that the choice of plans depended on. The key is a digest of these, so that an answer is found for
exactly the same question. The answer is the improved graph and its plans, as plain data: addresses, loaded kernels
and library objects are recreated on reading. What cannot be serialized (a user's function, a communicator) is not
cached. The cache's files are as trusted as the machine code beside them (`runtime.distrust`).
"""

from __future__ import annotations

import io
import json
import os
import pickle
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, is_dataclass, replace
from enum import Enum
from functools import cache, lru_cache, partial
from pathlib import Path
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

from lamina._version import __version__
from lamina.backends import Backend, OpenChoice, Plan, TuningSlices
from lamina.graph.ir.graph import Graph, Node, Value
from lamina.graph.ir.serialize import encode_op
from lamina.graph.passes.pattern import Report
from lamina.graph.planning.layout import with_plans
from lamina.graph.planning.program import PlannedGraph
from lamina.ops.core import Op
from lamina.runtime import DiskCache, cache_directory, digest
from lamina.spec import Policy, Spec
from lamina.tensors import plan_of

#: Bytes of cached programs on disk, about a million each.
_DISK_LIMIT = 256 << 20
#: The most bytes of constants, and of prologue results, of a cached program.
_MOST_BYTES = 1 << 24
#: The least seconds of planning of a cached program.
LONG = 0.3


class Answer(NamedTuple):
    """The result of planning. passes: their reports. kept: the number of nodes before recomputation added copies."""

    graph: Graph
    program: PlannedGraph
    passes: list[Report]
    kept: int


def question(graph: Graph, backend: Backend, **more: Any) -> str | None:
    """A digest of all that the answer depends on; None where that cannot be expressed, or nothing is cached.

    more: further parts of the question, as plain values.
    """
    facts = backend.remembered_by()
    if facts is None or any(_depends_on_process(node) for node in graph.nodes):
        return None
    constants = [v.constant for v in graph.constants if v.constant is not None]
    if sum(x.nbytes for x in constants) > _MOST_BYTES:
        return None
    try:
        text = [*_lines(graph), json.dumps({**facts, **more}, sort_keys=True)]
    except TypeError:  # an op with a field that has no textual form
        return None
    return digest(__version__, _sources(), "\n".join(text), *(x.numpy().tobytes() for x in constants))


def _depends_on_process(node: Node) -> bool:
    """Whether its plan holds a communicator, or depends on earlier requests."""
    return node.op.effect == "collective" or node.policy.once


def _lines(graph: Graph) -> Iterator[str]:
    """A graph as text: a line per input, constant and node; values are numbered. Raises TypeError."""
    index = {v: str(i) for i, v in enumerate([*graph.inputs, *graph.constants])}
    yield from (f"{v.spec} {v.name}" for v in index)
    for node in graph.nodes:
        read = " ".join([index[v] for v in node.inputs])
        yield f"{_text(node.op)} {read} {_policy_text(node.policy)} {node.origin}"
        for value in node.outputs:
            index[value] = str(len(index))
    yield " ".join([index[v] for v in graph.outputs])


@lru_cache(maxsize=4096)
def _text(op: Op) -> str:
    return f"{type(op).__module__} {op.name} {json.dumps(encode_op(op))}"


@lru_cache(maxsize=64)
def _policy_text(policy: Policy) -> str:
    return json.dumps(asdict(policy))


@cache
def _sources() -> str:
    """Modification times of the package's files: programs planned by other versions are not reused."""
    found, folders = list[str](), [str(Path(__file__).parents[2])]
    while folders:
        with os.scandir(folders.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders += [entry.path] * (entry.name != "__pycache__")
                else:
                    status = entry.stat()
                    found.append(f"{entry.path} {status.st_size} {status.st_mtime_ns}")
    return digest("\n".join(sorted(found)))


def recall(key: str, backend: Backend) -> Answer | None:
    """The cached answer to a question, None where there is none that can be read."""
    kept = _disk().get(key)
    if kept is None:
        return None
    with suppress(Exception):  # it is replanned, whatever is wrong with the file
        return _AnswerReader(kept, backend).answer()
    return None


def remember(key: str, answer: Answer, backend: Backend) -> bool:
    """Cache an answer; whether it can be serialized."""
    try:
        data = written(answer, backend)
    except Exception:  # a part cannot be serialized, or a library offers no serialization of its own
        return False
    _disk().put(key, data)
    return True


def answered(key: str | None, backend: Backend, plan: Callable[[], Answer]) -> Answer:
    """The cached answer to a question, else the result of `plan`.

    That is cached if it took long, and its prologue results are small: programs share those by their plans.
    """
    found = None if key is None else recall(key, backend)
    if found is not None:
        if backend.device.planned is None:
            for step in (*found.program.prologue, *found.program.steps):
                step.plan.compile_ahead()
        return found
    begin = time.perf_counter()
    answer = plan()
    long = time.perf_counter() - begin > LONG
    once = sum(slot.spec.nbytes for step in answer.program.prologue for slot in step.outputs)
    if key is not None and long and once <= _MOST_BYTES:
        remember(key, answer, backend)
    return answer


def _disk() -> DiskCache:
    return DiskCache(cache_directory() / "programs", _DISK_LIMIT)


# ---------------------------------------------------------------------------------------------------------- writing


def written(answer: Answer, backend: Backend) -> bytes:
    """An answer as bytes. Raises what `pickle` raises where a part cannot be serialized."""
    graph, program = answer.graph, answer.program
    values = [*graph.inputs, *graph.constants, *(v for n in graph.nodes for v in n.outputs)]
    pickler = _AnswerWriter(backend, graph.nodes, values)
    number = pickler.values
    nodes = [
        (n.op, [number[id(v)] for v in n.inputs], n.policy, n.serial, [v.spec for v in n.outputs], n.origin)
        for n in graph.nodes
    ]
    pickler.dump((
        graph.name,
        [(v.spec, v.name) for v in graph.inputs],
        [v.constant for v in graph.constants],
        nodes,
        [number[id(v)] for v in graph.outputs],
    ))  # fmt: skip
    choices = {i: s.plan.open for i, s in enumerate(program.steps) if s.plan.open is not None}
    opened = {i: (c.expected, c.known, c.name) for i, c in choices.items()}
    pickler.dump((program, answer.passes, answer.kept, opened))
    return pickler.file.getvalue()


class _AnswerWriter(pickle.Pickler):
    """Writes nodes and values of a graph as their numbers, and plans without what only planning needs."""

    def __init__(self, backend: Backend, nodes: Sequence[Node], values: Sequence[Value]) -> None:
        self.file = io.BytesIO()
        super().__init__(self.file, protocol=5)
        self.values = {id(v): i for i, v in enumerate(values)}
        self._nodes = {id(n): i for i, n in enumerate(nodes)}
        self._ways: Mapping[type, Callable[[Any], Any]] = {Plan: _plan_as_data, **backend.forms()}

    def persistent_id(self, x: Any) -> Any:
        """The numbers of nodes and values."""
        if type(x) is Node:
            return "node", self._nodes[id(x)]
        return ("value", self.values[id(x)]) if type(x) is Value else None

    def reducer_override(self, x: Any) -> Any:
        """How an object is serialized: as the backend says, or as plain data. Raises PicklingError for objects that
        may hold addresses or library objects."""
        way = self._ways.get(type(x))
        if way is not None:
            return way(x)
        if not (_is_readable(x) if isinstance(x, _NAMED) else _is_data(type(x))):
            raise pickle.PicklingError(f"{x!r:.100} has no form as data")
        return NotImplemented


#: Types that are written by name, and the packages that they may come from; ops may come from others.
_NAMED = (type, FunctionType, BuiltinFunctionType)
_ROOTS = ("lamina", "numpy", "ml_dtypes", "collections", "functools", "_operator", "copyreg")


def _is_readable(x: Any) -> bool:
    """Whether a class or function may be read by its name."""
    return str(x.__module__).partition(".")[0] in _ROOTS or (isinstance(x, type) and issubclass(x, Op))


def _is_data(kind: type) -> bool:
    """Whether a class consists of fields only, or defines its own serialization."""
    if is_dataclass(kind) or issubclass(kind, Enum | tuple):
        return True
    return any(vars(k).keys() & {"__reduce__", "__reduce_ex__"} for k in kind.__mro__[:-1])


def _plan_as_data(plan: Plan) -> Any:
    facts = (plan.inputs, plan.outputs, plan.make, plan.workspace, dict(plan.aliases), plan.view, plan.offset)
    return Plan, (*facts, plan.label, plan.seconds, plan.arithmetic, plan.varies)


# ---------------------------------------------------------------------------------------------------------- reading


class _AnswerReader(pickle.Unpickler):
    """Reads what `written` gave. Names are resolved in this package, in NumPy and among imported ops."""

    def __init__(self, data: bytes, backend: Backend) -> None:
        super().__init__(io.BytesIO(data))
        self._backend = backend
        self._nodes: list[Node] = []
        self._values: list[Value] = []

    def answer(self) -> Answer:
        """The graph, then what refers to it."""
        name, inputs, constants, nodes, outputs = self.load()
        values = self._values
        values += [Value(spec, name=label) for spec, label in inputs]
        values += [Value(x.spec, constant=x) for x in constants]
        for op, read, policy, serial, specs, origin in nodes:
            node = Node(op, [values[i] for i in read], policy, serial, specs, origin)
            self._nodes.append(node)
            values += node.outputs
        graph = Graph(values[: len(inputs)], [values[i] for i in outputs], name)
        program, passes, kept, opened = self.load()
        return Answer(graph, _reopened(program, opened, self._backend), passes, kept)

    def persistent_load(self, number: Any) -> Any:
        """A node or a value of the graph."""
        kind, index = number
        return self._nodes[index] if kind == "node" else self._values[index]

    def find_class(self, module: str, name: str) -> Any:
        """A class or function by its name. Raises UnpicklingError for others."""
        known = module.partition(".")[0] in _ROOTS or module in sys.modules
        found = super().find_class(module, name) if known else None
        if isinstance(found, _NAMED) and _is_readable(found):
            return found
        raise pickle.UnpicklingError(f"{module}.{name} is not for programs")


# open choices


#: Of an open plan: the expected gain of its contest, whether the plan is the one that measurements name, and the name
#: of its problem.
#: its problem is called.
Opened = tuple[Callable[[float, float], float], Callable[[], bool | None], str]


def _reopened(program: PlannedGraph, opened: Mapping[int, Opened], backend: Backend) -> PlannedGraph:
    """The program with its unmeasured plans open again, and with replacements for those that any process has measured
    since; a plan of several steps is one choice."""
    again: dict[Plan, Plan] = {}
    better: dict[Plan, Plan] = {}
    for index, (expected, known, name) in opened.items():
        step = program.steps[index]
        assert step.node is not None
        plan = step.plan
        if plan in again or plan in better:
            continue
        question = backend, step.node.op, plan.inputs, step.node.policy
        stands = known()
        if stands is None:
            made = partial(_planned, *question)
            choice = OpenChoice(
                partial(_candidates, made),
                partial(_contest, made),
                expected,
                known,
                name,
                partial(_adopting, made),
            )
            again[plan] = replace(plan, open=choice)
        elif not stands:
            better[plan] = plan_of(*question)
    for step in program.steps:
        step.plan = again.get(step.plan, step.plan)
    return with_plans(program, better) if better else program


def _planned(backend: Backend, op: Op, specs: tuple[Spec, ...], policy: Policy) -> OpenChoice | None:
    return plan_of(backend, op, specs, policy).open


def _candidates(planned: Callable[[], OpenChoice | None]) -> Any:
    choice = planned()
    return None if choice is None else choice.candidates()


def _contest(planned: Callable[[], OpenChoice | None], candidates: Any, room: int) -> TuningSlices:
    choice = planned()
    if choice is None or candidates is None:
        return None
    return (yield from choice.contest(candidates, room))


def _adopting(planned: Callable[[], OpenChoice | None], record: Any) -> OpenChoice | None:
    choice = planned()
    return None if choice is None else choice.adopting(record)
