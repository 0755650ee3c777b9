"""Handlers of normalizations agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import OnnxError, norm
from tests.helpers.onnx_models import agrees, node_tests, single


@pytest.mark.parametrize("name", node_tests(norm))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_a_norm_of_another_order_is_refused() -> None:
    with pytest.raises(OnnxError, match="p must be 1 or 2, got 3"):
        single("LpNormalization", {"x": (2, 3)}, p=3)({"x": np.ones((2, 3), np.float32)})


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 9])
def test_the_window_of_lrn_is_the_specification_s(size: int) -> None:
    x = np.random.default_rng(1).standard_normal((2, 5, 3, 3)).astype(np.float32)
    wanted = np.empty_like(x)
    for c in range(5):
        first, last = max(0, c - (size - 1) // 2), min(4, c + -(-(size - 1) // 2))
        squares = (x[:, first : last + 1] ** 2).sum(1)
        wanted[:, c] = x[:, c] / (1.5 + 0.5 / size * squares) ** 0.75
    (found,) = single("LRN", {"x": x.shape}, size=size, alpha=0.5, bias=1.5)({"x": x}).values()
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 3, 1, 1), (2, 3, 4), (1, 3, 1, 2)])
def test_instance_norm_of_few_elements(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    scale, bias = np.arange(3, dtype=np.float32), np.ones(3, np.float32)
    net = single("InstanceNormalization", {"x": shape, "s": (3,), "b": (3,)})
    axes, kept = tuple(range(2, len(shape))), (3, *(1,) * (len(shape) - 2))
    apart = x - x.mean(axes, keepdims=True)
    wanted = apart / np.sqrt((apart**2).mean(axes, keepdims=True) + 1e-5) * scale.reshape(
        kept
    ) + bias.reshape(kept)
    (found,) = net({"x": x, "s": scale, "b": bias}).values()
    np.testing.assert_allclose(found.numpy(), wanted, rtol=1e-4, atol=1e-5)
