"""Batch normalization in parts, so that the parts fuse with convolutions.

gen-stats      after a convolution: sum and sum of squares per channel
finalize       mean, variance and running statistics from these, and the scale and bias that apply them
apply          pointwise scale, bias and activation before the next convolution
bn-bwd-weights after a data gradient: dscale, dbias and the factors of dx
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute, data_type, named, tensors
from lamina.cudnn.tensor import Tensor

_KIND = c.cudnnBackendDescriptorType_t


class GenStats(Descriptor):
    """total = sum of x, squares = sum of x², per channel (CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR).

    Args:
        x: [N, C, spatial]. total, squares: float32 [1, C, 1, …].
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_GEN_STATS_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "mode": attribute("OPERATION_GENSTATS_MODE", "GENSTATS_MODE", enum=c.cudnnGenStatsMode_t),
        "compute": attribute("OPERATION_GENSTATS_MATH_PREC", "DATA_TYPE", enum=c.cudnnDataType_t),
        **tensors("OPERATION_GENSTATS_", x="XDESC", total="SUMDESC", squares="SQSUMDESC"),
    }

    def __init__(self, x: Tensor, total: Tensor, squares: Tensor, *, compute: str | int = "float32") -> None:
        super().__init__(
            mode=c.cudnnGenStatsMode_t.CUDNN_GENSTATS_SUM_SQSUM,
            compute=data_type(compute),
            x=x,
            total=total,
            squares=squares,
        )


class BnFinalize(Descriptor):
    """Statistics from sums (CUDNN_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR).

    Args:
        total, squares: the outputs of `GenStats`; all are [1, C, 1, …] in float32.
        scale, bias: the layer's parameters.
        eq_scale, eq_bias: written; y = eq_scale * x + eq_bias applies the layer.
        epsilon, momentum, count: one number each, float32, float32, int64; count is the elements per channel.
        running_mean, running_var, next_mean, next_var: running statistics before and after.
        mean, inv_std: written, kept for the backward pass.
        mode: "training" or "inference".
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_BN_FINALIZE_STATISTICS_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "mode": attribute(
            "OPERATION_BN_FINALIZE_STATS_MODE", "BN_FINALIZE_STATS_MODE", enum=c.cudnnBnFinalizeStatsMode_t
        ),
        "compute": attribute("OPERATION_BN_FINALIZE_MATH_PREC", "DATA_TYPE", enum=c.cudnnDataType_t),
        **tensors(
            "OPERATION_BN_FINALIZE_",
            total="Y_SUM_DESC",
            squares="Y_SQ_SUM_DESC",
            scale="SCALE_DESC",
            bias="BIAS_DESC",
            running_mean="PREV_RUNNING_MEAN_DESC",
            running_var="PREV_RUNNING_VAR_DESC",
            next_mean="UPDATED_RUNNING_MEAN_DESC",
            next_var="UPDATED_RUNNING_VAR_DESC",
            mean="SAVED_MEAN_DESC",
            inv_std="SAVED_INV_STD_DESC",
            eq_scale="EQ_SCALE_DESC",
            eq_bias="EQ_BIAS_DESC",
            count="ACCUM_COUNT_DESC",
            epsilon="EPSILON_DESC",
            momentum="EXP_AVERATE_FACTOR_DESC",
        ),
    }

    def __init__(
        self,
        total: Tensor,
        squares: Tensor,
        *,
        scale: Tensor,
        bias: Tensor,
        eq_scale: Tensor,
        eq_bias: Tensor,
        epsilon: Tensor,
        count: Tensor,
        momentum: Tensor | None = None,
        running_mean: Tensor | None = None,
        running_var: Tensor | None = None,
        next_mean: Tensor | None = None,
        next_var: Tensor | None = None,
        mean: Tensor | None = None,
        inv_std: Tensor | None = None,
        mode: str | int = "training",
        compute: str | int = "float32",
    ) -> None:
        super().__init__(
            mode=named(c.cudnnBnFinalizeStatsMode_t, "CUDNN_BN_FINALIZE_STATISTICS_", mode, "finalize mode"),
            compute=data_type(compute),
            total=total,
            squares=squares,
            scale=scale,
            bias=bias,
            running_mean=running_mean,
            running_var=running_var,
            next_mean=next_mean,
            next_var=next_var,
            mean=mean,
            inv_std=inv_std,
            eq_scale=eq_scale,
            eq_bias=eq_bias,
            count=count,
            epsilon=epsilon,
            momentum=momentum,
        )


class BnBackwardWeights(Descriptor):
    """dscale, dbias and the factors of dx (CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR).

    dx = eq_dy_scale * dy + eq_x_scale * x + eq_bias, all factors [1, C, 1, …] in float32.

    Args:
        dy, x: [N, C, spatial]. mean, inv_std, scale: of the forward pass, [1, C, 1, …].
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_BN_BWD_WEIGHTS_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "compute": attribute("OPERATION_BN_BWD_WEIGHTS_MATH_PREC", "DATA_TYPE", enum=c.cudnnDataType_t),
        **tensors(
            "OPERATION_BN_BWD_WEIGHTS_",
            mean="MEAN_DESC",
            inv_std="INVSTD_DESC",
            scale="BN_SCALE_DESC",
            x="X_DESC",
            dy="DY_DESC",
            dscale="DBN_SCALE_DESC",
            dbias="DBN_BIAS_DESC",
            eq_dy_scale="EQ_DY_SCALE_DESC",
            eq_x_scale="EQ_X_SCALE_DESC",
            eq_bias="EQ_BIAS",
        ),
    }

    def __init__(
        self,
        dy: Tensor,
        x: Tensor,
        *,
        mean: Tensor,
        inv_std: Tensor,
        scale: Tensor,
        dscale: Tensor,
        dbias: Tensor,
        eq_dy_scale: Tensor,
        eq_x_scale: Tensor,
        eq_bias: Tensor,
        compute: str | int = "float32",
    ) -> None:
        super().__init__(
            compute=data_type(compute),
            mean=mean,
            inv_std=inv_std,
            scale=scale,
            x=x,
            dy=dy,
            dscale=dscale,
            dbias=dbias,
            eq_dy_scale=eq_dy_scale,
            eq_x_scale=eq_x_scale,
            eq_bias=eq_bias,
        )
