"""Graphs with values: operands, and the results in float64 by NumPy. Run on a GPU by test_gpu_graph.py."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import ml_dtypes
import numpy as np

from lamina.c import cudnn as c
from lamina.cudnn import Graph, Resample, Tensor
from lamina.cudnn.composed import Lengths, attention, attention_grad
from tests.helpers.cudnn.graph_cases import BINARY, doubling

Array = np.ndarray[Any, Any]

NUMPY: dict[int, Any] = {
    c.cudnnDataType_t.CUDNN_DATA_FLOAT: np.float32,
    c.cudnnDataType_t.CUDNN_DATA_DOUBLE: np.float64,
    c.cudnnDataType_t.CUDNN_DATA_HALF: np.float16,
    c.cudnnDataType_t.CUDNN_DATA_BFLOAT16: ml_dtypes.bfloat16,
    c.cudnnDataType_t.CUDNN_DATA_INT32: np.int32,
    c.cudnnDataType_t.CUDNN_DATA_INT64: np.int64,
    c.cudnnDataType_t.CUDNN_DATA_INT8: np.int8,
    c.cudnnDataType_t.CUDNN_DATA_FP8_E4M3: ml_dtypes.float8_e4m3fn,
    c.cudnnDataType_t.CUDNN_DATA_FP8_E8M0: ml_dtypes.float8_e8m0fnu,
}
RNG = np.random.default_rng(7)


@dataclass
class Scenario:
    """A graph, its operands, and its results: arrays in the order of the tensors' dimensions."""

    graph: Graph
    inputs: dict[Tensor, Array] = field(default_factory=dict)
    outputs: dict[Tensor, tuple[Array, float]] = field(default_factory=dict)

    def give(self, tensor: Tensor, values: Any) -> Array:
        """Set an operand; returns its values as float64, rounded to the tensor's type."""
        array = np.broadcast_to(np.asarray(values), tensor.dimensions).astype(NUMPY[tensor.data_type])
        self.inputs[tensor] = array
        return array.astype(np.float64)

    def random(self, tensor: Tensor, low: float = -1.0, high: float = 1.0) -> Array:
        return self.give(tensor, RNG.uniform(low, high, tensor.dimensions))

    def expect(self, tensor: Tensor, values: Array, tolerance: float = 2e-3) -> None:
        assert values.shape == tensor.dimensions, (values.shape, tensor.dimensions)
        self.outputs[tensor] = (values, tolerance)


SCENARIOS: dict[str, Callable[[], Scenario]] = {}


def scenario(name: str) -> Callable[[Callable[..., Scenario]], Callable[..., Scenario]]:
    def add(make: Callable[..., Scenario]) -> Callable[..., Scenario]:
        SCENARIOS[name] = make
        return make

    return add


def images(g: Graph, count: int, shape: tuple[int, ...], kind: str = "float16") -> list[Tensor]:
    return [g.packed(shape, kind, channels_last=True) for _ in range(count)]


# ------------------------------------------------------------------------------------------------------ norms

EPSILON = 1e-3
SHAPES = {
    "layer": ((64, 256, 1, 1), (1,)),
    "rms": ((64, 256, 1, 1), (1,)),
    "instance": ((4, 32, 8, 8), (2, 3)),
    "batch": ((8, 32, 8, 8), (0, 2, 3)),
}


def statistics(x: Array, axes: tuple[int, ...], mode: str) -> tuple[Array, Array]:
    """Mean (none for RMS) and 1 / standard deviation."""
    mean = np.zeros_like(x.mean(axes, keepdims=True)) if mode == "rms" else x.mean(axes, keepdims=True)
    return mean, 1 / np.sqrt(((x - mean) ** 2).mean(axes, keepdims=True) + EPSILON)


def norm(mode: str, phase: str) -> Scenario:
    s = Scenario(Graph())
    g, (shape, axes) = s.graph, SHAPES[mode]
    x, y = images(g, 2, shape)
    parameters = (1, shape[1], 1, 1)
    scale, bias = images(g, 2, parameters, "float32")
    xs, a = s.random(x), s.random(scale, 0.5, 1.5)
    b = np.zeros(1) if mode == "rms" else s.random(bias)
    mean, inverse = statistics(xs, axes, mode)
    epsilon = g.scalar()
    s.give(epsilon, EPSILON)
    more: dict[str, Tensor] = {} if mode == "rms" else {"bias": bias}
    if phase == "training":
        (more["inv_variance"],) = images(g, 1, inverse.shape, "float32")
        s.expect(more["inv_variance"], inverse, 1e-3)
        if mode != "rms":
            (more["mean"],) = images(g, 1, mean.shape, "float32")
            s.expect(more["mean"], mean, 1e-3)
    if mode == "batch":
        _running(s, more, xs, axes)
    g.norm(mode, x, y, scale=scale, epsilon=epsilon, phase=phase, **more)
    s.expect(y, a * (xs - mean) * inverse + b)
    return s


def _running(s: Scenario, more: dict[str, Tensor], xs: Array, axes: tuple[int, ...]) -> None:
    """Running statistics: (1 - momentum) * old + momentum * new, the variance over count - 1."""
    parameters = (1, xs.shape[1], 1, 1)
    names = ("running_mean", "running_var", "next_mean", "next_var")
    more |= dict(zip(names, images(s.graph, 4, parameters, "float32"), strict=True))
    more["momentum"] = s.graph.scalar()
    s.give(more["momentum"], 0.25)
    old_mean, old_var = s.random(more["running_mean"]), s.random(more["running_var"], 0.5, 1.5)
    s.expect(more["next_mean"], 0.75 * old_mean + 0.25 * xs.mean(axes, keepdims=True), 1e-3)
    s.expect(more["next_var"], 0.75 * old_var + 0.25 * xs.var(axes, keepdims=True, ddof=1), 1e-3)


def norm_grad(mode: str) -> Scenario:
    s = Scenario(Graph())
    g, (shape, axes) = s.graph, SHAPES[mode]
    dy, x, dx = images(g, 3, shape)
    parameters = (1, shape[1], 1, 1)
    scale, dscale, dbias = images(g, 3, parameters, "float32")
    dys, xs, a = s.random(dy), s.random(x), s.random(scale, 0.5, 1.5)
    mean, inverse = statistics(xs, axes, mode)
    normal = (xs - mean) * inverse
    gradient = dys * a
    along = (gradient * normal).mean(axes, keepdims=True)
    centre = 0.0 if mode == "rms" else gradient.mean(axes, keepdims=True)
    more: dict[str, Tensor] = {}
    (more["inv_variance"],) = images(g, 1, inverse.shape, "float32")
    s.give(more["inv_variance"], inverse)
    if mode != "rms":
        (more["mean"],) = images(g, 1, mean.shape, "float32")
        s.give(more["mean"], mean)
        more["dbias"] = dbias
        s.expect(dbias, dys.sum((0, 2, 3), keepdims=True), 3e-3)
    g.norm_grad(mode, dy, x, dx, scale=scale, dscale=dscale, **more)
    s.expect(dscale, (dys * normal).sum((0, 2, 3), keepdims=True), 3e-3)
    s.expect(dx, inverse * (gradient - centre - normal * along), 4e-3)
    return s


for _mode in SHAPES:
    SCENARIOS[f"{_mode} norm, training"] = lambda mode=_mode: norm(mode, "training")
    if _mode != "batch":
        SCENARIOS[f"{_mode} norm, inference"] = lambda mode=_mode: norm(mode, "inference")
    SCENARIOS[f"{_mode} norm, gradient"] = lambda mode=_mode: norm_grad(mode)


# ------------------------------------------------------------------------------------------------- statistics


def conv3x3(x: Array, w: Array) -> Array:
    """3 x 3, stride 1, padding 1, in float64."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    _, _, height, width = x.shape
    y = np.zeros((x.shape[0], w.shape[0], height, width))
    for i in range(3):
        for j in range(3):
            part = padded[:, :, i : i + height, j : j + width]
            y += np.einsum("nchw,kc->nkhw", part, w[:, :, i, j])
    return y


@scenario("scale, bias, relu, convolution, statistics")
def gen_stats() -> Scenario:
    s = Scenario(Graph())
    g = s.graph
    (x,), (w,), (y,) = (images(g, 1, shape) for shape in ((8, 32, 16, 16), (64, 32, 3, 3), (8, 64, 16, 16)))
    scale, bias = images(g, 2, (1, 32, 1, 1))
    total, squares = images(g, 2, (1, 64, 1, 1), "float32")
    xs, ws, a, b = s.random(x), s.random(w, -0.1, 0.1), s.random(scale), s.random(bias)
    before = g.pointwise("relu_fwd", g.pointwise("add", g.pointwise("mul", x, scale), bias))
    g.conv(before, w, y, stride=(1, 1), pre=(1, 1))
    g.gen_stats(y, total, squares)
    result = conv3x3(np.maximum(a * xs + b, 0), ws)
    s.expect(y, result, 4e-3)
    s.expect(total, result.sum((0, 2, 3), keepdims=True), 1e-2)
    s.expect(squares, (result**2).sum((0, 2, 3), keepdims=True), 1e-2)
    return s


@scenario("concatenation, convolution")
def concatenation_conv() -> Scenario:
    """One kernel: it writes the concatenation to memory, synchronizes, and reads it."""
    s = Scenario(Graph())
    (a, b), (x,) = images(s.graph, 2, (8, 32, 16, 16)), images(s.graph, 1, (8, 64, 16, 16))
    (w,), (y,) = images(s.graph, 1, (64, 64, 3, 3)), images(s.graph, 1, (8, 64, 16, 16))
    s.graph.conv(s.graph.concatenate([a, b], x, 1), w, y, stride=(1, 1), pre=(1, 1))
    both = np.concatenate([s.random(a), s.random(b)], 1)
    s.expect(x, both, 0)
    s.expect(y, conv3x3(both, s.random(w, -0.1, 0.1)))
    return s


@scenario("convolution, concatenation")
def conv_concatenation() -> Scenario:
    """The convolution's result is put before the existing second half of y."""
    s = Scenario(Graph())
    g = s.graph
    (x,), (w,), (there,) = (images(g, 1, t) for t in ((8, 32, 16, 16), (64, 32, 3, 3), (8, 64, 16, 16)))
    (y,) = images(g, 1, (8, 128, 16, 16))
    first = g.conv(
        x,
        w,
        g.packed((8, 64, 16, 16), "float16", channels_last=True, virtual=True),
        stride=(1, 1),
        pre=(1, 1),
    )
    g.concatenate([first, there], y, 1, inplace=1)
    result = conv3x3(s.random(x), s.random(w, -0.1, 0.1))
    second = s.random(there)
    s.give(y, np.concatenate([np.full_like(second, np.nan), second], 1))
    s.expect(y, np.concatenate([result, second], 1))
    return s


@scenario("batch norm's finalize")
def bn_finalize() -> Scenario:
    s = Scenario(Graph())
    g, shape, count = s.graph, (1, 32, 1, 1), 2048
    read = ("scale", "bias", "running_mean", "running_var")
    written = ("next_mean", "next_var", "mean", "inv_std", "eq_scale", "eq_bias")
    t = {name: images(g, 1, shape, "float32")[0] for name in (*read, *written)}
    total, squares = images(g, 2, shape, "float32")
    v = {name: s.random(t[name], 0.5, 1.5) for name in read}
    sums, powers = s.random(total, 0, count / 4), s.random(squares, count, 2 * count)
    scalars = {name: g.scalar(data_type=kind) for name, kind in _SCALARS.items()}
    for name, value in (("epsilon", EPSILON), ("momentum", 0.25), ("count", count)):
        s.give(scalars[name], value)
    g.bn_finalize(total, squares, **t, **scalars)
    mean = sums / count
    variance = powers / count - mean**2
    inverse = 1 / np.sqrt(variance + EPSILON)
    s.expect(t["mean"], mean, 1e-5)
    s.expect(t["inv_std"], inverse, 1e-5)
    s.expect(t["eq_scale"], v["scale"] * inverse, 1e-5)
    s.expect(t["eq_bias"], v["bias"] - v["scale"] * inverse * mean, 1e-4)
    s.expect(t["next_mean"], 0.75 * v["running_mean"] + 0.25 * mean, 1e-5)
    s.expect(t["next_var"], 0.75 * v["running_var"] + 0.25 * variance * count / (count - 1), 1e-4)
    return s


_SCALARS = {"epsilon": "float32", "momentum": "float32", "count": "int64"}

# --------------------------------------------------------------------------------------------------- reductions

REDUCERS: dict[str, Callable[[Array], Array]] = {
    "add": lambda x: x.sum((0, 2, 3), keepdims=True),
    "min": lambda x: x.min((0, 2, 3), keepdims=True),
    "max": lambda x: x.max((0, 2, 3), keepdims=True),
    "amax": lambda x: np.abs(x).max((0, 2, 3), keepdims=True),
}


def reduction(mode: str) -> Scenario:
    s = Scenario(Graph())
    (x,), (y,) = images(s.graph, 1, (8, 32, 16, 16), "float32"), images(s.graph, 1, (1, 32, 1, 1), "float32")
    s.graph.reduce(mode, x, y)
    s.expect(y, REDUCERS[mode](s.random(x)), 1e-4)
    return s


for _mode in REDUCERS:
    SCENARIOS[f"reduction {_mode}"] = lambda mode=_mode: reduction(mode)


# ---------------------------------------------------------------------------------------------------- pointwise

_RELU = {"relu_lower": 0.0}
UNARY: dict[str, Callable[[Array], Array]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "cos": np.cos,
    "exp": np.exp,
    "floor": np.floor,
    "log": np.log,
    "neg": np.negative,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sin": np.sin,
    "sqrt": np.sqrt,
    "tan": np.tan,
    "identity": lambda x: x,
    "reciprocal": lambda x: 1 / x,
    "relu_fwd": lambda x: np.maximum(x, 0),
    "tanh_fwd": np.tanh,
    "sigmoid_fwd": lambda x: 1 / (1 + np.exp(-x)),
    "elu_fwd": lambda x: np.where(x > 0, x, np.expm1(x)),
    "softplus_fwd": lambda x: np.log1p(np.exp(x)),
    "swish_fwd": lambda x: x / (1 + np.exp(-x)),
    "gelu_approx_tanh_fwd": lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
}
TWO: dict[str, Callable[[Array, Array], Array]] = {
    "add": np.add,
    "add_square": lambda x, b: x + b * b,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
    "mod": np.fmod,
    "mul": np.multiply,
    "pow": np.power,
    "sub": np.subtract,
    "atan2": np.arctan2,
    "relu_bwd": lambda x, dy: dy * (x > 0),
    "tanh_bwd": lambda x, dy: dy * (1 - np.tanh(x) ** 2),
    "sigmoid_bwd": lambda x, dy: dy * np.exp(-x) / (1 + np.exp(-x)) ** 2,
    "softplus_bwd": lambda x, dy: dy / (1 + np.exp(-x)),
    "elu_bwd": lambda x, dy: dy * np.where(x > 0, 1, np.exp(x)),
    "swish_bwd": lambda x, dy: dy * (1 + x / (1 + np.exp(x))) / (1 + np.exp(-x)),
}
POSITIVE = {"log", "rsqrt", "sqrt", "reciprocal", "div", "mod", "pow"}


def pointwise(mode: str) -> Scenario:
    s = Scenario(Graph())
    tensors = images(s.graph, 3, (8, 32, 16, 16), "float32")
    low, high = 0.5 if mode in POSITIVE else -2.0, 2.0
    if mode == "tan":  # far from its poles, where a rounded argument changes the result
        low, high = -1.0, 1.0
    values = [s.random(t, low, high) for t in tensors[: 1 if mode in UNARY else 2]]
    s.graph.pointwise(mode, tensors[0], tensors[1] if mode in TWO else None, tensors[2])
    s.expect(tensors[2], UNARY[mode](values[0]) if mode in UNARY else TWO[mode](*values), 1e-4)
    return s


assert set(TWO) >= BINARY - {"floor_mod"}
for _mode in (*UNARY, *TWO):
    SCENARIOS[f"pointwise {_mode}"] = lambda mode=_mode: pointwise(mode)


# ----------------------------------------------------------------------------------------------------- resample


def windows(x: Array, fill: float) -> Array:
    """[N, C, P, Q, 9] of 3 x 3 windows, stride 2, padding 1."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=fill)
    height, width = ((n - 1) // 2 + 1 for n in x.shape[2:])
    taps = [
        padded[:, :, i : i + 2 * height - 1 : 2, j : j + 2 * width - 1 : 2]
        for i in range(3)
        for j in range(3)
    ]
    return np.stack(taps, -1)


POOLS: dict[str, Callable[[Array], Array]] = {
    "maxpool": lambda x: windows(x, -np.inf).max(-1),
    "avgpool_include_padding": lambda x: windows(x, 0).sum(-1) / 9,
    "avgpool_exclude_padding": lambda x: windows(x, 0).sum(-1) / windows(np.ones_like(x), 0).sum(-1),
}


def pool(mode: str) -> Scenario:
    s = Scenario(Graph())
    (x,), (y,) = images(s.graph, 1, (8, 32, 15, 15)), images(s.graph, 1, (8, 32, 8, 8))
    s.graph.pool(Resample(mode, window=(3, 3), stride=(2, 2), pre=(1, 1)), x, y)
    s.expect(y, POOLS[mode](s.random(x)))
    return s


for _mode in POOLS:
    SCENARIOS[f"resample {_mode}"] = lambda mode=_mode: pool(mode)


@scenario("resample avgpool_include_padding, gradient")
def average_grad() -> Scenario:
    """Non-overlapping windows of 2 x 2: each input gets a quarter."""
    s = Scenario(Graph())
    (dy,), (dx,) = images(s.graph, 1, (8, 32, 8, 8)), images(s.graph, 1, (8, 32, 16, 16))
    s.graph.pool_grad(Resample("avgpool_include_padding", window=(2, 2), stride=(2, 2), pre=(0, 0)), dy, dx)
    s.expect(dx, np.kron(s.random(dy), np.ones((2, 2))) / 4)
    return s


@scenario("resample bilinear")
def bilinear() -> Scenario:
    """Upscaled by two: element i is at i / 2 of the input, halfway to the next one or, at the end, on the last."""
    s = Scenario(Graph())
    (x,), (y,) = images(s.graph, 1, (4, 32, 8, 8), "float32"), images(s.graph, 1, (4, 32, 16, 16), "float32")
    s.graph.pool(doubling("bilinear"), x, y)
    value = s.random(x)
    for axis in (2, 3):
        n = value.shape[axis]
        after = value.take(np.minimum(np.arange(n) + 1, n - 1), axis)
        pairs = np.stack([value, (value + after) / 2], axis + 1)
        value = pairs.reshape(*value.shape[:axis], 2 * n, *value.shape[axis + 1 :])
    s.expect(y, value, 1e-6)
    return s


# --------------------------------------------------------------------------------------- products, attention


@scenario("grouped matmul")
def grouped() -> Scenario:
    s = Scenario(Graph())
    g, experts, k, n = s.graph, 4, 64, 128
    token, out = g.packed((1, 256, k), "bfloat16"), g.packed((1, 256, n), "bfloat16")
    weight = g.tensor((experts, k, n), (k * n, 1, k), "bfloat16")
    first = g.packed((experts, 1, 1), "int32")
    starts = np.array([0, 64, 100, 200])
    t, w = s.random(token), s.random(weight)
    s.give(first, starts.reshape(experts, 1, 1))
    g.grouped_matmul(token, weight, first, out)
    expert = np.searchsorted(starts, np.arange(256), side="right") - 1
    s.expect(out, np.einsum("tk,tkn->tn", t[0], w[expert])[None], 1e-2)
    return s


@scenario("block scales before a product")
def dequantize() -> Scenario:
    s = Scenario(Graph())
    g = s.graph
    a, b = g.packed((1, 128, 64), "float8_e4m3fn"), g.tensor((1, 64, 128), (64 * 128, 1, 64), "float8_e4m3fn")
    scale_a = g.packed((1, 128, 2), "float8_e8m0fnu")
    scale_b = g.tensor((1, 2, 128), (256, 1, 2), "float8_e8m0fnu")
    out = g.packed((1, 128, 128), "float32")
    left = g.dequantize(a, scale_a, g.packed(a.dimensions, "float32", virtual=True), block=(1, 32))
    right = g.dequantize(b, scale_b, g.packed(b.dimensions, "float32", virtual=True), block=(32, 1))
    g.matmul(left, right, out)
    powers = 2.0 ** RNG.integers(-2, 3, (2, 1, 128, 2))
    x, y = s.random(a), s.random(b)
    sa, sb = s.give(scale_a, powers[0]), s.give(scale_b, powers[1].swapaxes(1, 2))
    s.expect(out, (x * sa.repeat(32, 2)) @ (y * sb.repeat(32, 1)), 2e-2)
    return s


QKV = (2, 4, 128, 64)


def softmax_attention(q: Array, k: Array, v: Array, scale: float, length: Array) -> tuple[Array, Array]:
    """o and the log-sum-exp; columns from `length` [batch] on are masked."""
    scores = scale * q @ k.swapaxes(2, 3)
    scores = np.where(np.arange(k.shape[2]) < length[:, None, None, None], scores, -np.inf)
    largest = scores.max(-1, keepdims=True)
    weights = np.exp(scores - largest)
    total = weights.sum(-1, keepdims=True)
    return weights / total @ v, largest + np.log(total)


@scenario("attention as one operation")
def one_attention() -> Scenario:
    s = Scenario(Graph())
    q, k, v, o = (s.graph.packed(QKV, "bfloat16") for _ in range(4))
    stats, scale = s.graph.packed((*QKV[:3], 1), "float32"), s.graph.scalar()
    s.give(scale, 0.125)
    s.graph.attention(q, k, v, o, scale=scale, stats=stats)
    values = [s.random(t) for t in (q, k, v)]
    result, logs = softmax_attention(*values, 0.125, np.full(2, QKV[2]))
    s.expect(o, result, 2e-2)
    s.expect(stats, logs, 1e-2)
    return s


@scenario("attention in steps, pages of a cache")
def paged_attention() -> Scenario:
    s = Scenario(Graph())
    g, (batch, heads, rows, width) = s.graph, QKV
    q, o = (g.packed(QKV, "float16") for _ in range(2))
    v = g.packed(QKV, "float16", virtual=True)
    k = g.tensor(
        (batch, heads, width, rows), (heads * rows * width, rows * width, 1, width), "float16", virtual=True
    )
    length_q, length_kv = (g.packed((batch, 1, 1, 1), "int32") for _ in range(2))
    lengths = np.array([rows, 70])
    s.give(length_q, rows)
    s.give(length_kv, lengths.reshape(batch, 1, 1, 1))
    whole = []
    for loaded in (k, v):
        pages, table = g.packed((8, heads, 64, width), "float16"), g.packed((batch, 1, 2, 1), "int32")
        order = RNG.permutation(8)[:4].reshape(batch, 2)
        s.give(table, order.reshape(batch, 1, 2, 1))
        whole.append(np.concatenate(list(s.random(pages)[order].swapaxes(0, 1)), axis=2))
        g.paged_load(pages, length_kv, table, loaded)
    scale, fill = g.scalar(), g.scalar()
    s.give(scale, 0.125)
    s.give(fill, -1e30)
    stats = g.packed((batch, heads, rows, 1), "float32")
    attention(g, q, k, v, o, scale=scale, stats=stats, lengths=Lengths(length_q, length_kv, fill))
    result, logs = softmax_attention(s.random(q), *whole, 0.125, lengths)
    s.expect(o, result, 4e-3)
    s.expect(stats, logs, 4e-3)
    return s


@scenario("gradient of attention in steps")
def attention_backward() -> Scenario:
    s = Scenario(Graph())
    g, (batch, heads, rows, width) = s.graph, QKV
    do, q, o, dq, dk, dv = (g.packed(QKV, "float16") for _ in range(6))
    turned = (batch, heads, width, rows), (heads * rows * width, rows * width, 1, width)
    k, v = (g.tensor(*turned, "float16") for _ in range(2))
    stats, row_sum = (g.packed((batch, heads, rows, 1), "float32") for _ in range(2))
    dq_sum, scale, one = g.packed(QKV, "float32"), g.scalar(), g.scalar()
    for tensor, value in ((row_sum, 0), (dq_sum, 0), (scale, 0.125), (one, 1)):
        s.give(tensor, value)
    ds, qs, ks, vs = (s.random(t) for t in (do, q, k, v))
    result, logs = softmax_attention(qs, ks.swapaxes(2, 3), vs.swapaxes(2, 3), 0.125, np.full(batch, rows))
    result, logs = s.give(o, result), s.give(stats, logs)
    weights = np.exp(0.125 * qs @ ks - logs)
    slope = 0.125 * weights * (ds @ vs - (ds * result).sum(-1, keepdims=True))
    grads = {"dq": dq, "dk": dk, "dv": dv, "row_sum": row_sum, "dq_sum": dq_sum}
    attention_grad(g, do, q, k, v, o, stats=stats, scale=scale, one=one, **grads)
    s.expect(dv, weights.swapaxes(2, 3) @ ds, 1e-2)
    s.expect(dk, slope.swapaxes(2, 3) @ qs, 1e-2)
    s.expect(dq, slope @ ks.swapaxes(2, 3), 1e-2)
    return s


@scenario("convolution, bias, residual, relu")
def epilogue() -> Scenario:
    s = Scenario(Graph())
    g = s.graph
    (x,), (w,), (y, r) = (
        images(g, n, t) for n, t in ((1, (8, 32, 16, 16)), (1, (64, 32, 3, 3)), (2, (8, 64, 16, 16)))
    )
    (b,) = images(g, 1, (1, 64, 1, 1))
    inner = g.packed(y.dimensions, "float32", channels_last=True, virtual=True)
    g.conv(x, w, inner, stride=(1, 1), pre=(1, 1))
    g.pointwise("relu_fwd", g.pointwise("add", g.pointwise("add", inner, b), r), out=y)
    xs, ws, bs, rs = s.random(x), s.random(w, -0.1, 0.1), s.random(b), s.random(r)
    s.expect(y, np.maximum(conv3x3(xs, ws) + bs + rs, 0))
    return s
