"""Settings that the objects above this layer do not use are read back as they were set; none needs a GPU."""

from __future__ import annotations

from collections.abc import Iterator
from ctypes import c_double, c_int, c_int64, c_size_t, c_void_p
from typing import Any

import pytest

from lamina.c import cudnn
from lamina.c.errors import CudnnBadParam

pytestmark = pytest.mark.feature("F001")
FUSED = list(cudnn.cudnnFusedOps_t)


@pytest.fixture
def tensor() -> Iterator[int]:
    made = cudnn.cudnnCreateTensorDescriptor()
    yield made
    cudnn.cudnnDestroyTensorDescriptor(made)


@pytest.fixture
def ctc() -> Iterator[int]:
    made = cudnn.cudnnCreateCTCLossDescriptor()
    yield made
    cudnn.cudnnDestroyCTCLossDescriptor(made)


def test_a_tensor_with_strides(tensor: int) -> None:
    cudnn.cudnnSetTensor4dDescriptorEx(tensor, cudnn.CUDNN_DATA_HALF, 2, 3, 4, 5, 200, 50, 10, 2)
    found = cudnn.cudnnGetTensor4dDescriptor(tensor)
    assert found == (cudnn.CUDNN_DATA_HALF, 2, 3, 4, 5, 200, 50, 10, 2)
    assert cudnn.cudnnGetTensorSizeInBytes(tensor) == 2 * (1 + 200 + 2 * 50 + 3 * 10 + 4 * 2)


def test_output_sizes_of_a_2d_pooling(tensor: int) -> None:
    pooling = cudnn.cudnnCreatePoolingDescriptor()
    cudnn.cudnnSetTensor4dDescriptor(tensor, cudnn.CUDNN_TENSOR_NCHW, cudnn.CUDNN_DATA_FLOAT, 2, 3, 9, 8)
    settings = (cudnn.CUDNN_POOLING_MAX, cudnn.CUDNN_PROPAGATE_NAN, 3, 2, 1, 0, 2, 3)
    cudnn.cudnnSetPooling2dDescriptor(pooling, *settings)
    assert cudnn.cudnnGetPooling2dDescriptor(pooling) == settings
    assert cudnn.cudnnGetPooling2dForwardOutputDim(pooling, tensor) == (2, 3, 5, 3)
    cudnn.cudnnDestroyPoolingDescriptor(pooling)


def test_clipping_of_version_8() -> None:
    rnn = cudnn.cudnnCreateRNNDescriptor()
    cudnn.cudnnRNNSetClip_v8(rnn, cudnn.CUDNN_RNN_CLIP_MINMAX, cudnn.CUDNN_PROPAGATE_NAN, -0.5, 2.0)
    found = cudnn.cudnnRNNGetClip_v8(rnn)
    assert found == (cudnn.CUDNN_RNN_CLIP_MINMAX, cudnn.CUDNN_PROPAGATE_NAN, -0.5, 2.0)
    assert cudnn.cudnnRNNGetClip_v9(rnn) == (cudnn.CUDNN_RNN_CLIP_MINMAX, -0.5, 2.0)
    cudnn.cudnnDestroyRNNDescriptor(rnn)


CTC = {
    "": (),
    "Ex": (cudnn.CUDNN_LOSS_NORMALIZATION_SOFTMAX, cudnn.CUDNN_PROPAGATE_NAN),
    "_v8": (cudnn.CUDNN_LOSS_NORMALIZATION_SOFTMAX, cudnn.CUDNN_PROPAGATE_NAN, 20),
    "_v9": (cudnn.CUDNN_LOSS_NORMALIZATION_SOFTMAX, cudnn.CUDNN_CTC_SKIP_OOB_GRADIENTS, 20),
}


@pytest.mark.parametrize("version", CTC)
def test_a_ctc_loss_of_each_version(ctc: int, version: str) -> None:
    settings = (cudnn.CUDNN_DATA_FLOAT, *CTC[version])
    getattr(cudnn, "cudnnSetCTCLossDescriptor" + version)(ctc, *settings)
    found = getattr(cudnn, "cudnnGetCTCLossDescriptor" + version)(ctc)
    assert found == (settings if version else settings[0])


def test_a_ctc_loss_without_more_takes_probabilities(ctc: int) -> None:
    cudnn.cudnnSetCTCLossDescriptor(ctc, cudnn.CUDNN_DATA_FLOAT)
    found = cudnn.cudnnGetCTCLossDescriptorEx(ctc)
    assert found.normMode is cudnn.CUDNN_LOSS_NORMALIZATION_NONE
    assert found.gradMode is cudnn.CUDNN_NOT_PROPAGATE_NAN


def _fill(descriptor: int, *dims: int) -> None:
    """The attributes of a packed float tensor, in a backend descriptor that is not finalized."""
    strides = [int(s) for s in (dims[1] * dims[2], dims[2], 1)]
    put = cudnn.cudnnBackendSetAttribute
    put(descriptor, cudnn.CUDNN_ATTR_TENSOR_DATA_TYPE, cudnn.CUDNN_TYPE_DATA_TYPE, 1, c_int(0))
    put(descriptor, cudnn.CUDNN_ATTR_TENSOR_DIMENSIONS, cudnn.CUDNN_TYPE_INT64, 3, (c_int64 * 3)(*dims))
    put(descriptor, cudnn.CUDNN_ATTR_TENSOR_STRIDES, cudnn.CUDNN_TYPE_INT64, 3, (c_int64 * 3)(*strides))
    put(descriptor, cudnn.CUDNN_ATTR_TENSOR_UNIQUE_ID, cudnn.CUDNN_TYPE_INT64, 1, c_int64(7))
    put(descriptor, cudnn.CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, cudnn.CUDNN_TYPE_INT64, 1, c_int64(16))


def test_a_backend_descriptor_begins_anew() -> None:
    """cudnnBackendInitialize forgets the attributes, finalized or not."""
    descriptor = cudnn.cudnnBackendCreateDescriptor(cudnn.CUDNN_BACKEND_TENSOR_DESCRIPTOR)
    _fill(descriptor, 2, 3, 4)
    cudnn.cudnnBackendInitialize(descriptor)
    with pytest.raises(CudnnBadParam):
        cudnn.cudnnBackendFinalize(descriptor)
    dims = (c_int64 * 3)()
    for wanted in ((4, 3, 2), (5, 6, 7)):
        cudnn.cudnnBackendInitialize(descriptor)
        _fill(descriptor, *wanted)
        cudnn.cudnnBackendFinalize(descriptor)
        attribute = (cudnn.CUDNN_ATTR_TENSOR_DIMENSIONS, cudnn.CUDNN_TYPE_INT64, 3)
        assert cudnn.cudnnBackendGetAttribute(descriptor, *attribute, dims) == 3
        assert tuple(dims) == wanted
    cudnn.cudnnBackendDestroyDescriptor(descriptor)


@pytest.mark.parametrize("ops", FUSED, ids=[one.name for one in FUSED])
def test_packs_and_plans_of_fused_operations_come_and_go(ops: cudnn.cudnnFusedOps_t) -> None:
    constants = cudnn.cudnnCreateFusedOpsConstParamPack(ops)
    variants = cudnn.cudnnCreateFusedOpsVariantParamPack(ops)
    plan = cudnn.cudnnCreateFusedOpsPlan(ops)
    assert 0 not in (constants, variants, plan)
    cudnn.cudnnDestroyFusedOpsPlan(plan)
    cudnn.cudnnDestroyFusedOpsVariantParamPack(variants)
    cudnn.cudnnDestroyFusedOpsConstParamPack(constants)


def test_constants_of_fused_operations(tensor: int) -> None:
    """Modes and placeholders are read back; a descriptor is copied into the one that is given."""
    pack = cudnn.cudnnCreateFusedOpsConstParamPack(cudnn.CUDNN_FUSED_SCALE_BIAS_ACTIVATION_CONV_BNSTATS)
    put, get = cudnn.cudnnSetFusedOpsConstParamPackAttribute, cudnn.cudnnGetFusedOpsConstParamPackAttribute
    copy, found = cudnn.cudnnCreateTensorDescriptor(), c_int(-1)
    assert get(pack, cudnn.CUDNN_PARAM_XDESC, copy) == 1  # nothing is set
    cudnn.cudnnSetTensor4dDescriptor(tensor, cudnn.CUDNN_TENSOR_NHWC, cudnn.CUDNN_DATA_HALF, 2, 8, 4, 5)
    put(pack, cudnn.CUDNN_PARAM_XDESC, tensor)
    assert get(pack, cudnn.CUDNN_PARAM_XDESC, copy) == 0
    assert cudnn.cudnnGetTensor4dDescriptor(copy) == cudnn.cudnnGetTensor4dDescriptor(tensor)
    for label, value in (
        (cudnn.CUDNN_PARAM_XDATA_PLACEHOLDER, cudnn.CUDNN_PTR_16B_ALIGNED),
        (cudnn.CUDNN_PARAM_WDATA_PLACEHOLDER, cudnn.CUDNN_PTR_ELEM_ALIGNED),
        (cudnn.CUDNN_PARAM_BN_MODE, cudnn.CUDNN_BATCHNORM_SPATIAL_PERSISTENT),
    ):
        put(pack, label, c_int(value))
        assert get(pack, label, found) == 0
        assert found.value == value
    cudnn.cudnnDestroyTensorDescriptor(copy)
    cudnn.cudnnDestroyFusedOpsConstParamPack(pack)


def test_variants_of_fused_operations() -> None:
    pack = cudnn.cudnnCreateFusedOpsVariantParamPack(cudnn.CUDNN_FUSED_BN_FINALIZE_STATISTICS_TRAINING)
    put, get = (
        cudnn.cudnnSetFusedOpsVariantParamPackAttribute,
        cudnn.cudnnGetFusedOpsVariantParamPackAttribute,
    )
    address = (c_void_p * 1)()
    put(pack, cudnn.CUDNN_PTR_YSUM, 4096)
    get(pack, cudnn.CUDNN_PTR_YSUM, address)
    assert address[0] == 4096
    scalars: list[tuple[int, Any, float]] = [
        (cudnn.CUDNN_SCALAR_SIZE_T_WORKSPACE_SIZE_IN_BYTES, c_size_t, 64),
        (cudnn.CUDNN_SCALAR_INT64_T_BN_ACCUMULATION_COUNT, c_int64, 1024),
        (cudnn.CUDNN_SCALAR_DOUBLE_BN_EXP_AVG_FACTOR, c_double, 0.25),
        (cudnn.CUDNN_SCALAR_DOUBLE_BN_EPSILON, c_double, 1e-5),
    ]
    for label, kind, value in scalars:
        found = kind(0)
        put(pack, label, kind(value))
        get(pack, label, found)
        assert found.value == value
    cudnn.cudnnDestroyFusedOpsVariantParamPack(pack)
