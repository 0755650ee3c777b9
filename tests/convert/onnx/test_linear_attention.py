"""Handlers of linear attention agree with ONNX's own tests."""

import numpy as np
import pytest

from lamina.convert.onnx import OnnxError, linear_attention
from tests.helpers.onnx_models import agrees, node_tests, single


@pytest.mark.parametrize("name", node_tests(linear_attention))
def test_onnx_own_tests_agree(name: str) -> None:
    agrees(name)


def test_an_unknown_rule_is_refused() -> None:
    graph = single(
        "LinearAttention",
        dict.fromkeys("qkv", (1, 2, 4)),
        2,
        27,
        q_num_heads=1,
        kv_num_heads=1,
        update_rule="sum",
    )
    with pytest.raises(
        OnnxError, match="update_rule must be one of linear, gated, delta, gated_delta, got 'sum'"
    ):
        graph(dict.fromkeys("qkv", np.ones((1, 2, 4), np.float32)))
