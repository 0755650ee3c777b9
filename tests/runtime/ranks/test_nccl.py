"""Communicators between GPUs: how they come about and end, with a stand-in for NCCL."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from lamina.runtime import Device, DeviceError
from lamina.runtime.ranks import Launcher, World, nccl, watchdog


class Fake(ModuleType):
    """nccl.core and its bindings."""

    def __init__(self) -> None:
        super().__init__("nccl")
        self.log: list[Any] = []
        self.UniqueId = SimpleNamespace(from_bytes=lambda b: ("id", b))
        self.Communicator = SimpleNamespace(init=self.init)

    def get_unique_id(self) -> bytes:
        return b"unique"

    def init(self, size: int, rank: int, unique: Any) -> Any:
        self.log.append((size, rank, unique))
        return SimpleNamespace(
            ptr=7, destroy=lambda: self.log.append("destroy"), abort=lambda: self.log.append("abort")
        )

    all_reduce = None

    def Comm(self, pointer: int) -> int:
        return pointer


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Fake:
    """Where nccl4py has its modules, also where it is installed."""
    found = Fake()
    for package in ("nccl", "nccl.bindings"):
        monkeypatch.setitem(sys.modules, package, ModuleType(package))
    for module in ("nccl.core", "nccl.bindings.nccl"):
        monkeypatch.setitem(sys.modules, module, found)
    return found


class Captured:
    """A graph that uses a communicator."""

    def __init__(self, log: list[Any]) -> None:
        self.log = log

    def unbind(self) -> None:
        self.log.append("unbind")


def test_without_nccl_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "nccl", None)
    monkeypatch.setitem(sys.modules, "nccl.core", None)
    with pytest.raises(ImportError, match=r"NCCL cannot be used .*pip install 'lamina\[nccl-cu13\]'"):
        nccl.NcclCommunicator(2, 0, Device("cpu"), lambda x: x)


@pytest.mark.parametrize("abort", [False, True])
def test_graphs_are_closed_before_communicators(fake: Fake, abort: bool) -> None:
    world = World(Launcher("none"), "alone", 0.0)
    held, gone = Captured(fake.log), Captured(fake.log)
    assert world.gpu_communicator((0,), Device("cpu")) is world.gpu_communicator((0,), Device("cpu"))
    world.closes_first(held)
    world.closes_first(gone)
    del gone
    world.close(abort=abort)
    assert fake.log == [(1, 0, ("id", b"unique")), "unbind", "abort" if abort else "destroy"]


def test_types_that_cannot_be_added_are_named(fake: Fake) -> None:
    comm = nccl.NcclCommunicator(2, 0, Device("cpu"), lambda x: x)
    with pytest.raises(DeviceError, match="NCCL cannot reduce float8_e4m3fn; cast it to one of int8"):
        comm.all_reduce(0, 0, 1, "float8_e4m3fn", "sum", 0)


def test_a_fault_aborts_what_is_open_once(fake: Fake) -> None:
    closed, left = (nccl.NcclCommunicator(2, 0, Device("cpu"), lambda x: x) for _ in range(2))
    closed.close()
    del fake.log[:]
    watchdog._abort()
    left.close()
    left.close(abort=True)
    assert fake.log == ["abort"]
    watchdog._callbacks.clear()
