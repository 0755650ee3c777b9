"""The least time of a step: a roofline that no kernel is above."""

from dataclasses import replace

import pytest

from lamina import nn
from lamina.backends.cpu import winograd
from lamina.backends.cpu.post import Post
from lamina.graph import profile
from lamina.graph.planning.cost import least_seconds, least_times, work
from lamina.infer import Predictor
from lamina.ops.primitives import Conv, Window
from lamina.runtime import Machine
from lamina.runtime.machine import MEASURED
from lamina.spec import Policy, Spec, float32

CPU = Machine("a CPU", "", 2, flops={"float32": 1e11}, bandwidth=1e10)


def test_arithmetic_or_memory_is_the_limit() -> None:
    net = nn.Linear(512, 256)
    program = Predictor(net, device="cpu", backend="reference").program(Spec((64, 512), float32)).program
    step = max(program.steps, key=lambda s: work(s)[0])
    flops, nbytes = work(step)
    assert flops == 2 * 64 * 512 * 256
    assert least_seconds(step, CPU) == pytest.approx(max(flops / 1e11, nbytes / 1e10))


@pytest.mark.parametrize(("filter_size", "share"), [(3, 0.25), (5, 0.36)])
def test_fast_algorithms_make_fewer_products(
    monkeypatch: pytest.MonkeyPatch, filter_size: int, share: float
) -> None:
    """Winograd's: 36 products for m x m outputs of r x r taps, m = 7 - r."""
    monkeypatch.setattr(winograd, "prefers_channels_last", lambda: True)  # on any processor
    pads = (filter_size // 2, filter_size // 2)
    x, w = Spec((16, 96, 24, 24), float32), Spec((96, 96, filter_size, filter_size), float32)
    plan = winograd.forward(Conv(Window((1, 1), (pads, pads), (1, 1))), (x, w), Post(), (), Policy())
    assert plan is not None
    assert plan.arithmetic == pytest.approx(share)


def test_no_kernel_of_a_host_is_above_its_limit() -> None:
    """Whatever was measured while others kept the machine busy; large and small operands are compared apart."""
    nn.manual_seed(0)
    net = nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 8))
    executable = Predictor(net, device="cpu", backend="reference").program(Spec((64, 2048), float32))
    steps = [s for s in executable.program.steps if not s.plan.view]
    slow = replace(CPU, origin=MEASURED, flops={"float32": 1.0}, bandwidth=1.0)
    times = [1e-3 * (i + 1) for i in range(len(steps))]
    limits = least_times(steps, times, slow)
    fractions = [limit / time for limit, time in zip(limits, times, strict=True)]
    assert max(fractions) == pytest.approx(1)
    assert min(fractions) < 0.9
    assert least_times(steps, [None] * len(steps), slow) == [least_seconds(s, slow) for s in steps]
    of_a_gpu = replace(slow, origin="a file")
    assert least_times(steps, times, of_a_gpu) == [least_seconds(s, of_a_gpu) for s in steps]


def test_a_profile_has_no_fraction_above_one() -> None:
    net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 5))
    executable = Predictor(net, device="cpu", backend="cpu").program(Spec((4, 3, 8, 8), float32))
    executable.load(dict(enumerate(net.parameters())))
    found = profile(executable, rounds=2)
    assert all(r.fraction is not None and r.fraction <= 1 + 1e-9 for r in found.rows)
    assert found.fraction is not None
    assert found.fraction <= 1
