"""Matrix products: batched, and grouped by expert."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute, data_type, named, tensors
from lamina.cudnn.tensor import Tensor

_KIND = c.cudnnBackendDescriptorType_t


class Matmul(Descriptor):
    """The arithmetic of a product (CUDNN_BACKEND_MATMUL_DESCRIPTOR)."""

    kind = _KIND.CUDNN_BACKEND_MATMUL_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "compute": attribute("MATMUL_COMP_TYPE", "DATA_TYPE", enum=c.cudnnDataType_t),
        "padding": attribute("MATMUL_PADDING_VALUE", "DOUBLE"),
    }

    def __init__(self, *, compute: str | int = "float32", padding: float | None = None) -> None:
        super().__init__(compute=data_type(compute), padding=padding)


class MatmulOperation(Descriptor):
    """c = a @ b for tensors [batch, M, K], [batch, K, N], [batch, M, N]; transposes are strides.

    m, n, k: int32 tensors [batch, 1, 1] with the used size of each matrix (products of varying sizes).
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "matmul": attribute("OPERATION_MATMUL_DESC", "BACKEND_DESCRIPTOR", takes="MATMUL"),
        "a": attribute("OPERATION_MATMUL_ADESC", "BACKEND_DESCRIPTOR"),
        "b": attribute("OPERATION_MATMUL_BDESC", "BACKEND_DESCRIPTOR"),
        "c": attribute("OPERATION_MATMUL_CDESC", "BACKEND_DESCRIPTOR"),
        "m": attribute("OPERATION_MATMUL_GEMM_M_OVERRIDE_DESC", "BACKEND_DESCRIPTOR"),
        "n": attribute("OPERATION_MATMUL_GEMM_N_OVERRIDE_DESC", "BACKEND_DESCRIPTOR"),
        "k": attribute("OPERATION_MATMUL_GEMM_K_OVERRIDE_DESC", "BACKEND_DESCRIPTOR"),
    }

    def __init__(
        self,
        matmul: Matmul,
        a: Tensor,
        b: Tensor,
        c: Tensor,
        *,
        m: Tensor | None = None,
        n: Tensor | None = None,
        k: Tensor | None = None,
    ) -> None:
        super().__init__(matmul=matmul, a=a, b=b, c=c, m=m, n=n, k=k)


_MOE = "OPERATION_MOE_GROUPED_MATMUL_"


class MoeGroupedMatmul(Descriptor):
    """One product per expert, each on its own run of tokens (cuDNN 9.15).

    Args:
        token: [1, tokens, K]. weight: [experts, K, N]. output: [1, tokens, N].
        first_token: int32 [experts, 1, 1], where each expert's tokens begin.
        mode: "none" (tokens are sorted by expert), "gather" (`token_index` says which token each row is),
            "scatter" (rows go back to where `token_index` and `token_ks` say).
        top_k: experts per token, for "scatter".
    """

    kind = _KIND.CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "mode": attribute(_MOE + "MODE", "MOE_GROUPED_MATMUL_MODE", enum=c.cudnnMoeGroupedMatmulMode_t),
        "compute": attribute(_MOE + "MATH_PREC", "DATA_TYPE", enum=c.cudnnDataType_t),
        **tensors(
            _MOE,
            token="TOKEN_DESC",
            weight="WEIGHT_DESC",
            first_token="FIRST_TOKEN_OFFSET_DESC",
            output="OUTPUT_DESC",
            token_index="TOKEN_INDEX_DESC",
            token_ks="TOKEN_KS_DESC",
        ),
        "top_k": attribute(_MOE + "TOP_K", "INT32"),
    }

    def __init__(
        self,
        token: Tensor,
        weight: Tensor,
        first_token: Tensor,
        output: Tensor,
        *,
        mode: str | int = "none",
        token_index: Tensor | None = None,
        token_ks: Tensor | None = None,
        top_k: int | None = None,
        compute: str | int = "float32",
    ) -> None:
        modes = c.cudnnMoeGroupedMatmulMode_t
        super().__init__(
            mode=named(modes, "CUDNN_MOE_GROUPED_MATMUL_MODE_", mode, "grouped matmul mode"),
            compute=data_type(compute),
            token=token,
            weight=weight,
            first_token=first_token,
            output=output,
            token_index=token_index,
            token_ks=token_ks,
            top_k=top_k,
        )


class MoeGroupedMatmulBackward(Descriptor):
    """The gradient of `MoeGroupedMatmul` by its weight, from token and doutput (cuDNN 9.22)."""

    kind = _KIND.CUDNN_BACKEND_OPERATION_MOE_GROUPED_MATMUL_BWD_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "compute": attribute(_MOE + "BWD_MATH_PREC", "DATA_TYPE", enum=c.cudnnDataType_t),
        **tensors(
            _MOE + "BWD_",
            token="TOKEN_DESC",
            doutput="DOUTPUT_DESC",
            first_token="FIRST_TOKEN_OFFSET_DESC",
            dweight="DWEIGHT_DESC",
        ),
    }

    def __init__(
        self,
        doutput: Tensor,
        token: Tensor,
        first_token: Tensor,
        dweight: Tensor,
        *,
        compute: str | int = "float32",
    ) -> None:
        super().__init__(
            compute=data_type(compute),
            token=token,
            doutput=doutput,
            first_token=first_token,
            dweight=dweight,
        )
