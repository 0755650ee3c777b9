"""The NumPy attention against PyTorch's autograd on the CPU."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.helpers.legacy import attention_reference as reference

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
pytestmark = pytest.mark.torch

BATCH, Q, KV, HEADS = 3, 4, 5, 2


def by_torch(q: Any, k: Any, v: Any, w: dict[str, Any], scale: float, mask: Any) -> Any:
    project = [
        x[:, None].expand(-1, HEADS, -1, -1) if name not in w else torch.einsum("hps,bts->bhtp", w[name], x)
        for name, x in (("q_weights", q), ("k_weights", k), ("v_weights", v))
    ]
    qs, ks, vs = project
    out = torch.nn.functional.scaled_dot_product_attention(qs, ks, vs, attn_mask=mask, scale=scale)
    if "o_weights" in w:
        return torch.einsum("hop,bhtp->bto", w["o_weights"], out)
    return out.transpose(1, 2).reshape(BATCH, Q, -1)


@pytest.mark.parametrize("projected", [True, False])
@pytest.mark.parametrize("variable", [True, False])
def test_values_and_gradients_equal_pytorchs(projected: bool, variable: bool) -> None:
    rng = np.random.default_rng(11)
    sizes = (6, 5, 4) if projected else (4, 4, 3)
    q, k, v = (rng.normal(size=(BATCH, t, s)) for t, s in zip((Q, KV, KV), sizes, strict=True))
    w = {}
    if projected:
        shapes = {"q_weights": (HEADS, 3, 6), "k_weights": (HEADS, 3, 5), "v_weights": (HEADS, 2, 4)}
        w = {name: rng.normal(size=shape) for name, shape in (shapes | {"o_weights": (HEADS, 7, 2)}).items()}
    q_lengths, kv_lengths = ([4, 3, 1], [5, 2, 3]) if variable else (None, None)
    window = ([0, 0, 1, 0], [1, 2, 2, 5]) if variable else None
    got = reference.forward(
        q, k, v, w, heads=HEADS, scale=0.4, q_lengths=q_lengths, kv_lengths=kv_lengths, window=window
    )
    dout = rng.normal(size=got.out.shape)
    gradients = reference.backward(got, dout)

    positions = np.arange(KV)
    mask = np.ones((BATCH, 1, Q, KV), bool)
    if variable:
        mask &= (positions < np.array(kv_lengths)[:, None])[:, None, None]
        mask &= ((positions >= np.array(window[0])[:, None]) & (positions < np.array(window[1])[:, None]))[
            None, None
        ]
    tensors = {
        name: torch.from_numpy(a).requires_grad_() for name, a in {"q": q, "k": k, "v": v, **w}.items()
    }
    weights = {name: tensors[name] for name in w}
    out = by_torch(tensors["q"], tensors["k"], tensors["v"], weights, 0.4, torch.from_numpy(mask))
    out = out * torch.from_numpy(got.q_valid)[..., None]
    (out * torch.from_numpy(dout)).sum().backward()

    np.testing.assert_allclose(got.out, out.detach().numpy(), rtol=1e-10, atol=1e-12)
    for name, key in (("q", "queries"), ("k", "keys"), ("v", "values"), *((n, n) for n in w)):
        np.testing.assert_allclose(
            gradients[key], tensors[name].grad.numpy(), rtol=1e-9, atol=1e-12, err_msg=key
        )


def test_biases_and_residuals_are_added() -> None:
    rng = np.random.default_rng(1)
    q, k, v = (rng.normal(size=(BATCH, t, 4)) for t in (Q, KV, KV))
    w = {f"{n}_weights": rng.normal(size=(HEADS, 4 if n == "o" else 2, 2 if n == "o" else 4)) for n in "qkvo"}
    biases = {f"{n}_biases": rng.normal(size=(HEADS, 2, 1)) for n in "qkv"} | {
        "o_biases": rng.normal(size=(1, 4, 1))
    }
    # a bias is a weight on a constant input of one
    ones = [np.concatenate([x, np.ones((*x.shape[:2], 1))], axis=2) for x in (q, k, v)]
    wide = {f"{n}_weights": np.concatenate([w[f"{n}_weights"], biases[f"{n}_biases"]], axis=2) for n in "qkv"}
    expected = reference.forward(*ones, wide | {"o_weights": w["o_weights"]}, heads=HEADS).out
    got = reference.forward(q, k, v, w | biases, heads=HEADS, residuals=q).out
    np.testing.assert_allclose(got, expected + biases["o_biases"][0, :, 0] + q, rtol=1e-12)
