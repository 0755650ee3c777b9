"""Which step makes each gradient that the updates read."""

import pytest

import lamina as lm
from lamina import nn, ops, optim
from lamina.graph.planning.updates import gradient_sources
from lamina.spec import Spec, float32, int64


@pytest.mark.parametrize("rule", [optim.SGD(0.1), optim.SGD(0.1, momentum=0.9), optim.AdamW(0.1)], ids=str)
def test_each_gradient_has_one_source(rule: optim.Optimizer) -> None:
    net = nn.Sequential(nn.Linear(12, 20), nn.ReLU(), nn.Linear(20, 5))
    made = lm.train_step(net, ops.cross_entropy, rule, device="cpu", backend="null")
    executable = made.program(Spec((8, 12), float32), Spec((8,), int64)).executable
    steps = [s for s in executable.program.steps if not s.plan.view]
    found = gradient_sources(steps)
    sizes = sorted(n for i, n in found if n > 4)
    assert sizes == sorted(4 * n for n in (240, 20, 100, 5))
    assert [i for i, _ in found] == sorted(i for i, _ in found)
    assert all(steps[i].node.op.effect != "update" for i, _ in found if steps[i].node is not None)
