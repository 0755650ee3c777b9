"""Trees of elementwise nodes are one node on a CPU: values, gradients, what is computed twice, what stays apart."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import backends, ops
from lamina.graph import Graph, trace
from lamina.graph.passes.canonicalize import common_subexpressions
from lamina.graph.passes.join_elementwise import join_elementwise
from lamina.graph.passes.pattern import Report
from lamina.ops.primitives import FusedElementwise
from lamina.runtime import Device
from lamina.spec import Spec, float32
from tests.helpers.loops import needs_llvm
from tests.helpers.planned import H200

pytestmark = needs_llvm
X = Spec((64, 256), float32)
CPU = backends.get(Device("cpu"), "cpu")


def joined(fn: Callable[..., Any], *specs: Spec, **more: Any) -> Graph:
    return join_elementwise(trace(fn, *specs), CPU, **more)


def steps(graph: Graph) -> list[str]:
    """The ops of each node."""
    return [
        " ".join(op.name for op in node.op.ops) if isinstance(node.op, FusedElementwise) else node.op.name
        for node in graph.nodes
    ]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


FORMULAS: dict[str, Callable[..., Any]] = {
    "huber": lambda x, y: ops.huber_loss(x, y, "none"),
    "smooth_l1": lambda x, y: ops.smooth_l1_loss(x, y, reduction="none"),
    "nan_to_num": lambda x, y: ops.nan_to_num(x) * y,
    "prelu": lambda x, y: ops.prelu(x, y[0, :1]),
    "gelu": lambda x, y: 0.5 * x * (1 + ops.tanh(0.8 * (x + 0.04 * x * x * x))) + y,
    "glu": lambda x, y: ops.glu(x) + ops.glu(y),
    "swiglu": lambda x, y: ops.silu(x) * y + ops.silu(y) * x,
    "gaussian": lambda x, y: ops.gaussian_nll_loss(x, y, ops.exp(x), reduction="none"),
    "user": lambda x, y: ops.where(x > y, x * x, ops.sqrt(ops.abs(y)) - x) / (1 + ops.exp(-y)),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_formula_is_one_kernel_and_so_is_its_gradient(name: str) -> None:
    """Values and gradients beside op by op; a reduction at the end is part of it."""
    formula, x, y = FORMULAS[name], lm.tensor(normal(64, 256)), lm.tensor(normal(64, 256, seed=1))
    alone = lm.jit(formula)
    np.testing.assert_allclose(alone(x, y).numpy(), formula(x, y).numpy(), rtol=2e-5, atol=2e-6)
    assert alone.program(x, y).kernels == 1

    def loss(x: Any, y: Any) -> Any:
        return ops.mean(formula(x, y))

    total = lm.jit(loss)
    np.testing.assert_allclose(total(x, y).numpy(), loss(x, y).numpy(), rtol=2e-5, atol=1e-6)
    assert total.program(x, y).kernels == 1
    both = lm.value_and_grad(loss, argnums=(0, 1))
    found, wanted = lm.jit(both)(x, y), both(x, y)
    for a, b in zip(found[1], wanted[1], strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=5e-5, atol=1e-8)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64", "int32", "int64", "uint8", "bool"])
def test_dtypes(dtype: str) -> None:
    def f(x: Any, y: Any) -> Any:
        chosen = ops.where(x > y, x, y)
        return ops.where(chosen == x, chosen, y).cast("float32") * 2.0 + 1.0

    given = [lm.tensor((normal(64, 256, seed=k) * 4).astype("float32")).to(dtype=dtype) for k in (0, 1)]
    if dtype == "uint8":
        given = [lm.tensor(np.random.default_rng(k).integers(0, 255, (64, 256), np.uint8)) for k in (0, 1)]
    if dtype == "bool":
        given = [lm.tensor(normal(64, 256, seed=k) > 0) for k in (0, 1)]

        def f(x: Any, y: Any) -> Any:
            return ops.where(ops.logical_and(x, y), 1.0, ops.where(ops.logical_or(x, y), 2.0, 3.0))

    fast = lm.jit(f)
    np.testing.assert_array_equal(fast(*given).numpy(), f(*given).numpy())
    assert fast.program(*given).kernels == 1


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 0.0, -0.0])
def test_what_is_not_finite_stays(value: float) -> None:
    x, y = normal(64, 256), normal(64, 256, seed=1)
    x[3, 5], y[7, 9] = value, value
    for name, formula in FORMULAS.items():
        found, wanted = lm.jit(formula)(x, y).numpy(), formula(lm.tensor(x), lm.tensor(y)).numpy()
        np.testing.assert_allclose(found, wanted, rtol=2e-5, atol=2e-6, err_msg=name)


@pytest.mark.parametrize("shape", [(101, 83), (1, 9001), (9001, 1), (3, 5, 7, 101), (9000,)], ids=str)
def test_odd_shapes_and_operands_that_are_repeated(shape: tuple[int, ...]) -> None:
    def f(x: Any, row: Any, one: Any) -> Any:
        return ops.sum(ops.where(x > row, x * one, row - x) * x, -1)

    given = [normal(*shape), normal(*shape[-1:]), normal(1)]
    found, wanted = lm.jit(f)(*given).numpy(), f(*map(lm.tensor, given)).numpy()
    np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-4)


def test_what_two_expressions_read_is_computed_in_both_where_that_moves_fewer_bytes() -> None:
    def f(x: Any) -> Any:
        y = ops.exp(x) + 1.0
        return ops.sum(y, 1), y.reshape((256, 64)), ops.sum(ops.square(y), 0)

    assert steps(joined(f, X)) == ["exp add", "reduce", "reshape", "mul reduce"]

    def g(x: Any) -> Any:
        y = ops.exp(x) + 1.0
        return ops.sum(y, 1), ops.sum(ops.square(y), 0)

    assert steps(joined(g, X)) == ["exp add reduce", "exp add mul reduce"]

    def h(*xs: Any) -> Any:  # of many operands: to read them twice costs more than the sum
        y = xs[0] + xs[1] + xs[2] + xs[3] + xs[4] + xs[5]
        return ops.sum(y, 1), y * 2.0, -y, ops.exp(y)

    assert steps(joined(h, *[X] * 6))[0] == " ".join(["add"] * 5)


def test_what_others_read_is_made_once() -> None:
    def f(x: Any, w: Any) -> Any:
        y = ops.exp(x) * 2.0
        return ops.matmul(y, w), y + 1.0

    graph = joined(f, X, Spec((256, 8), float32))
    assert steps(graph) == ["exp mul", "matmul", "add"]


def test_slices_are_read_in_place_unless_something_else_needs_them() -> None:
    def f(x: Any) -> Any:
        a, b = ops.split(x, 128, 1)
        return ops.sigmoid(a) * b

    assert steps(joined(f, X)) == ["slice sigmoid slice mul"]

    def g(x: Any) -> Any:
        a, b = ops.split(x, 128, 1)
        return ops.sigmoid(a) * b, ops.flip(a, (0,))

    assert sorted(steps(joined(g, X))) == ["flip", "sigmoid slice mul", "slice"]


def test_what_is_made_of_weights_alone_stays_apart() -> None:
    def f(x: Any, w: Any) -> Any:
        return x * (ops.exp(w) + 1.0)

    graph = trace(f, X, X)
    assert steps(join_elementwise(graph, CPU, graph.inputs[1:])) == ["exp", "add", "mul"]
    assert steps(join_elementwise(graph, CPU)) == ["exp add mul"]


def test_what_is_repeated_is_never_made() -> None:
    """The gradient of a sum is a number for all elements, of a constant."""
    slope = lm.jit(lm.grad(lambda v: ops.sum(ops.square(v))))
    x = normal(64, 256)
    np.testing.assert_array_equal(slope(x).numpy(), 2 * x)
    assert slope.program(x).kernels == 1


def test_policies_are_not_mixed() -> None:
    def f(x: Any) -> Any:
        with lm.policy(tf32=True):
            y = ops.exp(x) * x
        return y + x

    assert steps(joined(f, X)) == ["exp mul", "add"]


def test_long_formulas_are_several() -> None:
    def f(x: Any, y: Any) -> Any:
        for _ in range(50):
            x = x * y + x
        return x

    graph = joined(f, X, X)
    assert all(len(node.op.ops) <= 64 for node in graph.nodes)
    assert len(graph.nodes) == 2


def test_what_the_backend_has_no_plan_for_stays_apart() -> None:
    def f(x: Any) -> Any:
        return ops.sum(ops.exp(x) * x, 1)

    report = Report()
    graph = joined(f, Spec((2, 40000), float32), report=report)
    assert steps(graph) == ["exp", "mul", "reduce"]
    assert "left to others" in report.refused[0]
    assert steps(join_elementwise(trace(f, X), backends.get(Device("cpu"), "reference"))) == [
        "exp",
        "mul",
        "reduce",
    ]


def test_the_step_that_gives_no_finite_number_is_named() -> None:
    def f(x: Any) -> Any:
        return ops.log(x) * x + ops.exp(x)

    x = normal(64, 256)
    x[0, 0] = -1.0
    with lm.policy(check_finite=True), pytest.raises(lm.NonFiniteError, match=r"^log"):
        lm.jit(f)(np.abs(x) * np.sign(x[:1, :1]))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(64, 256), (2, 40000)], ids=str)
def test_what_is_computed_twice_agrees(dtype: str, shape: tuple[int, ...]) -> None:
    """The gradient of a maximum asks which element it is: of rows of a kernel, and of rows left to others."""
    a, b = (lm.tensor(normal(*shape, seed=k)).to(dtype=dtype) for k in (0, 1))

    def loss(a: Any, b: Any) -> Any:
        return ops.sum(ops.amax(ops.tanh(a * b) * a, 1))

    fast = lm.jit(lm.grad(loss))
    found, wanted = fast(a, b).numpy().astype(np.float32), lm.grad(loss)(a, b).numpy().astype(np.float32)
    assert np.isfinite(found).all()
    assert ((found != 0).sum(1) >= 1).all()
    if dtype == "float32":
        np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("fn", "wanted"),
    [
        (lambda x, y: ops.cat([x, y]) + 1.0, ["concat add"]),
        (lambda x, y: ops.cat([x, y]) * ops.sigmoid(ops.cat([x, y])), ["concat sigmoid mul"]),
        (lambda x, y: (ops.cat([x, y]) + 1.0, ops.cat([y, x])), ["concat add", "concat"]),
        (lambda x, y: ops.sum(ops.relu(ops.cat([x, y])), 1), ["concat", "relu reduce"]),
        (lambda x, y: ops.cat([ops.relu(x), y]) + 1.0, ["relu concat add"]),
        (lambda x, y: ops.cat([-x[:, 128:], x[:, :128]], 1) * y, ["slice neg slice concat mul"]),
        (lambda x, y: (ops.cat([a := ops.relu(x), y]) + 1.0, a), ["concat add", "relu"]),
        (lambda x, y: ops.cat([x * y, y]) + 1.0, ["concat add", "mul"]),
        (lambda x, y: ops.cat([x, y])[:70] + 1.0, ["concat", "slice add"]),
        (lambda x, y: ops.relu(ops.cat([x, y] * 5)), ["concat", "relu"]),
    ],
)  # fmt: skip
def test_what_is_joined_becomes_how_it_is_read(fn: Callable[..., Any], wanted: list[str]) -> None:
    """Where a GPU's kernel reads parts, with a step of one tensor on a part that nothing else reads; not for a
    reduction, for others that read it too, or for many parts."""
    gpu = backends.get(H200, "cuda")
    graph = join_elementwise(common_subexpressions(trace(fn, X, X)), gpu)
    assert sorted(steps(graph)) == sorted(wanted)
    assert "concat" in " ".join(steps(joined(fn, X, X)))  # by oneDNN on a CPU, as it is
