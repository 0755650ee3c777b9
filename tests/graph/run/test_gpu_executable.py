"""Compiled graphs on a GPU: arrays that travel beside the step before, streams beside the chain, times of kernels."""

import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.graph import compile, profile, trace
from lamina.graph.run.timeline import Timeline
from lamina.infer import Predictor
from lamina.spec import Spec, float32
from lamina.train import train_step
from tests.helpers import many_threads

pytestmark = pytest.mark.gpu


@pytest.mark.feature("B016")
def test_every_array_arrives_in_its_own_step() -> None:
    """Arrays of 4 MB in quick succession; each may be overwritten as soon as the call returns."""

    def f(x: Any) -> Any:
        for _ in range(5):  # more kernels than a short program has
            x = ops.cummax(x, 0)[0]
        return ops.sum(x)

    run = compile(trace(f, Spec((1 << 20,), float32)), "cuda:0")
    array = np.empty(1 << 20, np.float32)
    found = []
    for i in range(50):
        array[:] = i
        found.append(run(array)[0])
        array[:] = -1
    assert [y.item() for y in found] == [float(i * (1 << 20)) for i in range(50)]
    assert run.is_captured


@pytest.mark.feature("B016")
def test_a_short_program_reads_and_writes_in_place() -> None:
    """One kernel is launched alone, on operands where they lie: more of them than addresses are kept for, parts of
    tensors that begin anywhere, arrays of the host, and results that stay."""
    run = lm.jit(lambda x, y: x * 2.0 + y)
    base = [lm.tensor(np.full(1000, k, np.float32), device="cuda:0") for k in range(40)]
    held = [run(x, y) for x, y in zip(base, base[::-1], strict=True)] * 2
    held += [run(x, y) for x, y in zip(base, base[::-1], strict=True)]
    assert [set(z.tolist()) for z in held] == [{k + 39.0} for k in range(40)] * 3
    assert not run.program(base[0], base[0]).is_captured
    whole = lm.tensor(np.arange(1001, dtype=np.float32), device="cuda:0")
    np.testing.assert_array_equal(run(whole[1:], whole[:-1]).numpy(), 3 * np.arange(1000) + 2.0)
    np.testing.assert_array_equal(run(np.ones(1000, np.float32), base[3]).numpy(), np.full(1000, 5.0))


@pytest.mark.feature("B016")
@pytest.mark.parametrize(("rows", "captured"), [(1 << 12, False), (4, True)])
def test_a_few_kernels_on_much_memory_work_where_it_lies(rows: int, captured: bool) -> None:
    run = lm.jit(lambda x: ops.cumsum(ops.cumsum(x, 1), 1))
    values = np.random.default_rng(0).integers(0, 3, (rows, 512)).astype(np.float32)
    x = lm.tensor(values, device="cuda:0")
    held = [run(x) for _ in range(6)]
    for y in held:
        np.testing.assert_array_equal(y.numpy(), values.cumsum(1).cumsum(1))
    assert run.program(x).is_captured == captured


@pytest.mark.feature("B016")
def test_results_of_a_short_program_are_memory_of_their_own() -> None:
    """A result that is an input's value, or another result's, or written afterwards, changes nothing else."""
    run = lm.jit(lambda x: (x, x + 1.0, x + 1.0))
    x = lm.tensor(np.zeros(600, np.float32), device="cuda:0")
    a, b, c = run(x)
    a.fill_(7)
    b.fill_(8)
    assert [set(t.tolist()) for t in (x, a, b, c)] == [{0.0}, {7.0}, {8.0}, {1.0}]


def test_short_programs_are_timed_too() -> None:
    run = lm.jit(lambda x: ops.exp(x) + 1.0)
    xs = [lm.tensor(np.zeros(1 << 20, np.float32), device="cuda:0") for _ in range(3)]
    run(xs[0])
    timeline = Timeline()
    with timeline.record():
        found = [run(x) for x in xs]
    assert all(set(y.tolist()) == {2.0} for y in found)
    assert timeline.recorded == 3


@pytest.mark.feature("B016")
def test_lanes_change_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """Losses of ten steps, all in one stream and in two, from the same start."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((16, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 16)

    def losses() -> list[float]:
        net = nn.LeNet(1, 10)
        for p, seed in zip(net.parameters(), range(100), strict=False):
            p.copy_(np.random.default_rng(seed).standard_normal(p.shape).astype(np.float32) * 0.1)
        with lm.policy(deterministic=True):
            step = train_step(net, ops.cross_entropy, optim.SGD(lr=0.05, momentum=0.9), device="cuda:0")
            return [step(x, y).item() for _ in range(10)]

    two = losses()
    monkeypatch.setattr("lamina.graph.run.context.assign_streams", lambda steps, seconds: [0] * len(steps))
    assert losses() == two


@pytest.mark.feature("B038")
def test_kernels_are_timed_where_they_run() -> None:
    net = nn.LeNet(1, 10)
    step = train_step(net, ops.cross_entropy, optim.SGD(lr=0.05), device="cuda:0")
    step(np.zeros((8, 1, 28, 28), np.float32), np.zeros(8, np.int64))
    found = profile(step.executable, rounds=3)
    assert all(r.milliseconds is not None and 0 < r.milliseconds < 10 for r in found.rows)


def test_outputs_of_convolutions_stay_channels_last() -> None:
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype("float16") for s in ((2, 16, 8, 8), (32, 16, 3, 3)))
    run = compile(trace(lambda a, b: ops.conv2d(a, b, padding=1), x, w), "cuda:0")
    (y,) = run(x, w)
    assert y.spec.tag == "acdb"
    wanted = ops.conv2d(lm.tensor(x.astype(np.float64)), lm.tensor(w.astype(np.float64)), padding=1).numpy()
    np.testing.assert_allclose(y.numpy().astype(np.float64), wanted, rtol=2e-2, atol=5e-2)


@pytest.mark.parametrize("case", ["predictor", "function", "eager", "training"])
def test_threads_get_what_one_thread_gets(case: str) -> None:
    """Recording a CUDA graph takes none of what other threads queue meanwhile."""
    if case in ("predictor", "eager"):
        found = getattr(many_threads, case)(many_threads.small_network(), "cuda:0", threads=8, calls=100)
    else:
        found = getattr(many_threads, case)("cuda:0", threads=8, calls=20)
    assert (found.wrong, found.other_bits) == (0, 0)


def test_eager_ops_beside_a_graph_that_is_recorded() -> None:
    """Threads compile, rehearse and record programs of new shapes while others compute op by op."""
    net = many_threads.small_network()
    predictor, stop = Predictor(net, device="cuda:0"), threading.Event()
    ones = lm.ones((256, 256), device="cuda:0")

    def work(k: int) -> int:
        if k == 0:
            for n in range(1, 9):
                for _ in range(3):
                    predictor(np.zeros((n, 3, 8 + n, 8), np.float32)).numpy()
            stop.set()
            return 0
        wrong = 0
        while not stop.is_set():
            wrong += (ops.relu(ones * 2.0) + 1.0).numpy().min() != 3.0
        return wrong

    assert sum(many_threads.in_threads(work, 4)) == 0


#: Products for ten seconds: a process of its own, which takes turns with others on the device.
_BUSY = """
import time
import lamina as lm
from lamina import ops
x, end = lm.ones((512, 512), device="cuda:0"), time.monotonic() + 10
while time.monotonic() < end:
    float(ops.sum(ops.matmul(x, x)))
"""


@pytest.mark.slow
@pytest.mark.feature("B035")
def test_kernels_that_are_queued_one_by_one_wait_for_each_other() -> None:
    """As at a first call, beside other processes: libraries' kernels would begin early (`Platform.wait_for_ends`)."""
    predictor = Predictor(nn.resnet18(), device="cuda:0", precision="bf16")
    x = np.random.default_rng(0).standard_normal((8, 3, 64, 64), np.float32)
    predictor(x)
    executable = predictor.program(Spec(x.shape, float32))
    executable.load(dict(enumerate(predictor.held)))
    wanted = executable(x)[0].numpy().tobytes()
    context = executable._contexts.take()
    runs = [context.bound(step) for step in executable.program.steps if not step.plan.view]
    beside = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(6)]
    counts = [0, 0]
    try:
        while any(process.poll() is None for process in beside):
            for run in runs:
                run()
            (found,) = [context._values(slot).tobytes() for slot in executable.program.outputs]
            counts[found == wanted] += 1
    finally:
        for process in beside:
            process.kill()
    assert [process.wait() for process in beside] == [0] * 6
    assert counts[0] == 0
    assert counts[1] > 300
