"""Batch normalization, alone and fused with an activation and an addition."""

from __future__ import annotations

from typing import Any, NamedTuple

from lamina.c import cudnn as c
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call
from lamina.cudnn.legacy.flags import BatchNormMode, BatchNormOps, Name, flag
from lamina.cudnn.legacy.fusednorm import Calls, Described, FusedNorm
from lamina.cudnn.legacy.tensor import TensorDescriptor

#: The least epsilon that the library takes.
MIN_EPSILON: float = c.CUDNN_BN_MIN_EPSILON


class BatchNormSettings(NamedTuple):
    """What `BatchNorm.get` returns."""

    mode: BatchNormMode


class BatchNormExSettings(NamedTuple):
    """What `BatchNormEx.get` returns."""

    mode: BatchNormMode
    ops: BatchNormOps


class _BatchNorm(Descriptor):
    """What both have: the mode, and the descriptor of scale, bias and statistics."""

    _mode: BatchNormMode

    @property
    def mode(self) -> BatchNormMode:
        """Over which axes statistics are taken. Raises ClosedError."""
        _ = self.native
        return self._mode

    def derive(self, x_desc: TensorDescriptor) -> TensorDescriptor:
        """The descriptor of scale, bias, means and variances for inputs like x (cudnnDeriveBNTensorDescriptor).

        1×C×1×1 ("spatial") or 1×C×H×W ("per_activation"); float32, or float64 for float64 inputs.
        """
        made = TensorDescriptor.empty()
        call(c.cudnnDeriveBNTensorDescriptor, made, x_desc, self.mode)
        return made

    def forward_inference(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        x: Memory,
        y_desc: TensorDescriptor,
        y: Memory,
        scale: Memory,
        bias: Memory,
        mean: Memory,
        variance: Memory,
        derived: TensorDescriptor | None = None,
        epsilon: float = 1e-5,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """y = alpha * (bias + scale * (x - mean) / sqrt(variance + epsilon)) + beta * y.

        cudnnBatchNormalizationForwardInference. derived: what `derive` returned; left out,
        derived.
        """
        call(
            c.cudnnBatchNormalizationForwardInference, handle, self.mode, alpha, beta, x_desc, x, y_desc, y,
            derived or self.derive(x_desc), scale, bias, mean, variance, epsilon,
        )  # fmt: skip


class BatchNorm(_BatchNorm):
    """Batch normalization; C has no descriptor for it, the mode is an argument of its calls.

    Args:
        mode: "spatial" (statistics per channel), "per_activation" (per channel and position), or
            "spatial_persistent" (faster, may overflow: see `Handle.query_runtime_error`).
    """

    def __init__(self, mode: Name = "spatial") -> None:
        super().__init__()
        self._mode = flag(BatchNormMode, mode)

    def get(self) -> BatchNormSettings:
        """The settings."""
        return BatchNormSettings(self.mode)

    def forward_training(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        x: Memory,
        y_desc: TensorDescriptor,
        y: Memory,
        scale: Memory,
        bias: Memory,
        derived: TensorDescriptor | None = None,
        running_mean: Memory = None,
        running_variance: Memory = None,
        factor: float = 0.1,
        saved_mean: Memory = None,
        saved_inv_variance: Memory = None,
        epsilon: float = 1e-5,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """y = alpha * (bias + scale * (x - mean) * inv) + beta * y (cudnnBatchNormalizationForwardTraining).

        mean and variance are the batch's, inv is 1 / sqrt(variance + epsilon).

        Args:
            scale, bias: parameters. derived: their descriptor, from `derive`; left out, it is derived from x_desc.
            running_mean, running_variance: become (1 - factor) * running + factor * batch, the variance
                unbiased (m / (m - 1)); both or neither.
            factor: its weight; 1 in the first call forgets what was there.
            saved_mean, saved_inv_variance: mean and inv, for `backward`; both or neither.
            handle, x_desc, x, y_desc, y, epsilon, alpha, beta: as named.
        """
        call(
            c.cudnnBatchNormalizationForwardTraining, handle, self.mode, alpha, beta, x_desc, x, y_desc, y,
            derived or self.derive(x_desc), scale, bias, factor, running_mean, running_variance, epsilon,
            saved_mean, saved_inv_variance,
        )  # fmt: skip

    def backward(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        x: Memory,
        dy_desc: TensorDescriptor,
        dy: Memory,
        dx_desc: TensorDescriptor,
        dx: Memory,
        scale: Memory,
        dscale: Memory,
        dbias: Memory,
        derived: TensorDescriptor | None = None,
        saved_mean: Memory = None,
        saved_inv_variance: Memory = None,
        epsilon: float = 1e-5,
        alpha: float = 1.0,
        beta: float = 0.0,
        alpha_param: float = 1.0,
        beta_param: float = 0.0,
    ) -> None:
        """Gradients by x, scale and bias (cudnnBatchNormalizationBackward).

        dx is blended by alpha and beta, dscale and dbias by alpha_param and beta_param. saved_mean and
        saved_inv_variance are those of `forward_training`; left out, they are computed again from x.
        """
        call(
            c.cudnnBatchNormalizationBackward, handle, self.mode, alpha, beta, alpha_param, beta_param,
            x_desc, x, dy_desc, dy, dx_desc, dx, derived or self.derive(x_desc), scale, dscale, dbias,
            epsilon, saved_mean, saved_inv_variance,
        )  # fmt: skip


class BatchNormEx(_BatchNorm, FusedNorm[TensorDescriptor]):
    """Batch normalization fused with what follows it: y = activation(bn(x) + z).

    Args:
        mode: as `BatchNorm`; the fused kernels want "spatial_persistent" and float16 NHWC tensors, with C a
            multiple of 4.
        ops: "bn", "bn_activation" or "bn_add_activation".
    """

    _tensors_first = True

    def __init__(self, mode: Name = "spatial_persistent", *, ops: Name = "bn") -> None:
        super().__init__()
        self._mode = flag(BatchNormMode, mode)
        self._ops = flag(BatchNormOps, ops)

    def get(self) -> BatchNormExSettings:
        """The settings."""
        return BatchNormExSettings(self.mode, self._ops)

    @staticmethod
    def _calls() -> Calls:
        return Calls(
            c.cudnnBatchNormalizationForwardTrainingEx,
            c.cudnnBatchNormalizationBackwardEx,
            c.cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize,
            c.cudnnGetBatchNormalizationBackwardExWorkspaceSize,
            c.cudnnGetBatchNormalizationTrainingExReserveSpaceSize,
        )

    def _kinds(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        return tuple(self.get()), ()

    def _described(
        self, x_desc: TensorDescriptor, derived: TensorDescriptor | None
    ) -> tuple[TensorDescriptor, Described]:
        return derived or self.derive(x_desc), ()
