"""One compiled network, many threads: every answer is compared bitwise with that of one thread.

    python -m tests.helpers.many_threads --device cuda --calls 1000 [--threads 16] [--network resnet18]

Prints a line for a Predictor, for a compiled function, for eager ops, and for a training step; the exit status is 1
if any answer is wrong.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import lamina as lm
from lamina import nn, ops, optim
from lamina.infer import Predictor

Array = np.ndarray[Any, Any]


@dataclass
class Count:
    """Answers of all threads: how many, how many are far from the right one, how many are not bitwise equal to it."""

    answers: int = 0
    wrong: int = 0
    other_bits: int = 0

    def add(self, found: Array, wanted: Array) -> None:
        """One more answer."""
        self.answers += 1
        self.wrong += not np.allclose(found, wanted, rtol=1e-3, atol=1e-3)
        self.other_bits += found.tobytes() != wanted.tobytes()

    def __add__(self, other: Count) -> Count:
        return Count(
            self.answers + other.answers, self.wrong + other.wrong, self.other_bits + other.other_bits
        )


def in_threads(work: Callable[[int], Any], threads: int) -> list[Any]:
    """The results of work(k) for every thread k, all started together; the first exception is raised again."""
    results: list[Any] = [None] * threads
    errors: list[BaseException] = []
    start = threading.Barrier(threads)

    def run(k: int) -> None:
        start.wait()
        try:
            results[k] = work(k)
        except BaseException as error:
            errors.append(error)

    started = [threading.Thread(target=run, args=(k,)) for k in range(threads)]
    for t in started:
        t.start()
    for t in started:
        t.join()
    if errors:
        raise errors[0]
    return results


def compare(call: Callable[[Array], Any], inputs: Sequence[Array], threads: int, calls: int) -> Count:
    """Call from all threads with inputs in a different order per thread."""
    wanted = [call(x).numpy().copy() for x in inputs]

    def work(k: int) -> Count:
        order, count = np.random.default_rng(k), Count()
        for _ in range(calls):
            i = int(order.integers(len(inputs)))
            count.add(call(inputs[i]).numpy(), wanted[i])
        return count

    return sum(in_threads(work, threads), Count())


def small_network() -> nn.Module:
    """A convolution with a batch norm, pooled, and a linear layer, in inference mode."""
    nn.manual_seed(0)
    net = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(8, 10),
    )
    return net.eval()


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "small": small_network,
    "resnet18": lambda: nn.resnet18(num_classes=10).eval(),
}


def images(count: int, size: int) -> list[Array]:
    """Batches of one picture."""
    rng = np.random.default_rng(0)
    return [rng.standard_normal((1, 3, size, size)).astype(np.float32) for _ in range(count)]


def predictor(net: nn.Module, device: str, threads: int, calls: int, size: int = 32) -> Count:
    """A Predictor."""
    return compare(Predictor(net, device=device), images(8, size), threads, calls)


def function(device: str, threads: int, calls: int) -> Count:
    """A compiled function without weights."""
    xs = images(8, 32)
    graph = lm.trace(lambda x: ops.softmax(ops.mean(ops.exp(x) * x, (2, 3)), 1), xs[0])
    run = lm.compile(graph, device=device)
    return compare(lambda x: run(x)[0], xs, threads, calls)


def eager(net: nn.Module, device: str, threads: int, calls: int) -> Count:
    """The network's ops one by one."""
    net.to(device)
    return compare(lambda x: net(lm.tensor(x, device=device)), images(8, 32), threads, calls)


def training(device: str, threads: int, calls: int) -> Count:
    """A training step on one batch: the losses, in order, are those of one thread, regardless of the thread of each
    step."""
    x, y = images(1, 16)[0], np.array([3])

    def made() -> Any:
        return lm.train_step(
            small_network().train(), ops.cross_entropy, optim.SGD(lr=1e-3, momentum=0.9), device=device
        )

    with lm.policy(deterministic=True):
        one, many = made(), made()
        wanted = np.array([one(x, y).item() for _ in range(threads * calls)], np.float32)
        many.program(lm.Spec(x.shape, lm.float32), lm.Spec((1,), lm.int64))

    def work(k: int) -> list[float]:
        with lm.policy(deterministic=True):
            return [many(x, y).item() for _ in range(calls)]

    found = [loss for losses in in_threads(work, threads) for loss in losses]
    count = Count()
    for a, b in zip(np.sort(np.array(found, np.float32)), np.sort(wanted), strict=True):
        count.add(a, b)
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--threads", type=int, default=16)
    parser.add_argument("--calls", type=int, default=1000)
    parser.add_argument("--network", choices=sorted(NETWORKS), default="small")
    given = parser.parse_args(arguments)
    device, threads, calls = str(lm.device(given.device)), given.threads, given.calls
    size = 64 if given.network == "resnet18" else 32
    cases: dict[str, Callable[[], Count]] = {
        "Predictor": lambda: predictor(NETWORKS[given.network](), device, threads, calls, size),
        "compiled function": lambda: function(device, threads, calls),
        "eager ops": lambda: eager(small_network(), device, threads, calls),
        "training step": lambda: training(device, threads, max(calls // 10, 1)),
    }
    bad = 0
    for name, case in cases.items():
        start = time.perf_counter()
        count = case()
        bad += count.wrong + count.other_bits
        print(
            f"{name} on {device}, {threads} threads: {count.answers} answers, {count.wrong} wrong, "
            f"{count.answers - count.other_bits} bit-equal, {time.perf_counter() - start:.1f} s",
            flush=True,
        )
    return int(bool(bad))


if __name__ == "__main__":
    sys.exit(main())
