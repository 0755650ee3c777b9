"""Captured programs beside each other on a GPU: which answers are wrong, and which kernel is the first to differ.

    python -m tests.helpers.beside [--network resnet18] [--precision bf16] [--threads 8] [--calls 300] [--device cuda]

Threads call one program, each call in a context of its own (`compile(contexts=)`). Every answer is compared, bit by
bit, with what one thread got: with library handles that belong to the contexts, or to the thread that records. Then
every value of the graph keeps its memory: where an answer is wrong, all of them are looked at, and a line for each
kernel tells how often its result was the first to differ.
Prints a line of JSON for each setting; ends with status 1 where answers were wrong.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import numpy as np

import lamina as lm
from lamina import nn
from lamina.graph import Executable, Graph, compile
from lamina.graph.run.host_context import HostContext
from lamina.infer import Predictor
from lamina.runtime import LibraryState
from tests.helpers.many_threads import images, in_threads, small_network

Array = np.ndarray[Any, Any]
#: Network and edge of its pictures.
NETWORKS = {
    "small": (small_network, 32),
    "resnet18": (lambda: nn.resnet18(num_classes=1000).eval(), 224),
    "resnet50": (lambda: nn.resnet50(num_classes=1000).eval(), 224),
}
#: Whether contexts have handles of their own.
SETTINGS = {"own handles": True, "a thread's handles": False}


@contextmanager
def setting(own_handles: bool) -> Iterator[None]:
    """How contexts run within the block; programs are to be made and called in it."""

    with ExitStack() as patches:
        if not own_handles:
            patches.enter_context(mock.patch.object(LibraryState, "used", return_value=nullcontext()))
        yield


def program(net: nn.Module, precision: str, device: str, x: Array, contexts: int, every: bool) -> Executable:
    """The network for inputs like x, in so many contexts; every: with each value of its graph as an output."""
    predictor = Predictor(net, device=device, precision=precision)
    made = predictor.program(lm.Spec(x.shape, lm.float32))
    graph = made.graph
    if every:
        computed = {v for step in made.program.steps if step.node for v in step.node.outputs}
        values = [v for node in graph.nodes for v in node.outputs if v in computed]
        graph = Graph(graph.inputs, values)
    held = dict(enumerate((*dict(net.named_parameters()).values(), *dict(net.named_buffers()).values())))
    found = compile(graph, device, resident=held, optimize=False, contexts=contexts)
    found.load(held)
    return found


@contextmanager
def last_alone(right: set[bytes]) -> Iterator[None]:
    """Within the block a call copies the last output alone to the host, and the others where that is not right.

    right: last outputs; as long as there are none, everything is copied.
    """
    whole = HostContext._run

    def run(context: HostContext, inputs: Any) -> None:
        results, leaving = context._results, context._leaving
        if not right:
            return whole(context, inputs)
        context._results, context._leaving = results[-1:], leaving[-1:]
        try:
            whole(context, inputs)
        finally:
            context._results, context._leaving = results, leaving
        last = leaving[-1].array((results[-1].spec.nbytes,), np.uint8)
        if last.tobytes() not in right:
            for slot, place in zip(results, leaving, strict=True):
                context._platform.copy(
                    place.pointer, context._pointer(slot), slot.spec.nbytes, context._stream
                )
            context._stream.synchronize()

    with mock.patch.object(HostContext, "_run", run):
        yield


def labels(run: Executable) -> list[str]:
    """What made each output."""
    made = {s: step.plan.label for step in run.program.steps for s in step.outputs if not step.plan.view}
    return [made.get(s, "a view") for s in run.program.outputs]


def tried(
    run: Executable, inputs: Sequence[Array], threads: int, calls: int, right: set[bytes]
) -> dict[str, Any]:
    """Answers, those with other bits, answers in a second, and the first kernels whose results differ."""
    wanted = [[y.numpy().tobytes() for y in run(x)] for x in inputs]
    in_threads(lambda k: [run(inputs[0]) for _ in range(3)], threads)  # every context is recorded
    names, first, lock = labels(run), Counter[str](), threading.Lock()

    def work(k: int) -> int:
        rng, wrong = np.random.default_rng(k), 0
        for _ in range(calls):
            i = int(rng.integers(len(inputs)))
            outputs = run(inputs[i])
            if outputs[-1].numpy().tobytes() != wanted[i][-1]:
                wrong += 1
                differs = [y.numpy().tobytes() != x for y, x in zip(outputs, wanted[i], strict=True)]
                with lock:
                    first[f"{differs.index(True)} {names[differs.index(True)]}"] += 1
        return wrong

    right |= {answer[-1] for answer in wanted}
    start = time.perf_counter()
    wrong = sum(in_threads(work, threads))
    seconds = time.perf_counter() - start
    answers = threads * calls
    return {
        "answers": answers,
        "wrong": wrong,
        "per_second": round(answers / seconds, 1),
        "first": dict(first.most_common()),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.helpers.beside", description=(__doc__ or "").splitlines()[0]
    )
    parser.add_argument("--network", choices=sorted(NETWORKS), default="resnet18")
    parser.add_argument("--precision", default="bf16")
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--calls", type=int, default=300)
    parser.add_argument("--device", default="auto")
    given = parser.parse_args(arguments)
    device, (make, size) = str(lm.device(given.device)), NETWORKS[given.network]
    nn.manual_seed(0)
    net, inputs, bad = make(), images(8, size), 0
    for every in (False, True):
        for name, own in SETTINGS.items():
            right = set[bytes]()
            with setting(own), last_alone(right):
                run = program(net, given.precision, device, inputs[0], given.threads, every)
                found = tried(run, inputs, given.threads, given.calls, right)
            bad += found["wrong"]
            print(json.dumps({"setting": name, "every value": every, **found}), flush=True)
            del run
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
