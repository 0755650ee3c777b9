"""Common part of the two interfaces to fused normalization: y = activation(norm(x) + z), and its gradients.

cuDNN 7's (`BatchNormEx`) and cuDNN 8's (`Normalization`) differ in the names of their settings, in how scale, bias
and statistics are described, and in the order of some arguments.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from lamina.cudnn.legacy.activation import Activation
from lamina.cudnn.legacy.base import AnyHandle, Descriptor, Memory, call
from lamina.cudnn.legacy.handles import kept, scratch
from lamina.cudnn.legacy.tensor import TensorDescriptor

D = TypeVar("D")
Described = tuple[TensorDescriptor, ...]


class Calls(NamedTuple):
    """The C functions of an interface."""

    forward: Callable[..., None]
    backward: Callable[..., None]
    forward_workspace: Callable[..., int]
    backward_workspace: Callable[..., int]
    reserve_size: Callable[..., int]


class FusedNorm(Descriptor, Generic[D]):
    """Base class; D is what `derive` returns: the descriptors of scale and bias, of means and variances."""

    #: Whether C wants all of x, z and y before the parameters, or z and y after them.
    _tensors_first: ClassVar[bool]

    @staticmethod
    def _calls() -> Calls:
        raise NotImplementedError

    def derive(self, x_desc: TensorDescriptor) -> D:
        """Descriptors of scale, bias and statistics for inputs like x."""
        raise NotImplementedError

    def _kinds(self) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
        """The settings that C takes after the handle, and those that it takes last."""
        raise NotImplementedError

    def _described(self, x_desc: TensorDescriptor, derived: D | None) -> tuple[TensorDescriptor, Described]:
        """The descriptor of scale and bias, and that of the statistics where C wants one of its own."""
        raise NotImplementedError

    # ---- sizes
    def forward_workspace(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        y_desc: TensorDescriptor,
        z_desc: TensorDescriptor | None = None,
        derived: D | None = None,
        activation: Activation | None = None,
    ) -> int:
        """Bytes of scratch for `forward_training`."""
        (first, last), (parameters, statistics) = self._kinds(), self._described(x_desc, derived)
        described = (x_desc, z_desc, y_desc, parameters, activation, *statistics)
        return call(self._calls().forward_workspace, handle, *first, *described, *last)

    def backward_workspace(
        self,
        handle: AnyHandle,
        *,
        x_desc: TensorDescriptor,
        dy_desc: TensorDescriptor,
        dx_desc: TensorDescriptor,
        y_desc: TensorDescriptor | None = None,
        dz_desc: TensorDescriptor | None = None,
        derived: D | None = None,
        activation: Activation | None = None,
    ) -> int:
        """Bytes of scratch for `backward`."""
        (first, last), (parameters, statistics) = self._kinds(), self._described(x_desc, derived)
        described = (x_desc, y_desc, dy_desc, dz_desc, dx_desc, parameters, activation, *statistics)
        return call(self._calls().backward_workspace, handle, *first, *described, *last)

    def reserve_size(
        self, handle: AnyHandle, *, x_desc: TensorDescriptor, activation: Activation | None = None
    ) -> int:
        """Bytes that `forward_training` leaves for `backward`."""
        first, last = self._kinds()
        return call(self._calls().reserve_size, handle, *first, activation, x_desc, *last)

    # ---- operations
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
        derived: D | None = None,
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
        """y = activation(norm(x) + z).

        Args:
            z_desc, z: what is added, with the "…_add_activation" operation.
            activation: what follows, with the "…_activation" and "…_add_activation" operations.
            derived: what `derive` returned for x_desc; left out, it is derived.
            workspace: scratch; omitted, the handle provides it.
            reserve: memory to be kept for `backward`; left out, it is allocated.
            handle, x_desc, x, y_desc, y, scale, bias, running_mean, running_variance, factor, saved_mean,
                saved_inv_variance, epsilon, alpha, beta: as for `BatchNorm.forward_training`.

        Returns:
            The reserve memory; None where the operation needs none.

        C: cudnnBatchNormalizationForwardTrainingEx, cudnnNormalizationForwardTraining.
        """
        (first, last), (parameters, statistics) = self._kinds(), self._described(x_desc, derived)
        described = (x_desc, z_desc, y_desc, parameters, activation, *statistics)
        size = self._calls().forward_workspace
        space = scratch(handle, workspace, lambda: call(size, handle, *first, *described, *last))
        saved = kept(handle, reserve, lambda: self.reserve_size(handle, x_desc=x_desc, activation=activation))
        others = (z_desc, z, y_desc, y)
        before, behind = (others, ()) if self._tensors_first else ((), others)
        call(
            self._calls().forward, handle, *first, alpha, beta, x_desc, x, *before, parameters, scale, bias, factor,
            *statistics, running_mean, running_variance, epsilon, saved_mean, saved_inv_variance, activation,
            *behind, *space, *saved, *last,
        )  # fmt: skip
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
        derived: D | None = None,
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
        """Gradients by x, z, scale and bias.

        Args:
            y_desc, y: what `forward_training` gave; wanted with an activation.
            dz_desc, dz: gradient by z, with the "…_add_activation" operation.
            reserve: what `forward_training` returned.
            handle and the others: as for `BatchNorm.backward` and `forward_training`.

        C: cudnnBatchNormalizationBackwardEx, cudnnNormalizationBackward.
        """
        (first, last), (parameters, statistics) = self._kinds(), self._described(x_desc, derived)
        described = (x_desc, y_desc, dy_desc, dz_desc, dx_desc, parameters, activation, *statistics)
        size = self._calls().backward_workspace
        space = scratch(handle, workspace, lambda: call(size, handle, *first, *described, *last))
        saved = kept(handle, reserve, lambda: self.reserve_size(handle, x_desc=x_desc, activation=activation))
        call(
            self._calls().backward, handle, *first, alpha, beta, alpha_param, beta_param, x_desc, x, y_desc, y,
            dy_desc, dy, dz_desc, dz, dx_desc, dx, parameters, scale, bias, dscale, dbias, epsilon, *statistics,
            saved_mean, saved_inv_variance, activation, *space, *saved, *last,
        )  # fmt: skip
