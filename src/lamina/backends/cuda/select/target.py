"""What cuDNN plans are made for: the GPU itself, or the machine that a device only stands for."""

from __future__ import annotations

from functools import cache

from lamina.cudnn import DeviceProperties, Target, device_properties, handle_of, scouted_target
from lamina.runtime import Device, Machine


def target_of(device: Device) -> Target:
    """This thread's handle on the device, or the properties of the machine that it stands for; in a scout's thread,
    what that plans for.
    """
    if (scouted := scouted_target()) is not None:
        return scouted
    return handle_of(device) if device.planned is None else _properties(device.planned)


@cache
def _properties(machine: Machine) -> DeviceProperties:
    return device_properties(machine)
