"""Generated from the signatures by `python -m tools.stubs write`; do not edit."""

# An overload for traced values also takes what the one before takes; which one holds is decided in this order.
# mypy: disable-error-code="overload-overlap, override, misc"
# pyright: reportOverlappingOverload=false, reportIncompatibleMethodOverride=false

from collections.abc import Sequence
from typing import overload

from lamina.graph.ir.graph import Value
from lamina.ops.arguments import DTypeLike
from lamina.ops.core import DeviceLike
from lamina.ops.primitives.dft import Pair
from lamina.tensors import Tensor, TensorLike

__all__ = [
    "fft",
    "fft2",
    "fftfreq",
    "fftn",
    "fftshift",
    "hfft",
    "ifft",
    "ifft2",
    "ifftn",
    "ifftshift",
    "ihfft",
    "irfft",
    "irfft2",
    "irfftn",
    "rfft",
    "rfft2",
    "rfftfreq",
    "rfftn",
]
from typing import Literal

Norm = Literal["forward", "backward", "ortho"]

@overload
def fft(input: TensorLike, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Tensor: ...
@overload
def fft(input: Value, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Value: ...
@overload
def fft2(
    input: TensorLike, s: Sequence[int] | None = None, dim: Sequence[int] = ..., norm: Norm | None = None
) -> Tensor: ...
@overload
def fft2(
    input: Value, s: Sequence[int] | None = None, dim: Sequence[int] = ..., norm: Norm | None = None
) -> Value: ...
def fftfreq(
    n: int, d: float = 1.0, *, dtype: DTypeLike = ..., device: DeviceLike | str | None = None
) -> Tensor: ...
@overload
def fftn(
    input: TensorLike,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | int | None = None,
    norm: Norm | None = None,
) -> Tensor: ...
@overload
def fftn(
    input: Value,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | int | None = None,
    norm: Norm | None = None,
) -> Value: ...
@overload
def fftshift(input: TensorLike, dim: Sequence[int] | int | None = None) -> Tensor: ...
@overload
def fftshift(input: Value, dim: Sequence[int] | int | None = None) -> Value: ...
@overload
def hfft(input: TensorLike, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Tensor: ...
@overload
def hfft(input: Value, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Value: ...
@overload
def ifft(input: TensorLike, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Tensor: ...
@overload
def ifft(input: Value, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Value: ...
@overload
def ifft2(
    input: TensorLike, s: Sequence[int] | None = None, dim: Sequence[int] = ..., norm: Norm | None = None
) -> Tensor: ...
@overload
def ifft2(
    input: Value, s: Sequence[int] | None = None, dim: Sequence[int] = ..., norm: Norm | None = None
) -> Value: ...
@overload
def ifftn(
    input: TensorLike,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | int | None = None,
    norm: Norm | None = None,
) -> Tensor: ...
@overload
def ifftn(
    input: Value,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | int | None = None,
    norm: Norm | None = None,
) -> Value: ...
@overload
def ifftshift(input: TensorLike, dim: Sequence[int] | int | None = None) -> Tensor: ...
@overload
def ifftshift(input: Value, dim: Sequence[int] | int | None = None) -> Value: ...
@overload
def ihfft(input: TensorLike, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Tensor: ...
@overload
def ihfft(input: Value, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Value: ...
@overload
def irfft(input: TensorLike, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Tensor: ...
@overload
def irfft(input: Value, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Value: ...
@overload
def irfft2(
    input: TensorLike, s: Sequence[int] | None = None, dim: Sequence[int] = ..., norm: Norm | None = None
) -> Tensor: ...
@overload
def irfft2(
    input: Value, s: Sequence[int] | None = None, dim: Sequence[int] = ..., norm: Norm | None = None
) -> Value: ...
@overload
def irfftn(
    input: TensorLike,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | int | None = None,
    norm: Norm | None = None,
) -> Tensor: ...
@overload
def irfftn(
    input: Value,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | int | None = None,
    norm: Norm | None = None,
) -> Value: ...
@overload
def rfft(input: TensorLike, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Tensor: ...
@overload
def rfft(input: Value, n: int | None = None, dim: int = -1, norm: Norm | None = None) -> Value: ...
@overload
def rfft2(
    input: TensorLike, s: Sequence[int] | None = None, dim: Sequence[int] = ..., norm: Norm | None = None
) -> Tensor: ...
@overload
def rfft2(
    input: Value, s: Sequence[int] | None = None, dim: Sequence[int] = ..., norm: Norm | None = None
) -> Value: ...
def rfftfreq(
    n: int, d: float = 1.0, *, dtype: DTypeLike = ..., device: DeviceLike | str | None = None
) -> Tensor: ...
@overload
def rfftn(
    input: TensorLike,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | int | None = None,
    norm: Norm | None = None,
) -> Tensor: ...
@overload
def rfftn(
    input: Value,
    s: Sequence[int] | None = None,
    dim: Sequence[int] | int | None = None,
    norm: Norm | None = None,
) -> Value: ...
def transformed(
    what: str, z: Pair, s: Sequence[int] | None, dims: Sequence[int], norm: Norm | None, sign: int
) -> Pair: ...
def real_transformed(
    what: str, x: Value | TensorLike, s: Sequence[int] | None, dims: Sequence[int], norm: Norm | None
) -> Pair: ...
def back_to_real(
    what: str, z: Pair, s: Sequence[int] | None, dims: Sequence[int], norm: Norm | None
) -> Tensor: ...
