"""Device properties of machines that are not there."""

import json
from dataclasses import replace

import pytest

from lamina import cudnn
from lamina.c import cudnn as c
from lamina.cudnn.device import properties_text
from lamina.runtime import Machine
from tests.helpers import H200_PROPERTIES


def test_a_machine_is_described_as_cudnn_describes_it() -> None:
    """What was read off an H200 with cuDNN 9.19, but for where it sat."""
    read, made = json.loads(H200_PROPERTIES.read_text()), json.loads(properties_text(Machine.named("h200")))
    assert read.pop("pciDeviceId") == 6
    assert made.pop("pciDeviceId") == 0
    assert list(made.items()) == list(read.items())


def test_other_machines() -> None:
    made = json.loads(properties_text(Machine.named("rtx5090")))
    assert (made["deviceVer"], made["multiProcessorCount"], made["maxThreadsPerSM"]) == (1200, 170, 1536)
    assert made["maxSharedMemoryPerBlockOptin"] == 99 << 10


@pytest.mark.skipif(not c.library.available(), reason="needs cuDNN, whose version the texts belong to")
def test_texts_belong_to_a_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lamina.cudnn.device._VERSION", (8, 1))
    with pytest.raises(ValueError, match=r"can be made for cuDNN 8\.1, this is 9"):
        cudnn.device_properties(replace(Machine.named(), name="mine"))
