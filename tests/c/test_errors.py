"""Exceptions by status: families, names, aliases, statuses of newer libraries."""

from __future__ import annotations

import pickle

import pytest

from lamina.c import cudnn, dnnl, errors

pytestmark = pytest.mark.feature("F004", "F005")


def test_every_cudnn_status_has_a_class_beneath_its_family() -> None:
    families = {
        1: errors.CudnnInitializationError,
        2: errors.CudnnBadParam,
        3: errors.CudnnNotSupported,
        4: errors.CudnnInternalError,
        5: errors.CudnnExecutionFailed,
    }
    statuses = [status for status in cudnn.cudnnStatus_t if status]
    classes = set()
    for status in statuses:
        kind = errors.cudnn_class(status)
        assert issubclass(kind, families[status // 1000])
        assert kind(status, "f").code == status.name
        classes.add(kind)
    assert len(classes) == len(statuses) == 48


def test_families_are_also_pythons_own_errors() -> None:
    assert issubclass(errors.CudnnBadParam, ValueError)
    assert issubclass(errors.CudnnNotSupported, NotImplementedError)
    assert issubclass(errors.CudnnNotSupportedShape, errors.CudnnNotSupported)
    for kind in errors.CUDNN_STATUS.values():
        assert issubclass(kind, errors.CudnnError)
        assert issubclass(kind, RuntimeError)


def test_a_status_of_a_newer_library_falls_to_its_family() -> None:
    kind = errors.cudnn_class(3999)
    assert kind is errors.CudnnNotSupported
    assert str(kind(3999, "f", "why", "x=1")) == "f(x=1) returned status 3999 (3999): why"
    assert errors.cudnn_class(9999) is errors.CudnnError


def test_deprecated_names_are_aliases() -> None:
    assert errors.CudnnAllocFailed is errors.CudnnInternalErrorHostAllocationFailed
    assert errors.CudnnVersionMismatch is errors.CudnnSublibraryVersionMismatch


def test_every_dnnl_status_has_a_class() -> None:
    for status in dnnl.dnnl_status_t:
        if status:
            kind = errors.dnnl_class(status)
            assert issubclass(kind, errors.DnnlError)
            assert kind is not errors.DnnlError
            assert kind(status, "f").code == status.name
    assert issubclass(errors.DnnlOutOfMemory, MemoryError)
    assert issubclass(errors.DnnlUnimplemented, NotImplementedError)
    assert issubclass(errors.DnnlInvalidArguments, ValueError)


def test_an_error_survives_pickling() -> None:
    error = errors.CudnnBadParamNullPointer(2002, "cudnnThing", "null", "x=None")
    back = pickle.loads(pickle.dumps(error))
    assert type(back) is type(error)
    assert (str(back), back.status, back.arguments) == (str(error), 2002, "x=None")


def test_status_macros() -> None:
    status = cudnn.CUDNN_STATUS_BAD_PARAM_NULL_POINTER
    assert cudnn.CUDNN_STATUS_CATEGORY(status) == cudnn.CUDNN_STATUS_BAD_PARAM
    assert cudnn.CUDNN_STATUS_SPECIFIC_ERROR(status) == 2
    assert cudnn.CUDNN_STATUS_FULL_ERROR_CODE(2000, 2) is status
