"""What is written out in steps becomes the op that computes it, and what only looks alike stays."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lamina as lm
from lamina import ops
from lamina.graph import gradients, trace
from lamina.graph.passes.canonicalize import fold_constants
from lamina.graph.passes.idioms import recognize_idioms, with_idioms

RNG = np.random.default_rng(0)
X = RNG.standard_normal((3, 4, 6)).astype(np.float32) * 3
SCALE, BIAS = (RNG.standard_normal(6).astype(np.float32) for _ in range(2))
ROOT, TWO, THREE = (2 / np.pi) ** 0.5, np.array(2.0, np.float32), np.array(3.0, np.float32)


def recognized(fn: Callable[..., Any], *arrays: Any) -> lm.graph.Graph:
    return recognize_idioms(fold_constants(trace(fn, *arrays)))


def names(graph: lm.graph.Graph) -> list[str]:
    return [n.op.name for n in graph.nodes]


def square(x: Any) -> Any:
    return ops.pow(x, TWO)


def normalized(x: Any, power: Callable[[Any], Any] = square, epsilon: float = 1e-5) -> Any:
    centred = x - ops.mean(x, -1, keepdim=True)
    return centred / ops.sqrt(ops.mean(power(centred), -1, keepdim=True) + epsilon)


FORMS: list[tuple[str, Callable[[Any], Any]]] = [
    ("relu", lambda x: ops.maximum(x, 0.0)),
    ("clipped_relu", lambda x: ops.clamp(x, 0.0, 6.0)),
    ("gelu", lambda x: x * 0.5 * (ops.erf(x / 2**0.5) + 1.0)),
    ("gelu", lambda x: 0.5 * (x * (1.0 + ops.erf(x * 0.5**0.5)))),
    ("gelu", lambda x: x * (0.5 * (1.0 + ops.erf(x * 0.5**0.5)))),
    ("gelu", lambda x: (ops.erf(x * 0.5**0.5) + 1.0) * x / 2.0),
    ("gelu_tanh", lambda x: 0.5 * x * (1.0 + ops.tanh(ROOT * (x + 0.044715 * x * x * x)))),
    ("gelu_tanh", lambda x: x * 0.5 * (1.0 + ops.tanh((x + ops.pow(x, THREE) * 0.044715) * ROOT))),
    ("gelu_tanh", lambda x: 0.5 * x * (1.0 + ops.tanh(x * ROOT * (1.0 + 0.044715 * x * x)))),
    ("gelu_tanh", lambda x: 0.5 * x * (1.0 + ops.tanh(x * (1.0 + 0.044715 * (x * x)) * ROOT))),
    ("silu", lambda x: x * ops.sigmoid(x)),
    ("mish", lambda x: ops.tanh(ops.softplus(x)) * x),
    ("hard_swish", lambda x: x * ops.hardsigmoid(x)),
    ("hard_swish", lambda x: x * ops.clamp(x + 3.0, 0.0, 6.0) / 6.0),
    ("hard_swish", lambda x: ops.clamp(x / 6.0 + 0.5, 0.0, 1.0) * x),
]  # fmt: skip


@pytest.mark.feature("B013")
@pytest.mark.parametrize(("name", "form"), FORMS, ids=[f"{n}-{i}" for i, (n, _) in enumerate(FORMS)])
def test_activations(name: str, form: Callable[[Any], Any]) -> None:
    graph = recognized(form, X)
    assert names(graph) == [name]
    wanted = trace(form, X)(X)[0].numpy()
    np.testing.assert_allclose(graph(X)[0].numpy(), wanted, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("power", [square, lambda x: x * x])
def test_layer_norms(power: Callable[[Any], Any]) -> None:
    def fn(x: Any, scale: Any, bias: Any) -> Any:
        return normalized(x, power) * scale + bias

    graph = recognized(fn, X, SCALE, BIAS)
    assert names(graph) == ["layer_norm"]
    wanted = trace(fn, X, SCALE, BIAS)(X, SCALE, BIAS)[0].numpy()
    np.testing.assert_allclose(graph(X, SCALE, BIAS)[0].numpy(), wanted, rtol=2e-5, atol=2e-6)


RMS_FORMS: list[Callable[[Any, Any], Any]] = [
    lambda x, scale: scale * (x * ops.rsqrt(ops.mean(square(x), -1, keepdim=True) + 1e-6)),
    lambda x, scale: ops.rsqrt(1e-6 + ops.mean(x * x, -1, keepdim=True)) * x * scale,
    lambda x, scale: x / ops.sqrt(ops.mean(x * x, -1, keepdim=True) + 1e-6) * scale,
]


@pytest.mark.parametrize("form", RMS_FORMS)
def test_rms_norms(form: Callable[[Any, Any], Any]) -> None:
    graph = recognized(form, X, SCALE)
    assert names(graph) == ["rms_norm"]
    wanted = trace(form, X.astype(np.float64), SCALE.astype(np.float64))
    exact = wanted(X.astype(np.float64), SCALE.astype(np.float64))[0].numpy()
    np.testing.assert_allclose(graph(X, SCALE)[0].numpy(), exact, rtol=2e-6, atol=1e-6)


def test_rms_norms_of_rows_that_are_widened_for_them() -> None:
    def fn(x: Any, scale: Any) -> Any:
        wide = x.cast(lm.float32)
        unit = wide * ops.rsqrt(ops.mean(wide * wide, -1, keepdim=True) + 1e-6)
        return scale * unit.cast(x.dtype)

    x, scale = lm.tensor(X).cast(lm.bfloat16), lm.tensor(SCALE).cast(lm.bfloat16)
    graph = recognized(fn, x, scale)
    assert names(graph) == ["cast", "rms_norm"]  # of the scale
    assert graph.nodes[-1].inputs[0] is graph.inputs[0]
    wide, factors = (v.numpy().astype(np.float64) for v in (x, scale))
    exact = factors * wide / np.sqrt((wide * wide).mean(-1, keepdims=True) + 1e-6)
    np.testing.assert_allclose(graph(x, scale)[0].numpy().astype(np.float64), exact, rtol=2**-8, atol=1e-6)


def test_layer_norms_of_half_types_have_wide_scales() -> None:
    given = [lm.tensor(v).cast(lm.float16) for v in (X, SCALE, BIAS)]
    graph = recognized(lambda x, scale, bias: normalized(x) * scale + bias, *given)
    assert names(graph) == ["cast", "cast", "layer_norm"]
    x, scale, bias = (v.numpy().astype(np.float64) for v in given)
    exact = normalized(x) * scale + bias
    found = graph(*given)[0].numpy().astype(np.float64)
    np.testing.assert_allclose(found, np.asarray(exact), rtol=2e-3, atol=2e-3)


def test_gradients_of_what_is_recognized_are_its_own() -> None:
    def fn(x: Any, scale: Any) -> Any:
        y = scale * (x * ops.rsqrt(ops.mean(x * x, -1, keepdim=True) + 1e-6))
        loss, same = with_idioms([ops.sum(y * y * y), y])
        return [loss, same, *gradients(loss, [x, scale])]

    wide = [X.astype(np.float64), SCALE.astype(np.float64)]
    graph = trace(fn, *wide)
    assert {"rms_norm", "rms_norm_grad"} <= set(names(graph))
    assert "rsqrt" not in names(graph)
    _, _, by_x, by_scale = (v.numpy() for v in graph(*wide))
    step, rng = 1e-6, np.random.default_rng(1)
    for given, slope in zip(range(2), (by_x, by_scale), strict=True):
        along = rng.standard_normal(wide[given].shape)
        ends = []
        for sign in (1, -1):
            moved = [v + sign * step * along if i == given else v for i, v in enumerate(wide)]
            ends.append(graph(*moved)[0].item())
        np.testing.assert_allclose((slope * along).sum(), (ends[0] - ends[1]) / (2 * step), rtol=1e-6)


@pytest.mark.parametrize(
    ("form", "kept"),
    [
        (lambda x: x * 0.5 * (ops.erf(x / 1.5) + 1.0), "erf"),  # another width
        (lambda x: x * ops.clamp(x + 2.0, 0.0, 6.0) / 6.0, "mul"),
        (lambda x: x * ops.sigmoid(x * 2.0), "sigmoid"),
        (lambda x: ops.clamp(x, 0.0, -1.0), "minimum"),  # the bounds cross
        (lambda x: ops.minimum(ops.relu(x), x), "minimum"),  # no number
        (lambda x: normalized(x) * np.ones((4, 6), np.float32) + BIAS, "sqrt"),  # a scale for several rows
        (lambda x: x * ops.rsqrt(ops.mean(x * x, 1, keepdim=True) + 1e-6) * SCALE, "rsqrt"),  # of other axes
        (lambda x: ops.maximum(x[:1], np.zeros((1, 1, 1, 1), np.float32)), "maximum"),  # one axis more
    ],
)  # fmt: skip
def test_what_only_looks_alike_stays(form: Callable[[Any], Any], kept: str) -> None:
    assert kept in names(recognized(form, X))


def test_steps_that_the_gradient_reads_stay() -> None:
    def fn(x: Any) -> Any:
        return gradients(ops.sum(x * ops.sigmoid(x)), [x])

    graph = recognized(fn, X)
    assert "silu" not in names(graph)
    np.testing.assert_array_equal(graph(X)[0].numpy(), trace(fn, X)(X)[0].numpy())


def test_numbers_of_a_half_type() -> None:
    graph = recognized(lambda x: x * 0.5 * (ops.erf(x / 2**0.5) + 1.0), lm.tensor(X).cast(lm.bfloat16))
    assert names(graph) == ["gelu"]


@pytest.mark.parametrize(
    ("form", "slopes"),
    [
        (lambda x: ops.maximum(x, 0.0), [0.0, 0.5, 1.0]),
        (lambda x: ops.clamp(x, min=0.0), [0.0, 1.0, 1.0]),
        (lambda x: ops.minimum(ops.maximum(x, 0.0), 6.0), [0.0, 0.5, 1.0]),
    ],
)
def test_at_a_kink_the_gradient_is_the_formulas(form: Callable[[Any], Any], slopes: list[float]) -> None:
    def slope(x: Any) -> Any:
        (y,) = with_idioms([form(x)])
        return gradients(ops.sum(y), [x])[0]

    found = lm.jit(slope)(lm.tensor(np.array([-1, 0, 1], np.float32)))
    np.testing.assert_array_equal(found.numpy(), slopes)
