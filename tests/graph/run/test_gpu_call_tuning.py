"""Tuning between calls on a GPU: plans compete while threads ask, and answers stay what they are within rounding."""

import threading

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.cudnn import PlanStore
from lamina.graph import Executable
from lamina.graph.run.tuning import TuningState
from lamina.infer import Predictor
from tests.graph.run.test_gpu_tuning import store as store

pytestmark = pytest.mark.gpu

RNG = np.random.default_rng(0)
IMAGES = RNG.standard_normal((24, 40, 33, 39)).astype(np.float32)  # sizes that no other test has
THREADS = 4
#: Calls behind the last contest: at rest a tuner looks at one of hundreds.
ENOUGH = 1000


def network() -> nn.Sequential:
    nn.manual_seed(1)
    body = (nn.Conv2d(40, 88, 3), nn.BatchNorm2d(88), nn.ReLU(), nn.Conv2d(88, 56, 3, stride=2), nn.ReLU())
    return nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(56, 4))


@pytest.mark.feature("F081", "B010")
@pytest.mark.parametrize("threads", [1, THREADS])
def test_threads_ask_while_plans_compete(store: PlanStore, threads: int) -> None:
    predictor = Predictor(network(), device="cuda", precision="bf16")
    fixed = Predictor(network(), device="cuda", precision="bf16", tuning=False)
    # Of another size for each: what one has learnt of its plans the process knows.
    images = RNG.standard_normal((24, 40, 33, 38 + threads)).astype(np.float32)
    inputs = [np.roll(images, k, 0) for k in range(threads)]
    expected = [fixed(x).numpy() for x in inputs]
    done, worst = threading.Event(), [0.0] * threads

    def work(k: int) -> None:
        after = 0
        for _ in range(100_000):
            apart = np.abs(predictor(inputs[k]).numpy() - expected[k]).max()
            worst[k] = max(worst[k], float(apart))
            after += predictor.tuning.done > 0 and not predictor.tuning.open
            if after > ENOUGH or done.is_set():
                break
        done.set()

    workers = [threading.Thread(target=work, args=(k,)) for k in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(300)
        assert not worker.is_alive()
    found = predictor.tuning
    assert (found.ended, found.open) == ("", 0), found
    assert found.done >= 2
    assert found.swaps >= min(1, found.won), found
    assert max(worst) <= 0.05 * max(np.abs(y).max() for y in expected)
    assert len(store.entries()) >= found.won
    (program,) = predictor._programs
    assert isinstance(program.calls, Executable)
    assert program.executable.is_captured


def test_a_compiled_function_is_tuned(store: PlanStore) -> None:
    net = network().to("cuda").eval()
    function, fixed = lm.jit(lambda x: ops.relu(net(x))), lm.jit(lambda x: ops.relu(net(x)), tuning=False)
    x = lm.tensor(IMAGES, device="cuda")
    expected = fixed(x).numpy()
    for _ in range(100_000):
        found = function(x)
        if function.tuning.done and not function.tuning.open:
            break
    assert (function.tuning.ended, function.tuning.open) == ("", 0)
    for _ in range(ENOUGH):
        found = function(x)
    assert function.tuning.swaps >= min(1, function.tuning.won)
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-3, atol=1e-3)


@pytest.mark.feature("F093")
def test_nothing_changes_where_the_same_bits_are_wanted(store: PlanStore) -> None:
    with lm.policy(deterministic=True):
        predictor = Predictor(network(), device="cuda", precision="bf16")
        answers = {predictor(IMAGES).numpy().tobytes() for _ in range(200)}
    assert len(answers) == 1
    assert predictor.tuning == TuningState()
    assert store.entries() == []


def test_graphs_of_pytorch_are_tuned(store: PlanStore) -> None:
    torch = pytest.importorskip("torch")
    from lamina.convert.torch.backend import lamina

    torch.manual_seed(0)
    net = torch.nn.Sequential(torch.nn.Conv2d(40, 88, 3), torch.nn.ReLU(), torch.nn.Conv2d(88, 56, 3)).cuda()
    compiled = torch.compile(net, backend=lamina)
    x = torch.from_numpy(IMAGES).cuda()
    with torch.no_grad():
        expected = net(x)
        for _ in range(3000):
            found = compiled(x)
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=1e-2)
    for _ in range(300):
        net.zero_grad()
        compiled(x).square().mean().backward()
    grads = [p.grad.clone() for p in net.parameters()]
    net.zero_grad()
    net(x).square().mean().backward()
    for found, p in zip(grads, net.parameters(), strict=True):
        torch.testing.assert_close(found, p.grad, rtol=1e-2, atol=1e-3)
