"""What a plan is for, in facts that are compared."""

import platform

import pytest

from lamina.replay import gpu
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
