"""Normalization as cuDNN 8 put it: batch norm with separate descriptors for parameters and statistics."""

from __future__ import annotations

from typing import NamedTuple

from lamina.c import cudnn as c
from lamina.cudnn.legacy.activation import Activation
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call
from lamina.cudnn.legacy.flags import Name, NormAlgo, NormMode, NormOps, flag
from lamina.cudnn.legacy.handles import kept, scratch
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


class Normalization(Descriptor):
    """Normalization, alone or fused: y = activation(norm(x) + z); the settings are arguments of C's calls.

    Args:
        mode: "per_channel" (spatial batch norm) or "per_activation".
        ops: "norm", "norm_activation" or "norm_add_activation".
        algorithm: "standard", or "persist" (the fused kernels: float16 NHWC, C a multiple of 4).
        groups: 1, the only number that cuDNN 9 takes.
    """

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

    def derive(self, x_desc: TensorDescriptor) -> NormTensors:
        """Descriptors of the parameters and of the statistics (cudnnDeriveNormTensorDescriptor)."""
        made, settings = NormTensors(TensorDescriptor.empty(), TensorDescriptor.empty()), self.get()
        call(c.cudnnDeriveNormTensorDescriptor, *made, x_desc, settings.mode, settings.groups)
        return made

    # ---- sizes
    def forward_workspace(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        y_desc: TensorDescriptor,
        z_desc: TensorDescriptor | None = None,
        tensors: NormTensors | None = None,
        activation: Activation | None = None,
    ) -> int:
        """Bytes of scratch for `forward_training`."""
        *kinds, groups = self.get()
        parameters, statistics = tensors or self.derive(x_desc)
        function = c.cudnnGetNormalizationForwardTrainingWorkspaceSize
        described = (x_desc, z_desc, y_desc, parameters, activation, statistics)
        return call(function, handle, *kinds, *described, groups)

    def backward_workspace(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        dy_desc: TensorDescriptor,
        dx_desc: TensorDescriptor,
        y_desc: TensorDescriptor | None = None,
        dz_desc: TensorDescriptor | None = None,
        tensors: NormTensors | None = None,
        activation: Activation | None = None,
    ) -> int:
        """Bytes of scratch for `backward`."""
        *kinds, groups = self.get()
        parameters, statistics = tensors or self.derive(x_desc)
        function = c.cudnnGetNormalizationBackwardWorkspaceSize
        described = (x_desc, y_desc, dy_desc, dz_desc, dx_desc, parameters, activation, statistics)
        return call(function, handle, *kinds, *described, groups)

    def reserve_size(
        self, handle: AnyHandle, *, x_desc: TensorDescriptor, activation: Activation | None = None
    ) -> int:
        """Bytes that `forward_training` leaves for `backward`."""
        *kinds, groups = self.get()
        function = c.cudnnGetNormalizationTrainingReserveSpaceSize
        return call(function, handle, *kinds, activation, x_desc, groups)

    # ---- operations
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
        tensors: NormTensors | None = None,
        activation: Activation | None = None,
        epsilon: float = 1e-5,
        alpha: float = 1.0,
        beta: float = 0.0,
    ) -> None:
        """y = activation(bias + scale * (x - mean) / sqrt(variance + epsilon) + z).

        cudnnNormalizationForwardInference; blended by alpha and beta. tensors: descriptors of scale and bias,
        of mean and variance; left out, derived.
        """
        *kinds, groups = self.get()
        parameters, statistics = tensors or self.derive(x_desc)
        call(
            c.cudnnNormalizationForwardInference,
            handle,
            *kinds,
            alpha,
            beta,
            x_desc,
            x,
            parameters,
            scale,
            bias,
            statistics,
            mean,
            variance,
            z_desc,
            z,
            activation,
            y_desc,
            y,
            epsilon,
            groups,
        )

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
        z_desc: TensorDescriptor | None = None,
        z: Memory = None,
        tensors: NormTensors | None = None,
        running_mean: Memory = None,
        running_variance: Memory = None,
        factor: float = 0.1,
        saved_mean: Memory = None,
        saved_inv_variance: Memory = None,
        activation: Activation | None = None,
        epsilon: float = 1e-5,
        alpha: float = 1.0,
        beta: float = 0.0,
        workspace: Memory | tuple[Memory, int] = None,
        reserve: Memory | tuple[Memory, int] = None,
    ) -> Memory:
        """y = activation(norm(x) + z) (cudnnNormalizationForwardTraining).

        Arguments as `BatchNormEx.forward_training`, with `tensors` for its bn_desc.

        Returns:
            The reserve memory, for `backward`; None where the operation needs none.
        """
        *kinds, groups = self.get()
        described = tensors or self.derive(x_desc)
        space = scratch(
            handle,
            workspace,
            lambda: self.forward_workspace(
                handle,
                x_desc=x_desc,
                y_desc=y_desc,
                z_desc=z_desc,
                tensors=described,
                activation=activation,
            ),
        )
        saved = kept(handle, reserve, lambda: self.reserve_size(handle, x_desc=x_desc, activation=activation))
        call(
            c.cudnnNormalizationForwardTraining,
            handle,
            *kinds,
            alpha,
            beta,
            x_desc,
            x,
            described.scale_bias,
            scale,
            bias,
            factor,
            described.mean_variance,
            running_mean,
            running_variance,
            epsilon,
            saved_mean,
            saved_inv_variance,
            activation,
            z_desc,
            z,
            y_desc,
            y,
            *space,
            *saved,
            groups,
        )
        return saved.memory

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
        bias: Memory,
        dscale: Memory,
        dbias: Memory,
        y_desc: TensorDescriptor | None = None,
        y: Memory = None,
        dz_desc: TensorDescriptor | None = None,
        dz: Memory = None,
        tensors: NormTensors | None = None,
        saved_mean: Memory = None,
        saved_inv_variance: Memory = None,
        activation: Activation | None = None,
        epsilon: float = 1e-5,
        alpha: float = 1.0,
        beta: float = 0.0,
        alpha_param: float = 1.0,
        beta_param: float = 0.0,
        workspace: Memory | tuple[Memory, int] = None,
        reserve: Memory | tuple[Memory, int] = None,
    ) -> None:
        """Gradients by x, z, scale and bias (cudnnNormalizationBackward).

        Arguments as `BatchNormEx.backward`, with `tensors` for its bn_desc.
        """
        *kinds, groups = self.get()
        described = tensors or self.derive(x_desc)
        space = scratch(
            handle,
            workspace,
            lambda: self.backward_workspace(
                handle,
                x_desc=x_desc,
                y_desc=y_desc,
                dy_desc=dy_desc,
                dz_desc=dz_desc,
                dx_desc=dx_desc,
                tensors=described,
                activation=activation,
            ),
        )
        saved = kept(handle, reserve, lambda: self.reserve_size(handle, x_desc=x_desc, activation=activation))
        call(
            c.cudnnNormalizationBackward,
            handle,
            *kinds,
            alpha,
            beta,
            alpha_param,
            beta_param,
            x_desc,
            x,
            y_desc,
            y,
            dy_desc,
            dy,
            dz_desc,
            dz,
            dx_desc,
            dx,
            described.scale_bias,
            scale,
            bias,
            dscale,
            dbias,
            epsilon,
            described.mean_variance,
            saved_mean,
            saved_inv_variance,
            activation,
            *space,
            *saved,
            groups,
        )
