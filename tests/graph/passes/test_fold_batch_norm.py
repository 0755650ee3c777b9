"""Batch norm of inference disappears into the convolution or product before it."""

from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import nn, ops
from lamina.graph.passes.canonicalize import drop_identities, fold_constants
from lamina.graph.passes.fold_batch_norm import fold_batch_norm

RNG = np.random.default_rng(2)


def randomized(*layers: nn.Module) -> nn.Module:
    """Layers with random parameters and statistics, in inference."""
    net = nn.Sequential(*layers).eval()
    for key, held in net.state_dict().items():
        if held.dtype.is_float:
            low = 0.5 if key.endswith("running_var") else -1.0
            held.copy_(RNG.uniform(low, 1.5, held.shape).astype(np.float32))
    return net


def folded(net: Any, x: Any) -> lm.graph.Graph:
    return fold_constants(fold_batch_norm(drop_identities(fold_constants(lm.trace(net, x)))))


def names(graph: lm.graph.Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


@pytest.mark.feature("B019")
@pytest.mark.parametrize(
    ("layers", "shape", "wanted"),
    [
        (
            (nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()),
            (2, 3, 6, 5),
            ["conv", "add", "relu"],
        ),
        ((nn.Conv2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)), (2, 4, 6, 5), ["conv", "add"]),
        (
            (nn.Conv1d(2, 3, 2), nn.BatchNorm1d(3), nn.Conv1d(3, 2, 2), nn.BatchNorm1d(2)),
            (2, 2, 7),
            ["conv", "add"] * 2,
        ),
        ((nn.Linear(7, 5), nn.BatchNorm1d(5)), (3, 7), ["matmul", "add"]),
        ((nn.ReLU(), nn.BatchNorm1d(5)), (3, 5), ["relu", "mul", "add"]),
        ((nn.ReLU(), nn.BatchNorm2d(5), nn.ReLU()), (3, 5, 2, 2), ["relu", "mul", "add", "relu"]),
    ],
)
def test_it_is_folded_and_nothing_changes(layers: Any, shape: tuple[int, ...], wanted: list[str]) -> None:
    net, x = randomized(*layers), RNG.standard_normal(shape).astype(np.float32)
    graph = folded(net, x)
    assert names(graph) == wanted
    expected = net(x).numpy()
    np.testing.assert_allclose(graph(x)[0].numpy(), expected, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(lm.compile(graph, "cpu")(x)[0].numpy(), expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(
    ("behind", "left"),
    [
        (lambda y, m, n: y * m, []),
        (lambda y, m, n: n + y, []),
        (lambda y, m, n: m * y + n, []),
        (lambda y, m, n: (y + n) * m, ["mul"]),
        (lambda y, m, n: (m * y) * n, ["mul"]),
    ],
    ids=["product", "sum", "product and sum", "sum, then a product", "two products"],
)
def test_a_scale_and_a_shift_behind_it_are_the_norms_own(behind: Any, left: list[str], apart: bool) -> None:
    """One product, then one sum; what stands behind them stays. apart: the norm is not the convolution's own."""
    m, n, g, b, mean = (RNG.standard_normal(4).astype(np.float32) for _ in range(5))
    w = RNG.standard_normal((4, 3, 3, 3)).astype(np.float32)
    var = RNG.uniform(0.5, 2, 4).astype(np.float32)

    def f(x: Any) -> Any:
        y = ops.conv2d(x, w)
        y = ops.relu(y) if apart else y
        y = ops.batch_norm(y, mean, var, g, b, False, eps=1e-3)
        return behind(y, m.reshape(1, 4, 1, 1), n.reshape(1, 4, 1, 1))

    x = RNG.standard_normal((2, 3, 6, 5)).astype(np.float32)
    graph = folded(f, x)
    wanted = f(lm.tensor(x)).numpy()
    np.testing.assert_allclose(graph(x)[0].numpy(), wanted, rtol=2e-5, atol=2e-5)
    np.testing.assert_allclose(lm.compile(graph, "cpu")(x)[0].numpy(), wanted, rtol=2e-5, atol=2e-5)
    assert names(graph) == [*(["conv", "relu", "mul", "add"] if apart else ["conv", "add"]), *left]


def test_a_norm_of_words_is_folded_into_their_product() -> None:
    """The product's rows are words already, so that the reshapes in between cancel out."""

    class Words(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.dense, self.norm = nn.Linear(7, 5, bias=False), nn.BatchNorm1d(5)

        def forward(self, x: Any) -> Any:
            y = self.dense(x)
            return self.norm(y.flatten(0, 1)).reshape(y.shape)

    net, x = randomized(Words())[0].eval(), RNG.standard_normal((2, 3, 7)).astype(np.float32)
    graph = folded(net, x)
    assert [name for name in names(graph) if name != "reshape"] == ["matmul", "add"]
    np.testing.assert_allclose(graph(x)[0].numpy(), net(x).numpy(), rtol=2e-5, atol=2e-5)


def test_residual_and_relu_become_steps() -> None:
    w, v = (RNG.standard_normal(s).astype(np.float32) for s in ((4, 3, 3, 3), (4,)))
    pair = (v, np.abs(v) + 0.5)

    def f(x: Any, z: Any) -> Any:
        return ops.batch_norm_with_statistics(ops.conv2d(x, w), *pair, v, v, relu=True, residual=z)[0]

    x, z = (RNG.standard_normal(s).astype(np.float32) for s in ((2, 3, 6, 6), (2, 4, 4, 4)))
    graph = fold_constants(fold_batch_norm(lm.trace(f, x, z)))
    assert names(graph) == ["conv", "add", "add", "relu"]
    np.testing.assert_allclose(graph(x, z)[0].numpy(), f(x, z).numpy(), rtol=2e-5, atol=2e-5)


def test_what_others_read_is_left_alone() -> None:
    """A convolution whose result is read twice, and weights that may change between two runs."""
    w, v = (RNG.standard_normal(s).astype(np.float32) for s in ((4, 3, 3, 3), (4,)))
    pair = (v, np.abs(v) + 0.5)
    x = RNG.standard_normal((2, 3, 6, 6)).astype(np.float32)

    def twice(x: Any) -> Any:
        y = ops.conv2d(x, w)
        return ops.batch_norm_with_statistics(y, *pair)[0] + y

    assert names(fold_constants(fold_batch_norm(lm.trace(twice, x)))) == ["conv", "mul", "add", "add"]
    changing = lm.trace(lambda x, w: ops.batch_norm_with_statistics(ops.conv2d(x, w), *pair)[0], x, w)
    assert names(fold_constants(fold_batch_norm(changing))) == ["conv", "mul", "add"]


@pytest.mark.feature("B019")
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_predictor_folds_and_follows_its_weights(precision: str) -> None:
    """Weights are inputs that stay: what is folded is computed when they are loaded, and again when they change."""
    net = randomized(nn.Conv2d(3, 16, 3, bias=False), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 8, 3))
    predictor = lm.infer.Predictor(net, device="cpu", precision=precision)
    x = RNG.standard_normal((2, 3, 8, 8)).astype(np.float32)
    error = 1e-5 if precision == "fp32" else 2 * 2**-8  # of the largest output: two roundings to bfloat16

    def check() -> None:
        wanted = net(x).numpy()
        np.testing.assert_allclose(predictor(x).numpy(), wanted, rtol=0, atol=error * np.abs(wanted).max())

    check()
    executable = next(iter(predictor._programs)).executable
    labels = [s.label for s in executable.program.steps]
    assert "batch_norm_infer" not in labels
    assert "rsqrt" not in labels
    net[0].weight.copy_(net[0].weight.numpy() * 2)
    check()


def test_all_norms_read_one_epsilon() -> None:
    net = nn.Sequential(*(layer for _ in range(3) for layer in (nn.Conv2d(2, 2, 1), nn.BatchNorm2d(2))))
    program = lm.infer.Predictor(net, device="cpu").program(lm.Spec((1, 2, 4, 4), lm.float32))
    held = [v.constant.item() for v in program.graph.constants if v.constant is not None and v.ndim == 0]
    assert held == [np.float32(1e-5)]
