"""What cuDNN plans are made for: the GPU itself, or the properties of one that is not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lamina.cudnn import DeviceProperties, Target, handle_of
from lamina.runtime import Device

_described: dict[Device, DeviceProperties] = {}


def target_of(device: Device) -> Target:
    """This thread's handle on the device, or the properties that stand in for it inside `described`."""
    found = _described.get(device)
    return handle_of(device) if found is None else found


@contextmanager
def described(device: Device, properties: DeviceProperties) -> Iterator[None]:
    """Inside the block plans for `device` are made from `properties`, without a GPU; they cannot run."""
    _described[device] = properties
    try:
        yield
    finally:
        del _described[device]
