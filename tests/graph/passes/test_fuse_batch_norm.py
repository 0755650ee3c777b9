"""Sums, relu and its gradient go into batch norms: the same numbers, fewer nodes; what others read stays."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import backends, ops
from lamina.graph import Graph, gradients, trace
from lamina.graph.passes.fuse_batch_norm import (
    activate_norms,
    mask_in_norms,
    signs_in_bits,
    statistics_behind_convolutions,
    sums_behind_data_grads,
)
from lamina.graph.passes.manager import fuse, optimize
from lamina.ops import primitives
from lamina.ops.core import Op, bind, call
from lamina.ops.primitives import (
    BatchNorm,
    BatchNormGrad,
    BatchNormInfer,
    ConvDataGrad,
    ConvNorm,
    DataGradNorm,
    Fused,
)
from lamina.runtime import Device
from lamina.spec import Policy

rng = np.random.default_rng(0)
Activation = Callable[[Any], Any]
CLIPPED: Activation = lambda x: ops.clipped_relu(x, 0.8)  # noqa: E731


def operands() -> list[Any]:
    """x, a weight, scale, bias, running mean and variance, z."""
    shapes: list[tuple[int, ...]] = [(3, 4, 6, 5), (4, 4, 1, 1), (4,), (4,), (4,), (4,), (3, 4, 6, 5)]
    arrays = [rng.standard_normal(s) for s in shapes]
    arrays[5] = np.abs(arrays[5]) + 0.5
    return arrays


def network(act: Activation, join: bool = False, training: bool = True) -> Callable[..., Any]:
    """Convolution, batch norm, a residual's sum perhaps, activation, convolution; the gradients of all operands."""

    def f(x: Any, w: Any, scale: Any, bias: Any, mean: Any, var: Any, z: Any) -> Any:
        y, mean, var = ops.batch_norm_with_statistics(ops.conv2d(x, w), mean, var, scale, bias, training)
        y = ops.conv2d(act(z + y if join else y), w)
        return [
            *gradients(ops.sum(y * y), [x, w, scale, bias, z] if join else [x, w, scale, bias]),
            mean,
            var,
        ]

    return f


def names(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes]


def alike(graph: Graph, better: Graph, arrays: list[Any]) -> None:
    for found, expected in zip(better(*arrays), graph(*arrays), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize(("act", "hi"), [(ops.relu, None), (CLIPPED, 0.8)], ids=["relu", "clipped"])
def test_relu_and_its_gradient_go_into_the_norm(act: Activation, hi: float | None) -> None:
    arrays = operands()
    graph = trace(network(act), *arrays)
    better = mask_in_norms(activate_norms(graph))
    cards = [node.op for node in better.nodes]
    (forward,) = [op for op in cards if isinstance(op, BatchNorm)]
    (backward,) = [op for op in cards if isinstance(op, BatchNormGrad)]
    assert (forward.relu, forward.residual, forward.hi) == (True, False, hi)
    assert (backward.relu, backward.residual, backward.hi) == (True, False, hi)
    assert not any("relu" in name for name in names(better))
    alike(graph, better, arrays)


@pytest.mark.parametrize("act", [ops.relu, CLIPPED], ids=["relu", "clipped"])
def test_a_residual_join_is_one_node(act: Activation) -> None:
    """The mask of a join stays apart: both branches read it."""
    arrays = operands()
    graph = trace(network(act, join=True), *arrays)
    better = mask_in_norms(activate_norms(graph))
    (forward,) = [n.op for n in better.nodes if isinstance(n.op, BatchNorm)]
    (backward,) = [n.op for n in better.nodes if isinstance(n.op, BatchNormGrad)]
    assert forward.relu
    assert forward.residual
    assert not backward.relu
    assert "relu" not in names(better)
    assert "clipped_relu" not in names(better)
    assert sum(name.endswith("relu_grad") for name in names(better)) == 1
    alike(graph, better, arrays)


def test_two_norms_meet_in_the_later_one() -> None:
    def f(x: Any, scale: Any, bias: Any, mean: Any, var: Any) -> Any:
        first = ops.batch_norm_with_statistics(x, mean, var, scale, bias, True)[0]
        second = ops.batch_norm_with_statistics(x * 2, mean, var, bias, scale, True)[0]
        y = ops.relu(second + first)
        return [y, *gradients(ops.sum(y * y), [x, scale, bias])]

    x, _, *small, _ = operands()
    graph = trace(f, x, *small)
    better = mask_in_norms(activate_norms(graph))
    assert [n.op.residual for n in better.nodes if isinstance(n.op, BatchNorm)] == [False, True]
    assert "relu" not in names(better)
    alike(graph, better, [x, *small])


def test_inference_takes_sum_and_relu() -> None:
    arrays = operands()
    graph = trace(network(ops.relu, join=True, training=False), *arrays)
    better = activate_norms(graph)
    (forward,) = [n.op for n in better.nodes if isinstance(n.op, BatchNormInfer)]
    assert forward.relu
    assert forward.residual
    alike(graph, better, arrays)


def test_what_others_read_stays() -> None:
    """A result or masked gradient with a second reader, a sum that broadcasts, a residual that comes later."""
    x, _, *small, z = operands()

    def read_twice(x: Any, z: Any, *small: Any) -> Any:
        y = ops.batch_norm_with_statistics(x, small[2], small[3], small[0], small[1], True)[0]
        return ops.relu(y), y

    def broadcast(x: Any, z: Any, *small: Any) -> Any:
        y = ops.batch_norm_with_statistics(x, small[2], small[3], small[0], small[1], True)[0]
        return ops.relu(y + z[:1])

    def later(x: Any, z: Any, *small: Any) -> Any:
        y, mean, _ = ops.batch_norm_with_statistics(x, small[2], small[3], small[0], small[1], True)
        return ops.relu(y + z * mean.reshape((1, 4, 1, 1)))

    def masked(x: Any, z: Any, *small: Any) -> Any:
        y = ops.relu(ops.batch_norm_with_statistics(x, small[2], small[3], small[0], small[1], True)[0])
        g = call(primitives.ReluGrad(), y, z)
        return bind(BatchNormGrad(), g, x, small[0], *y.node.inputs[0].node.outputs[1:3])[0], g

    for f in (read_twice, broadcast, later):
        graph = trace(f, x, z, *small)
        assert names(activate_norms(graph)) == names(graph)
    graph = mask_in_norms(activate_norms(trace(masked, x, z, *small)))
    assert names(graph) == ["batch_norm", "relu_grad", "batch_norm_grad"]


class Measured:
    """A backend that says which of both is faster, or has no kernel."""

    def __init__(self, label: str) -> None:
        self.label = label

    def plan(self, op: Op, specs: Any, policy: Policy) -> backends.Plan:
        assert policy.algorithm == "fastest"
        if not self.label:
            raise backends.NoKernel("no engine")
        return backends.Plan(tuple(specs), op.infer(*specs), lambda call: lambda: None, label=self.label)


@pytest.mark.parametrize(
    "label", ["cudnn conv+batch_norm statistics eng3", "kernel conv+batch_norm apart", ""]
)
@pytest.mark.parametrize("join", [False, True])
def test_statistics_behind_the_convolution(label: str, join: bool) -> None:
    """One node where a library's graph wins; the convolution's result is still there for the gradient."""
    arrays = operands()
    with lm.policy(algorithm="fastest"):
        graph = mask_in_norms(activate_norms(trace(network(ops.relu, join), *arrays)))
    refusals: list[str] = []
    better = statistics_behind_convolutions(graph, Measured(label), refusals)  # type: ignore[arg-type]
    merged = label.startswith("cudnn")
    assert names(better).count("conv_norm") == merged
    assert names(better).count("batch_norm") == names(better).count("conv") - 1 == 1 - merged
    assert len(refusals) == 1 - merged
    alike(graph, better, arrays)


class Owns(Measured):
    """A backend whose kernels take sums along, and know how relu's gradient is fused."""

    def plan(self, op: Op, specs: Any, policy: Policy) -> backends.Plan:
        if isinstance(op, Fused) and not isinstance(op.ops[0], ConvDataGrad):
            raise backends.NoKernel("no such fusion")
        return backends.Plan(tuple(specs), op.infer(*specs), lambda call: lambda: None, label=self.label)


def joined(x: Any, w: Any, scale: Any, bias: Any, mean: Any, var: Any, z: Any) -> Any:
    """A block whose input is relu of a join: x -> norm + z -> relu -> convolution, and the way around it."""
    y, mean, var = ops.batch_norm_with_statistics(ops.conv2d(x, w), mean, var, scale, bias, True)
    y = ops.relu(z + y)
    out = ops.conv2d(y, w) + y
    return [*gradients(ops.sum(out * out), [x, w, scale, bias, z]), mean, var]


def point_operands() -> list[Any]:
    rng = np.random.default_rng(5)
    small = [rng.uniform(0.5, 1.5, 8) for _ in range(4)]
    big = [rng.standard_normal((2, 8, 5, 4)) for _ in range(2)]
    return [big[0], rng.standard_normal((8, 8, 1, 1)), *small, big[1]]


@pytest.mark.parametrize("label", ["kernel conv_data_grad+batch_norm_grad own", "kernel both apart", ""])
def test_sums_behind_the_data_gradient(label: str) -> None:
    """One node with all that lies between, where the backend's kernel wins; the gradient itself stays an output."""
    arrays = point_operands()
    with lm.policy(algorithm="fastest"):
        plain = mask_in_norms(activate_norms(trace(joined, *arrays)))
        graph = fuse(plain, Owns("fused"))  # type: ignore[arg-type]
    refusals: list[str] = []
    better = sums_behind_data_grads(graph, Measured(label), refusals)  # type: ignore[arg-type]
    merged = label.endswith("own")
    assert names(better).count("data_grad_norm") == merged
    assert names(better).count("batch_norm_grad") == 1 - merged
    assert len(refusals) == 1 - merged
    if merged:  # a CPU has no kernel for the fused gradient alone
        alike(plain, better, arrays)


@pytest.mark.parametrize("half", [True, False])
def test_masks_in_bits(half: bool) -> None:
    """Half types: the norm writes the bits and the data gradient reads them; the results stay the same."""
    arrays = [a.astype(np.float16 if half and a.ndim == 4 else np.float32) for a in point_operands()]
    backend: Any = Owns("kernel own")
    with lm.policy(algorithm="fastest"):
        graph = mask_in_norms(activate_norms(trace(joined, *arrays)))
        graph = statistics_behind_convolutions(graph, backend, [])
        graph = sums_behind_data_grads(fuse(graph, backend), backend, [])
    better = signs_in_bits(graph, backend)
    (forward,) = [node for node in better.nodes if isinstance(node.op, ConvNorm)]
    (backward,) = [node for node in better.nodes if isinstance(node.op, DataGradNorm)]
    assert (forward.op.bits, backward.op.bits) == (half, half)  # type: ignore[attr-defined]
    assert [any(v is bits for v in backward.inputs) for bits in forward.outputs[6:]] == [True] * half
    assert [node.op.name for node in graph.nodes] == names(better)
    for found, expected in zip(better(*arrays), graph(*arrays), strict=True):
        np.testing.assert_array_equal(found.numpy(), expected.numpy())
    assert signs_in_bits(graph, Measured("")).nodes == graph.nodes  # type: ignore[arg-type]


def test_without_measuring_nothing_is_merged() -> None:
    graph = trace(network(ops.relu), *operands())
    assert statistics_behind_convolutions(graph, Measured("cudnn"), []).nodes == graph.nodes  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["kernel", "onednn"])
def test_each_backend_gets_the_form_that_suits_it(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Own kernels take the mask along; oneDNN, which would compute the output again, gets it made."""
    arrays = [a.astype(np.float32) for a in operands()]
    graph, backend = trace(network(ops.relu), *arrays), backends.get(Device("cpu"))
    monkeypatch.setattr(backend, "supports", lambda op: source)
    better = optimize(graph, backend)
    (backward,) = [n.op for n in better.nodes if isinstance(n.op, BatchNormGrad)]
    assert backward.relu == (source == "kernel")
    assert "relu" not in names(better)


def test_compiled_steps_agree() -> None:
    arrays = [a.astype(np.float32) for a in operands()]
    graph = trace(network(CLIPPED, join=True), *arrays)
    compiled, plain = lm.compile(graph, device="cpu"), lm.compile(graph, device="cpu", optimize=False)
    for found, expected in zip(compiled(*arrays), plain(*arrays), strict=True):
        np.testing.assert_allclose(found.numpy(), expected.numpy(), rtol=2e-3, atol=2e-4)
