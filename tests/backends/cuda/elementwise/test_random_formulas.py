"""Random elementwise programs as they are planned for a GPU: every kernel, emulated, gives what its node means."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from lamina.backends.cuda import backend
from lamina.backends.reference import run_reference
from lamina.graph import Graph
from lamina.graph.ir.graph import Node
from lamina.graph.passes.manager import optimize
from lamina.ops.core import Array
from lamina.spec import DType, Spec, as_dtype, bfloat16, float16, float32
from tests.helpers.emulator import run_plan
from tests.helpers.planned import H200
from tests.helpers.random_formulas import Formula

CUDA = backend(H200)
#: Relative to the largest value. Values of half types are rounded once behind float32 arithmetic, here and there.
TOLERANCES: dict[DType, float] = {float32: 2e-5, bfloat16: 2**-7, float16: 2**-10}


def close(found: Array, wanted: Array, dtype: DType, what: object) -> None:
    a, b = (np.asarray(x, np.float64) for x in (found, wanted))
    finite = np.abs(b[np.isfinite(b)])
    largest = max(1.0, float(finite.max(initial=0.0)))
    np.testing.assert_allclose(a, b, rtol=0, atol=TOLERANCES.get(dtype, 0.0) * largest, err_msg=str(what))


def emulated(node: Node, arrays: Sequence[Array]) -> Sequence[Array]:
    """What the node's kernel gives; what only looks at memory differently gives its meaning."""
    specs = [Spec(v.shape, v.dtype, v.spec.layout) for v in node.inputs]
    plan = CUDA.plan(node.op, specs, node.policy)
    return run_reference(node.op, arrays) if plan.view else run_plan(plan, arrays)


def run(graph: Graph, arrays: Sequence[Array]) -> Counter[str]:
    """Every node on what the ones before it gave; the ops that ran."""
    values = dict(zip(graph.inputs, arrays, strict=True))
    values |= {v: v.constant.numpy() for v in graph.constants if v.constant is not None}
    for node in graph.nodes:
        given = [values[v] for v in node.inputs]
        found, wanted = emulated(node, given), run_reference(node.op, given)
        for v, a, b in zip(node.outputs, found, wanted, strict=True):
            assert a.shape == v.shape
            close(a, b, as_dtype(a.dtype), node)
            values[v] = a
    return Counter(node.op.name for node in graph.nodes)


@pytest.mark.parametrize("start", range(0, 20, 10))
def test_kernels_of_random_formulas(start: int) -> None:
    seen: Counter[str] = Counter()
    for seed in range(start, start + 10):
        formula = Formula(seed)
        seen += run(optimize(formula.graph, CUDA), formula.arrays)
    assert seen["fused_elementwise"] >= 5


@pytest.mark.parametrize("seed", range(120))
def test_passes_change_no_formula(seed: int) -> None:
    """The whole, by the references: what is joined means what it did (the passes are checked under pytest)."""
    formula = Formula(seed)
    better = optimize(formula.graph, CUDA)
    assert [v.spec for v in better.outputs] == [v.spec for v in formula.graph.outputs]
