"""Normalization as cuDNN 8 put it: batch norm with separate descriptors for parameters and statistics."""

from __future__ import annotations

from typing import Any, NamedTuple

from lamina.c import cudnn as c
from lamina.cudnn.legacy.activation import Activation
from lamina.cudnn.legacy.base import AnyHandle, Memory, call
from lamina.cudnn.legacy.flags import Name, NormAlgo, NormMode, NormOps, flag
from lamina.cudnn.legacy.fusednorm import Calls, Described, FusedNorm
from lamina.cudnn.legacy.tensor import TensorDescriptor


class NormalizationSettings(NamedTuple):
    """What `Normalization.get` returns."""

    mode: NormMode
    ops: NormOps
    algorithm: NormAlgo
    groups: int


class NormTensors(NamedTuple):
    """What `Normalization.derive` returns."""

    scale_bias: TensorDescriptor
    mean_variance: TensorDescriptor


class Normalization(FusedNorm[NormTensors]):
    """Normalization, alone or fused: y = activation(norm(x) + z); the settings are arguments of C's calls.

    Args:
        mode: "per_channel" (spatial batch norm) or "per_activation".
        ops: "norm", "norm_activation" or "norm_add_activation".
        algorithm: "standard", or "persist" (the fused kernels: float16 NHWC, C a multiple of 4).
        groups: 1, the only number that cuDNN 9 takes.
    """

    _tensors_first = False

    def __init__(
        self,
        mode: Name = "per_channel",
        *,
        ops: Name = "norm",
        algorithm: Name = "standard",
        groups: int = 1,
    ) -> None:
        super().__init__()
        self._settings = NormalizationSettings(
            flag(NormMode, mode), flag(NormOps, ops), flag(NormAlgo, algorithm), int(groups)
        )

    def get(self) -> NormalizationSettings:
        """The settings."""
        _ = self.native
        return self._settings

    @staticmethod
    def _calls() -> Calls:
        return Calls(
            c.cudnnNormalizationForwardTraining,
            c.cudnnNormalizationBackward,
            c.cudnnGetNormalizationForwardTrainingWorkspaceSize,
            c.cudnnGetNormalizationBackwardWorkspaceSize,
            c.cudnnGetNormalizationTrainingReserveSpaceSize,
        )

    def _kinds(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        *first, groups = self.get()
        return tuple(first), (groups,)

    def _described(
        self, x_desc: TensorDescriptor, derived: NormTensors | None
    ) -> tuple[TensorDescriptor, Described]:
        parameters, statistics = derived or self.derive(x_desc)
        return parameters, (statistics,)

    def derive(self, x_desc: TensorDescriptor) -> NormTensors:
        """Descriptors of the parameters and of the statistics (cudnnDeriveNormTensorDescriptor)."""
        made, settings = NormTensors(TensorDescriptor.empty(), TensorDescriptor.empty()), self.get()
        call(c.cudnnDeriveNormTensorDescriptor, *made, x_desc, settings.mode, settings.groups)
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
        z_desc: TensorDescriptor | None = None,
        z: Memory = None,
        derived: NormTensors | None = None,
        activation: Activation | None = None,
        epsilon: float = 1e-5,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """y = activation(bias + scale * (x - mean) / sqrt(variance + epsilon) + z).

        cudnnNormalizationForwardInference; blended by alpha and beta. derived: what `derive` returned; left out,
        derived.
        """
        (first, last), (parameters, statistics) = self._kinds(), self._described(x_desc, derived)
        call(
            c.cudnnNormalizationForwardInference, handle, *first, alpha, beta, x_desc, x, parameters, scale, bias,
            *statistics, mean, variance, z_desc, z, activation, y_desc, y, epsilon, *last,
        )  # fmt: skip
