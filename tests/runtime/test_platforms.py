"""CUDA's platform on a driver that a test stands in for: whose memory is reached, and which device is current."""

from types import SimpleNamespace
from typing import Any

import pytest

from lamina.runtime import DeviceError, _cuda
from lamina.runtime.platforms import CudaPlatform, HostPlatform, current, platform_context

ALREADY = 704  # CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED


class Driver:
    """Remembers the current context and what was enabled. status: of its calls; answer: to who asks for access;
    reaches: pairs of devices, the second of whose memory the first reaches."""

    def __init__(self) -> None:
        self.context, self.status, self.answer = 0, 0, 0
        self.enabled: list[tuple[int, Any, int]] = []
        self.reaches = {(0, 0), (0, 1)}

    def get(self) -> tuple[int, int]:
        return self.status, self.context

    def set(self, handle: Any) -> int:
        self.context = handle.value or 0
        return self.status

    def cuDeviceGet(self, index: int) -> tuple[int, int]:
        return 0, index

    def cuDeviceCanAccessPeer(self, number: int, peer: int) -> tuple[int, int]:
        return 0, int((number, peer) in self.reaches)

    def cuCtxEnablePeerAccess(self, other: Any, flags: int) -> tuple[int]:
        self.enabled.append((self.context, other, flags))
        return (self.answer,)


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Driver:
    def refused(status: int, function: str) -> None:
        raise DeviceError(f"{function} returned {status}")

    found = Driver()
    monkeypatch.setattr(_cuda, "open_cuda", lambda: SimpleNamespace(driver=found))
    monkeypatch.setattr(_cuda, "raise_status", refused)
    return found


def gpu(driver: Driver, index: int) -> Any:
    """The device of a platform whose context is 100 and its number."""
    platform: Any = object.__new__(CudaPlatform)
    platform._device = SimpleNamespace(index=index, platform=platform)
    platform._number, platform.context, platform._address = index, 100 + index, 100 + index
    platform._handle = SimpleNamespace(value=100 + index)
    platform._get_current, platform._set_current = driver.get, driver.set
    return platform._device


@pytest.mark.parametrize("status", [0, ALREADY, 1, 217])
def test_access_to_a_peer_is_enabled_once_or_again(driver: Driver, status: int) -> None:
    one, two = gpu(driver, 0), gpu(driver, 1)
    driver.context, driver.answer = 7, status
    if status in (0, ALREADY):
        one.platform.enable_access(two)
    else:
        with pytest.raises(DeviceError, match=f"cuCtxEnablePeerAccess returned {status}"):
            one.platform.enable_access(two)
    assert driver.enabled == [(100, 101, 0)]
    assert driver.context == 7


def test_whose_memory_is_not_reached_is_refused(driver: Driver) -> None:
    one, two = gpu(driver, 0), gpu(driver, 1)
    assert one.platform.can_access(1)
    assert not one.platform.can_access(0)  # itself
    assert not two.platform.can_access(0)
    with pytest.raises(DeviceError, match="enable_peer_access: .* cannot access the memory of"):
        two.platform.enable_access(one)
    host = SimpleNamespace(index=1, platform=object.__new__(HostPlatform))
    assert not host.platform.can_access(0)
    with pytest.raises(DeviceError, match="has no CUDA context"):
        one.platform.enable_access(host)
    with pytest.raises(DeviceError, match="enable_peer_access: cpu has no peer access to"):
        host.platform.enable_access(one)
    assert platform_context(one) == 100
    assert driver.enabled == []


@pytest.mark.parametrize(("before", "after"), [(0, 100), (100, 100), (101, 101)])
def test_a_thread_gets_its_device_back_and_one_that_had_none_keeps_this_one(
    driver: Driver, before: int, after: int
) -> None:
    driver.context = before
    with current(gpu(driver, 0).platform):
        assert driver.context == 100
    assert driver.context == after


def test_a_driver_that_does_not_answer_is_named(driver: Driver) -> None:
    platform = gpu(driver, 0).platform
    driver.status = 3
    for call, name in (
        (platform.enter, "cuCtxGetCurrent"),
        (platform.make_current, "cuCtxSetCurrent"),
        (lambda: platform.leave(5), "cuCtxSetCurrent"),
    ):
        with pytest.raises(DeviceError, match=f"{name} returned 3"):
            call()
    platform.leave(0)  # nothing was current before
