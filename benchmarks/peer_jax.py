"""The workloads in JAX: plain jax.lax in NHWC, one jitted function per iteration, with donated state.

Training computes in the low precision with float32 master weights; statistics of norms are float32.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod, sqrt
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from benchmarks import networks
from benchmarks.common import versions
from benchmarks.peer import Prepared
from benchmarks.workloads import Workload

DTYPES = {"bf16": jnp.bfloat16, "fp16": jnp.float16, "fp32": jnp.float32}
RATE, MOMENTUM, DECAY = 0.01, 0.9, 5e-4
#: Workloads written here; networks of `benchmarks.networks` are built from their descriptions.
OTHERS = ("conv", "encoder", "lstm", "gru")
Tree = Any


# ---- networks that are described
def init(
    layers: networks.Layers, shape: tuple[int, ...], rng: np.random.Generator
) -> tuple[list[Tree], list[Tree]]:
    """(parameters, running statistics) of each layer, for samples of a shape (C, H, W)."""
    params, stats = [], []
    for layer in layers:
        p, s = _init(layer, shape, rng)
        params.append(p)
        stats.append(s)
        shape = networks.shape_behind(layer, shape)
    return params, stats


def _init(layer: Any, shape: tuple[int, ...], rng: np.random.Generator) -> tuple[Tree, Tree]:
    def drawn(*sizes: int) -> jax.Array:
        fan = prod(sizes[:-1])
        return jnp.asarray(rng.standard_normal(sizes, np.float32) * np.float32(sqrt(2 / fan)))

    match layer:
        case networks.Conv(filters, k, _, _, bias, depthwise):
            w = drawn(*[k] * (len(shape) - 1), 1 if depthwise else shape[0], filters)
            return ([w, jnp.zeros(filters)] if bias else [w]), []
        case networks.Linear(features):
            return [drawn(shape[0], features), jnp.zeros(features)], []
        case networks.Norm():
            one, zero = jnp.ones(shape[0]), jnp.zeros(shape[0])
            return [one, zero], [zero, one]
        case networks.Residual(body, shortcut):
            return _pair(init(body, shape, rng), init(shortcut, shape, rng))
        case networks.Branches(branches):
            return _pair(*(init(b, shape, rng) for b in branches))
    return [], []


def _pair(*made: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
    return [m[0] for m in made], [m[1] for m in made]


def apply(
    layers: networks.Layers, params: Tree, stats: Tree, x: jax.Array, key: jax.Array | None
) -> tuple[jax.Array, list[Tree]]:
    """Outputs and new statistics. key: for the dropout; None means inference."""
    after = []
    for index, (layer, p, s) in enumerate(zip(layers, params, stats, strict=True)):
        x, s = _apply(layer, p, s, x, None if key is None else jax.random.fold_in(key, index))
        after.append(s)
    return x, after


def _apply(layer: Any, p: Tree, s: Tree, x: jax.Array, key: jax.Array | None) -> tuple[jax.Array, Tree]:
    match layer:
        case networks.Conv(_, _, stride, pad, bias, depthwise, dilation):
            axes = "HW"[: x.ndim - 2]
            y = lax.conv_general_dilated(
                x,
                p[0],
                [stride] * len(axes),
                [(pad, pad)] * len(axes),
                rhs_dilation=[dilation] * len(axes),
                dimension_numbers=(f"N{axes}C", f"{axes}IO", f"N{axes}C"),
                feature_group_count=x.shape[-1] if depthwise else 1,
            )
            return (y + p[1] if bias else y), s
        case networks.Norm():
            return _norm(p, s, x, key is not None)
        case networks.Relu(ceiling):
            return jnp.clip(x, 0, ceiling), s
        case networks.MaxPool(k, stride, pad, ceil):
            ends = [_end(n, k, stride, pad, ceil) for n in x.shape[1:3]]
            window, strides = (1, k, k, 1), (1, stride, stride, 1)
            padding = [(0, 0), *((pad, e) for e in ends), (0, 0)]
            return lax.reduce_window(x, -jnp.inf, lax.max, window, strides, padding), s
        case networks.Mean():
            return jnp.mean(x, (1, 2)), s
        case networks.Flatten():
            return x.reshape(x.shape[0], -1), s
        case networks.Linear():
            return x @ p[0] + p[1], s
        case networks.Dropout(share):
            if key is None or share == 0:
                return x, s
            kept = jax.random.bernoulli(key, 1 - share, x.shape)
            return jnp.where(kept, x / (1 - share), 0), s
        case networks.Residual(body, shortcut, relu):
            y, first = apply(body, p[0], s[0], x, key)
            skipped, second = apply(shortcut, p[1], s[1], x, key)
            y = y + skipped
            return (jax.nn.relu(y) if relu else y), [first, second]
        case networks.Branches(branches):
            made = [apply(b, *each, x, key) for b, *each in zip(branches, p, s, strict=True)]
            return jnp.concatenate([y for y, _ in made], -1), [after for _, after in made]
    raise TypeError(f"no function of JAX for {layer!r}")


def _end(n: int, k: int, stride: int, pad: int, ceil: bool) -> int:
    """Trailing padding, so that a partial last window counts when sizes are rounded up."""
    windows = (n + 2 * pad - k + (stride - 1) * ceil) // stride + 1
    return max(pad, (windows - 1) * stride + k - n - pad)


def _norm(p: Tree, s: Tree, x: jax.Array, training: bool) -> tuple[jax.Array, Tree]:
    if training:
        wide = x.astype(jnp.float32)
        mean = jnp.mean(wide, (0, 1, 2))
        var = jnp.mean(wide * wide, (0, 1, 2)) - mean * mean
        count = x.size // x.shape[-1]
        unbiased = var * (count / max(count - 1, 1))
        s = [0.9 * old + 0.1 * lax.stop_gradient(new) for old, new in zip(s, (mean, unbiased), strict=True)]
    else:
        mean, var = (v.astype(jnp.float32) for v in s)
    scale = p[0].astype(jnp.float32) * lax.rsqrt(var + 1e-5)
    y = x.astype(jnp.float32) * scale + (p[1].astype(jnp.float32) - mean * scale)
    return y.astype(x.dtype), s


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    rows = jax.nn.log_softmax(logits.astype(jnp.float32))
    return -jnp.mean(jnp.take_along_axis(rows, labels[..., None], -1))


# ---- recurrent networks and the encoder
def recurrent_params(w: Workload, rng: np.random.Generator) -> list[Tree]:
    gates, hidden, layers = {"lstm": 4, "gru": 3}[w.network], *w.size

    def drawn(*sizes: int) -> jax.Array:
        return jnp.asarray(rng.uniform(-1, 1, sizes) / sqrt(hidden), jnp.float32)

    widths = [w.shape[2], *[hidden] * (layers - 1)]
    return [
        [
            drawn(n, gates * hidden),
            drawn(hidden, gates * hidden),
            drawn(gates * hidden),
            drawn(gates * hidden),
        ]
        for n in widths
    ]


def lstm(params: list[Tree], x: jax.Array) -> jax.Array:
    """(T, N, features) -> (T, N, hidden); the products with the input are one for all steps."""
    for wx, wh, bx, bh in params:
        zero = jnp.zeros((x.shape[1], wh.shape[0]), x.dtype)

        def step(carry: Any, seen: jax.Array, wh: jax.Array = wh) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(seen + h @ wh, 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        _, x = lax.scan(step, (zero, zero), x @ wx + (bx + bh))
    return x


def gru(params: list[Tree], x: jax.Array) -> jax.Array:
    """(T, N, features) -> (T, N, hidden), with the reset gate after the product, as in cuDNN and torch."""
    for wx, wh, bx, bh in params:
        zero = jnp.zeros((x.shape[1], wh.shape[0]), x.dtype)

        def step(h: jax.Array, seen: jax.Array, wh: jax.Array = wh, bh: jax.Array = bh) -> Any:
            (rx, zx, nx), (rh, zh, nh) = jnp.split(seen, 3, -1), jnp.split(h @ wh + bh, 3, -1)
            z = jax.nn.sigmoid(zx + zh)
            h = (1 - z) * jnp.tanh(nx + jax.nn.sigmoid(rx + rh) * nh) + z * h
            return h, h

        _, x = lax.scan(step, zero, x @ wx + bx)
    return x


def encoder_params(w: Workload, rng: np.random.Generator) -> list[Tree]:
    width = w.shape[2]

    def linear(inputs: int, outputs: int) -> Tree:
        drawn = rng.uniform(-1, 1, (inputs, outputs)) / sqrt(inputs)
        return [jnp.asarray(drawn, jnp.float32), jnp.zeros(outputs)]

    def layer() -> Tree:
        norms = [[jnp.ones(width), jnp.zeros(width)] for _ in range(2)]
        products = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
        return [*(linear(*p) for p in products), *norms]

    return [layer() for _ in range(w.size[1])]


def encoder(params: list[Tree], x: jax.Array, heads: int) -> jax.Array:
    """(N, S, D) -> (N, S, D): attention, 1:4:1 with ReLU, each with its residual and post-norm."""
    n, length, width = x.shape
    low = x.dtype != jnp.float32 and jax.default_backend() == "gpu"

    def layer_norm(p: Tree, v: jax.Array) -> jax.Array:
        wide = v.astype(jnp.float32)
        mean = wide.mean(-1, keepdims=True)
        y = (wide - mean) * lax.rsqrt(wide.var(-1, keepdims=True) + 1e-5)
        return (y * p[0] + p[1]).astype(v.dtype)

    for qkv, out, up, down, norm1, norm2 in params:
        parts = (x @ qkv[0] + qkv[1]).reshape(n, length, 3, heads, width // heads)
        q, k, v = (parts[:, :, i] for i in range(3))
        seen = jax.nn.dot_product_attention(q, k, v, implementation="cudnn" if low else "xla")
        x = layer_norm(norm1, x + seen.reshape(n, length, width) @ out[0] + out[1])
        hidden = jax.nn.relu(x @ up[0] + up[1])
        x = layer_norm(norm2, x + hidden @ down[0] + down[1])
    return x


# ---- iterations
def _low(tree: Tree, dtype: Any) -> Tree:
    return jax.tree.map(lambda v: v.astype(dtype), tree)


def _described_case(w: Workload, dtype: Any, rng: np.random.Generator) -> Callable[[], Any]:
    """A network of `benchmarks.networks`."""
    layers = networks.NETWORKS[w.network](*w.size, dropout=w.dropout)
    params, stats = init(layers, w.shape[1:], rng)
    n, c, *sides = w.shape
    x = jnp.asarray(rng.standard_normal((n, *sides, c), np.float32), dtype)
    labels = jnp.asarray(rng.integers(0, w.size[0], w.labels))
    if w.kind == "infer":
        forward = jax.jit(lambda p, s, x: apply(layers, p, s, x, None)[0])
        params = _low(params, dtype)
        return lambda: forward(params, stats, x)

    def loss(p: Tree, s: Tree, x: jax.Array, labels: jax.Array, key: jax.Array) -> tuple[jax.Array, Tree]:
        y, after = apply(layers, _low(p, dtype), s, x, key)
        return cross_entropy(y, labels), after

    gradient = jax.value_and_grad(loss, has_aux=True)
    key = jax.random.key(0)
    if w.kind == "both":
        both, params = jax.jit(gradient), _low(params, dtype)
        return lambda: both(params, stats, x, labels, key)
    return _training(gradient, (params, stats, key), x, labels)


def _training(
    gradient: Callable[..., Any], start: tuple[Tree, Tree, jax.Array], x: Any, labels: Any
) -> Callable[[], Any]:
    """SGD with momentum and weight decay on float32 parameters; the state is donated."""

    def step(params: Tree, velocity: Tree, stats: Tree, key: jax.Array, x: Any, labels: Any) -> Any:
        key, drawn = jax.random.split(key)
        (value, stats), grads = gradient(params, stats, x, labels, drawn)
        velocity = jax.tree.map(lambda v, g, p: MOMENTUM * v + g + DECAY * p, velocity, grads, params)
        params = jax.tree.map(lambda p, v: p - RATE * v, params, velocity)
        return (params, velocity, stats, key), value

    compiled = jax.jit(step, donate_argnums=(0, 1, 2, 3))
    params, stats, key = jax.tree.map(jnp.copy, start)  # donated: no two leaves may share memory
    state = (params, jax.tree.map(jnp.zeros_like, params), stats, key)

    def run() -> Any:
        nonlocal state
        state, value = compiled(*state, x, labels)
        return state, value

    return run


def _other_case(w: Workload, dtype: Any, rng: np.random.Generator) -> Callable[[], Any]:
    """Convolution, recurrent networks, encoder: forward, or the gradients of weights and input."""
    shape = w.shape
    if w.network == "conv":
        layer = networks.Conv(w.size[0], w.size[1], pad=w.size[1] // 2, bias=False)
        shape = (shape[0], *shape[2:], shape[1])
        params, _ = _init(layer, w.shape[1:], rng)
        forward: Callable[..., jax.Array] = lambda p, x: _apply(layer, p, [], x, None)[0]  # noqa: E731
    elif w.network == "encoder":
        params = encoder_params(w, rng)
        forward = lambda p, x: encoder(p, x, w.size[0])  # noqa: E731
    else:
        params = recurrent_params(w, rng)
        forward = {"lstm": lstm, "gru": gru}[w.network]
    params = _low(params, dtype)
    x = jnp.asarray(rng.standard_normal(shape, np.float32), dtype)
    if w.kind == "infer":
        compiled = jax.jit(forward)
        return lambda: compiled(params, x)

    def both(params: Tree, x: jax.Array, g: jax.Array) -> Any:
        y, pull = jax.vjp(forward, params, x)
        return y, pull(g)

    g = jnp.asarray(rng.standard_normal(jax.eval_shape(forward, params, x).shape, np.float32), dtype)
    compiled = jax.jit(both)
    return lambda: compiled(params, x, g)


def warm(device: str) -> dict[str, Any]:
    """Open the device, so that it does not count in the first step; the versions."""
    jnp.zeros(1).block_until_ready()
    return {"versions": versions(["jax", "jaxlib"])}


def prepare(w: Workload, mode: str, device: str, policy: str) -> Prepared:
    """The workload; mode is always "jax", policy has no meaning here."""
    jax.clear_caches()
    if w.network not in (*networks.NETWORKS, *OTHERS):
        raise NotImplementedError(f"{w.network} is not written in plain jax.lax here")
    case = _other_case if w.network in OTHERS else _described_case
    run = case(w, DTYPES[w.dtype], np.random.default_rng(0))
    last: list[Any] = [None]

    def remembered() -> None:
        last[0] = run()

    def peak() -> int | None:
        """Since the process began: JAX cannot reset its peak."""
        found = (jax.devices()[0].memory_stats() or {}).get("peak_bytes_in_use")
        return None if found is None else int(found)

    return Prepared(remembered, lambda: jax.block_until_ready(last[0]), warm_up=3, peak=peak)
