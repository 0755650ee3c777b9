"""Captures on a GPU beside other threads, and captures that are broken off."""

import threading
from contextlib import suppress

import pytest

from lamina.cudnn import Handle
from lamina.runtime import CaptureInvalidated, Device, device, memset, to_host

pytestmark = pytest.mark.gpu


@pytest.fixture
def gpu() -> Device:
    return device("cuda")


@pytest.mark.feature("F037")
def test_what_cannot_be_captured_breaks_a_capture_off(gpu: Device) -> None:
    stream = gpu.stream()
    with (
        pytest.raises(CaptureInvalidated, match="not permitted when (the )?stream is capturing"),
        stream.capture(),
    ):
        stream.synchronize()
    with (
        pytest.raises(CaptureInvalidated, match="what another thread did"),
        stream.capture(),
        suppress(Exception),
    ):
        stream.synchronize()
    place = gpu.allocate(8, stream=stream)
    with stream.capture() as graph:
        memset(place, 7, stream)
    graph.launch()
    assert (to_host(place, stream=stream) == 7).all()


@pytest.mark.feature("F037")
@pytest.mark.parametrize("what", ["synchronize", "handles"])
def test_threads_that_wait_for_the_device_leave_captures_alone(gpu: Device, what: str) -> None:
    done, errors, rounds = threading.Event(), list[BaseException](), list[int]()

    def disturb() -> None:
        try:
            while not done.is_set():
                gpu.synchronize() if what == "synchronize" else Handle(gpu).close()
                rounds.append(1)
        except BaseException as error:
            errors.append(error)

    other = threading.Thread(target=disturb)
    other.start()
    place = gpu.allocate(8)
    for _ in range(30):
        with gpu.stream() as stream, stream.capture() as graph:
            for _ in range(100):
                memset(place, 1, stream)
        graph.close()
    done.set()
    other.join()
    assert not errors
    assert rounds
