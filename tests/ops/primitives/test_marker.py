"""Markers: nothing of them is left where a graph is compiled, saved or its batch is looked for."""

from pathlib import Path

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.graph import load, save
from lamina.graph.ir.batch_axis import Batch, output_axes
from lamina.ops.core import REGISTRY, BatchAxis
from lamina.ops.primitives.marker import Alias, CustomGradient, StopGradient, overwritten
from lamina.spec import Spec, float32

MARKERS = [Alias(), StopGradient(), CustomGradient(lambda kept, grads: grads, 0, 1)]


@pytest.mark.parametrize("op", MARKERS, ids=lambda op: op.name)
def test_a_marker_is_its_input(op: Alias) -> None:
    x = np.ones((2, 3), np.float32)
    assert op.reference(x)[0] is x
    assert op.infer(Spec((2, 3), float32)) == (Spec((2, 3), float32),)
    assert op.batch_axes([Spec((2, 3), float32)], [BatchAxis(1)]) == (BatchAxis(1),)
    assert op.name not in REGISTRY


def test_saved_graphs_hold_none(tmp_path: Path) -> None:
    graph = lm.trace(lambda x: ops.exp(lm.stop_gradient(x)), Spec((2,), float32))
    assert [n.op.name for n in graph.nodes] == ["stop_gradient", "exp"]
    save(graph, tmp_path / "graph")
    assert [n.op.name for n in load(tmp_path / "graph").nodes] == ["exp"]


def test_samples_stay_apart_behind_them() -> None:
    small, large = (lm.trace(lambda x: lm.stop_gradient(x) * 2, Spec((n, 3), float32)) for n in (2, 4))
    assert output_axes(small, large, Batch((0,), 2, 4)) == (BatchAxis(0),)


def test_what_is_written_past_a_derivative_has_the_gradient_of_what_it_is_written_over() -> None:
    def written(x: lm.Tensor) -> lm.Tensor:
        y = ops.sin(x)
        return ops.sum(overwritten(y, ops.full_like(y, 3.0)) ** 2)

    x = lm.tensor(np.array([0.3, -1.0], np.float32))
    np.testing.assert_allclose(lm.grad(written)(x).numpy(), 6 * np.cos(x.numpy()), rtol=1e-6)
    assert overwritten(x, x) is x
