"""Normalization as one operation: layer, instance, batch and RMS norm, forward and backward."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute, named, tensors
from lamina.cudnn.tensor import Tensor

_KIND = c.cudnnBackendDescriptorType_t


def norm_mode(value: str | int) -> c.cudnnBackendNormMode_t:
    """The mode for "layer", "instance", "batch", "rms", "group", "ada_layer" or a value. Raises ValueError."""
    name = f"{value}_NORM" if isinstance(value, str) and not value.upper().endswith("_NORM") else value
    found: c.cudnnBackendNormMode_t = named(c.cudnnBackendNormMode_t, "CUDNN_", name, "norm mode")
    return found


class NormForward(Descriptor):
    """y = scale * (x - mean) * inv_variance + bias (CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR).

    Args:
        mode: "layer", "instance", "batch" (training only), "rms" (no mean, bias if wanted).
        phase: "training" writes mean and inv_variance, "inference" reads them where the mode keeps any.
        x, y: [N, C, spatial]; for layer and RMS norm N is the number of rows, C and spatial are normalized.
        scale, bias: [1, C, 1, …] (or the shape of what is normalized).
        epsilon, momentum: float32 tensors of one element, `by_value` if they are numbers on the host.
        running_mean, running_var: read; next_mean, next_var: written, (1 - momentum) * old + momentum * new.
        peers: tensors for statistics that several GPUs share.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_NORM_FORWARD_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "mode": attribute("OPERATION_NORM_FWD_MODE", "NORM_MODE", enum=c.cudnnBackendNormMode_t),
        "phase": attribute("OPERATION_NORM_FWD_PHASE", "NORM_FWD_PHASE", enum=c.cudnnBackendNormFwdPhase_t),
        **tensors(
            "OPERATION_NORM_FWD_",
            x="XDESC",
            mean="MEAN_DESC",
            inv_variance="INV_VARIANCE_DESC",
            scale="SCALE_DESC",
            bias="BIAS_DESC",
            epsilon="EPSILON_DESC",
            momentum="EXP_AVG_FACTOR_DESC",
            running_mean="INPUT_RUNNING_MEAN_DESC",
            running_var="INPUT_RUNNING_VAR_DESC",
            next_mean="OUTPUT_RUNNING_MEAN_DESC",
            next_var="OUTPUT_RUNNING_VAR_DESC",
            y="YDESC",
        ),
        "peers": attribute("OPERATION_NORM_FWD_PEER_STAT_DESCS", "BACKEND_DESCRIPTOR", many=True),
    }

    def __init__(
        self,
        mode: str | int,
        x: Tensor,
        y: Tensor,
        *,
        scale: Tensor,
        bias: Tensor | None = None,
        epsilon: Tensor | None = None,
        phase: str | int = "training",
        mean: Tensor | None = None,
        inv_variance: Tensor | None = None,
        momentum: Tensor | None = None,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        next_mean: Tensor | None = None,
        next_var: Tensor | None = None,
        peers: Sequence[Tensor] = (),
    ) -> None:
        super().__init__(
            mode=norm_mode(mode),
            phase=named(c.cudnnBackendNormFwdPhase_t, "CUDNN_NORM_FWD_", phase, "norm phase"),
            x=x,
            mean=mean,
            inv_variance=inv_variance,
            scale=scale,
            bias=bias,
            epsilon=epsilon,
            momentum=momentum,
            running_mean=running_mean,
            running_var=running_var,
            next_mean=next_mean,
            next_var=next_var,
            y=y,
            peers=tuple(peers) or None,
        )


class NormBackward(Descriptor):
    """dx, dscale and dbias from dy, x and what forward kept (CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR).

    Args: as `NormForward` has them; dbias is left out for RMS norm without bias.
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_NORM_BACKWARD_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "mode": attribute("OPERATION_NORM_BWD_MODE", "NORM_MODE", enum=c.cudnnBackendNormMode_t),
        **tensors(
            "OPERATION_NORM_BWD_",
            x="XDESC",
            mean="MEAN_DESC",
            inv_variance="INV_VARIANCE_DESC",
            dy="DYDESC",
            scale="SCALE_DESC",
            epsilon="EPSILON_DESC",
            dscale="DSCALE_DESC",
            dbias="DBIAS_DESC",
            dx="DXDESC",
        ),
        "peers": attribute("OPERATION_NORM_BWD_PEER_STAT_DESCS", "BACKEND_DESCRIPTOR", many=True),
    }

    def __init__(
        self,
        mode: str | int,
        dy: Tensor,
        x: Tensor,
        dx: Tensor,
        *,
        scale: Tensor,
        dscale: Tensor,
        dbias: Tensor | None = None,
        mean: Tensor | None = None,
        inv_variance: Tensor | None = None,
        epsilon: Tensor | None = None,
        peers: Sequence[Tensor] = (),
    ) -> None:
        super().__init__(
            mode=norm_mode(mode),
            x=x,
            mean=mean,
            inv_variance=inv_variance,
            dy=dy,
            scale=scale,
            epsilon=epsilon,
            dscale=dscale,
            dbias=dbias,
            dx=dx,
            peers=tuple(peers) or None,
        )
