"""Rules about samples are proven by changing samples; graphs of two sizes are compared node by node."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import lamina as lm
import lamina.backends.cuda  # registers its own ops, the joint attention
from lamina import nn, ops
from lamina.graph import Graph, trace
from lamina.graph.ir.batch_axis import batch_of, output_axes
from lamina.nn.module import evaluating
from lamina.ops.core import REGISTRY, Array, BatchAxis, Op, Sample, bind
from lamina.spec import DType, Spec, float32, int64
from tests.helpers.registered import registered

#: Combinations of axes that are tried for one call.
TRIES = 60


def combinations(
    arrays: list[Array], rng: np.random.Generator
) -> Iterator[tuple[int, list[BatchAxis | None]]]:
    """Numbers of samples, and axes of the inputs that could hold them."""
    for count in sorted({n for a in arrays for n in a.shape if n > 1}):
        choices: list[list[BatchAxis | None]] = [
            [None, *(BatchAxis(i, n // count) for i, n in enumerate(a.shape) if n and n % count == 0)]
            for a in arrays
        ]
        every = [list(c) for c in itertools.islice(itertools.product(*choices), 4096) if any(c)]
        for k in rng.permutation(len(every))[:TRIES]:
            yield count, every[int(k)]


def sample_of(array: Array, axis: BatchAxis, j: int) -> Any:
    return (slice(None),) * axis.axis + (slice(j * axis.size, (j + 1) * axis.size),)


def check(op: Op, arrays: list[Array], others: list[Array], count: int, axes: list[BatchAxis | None]) -> bool:
    """Whether the op has a rule for these axes; raises where it is wrong."""
    found = op.batch_axes([Spec(a.shape, float32) for a in arrays], axes)
    if found is None:
        return False
    j = int(np.random.default_rng(count).integers(count))
    changed = [a.copy() for a in arrays]
    for a, other, axis in zip(changed, others, axes, strict=True):
        if axis is not None:
            a[sample_of(a, axis, j)] = other[sample_of(a, axis, j)]
    with np.errstate(all="ignore"):
        before, after = op.reference(*arrays), op.reference(*changed)
    assert len(found) == len(before)
    for x, y, axis in zip(before, after, found, strict=True):
        x, y = np.array(x), np.array(y)
        if axis is not None:
            assert x.shape[axis.axis] == count * axis.size
            y[sample_of(y, axis, j)] = x[sample_of(x, axis, j)]
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5, err_msg=f"{op} {axes} {found}")
    return True


def draws(sample: Sample) -> tuple[list[Array], list[Array]]:
    rng = np.random.default_rng(0)
    return sample.draw(rng, float32), sample.draw(rng, float32)


@pytest.mark.parametrize("name", registered())
def test_changing_a_sample_changes_that_sample_alone(name: str) -> None:
    rng = np.random.default_rng(1)
    for sample in itertools.islice(REGISTRY[name].samples(), 24):
        if sample.dtypes is not None and float32 not in sample.dtypes:
            continue
        arrays, others = draws(sample)
        for count, axes in combinations(arrays, rng):
            check(sample.op, arrays, others, count, axes)


class _WrongRule(Op):
    """A mean over the samples that says that it is none."""

    name = "wrong_rule"

    def batch_axes(self, inputs: Any, axes: Any) -> Any:
        return axes

    def reference(self, *inputs: Array) -> tuple[Array, ...]:
        return (inputs[0] - inputs[0].mean(0),)


def test_a_wrong_rule_is_found() -> None:
    rng = np.random.default_rng(0)
    arrays, others = [rng.standard_normal((4, 3))], [rng.standard_normal((4, 3))]
    with pytest.raises(AssertionError):
        check(_WrongRule(), arrays, others, 4, [BatchAxis(0)])


USUAL = (
    "add relu where matmul conv conv_data_grad max_pool avg_pool batch_norm_infer layer_norm rms_norm group_norm "
    "softmax log_softmax reduce arg_max cross_entropy embedding attention joint_attention rnn reshape transpose "
    "concat slice pad expand flip cast local_response_norm quantized_conv quantized_matmul"
)


@pytest.mark.parametrize("name", USUAL.split())
def test_usual_ops_have_a_rule(name: str) -> None:
    rng, rules = np.random.default_rng(1), 0
    for sample in itertools.islice(REGISTRY[name].samples(), 24):
        arrays = sample.draw(np.random.default_rng(0), float32)
        for _, axes in combinations(arrays, rng):
            rules += sample.op.batch_axes([Spec(a.shape, float32) for a in arrays], axes) is not None
    assert rules


# ---- graphs


def graphs(program: Callable[..., Any], *shapes: Callable[[int], tuple[int, ...]]) -> tuple[Graph, Graph]:
    """The program for 3 samples and for 5."""

    def made(n: int) -> Graph:
        return trace(program, *(Spec(s(n), float32) for s in shapes))

    return made(3), made(5)


def axes_of(program: Callable[..., Any], *shapes: Callable[[int], tuple[int, ...]]) -> Any:
    small, large = graphs(program, *shapes)
    batch = batch_of([v.spec for v in small.inputs], [v.spec for v in large.inputs])
    assert batch is not None
    return output_axes(small, large, batch)


def rows(n: int) -> tuple[int, ...]:
    return (n, 4)


IMAGE = (lambda n: (n, 3, 8, 8),)


@pytest.mark.parametrize(
    ("program", "shapes", "expected"),
    [
        (lambda x: ops.relu(x) + 1.0, (rows,), (BatchAxis(0),)),
        (lambda x: (ops.sum(x, 1), ops.transpose(x, 0, 1)), (rows,), (BatchAxis(0), BatchAxis(1))),
        (lambda x: ops.mean(x, 0), (rows,), None),
        (lambda x: ops.softmax(x, 0), (rows,), None),
        (lambda x: ops.softmax(x, 1), (rows,), (BatchAxis(0),)),
        (lambda x: x * float(x.shape[0]), (rows,), None),  # the number of samples is in a constant
        (lambda x: x + np.ones(x.shape, np.float32), (rows,), (BatchAxis(0),)),
        (lambda x: x + np.arange(x.shape[0], dtype=np.float32)[:, None], (rows,), (BatchAxis(0),)),
        (lambda x: x + np.linspace(0, 1, x.shape[0], dtype=np.float32)[:, None], (rows,), None),
        (lambda x: ops.matmul(x, np.ones((4, 2), np.float32)), (rows,), (BatchAxis(0),)),
        (lambda x: ops.matmul(x, ops.transpose(x, 0, 1)), (rows,), None),
        (lambda x: ops.reshape(x, (x.shape[0] * 2, 2)), (rows,), (BatchAxis(0, 2),)),
        (lambda x: ops.reshape(x, (2, x.shape[0] * 2)), (rows,), None),
        (lambda x: x[:1], (rows,), None),
        (lambda x: x[::-1], (rows,), None),
        (lambda x: ops.cat([x, x], 0), (rows,), None),
        (lambda x: ops.cat([x, x], 1), (rows,), (BatchAxis(0),)),
        (
            lambda x: ops.cat([x, ops.expand(np.zeros((1, 1), np.float32), (x.shape[0], 1))], 1),
            (rows,),
            (BatchAxis(0),),
        ),
        (lambda x, y: x + y, (rows, rows), (BatchAxis(0),)),
        (lambda x, y: ops.matmul(x, y), (rows, lambda n: (4, n)), None),
        (lambda x: x if x.shape[0] < 4 else x * 2.0, (rows,), None),
        (lambda x: ops.conv2d(x, np.ones((2, 3, 3, 3), np.float32)), IMAGE, (BatchAxis(0),)),
        (lambda x: ops.conv2d(x, np.ones((2, 3, 3, 3), np.float32)), (lambda n: (2, 3, 8 * n, 8),), None),
    ],
)
def test_programs(program: Any, shapes: Any, expected: Any) -> None:
    assert axes_of(program, *shapes) == expected


@pytest.mark.parametrize(
    ("make", "shape", "expected"),
    [
        (lambda: nn.LSTM(4, 6, bidirectional=True), lambda n: (n, 2, 4), None),  # the axis of time
        (lambda: nn.LSTM(4, 6, bidirectional=True), lambda n: (7, n, 4), (BatchAxis(1),) * 3),
        (lambda: nn.GRU(4, 6, batch_first=True), lambda n: (n, 7, 4), (BatchAxis(0), BatchAxis(1))),
        (lambda: nn.BatchNorm1d(4), rows, (BatchAxis(0),)),
        (lambda: nn.BatchNorm1d(4, track_running_stats=False), rows, None),
        (lambda: nn.InstanceNorm2d(3), IMAGE[0], (BatchAxis(0),)),
        (lambda: nn.GroupNorm(1, 3), IMAGE[0], (BatchAxis(0),)),
        (lambda: nn.Sequential(nn.Dropout(0.5), nn.Flatten(), nn.Linear(192, 5)), IMAGE[0], (BatchAxis(0),)),
        (
            lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
            lambda n: (n, 7, 8),
            (BatchAxis(0),),
        ),
        (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), lambda n: (2, n, 8), None),
        (lambda: nn.resnet18(num_classes=5), lambda n: (n, 3, 32, 32), (BatchAxis(0),)),
        (lambda: nn.MobileNetV2(num_classes=5), lambda n: (n, 3, 32, 32), (BatchAxis(0),)),
    ],
)
def test_layers(make: Any, shape: Any, expected: Any) -> None:
    net = make()
    with evaluating(net):
        assert axes_of(net, shape) == expected


def by_size(few: Callable[..., Any], many: Callable[..., Any]) -> Callable[..., Any]:
    """A program that does one thing for 3 samples and another for 5."""
    return lambda x, *rest: (few if x.shape[0] < 4 else many)(x, *rest)


def precise(x: Any) -> Any:
    with lm.policy(deterministic=True):
        return ops.relu(x)


@pytest.mark.parametrize(
    ("count", "few", "many"),
    [
        (1, ops.relu, ops.tanh),
        (1, ops.relu, precise),
        (1, ops.relu, lambda x: ops.relu(ops.relu(x))),
        (1, ops.relu, lambda x: (ops.relu(x), x)),
        (1, lambda x: x * 2.0, lambda x: x * 3.0),
        (1, lambda x: ops.softmax(x, 1), lambda x: ops.softmax(x, 0)),
        (1, lambda x: ops.reshape(x, (x.shape[0], 2, 2)), lambda x: ops.reshape(x, (x.shape[0], 2, 2, 1))),
        (2, lambda x, y: x - y, lambda x, y: y - x),
        (2, lambda x, y: (x + 1.0, y * 2.0), lambda x, y: (x + 1.0, y * 2.0)[::-1]),
    ],
)
def test_graphs_that_differ_in_anything_else_are_two_programs(count: int, few: Any, many: Any) -> None:
    shapes = [rows] * count
    assert axes_of(few, *shapes) is not None
    assert axes_of(by_size(few, many), *shapes) is None


@pytest.mark.parametrize(
    ("rows_of", "anywhere"),
    [
        (lambda n: np.ones((n, 1)), True),
        (lambda n: np.arange(n)[:, None], False),
        (lambda n: np.eye(n, 1), False),  # the first differs from the others
        (lambda n: np.eye(n, 1, -2), False),  # the third does
        (lambda n: np.full((1, 4), 3), True),
    ],
)
def test_samples_may_lie_anywhere_where_constants_are_alike_for_all(rows_of: Any, anywhere: bool) -> None:
    small, large = graphs(lambda x: x + rows_of(x.shape[0]).astype(np.float32), rows)
    batch = batch_of([v.spec for v in small.inputs], [v.spec for v in large.inputs])
    assert batch is not None
    assert output_axes(small, large, batch) == (BatchAxis(0),)
    assert output_axes(small, large, batch, anywhere=True) == ((BatchAxis(0),) if anywhere else None)


@dataclass(frozen=True)
class _Sized(Op):
    """Makes rows of a size by the number of samples, and says that these are its samples."""

    name = "sized"
    of: Callable[[int], tuple[int, ...]] = rows
    kinds: tuple[DType, DType] = (float32, float32)  # for few and for many samples

    def infer(self, *inputs: Spec) -> tuple[Spec, ...]:
        n = inputs[0].shape[0]
        return (Spec(self.of(n), self.kinds[n > 3]),)

    def batch_axes(self, inputs: Any, axes: Any) -> Any:
        return axes


@pytest.mark.parametrize(
    ("of", "kinds", "expected"),
    [
        (lambda n: (n, 4), (float32, float32), (BatchAxis(0),)),
        (lambda n: (5, 4), (float32, float32), None),  # as many rows as there are samples in the large graph
        (lambda n: (3, 4), (float32, float32), None),  # … in the small one
        (lambda n: (2 * n, 4), (float32, float32), None),
        (lambda n: (n + 1, 4), (float32, float32), None),
        (lambda n: (n, n), (float32, float32), None),
        (lambda n: (n, 4), (float32, int64), None),
    ],
)
def test_a_rule_that_does_not_fit_the_shapes_is_not_believed(of: Any, kinds: Any, expected: Any) -> None:
    assert axes_of(lambda x: bind(_Sized(of, kinds), x), rows) == expected


def test_the_batch_is_what_differs() -> None:
    def spec(*shape: int) -> Spec:
        return Spec(shape, float32)

    assert batch_of([spec(3, 4), spec(2, 2)], [spec(5, 4), spec(2, 2)]) == ((0, None), 3, 5)
    assert batch_of([spec(3, 4), spec(4, 3)], [spec(5, 4), spec(4, 5)]) == ((0, 1), 3, 5)
    for small, large in (
        ([spec(3, 4)], [spec(3, 4)]),
        ([spec(5, 4)], [spec(3, 4)]),
        ([spec(0, 4)], [spec(3, 4)]),
        ([spec(3, 4)], [spec(5, 5)]),
        ([spec(3), spec(3)], [spec(5), spec(6)]),
        ([spec(3)], [spec(5, 1)]),
        ([spec(3)], [Spec((5,), int64)]),
    ):
        assert batch_of(small, large) is None
