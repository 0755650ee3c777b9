"""Own ops: what is said where they are written wrong, and how packages ship theirs."""

import importlib.metadata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import graph, nn, ops
from lamina.backends.reference import run_reference
from lamina.ops import custom
from lamina.ops.core import REGISTRY, Op, bind, call
from lamina.ops.custom import CudaKernel, CustomOp, find_op, shipped
from lamina.spec import FLOATS, ShapeError, Spec, as_dtype, float64
from tests.helpers.eager import mismatch
from tests.helpers.own_ops import RowMax, example, unregistered

pytestmark = pytest.mark.feature("B046")

SNAKE, DISTANCES = example()["Snake"], example()["Distances"]
OWN = [SNAKE, DISTANCES, RowMax]


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    with unregistered():
        yield


@pytest.mark.feature("F105")
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("op_class", OWN, ids=lambda c: c.name)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_values_eagerly_and_in_graphs(op_class: type[CustomOp], dtype: Any, backend: str) -> None:
    rng = np.random.default_rng(0)
    for sample in op_class.samples():
        arrays = sample.draw(rng, dtype)
        wanted = run_reference(sample.op, arrays, float64)
        eager = bind(sample.op, *map(lm.tensor, arrays))
        traced = lm.trace(lambda *xs, op=sample.op: bind(op, *xs), *arrays)
        planned = lm.compile(traced, "cpu", backend=backend)(*arrays)
        for a, b, w in zip(eager, planned, wanted, strict=True):
            assert not mismatch(a.numpy(), w, as_dtype(a.dtype))
            np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.feature("F105")
@pytest.mark.parametrize("op_class", OWN, ids=lambda c: c.name)
def test_gradients_by_finite_differences(op_class: type[CustomOp]) -> None:
    rng = np.random.default_rng(1)
    for sample in op_class.samples():
        arrays = sample.draw(rng, float64)
        weights = rng.standard_normal(sample.op.infer(*(Spec(a.shape, float64) for a in arrays))[0].shape)

        def loss(*xs: Any, op: Op = sample.op, weights: Any = weights) -> Any:
            return ops.sum(call(op, *xs) * weights)

        for i, x in enumerate(arrays):
            found = lm.grad(loss, i)(*arrays).numpy()
            direction = rng.standard_normal(x.shape)
            ends = [
                float(loss(*arrays[:i], lm.tensor(np.asarray(x + h * direction)), *arrays[i + 1 :]))
                for h in (1e-6, -1e-6)
            ]
            assert abs((ends[0] - ends[1]) / 2e-6 - (found * direction).sum()) < 1e-5


def test_second_derivatives_go_through_an_own_gradient() -> None:
    x = np.linspace(-1, 1, 5)
    first = lm.grad(lambda x: ops.sum(call(SNAKE(1.5), x)))
    second = lm.grad(lambda x: ops.sum(first(x)))(x)
    np.testing.assert_allclose(second.numpy(), 3 * np.cos(3 * x), atol=1e-12)


@pytest.mark.feature("F105")
def test_a_training_step_runs_a_python_function() -> None:
    lm.manual_seed(0)

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(3, 4)

        def forward(self, x: Any) -> Any:
            return bind(RowMax(), call(SNAKE(2.0), self.inner(x)))[0]

    net = Net()
    x = np.random.default_rng(0).standard_normal((16, 3)).astype(np.float32)
    step = lm.train_step(net, ops.mse_loss, lm.optim.SGD(lr=0.05), device="cpu")
    losses = [float(step(x, x.sum(1))) for _ in range(60)]
    assert losses[-1] < 0.3 * losses[0]


def test_a_saved_graph_needs_its_op(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "own.safetensors"
    graph.save(lm.trace(lambda x: call(SNAKE(1.5), x), np.ones(3, np.float32)), path)
    with pytest.raises(ValueError, match=r"unknown op 'snake': import the module that defines it first"):
        graph.load(path)
    monkeypatch.setitem(REGISTRY, "snake", SNAKE)
    (found,) = graph.load(path)(np.ones(3, np.float32))
    np.testing.assert_allclose(found.numpy(), 1 + np.sin(1.5) ** 2 / 1.5, rtol=1e-6)


# ----------------------------------------------------------------------------------------------------------- shipping


class Entry:
    """An entry point of a package that is not there."""

    def __init__(self, name: str, what: Any) -> None:
        self.name, self.what = name, what

    def load(self) -> Any:
        REGISTRY.setdefault("snake", SNAKE)
        return self.what


@pytest.fixture
def shipping(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def entries(*, group: str) -> list[Entry]:
        return [Entry("snake", lambda x: call(SNAKE(1.0), x))] if group == "lamina.ops" else []

    monkeypatch.setattr(custom, "entry_points", entries)
    custom._entries.cache_clear()
    yield
    custom._entries.cache_clear()


@pytest.mark.usefixtures("shipping")
def test_what_a_package_ships_is_found_by_name(tmp_path: Any) -> None:
    assert ops.snake(lm.tensor([0.0])).tolist() == [0.0]
    with pytest.raises(AttributeError, match="no attribute 'python'"):
        _ = ops.python
    assert shipped("adder") is None
    path = tmp_path / "own.safetensors"
    graph.save(lm.trace(lambda x: call(SNAKE(1.5), x), np.ones(3, np.float32)), path)
    REGISTRY.pop("snake", None)
    assert graph.load(path).nodes[0].op == SNAKE(1.5)
    assert find_op("snake") is SNAKE


def test_the_group_is_read_from_installed_packages() -> None:
    names = [e.name for e in importlib.metadata.entry_points(group=custom.GROUP)]
    assert custom.shipped_names() == sorted(names)


# ----------------------------------------------------------------------------------------------------------- mistakes


class _Wrong(CustomOp):
    """Instances differ in what their methods give."""

    __eq__, __hash__ = object.__eq__, object.__hash__

    def __init__(self, **methods: Any) -> None:
        for name, result in methods.items():
            object.__setattr__(self, name, lambda *given, result=result: result)

    def infer(self, x: Spec) -> Any:
        return (x.open,)

    def reference(self, x: Any) -> Any:
        return (x,)


X = np.ones((2, 3), np.float32)


@pytest.mark.parametrize(
    ("methods", "error", "text"),
    [
        ({"reference": X}, TypeError, "one for each of its 1 outputs, got a ndarray"),
        ({"reference": (X, X)}, TypeError, "one for each of its 1 outputs, got 2 of them"),
        ({"reference": (X[0],)}, ShapeError, r"reference gave shape \(3,\) for output 0, .*infer says \(2, 3\)"),
        ({"infer": Spec((2, 3), lm.float32)}, TypeError, "infer must give a tuple with one Spec"),
        ({"infer": ((2, 3),)}, TypeError, r"infer must give a tuple .* write return \(Spec\(shape, dtype\),\)"),
    ],
)  # fmt: skip
def test_methods_that_give_something_else(methods: dict[str, Any], error: type[Exception], text: str) -> None:
    for run in (lambda x: call(_Wrong(**methods), x), _planned(methods)):
        with pytest.raises(error, match=text):
            run(lm.tensor(X))


def _planned(methods: dict[str, Any]) -> Any:
    return lambda x: lm.compile(lm.trace(lambda x: call(_Wrong(**methods), x), x), "cpu", optimize=False)(x)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        (X, "vjp must give a tuple with one gradient or None for each of its 1 inputs, got array"),
        ((X, X), "vjp gave 2 gradients for 1 inputs"),
        ((lm.ones(3),), r"vjp gave f32\[3\].* for an input f32\[2,3\]"),
    ],
)
def test_gradients_that_are_something_else(result: Any, text: str) -> None:
    with pytest.raises(TypeError, match=text):
        lm.grad(lambda x: ops.sum(call(_Wrong(vjp=result), x)))(X)


def test_a_name_that_is_taken_is_refused() -> None:
    with pytest.raises(
        TypeError, match="there is an op 'relu' already, lamina.ops.primitives.pointwise.Relu"
    ):

        class Relu(CustomOp):
            pass

    assert REGISTRY["relu"].__module__ == "lamina.ops.primitives.pointwise"


def test_a_class_that_is_defined_anew_takes_its_place() -> None:
    def define(factor: int) -> type[CustomOp]:
        @dataclass(frozen=True)
        class Again(CustomOp):
            elementwise = True

            def infer(self, x: Spec) -> tuple[Spec]:
                return (x.open,)

            def reference(self, x: Any) -> Sequence[Any]:
                return (x * factor,)

        return Again

    first, second = define(2), define(3)
    assert REGISTRY["again"] is second
    assert call(first(), lm.tensor([1.0])).tolist() == [2.0]
    assert call(second(), lm.tensor([1.0])).tolist() == [3.0]


def test_a_kernel_says_how_many_threads_it_takes() -> None:
    with pytest.raises(
        TypeError, match="CudaKernel f: give either threads .* or grid, got threads=None, grid=None"
    ):
        CudaKernel("f", "")
    with pytest.raises(TypeError, match="with threads block is an int"):
        CudaKernel("f", "", threads=4, block=(2, 2))
    assert CudaKernel("f", "", threads=257).blocks == (2,)
    assert CudaKernel("f", "", threads=0).blocks == (1,)
    assert CudaKernel("f", "", grid=(3, 2), block=(8, 8)).blocks == (3, 2)
