"""What is told the driver directly: the fields of its structures, and to open a context in a thread."""

import ctypes
import sys
import threading
from typing import Any

import pytest

from lamina.runtime import _cuda
from lamina.runtime._cuda import CopyParams, open_beside

#: CUmemorytype of cuda.h.
KINDS = {"HOST": 1, "DEVICE": 2, "UNIFIED": 4}


@pytest.mark.parametrize("side", ["src", "dst"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_side_of_a_copy_is_where_its_kind_of_memory_has_it(side: str, kind: str) -> None:
    """Pageable and pinned memory by the host's pointer, all else by the device's (cuda.h, CUDA_MEMCPY3D)."""
    params = CopyParams()
    setattr(params, f"{side}MemoryType", KINDS[kind])
    setattr(params, f"{side}Host", 1000)
    setattr(params, f"{side}Device", 2000)
    setattr(params, f"{side}XInBytes", 24)
    assert params.address(side) == (1024 if kind == "HOST" else 2024)
    params.set_address(side, 4096)
    assert params.address(side) == 4096
    assert getattr(params, f"{side}Host") == (4096 if kind == "HOST" else 1000)
    assert getattr(params, f"{side}Device") == (2000 if kind == "HOST" else 4096)


class Driver:
    """Opens a context when it is let; `devices` answers which device there is."""

    def __init__(self, devices: int) -> None:
        self.devices, self.calls = devices, list[str]()
        self.let, self.opened = threading.Event(), threading.Event()

    def cuDeviceGet(self, device: Any, index: int) -> int:
        self.calls.append(f"device {index}, hands change in {sys.getswitchinterval():.1e}")
        return self.devices

    def cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        self.calls.append(f"context of {device.value}")
        assert self.let.wait(10)
        self.opened.set()
        return 0


@pytest.mark.parametrize(("count", "answer"), [(1, 0), (1, 101), (0, 0)])
def test_who_waits_for_a_library_knows_when_the_driver_works_on_its_own(
    count: int, answer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The context is not open yet then; where nothing can be opened nobody waits."""
    driver = Driver(answer)
    monkeypatch.setattr(_cuda, "probe", lambda: _cuda.Driver(count, 13000, "", ""))
    monkeypatch.setattr(_cuda, "_load_unlocked", lambda name: driver.calls.append(f"load {name}"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: driver)
    usual = sys.getswitchinterval()
    under_way = open_beside()
    assert under_way.wait(10)
    assert not driver.opened.is_set()
    driver.let.set()
    asked = ["load libcuda.so.1"]
    if count:
        asked.append("device 0, hands change in 2.0e-04")
    if count and not answer:
        assert driver.opened.wait(10)
        asked.append("context of 0")
    assert driver.calls == asked
    assert sys.getswitchinterval() == usual
