"""What is done to many small tensors alike becomes one node, and no result changes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest

import lamina as lm
from lamina import backends, ops
from lamina.backends.cuda import backend as cuda_backend
from lamina.graph import gradients, trace
from lamina.graph.passes import foreach
from lamina.graph.passes.manager import optimize
from lamina.ops.core import Array, Op, bind
from lamina.ops.primitives import Foreach
from lamina.ops.primitives.update import Update
from lamina.spec import Spec, bfloat16, float32, int64
from tests.helpers.planned import H200

CPU = backends.get(lm.device("cpu"))


def names(graph: lm.graph.Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def test_updates_read_half_gradients_themselves() -> None:
    def f(p, g, m, rate):  # type: ignore[no-untyped-def]
        return ops.sgd_update(p, ops.cast(g, "float32"), m, rate, momentum=0.9)

    p, g = Spec((3,), float32), Spec((3,), bfloat16)
    graph = trace(f, p, g, p, Spec((), float32))
    slim = foreach.absorb_casts(graph)
    assert names(slim) == ["sgd_update"]
    arrays = [np.ones(v.shape, v.dtype.numpy) for v in graph.inputs]
    for found, expected in zip(slim(*arrays), graph(*arrays), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def loss_and_gradient(narrow: str, between: bool, reads: bool = False) -> lm.graph.Graph:
    """Cross-entropy of logits in bfloat16, in float32, whose gradient is rounded to `narrow`."""

    def f(x, labels):  # type: ignore[no-untyped-def]
        wide = ops.cast(x, "float32")
        seen = wide.reshape((12, 5)) if between else wide
        loss = ops.cross_entropy(seen, labels.reshape((12,)) if between else labels)
        (grad,) = gradients(loss, [wide])
        return loss, ops.cast(grad, narrow), *([grad] if reads else [])

    shape = (3, 4, 5) if between else (12, 5)
    return trace(f, Spec(shape, bfloat16), Spec(shape[:-1], int64))


@pytest.mark.parametrize("between", [False, True])
def test_losses_read_half_logits_and_give_half_gradients(between: bool) -> None:
    graph = loss_and_gradient("bfloat16", between)
    slim = optimize(graph, CPU)
    assert "cast" in names(graph)
    assert "cast" not in names(slim)
    rng = np.random.default_rng(0)
    x, labels = graph.inputs
    arrays = (rng.standard_normal(x.shape).astype(x.dtype.numpy), rng.integers(0, 5, labels.shape))
    for found, expected in zip(slim(*arrays), graph(*arrays), strict=True):
        assert found.spec == expected.spec
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


@pytest.mark.parametrize(("narrow", "reads"), [("float16", False), ("bfloat16", True)])
def test_a_gradient_that_is_rounded_otherwise_or_read_stays_wide(narrow: str, reads: bool) -> None:
    slim = foreach.absorb_casts(loss_and_gradient(narrow, between=True, reads=reads))
    (grad,) = (n for n in slim.nodes if n.op.name == "cross_entropy_grad")
    assert grad.outputs[0].dtype == float32


def _cuda() -> backends.Backend:
    """A value: nothing is opened."""
    pytest.importorskip("cuda.core")
    return cuda_backend(H200)


def _updates(count: int, size: int) -> lm.graph.Graph:
    def f(rate, *values):  # type: ignore[no-untyped-def]
        results = []
        for i in range(count):
            p, g, m = values[3 * i : 3 * i + 3]
            half = ops.cast(p, "bfloat16")
            results += [
                *ops.sgd_update(p, half * half, m, rate, momentum=0.9),
                half + ops.cast(g, "bfloat16"),
            ]
        return results

    specs = [Spec((size, i + 1), float32) for i in range(count) for _ in range(3)]
    return trace(f, Spec((), float32), *specs)


def test_small_updates_and_roundings_are_grouped_where_a_kernel_takes_many() -> None:
    cuda = _cuda()
    graph = _updates(5, 3)
    grouped = foreach.group_small(graph, cuda)
    # updates, roundings, gradients that only updates read, sums that nothing reads
    assert names(grouped) == ["foreach"] * 4
    rng = np.random.default_rng(0)
    arrays = [np.float32(0.1), *(rng.standard_normal(v.shape).astype(np.float32) for v in graph.inputs[1:])]
    for found, expected in zip(grouped(*arrays), graph(*arrays), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def test_large_updates_go_by_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(foreach, "SMALL", 5)
    grouped = foreach.group_small(_updates(5, 2), _cuda())
    assert names(grouped).count("sgd_update") == 3  # of 2, 4, 6, 8 and 10 elements


def test_nothing_is_grouped_where_no_kernel_takes_many() -> None:
    graph = _updates(3, 2)
    assert foreach.group_small(graph, CPU).nodes == graph.nodes


def test_roundings_of_weights_are_not_mixed_with_those_of_images() -> None:
    cuda = _cuda()
    graph = trace(lambda *xs: [ops.cast(x, "bfloat16") for x in xs], *[Spec((4,), float32)] * 4)
    mixed = foreach.group_small(graph, cuda)
    assert [len(n.inputs) for n in mixed.nodes] == [4]
    apart = foreach.group_small(graph, cuda, set(graph.inputs[:3]))
    assert sorted(len(n.inputs) for n in apart.nodes) == [1, 3]


def test_counts_are_made_by_one_launch() -> None:
    """Sums of single numbers that are there from the start; not those that wait for others, or for more numbers."""

    def f(*counts):  # type: ignore[no-untyped-def]
        return [*(c + 1 for c in counts[:3]), counts[3] + counts[0] * counts[1], counts[4] + 1]

    specs = [Spec((), int64)] * 4 + [Spec((2,), int64)]
    grouped = foreach.group_small(trace(f, *specs), _cuda())
    assert sorted(names(grouped)) == ["add", "add", "foreach", "mul"]
    arrays = [np.int64(3), np.int64(5), np.int64(7), np.int64(9), np.array([1, 2])]
    for found, expected in zip(grouped(*arrays), (4, 6, 8, 24, [2, 3]), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected)


@dataclass(frozen=True)
class _ScaleUpdate(Update):
    """(p, g, rate f32[]) -> p': an optimizer that no pass has heard of."""

    arity = 3
    inplace: ClassVar[dict[int, int]] = {0: 0}

    def infer(self, p: Spec, g: Spec, rate: Spec) -> tuple[Spec]:
        self.check(p, g, (), rate)
        return (p.open,)

    def reference(self, p: Array, g: Array, rate: Array) -> tuple[Array]:
        return (p * (1 - rate * g.astype(p.dtype)),)


def _planned_by_many(most: int) -> backends.Backend:
    """A backend that takes up to `most` tensors of any op in one launch."""

    class Many(type(CPU)):  # type: ignore[misc]
        def has_kernel(self, op: type[Op]) -> bool:
            return op is Foreach

        def choose(self, op: Op, specs: Sequence[Spec], policy: lm.spec.Policy) -> backends.Plan:
            if isinstance(op, Foreach) and op.count > most:
                raise backends.NoKernel("too many")
            return super().choose(op, specs, policy)  # type: ignore[no-any-return]

    return Many(CPU.device)


def test_an_update_that_no_pass_knows_is_treated_as_one() -> None:
    """It reads gradients in half types, is done for many parameters at once, and counts as an update."""

    def f(rate, *values):  # type: ignore[no-untyped-def]
        return [
            bind(_ScaleUpdate(), p, ops.cast(g, "float32"), rate)[0]
            for p, g in zip(values[::2], values[1::2], strict=True)
        ]

    specs = [Spec((), float32), *[Spec((3,), float32), Spec((3,), bfloat16)] * 5]
    graph = foreach.group_small(foreach.absorb_casts(trace(f, *specs)), _planned_by_many(2))
    assert [(n.op.name, len(n.inputs)) for n in graph.nodes] == [
        ("foreach", 6), ("scale_update", 3), ("foreach", 6)
    ]  # fmt: skip
    assert {n.op.effect for n in graph.nodes} == {"update"}


def test_a_cast_that_rounds_stays_before_an_update() -> None:
    def f(p, g, m, rate):  # type: ignore[no-untyped-def]
        return ops.sgd_update(p, ops.cast(g, "float16"), m, rate)

    p, g = Spec((3,), float32), Spec((3,), bfloat16)
    assert names(foreach.absorb_casts(trace(f, p, g, p, Spec((), float32)))) == ["cast", "sgd_update"]


def test_updates_that_follow_each_other_are_not_one_launch() -> None:
    """Two steps in one graph: the first updates together, then the second ones, with the same results."""

    def f(rate, *values):  # type: ignore[no-untyped-def]
        results = []
        for p, g, m in zip(values[::3], values[1::3], values[2::3], strict=True):
            p, m = ops.sgd_update(p, g, m, rate, momentum=0.9)
            results += ops.sgd_update(p * 2.0, g, m, rate, momentum=0.9)
        return results

    graph = trace(f, Spec((), float32), *[Spec((4,), float32)] * 9)
    grouped = foreach.group_small(graph, _planned_by_many(99))
    assert names(grouped) == ["foreach", "mul", "mul", "mul", "foreach"]
    rng = np.random.default_rng(0)
    arrays = [np.float32(0.1), *(rng.standard_normal(4).astype(np.float32) for _ in range(9))]
    for found, expected in zip(grouped(*arrays), graph(*arrays), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())


def same_results(graph: lm.graph.Graph, grouped: lm.graph.Graph) -> None:
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(v.shape).astype(v.dtype.numpy) for v in graph.inputs]
    for found, expected in zip(grouped(*arrays), graph(*arrays), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-6)


def test_gradients_that_are_measured_and_scaled_are_done_together() -> None:
    """Their sums at once, and, since all are there before the first is scaled, the products."""

    def clipped(*gradients):  # type: ignore[no-untyped-def]
        norm = ops.sqrt(sum(ops.sum(ops.square(g)) for g in gradients))
        return [g * (1.0 / (norm + 1e-6)) for g in gradients]

    graph = optimize(trace(clipped, *[Spec((3, i + 1), float32) for i in range(6)]), _cuda())
    assert names(graph).count("foreach") == 2
    assert len([n for n in graph.nodes if n.op.name in ("fused_elementwise", "reduce")]) <= 2
    same_results(trace(clipped, *[v.spec for v in graph.inputs]), graph)


def test_nodes_that_depend_on_each_other_are_not_done_together() -> None:
    """Of a chain for each tensor, the first links are one group; of one chain, nothing."""

    def chains(*xs):  # type: ignore[no-untyped-def]
        found = [ops.cumsum(ops.exp(x), 0) for x in xs]
        return [ops.cumsum(ops.exp(y), 0) for y in found]

    def chain(x):  # type: ignore[no-untyped-def]
        for _ in range(6):
            x = ops.cumsum(ops.exp(x), 0)
        return x

    for f, count, inputs in ((chains, 2, 5), (chain, 0, 1)):
        graph = trace(f, *[Spec((4, i + 1), float32) for i in range(inputs)])
        grouped = foreach.group_small(graph, _cuda())
        assert names(grouped).count("foreach") == count
        same_results(graph, grouped)


def test_what_only_updates_read_waits_for_the_last() -> None:
    """Gradients that are made one behind the other and rounded: one launch rounds all of them."""

    def step(rate, x, *weights):  # type: ignore[no-untyped-def]
        gradients = []
        for _ in weights:
            x = ops.cumsum(x, 0)
            gradients.append(x.to(dtype="bfloat16"))
        pairs = zip(weights, gradients, strict=True)
        return [v for w, g in pairs for v in ops.sgd_update(w, g, w, rate, momentum=0.9)]

    vector = Spec((5,), float32)
    graph = trace(step, Spec((), float32), *[vector] * 6)
    grouped = foreach.group_small(graph, _cuda())
    assert names(grouped) == [*["scan"] * 5, "foreach", "foreach"]
    same_results(graph, grouped)


def test_chains_of_steps_are_done_together() -> None:
    """Weights that are rounded and widened again, and chains that read something else, too."""

    def rounded(*xs):  # type: ignore[no-untyped-def]
        return [ops.cumsum(x.to(dtype="bfloat16").float(), 0) for x in xs]

    def shifted(*xs):  # type: ignore[no-untyped-def]
        return [ops.cumsum(ops.tanh(2.0 - x) * y, 0) for x, y in zip(xs[::2], xs[1::2], strict=True)]

    for f in (rounded, shifted):
        graph = trace(f, *[Spec((3, i // 2 + 1), float32) for i in range(10)])
        grouped = optimize(graph, _cuda())
        assert [n for n in names(grouped) if n != "scan"] == ["foreach"]
        same_results(graph, grouped)


def test_few_are_not_worth_it() -> None:
    graph = trace(lambda *xs: [ops.exp(x) for x in xs], *[Spec((4,), float32)] * (foreach.MANY - 1))
    assert "foreach" not in names(foreach.group_small(graph, _cuda()))
