"""Handlers of attention and rotary embedding agree with ONNX's own tests."""

from typing import Any

import numpy as np
import pytest

from lamina.convert.onnx import OnnxError, attention
from tests.helpers.onnx_models import agrees, node_tests, single


@pytest.mark.parametrize("name", node_tests(attention))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_queries_share_the_heads_of_keys() -> None:
    rng = np.random.default_rng(0)
    q, k, v = (rng.normal(size=(1, h, 3, 4)).astype(np.float32) for h in (4, 2, 2))
    graph = single("Attention", {"q": q.shape, "k": k.shape, "v": v.shape}, opset=23)
    found = graph({"q": q, "k": k, "v": v})["y0"].numpy()
    whole = [np.repeat(a, 2, axis=1) for a in (k, v)]
    scores = q @ whole[0].swapaxes(2, 3) / 2
    weights = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(found, weights @ whole[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("options", "seen"),
    [
        ({}, lambda ahead: ahead < 9),
        ({"is_causal": 1}, lambda ahead: ahead <= 0),
    ],
    ids=["all", "causal"],
)
def test_which_keys_a_query_sees(options: dict[str, int], seen: Any) -> None:
    """With uniform scores the result is the mean of the values that are seen."""
    v = np.random.default_rng(0).normal(size=(1, 2, 5, 4)).astype(np.float32)
    given = {"q": np.zeros((1, 2, 5, 4), np.float32), "k": v, "v": v}
    graph = single("Attention", {n: a.shape for n, a in given.items()}, opset=23, **options)
    mask = seen(np.arange(5)[None] - np.arange(5)[:, None]).astype(np.float64)
    wanted = (mask / mask.sum(1, keepdims=True)) @ v
    np.testing.assert_allclose(graph(given)["y0"].numpy(), wanted, rtol=1e-5, atol=1e-6)


def test_three_axes_need_the_numbers_of_heads() -> None:
    graph = single("Attention", dict.fromkeys("qkv", (1, 2, 8)), opset=23)
    with pytest.raises(OnnxError, match="Attention: needs the attribute q_num_heads"):
        graph(dict.fromkeys("qkv", np.ones((1, 2, 8), np.float32)))


@pytest.mark.parametrize("kind", [bool, np.float32])
def test_keys_that_a_mask_does_not_name_are_hidden(kind: Any) -> None:
    v = np.random.default_rng(0).normal(size=(1, 2, 5, 4)).astype(np.float32)
    mask = np.ones((1, 1, 5, 3), bool) if kind is bool else np.zeros((1, 1, 5, 3), np.float32)
    given = {"q": np.zeros((1, 2, 5, 4), np.float32), "k": v, "v": v}
    shapes: dict[str, Any] = {n: a.shape for n, a in given.items()}
    graph = single("Attention", {**shapes, "mask": (9 if kind is bool else 1, mask.shape)}, opset=24)
    found = graph({**given, "mask": mask})["y0"].numpy()
    wanted = np.broadcast_to(v[:, :, :3].mean(2, keepdims=True), v.shape)
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)
