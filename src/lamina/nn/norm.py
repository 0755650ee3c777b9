"""Normalization layers. Names, arguments and state_dict keys are those of torch.nn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from lamina import ops
from lamina.nn.module import Module, T
from lamina.nn.parameter import Parameter, read
from lamina.ops.core import operand
from lamina.spec import Shape, ShapeError, as_shape, float32, int64
from lamina.tensors import ones, zeros


class _NormLayer(Module):
    """Scale and bias: they stay in the master type when a network computes in a half type, as the statistics do."""

    computes_in_master: ClassVar[bool] = True
    weight: Parameter | None
    bias: Parameter | None

    def _affine(self, shape: Shape, weight: bool, bias: bool) -> None:
        """Ones and zeros, or None where there are none."""
        self.register_parameter("weight", Parameter(ones(shape)) if weight else None)
        self.register_parameter("bias", Parameter(zeros(shape)) if bias else None)


class _RunningNorm(_NormLayer):
    """Norms of channels that may keep running statistics.

    Args:
        num_features: C of the input [N, C, *S].
        eps: is added to the variance.
        momentum: how far the running statistics move towards each batch's; None: they are plain averages over all.
        affine: whether there is a weight and, unless `bias` is False, a bias, both [C].
        track_running_stats: whether running statistics are kept; without them inference uses the batch's own.
    """

    ranks: ClassVar[tuple[int, ...]]

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        bias: bool = True,
    ) -> None:
        if num_features < 1:
            raise ValueError(f"{type(self).__name__}: num_features must be at least 1, got {num_features}")
        self.num_features, self.eps, self.momentum = num_features, eps, momentum
        self.affine, self.track_running_stats = affine, track_running_stats
        self._affine((num_features,), affine, affine and bias)
        if track_running_stats:
            self.register_buffer("running_mean", zeros((num_features,)))
            self.register_buffer("running_var", ones((num_features,)))
            self.register_buffer("num_batches_tracked", zeros((), dtype=int64))

    def check(self, x: T) -> T:
        """The input as an operand. Raises ShapeError."""
        given: T = operand(x)
        if given.ndim not in self.ranks or given.shape[1] != self.num_features:
            ranks = " or ".join(map(str, self.ranks))
            raise ShapeError(
                f"{type(self).__name__}: needs an input of rank {ranks} with {self.num_features} channels, "
                f"got {given.spec}"
            )
        return given

    def running(self) -> tuple[Any, Any]:
        """Running mean and variance, None without them."""
        return (self.running_mean, self.running_var) if self.track_running_stats else (None, None)

    def keep(self, mean: Any, var: Any) -> None:
        """Set the running statistics from `mean` and `var`, which moved by `share`, or are the batch's own."""
        count = read(self._buffers["num_batches_tracked"]) + 1
        self.num_batches_tracked = count
        if self.momentum is None:
            share = 1.0 / count.cast(float32)
            old, new = self.running(), (mean, var)
            mean, var = (a + (b - a) * share.cast(a.dtype) for a, b in zip(old, new, strict=True))
        self.running_mean, self.running_var = mean, var

    @property
    def share(self) -> float:
        """How far the op moves running statistics: all the way where `keep` averages."""
        return 1.0 if self.momentum is None else self.momentum

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        text = f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}"
        return f"{text}, bias={self.bias is not None}, track_running_stats={self.track_running_stats}"


class _BatchNormLayer(_RunningNorm):
    def forward(self, x: T) -> T:
        """x [N, C, *S] normalized; shape and dtype stay."""
        y: T
        x, (mean, var) = self.check(x), self.running()
        training = self.training or mean is None
        y, mean, var = ops.batch_norm_with_statistics(
            x, mean, var, self.weight, self.bias, training, self.share, self.eps
        )
        if self.training and mean is not None:
            self.keep(mean, var)
        return y


class BatchNorm1d(_BatchNormLayer):
    """Batch norm of [N, C] or [N, C, L] (Ioffe and Szegedy 2015)."""

    ranks = (2, 3)


class BatchNorm2d(_BatchNormLayer):
    """Batch norm of [N, C, H, W] (Ioffe and Szegedy 2015)."""

    ranks = (4,)


class BatchNorm3d(_BatchNormLayer):
    """Batch norm of [N, C, D, H, W] (Ioffe and Szegedy 2015)."""

    ranks = (5,)


class _InstanceNorm(_RunningNorm):
    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = False,
        track_running_stats: bool = False,
        *,
        bias: bool = True,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, bias=bias)

    def forward(self, x: T) -> T:
        """x [N, C, *S] normalized; shape and dtype stay."""
        y: T
        x, (mean, var) = self.check(x), self.running()
        own = self.training or mean is None
        share = self.momentum or 0.0  # None keeps the statistics as they are, as in torch
        y, mean, var = ops.instance_norm_with_statistics(
            x, mean, var, self.weight, self.bias, own, share, self.eps
        )
        if own and mean is not None:
            self.running_mean, self.running_var = mean, var
        return y


class InstanceNorm1d(_InstanceNorm):
    """Each channel of each image of [N, C, L] normalized (Ulyanov et al. 2016)."""

    ranks = (3,)


class InstanceNorm2d(_InstanceNorm):
    """Each channel of each image of [N, C, H, W] normalized (Ulyanov et al. 2016)."""

    ranks = (4,)


class InstanceNorm3d(_InstanceNorm):
    """Each channel of each image of [N, C, D, H, W] normalized (Ulyanov et al. 2016)."""

    ranks = (5,)


class GroupNorm(_NormLayer):
    """Groups of channels of each image normalized (Wu and He 2018).

    Raises ValueError unless num_groups divides num_channels.
    """

    def __init__(
        self, num_groups: int, num_channels: int, eps: float = 1e-5, affine: bool = True, *, bias: bool = True
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: num_groups={num_groups} must divide num_channels={num_channels} into whole groups"
            )
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._affine((num_channels,), affine, affine and bias)

    def forward(self, x: T) -> T:
        """x [N, C, *S] normalized; shape and dtype stay."""
        return ops.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        text = f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"
        return f"{text}, bias={self.bias is not None}"


class LayerNorm(_NormLayer):
    """Rows of the last axes, of sizes normalized_shape, normalized (Ba et al. 2016)."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
    ) -> None:
        self.normalized_shape = as_shape(normalized_shape, "LayerNorm: normalized_shape")
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self._affine(self.normalized_shape, elementwise_affine, elementwise_affine and bias)

    def forward(self, x: T) -> T:
        """x [..., *normalized_shape] normalized; shape and dtype stay."""
        return ops.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        text = f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        return f"{text}, bias={self.bias is not None}"


class RMSNorm(_NormLayer):
    """Rows of the last axes by the root of their mean square (Zhang and Sennrich 2019).

    eps: by default the smallest number that the compute type can add to 1.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
    ) -> None:
        self.normalized_shape = as_shape(normalized_shape, "RMSNorm: normalized_shape")
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.register_parameter(
            "weight", Parameter(ones(self.normalized_shape)) if elementwise_affine else None
        )

    def forward(self, x: T) -> T:
        """x [..., *normalized_shape] normalized; shape and dtype stay."""
        return ops.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class LocalResponseNorm(Module):
    """Each element by the squares of the channels around it (Krizhevsky et al. 2012)."""

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        if size < 1:
            raise ValueError(f"LocalResponseNorm: size must be at least 1, got {size}")
        self.size, self.alpha, self.beta, self.k = size, alpha, beta, k

    def forward(self, x: T) -> T:
        """x [N, C, *S] normalized; shape and dtype stay."""
        return ops.local_response_norm(x, self.size, self.alpha, self.beta, self.k)

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        return f"{self.size}, alpha={self.alpha}, beta={self.beta}, k={self.k}"
