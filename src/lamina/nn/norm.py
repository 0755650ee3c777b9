"""Normalization layers. Names, arguments and state_dict keys are those of torch.nn."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np

from lamina import ops
from lamina.nn.module import Module, T
from lamina.nn.parameter import Parameter, read
from lamina.ops.arguments import DTypeLike
from lamina.ops.core import call, operand
from lamina.ops.primitives.collective import AllGather
from lamina.runtime import Device
from lamina.runtime.ranks import current_world
from lamina.spec import Group, Shape, ShapeError, as_shape, element_count, float32, int64
from lamina.tensors import ones, zeros


class _NormLayer(Module):
    """Scale and bias: they keep the master dtype when a network computes in a half type, as the statistics do."""

    computes_in_master = True
    weight: Parameter | None
    bias: Parameter | None

    def _affine(self, shape: Shape, weight: bool, bias: bool) -> None:
        """Ones and zeros, or None without affine parameters."""
        self.register_parameter("weight", Parameter(ones(shape)) if weight else None)
        self.register_parameter("bias", Parameter(zeros(shape)) if bias else None)

    def reset_parameters(self) -> None:
        """Reset to ones and zeros."""
        for name, held in self.named_parameters(recurse=False):
            held.fill_(1 if name == "weight" else 0)


class _RunningNorm(_NormLayer):
    """Channel-wise norms with optional running statistics.

    Args:
        num_features: C of the input [N, C, *S].
        eps: added to the variance.
        momentum: the step of the running statistics towards each batch's; None: cumulative averages. affine: whether
        there is a weight and, unless `bias` is False, a bias, both [C].
        track_running_stats: whether running statistics are kept; without them inference uses the batch's own.
    """

    later_names = ("num_batches_tracked",)
    ranks: ClassVar[tuple[int, ...]]
    #: Whether the number of channels may vary: if nothing is stored per channel.
    any_channels = False

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        *,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
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
        self.to(device, dtype)

    def reset_running_stats(self) -> None:
        """Reset the statistics: means 0, variances 1."""
        if self.track_running_stats:
            for name, value in (("running_mean", 0), ("running_var", 1), ("num_batches_tracked", 0)):
                self.get_buffer(name).fill_(value)

    def reset_parameters(self) -> None:
        """Reset weight and bias, and the statistics."""
        self.reset_running_stats()
        super().reset_parameters()

    def check(self, x: T) -> T:
        """The input as an operand. Raises ShapeError."""
        given: T = operand(x)
        fits = given.ndim in self.ranks and (self.any_channels or given.shape[1] == self.num_features)
        if not fits:
            ranks = " or ".join(map(str, self.ranks))
            raise ShapeError(
                f"{type(self).__name__}: needs an input of rank {ranks} with {self.num_features} channels, "
                f"got {given.spec}"
            )
        return given

    def running(self) -> tuple[Any, Any]:
        """Running mean and variance, None if there are none."""
        return (self.running_mean, self.running_var) if self.track_running_stats else (None, None)

    def keep(self, mean: Any, var: Any) -> None:
        """Set the running statistics from `mean` and `var`, which were moved by `share`, or are the batch's own."""
        count = read(self.get_buffer("num_batches_tracked")) + 1
        self.num_batches_tracked = count
        if self.momentum is None:
            share = 1.0 / count.cast(float32)
            old, new = self.running(), (mean, var)
            mean, var = (a + (b - a) * share.cast(a.dtype) for a, b in zip(old, new, strict=True))
        self._set_running(mean, var)

    def _set_running(self, mean: Any, var: Any) -> None:
        """Set the running statistics. They block gradients, as in torch: nothing is trained through them."""
        self.running_mean, self.running_var = ops.stop_gradient(mean), ops.stop_gradient(var)

    @property
    def share(self) -> float:
        """How far the op moves running statistics: all the way if `keep` averages."""
        return 1.0 if self.momentum is None else self.momentum

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        text = f"{self.num_features}, eps={self.eps}, momentum={self.momentum}, affine={self.affine}"
        return f"{text}, bias={self.bias is not None}, track_running_stats={self.track_running_stats}"


class _BatchNormLayer(_RunningNorm):
    def running(self) -> tuple[Any, Any]:
        """Running mean and variance; None if there are none, and in training if they are not tracked.

        As in torch, inference uses existing ones even if `track_running_stats` has since been set to False.
        """
        if self.training and not self.track_running_stats:
            return None, None
        return getattr(self, "running_mean", None), getattr(self, "running_var", None)

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


class FrozenBatchNorm2d(Module):
    """Batch norm of [N, C, H, W] with constants: statistics, weight and bias are buffers [C] and never change.

    As torchvision.ops.FrozenBatchNorm2d: for fine-tuning with small batches.
    """

    computes_in_master = True

    def __init__(self, num_features: int, eps: float = 1e-5) -> None:
        if num_features < 1:
            raise ValueError(f"FrozenBatchNorm2d: num_features must be at least 1, got {num_features}")
        self.num_features, self.eps = num_features, eps
        for name, values in (
            ("weight", ones),
            ("bias", zeros),
            ("running_mean", zeros),
            ("running_var", ones),
        ):
            self.register_buffer(name, values((num_features,)))

    def forward(self, x: T) -> T:
        """x [N, C, H, W] normalized; shape and dtype stay. Raises ShapeError."""
        y: T = ops.batch_norm(
            x, self.running_mean, self.running_var, self.weight, self.bias, False, 0.0, self.eps
        )
        return y

    def extra_repr(self) -> str:
        """The arguments."""
        return f"{self.num_features}, eps={self.eps}"


class BatchNorm3d(_BatchNormLayer):
    """Batch norm of [N, C, D, H, W] (Ioffe and Szegedy 2015)."""

    ranks = (5,)


@runtime_checkable
class SynchronizesBatchNorms(Protocol):
    """A network whose batch norms are not modules."""

    def synchronize_batch_norms(self, process_group: Group | None) -> None:
        """Train with the statistics over the group's ranks from now on; None means all ranks."""
        ...


class SyncBatchNorm(_BatchNormLayer):
    """Batch norm of [N, C, *S] with statistics over all ranks of a group; their gradients are also summed over it.

    process_group: a `lamina.distributed.Group`, by default all ranks. Each element counts equally, however many a
    rank has. In inference, and in a world of one rank, it is batch norm.
    """

    ranks = (2, 3, 4, 5)

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: Group | None = None,
        *,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        self.process_group = process_group
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, bias=bias, device=device, dtype=dtype
        )

    def forward(self, x: T) -> T:
        """x [N, C, *S] normalized; shape and dtype stay."""
        group = self.process_group or Group(*range(current_world().size))
        if group.size == 1 or not self.training:
            alone: T = super().forward(x)
            return alone
        mean, var = self.running()
        y: T
        y, mean, var = batch_norm_of_ranks(
            self.check(x), mean, var, self.weight, self.bias, self.share, self.eps, group
        )
        if mean is not None:
            self.keep(mean, var)
        return y

    @classmethod
    def convert_sync_batchnorm(cls, module: Module, process_group: Group | None = None) -> Module:
        """The module with all batch norms in it converted to SyncBatchNorm, sharing parameters and statistics."""
        if isinstance(module, SynchronizesBatchNorms):
            module.synchronize_batch_norms(process_group)
            return module
        if isinstance(module, _BatchNormLayer) and not isinstance(module, cls):
            made = cls(module.num_features, module.eps, module.momentum, False, False, process_group)
            made.__dict__.update(module.__dict__)
            made.process_group = process_group
            return made
        for name, child in module.named_children():
            module.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return module


def batch_norm_of_ranks(
    x: Any, mean: Any, var: Any, weight: Any, bias: Any, momentum: Any, eps: float, group: Group
) -> tuple[Any, Any, Any]:
    """Batch norm of [N, C, *S] with the statistics over all ranks, and running statistics moved towards these.

    mean, var: running statistics [C], None if there are none. Ranks' means and variances are combined by their
    element counts, in one exchange; a rank may have no samples (N = 0).
    """
    axes, wide = [0, *range(2, x.ndim)], x.cast(operand(x).dtype.compute)
    channels = x.shape[1]
    elements = element_count(x.shape) // channels
    average = ops.mean if elements else ops.sum  # no elements have no mean, and a share of 0
    own = average(wide, axes)
    spread = wide - own.reshape((-1, *(1,) * (x.ndim - 2)))
    number = own.new_full((1,), elements)
    told = ops.cat([own, average(spread * spread, axes), number])  # [2 C + 1]
    parts = call(AllGather(group), told)  # [ranks, 2 C + 1]
    means, variances, numbers = (
        parts[:, :channels],
        parts[:, channels : 2 * channels],
        parts[:, 2 * channels :],
    )
    count = ops.sum(ops.stop_gradient(numbers))
    shares = ops.stop_gradient(numbers) / count  # [ranks, 1]
    found_mean = ops.sum(means * shares, 0)
    found_var = ops.sum((variances + ops.square(means - found_mean)) * shares, 0)
    y = ops.batch_norm(x, found_mean, found_var, weight, bias, False, 0.0, eps)
    if mean is None:
        return y, None, None
    unbiased = ops.stop_gradient(found_var) * (count / ops.clamp(count - 1, min=1))
    moved = [
        old + (new.cast(old.dtype) - old) * momentum
        for old, new in ((mean, ops.stop_gradient(found_mean)), (var, unbiased))
    ]
    return y, moved[0], moved[1]


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
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        super().__init__(
            num_features, eps, momentum, affine, track_running_stats, bias=bias, device=device, dtype=dtype
        )
        self.any_channels = not affine and not track_running_stats

    def forward(self, x: T) -> T:
        """x [N, C, *S] or [C, *S] normalized; shape and dtype stay."""
        y: T
        x = operand(x)
        if x.ndim + 1 in self.ranks:
            y = self.forward(x.unsqueeze(0))
            return y.squeeze(0)
        x, (mean, var) = self.check(x), self.running()
        own = self.training or mean is None
        share = self.momentum or 0.0  # None leaves the statistics unchanged, as in torch
        y, mean, var = ops.instance_norm_with_statistics(
            x, mean, var, self.weight, self.bias, own, share, self.eps
        )
        if own and mean is not None:
            self._set_running(mean, var)
        return y


class InstanceNorm1d(_InstanceNorm):
    """Each channel of each sample of [N, C, L] normalized (Ulyanov et al. 2016)."""

    ranks = (3,)


class InstanceNorm2d(_InstanceNorm):
    """Each channel of each sample of [N, C, H, W] normalized (Ulyanov et al. 2016)."""

    ranks = (4,)


class InstanceNorm3d(_InstanceNorm):
    """Each channel of each sample of [N, C, D, H, W] normalized (Ulyanov et al. 2016)."""

    ranks = (5,)


class GroupNorm(_NormLayer):
    """Groups of channels of each sample normalized (Wu and He 2018).

    Raises ValueError unless num_groups divides num_channels.
    """

    def __init__(
        self,
        num_groups: int,
        num_channels: int,
        eps: float = 1e-5,
        affine: bool = True,
        *,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        if num_groups < 1 or num_channels % num_groups:
            raise ValueError(
                f"GroupNorm: num_groups={num_groups} must divide num_channels={num_channels} into whole groups"
            )
        self.num_groups, self.num_channels, self.eps, self.affine = num_groups, num_channels, eps, affine
        self._affine((num_channels,), affine, affine and bias)
        self.to(device, dtype)

    def forward(self, x: T) -> T:
        """x [N, C, *S] normalized; shape and dtype stay."""
        return ops.group_norm(x, self.num_groups, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        text = f"{self.num_groups}, {self.num_channels}, eps={self.eps}, affine={self.affine}"
        return f"{text}, bias={self.bias is not None}"


class LayerNorm(_NormLayer):
    """Normalization over the last axes, of sizes normalized_shape (Ba et al. 2016)."""

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        self.normalized_shape = as_shape(normalized_shape, "LayerNorm: normalized_shape")
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self._affine(self.normalized_shape, elementwise_affine, elementwise_affine and bias)
        self.to(device, dtype)

    def forward(self, x: T) -> T:
        """x [..., *normalized_shape] normalized; shape and dtype stay."""
        return ops.layer_norm(x, self.normalized_shape, self.weight, self.bias, self.eps)

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        text = f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"
        return f"{text}, bias={self.bias is not None}"


class RMSNorm(_NormLayer):
    """Division by the root mean square over the last axes (Zhang and Sennrich 2019).

    eps: by default the machine epsilon of the compute dtype.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Device | str | None = None,
        dtype: DTypeLike | None = None,
    ) -> None:
        self.normalized_shape = as_shape(normalized_shape, "RMSNorm: normalized_shape")
        self.eps, self.elementwise_affine = eps, elementwise_affine
        self.register_parameter(
            "weight", Parameter(ones(self.normalized_shape)) if elementwise_affine else None
        )
        self.to(device, dtype)

    def forward(self, x: T) -> T:
        """x [..., *normalized_shape] normalized; shape and dtype stay."""
        return ops.rms_norm(x, self.normalized_shape, self.weight, self.eps)

    def extra_repr(self) -> str:
        """The arguments, as torch prints them."""
        return f"{self.normalized_shape}, eps={self.eps}, elementwise_affine={self.elementwise_affine}"


class LocalResponseNorm(Module):
    """Each element normalized by the squares in neighboring channels (Krizhevsky et al. 2012)."""

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


class CrossMapLRN2d(LocalResponseNorm):
    """torch's older form of `LocalResponseNorm`, with its own channel window.

    A window of even size has one channel less, and the first channel remains in every later window: torch's running
    sum over the channels never subtracts it.
    """

    def __init__(self, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0) -> None:
        super().__init__(size, alpha, beta, k)

    def forward(self, x: T) -> T:
        """x [N, C, H, W] normalized; shape and dtype stay. Raises ShapeError for another rank."""
        given: T = operand(x)
        if given.ndim != 4:
            raise ShapeError(f"CrossMapLRN2d: needs an input [N, C, H, W], got {given.spec}")
        channel, reach = np.arange(given.shape[1]), (self.size - 1) // 2
        window = np.abs(channel[:, None] - channel) <= reach
        window[reach + 1 :, :1] = True
        share = (window * (self.alpha / self.size)).astype(given.dtype.numpy)
        response = ops.matmul(share, ops.flatten(given * given, 2)).reshape(given.shape)
        y: T = given * (response + self.k) ** -self.beta
        return y
