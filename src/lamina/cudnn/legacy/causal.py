"""Causal convolutions along time, channel by channel: short filters directly, long ones by FFT.

    conv = CausalConvolution(batch=8, channels=512, length=2048, kernel=4, data_type="bfloat16", activation="silu")
    conv.forward(stream, x, weight, bias, y)

y[t] depends on x[t], x[t - 1], ...: the input is padded on the left alone. The order of the taps differs: for
`CausalConvolution` weight[-1] meets x[t] (as in PyTorch's conv1d), for the two FFT ones weight[0] does.

These calls came with cuDNN 9.22 to 9.26. With an older library the classes cannot be made: `MissingSymbol` names
the version that is needed. They take a stream, no handle, and arrays of any library or plain addresses; all arrays
are contiguous and on the stream's device. Not on Windows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

from lamina.c import cudnn as c
from lamina.c._arguments import Pointer
from lamina.cudnn.descriptor import data_type, named

DOUBLE, FLOAT = c.CUDNN_DATA_DOUBLE, c.CUDNN_DATA_FLOAT
_TYPES = (c.CUDNN_DATA_DOUBLE, c.CUDNN_DATA_FLOAT, c.CUDNN_DATA_HALF, c.CUDNN_DATA_BFLOAT16)
_LIMIT = 2**31 - 1
#: Filter widths of the direct convolution.
KERNELS = (2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256)


def require(*functions: str) -> None:
    """MissingSymbol, with the needed version, unless the library has these functions."""
    for name in functions:
        getattr(c.library.symbols, name)


def positive(call: str, **values: Any) -> None:
    """ValueError or TypeError unless all are whole numbers from 1 to 2^31 - 1."""
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{call}: {name} must be a whole number, got {value!r}")
        if not 1 <= value <= _LIMIT:
            raise ValueError(f"{call}: {name} must be from 1 to {_LIMIT}, got {value}")


def _element(call: str, value: str | int) -> c.cudnnDataType_t:
    kind = data_type(value)
    if kind not in _TYPES:
        raise ValueError(f"{call}: data_type must be float64, float32, float16 or bfloat16, got {value!r}")
    return kind


def gradient_type(kind: c.cudnnDataType_t) -> c.cudnnDataType_t:
    """What the gradients of weights and biases are summed in: double for double, float for all else."""
    return DOUBLE if kind == DOUBLE else FLOAT


def _power_of_two(value: int) -> bool:
    return value & (value - 1) == 0


@dataclass(frozen=True)
class CausalConvolution:
    """Depthwise causal convolution with a short filter, bias and activation.

    y[n, ch, t] = act(bias[ch] + sum over j of x[n, ch, t - j] * weight[ch, kernel - 1 - j])

    Args:
        batch, channels, length: of x and y, (batch, channels, length), or (batch, length, channels) with
            ``layout="nwc"``.
        kernel: 2 to 8, 16, 32, 64, 128 or 256; weight is (channels, kernel), or (kernel, channels) with "nwc".
        data_type: of x, weight, bias and y: float64, float32, float16 or bfloat16.
        activation: "identity" or "silu".
        layout: "ncw" (cuDNN 9.22) or "nwc" (cuDNN 9.24.1).

    Raises:
        MissingSymbol: the library is older. ValueError: a size or type that it does not take.

    C: cudnnCausalConv1dForward, cudnnCausalConv1dBackward, cudnnCausalConv1dNwhForward, cudnnCausalConv1dNwhBackward.
    """

    batch: int
    channels: int
    length: int
    kernel: int
    data_type: str | int = "float32"
    activation: str | int = "identity"
    layout: str = "ncw"
    _element: c.cudnnDataType_t = field(init=False, repr=False, compare=False)
    _act: c.cudnnCausalConv1dActivation_t = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = "CausalConvolution"
        positive(name, batch=self.batch, channels=self.channels, length=self.length)
        if self.kernel not in KERNELS:
            raise ValueError(f"{name}: kernel must be one of {KERNELS}, got {self.kernel!r}")
        if self.layout not in ("ncw", "nwc"):
            raise ValueError(f"{name}: layout must be 'ncw' or 'nwc', got {self.layout!r}")
        act = named(
            c.cudnnCausalConv1dActivation_t, "CUDNN_CAUSAL_CONV1D_ACTIVATION_", self.activation, "activation"
        )
        object.__setattr__(self, "_element", _element(name, self.data_type))
        object.__setattr__(self, "_act", act)
        stem = "cudnnCausalConv1d" + ("Nwh" if self.layout == "nwc" else "")
        require(stem + "Forward", stem + "Backward")

    @property
    def weight_gradient_type(self) -> c.cudnnDataType_t:
        """Element type of dweight and dbias: double if data_type is, else float."""
        return gradient_type(self._element)

    def forward(self, stream: Pointer, x: Pointer, weight: Pointer, bias: Pointer, y: Pointer) -> None:
        """Queue y = act(x * weight + bias) on `stream`. bias: (channels,), needed. Raises CudnnError."""
        call = c.cudnnCausalConv1dNwhForward if self.layout == "nwc" else c.cudnnCausalConv1dForward
        call(stream, x, weight, bias, y, *self._sizes, self._element, self._act)

    def backward(
        self,
        stream: Pointer,
        x: Pointer,
        weight: Pointer,
        bias: Pointer,
        dy: Pointer,
        dx: Pointer,
        dweight: Pointer,
        dbias: Pointer,
    ) -> None:
        """Queue the gradients: dx is written; dweight and dbias (`weight_gradient_type`) are added to.

        Fill dweight and dbias with zeros first unless they accumulate. The sums are atomic: their last bits differ
        from run to run. Raises CudnnError.
        """
        call = c.cudnnCausalConv1dNwhBackward if self.layout == "nwc" else c.cudnnCausalConv1dBackward
        gradients = (dy, dx, dweight, dbias)
        types = (self._element, self.weight_gradient_type)
        call(stream, x, weight, bias, *gradients, *self._sizes, *types, self._act)

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        return self.batch, self.channels, self.length, self.kernel


@dataclass(frozen=True)
class GatedCausalConvolution:
    """Two causal convolutions back to back with gates between them (the Hyena block), fused.

    x holds three signals per channel. Each is convolved with its own projection filter; the product of two of them
    goes through the mixer filter and a skip connection (y); the third gates the result (gated).

    Args:
        batch, channels, length: x is (batch, channels, 3, length), y and gated are (batch, channels, length).
        projection_kernel: width of the projection filters, (channels, 3, projection_kernel).
        mixer_kernel: width of the mixer filters, (channels, mixer_kernel).
        data_type: float64, float32, float16 or bfloat16.

    Raises:
        MissingSymbol: the library is older than 9.24.1. ValueError: a size or type that it does not take.

    C: cudnnB2BCausalConv1dForward, cudnnB2BCausalConv1dBackward.
    """

    batch: int
    channels: int
    length: int
    projection_kernel: int
    mixer_kernel: int
    data_type: str | int = "float32"
    _element: c.cudnnDataType_t = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = "GatedCausalConvolution"
        positive(name, batch=self.batch, channels=self.channels, length=self.length)
        positive(name, projection_kernel=self.projection_kernel, mixer_kernel=self.mixer_kernel)
        object.__setattr__(self, "_element", _element(name, self.data_type))
        require("cudnnB2BCausalConv1dForward", "cudnnB2BCausalConv1dBackward")

    @property
    def weight_gradient_type(self) -> c.cudnnDataType_t:
        """Element type of the three weight gradients: double if data_type is, else float."""
        return gradient_type(self._element)

    def forward(
        self,
        stream: Pointer,
        x: Pointer,
        projection: Pointer,
        mixer: Pointer,
        skip: Pointer,
        y: Pointer,
        gated: Pointer,
    ) -> None:
        """Queue the block on `stream`: `gated` is its result, `y` is kept for `backward`. skip: (channels,)."""
        c.cudnnB2BCausalConv1dForward(
            stream, x, projection, mixer, skip, y, gated, *self._sizes, self._element
        )

    def backward(
        self,
        stream: Pointer,
        x: Pointer,
        projection: Pointer,
        mixer: Pointer,
        skip: Pointer,
        y: Pointer,
        dgated: Pointer,
        dx: Pointer,
        dprojection: Pointer,
        dmixer: Pointer,
        dskip: Pointer,
    ) -> None:
        """Queue the gradients by that of `gated`. dprojection, dmixer and dskip have `weight_gradient_type`."""
        saved = (x, projection, mixer, skip, y, dgated)
        gradients = (dx, dprojection, dmixer, dskip)
        types = (self._element, self.weight_gradient_type)
        c.cudnnB2BCausalConv1dBackward(stream, *saved, *gradients, *self._sizes, *types)

    @property
    def _sizes(self) -> tuple[int, int, int, int, int]:
        return self.batch, self.channels, self.length, self.projection_kernel, self.mixer_kernel


@dataclass(frozen=True)
class FFTCausalConvolution:
    """Depthwise causal convolution with a filter of medium length, by FFT over tiles.

    y[n, ch, t] = sum over j of x[n, ch, t - j] * weight[ch, j]: weight[ch, 0] meets x[t].

    Args:
        batch, channels, length: of x and y, (batch, channels, length); length is a multiple of kernel.
        kernel: a power of two from 128 to 16384 (4096 for float64); weight is (channels, kernel).
        data_type: float64, float32, float16 or bfloat16.

    Arrays must start at multiples of 16 bytes. Needs NVRTC 12.4 or newer and its headers; a kernel of 16384 needs
    compute capability 9.0.

    Raises:
        MissingSymbol: the library is older than 9.26. ValueError: a size or type that it does not take.

    C: cudnnFFTCausalConv1dForward, cudnnFFTCausalConv1dBackward.
    """

    batch: int
    channels: int
    length: int
    kernel: int
    data_type: str | int = "float32"
    _element: c.cudnnDataType_t = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = "FFTCausalConvolution"
        positive(name, batch=self.batch, channels=self.channels, length=self.length, kernel=self.kernel)
        object.__setattr__(self, "_element", _element(name, self.data_type))
        most = 4096 if self._element == DOUBLE else 16384
        if not (128 <= self.kernel <= most and _power_of_two(self.kernel)):
            raise ValueError(f"{name}: kernel must be a power of two from 128 to {most}, got {self.kernel}")
        if self.length % self.kernel:
            raise ValueError(
                f"{name}: length must be a multiple of kernel ({self.kernel}), got {self.length}; pad x with zeros"
            )
        require("cudnnFFTCausalConv1dForward", "cudnnFFTCausalConv1dBackward")

    def forward(self, stream: Pointer, x: Pointer, weight: Pointer, y: Pointer) -> None:
        """Queue y = x * weight on `stream`. Raises CudnnError."""
        c.cudnnFFTCausalConv1dForward(stream, x, weight, y, *self._sizes, self._element)

    def backward(
        self, stream: Pointer, x: Pointer, weight: Pointer, dy: Pointer, dx: Pointer, dweight: Pointer
    ) -> None:
        """Queue both gradients; both are written, in data_type. Raises CudnnError."""
        c.cudnnFFTCausalConv1dBackward(stream, x, weight, dy, dx, dweight, *self._sizes, self._element)

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        return self.batch, self.channels, self.length, self.kernel


class BufferSizes(NamedTuple):
    """Bytes that a `LongFFTCausalConvolution` needs."""

    workspace: int
    """Scratch of each call."""
    reserve: int
    """What `forward` leaves for its `backward`."""


@dataclass(frozen=True)
class LongFFTCausalConvolution:
    """Depthwise causal convolution with a filter as long as the signal, by one FFT of twice that length.

    y[n, ch, t] = sum over j of x[n, ch, t - j] * weight[ch, j]: weight[ch, 0] meets x[t].

    Args:
        batch, channels: of x and y, (batch, channels, length); both must fit the device's grid (65,535).
        length: of the signal and of the filter: a power of two from 4096 to 16777216 (8388608 for float64).
        data_type: float64, float32, float16 or bfloat16.

    Arrays must start at multiples of 16 bytes. Needs NVRTC 12.4 or newer and its headers.

    Raises:
        MissingSymbol: the library is older than 9.26. ValueError: a size or type that it does not take.

    C: cudnnLongFFTCausalConv1dGetBufferSizes, cudnnLongFFTCausalConv1dForward, cudnnLongFFTCausalConv1dBackward.
    """

    batch: int
    channels: int
    length: int
    data_type: str | int = "float32"
    _element: c.cudnnDataType_t = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        name = "LongFFTCausalConvolution"
        positive(name, batch=self.batch, channels=self.channels, length=self.length)
        object.__setattr__(self, "_element", _element(name, self.data_type))
        most = 1 << 23 if self._element == DOUBLE else 1 << 24
        if not (4096 <= self.length <= most and _power_of_two(self.length)):
            raise ValueError(f"{name}: length must be a power of two from 4096 to {most}, got {self.length}")
        stem = "cudnnLongFFTCausalConv1d"
        require(stem + "GetBufferSizes", stem + "Forward", stem + "Backward")

    def buffer_sizes(self) -> BufferSizes:
        """Bytes of workspace and of reserve; needs no GPU. Raises CudnnError."""
        sizes = c.cudnnLongFFTCausalConv1dGetBufferSizes(*self._sizes, self._element)
        return BufferSizes(*sizes)

    def forward(
        self, stream: Pointer, x: Pointer, weight: Pointer, y: Pointer, workspace: Pointer, reserve: Pointer
    ) -> None:
        """Queue y = x * weight on `stream`; `reserve` is what `backward` takes. Raises CudnnError."""
        spaces = self._spaces(workspace, reserve)
        c.cudnnLongFFTCausalConv1dForward(stream, x, weight, y, *self._sizes, self._element, *spaces)

    def backward(
        self,
        stream: Pointer,
        dy: Pointer,
        dx: Pointer,
        dweight: Pointer,
        workspace: Pointer,
        reserve: Pointer,
    ) -> None:
        """Queue both gradients from the reserve of the `forward` before; both are written, in data_type."""
        spaces = self._spaces(workspace, reserve)
        c.cudnnLongFFTCausalConv1dBackward(stream, dy, dx, dweight, *self._sizes, self._element, *spaces)

    @property
    def _sizes(self) -> tuple[int, int, int, int]:
        return self.batch, self.channels, self.length, self.length

    def _spaces(self, workspace: Pointer, reserve: Pointer) -> tuple[Pointer, int, Pointer, int]:
        sizes = self.buffer_sizes()
        return workspace, sizes.workspace, reserve, sizes.reserve
