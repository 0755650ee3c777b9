"""Tensors compute at once and keep nothing for a gradient: outputs that nobody asked for are left out."""

from typing import Any

import numpy as np
import pytest

from lamina import ops
from lamina.ops.core import bind
from lamina.ops.primitives import MaxPool
from lamina.tensors import Tensor, tensor


def test_max_pool_computes_no_index(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []
    bind_op = Tensor.bind_op

    def spy(op: Any, operands: Any) -> Any:
        seen.append(op)
        return bind_op(op, operands)

    monkeypatch.setattr(Tensor, "bind_op", spy)
    x = tensor(np.arange(16.0).reshape(1, 1, 4, 4))
    assert ops.max_pool2d(x, 2).numpy().tolist() == [[[[5, 7], [13, 15]]]]
    assert isinstance(seen[-1], MaxPool)
    assert not seen[-1].index
    window = seen[-1].window
    y, index = bind(MaxPool((2, 2), window, True), x)
    assert index.numpy().tolist() == [[[[3, 3], [3, 3]]]]
    assert seen[-1].index
    assert y.numpy().tolist() == ops.max_pool2d(x, 2).numpy().tolist()
