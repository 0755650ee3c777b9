"""The feed-forward block of a transformer with its gradients: two linear layers with gelu between them."""

from typing import Any, Literal

from lamina import ops
from lamina.graph import gradients
from lamina.spec import Shape

#: x, the gradient of y, the weight and the bias of either layer.
FEED_FORWARD: tuple[Shape, ...] = ((4, 16, 32), (4, 16, 32), (64, 32), (64,), (32, 64), (32,))


def feed_forward(
    form: Literal["none", "tanh"], x: Any, g: Any, w1: Any, b1: Any, w2: Any, b2: Any
) -> list[Any]:
    """y, and the gradients of x and the parameters."""
    y = ops.linear(ops.gelu(ops.linear(x, w1, b1), form), w2, b2)
    return [y, *gradients(y, [x, w1, b1, w2, b2], [g])]
