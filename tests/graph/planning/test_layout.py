"""Programs of any length are planned without recursion and in linear time; a plan is made once."""

import cProfile
import pstats
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import backends, onednn, ops
from lamina.backends import Plan
from lamina.graph import compile, gradients, trace
from lamina.graph.ir import serialize
from lamina.graph.planning.layout import Plans
from lamina.graph.planning.program import Slot
from lamina.graph.run.html import html_page
from lamina.graph.run.profile import profile
from lamina.spec import Policy, Spec, bfloat16, float32, uint8
from tests.helpers import slow_from
from tests.helpers.laid import copies, run_laid
from tests.helpers.planned import H200
from tests.helpers.stand_in import CUDA

X = Spec((4, 8), float32)


def training(layers: int) -> lm.graph.Graph:
    """A chain with a residual in each layer, its gradients and the updates of a parameter per layer."""

    def f(x, *weights):  # type: ignore[no-untyped-def]
        y = x
        for w in weights:
            y = ops.tanh(y * w) + y
        loss = ops.sum(y)
        return [loss, *(w - g for w, g in zip(weights, gradients(loss, weights), strict=True))]

    return trace(f, X, *[X] * layers)


def planned(layers: int, **options: Any) -> lm.graph.Executable:
    graph = training(layers)
    donate = {i + 1: i + 1 for i in range(layers)}
    return compile(graph, "cpu", backend="null", optimize=False, donate=donate, **options)


def calls(work: Callable[[], Any]) -> int:
    """How many function calls some work takes: a measure of time that does not vary."""
    recorder = cProfile.Profile()
    recorder.runcall(work)
    return int(pstats.Stats(recorder).total_calls)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    "work",
    [
        lambda n, folder: training(n),
        lambda n, folder: planned(n),
        lambda n, folder: planned(n, memory_limit=planned(n).peak_bytes * 3 // 4),
        lambda n, folder: serialize.load(_saved(training(n), folder)),
        lambda n, folder: str(training(n)),
        lambda n, folder: html_page(profile(planned(n), rounds=0), "a chain"),
    ],
    ids=["trace", "plan", "recompute", "save", "print", "html"],
)
def test_the_time_is_linear_in_the_layers(work: Callable[[int, Path], Any], tmp_path: Path) -> None:
    work(4, tmp_path)  # what is made once
    few, many = (calls(lambda: work(n, tmp_path)) for n in (20, 80))  # noqa: B023
    assert many < 4 * 1.2 * few


def _saved(graph: lm.graph.Graph, folder: Path) -> Path:
    serialize.save(graph, folder / "graph.lamina")
    return folder / "graph.lamina"


@pytest.mark.parametrize("backend", ["null", "cpu"])
def test_a_chain_of_any_length_is_planned(backend: str) -> None:
    """Longer than Python's recursion goes; every step works in the memory of the one before."""

    def f(x):  # type: ignore[no-untyped-def]
        for _ in range(1000):
            x = ops.relu(x) + 1.0
        return x

    found = compile(trace(f, X), "cpu", backend=backend, optimize=False)
    assert len(found.program.steps) == 2000
    assert found.peak_bytes == 256


def test_base_goes_through_any_number_of_views() -> None:
    slot = first = Slot(X.fixed, "temporary")
    for _ in range(5000):
        slot = Slot(X.fixed, "temporary", shares=slot)
    assert slot.base is first


def test_a_plan_is_made_once() -> None:
    backend, policy = backends.get(lm.device("cpu"), "null"), Policy()
    plans = Plans(backend)
    relu = ops.primitives.Relu()
    assert plans.plan(relu, [X], policy) is plans.plan(relu, [X], policy)
    assert plans.plan(relu, [X], policy) is not plans.plan(relu, [Spec((3,), float32)], policy)
    assert plans.reorder(X.fixed, X.fixed) is plans.reorder(X.fixed, X.fixed)


def test_what_runs_is_compiled_ahead_and_what_is_only_planned_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relu, begun = ops.primitives.Relu(), list[str]()
    monkeypatch.setattr(Plan, "compile_ahead", lambda plan: begun.append(plan.label))
    here = backends.get(lm.device("cpu"), "reference")
    found = [Plans(here).plan(relu, [X], Policy()), Plans(here).reorder(X.fixed, X.fixed)]
    assert begun == [plan.label for plan in found]
    Plans(CUDA).plan(relu, [X], Policy())
    assert len(begun) == 2


@pytest.mark.skipif(not onednn.available(), reason="oneDNN is built for x86-64")
@pytest.mark.parametrize("resident", [[1], []])
def test_what_stays_is_prepared_once(resident: list[int]) -> None:
    """A grouped filter whose layout has no name: packed when it is loaded, in each run where it may change."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(s).astype(np.float32) for s in ((1, 20, 6, 6), (28, 10, 1, 1)))
    graph = trace(lambda x, w: ops.conv2d(x, w, groups=2), x, w)
    executable = compile(graph, "cpu", resident=resident)
    if resident:
        executable.load({1: lm.tensor(w)})
    prepared = [s for s in executable.program.prologue if s.outputs[0].spec.dtype == uint8]
    (conv,) = (s for s in executable.program.steps if s.label == "conv")
    assert len(prepared) == (1 if resident and conv.inputs[1].spec.dtype == uint8 else 0)
    found = executable(x) if resident else executable(x, w)
    np.testing.assert_allclose(found[0].numpy(), graph(x, w)[0].numpy(), rtol=1e-5, atol=1e-5)


def made_once(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> list[str]:
    """What is made when the last operand is loaded; all others change from run to run."""
    graph = trace(fn, *[Spec(shape, float32) for shape in shapes])
    executable = compile(graph, "cpu", resident=[len(shapes) - 1], backend="null")
    return [step.label for step in executable.program.prologue]


@pytest.mark.parametrize(("rows", "once"), [(300, True), (300_000, False)])
def test_what_grows_a_little_is_kept(rows: int, once: bool) -> None:
    """Rows of a small table, as of a bias by relative positions; what is much larger than the table is made again."""
    index = np.arange(rows) % 7

    def fn(x: Any, table: Any) -> Any:
        return x * 2 + table[index].reshape(1, rows, 2)

    assert ("gather" in made_once(fn, (4, rows, 2), (7, 2))) is once


def test_what_is_repeated_is_read_where_it_lies() -> None:
    def fn(x: Any, row: Any) -> Any:
        return ops.tanh(x) @ row.expand(6, 8)

    assert "expand" not in made_once(fn, (4, 6), (1, 8))


# ------------------------------------------------------------------------------------------------- layouts and copies


def moved(rng: np.random.Generator, x: Any) -> Any:
    """A value under another shape, in another order, in part, beside itself, or with steps applied."""
    shape = x.shape
    kind = rng.integers(0, 9)
    if kind < 3:
        return x.permute(*(int(a) for a in rng.permutation(x.ndim)))
    if kind < 5:
        factors = [p for n in shape for p in _factors(n)]
        cuts = sorted({int(c) for c in rng.integers(0, len(factors) + 1, rng.integers(0, 5))})
        edges = [0, *cuts, len(factors)]
        return x.reshape(tuple(int(np.prod(factors[a:b], dtype=int)) for a, b in pairwise(edges)))
    axis = int(rng.integers(0, x.ndim)) if x.ndim else 0
    if kind == 5 and x.ndim and shape[axis] > 1:
        return ops.cat([x[(slice(None),) * axis + (slice(1, None),)], x], axis)
    if kind == 6:
        return ops.gelu(x) + 1.0
    if kind == 7 and x.ndim:
        return x * ops.mean(x, dim=axis, keepdim=True)
    return ops.tanh(x)


def _factors(n: int) -> list[int]:
    found = [p for p in (2, 3, 5, 7) if n % p == 0][:1]
    return [1] if n == 1 else [*found, *(_factors(n // found[0]) if n > found[0] else [])] if found else [n]


def moving(seed: int) -> tuple[lm.graph.Graph, list[np.ndarray]]:  # type: ignore[type-arg]
    """A program of such steps on two tensors, joined at the end, and its gradients."""
    rng = np.random.default_rng(seed)
    sizes = [1, 2, 2, 3, 4, 6]
    shapes = [tuple(int(n) for n in rng.choice(sizes, rng.integers(2, 5))) for _ in range(2)]
    arrays = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]

    def f(*inputs: Any) -> list[Any]:
        loss, made = None, []
        for x in inputs:
            y = x
            for _ in range(int(rng.integers(3, 9))):
                y = moved(rng, y)
            made.append(y)
            part = ops.sum(y * ops.tanh(y))
            loss = part if loss is None else loss + part
        return [*made, loss, *gradients(loss, inputs)]

    return trace(f, *arrays), arrays


@pytest.mark.parametrize("seed", slow_from(20, range(60)))
@pytest.mark.parametrize("improved", [False, True])
def test_moved_values_lie_where_they_are_read(seed: int, improved: bool) -> None:
    """On a GPU that is not there: with every value at its place in memory a program gives what its graph does."""
    graph, arrays = moving(seed)
    planned = compile(graph, H200, optimize=improved)
    for found, wanted in zip(run_laid(planned.program, arrays), graph(*arrays), strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=2e-4, atol=2e-4)


@pytest.mark.parametrize("seed", range(60, 90))
def test_moved_values_on_a_cpu(seed: int) -> None:
    graph, arrays = moving(seed)
    for found, wanted in zip(compile(graph, "cpu", poison=True)(*arrays), graph(*arrays), strict=True):
        np.testing.assert_allclose(found.numpy(), wanted.numpy(), rtol=2e-4, atol=2e-4)


def tokens_and_images(x: Any, w: Any) -> Any:
    """(N, L, C): a depthwise convolution of the tokens as an image, as hierarchical transformers have it."""
    n, length, channels = x.shape
    side = int(length**0.5)
    y = ops.conv2d(x.transpose(1, 2).reshape((n, channels, side, side)), w, padding=1, groups=channels)
    return ops.gelu(y.flatten(2).transpose(1, 2))


def parts_joined(x: Any) -> Any:
    """The gradient of what was split into heads: three parts, stacked, in the order of a product's rows."""
    n, length, width = x.shape
    parts = [ops.tanh(x).reshape((n, length, 4, width // 4)).transpose(1, 2) for _ in range(3)]
    return ops.stack(parts).permute(1, 3, 0, 2, 4).reshape((n, length, 3 * width)) @ lm.ones(
        (3 * width, 8), dtype=x.dtype
    )


def turned_behind_a_step(x: Any) -> Any:
    """Heads, scaled, for a product that takes rows."""
    n, length, width = x.shape
    return ops.matmul(
        (x.reshape((n, length, 4, width // 4)).transpose(1, 2) * 0.5).contiguous(),
        lm.ones((width // 4, 8), dtype=x.dtype),
    )


@pytest.mark.parametrize(
    ("f", "shapes", "needed"),
    [
        (tokens_and_images, [(2, 64, 32), (32, 1, 3, 3)], []),
        (parts_joined, [(2, 16, 64)], []),
        # The gradient, a product's result, has its heads in front.
        (turned_behind_a_step, [(2, 16, 64)], ["bf16[2,16,4,16]:acbd -> bf16[2,16,4,16]"]),
    ],
    ids=lambda f: getattr(f, "__name__", ""),
)
def test_no_copy_where_layouts_agree(
    f: Callable[..., Any], shapes: list[tuple[int, ...]], needed: list[str]
) -> None:
    """On a GPU that is not there, forward and backward."""

    def with_gradients(*inputs: Any) -> list[Any]:
        y = f(*inputs)
        loss = ops.sum(y * y)
        return [ops.cast(loss, float32), *gradients(loss, inputs)]

    found = compile(trace(with_gradients, *[Spec(s, bfloat16) for s in shapes]), H200)
    assert copies(found.program) == needed


@pytest.mark.skipif(not onednn.available(), reason="oneDNN is built for x86-64")
def test_no_copy_behind_a_step_on_a_cpu() -> None:
    """What nobody has read yet is written as the first reader wants it, which sees it through views."""
    heads = (4, 6, 32, 48)
    x = np.random.default_rng(0).standard_normal(heads).astype(np.float32)
    steps: list[Callable[[Any], Any]] = [
        lambda x: ops.cat([x, x], 3),
        lambda x: ops.pad(x, (1, 7)),
        lambda x: x[:, :, 1:],
        lambda x: ops.where(x > 0, ops.tanh(x) * 2.0, x),
    ]
    for step in steps:
        graph = trace(lambda x: step(x).transpose(1, 2).flatten(2), x)  # noqa: B023
        found = compile(graph, "cpu")
        assert not copies(found.program)
        np.testing.assert_allclose(found(x)[0].numpy(), graph(x)[0].numpy(), rtol=1e-6)


def test_what_is_read_stays_as_it_is() -> None:
    """A second reader that wants another layout gets a copy; what a program returns is not written otherwise."""

    def f(x: Any) -> list[Any]:
        y = ops.cat([x, x], 3)
        return [ops.exp(y), y.transpose(1, 2).flatten(2)]

    x = np.random.default_rng(0).standard_normal((2, 4, 16, 24)).astype(np.float32)
    graph = trace(f, x)
    program = compile(graph, H200).program
    assert copies(program) == ["f32[2,16,4,48]:acbd -> f32[2,16,4,48]"]
    for found, wanted in zip(run_laid(program, [x]), graph(x), strict=True):
        np.testing.assert_allclose(found, wanted.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("shown", "stays"),
    [
        (lambda y: y.reshape((12, 16 * 48)), True),  # no view of heads that lie behind the rows
        (lambda y: y.reshape((3, 4, 16, 6, 8)), False),
        (lambda y: y.permute(3, 0, 1, 2), False),
        (lambda y: y[1:], False),
        (lambda y: y[1:2], False),
        (lambda y: y[1:][:1], False),
        (lambda y: y[:, 1:3], "cpu"),  # a GPU reads the part where it lies, in either layout
    ],
)
@pytest.mark.parametrize("target", [H200, "cpu"], ids=["gpu", "cpu"])
def test_what_shows_a_value_otherwise_follows_it_or_keeps_it(target: Any, shown: Any, stays: Any) -> None:
    """The first reader has its heads turned; a view made before must still be one where the value lies so."""

    def f(x: Any) -> list[Any]:
        y = ops.cat([x, x], 3)
        other = shown(y)
        return [ops.exp(y.transpose(1, 2).flatten(2)), ops.tanh(other)]

    x = np.random.default_rng(0).standard_normal((3, 4, 16, 24)).astype(np.float32)
    graph = trace(f, x)
    found = compile(graph, target, optimize=False)
    assert bool(copies(found.program)) == (stays in (True, target))
    for result, wanted in zip(run_laid(found.program, [x]), graph(x), strict=True):
        np.testing.assert_allclose(result, wanted.numpy(), rtol=1e-6)


@pytest.mark.parametrize("shape", [(2, 0, 4, 3), (1, 1, 1, 1), (4, 1, 6, 1)])
def test_nothing_and_axes_of_one(shape: tuple[int, ...]) -> None:
    def f(x: Any, y: Any) -> list[Any]:
        z = ops.cat([x.permute(3, 1, 0, 2) + y, x.permute(3, 1, 0, 2)], 3)
        z = z.reshape((shape[3], shape[1] * shape[0], 2 * shape[2])).transpose(0, 1) * 2.0
        return [z.flatten(1), *gradients(ops.sum(z * z), [x, y])]

    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(s).astype(np.float32) for s in (shape, (1, 1, shape[2]))]
    graph = trace(f, *arrays)
    wanted = [y.numpy() for y in graph(*arrays)]
    for found, y in zip(run_laid(compile(graph, H200).program, arrays), wanted, strict=True):
        np.testing.assert_allclose(found, y, rtol=1e-5)
    for found, y in zip(compile(graph, "cpu")(*arrays), wanted, strict=True):
        np.testing.assert_allclose(found.numpy(), y, rtol=1e-5)
