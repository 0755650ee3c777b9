"""A second device without a GPU: the host's memory and backend under another identity.

Operations with operands on both devices fail as they would on a GPU, so that eager programs can be tested
for this.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from lamina import runtime
from lamina.runtime import Device
from lamina.runtime.platforms import HostPlatform


def second_device() -> Device:
    """A host device that is unequal to any other."""
    made = object.__new__(Device)
    fields = {"kind": "cpu", "index": 1, "planned": None, "_hash": hash("second")}
    for name, value in fields.items():
        object.__setattr__(made, name, value)
    object.__setattr__(made, "_platform", HostPlatform(made))
    return made


SECOND = second_device()


@contextmanager
def known() -> Iterator[None]:
    """Within the block the second device can be named as a device argument."""

    def device(spec: Any = "auto") -> Device:
        return spec if spec is SECOND else runtime.device(spec)

    with mock.patch("lamina.tensors.device", device), mock.patch("lamina.nn.module.named_device", device):
        yield
