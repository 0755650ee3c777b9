"""The passes in their order: what they need, what they report, and that they change no result."""

from itertools import pairwise

import numpy as np
import pytest

import lamina as lm
from lamina import backends, ops
from lamina.graph import trace
from lamina.graph.passes import manager
from lamina.graph.passes.manager import PIPELINE, Pass
from lamina.graph.passes.pattern import Report
from lamina.graph.passes.verify import PassError, check_passes
from lamina.spec import Spec, float32
from tests.helpers.stand_in import StandIn

X = Spec((2, 16, 8, 8), float32)
CPU = backends.get(lm.device("cpu"))


def names(graph: lm.graph.Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def test_what_a_pass_needs_runs_before_it() -> None:
    order = [one.name for one in PIPELINE]
    assert len(set(order)) == len(order)
    for i, one in enumerate(PIPELINE):
        assert set(one.needs) <= set(order[:i]), one.name


def test_reports_say_what_each_pass_did() -> None:
    reports: list[Report] = []

    def f(x, w, b):  # type: ignore[no-untyped-def]
        y = ops.conv2d(x, w, b, padding=1)
        return ops.relu(y) + ops.exp(x) * ops.sqrt(lm.graph.constant(np.float32(4)))

    graph = trace(f, X, Spec((16, 16, 3, 3), float32), Spec((16,), float32))
    better = manager.optimize(
        graph, StandIn(lambda op, specs: "fused" if len(specs) == 3 else ""), reports=reports
    )
    assert [r.name for r in reports] == [one.name for one in PIPELINE]
    assert reports[0].before == len(graph.nodes)
    assert reports[-1].after == len(better.nodes)
    assert all(a.after == b.before for a, b in pairwise(reports))
    said = {r.name: r for r in reports}
    assert said["fold_constants"].merged["constant"] == 1
    assert said["fuse_elementwise"].refused
    assert manager.refusals(reports) == said["fuse_elementwise"].refused
    text = str(said["fuse_elementwise"]).splitlines()
    assert text[0].startswith("fuse_elementwise: ")
    assert text[1].startswith("  refused: fused(")


def test_a_pass_that_changes_a_result_is_found_out(monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = Pass("wrong", lambda g, _, r: lm.graph.Graph(g.inputs, [ops.exp(g.inputs[0])]))
    swapped = Pass("wrong", lambda g, _, r: lm.graph.Graph(g.inputs, [g.nodes[0].inputs[0]], g.name))
    graph = trace(lambda x: ops.neg(x), X)
    for one in (wrong, swapped):
        monkeypatch.setattr(manager, "PIPELINE", [one])
        with pytest.raises(PassError, match="wrong: "):
            manager.optimize(graph, CPU)
    with check_passes(False):
        assert names(manager.optimize(graph, CPU)) == []


@pytest.mark.feature("F052", "B013")
def test_conv_bias_relu_become_one_node_on_the_cpu() -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal(X.shape).astype(np.float32)
    w, b = rng.standard_normal((32, 16, 3, 3)).astype(np.float32), rng.standard_normal(32).astype(np.float32)
    graph = trace(lambda x, w, b: ops.relu(ops.conv2d(x, w, b, padding=1)), x, w, b)
    fused = manager.optimize(graph, CPU)
    assert [n for n in names(fused) if n != "reshape"] == ["fused"]
    np.testing.assert_allclose(fused(x, w, b)[0].numpy(), graph(x, w, b)[0].numpy(), rtol=1e-4, atol=1e-4)


def test_an_operand_made_after_the_head_is_not_pulled_before_it() -> None:
    def f(x, w):  # type: ignore[no-untyped-def]
        y = ops.conv2d(x, w, padding=1)
        return y + ops.exp(x)

    graph = trace(f, X, Spec((16, 16, 3, 3), float32))
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs)
    fused = manager.optimize(graph, CPU)
    np.testing.assert_allclose(fused(x, w)[0].numpy(), graph(x, w)[0].numpy(), rtol=1e-4, atol=1e-4)
