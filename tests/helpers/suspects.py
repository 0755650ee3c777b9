"""Why captured programs beside each other give wrong numbers: experiments on a GPU that each rule something out.

    python -m tests.helpers.suspects [--network resnet18] [--precision bf16] [--contexts 8] [--seconds 70]

Every context is given two inputs in turn, which lie on the device; one host thread queues the replays of all
contexts, and behind each of them a kernel that compares with what the context got alone. Nothing is copied to or from
the host meanwhile. A line of JSON for each experiment, as it ends:

    alone               one context at a time: are results the same at all?
    beside              as planned. Wrong here: it is the GPU's work, not the host's copies, threads or locks
    with host copies    calls as `tests.helpers.beside` makes them: threads, and copies from and to the host
    graphs              what the recorded graphs address: memory of another context, memory that no context owns and
                        several graphs name (a library's), copies and fills within graphs, edges that let a kernel
                        begin before the one before it has ended
    apart               arenas a mebibyte away from anything: right here and wrong before means that something is read
                        or written beyond an arena; `overwritten` counts the bytes around them that were
    spread              every value in memory of its own, the kernels as before; `first` names the steps whose results
                        were the first to differ, `overwritten` counts bytes between values
    each                every distinct step alone in all contexts: `beside itself`, and half of the contexts with the
                        whole program (`beside the program`); a step that is wrong here is wrong by itself
    full edges          no kernel begins before the one before it has ended
    one stream          no step beside the others of its program
    not recorded        the kernels queued one by one
    a thread's handles  contexts share the libraries' handles
    threads             as "beside", each context queued by a thread of its own
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from typing import Any
from unittest import mock

import numpy as np

import lamina as lm
from lamina import nn
from lamina.graph import Executable
from lamina.graph.planning.layout import PlannedStep, Slot
from lamina.graph.planning.memory import aligned
from lamina.graph.run.context import ExecutionContext
from lamina.runtime import Buffer, Device, Kernel, LibraryState, Stream, compile_kernel, copy, memset, to_host
from lamina.runtime._cuda import open_cuda
from tests.helpers import beside
from tests.helpers.many_threads import images, in_threads

Array = np.ndarray[Any, Any]
#: Bytes around arenas and behind values, and what they hold.
MARGIN, GAP, PATTERN = 1 << 20, 4096, 0xA5
NONE = (1 << 64) - 1

DIFFER = """
typedef unsigned long long u64;

extern "C" __global__ void differ(const u64 *a, const u64 *b, long long count, u64 *first)
{
    const long long step = (long long)gridDim.x * blockDim.x;
    u64 least = ~0ull;
    for (long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x; i < count; i += step)
        if (a[i] != b[i] && i < least) least = i;
    if (least != ~0ull) atomicMin(first, least);
}
"""


# --------------------------------------------------------------------------------------------- how arenas lie


@dataclass
class Arenas:
    """Arenas with PATTERN around what is planned. spread: no two values share bytes.

    guards: of each context, the bytes that nobody may write. memory, offsets: of each context its arena, and where
    its values begin in it.
    """

    spread: bool = False
    memory: dict[ExecutionContext, Buffer] = field(default_factory=dict)
    offsets: dict[ExecutionContext, dict[Slot, int]] = field(default_factory=dict)
    guards: dict[ExecutionContext, list[Buffer]] = field(default_factory=dict)

    def places(self, slots: Sequence[Slot], planned: Sequence[int], nbytes: int) -> tuple[list[int], int]:
        """Offsets behind the first margin, and the bytes between the margins."""
        if not self.spread:
            return [MARGIN + offset for offset in planned], nbytes
        found, at = [0] * len(slots), MARGIN
        for i in sorted(range(len(slots)), key=lambda i: (slots[i].first, i)):
            found[i] = at
            at += aligned(slots[i].spec.nbytes) + GAP
        return found, at - MARGIN

    def allocate(self, context: ExecutionContext) -> None:
        """In place of `ExecutionContext._allocate`."""
        program, device = context.program, context.device
        slots = program.temporaries
        offsets, nbytes = self.places(slots, program.placement.offsets, program.placement.nbytes)
        arena = device.allocate(nbytes + 2 * MARGIN)
        memset(arena, PATTERN)
        guards = [arena.view(0, MARGIN), arena.view(MARGIN + nbytes, MARGIN)]
        for slot, offset in zip(slots, offsets, strict=True):
            context._own[slot] = arena.view(offset, slot.spec.nbytes)
            if self.spread:
                guards.append(arena.view(offset + slot.spec.nbytes, GAP))
        for slot in program.inputs:
            if slot.kind == "input":
                context._own[slot] = device.allocate(slot.spec.nbytes, stream=context._stream)
        self.memory[context], self.guards[context] = arena, guards
        self.offsets[context] = dict(zip(slots, offsets, strict=True))

    def overwritten(self) -> int:
        """Bytes of guards that hold something else."""
        return sum(int((to_host(g) != PATTERN).sum()) for guards in self.guards.values() for g in guards)


@contextmanager
def arenas(lie: Arenas | None) -> Iterator[None]:
    """Contexts that are made within the block have such arenas; None: as planned."""
    with ExitStack() as patches:
        if lie is not None:
            patches.enter_context(
                mock.patch.object(ExecutionContext, "_allocate", lambda context: lie.allocate(context))
            )
        yield


# ------------------------------------------------------------------------------------- replays, and comparing them


@dataclass(frozen=True)
class Check:
    """Bytes that a replay leaves, and what they were when it was alone, for each input.

    title: what lies there, by the number of an eight-byte word.
    """

    found: Buffer
    wanted: tuple[Buffer, ...]
    title: Callable[[int], str]

    def prepare(self, turn: int, first: int, stream: Stream) -> Callable[[], None]:
        """What queues the comparison in a round: the first word that differs goes to the address, where NONE lies."""
        device, words = self.found.device, self.found.nbytes // 8
        wanted = self.wanted[turn % len(self.wanted)]
        if device.kind == "cpu":
            return lambda: self._here(wanted, first)
        blocks = max(1, min(528, words // 1024))
        given = (self.found, wanted, np.int64(words), np.int64(first))
        return differ(device).prepare(blocks, 256, *given, stream=stream)

    def _here(self, wanted: Buffer, first: int) -> None:
        words = self.found.nbytes // 8
        a, b = (x.array((words,), np.uint64) for x in (self.found, wanted))
        if len(at := np.flatnonzero(a != b)):
            ctypes.c_uint64.from_address(first).value = int(at[0])


@cache
def differ(device: Device) -> Kernel:
    """Compares memory."""
    return compile_kernel(DIFFER, "differ", device=device)


@dataclass(frozen=True)
class Lane:
    """A context's work on its stream: run, with the number of the round, then checks.

    No checks: it only keeps the device busy.
    """

    stream: Stream
    run: Callable[[int], None]
    checks: tuple[Check, ...]


def replays(
    lanes: Sequence[Lane], seconds: float, rounds: int = 100, most: int = 20, threads: bool = False
) -> dict[str, Any]:
    """Rounds of one run in every lane, queued one after the other, until the time is over or enough was wrong."""
    device = lanes[0].stream.device
    checks = [(lane, check) for lane in lanes for check in lane.checks]
    log = device.allocate(8 * rounds * len(checks))
    prepared: dict[int, list[list[Callable[[], None]]]] = {
        id(lane): [[] for _ in range(rounds)] for lane in lanes
    }
    for k, (lane, check) in enumerate(checks):
        for r in range(rounds):
            address = log.pointer + 8 * (r * len(checks) + k)
            prepared[id(lane)][r].append(check.prepare(r, address, lane.stream))

    def turn(lane: Lane, r: int) -> None:
        lane.run(r)
        for check in prepared[id(lane)][r]:
            check()

    runs, wrong, first = 0, 0, Counter[str]()
    end = time.monotonic() + seconds
    while True:
        memset(log, 0xFF)
        if threads:
            in_threads(lambda k: [turn(lanes[k], r) for r in range(rounds)], len(lanes))
        else:
            for r in range(rounds):
                for lane in lanes:
                    turn(lane, r)
        device.synchronize()
        found = to_host(log).view(np.uint64).reshape(rounds, len(checks))
        runs += rounds * sum(bool(lane.checks) for lane in lanes)
        for r, k in np.argwhere(found != NONE):
            wrong += 1
            first[checks[k][1].title(int(found[r, k]))] += 1
        if time.monotonic() > end or wrong >= most:
            return {"replays": runs, "wrong": wrong, "first": dict(first.most_common(8))}


class Trial:
    """A program in several contexts, each with an input of its own, recorded one after the other."""

    def __init__(self, given: Any, lie: Arenas | None = None, own_handles: bool = True) -> None:
        make, size = beside.NETWORKS[given.network]
        nn.manual_seed(0)
        self.inputs, self.lie = images(given.contexts, size), lie
        with arenas(lie), beside.setting(own_handles):
            self.run: Executable = beside.program(
                make(), given.precision, given.device, self.inputs[0], given.contexts, False
            )
            pool = self.run._contexts
            self.contexts: list[Any] = [pool.take() for _ in range(given.contexts)]
            (self.free,) = (slot for slot in self.run.program.inputs if slot.kind == "input")
            self.results = self.run.program.outputs
            self.given: list[list[Buffer]] = []
            self.wanted: list[tuple[Buffer, ...]] = []
            for k, context in enumerate(self.contexts):
                self._prepare(context, [self.inputs[k], self.inputs[k - 1]])

    def _prepare(self, context: Any, inputs: Sequence[Array]) -> None:
        """Record the context's graph, and keep what it is given and gives."""
        given, wanted = [], []
        for x in inputs:
            for _ in range(3):  # one by one, recorded, replayed
                context([(self.free, x)])
            context.synchronize()
            given.append(_kept(context._own[self.free]))
            wanted.append(_kept(self._compared(context)))
        self.given.append(given)
        self.wanted.append(tuple(wanted))

    def _compared(self, context: Any) -> Buffer:
        """What is compared: every value where none shares bytes, else the result."""
        if self.lie is None or not self.lie.spread:
            found: Buffer = context._memory(self.results[-1])
            return found
        arena = self.lie.memory[context]
        return arena.view(MARGIN, arena.nbytes - 2 * MARGIN)

    @cached_property
    def steps(self) -> list[PlannedStep]:
        """Those that run something."""
        return [step for step in self.run.program.steps if not step.plan.view]

    def title(self, context: Any, word: int) -> str:
        """The step that wrote the value at a word of what is compared."""
        if self.lie is None or not self.lie.spread:
            return "result"
        offsets, at = self.lie.offsets[context], MARGIN + 8 * word
        slot = max((s for s in offsets if offsets[s] <= at), key=lambda s: offsets[s])
        for i, step in enumerate(self.steps):
            if step.workspace is slot:
                return f"workspace of {i} {step.plan.label}"
            if any(s.base is slot for s in step.outputs):
                return f"{i} {step.plan.label}" + (
                    " (guard)" if at >= offsets[slot] + slot.spec.nbytes else ""
                )
        return f"offset {at}"

    def lanes(self, start: Callable[[Any], Callable[[], None]] | None = None) -> list[Lane]:
        """The whole program in every context; start: what queues it, by default its graph."""
        return [self.lane(k, start) for k in range(len(self.contexts))]

    def lane(self, k: int, start: Callable[[Any], Callable[[], None]] | None = None) -> Lane:
        """The whole program in one context, on its inputs in turn."""
        context, given = self.contexts[k], self.given[k]
        queue = start(context) if start else context._replay or context._launch
        place, stream = context._own[self.free], context._stream

        def run(turn: int) -> None:
            source = given[turn % len(given)]
            context._platform.copy(place.pointer, source.pointer, place.nbytes, stream)
            queue()

        return Lane(
            stream, run, (Check(self._compared(context), self.wanted[k], partial(self.title, context)),)
        )


def _kept(memory: Buffer) -> Buffer:
    kept = memory.device.allocate(memory.nbytes)
    copy(kept, memory)
    return kept


def _handles(context: Any) -> AbstractContextManager[None]:
    """Work with the context's handles, where it has its own."""
    state: LibraryState | None = getattr(context, "_libraries", None)
    return state.used() if state else nullcontext()


def one_by_one(context: Any) -> Callable[[], None]:
    """What queues a context's kernels without a graph."""
    with _handles(context):
        runs = context._bound_runs(context._stream)

    def run() -> None:
        for one in runs:
            one()

    return run


def fully_ordered(context: Any) -> Callable[[], None]:
    """What queues its graph with every edge a full dependency."""
    driver, graph = _driver(), context._captured._graph
    edges = _edges(graph)
    early = [(a, b, data) for a, b, data in edges if data is not None and int(data.type)]
    for a, b, data in early:
        _told(driver.cuGraphRemoveDependencies(graph, [a], [b], [data], 1))
        _told(driver.cuGraphAddDependencies(graph, [a], [b], [driver.CUgraphEdgeData()], 1))
    context._captured._instantiate(graph)
    queue: Callable[[], None] = context._captured.bind()
    return queue


def _told(answer: tuple[Any, ...]) -> None:
    if int(answer[0]):
        raise RuntimeError(f"the driver says {answer[0]}")


# --------------------------------------------------------------------------------------------- each step by itself


@dataclass
class Single:
    """A step in every context, on what it was given; what a step writes in place is put back before each run."""

    trial: Trial
    index: int
    lanes: list[Lane]


def singles(trial: Trial) -> list[Single]:
    """Each distinct step (its plan, which fixes op, sizes and layouts), once."""
    written = {
        s.base for step in trial.steps for s in step.outputs if s.base in {i.base for i in step.inputs}
    }
    found, seen = [], set[int]()
    lanes: dict[int, list[Lane]] = defaultdict(list)
    for context in trial.contexts:
        context._launch()  # one whole run: everything there is as the first step leaves it
        context.synchronize()
    for index, step in enumerate(trial.steps):
        if id(step.plan) in seen:
            _rerun(trial, step)
            continue
        seen.add(id(step.plan))
        for context in trial.contexts:
            lanes[index].append(_single(context, step, written))
        found.append(Single(trial, index, lanes[index]))
    return found


def _rerun(trial: Trial, step: PlannedStep) -> None:
    """The step in every context, so that values written in place are what the next one reads."""
    for context in trial.contexts:
        with _handles(context):
            context.bound(step)()
        context.synchronize()


def _single(context: Any, step: PlannedStep, written: set[Slot]) -> Lane:
    restored = [
        (context._memory(base), _kept(context._memory(base)))
        for base in {s.base for s in step.inputs} & written
    ]
    with _handles(context):
        context.bound(step)()  # rehearsed
    context.synchronize()
    checks = []
    for slot in step.outputs:
        memory = context._memory(slot)
        checks.append(Check(memory, (_kept(memory),), lambda word: f"word {word}"))
    queue = _recorded(context, step, restored)
    return Lane(context._stream, lambda turn: queue(), tuple(checks))


def _recorded(
    context: Any, step: PlannedStep, restored: Sequence[tuple[Buffer, Buffer]]
) -> Callable[[], None]:
    """What queues one step behind the copies of what it reads, as a graph where the device has graphs.

    What it writes is filled before, so that what is not written shows.
    """
    device, bases = context.device, {s.base for s in step.inputs}
    filled = [context._memory(s) for s in step.outputs if s.base not in bases]

    def queue(stream: Stream, run: Callable[[], None]) -> None:
        for memory in filled:
            memset(memory, PATTERN, stream)
        for to, kept in restored:
            device.platform.copy(to.pointer, kept.pointer, to.nbytes, stream)
        run()

    if not context._stream.queues:
        run = context.bound(step)
        return lambda: queue(context._stream, run)
    with device.stream() as main, _handles(context):
        run = context.bound(step, main)
        with main.capture(home=context._stream) as graph:
            queue(main, run)
    graph.keep(run)
    return graph.bind()


def each(trial: Trial, seconds: float) -> dict[str, Any]:
    """Every distinct step beside itself in all contexts, and in half of them beside the whole program."""
    tried, wrong = singles(trial), dict[str, Any]()
    share = seconds / max(1, 2 * len(tried))
    count = 0
    for single in tried:
        half = len(single.lanes) // 2
        program = [replace(trial.lane(k), checks=()) for k in range(half, len(trial.contexts))]
        ways = {"beside itself": single.lanes, "beside the program": [*single.lanes[:half], *program]}
        for way, lanes in ways.items():
            found = replays(lanes, share)
            count += found["replays"]
            if found["wrong"]:
                label = f"{single.index} {trial.steps[single.index].plan.label}, {way}"
                wrong[label] = f"{found['wrong']} of {found['replays']}"
    return {"steps": len(tried), "replays": count, "wrong": wrong}


# -------------------------------------------------------------------------------------- what recorded graphs address


@dataclass(frozen=True)
class Range:
    """Memory with a name; owner: the context that has it, None where all read it."""

    start: int
    nbytes: int
    owner: int | None


def addressed(
    words: dict[int, list[tuple[str, int]]], ranges: Sequence[Range], is_device: Callable[[int], bool]
) -> dict[str, Any]:
    """What words of the graphs of contexts point to.

    words: of each context, pairs of the node's title and an eight-byte word among its arguments.
    Returns titles of nodes with memory of other contexts, and of those with memory that no context has and that
    graphs of several name, each with a count.
    """
    foreign, unowned = Counter[str](), dict[int, set[tuple[int, str]]]()
    for context, pairs in words.items():
        for title, word in pairs:
            inside = next((r for r in ranges if r.start <= word < r.start + r.nbytes), None)
            if inside is None:
                if is_device(word):
                    unowned.setdefault(word, set()).add((context, title))
            elif inside.owner not in (None, context):
                foreign[title] += 1
    common = Counter[str]()
    single = 0
    for users in unowned.values():
        if len({context for context, _ in users}) > 1:
            common.update({title for _, title in users})
        else:
            single += 1
    return {
        "of other contexts": dict(foreign),
        "of no context, in several graphs": dict(common.most_common(12)),
        "of no context, in one graph": single,
    }


def graphs(trial: Trial) -> dict[str, Any]:
    """The nodes of the recorded graphs, their edges, and what they address."""
    kinds, words, edges = Counter[str](), dict[int, list[tuple[str, int]]](), Counter[str]()
    kernels = Counter[str]()
    for k, context in enumerate(trial.contexts):
        graph = context._captured._graph
        titles: dict[int, str] = {}
        words[k] = []
        for node in _nodes(graph):
            kind, titles[int(node)], found = _node(node)
            words[k] += [(titles[int(node)], word) for word in found]
            if k == 0:
                kinds[kind] += 1
                kernels[titles[int(node)]] += kind == "KERNEL"
        if k == 0:
            for _, to, data in _edges(graph):
                early = data is not None and int(data.type)
                edges[f"type {int(data.type)} into {titles[int(to)]}" if early else "full"] += 1
    found_at = addressed(words, _ranges(trial), _is_device)
    return {"nodes": dict(kinds), "edges": dict(edges), **found_at, "kernels": dict(kernels)}


def _ranges(trial: Trial) -> list[Range]:
    found = [Range(b.pointer, b.nbytes, None) for b in trial.run._shared.values() if b.nbytes]
    for k, context in enumerate(trial.contexts):
        found += [Range(b.pointer, b.nbytes, k) for b in context._own.values() if b.nbytes]
    return found


def _driver() -> Any:
    return open_cuda().driver


def _nodes(graph: Any) -> list[Any]:
    driver = _driver()
    _, _, count = driver.cuGraphGetNodes(graph, 0)
    return list(driver.cuGraphGetNodes(graph, count)[1])[:count]


def _edges(graph: Any) -> list[tuple[Any, Any, Any]]:
    """From which node, to which, and the edge's data (None where the bindings do not tell)."""
    driver = _driver()
    ask = getattr(driver, "cuGraphGetEdges_v2", driver.cuGraphGetEdges)
    count = int(ask(graph)[-1])
    answer = ask(graph, count)
    _told(answer)
    data = list(answer[3])[:count] if len(answer) > 4 else [None] * count
    return list(zip(list(answer[1])[:count], list(answer[2])[:count], data, strict=True))


def _node(node: Any) -> tuple[str, str, list[int]]:
    """Kind, title, and the eight-byte words of a kernel's arguments or the addresses of a copy."""
    driver = _driver()
    kind = driver.CUgraphNodeType(int(driver.cuGraphNodeGetType(node)[1])).name.rsplit("_", 1)[-1]
    if kind == "KERNEL":
        params = driver.cuGraphKernelNodeGetParams(node)[1]
        name, blocks = _kernel_name(params)
        return kind, name, blocks
    if kind == "MEMCPY":
        p = driver.cuGraphMemcpyNodeGetParams(node)[1]
        return kind, "copy", [int(p.dstDevice), int(p.srcDevice)]
    if kind == "MEMSET":
        return kind, "fill", [int(driver.cuGraphMemsetNodeGetParams(node)[1].dst)]
    return kind, kind, []


def _kernel_name(params: Any) -> tuple[str, list[int]]:
    driver = _driver()
    function, kernel = int(params.func), int(params.kern)
    size_of, name_of, handle = driver.cuFuncGetParamInfo, driver.cuFuncGetName, driver.CUfunction(function)
    if not function:
        size_of, name_of, handle = (
            driver.cuKernelGetParamInfo,
            driver.cuKernelGetName,
            driver.CUkernel(kernel),
        )
    _, text = name_of(handle)
    words: list[int] = []
    table = ctypes.cast(int(params.kernelParams), ctypes.POINTER(ctypes.c_void_p))
    for i in range(256):
        status, _, size = size_of(handle, i)
        if int(status):
            break
        raw = ctypes.string_at(table[i], int(size))
        words += [int(w) for w in np.frombuffer(raw[: len(raw) // 8 * 8], np.uint64)]
    return (text or b"?").decode()[:90], words


def _is_device(word: int) -> bool:
    """Whether a word is an address of device memory."""
    if not 1 << 32 < word < 1 << 57:
        return False
    driver = _driver()
    kind = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
    status, found = driver.cuPointerGetAttribute(kind, word)
    return int(status) == 0 and int(found) == int(driver.CUmemorytype.CU_MEMORYTYPE_DEVICE)


# --------------------------------------------------------------------------------------------------- the experiments


def experiments(given: Any) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
    """Names and what makes them, in the order in which they decide most; each makes its programs anew."""
    share = given.seconds / 20

    def planned(seconds: float = share, **how: Any) -> dict[str, Any]:
        return replays(Trial(given, **how).lanes(), seconds)

    def guarded(spread: bool) -> dict[str, Any]:
        lie = Arenas(spread)
        found = replays(Trial(given, lie).lanes(), share)
        return {**found, "overwritten": lie.overwritten()}

    def alone() -> dict[str, Any]:
        found = [replays([lane], 0, 30) for lane in Trial(given).lanes()]
        return {key: sum(one[key] for one in found) for key in ("replays", "wrong")}

    def full_edges() -> dict[str, Any]:
        return replays(Trial(given).lanes(fully_ordered), share)

    def one_stream() -> dict[str, Any]:
        zeros = mock.patch.object(ExecutionContext, "_assign_streams", lambda self, steps: [0] * len(steps))
        with zeros:
            return planned()

    def with_copies() -> dict[str, Any]:
        (make, size), right = beside.NETWORKS[given.network], set[bytes]()
        nn.manual_seed(0)
        inputs = images(given.contexts, size)
        with beside.setting(True), beside.last_alone(right):
            run = beside.program(make(), given.precision, given.device, inputs[0], given.contexts, False)
            return beside.tried(run, inputs, given.contexts, given.calls, right)

    yield "alone", alone
    yield "beside", lambda: planned(2 * share)
    yield "with host copies", with_copies
    yield "graphs", lambda: graphs(Trial(given))
    yield "apart", lambda: guarded(False)
    yield "spread", lambda: guarded(True)
    yield "each", lambda: each(Trial(given, Arenas(True)), 3 * share)
    yield "full edges", full_edges
    yield "one stream", one_stream
    yield "not recorded", lambda: replays(Trial(given).lanes(one_by_one), share)
    yield "a thread's handles", lambda: planned(own_handles=False)
    yield "threads", lambda: replays(Trial(given).lanes(), share, threads=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    about = (__doc__ or "").partition("\n\n")
    parser = argparse.ArgumentParser(
        prog="python -m tests.helpers.suspects",
        description=about[0],
        epilog=about[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--network", choices=sorted(beside.NETWORKS), default="resnet18")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--contexts", type=int, default=8)
    parser.add_argument("--calls", type=int, default=200, help="of each thread, with host copies")
    parser.add_argument("--seconds", type=float, default=70.0)
    parser.add_argument("--only", help="one experiment")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    given.device = str(lm.device(given.device))
    end, late = time.monotonic() + given.seconds, False
    for name, make in experiments(given):
        if given.only not in (None, name):
            continue
        if time.monotonic() > end:
            print(json.dumps({"experiment": name, "left out": "the time is over"}), flush=True)
            continue
        start = time.monotonic()
        try:
            found = make()
        except Exception as error:  # the other experiments still tell something
            late, found = True, {"error": f"{type(error).__name__}: {error}"[:600]}
        found["seconds"] = round(time.monotonic() - start, 1)
        print(json.dumps({"experiment": name, **found}), flush=True)
    return int(late)


if __name__ == "__main__":
    sys.exit(main())
