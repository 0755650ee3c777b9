"""Local response normalization across channels, and divisive normalization within them."""

from __future__ import annotations

from typing import NamedTuple

from lamina.c import cudnn as c
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call
from lamina.cudnn.legacy.flags import DivisiveMode, LRNMode
from lamina.cudnn.legacy.handles import scratch
from lamina.cudnn.legacy.tensor import TensorDescriptor

_ACROSS = LRNMode.CUDNN_LRN_CROSS_CHANNEL_DIM1
_MEANS = DivisiveMode.CUDNN_DIVNORM_PRECOMPUTED_MEANS


class LRNSettings(NamedTuple):
    """What `LRN.get` returns."""

    n: int
    alpha: float
    beta: float
    k: float


class LRN(Descriptor):
    """Local response normalization: y = x / (k + alpha / n * sum of x² over n channels) ** beta.

    `divisive_forward` takes the sum over n×n positions of a channel instead, and divides alpha by n².

    Args:
        n: width of the window, 1 to 16: (n - 1) // 2 before, the rest after.
        alpha: its factor.
        beta: the power, at least 0.01.
        k: at least 1e-5.
    """

    kind = "LRNDescriptor"

    def __init__(self, *, n: int = 5, alpha: float = 1e-4, beta: float = 0.75, k: float = 2.0) -> None:
        super().__init__()
        call(c.cudnnSetLRNDescriptor, self, n, float(alpha), float(beta), float(k))

    def get(self) -> LRNSettings:
        """Read from cuDNN (cudnnGetLRNDescriptor)."""
        return LRNSettings(*call(c.cudnnGetLRNDescriptor, self))

    # ---- across channels
    def forward(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        x: Memory,
        y_desc: TensorDescriptor,
        y: Memory,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """y = alpha * lrn(x) + beta * y (cudnnLRNCrossChannelForward); these scale the result, not the sum."""
        call(c.cudnnLRNCrossChannelForward, handle, self, _ACROSS, alpha, x_desc, x, beta, y_desc, y)

    def backward(
        self,
        handle: AnyHandle,
        *,
        y_desc: TensorDescriptor,
        y: Memory,
        dy_desc: TensorDescriptor,
        dy: Memory,
        x_desc: TensorDescriptor,
        x: Memory,
        dx_desc: TensorDescriptor,
        dx: Memory,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """dx = alpha * (gradient of lrn by x) + beta * dx (cudnnLRNCrossChannelBackward)."""
        given = (y_desc, y, dy_desc, dy, x_desc, x)
        call(c.cudnnLRNCrossChannelBackward, handle, self, _ACROSS, alpha, *given, beta, dx_desc, dx)

    # ---- within a channel
    def divisive_forward(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        x: Memory,
        y_desc: TensorDescriptor,
        y: Memory,
        means: Memory = None,
        temp: Memory = None,
        temp2: Memory = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """y[i] = alpha * x[i] / (k + a * sum over j of (x[j] - means[i])²) ** b + beta * y[i].

        Divisive normalization: j runs over the n×n window around i, as far as it is inside the image, so that
        every x of a window is compared with the mean at the window's centre. a is the descriptor's alpha divided
        by n², at the borders too; b is its beta. x itself stays as it is: the other half of local contrast
        normalization, x - mean(x), is an average `Pooling` and `add_tensor`.

        Args:
            means: the mean around each position, or any other values, shaped as x; left out, zeros.
            temp, temp2: scratch, each of x's size; omitted, the handle provides both.
            handle, x_desc, x, y_desc, y, alpha, beta: cudnnDivisiveNormalizationForward.
        """
        first, second = _temporaries(handle, x_desc, temp, temp2)
        function = c.cudnnDivisiveNormalizationForward
        call(function, handle, self, _MEANS, alpha, x_desc, x, means, first, second, beta, y_desc, y)

    def divisive_backward(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        x: Memory,
        dy: Memory,
        dx_desc: TensorDescriptor,
        dx: Memory,
        means: Memory = None,
        dmeans: Memory = None,
        temp: Memory = None,
        temp2: Memory = None,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """dx and, if asked for, dmeans: gradients of `divisive_forward` (cudnnDivisiveNormalizationBackward).

        The means count as independent of x. dy has the layout of x, dmeans that of dx; both results are blended by
        alpha and beta.
        """
        first, second = _temporaries(handle, x_desc, temp, temp2)
        given = (x_desc, x, means, dy, first, second)
        function = c.cudnnDivisiveNormalizationBackward
        call(function, handle, self, _MEANS, alpha, *given, beta, dx_desc, dx, dmeans)


def _temporaries(
    handle: AnyHandle, x_desc: TensorDescriptor, temp: Memory, temp2: Memory
) -> tuple[Memory, Memory]:
    """Two scratch tensors of x's size: the caller's, or the halves of a workspace."""
    if temp is not None and temp2 is not None:
        return temp, temp2
    if temp is not None or temp2 is not None:
        raise ValueError("temp and temp2 are given together or not at all")
    size = -(-x_desc.nbytes // 256) * 256  # keeps the second one aligned
    lent = scratch(handle, None, lambda: 2 * size, "temp").memory
    start = getattr(lent, "pointer", 0)
    return start, start + size
