"""Device properties: what planning needs to know of a GPU, from a handle or from a file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

from lamina.c import cudnn as c
from lamina.cudnn.descriptor import Attribute, Descriptor, attribute
from lamina.cudnn.handle import Handle

_KIND = c.cudnnBackendDescriptorType_t


class DeviceProperties(Descriptor):
    """Properties of one GPU (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR; cuDNN 9.8).

    Made from the JSON text that another one gave (`json`), it lets graphs be planned on a machine without a
    GPU. The text belongs to one version of cuDNN.

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


def h200_properties() -> DeviceProperties:
    """The properties of an H200, to plan for one where there is none.

    Raises ValueError for another cuDNN than 9.19, which they belong to.
    """
    if c.library.version[:2] != _FILE_VERSION:
        found = ".".join(map(str, c.library.version))
        raise ValueError(
            f"the device properties of an H200 that Lamina holds are for cuDNN 9.19, this is {found}; "
            "read some off a GPU with DeviceProperties(handle=...).json"
        )
    return DeviceProperties(json=Path(__file__).with_name("h200_cudnn919.json").read_text(encoding="utf-8"))


_FILE_VERSION = (9, 19)
