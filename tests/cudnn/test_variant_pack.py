"""What a variant pack takes as memory."""

import gc
import weakref

import numpy as np
import pytest

from lamina.cudnn.plan import VariantPack
from lamina.runtime import Device


@pytest.mark.feature("F011")
def test_arrays_buffers_and_addresses() -> None:
    array, buffer = np.zeros(4, np.float32), Device("cpu").allocate(16)
    pack = VariantPack({1: array, 2: buffer, 3: 0x1000}, workspace=buffer)
    assert pack.get("pointers") == (array.ctypes.data, buffer.pointer, 0x1000)
    assert pack.get("workspace") == buffer.pointer
    alive = weakref.ref(buffer)
    del buffer
    gc.collect()
    assert alive() is not None  # as long as the pack is
    with pytest.raises(TypeError, match="a pointer is wanted, not builtins.str"):
        VariantPack({1: "x"})
    with pytest.raises(TypeError, match=r"pointers must map each uid to an address, got \[1\]"):
        VariantPack([1])  # type: ignore[arg-type]
    for wrong in (-3, 1 << 64):
        with pytest.raises(
            OverflowError, match=f"VariantPack: pointers does not fit into 64 bits, got {wrong}"
        ):
            VariantPack({1: wrong})
