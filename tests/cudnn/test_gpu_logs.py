"""The library's messages and errors at run time, with a handle."""

from __future__ import annotations

import logging

import pytest

from lamina.c import cudnn as c
from lamina.cudnn import logs
from lamina.cudnn.legacy.handles import Handle

pytestmark = pytest.mark.gpu


@pytest.mark.feature("F009")
def test_records_name_handle_and_stream(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "lamina.cudnn")
    with Handle("cuda:0") as handle:
        address, stream = handle.address, handle.stream
        with logs.logged("info"):
            c.cudnnGetStream(address)
            c.cudnnSetStream(address, stream)
    functions = [record.cudnn_function for record in caplog.records]  # type: ignore[attr-defined]
    assert {"cudnnGetStream", "cudnnSetStream"} <= set(functions)
    assert any(record.cudnn_handle == address for record in caplog.records)  # type: ignore[attr-defined]


@pytest.mark.feature("F010")
@pytest.mark.parametrize("mode", ["rawcode", "nonblocking", "blocking"])
def test_no_runtime_error(mode: str) -> None:
    with Handle("cuda:0") as handle:
        handle.synchronize()
        assert logs.runtime_error(handle, mode) is c.CUDNN_STATUS_SUCCESS
        assert logs.runtime_error(handle.address, mode) is c.CUDNN_STATUS_SUCCESS
