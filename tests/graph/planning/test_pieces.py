"""Parts of a tensor that are one piece of its memory are views that begin within it."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.backends import passing_plan
from lamina.graph import Executable, compile, gradients, trace
from lamina.graph.planning.layout import _read_otherwise
from lamina.graph.planning.program import PlannedStep, Slot
from lamina.graph.run.context import ExecutionContext
from lamina.graph.run.recorded import Recording
from lamina.graph.run.two_pass import TwoPassContext, TwoPassProgram
from lamina.replay.file import Parts
from lamina.runtime import Device
from lamina.spec import Layout, Spec, float32
from tests.graph.run.test_recorded import played
from tests.helpers.laid import run_laid
from tests.helpers.planned import H200

SIDE = 64  # a row of floats is 256 bytes


def normal(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32) / 8


def product_of_parts(x: Any, w: Any) -> Any:
    """Queries, keys and values of one product, for readers that are products themselves."""
    q, k, v = (x @ w).unbind(0)
    return ops.softmax(q @ k.transpose(0, 1), 1) @ v


def offsets(run: Executable) -> list[int]:
    """Where parts begin that are views, in bytes."""
    return [s.outputs[0].offset for s in run.program.steps if s.label == "slice" and s.plan.view]


def copied(run: Executable) -> int:
    return sum(s.label == "slice" and not s.plan.view for s in run.program.steps)


def exactly(x: Any, w: Any) -> Any:
    """`product_of_parts` in float64."""
    q, k, v = x.astype(np.float64) @ w.astype(np.float64)
    e = np.exp(q @ k.T)
    return e / e.sum(1, keepdims=True) @ v


@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("poison", [False, True])
def test_parts_of_the_outermost_axis_are_not_copied(backend: str, poison: bool) -> None:
    x, w = normal(3, SIDE, SIDE), normal(SIDE, SIDE, seed=1)
    run = compile(trace(product_of_parts, x, w), "cpu", backend=backend, poison=poison)
    assert (offsets(run), copied(run)) == ([0, 16384, 32768], 0)
    for _ in range(2):
        np.testing.assert_allclose(run(x, w)[0].numpy(), exactly(x, w), rtol=1e-4, atol=1e-5)


def test_gradients_through_parts() -> None:
    x, w = normal(3, SIDE, SIDE), normal(SIDE, SIDE, seed=1)

    def f(x: Any, w: Any) -> list[Any]:
        return gradients(ops.sum(ops.square(product_of_parts(x, w))), [x, w])

    graph = trace(f, x, w)
    run = compile(graph, "cpu", poison=True)
    assert len(offsets(run)) >= 3
    h = 1e-5
    for found, i in zip(run(x, w), range(2), strict=True):
        given = [x.astype(np.float64), w.astype(np.float64)]
        direction = normal(*given[i].shape, seed=7).astype(np.float64)
        ends = []
        for sign in (1, -1):
            moved = [g + sign * h * direction if j == i else g for j, g in enumerate(given)]
            ends.append(np.square(exactly(*moved)).sum())
        assert (found.numpy() * direction).sum() == pytest.approx((ends[0] - ends[1]) / (2 * h), rel=1e-3)


@pytest.mark.parametrize(
    ("shape", "part", "is_view"),
    [
        ((4, 63), lambda x: x[1:3], False),  # begins 252 bytes in
        ((65, 63), lambda x: x[64:], True),
        ((4, 64), lambda x: x[::2], False),
        ((4, 64), lambda x: x[:, :32], False),
        ((1, 4, 64), lambda x: x[:, 2:], True),
        ((2, 4, 64), lambda x: x[:, 2:], False),
        ((2, 4, 64), lambda x: x[1:, 2:3], True),
        ((2, 4, 64), lambda x: x[1:, 2:2], False),
    ],
)
def test_what_is_no_piece_or_begins_elsewhere_is_copied(
    shape: tuple[int, ...], part: Callable[[Any], Any], is_view: bool
) -> None:
    x = normal(*shape)
    run = compile(trace(lambda x: part(ops.cumsum(x, 0)), x), "cpu", optimize=False)
    assert bool(offsets(run)) is is_view
    np.testing.assert_allclose(
        run(x)[0].numpy(), part(np.cumsum(x.astype(np.float64), 0)), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("part", "read", "is_view"),
    [
        (lambda y: y[:, :32], ops.tanh, True),
        (lambda y: y[:, 32:], lambda p: p.sum(1), True),
        (lambda y: y[:, 32:], lambda p: ops.softmax(p, 0), True),
        (lambda y: y[:, 8:32], lambda p: ops.cat([p, p], 1), True),
        (lambda y: y[:, 8:40].reshape((3, 8, 16, 32)), lambda p: ops.tanh(p.transpose(1, 2)), True),
        (lambda y: y[:, 4:36], ops.tanh, True),  # begins 16 bytes in
        (lambda y: y[:, 3:35], ops.tanh, False),
        (lambda y: y[:, ::2], ops.tanh, False),
        (lambda y: y[:, :4], ops.tanh, False),  # so little that the whole is not kept for it
        (lambda y: y[:, :32], lambda p: ops.cumsum(p, 1), False),  # which asks for dense lines
        (lambda y: y[:, :32], lambda p: [ops.tanh(p), ops.cumsum(p, 1)], False),
        (lambda y: y[:, :32], lambda p: p, False),  # a result
    ],
)
def test_parts_with_gaps_stay_where_they_are_if_all_readers_take_them(
    part: Callable[[Any], Any], read: Callable[[Any], Any], is_view: bool
) -> None:
    """On a GPU, whose kernels address operands by strides; on a CPU NumPy's would take the place of fast ones."""

    def f(x: Any) -> Any:
        return read(part(ops.cumsum(x, 0)))

    x = normal(3 * 128, 64)
    graph = trace(f, x)
    planned = compile(graph, H200, optimize=False)
    assert copied(planned) == (not is_view)
    assert copied(compile(graph, "cpu", optimize=False)) == 1
    wanted = [y.numpy() for y in compile(graph, "cpu", backend="reference")(x)]
    for laid, y in zip(run_laid(planned.program, [x]), wanted, strict=True):
        np.testing.assert_allclose(laid, y, rtol=1e-4, atol=1e-5)


def test_parts_of_an_input_and_results_that_are_parts() -> None:
    """Each result is memory of its own: the next call, and who writes its input, leave it alone."""
    run = compile(trace(lambda x: [x[1], x[0] @ x[1], ops.cumsum(x, 0)[2]], normal(3, SIDE, SIDE)), "cpu")
    assert copied(run) == 0
    given = [lm.tensor(normal(3, SIDE, SIDE, seed=s)) for s in range(2)]
    expected = [x.numpy().copy() for x in given]
    found = [run(x) for x in given]
    for x in given:
        x.copy_(np.zeros((3, SIDE, SIDE), np.float32))
    for x, ys in zip(expected, found, strict=True):
        for y, wanted in zip(ys, [x[1], x[0] @ x[1], x.sum(0)], strict=True):
            np.testing.assert_allclose(y.numpy(), wanted, rtol=1e-4, atol=1e-5)


def random_parts(seed: int) -> tuple[Any, list[Any]]:
    """A graph of products, sums, turns and parts with and without gaps, in any order on [4, SIDE, SIDE], and what it
    is called with."""
    arrays = [normal(4, SIDE, SIDE, seed=seed), normal(4, SIDE, SIDE, seed=seed + 1000)]

    def f(*given: Any) -> list[Any]:
        rng, values = np.random.default_rng(seed), list(given)
        for _ in range(int(rng.integers(5, 20))):
            a, b = (values[int(i)] for i in rng.integers(0, len(values), 2))
            first = int(rng.integers(0, 4))
            part = a[first : first + 1]
            made = [
                lambda a=a, b=b: ops.tanh(a @ b),
                lambda a=a, part=part: a + part,
                lambda part=part, b=b: ops.tanh(part @ b),
                lambda a=a: a.transpose(1, 2) + a,
                lambda a=a: ops.softmax(a, 2),
                lambda a=a, b=b: ops.cat([a[2:], b[:2]], 0),
                lambda a=a: ops.cumsum(a, 0) * 0.25,
                lambda a=a: ops.cat([ops.tanh(a[:, :, 8:40]), ops.softmax(a[..., 32:], 1)], 2),
                lambda a=a: (a[:, :, 16:48] @ a[:, 32:]).sum(1, keepdim=True) * 0.1 + a,
            ]
            values.append(made[int(rng.integers(0, len(made)))]())
        last = values[-1]
        return [last[3], values[int(rng.integers(0, len(values)))], ops.tanh(last)]

    return trace(f, *arrays), arrays


@pytest.mark.parametrize("optimize", [False, True])
@pytest.mark.parametrize("seed", range(25))
def test_random_graphs(seed: int, optimize: bool) -> None:
    """With donated state, and what is dead overwritten; and planned for a GPU, each value at its place."""
    graph, arrays = random_parts(seed)
    wanted = [y.numpy().copy() for y in graph(*arrays)]
    state = lm.tensor(arrays[0])
    run = compile(graph, "cpu", donate={0: 1}, poison=True, optimize=optimize)
    run.load({0: state})
    part, rest = run(arrays[1])
    for found, y in zip((part, state, rest), wanted, strict=True):
        np.testing.assert_allclose(found.numpy(), y, rtol=1e-4, atol=1e-5)
    planned = compile(graph, H200, optimize=optimize)
    for laid, y in zip(run_laid(planned.program, arrays), wanted, strict=True):
        np.testing.assert_allclose(laid, y, rtol=1e-4, atol=1e-5)


def test_a_step_that_reads_a_piece_beside_the_whole_does_not_write_there() -> None:
    spec = Spec((4, SIDE), float32).fixed
    whole, alone = Slot(spec, "temporary"), Slot(spec, "temporary")
    piece = Slot(Spec((2, SIDE), float32).fixed, "temporary", shares=whole, begins=512)
    turned = Slot(Spec((SIDE, 4), float32, Layout((1, SIDE))), "temporary", shares=whole)
    assert piece.offset == 512
    plan, add = passing_plan([spec], "x"), trace(lambda a, b: a + b, spec.open, spec.open).nodes[0]
    assert _read_otherwise(PlannedStep(plan, (whole, piece), (), add), whole, [whole, piece])
    assert _read_otherwise(PlannedStep(plan, (turned, whole), (), add), whole, [turned, whole])
    assert not _read_otherwise(PlannedStep(plan, (whole, whole, alone), (), add), whole, [whole, whole])
    assert plan.offset == 0


@pytest.mark.parametrize("target", [H200, "cpu"], ids=["gpu", "cpu"])
@pytest.mark.parametrize(
    "change",
    [
        lambda y, i: ops.scatter_add(y, 1, i, y),
        lambda y, i: ops.scatter(y, 1, i, y),
        lambda y, i: ops.scatter_reduce(y, 1, i, y, "amax"),
        lambda y, i: ops.index_add(y, 0, i[0], y),
    ],
)
def test_a_value_that_is_changed_at_places_by_itself_stays_as_it_is(change: Any, target: Any) -> None:
    """Its elements are read after others were written."""

    def f(x: Any, index: Any) -> Any:
        return [change(x * 2.0, index)]

    x = normal(2 * SIDE, 2 * SIDE)
    index = np.random.default_rng(1).permuted(np.tile(np.arange(2 * SIDE), (2 * SIDE, 1)), axis=1)
    (wanted,) = f(lm.tensor(x), lm.tensor(index))
    found = compile(trace(f, x, index), target)
    if target == "cpu":
        np.testing.assert_array_equal(found(x, index)[0].numpy(), wanted.numpy())
    np.testing.assert_array_equal(run_laid(found.program, [x, index])[0], wanted.numpy())


def test_a_value_that_an_elementwise_step_reads_twice_is_overwritten() -> None:
    def f(x: Any) -> Any:
        for _ in range(3):
            x = x * x
        return [x]

    assert (
        compile(trace(f, normal(SIDE, SIDE)), "cpu", backend="null", optimize=False).peak_bytes == 4 * SIDE**2
    )


def test_a_footprint_is_the_whole_block() -> None:
    """Steps on two streams wait for who writes the block that a piece lies in, wherever in it."""
    run = compile(trace(product_of_parts, normal(3, SIDE, SIDE), normal(SIDE, SIDE)), "cpu")
    context = ExecutionContext(run.program, run.program.outputs, {}, Device("cpu"), poison=False)
    piece = next(s.outputs[0] for s in run.program.steps if s.outputs[0].offset == 32768)
    step = next(s for s in run.program.steps if s.plan.view and s.outputs[0] is piece)
    begin = context._pointer(piece.base)
    assert context._pointer(piece) == begin + 32768
    assert context._footprint(step).reads == ((begin, begin + piece.base.spec.nbytes),)
    assert context._footprint(step).writes == context._footprint(step).reads


def test_saved_programs_read_pieces() -> None:
    x, w = normal(3, SIDE, SIDE), normal(SIDE, SIDE, seed=1)
    run = compile(trace(lambda x, w: [product_of_parts(x, w), (x @ w)[1]], x, w), "cpu")
    parts = Parts()
    player = played(Recording(run, parts).data, parts)
    for found, wanted in zip(player(x, w), run(x, w), strict=True):
        np.testing.assert_array_equal(found, wanted.numpy())


def test_results_of_two_passes_are_pieces() -> None:
    x = normal(3, SIDE, SIDE)
    graph = trace(lambda x: [ops.cumsum(x, 0)[1], ops.cumsum(x, 0)[2] @ x[1]], x)
    context = TwoPassContext(TwoPassProgram(graph, Device("cpu"), 1), {})
    context.places[0].copy_(x)
    context.forward()
    np.testing.assert_allclose(context.result(0).numpy(), x[0] + x[1], rtol=1e-5, atol=1e-6)
    context.backward()
    np.testing.assert_allclose(context.result(1).numpy(), x.sum(0) @ x[1], rtol=1e-4, atol=1e-5)
