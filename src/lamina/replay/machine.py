"""The target of a saved plan: a kind of machine, and versions of the libraries that its steps call."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from lamina._lazy import lazy
from lamina.runtime import import_beside, open_beside

if TYPE_CHECKING:
    from lamina.runtime import Device

#: Libraries by the kind of step that calls them; they are opened if there is such a step.
LIBRARIES = {"onednn": "oneDNN", "cudnn": "cuDNN", "cublaslt": "cuBLASLt"}
_late = lazy(
    __name__,
    {
        "HostSteps": "lamina.replay.host",
        "GpuSteps": "lamina.replay.gpu",
        "oneDNN": "lamina.replay.host",
        "cuDNN": "lamina.replay.gpu",
        "cuBLASLt": "lamina.replay.gpu",
        "gpu": "lamina.replay.gpu",
        "cpu": "lamina.replay.host",
    },
)


def machine_of(device: Device, libraries: Iterable[str]) -> dict[str, Any]:
    """The properties that must be equal where a plan is made and where it runs."""
    wanted = set(libraries)
    # Libraries before the device, which a thread may be opening.
    versions = {name: _late(name)() for name in LIBRARIES.values() if name in wanted}
    facts: dict[str, Any] = _late("cpu" if device.kind == "cpu" else "gpu")(device)
    return facts | versions


def open_gpu() -> None:
    """Import the modules for GPU steps while a thread opens the first GPU: both take tenths of a second.

    The libraries that `machine_of` opens next are large.
    """
    under_way = open_beside()
    _late("GpuSteps")
    import_beside()
    under_way.wait()


def steps_of(device: Device, stored: Callable[[Any], memoryview]) -> Any:
    """The reader of steps for a device; stored: gives bytes of the file by their place."""
    return _late("HostSteps")(device) if device.kind == "cpu" else _late("GpuSteps")(device, stored)


def differences(wanted: Any, here: dict[str, Any]) -> list[str]:
    """The differences between a plan's target and this machine, in words."""
    if not isinstance(wanted, dict):
        return ["the file does not say which machine it is for"]
    names = dict.fromkeys([*here, *wanted])
    pairs = [(name, wanted.get(name), here.get(name)) for name in names]
    return [f"{name} was {a!r}, here it is {b!r}" for name, a, b in pairs if a != b]


def kinds(steps: Any) -> set[str]:
    """The kinds of all steps, those within steps included."""
    found = set[str]()
    for step in steps:
        found.add(step[0])
        if step[0] == "guard":
            found |= kinds(step[3])
    return found
