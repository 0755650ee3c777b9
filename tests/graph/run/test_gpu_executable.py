"""Compiled graphs on a GPU: arrays that travel beside the step before, streams beside the chain, times of kernels."""

import threading

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.graph import compile, profile, trace
from lamina.infer import Predictor
from lamina.spec import Spec, float32
from lamina.train import train_step
from tests.helpers import many_threads

pytestmark = pytest.mark.gpu


@pytest.mark.feature("B016")
def test_every_array_arrives_in_its_own_step() -> None:
    """Arrays of 4 MB in quick succession; each may be overwritten as soon as the call returns."""
    run = compile(trace(lambda x: ops.sum(x) + 0.0, Spec((1 << 20,), float32)), "cuda:0")
    array = np.empty(1 << 20, np.float32)
    found = []
    for i in range(50):
        array[:] = i
        found.append(run(array)[0])
        array[:] = -1
    assert [y.item() for y in found] == [float(i * (1 << 20)) for i in range(50)]
    assert run.is_captured


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
