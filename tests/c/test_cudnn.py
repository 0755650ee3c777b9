"""Conventions of lamina.c.cudnn that hold without a GPU: results, enums, scaling, arrays, errors, callbacks."""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from lamina.c import cudnn as c
from lamina.c import errors


@pytest.fixture
def tensor() -> Iterator[int]:
    """A float NCHW tensor descriptor, 1x4x8x8."""
    descriptor = c.cudnnCreateTensorDescriptor()
    c.cudnnSetTensor4dDescriptor(descriptor, c.CUDNN_TENSOR_NCHW, c.CUDNN_DATA_FLOAT, 1, 4, 8, 8)
    yield descriptor
    c.cudnnDestroyTensorDescriptor(descriptor)


@pytest.fixture
def weights() -> Iterator[int]:
    """A float KCRS filter descriptor, 6x4x3x3."""
    descriptor = c.cudnnCreateFilterDescriptor()
    c.cudnnSetFilter4dDescriptor(descriptor, c.CUDNN_DATA_FLOAT, c.CUDNN_TENSOR_NCHW, 6, 4, 3, 3)
    yield descriptor
    c.cudnnDestroyFilterDescriptor(descriptor)


# ---------------------------------------------------------------------------------------------------------
# enums


@pytest.mark.feature("F001", "F008")
def test_enums_by_name_by_value_and_as_ints() -> None:
    assert c.cudnnTensorFormat["CUDNN_TENSOR_NCHW"] == c.CUDNN_TENSOR_NCHW == 0
    assert c.cudnnTensorFormat is c.cudnnTensorFormat_t
    assert c.cudnnDataType_t(2) is c.CUDNN_DATA_HALF
    assert c.CUDNN_DATA_HALF.name == "CUDNN_DATA_HALF"
    with pytest.raises(KeyError):
        c.cudnnTensorFormat["CUDNN_TENSOR_HWCN"]


@pytest.mark.feature("B001")
def test_a_value_of_a_newer_library_survives() -> None:
    newer = c.cudnnDataType_t(987)
    assert newer == 987
    assert newer.name == "cudnnDataType_t_987"
    assert c.cudnnDataType_t.label(987) == "987"


def test_a_deprecated_alias_keeps_the_current_name() -> None:
    assert c.CUDNN_STATUS_ALLOC_FAILED is c.CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED
    assert c.CUDNN_STATUS_ALLOC_FAILED.name == "CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED"


@pytest.mark.feature("B001")
def test_since_and_deprecation_tables() -> None:
    assert c.SINCE["CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR"] == (9, 20, 0)
    assert c.SINCE["cudnnBackendPopulateCudaGraph"] == (9, 5, 0)
    assert "cudnnConvolutionForward" not in c.SINCE
    assert c.DEPRECATED["cudnnRNNSetClip_v8"] == "cudnnRNNSetClip_v9"
    assert "cudnnRNNForward" not in c.DEPRECATED
    assert sum(name.startswith("cudnn") for name in c.DEPRECATED) == 135


# ---------------------------------------------------------------------------------------------------------
# results


@pytest.mark.feature("F001", "F017")
def test_a_descriptor_goes_round(tensor: int) -> None:
    got = c.cudnnGetTensor4dDescriptor(tensor)
    assert got == (c.CUDNN_DATA_FLOAT, 1, 4, 8, 8, 256, 64, 8, 1)
    assert (got.dataType, got.c, got.hStride) == (c.CUDNN_DATA_FLOAT, 4, 8)
    assert isinstance(got.dataType, c.cudnnDataType_t)
    assert c.cudnnGetTensorSizeInBytes(tensor) == 1024


def test_arrays_come_back_as_long_as_they_are(tensor: int) -> None:
    got = c.cudnnGetTensorNdDescriptor(tensor, 8)
    assert (got.nbDims, got.dimA, got.strideA) == (4, [1, 4, 8, 8], [256, 64, 8, 1])
    assert c.cudnnGetTensorNdDescriptor(tensor, 2).dimA == [1, 4]


def test_filter_goes_round(weights: int) -> None:
    assert c.cudnnGetFilter4dDescriptor(weights) == (c.CUDNN_DATA_FLOAT, c.CUDNN_TENSOR_NCHW, 6, 4, 3, 3)
    assert c.cudnnGetFilterNdDescriptor(weights, 8).filterDimA == [6, 4, 3, 3]
    assert c.cudnnGetFilterSizeInBytes(weights) == 6 * 4 * 9 * 4


@pytest.mark.feature("F020", "F001")
def test_convolution_goes_round_and_knows_its_output(tensor: int, weights: int) -> None:
    conv = c.cudnnCreateConvolutionDescriptor()
    mode = c.CUDNN_CROSS_CORRELATION
    c.cudnnSetConvolution2dDescriptor(conv, 1, 1, 2, 2, 1, 1, mode, c.CUDNN_DATA_FLOAT)
    got = c.cudnnGetConvolution2dDescriptor(conv)
    assert (got.pad_h, got.u, got.dilation_w, got.mode) == (1, 2, 1, mode)
    assert c.cudnnGetConvolution2dForwardOutputDim(conv, tensor, weights) == (1, 6, 4, 4)
    assert c.cudnnGetConvolutionNdForwardOutputDim(conv, tensor, weights, 4) == [1, 6, 4, 4]
    c.cudnnSetConvolutionGroupCount(conv, 2)
    assert c.cudnnGetConvolutionGroupCount(conv) == 2
    c.cudnnSetConvolutionMathType(conv, c.CUDNN_TENSOR_OP_MATH)
    assert c.cudnnGetConvolutionMathType(conv) is c.CUDNN_TENSOR_OP_MATH
    c.cudnnDestroyConvolutionDescriptor(conv)


def test_padding_fill_is_a_number_of_the_data_type() -> None:
    data = c.cudnnCreateRNNDataDescriptor()
    layout = c.CUDNN_RNN_DATA_LAYOUT_BATCH_MAJOR_UNPACKED
    for kind, fill in ((c.CUDNN_DATA_FLOAT, -1.5), (c.CUDNN_DATA_HALF, 0.25), (c.CUDNN_DATA_DOUBLE, 1e-3)):
        c.cudnnSetRNNDataDescriptor(data, kind, layout, 5, 3, 7, [5, 4, 1], fill)
        got = c.cudnnGetRNNDataDescriptor(data, 3)
        assert (got.dataType, got.seqLengthArray, got.paddingFill) == (kind, [5, 4, 1], fill)
    c.cudnnDestroyRNNDataDescriptor(data)


def test_a_graph_descriptor_takes_attributes() -> None:
    desc = c.cudnnBackendCreateDescriptor(c.CUDNN_BACKEND_TENSOR_DESCRIPTOR)
    dims = np.array([2, 8, 4, 4], dtype=np.int64)
    strides = (ctypes.c_int64 * 4)(128, 16, 4, 1)
    for name, kind, values in (
        (c.CUDNN_ATTR_TENSOR_DATA_TYPE, c.CUDNN_TYPE_DATA_TYPE, (ctypes.c_int * 1)(c.CUDNN_DATA_FLOAT)),
        (c.CUDNN_ATTR_TENSOR_DIMENSIONS, c.CUDNN_TYPE_INT64, dims),
        (c.CUDNN_ATTR_TENSOR_STRIDES, c.CUDNN_TYPE_INT64, strides),
        (c.CUDNN_ATTR_TENSOR_UNIQUE_ID, c.CUDNN_TYPE_INT64, ctypes.c_int64(7)),
        (c.CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, c.CUDNN_TYPE_INT64, (ctypes.c_int64 * 1)(16)),
    ):
        count = 1 if isinstance(values, ctypes.c_int64) else len(values)
        c.cudnnBackendSetAttribute(desc, name, kind, count, values)
    c.cudnnBackendFinalize(desc)
    back = np.zeros(8, dtype=np.int64)
    written = c.cudnnBackendGetAttribute(desc, c.CUDNN_ATTR_TENSOR_DIMENSIONS, c.CUDNN_TYPE_INT64, 8, back)
    assert written == 4
    assert back[:4].tolist() == [2, 8, 4, 4]
    c.cudnnBackendDestroyDescriptor(desc)


# ---------------------------------------------------------------------------------------------------------
# alpha and beta


def read(reference: Any, layout: str) -> float:
    """The number behind a byref."""
    address = ctypes.cast(reference, ctypes.c_void_p).value
    assert address is not None
    value: float = struct.unpack(layout, ctypes.string_at(address, struct.calcsize(layout)))[0]
    return value


@pytest.mark.feature("F006")
@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        (c.CUDNN_DATA_FLOAT, "f"),
        (c.CUDNN_DATA_DOUBLE, "d"),
        (c.CUDNN_DATA_HALF, "f"),
        (c.CUDNN_DATA_BFLOAT16, "f"),
        (c.CUDNN_DATA_INT8, "f"),
    ],
)
def test_scaling_follows_the_output_type(tensor: int, kind: int, layout: str) -> None:
    c.cudnnSetTensor4dDescriptor(tensor, c.CUDNN_TENSOR_NCHW, kind, 1, 4, 8, 8)
    for value in (0.0, 1.0, 0.5, -3):
        (factor,) = c.library.scale_by_tensor(tensor, value)
        assert read(factor, layout) == value
    assert [read(f, layout) for f in c.library.scale_by_tensor(tensor, 1.0, np.float32(0.25))] == [1.0, 0.25]


@pytest.mark.feature("F006")
def test_scaling_of_a_filter_gradient(weights: int) -> None:
    assert read(c.library.scale_by_filter(weights, 0.75)[0], "f") == 0.75
    c.cudnnSetFilter4dDescriptor(weights, c.CUDNN_DATA_DOUBLE, c.CUDNN_TENSOR_NCHW, 6, 4, 3, 3)
    assert read(c.library.scale_by_filter(weights, 0.1)[0], "d") == 0.1


@pytest.mark.feature("F006")
def test_scaling_sees_a_type_that_was_set_again(tensor: int) -> None:
    assert read(c.library.scale_by_tensor(tensor, 0.1)[0], "f") == np.float32(0.1)
    c.cudnnSetTensor4dDescriptor(tensor, c.CUDNN_TENSOR_NCHW, c.CUDNN_DATA_DOUBLE, 1, 4, 8, 8)
    assert read(c.library.scale_by_tensor(tensor, 0.1)[0], "d") == 0.1


@pytest.mark.feature("F006")
def test_explicit_scaling_is_passed_as_it_is(tensor: int) -> None:
    mine = (ctypes.c_double * 1)(2.5)
    assert c.library.scale_by_tensor(tensor, mine) == [mine]
    assert read(c.library.scale_by_tensor(None, ctypes.c_float(2.5))[0], "f") == 2.5


@pytest.mark.feature("F006")
@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (c.CUDNN_DATA_FLOAT, 1.5, struct.pack("<f", 1.5)),
        (c.CUDNN_DATA_HALF, 1.5, struct.pack("<e", 1.5)),
        (c.CUDNN_DATA_BFLOAT16, 1.5, b"\xc0\x3f"),
        (c.CUDNN_DATA_BFLOAT16, 1.0 + 2**-8, b"\x80\x3f"),  # half way: to even
        (c.CUDNN_DATA_INT8, -3, b"\xfd"),
        (c.CUDNN_DATA_INT32, 7, b"\x07\0\0\0"),
        (c.CUDNN_DATA_DOUBLE, 0.1, struct.pack("<d", 0.1)),
        (c.CUDNN_DATA_UINT8, 200, b"\xc8"),
        (c.CUDNN_DATA_INT64, -2, struct.pack("<q", -2)),
        (c.CUDNN_DATA_BOOLEAN, 1, b"\x01"),
    ],
)
def test_set_tensor_takes_a_value_of_the_tensors_own_type(kind: int, value: float, expected: bytes) -> None:
    raw = bytes(c.library.element(kind, value))
    assert raw[: len(expected)] == expected
    assert raw[len(expected) :] == bytes(8 - len(expected))
    if value != 1.0 + 2**-8:  # rounded
        assert c.library.number(kind, raw) == value
    with pytest.raises(TypeError, match="pass a pointer"):
        c.library.element(c.CUDNN_DATA_FP8_E4M3, 1.0)


@pytest.mark.feature("F006")
@pytest.mark.parametrize(
    ("kind", "layout"),
    [
        (c.CUDNN_DATA_FLOAT, "f"), (c.CUDNN_DATA_DOUBLE, "d"), (c.CUDNN_DATA_INT32, "i"), (c.CUDNN_DATA_HALF, "f"),
        (c.CUDNN_DATA_BFLOAT16, "f"), (c.CUDNN_DATA_INT8, "f"),
    ],
)  # fmt: skip
def test_a_tensor_is_set_to_a_number_of_its_type_and_small_types_to_a_float(
    tensor: int, kind: int, layout: str
) -> None:
    c.cudnnSetTensor4dDescriptor(tensor, c.CUDNN_TENSOR_NCHW, kind, 1, 4, 8, 8)
    expected = struct.pack(f"<{layout}", 5)
    assert bytes(c.library.element_of_tensor(tensor, 5)) == expected.ljust(8, b"\0")


# ---------------------------------------------------------------------------------------------------------
# errors


@pytest.mark.feature("F004", "F005")
def test_an_error_tells_status_reason_call_and_arguments(tensor: int) -> None:
    with pytest.raises(errors.CudnnBadParam) as caught:
        c.cudnnSetTensor4dDescriptor(tensor, c.CUDNN_TENSOR_NHWC, c.CUDNN_DATA_HALF, -1, 4, 8, 8)
    error = caught.value
    assert (error.status, error.code) == (2000, "CUDNN_STATUS_BAD_PARAM")
    assert error.function == "cudnnSetTensor4dDescriptor"
    assert "n <= 0" in error.message
    for part in ("format=CUDNN_TENSOR_NHWC", "dataType=CUDNN_DATA_HALF", "n=-1", f"tensorDesc={tensor!r}"):
        assert part in str(error)
    assert isinstance(error, ValueError)


@pytest.mark.feature("F004")
def test_no_driver_is_a_clean_error(fresh: Any) -> None:
    code = """
import json
from lamina.c import cudnn, errors
try:
    cudnn.cudnnCreate()
except errors.CudnnNotInitialized as error:
    print(json.dumps([error.code, isinstance(error, errors.CudnnInitializationError), str(error)]))
"""
    code_name, family, text = fresh(code, CUDA_VISIBLE_DEVICES="")
    assert (code_name, family) == ("CUDNN_STATUS_NOT_INITIALIZED", True)
    assert text.startswith("cudnnCreate() returned CUDNN_STATUS_NOT_INITIALIZED (1001): ")


@pytest.mark.feature("F010")
def test_runtime_error_query_needs_a_handle() -> None:
    with pytest.raises(errors.CudnnError):
        c.cudnnQueryRuntimeError(None, c.CUDNN_ERRQUERY_RAWCODE)


@pytest.mark.feature("F004")
def test_the_message_survives_a_library_without_reasons(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any) -> None:
        raise OSError("gone")

    monkeypatch.setattr(c.library.symbols, "cudnnGetLastErrorString", broken, raising=False)
    error = c.library.exception(3000, "cudnnThing", "x=1", [])
    assert str(error) == "cudnnThing(x=1) returned CUDNN_STATUS_NOT_SUPPORTED (3000)"


@pytest.mark.feature("B001", "F004")
def test_a_constant_that_is_too_new_is_named_in_the_error() -> None:
    if c.library.version >= (9, 20, 0):
        pytest.fail("the test environment pins cuDNN 9.19; this one is newer")
    newer = c.CUDNN_BACKEND_OPERATION_SOFTMAX_DESCRIPTOR
    with pytest.raises(errors.CudnnError, match=r"SOFTMAX_DESCRIPTOR needs cuDNN 9\.20, this is 9\.19"):
        c.cudnnBackendCreateDescriptor(newer)


@pytest.mark.parametrize(
    ("bad", "kind", "text"),
    [
        (2**32 + 1, OverflowError, "`n`=0x100000001: 4294967297 does not fit"),
        (1.5, TypeError, "`n`=1.5: an integer is wanted, not float"),
        ("1", TypeError, "`n`='1': an integer is wanted, not str"),
        (
            "CUDNN_DATA_HALF",
            TypeError,
            "`n`='CUDNN_DATA_HALF': an integer is wanted, not str; the constant CUDNN_DATA_HALF has this name",
        ),
        (None, TypeError, "`n`=None: an integer is wanted, not NoneType"),
    ],
)
def test_integers_are_never_cut_or_guessed(tensor: int, bad: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        c.cudnnSetTensor4dDescriptor(tensor, 0, 0, bad, 4, 8, 8)
    assert f"cudnnSetTensor4dDescriptor: {text}" in str(caught.value)


@pytest.mark.parametrize(
    ("dims", "kind", "text"),
    [
        (5, TypeError, "`dimA`=5: a sequence of integers is wanted"),  # no address, which would crash
        ("ab", TypeError, "`dimA`='ab': a sequence of integers is wanted"),
        ((1, 2.5), TypeError, "`dimA`=(1, 2.5): a sequence of integers is wanted"),
        ((1, 1 << 40), OverflowError, "`dimA`=(1, 1099511627776) does not fit into 32-bit integers"),
        ((1,), ValueError, "`dimA` has 1 entries, 2 are read"),
    ],
)
def test_sequences_are_never_cut_or_guessed(tensor: int, dims: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind) as caught:
        c.cudnnSetTensorNdDescriptor(tensor, 0, 2, dims, (1, 1))
    assert str(caught.value) == f"cudnnSetTensorNdDescriptor: {text}"


def test_numpy_integers_are_integers(tensor: int) -> None:
    n, channels = np.int64(2), np.int32(3)
    c.cudnnSetTensor4dDescriptor(tensor, 0, 0, n, channels, 8, 8)  # type: ignore[arg-type]
    assert c.cudnnGetTensor4dDescriptor(tensor)[1:3] == (2, 3)


def test_a_negative_size_is_refused() -> None:
    with pytest.raises(OverflowError, match=r"cudnnConvolutionForward: `workSpaceSizeInBytes`=-1"):
        c.cudnnConvolutionForward(None, 0.0, None, None, None, None, None, 0, None, -1, 0.0, None, None)


def test_short_arrays_are_refused(tensor: int) -> None:
    with pytest.raises(ValueError, match="`strideA` has 3 entries, 4 are read"):
        c.cudnnSetTensorNdDescriptor(tensor, 0, 4, (1, 4, 8, 8), (64, 8, 1))


def test_arrays_of_many_kinds(tensor: int) -> None:
    strides = [256, 64, 8, 1]
    for dims in ((1, 4, 8, 8), [1, 4, 8, 8], np.array([1, 4, 8, 8]), (ctypes.c_int * 4)(1, 4, 8, 8)):
        c.cudnnSetTensorNdDescriptor(tensor, 0, 4, dims, strides)  # type: ignore[arg-type]
        assert c.cudnnGetTensorNdDescriptor(tensor, 4).dimA == [1, 4, 8, 8]
    with pytest.raises(OverflowError, match="32-bit"):
        c.cudnnSetTensorNdDescriptor(tensor, 0, 4, (1, 4, 8, 2**31), strides)


# ---------------------------------------------------------------------------------------------------------
# callbacks and strings


@pytest.mark.feature("F009")
def test_a_python_function_gets_the_log(fresh: Any) -> None:
    code = """
import json
from lamina.c import cudnn as c
got = []
def log(severity, udata, debug, message):
    d = debug.contents
    got.append([c.cudnnSeverity_t(severity).name, udata, d.cudnn_version, d.pid, message.decode()])
c.cudnnSetCallback(c.CUDNN_SEV_ERROR_EN | c.CUDNN_SEV_WARNING_EN | c.CUDNN_SEV_INFO_EN, 1234, log)
mask, udata, function = c.cudnnGetCallback()
c.cudnnCreateTensorDescriptor()
c.cudnnSetCallback(0, None, None)
c.cudnnCreateTensorDescriptor()
import os
print(json.dumps([mask, udata, function != 0, got, c.cudnnGetVersion(), os.getpid()]))
"""
    mask, udata, is_set, got, version, pid = fresh(code)
    assert (mask, udata, is_set) == (14, 1234, True)
    create = [line for line in got if "cudnnCreateTensorDescriptor" in line[-1]]
    assert len(create) == 1
    assert create[0][:4] == ["CUDNN_SEV_INFO", 1234, version, pid]


@pytest.mark.feature("F008")
def test_strings() -> None:
    assert c.cudnnGetErrorString(c.CUDNN_STATUS_BAD_PARAM) == "CUDNN_STATUS_BAD_PARAM"
    assert isinstance(c.cudnnGetLastErrorString(), str)
    perf = c.cudnnConvolutionFwdAlgoPerf_t(algo=1, status=0, time=0.5, memory=64)
    shown = repr(perf)
    assert shown.startswith(
        "cudnnConvolutionFwdAlgoPerf_t(algo=CUDNN_CONVOLUTION_FWD_ALGO_IMPLICIT_PRECOMP_GEMM"
    )
    assert "status=CUDNN_STATUS_SUCCESS, time=0.5, memory=64" in shown
