"""A call as its handler sees it."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.torch, pytest.mark.feature("F099")]


def test_what_a_call_lacks_is_named() -> None:
    import torch

    from lamina.convert.torch import TorchCall, TorchConversionError

    graph = torch.fx.Graph()
    node = graph.call_function(torch.relu, (graph.placeholder("x"),))
    call = TorchCall(node, {"input": 1}, None, print, None)
    assert (call["input"], call.get("p", 3), call.either("self", "input")) == (1, 3, 1)
    with pytest.raises(TorchConversionError, match="relu: needs the argument p, has input"):
        call["p"]
