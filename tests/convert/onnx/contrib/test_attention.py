"""ONNX Runtime's attention: its numbers with masks of all forms, caches, shared heads and rotary positions."""

from typing import Any

import numpy as np
import onnxruntime
import pytest

import lamina as lm
from lamina.convert.onnx import OnnxError, from_onnx
from tests.helpers.onnx_models import beside_onnxruntime, contributed

RNG = np.random.default_rng(0)
B, S, H, E, G = 2, 5, 4, 16, 2
D = H * E
MARKS = np.array([[1, 1, 1, 0, 0], [1] * 5], np.int32)
MASKS = {
    "none": None, "marks": MARKS, "marks of pairs": np.tril(np.ones((B, S, S), np.int32)),
    "ends": np.array([3, 5], np.int32), "ends and begins": np.array([3, 5, 1, 0], np.int32),
    "all hidden": np.zeros((B, S), np.int32),
}  # fmt: skip
ANGLES = np.outer(np.arange(20), np.arange(E // 2) / 3)
COS, SIN = np.cos(ANGLES).astype(np.float32), np.sin(ANGLES).astype(np.float32)


def _normal(*shape: int) -> Any:
    return RNG.normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("causal", [0, 1])
@pytest.mark.parametrize("mask", MASKS)
def test_projection_and_masks(mask: str, causal: int) -> None:
    inputs = (_normal(B, S, D), _normal(D, 3 * D), _normal(3 * D), MASKS[mask])
    beside_onnxruntime("Attention", inputs, held=(1, 2), num_heads=H, unidirectional=causal, tol=1e-4)


def test_what_else_a_projected_attention_takes() -> None:
    x, w, bias = _normal(B, S, D), _normal(D, 3 * D), _normal(3 * D)
    past, marks = _normal(2, B, H, 3, E), np.ones((B, S + 3), np.int32)
    for mask in (marks, None):
        beside_onnxruntime(
            "Attention", (x, w, bias, mask, past), ("y", "cache"), held=(1, 2), num_heads=H, unidirectional=1,
            tol=1e-4,
        )  # fmt: skip
    added = _normal(1, H, S, S)
    beside_onnxruntime(
        "Attention", (x, w, bias, None, None, added), held=(1, 2), num_heads=H, scale=0.3, tol=1e-4
    )
    narrow = (_normal(D, 2 * D + 16), _normal(2 * D + 16))
    beside_onnxruntime(
        "Attention", (x, *narrow), held=(1, 2), num_heads=H, qkv_hidden_sizes=[D, D, 16], tol=1e-4
    )


@pytest.mark.parametrize(
    ("name", "value"), [("do_rotary", 1), ("past_present_share_buffer", 1), ("mask", np.ones(3, np.int32))]
)
def test_what_is_not_read_is_named(name: str, value: Any) -> None:
    mask, options = (value, {}) if name == "mask" else (None, {name: value})
    proto, given = contributed(
        "Attention", (_normal(B, S, D), _normal(D, 3 * D), None, mask), num_heads=H, **options
    )
    text = "a mask of one axis must have 2 or 4 numbers, got 3" if name == "mask" else "export without them"
    with pytest.raises(OnnxError, match=f"Attention: .*{text}"):
        from_onnx(proto)(*given.values())


@pytest.mark.parametrize("kind", ["bias", "width", "heads", "marks", "ends", "added", "past", "causal past"])
def test_queries_keys_and_values(kind: str) -> None:
    q, k, v, same = _normal(B, S, D), _normal(B, 7, D), _normal(B, 7, D), _normal(B, S, D)
    past = (_normal(B, H, 3, E), _normal(B, H, 3, E))
    inputs: Any = {
        "bias": (q, k, v, _normal(3 * D)), "width": (q, k, _normal(B, 7, 16)),
        "heads": (q, _normal(B, H, 7, E), _normal(B, H, 7, E)), "marks": (q, same, same, None, MARKS),
        "ends": (q, same, same, None, MASKS["ends"]), "added": (q, same, same, None, None, _normal(1, 1, S, S)),
        "past": (q, same, same, None, None, None, *past), "causal past": (q, same, same, None, None, None, *past),
    }[kind]  # fmt: skip
    outputs = ("y", "k", "v") if "past" in kind else ("y",)
    causal = int(kind in ("added", "causal past"))
    beside_onnxruntime("MultiHeadAttention", inputs, outputs, num_heads=H, unidirectional=causal, tol=1e-4)


def test_packed_operands_are_those_that_stand_apart() -> None:
    """ONNX Runtime has these on GPUs alone."""
    q, k, v = (_normal(B, S, H, E) for _ in range(3))
    apart = [x.reshape(B, S, D) for x in (q, k, v)]
    proto, given = contributed("MultiHeadAttention", apart, num_heads=H)
    wanted = from_onnx(proto)(*given.values()).numpy()
    for inputs in ((np.stack([q, k, v], 3),), (apart[0], np.stack([k, v], 3))):
        proto, given = contributed("MultiHeadAttention", inputs, num_heads=H)
        np.testing.assert_allclose(from_onnx(proto)(*given.values()).numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_the_weights_are_an_output_of_their_own() -> None:
    q, k, v = (_normal(1, S, D) for _ in range(3))
    proto, given = contributed("MultiHeadAttention", (q, k, v), ("y", "", "", "weights"), num_heads=1)
    y, weights = (x.numpy() for x in from_onnx(proto)(*given.values()))
    np.testing.assert_allclose(weights.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(weights[0, 0] @ v[0], y[0], rtol=1e-4, atol=1e-5)


def _grouped(steps: int, past: int, ends: list[int], **more: Any) -> Any:
    """Inputs of GroupQueryAttention: new steps, a cache of `past` places, keys of each sample less one."""
    cache = [_normal(B, G, past, E) for _ in range(2)] if past else [None, None]
    rows = [_normal(B, steps, D), _normal(B, steps, G * E), _normal(B, steps, G * E)]
    if more.get("packed"):
        rows = [np.concatenate(rows, -1), None, None]
    tables = [COS, SIN] if more.get("turned") else [None, None]
    return *rows, *cache, np.array(ends, np.int32), np.array(max(ends) + 1, np.int32), *tables


SHARED = {"num_heads": H, "kv_num_heads": G}


@pytest.mark.parametrize(
    "options",
    [
        {}, {"do_rotary": 1}, {"do_rotary": 1, "rotary_interleaved": 1}, {"local_window_size": 2},
        {"softcap": 2.0}, {"smooth_softmax": 1}, {"packed": 1, "do_rotary": 1},
    ],
    ids=str,
)  # fmt: skip
def test_a_prompt_with_shared_heads(options: dict[str, Any]) -> None:
    inputs = _grouped(S, 0, [S - 1] * B, packed=options.pop("packed", 0), turned=options.get("do_rotary"))
    outputs = ("y", "keys", "values")
    beside_onnxruntime("GroupQueryAttention", inputs, outputs, held=(6,), tol=1e-4, **SHARED, **options)


@pytest.mark.parametrize("more", ["places", "added", "sink", "added under a cap"])
def test_what_else_a_prompt_takes(more: str) -> None:
    turned = more == "places"
    inputs = _grouped(S, 0, [S - 1] * B, turned=turned)
    places, added, sink = np.tile(np.arange(S), (B, 1)), _normal(1, 1, S, S), _normal(H)
    inputs += {"places": (places,), "sink": (None, None, sink)}.get(more, (None, added))
    options = {"do_rotary": int(turned), "softcap": 2.0 if more == "added under a cap" else 0.0}
    outputs = ("y", "keys", "values")
    beside_onnxruntime("GroupQueryAttention", inputs, outputs, held=(6,), tol=1e-4, **SHARED, **options)


@pytest.mark.parametrize("options", [{"do_rotary": 1}, {"local_window_size": 3}], ids=str)
def test_a_step_behind_a_cache(options: dict[str, Any]) -> None:
    inputs = _grouped(1, 6, [6, 6], turned=options.get("do_rotary"))
    outputs = ("y", "keys", "values")
    beside_onnxruntime("GroupQueryAttention", inputs, outputs, held=(6,), tol=1e-4, **SHARED, **options)


@pytest.mark.parametrize(("size", "ends"), [(6, [4, 6]), (12, [5, 6])])
def test_samples_of_different_lengths_and_a_larger_cache(size: int, ends: list[int]) -> None:
    """What stands in the cache behind a sample's last key is nobody's."""
    inputs = _grouped(1, size, ends, turned=True)
    proto, given = contributed(
        "GroupQueryAttention", inputs, ("y", "keys", "values"), held=(6,), do_rotary=1, **SHARED
    )
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted, *_ = session.run(None, given)
    y, keys, values = (x.numpy() for x in from_onnx(proto)(*given.values()))
    np.testing.assert_allclose(y, wanted, rtol=1e-4, atol=1e-5)
    for b, end in enumerate(ends):
        assert keys.shape[2] == max(size, max(ends) + 1)
        np.testing.assert_array_equal(values[b, :, :end], inputs[4][b, :, :end])
        np.testing.assert_array_equal(values[b, :, end], inputs[2][b, 0].reshape(G, E))
        np.testing.assert_array_equal(keys[b, :, :end], inputs[3][b, :, :end])


def test_attention_of_both_directions_sees_all_keys_of_a_sample() -> None:
    q, k, v, *rest = _grouped(S, 0, [2, 4])
    proto, given = contributed("GroupQueryAttention", (q, k, v, *rest), held=(6,), causal=0, **SHARED)
    found = from_onnx(proto)(*given.values()).numpy()
    for b, end in enumerate((3, 5)):
        rows = q[b].reshape(S, H, E).swapaxes(0, 1)
        keys, values = (np.repeat(x[b, :end].reshape(end, G, E).swapaxes(0, 1), 2, 0) for x in (k, v))
        scores = np.exp(rows @ keys.swapaxes(1, 2) / np.sqrt(E))
        wanted = (scores / scores.sum(-1, keepdims=True)) @ values
        np.testing.assert_allclose(found[b], wanted.swapaxes(0, 1).reshape(S, D), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("x", "places", "options"),
    [
        ((B, S, D), np.tile(np.arange(S), (B, 1)), {}),
        ((B, S, D), np.array([3]), {"interleaved": 1}),
        ((B, H, S, E), np.tile(np.arange(S)[::-1], (B, 1)), {}),
        ((B, S, D), np.tile(np.arange(S), (B, 1)), {"num_heads": H, "rotary_embedding_dim": 8}),
    ],
)
def test_rotary_positions(x: Any, places: Any, options: dict[str, int]) -> None:
    half = options.get("rotary_embedding_dim", E) // 2
    tables = (COS[:, :half].copy(), SIN[:, :half].copy())
    beside_onnxruntime("RotaryEmbedding", (_normal(*x), places.copy(), *tables), held=(2, 3), **options)


def test_its_weights_train_by_their_gradients() -> None:
    """A step along the gradient of the loss moves it by the square of the gradient's length."""
    x = _normal(B, S, D)
    weights = (_normal(D, 3 * D) * np.float32(0.1), _normal(3 * D))
    proto, _ = contributed("Attention", (x, *weights, MARKS), held=(1, 2), num_heads=H, unidirectional=1)
    target, rate = _normal(B, S, D), 1e-2
    net = from_onnx(proto)
    step = lm.train_step(
        net, lambda y, t: lm.ops.mean(lm.ops.square(y - t)), lm.optim.SGD(lr=rate), device="cpu"
    )
    first = float(step((x, MARKS), target))
    moved = {n: p.numpy() - w for (n, p), w in zip(step.net.state_dict().items(), weights, strict=True)}
    squares = sum(float((v.astype(np.float64) ** 2).sum()) for v in moved.values())
    second = float(step((x, MARKS), target))
    assert squares > 0
    np.testing.assert_allclose(first - second, squares / rate, rtol=0.02)
