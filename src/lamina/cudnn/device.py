"""Device properties: what planning needs to know about a GPU, from a handle or from a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute
from lamina.cudnn.handle import Handle
from lamina.runtime import Machine

_KIND = c.cudnnBackendDescriptorType_t


class DeviceProperties(Descriptor):
    """Properties of one GPU (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR; cuDNN 9.8).

    Made from the JSON text of another one (`json`), it allows planning on a machine without a GPU. The text belongs
    to one version of cuDNN.

    Args:
        json: text from `json` of a descriptor that was read off a device.
        handle: read the properties of this handle's device.
    """

    kind = _KIND.CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR
    attributes: ClassVar[Mapping[str, Attribute]] = {
        "json": attribute("DEVICEPROP_JSON_REPRESENTATION", "CHAR"),
        "handle": attribute("DEVICEPROP_HANDLE", "HANDLE"),
        "device": attribute("DEVICEPROP_DEVICE_ID", "INT32"),
    }

    def __init__(self, *, json: str | None = None, handle: Handle | None = None) -> None:
        if (json is None) == (handle is None):
            raise ValueError("DeviceProperties: give either json or handle")
        super().__init__(json=json, handle=None if handle is None else handle.address)

    @property
    def json(self) -> str:
        """The properties as JSON text."""
        return str(self.get("json"))


def device_properties(machine: Machine) -> DeviceProperties:
    """Properties of a machine, to plan for its GPU without having one.

    They have the format in which cuDNN 9.19 writes those of a real device. Raises ValueError for another cuDNN, whose
    texts may differ.
    """
    if c.library.version[:2] != _VERSION:
        found, known = (".".join(map(str, v)) for v in (c.library.version, _VERSION))
        raise ValueError(
            f"device properties without a device can be made for cuDNN {known}, this is {found}; "
            "read some off a GPU with DeviceProperties(handle=...).json"
        )
    return DeviceProperties(json=properties_text(machine))


def properties_text(machine: Machine) -> str:
    """A machine in the format in which cuDNN 9.19 describes devices."""
    fields: dict[str, object] = {
        "maxGridSize": [2**31 - 1, 65535, 65535],
        "maxBlockSize": [1024, 1024, 64],
        "regsPerBlock": machine.registers,
        "multiProcessorCount": machine.multiprocessors,
        "warpSize": 32,
        "maxSharedMemoryPerBlock": 48 << 10,
        "maxSharedMemoryPerBlockOptin": machine.shared_memory,
        "reservedSharedMemoryPerBlock": machine.reserved_shared_memory,
        "maxRegistersPerSM": machine.registers,
        "maxCtasPerSM": machine.blocks,
        "maxThreadsPerBlock": 1024,
        "maxThreadsPerSM": machine.threads,
        "pciDeviceId": 0,
        "isTccDriver": 0,
        "supportCoopLaunch": 1,
        "totalGlobalMem": machine.memory_bytes,
        "smClockRateKHz": machine.clock // 1000,
        "memClockRateKHz": machine.memory_clock // 1000,
        "l2CacheSize": machine.l2_bytes,
        "cudaDeviceId": 0,
        "deviceVer": machine.capability * 10,
        "driverVer": 13000,
        "deviceName": machine.name,
    }
    return json.dumps(fields, separators=(",", ":"))


#: The cuDNN version whose format `properties_text` writes.
_VERSION = (9, 19)
