"""Convolution layers of one to three spatial axes, and the transposed ones. Arguments as in torch.nn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, ClassVar, Literal

from lamina import ops
from lamina.nn import init
from lamina.nn.module import Module, T
from lamina.nn.parameter import Parameter
from lamina.ops.arguments import DTypeLike
from lamina.ops.core import spec_of
from lamina.ops.primitives.window import Padding, per_axis, window
from lamina.runtime import Device
from lamina.spec import Policy, Shape, ShapeError, as_shape, current_policy, policy
from lamina.tensors import empty

Sizes = int | Iterable[int]
#: Padding of the input: zeros, or elements of the input itself.
PaddingMode = Literal["zeros", "reflect", "replicate", "circular"]


class _Conv(Module):
    """Common base of all convolutions: the arguments, the parameters and their initialization."""

    rank: ClassVar[int]
    transposed: ClassVar[bool] = False
    function: ClassVar[Callable[..., Any]]
    weight: Parameter
    bias: Parameter | None

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        dilation: Sizes = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: PaddingMode = "zeros",
        *,
        flip: bool = False,
        algorithm: str | None = None,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        name = type(self).__name__
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ValueError(
                f"{name}: padding_mode must be zeros, reflect, replicate or circular, got {padding_mode!r}"
            )
        self.padding_mode = padding_mode
        _check_channels(name, in_channels, out_channels, groups)
        self.in_channels, self.out_channels, self.groups = in_channels, out_channels, groups
        self.kernel_size = per_axis(name, "kernel_size", kernel_size, self.rank, 1)
        self.stride = per_axis(name, "stride", stride, self.rank, 1)
        self.dilation = per_axis(name, "dilation", dilation, self.rank, 1)
        self.padding = (
            per_axis(name, "padding", padding, self.rank, 0) if isinstance(padding, int) else padding
        )
        window(name, self.kernel_size, self.stride, self.padding, self.dilation, groups)  # checks the padding
        self.flip = flip
        self.set_mode(algorithm)
        self.weight = Parameter(empty(self._weight_shape()))
        self.register_parameter("bias", Parameter(empty(out_channels)) if bias else None)
        self.reset_parameters()
        self.to(device, dtype)

    def reset_parameters(self) -> None:
        """Reinitialize, by the scheme in force (`init.scheme`)."""
        init.initialize(self)

    def set_mode(
        self, forward: str | None = None, data_grad: str | None = None, filter_grad: str | None = None
    ) -> None:
        """Fix how this layer's plans are chosen, overriding the policy in force.

        Args:
            forward, data_grad, filter_grad: "heuristic", "fastest", "time_once", …, or a plan by name such as "plain
                eng58" (`spec.Policy`); None: for the forward pass the policy in force, for a gradient as
                for the forward pass.

        Raises ValueError for an unknown name.
        """
        Policy(algorithm=forward or "heuristic", data_grad=data_grad, filter_grad=filter_grad)
        self.algorithm, self.data_grad, self.filter_grad = forward, data_grad, filter_grad

    def reset_mode(self) -> None:
        """Return the choice to the policy in force."""
        self.set_mode()

    def _mode(self) -> tuple[str | None, AbstractContextManager[object]]:
        """The algorithm of the call, and the policy for its gradients."""
        if self.data_grad is None and self.filter_grad is None:
            return self.algorithm, nullcontext()
        if not self.transposed:
            return self.algorithm, policy(data_grad=self.data_grad, filter_grad=self.filter_grad)
        forward = (
            self.algorithm or current_policy().algorithm
        )  # a transposed convolution runs as a data gradient
        return self.data_grad or forward, policy(data_grad=forward, filter_grad=self.filter_grad or forward)

    def _around(self) -> list[int]:
        """The padding before and after each axis, last axis first, in the format of `ops.pad`."""
        spread = [d * (k - 1) for k, d in zip(self.kernel_size, self.dilation, strict=True)]
        if self.padding == "same":
            pairs = [(n // 2, n - n // 2) for n in spread]
        elif self.padding == "valid":
            pairs = [(0, 0)] * self.rank
        else:
            pairs = [p if isinstance(p, tuple) else (p, p) for p in self.padding]  # type: ignore[misc]
        return [n for pair in reversed(pairs) for n in pair]

    def _weight_shape(self) -> Shape:
        if self.transposed:
            return (self.in_channels, self.out_channels // self.groups, *self.kernel_size)
        return (self.out_channels, self.in_channels // self.groups, *self.kernel_size)

    def forward(self, x: T) -> T:
        """x (N, in_channels, *S) -> (N, out_channels, *O). Raises ShapeError, DTypeError."""
        algorithm, mode = self._mode()
        padding: Padding = self.padding
        if self.padding_mode != "zeros":
            x, padding = ops.pad(x, self._around(), self.padding_mode), 0
        with mode:
            y: T = type(self).function(
                x,
                self.weight,
                self.bias,
                self.stride,
                padding,
                self.dilation,
                self.groups,
                flip=self.flip,
                algorithm=algorithm,
            )
            return y

    def extra_repr(self) -> str:
        """The arguments, without those at their defaults, as torch prints them."""
        text = (
            f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}, stride={self.stride}"
        )
        ones, zeros = (1,) * self.rank, (0,) * self.rank
        shown = {
            "padding": (self.padding, zeros),
            "dilation": (self.dilation, ones),
            "groups": (self.groups, 1),
            "bias": (self._parameters["bias"] is not None, True),
            "flip": (self.flip, False),
            "algorithm": (self.algorithm, None),
            "data_grad": (self.data_grad, None),
            "filter_grad": (self.filter_grad, None),
        }
        return text + "".join(f", {k}={v!r}" for k, (v, default) in shown.items() if v != default)


class Conv1d(_Conv):
    """Convolution over (N, C, L): ops.conv1d with weight (out, in/groups, k) and bias (out,).

    padding: "valid", "half", "full", "same", ints or (lo, hi) pairs. flip: true convolution.
    algorithm: how the plan is chosen ("auto", "heuristic", "fastest", "fallback"), by default the policy in force.
    """

    rank, function = 1, staticmethod(ops.conv1d)


class Conv2d(_Conv):
    """Convolution over (N, C, H, W): ops.conv2d with weight (out, in/groups, h, w) and bias (out,).

    padding: "valid", "half", "full", "same", ints or (lo, hi) pairs. flip: true convolution.
    algorithm: how the plan is chosen ("auto", "heuristic", "fastest", "fallback"), by default the policy in force.
    """

    rank, function = 2, staticmethod(ops.conv2d)


class Conv3d(_Conv):
    """Convolution over (N, C, D, H, W): ops.conv3d with weight (out, in/groups, d, h, w) and bias (out,).

    padding: "valid", "half", "full", "same", ints or (lo, hi) pairs. flip: true convolution.
    algorithm: how the plan is chosen ("auto", "heuristic", "fastest", "fallback"), by default the policy in force.
    """

    rank, function = 3, staticmethod(ops.conv3d)


class _ConvTranspose(_Conv):
    """Common base of the transposed convolutions: adds output_padding, and torch's argument order."""

    transposed = True

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Sizes,
        stride: Sizes = 1,
        padding: Padding = 0,
        output_padding: Sizes = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Sizes = 1,
        padding_mode: Literal["zeros"] = "zeros",
        *,
        flip: bool = False,
        algorithm: str | None = None,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(
            in_channels,
            out_channels,
            kernel_size,
            stride,
            padding,
            dilation,
            groups,
            bias,
            flip=flip,
            algorithm=algorithm,
            device=device,
            dtype=dtype,
        )
        self.output_padding = per_axis(type(self).__name__, "output_padding", output_padding, self.rank, 0)

    def forward(self, x: T, output_size: Sequence[int] | None = None) -> T:
        """x (N, in_channels, *S) -> (N, out_channels, *O). Raises ShapeError, DTypeError.

        output_size: O, as an alternative to output_padding; may be preceded by batch and channels.
        """
        extra = self.output_padding if output_size is None else self._extra(spec_of(x).shape, output_size)
        algorithm, mode = self._mode()
        with mode:
            y: T = type(self).function(
                x,
                self.weight,
                self.bias,
                self.stride,
                self.padding,
                extra,
                self.groups,
                self.dilation,
                flip=self.flip,
                algorithm=algorithm,
            )
            return y

    def _extra(self, given: Shape, output_size: Sequence[int]) -> Shape:
        """The output_padding for an output of these sizes. Raises ShapeError for unattainable sizes."""
        name, rank = type(self).__name__, self.rank
        wanted = as_shape(output_size, f"{name}: output_size")
        if len(given) <= rank:
            return self.output_padding  # the op rejects such an input
        sizes = wanted[-rank:] if len(wanted) in (rank, len(given)) else wanted
        win = window(name, self.kernel_size, self.stride, self.padding, self.dilation, self.groups)
        least = tuple(
            (n - 1) * s - sum(pair) + span
            for n, s, pair, span in zip(
                given[-rank:], win.stride, win.padding, win.span(self.kernel_size), strict=True
            )
        )
        extra = tuple(size - n for size, n in zip(sizes, least, strict=False))
        if len(sizes) != rank or not all(0 <= e < s for e, s in zip(extra, win.stride, strict=True)):
            most = tuple(n + s - 1 for n, s in zip(least, win.stride, strict=True))
            raise ShapeError(f"{name}: output_size must be from {least} to {most}, got {wanted}")
        return extra

    def extra_repr(self) -> str:
        """The arguments, without those at their defaults."""
        text = super().extra_repr()
        return text if not any(self.output_padding) else f"{text}, output_padding={self.output_padding}"


class ConvTranspose1d(_ConvTranspose):
    """Transposed convolution over (N, C, L): the data gradient of Conv1d; weight (in, out/groups, k)."""

    rank, function = 1, staticmethod(ops.conv_transpose1d)


class ConvTranspose2d(_ConvTranspose):
    """Transposed convolution over (N, C, H, W): Conv2d's data gradient; weight (in, out/groups, h, w)."""

    rank, function = 2, staticmethod(ops.conv_transpose2d)


class ConvTranspose3d(_ConvTranspose):
    """Transposed convolution over (N, C, D, H, W): Conv3d's data gradient; weight (in, out/groups, *k)."""

    rank, function = 3, staticmethod(ops.conv_transpose3d)


def _check_channels(name: str, in_channels: int, out_channels: int, groups: int) -> None:
    if in_channels < 1 or out_channels < 1 or groups < 1:
        raise ShapeError(
            f"{name}: channels and groups must be at least 1, "
            f"got {in_channels} -> {out_channels}, groups={groups}"
        )
    if in_channels % groups or out_channels % groups:
        raise ShapeError(f"{name}: groups={groups} must divide in_channels={in_channels} and {out_channels=}")
