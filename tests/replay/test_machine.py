"""What a plan is for, in facts that are compared."""

import platform
from types import SimpleNamespace
from typing import Any

import pytest

from lamina.replay import gpu, machine
from lamina.replay.machine import LIBRARIES, differences, kinds, machine_of
from lamina.runtime import Device


def test_facts_of_a_cpu() -> None:
    facts = machine_of(Device("cpu"), [])
    assert facts == {"device": "cpu", "processor": platform.machine()}
    more = machine_of(Device("cpu"), {"oneDNN", "cuDNN"} - {LIBRARIES["cudnn"]})
    assert more["oneDNN"] == "" or more["oneDNN"][0].isdigit()
    assert differences(more, more) == []
    assert differences(facts, more) == [f"oneDNN was None, here it is {more['oneDNN']!r}"]
    assert differences({**facts, "processor": "vax"}, facts) == [
        f"processor was 'vax', here it is {platform.machine()!r}"
    ]
    assert differences(None, facts) == ["the file does not say which machine it is for"]


def test_kinds_of_steps_within_steps() -> None:
    assert kinds([["numpy"], ["guard", "finite", [], [["onednn"], ["fill"]], []]]) == {
        "numpy",
        "guard",
        "onednn",
        "fill",
    }


def test_libraries_are_opened_before_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread may be opening it meanwhile."""
    order: list[str] = []
    for name in ("cuDNN", "cuBLASLt"):
        monkeypatch.setattr(gpu, name, lambda name=name: order.append(name) or "9.0")
    monkeypatch.setattr(gpu, "gpu", lambda device: order.append(str(device)) or {"device": "cuda"})
    assert machine_of(Device("cuda"), ["cuBLASLt", "cuDNN"]) == {
        "device": "cuda",
        "cuDNN": "9.0",
        "cuBLASLt": "9.0",
    }
    assert order == ["cuDNN", "cuBLASLt", "cuda:0"]


def test_libraries_are_opened_once_the_driver_works_on_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Imports come before: they let go of Python's lock now and then."""
    order: list[str] = []

    def opened() -> Any:
        order.append("driver")
        return SimpleNamespace(wait=lambda: order.append("under way"))

    monkeypatch.setattr(machine, "open_beside", opened)
    monkeypatch.setattr(machine, "import_beside", lambda: order.append("bindings"))
    monkeypatch.setattr(machine, "_late", order.append)
    machine.open_gpu()
    assert order == ["driver", "GpuSteps", "bindings", "under way"]
