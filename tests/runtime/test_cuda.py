"""What is told the driver directly: the fields of its structures."""

import pytest

from lamina.runtime._cuda import CopyParams

#: CUmemorytype of cuda.h.
KINDS = {"HOST": 1, "DEVICE": 2, "UNIFIED": 4}


@pytest.mark.parametrize("side", ["src", "dst"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_side_of_a_copy_is_where_its_kind_of_memory_has_it(side: str, kind: str) -> None:
    """Pageable and pinned memory by the host's pointer, all else by the device's (cuda.h, CUDA_MEMCPY3D)."""
    params = CopyParams()
    setattr(params, f"{side}MemoryType", KINDS[kind])
    setattr(params, f"{side}Host", 1000)
    setattr(params, f"{side}Device", 2000)
    setattr(params, f"{side}XInBytes", 24)
    assert params.address(side) == (1024 if kind == "HOST" else 2024)
    params.set_address(side, 4096)
    assert params.address(side) == 4096
    assert getattr(params, f"{side}Host") == (4096 if kind == "HOST" else 1000)
    assert getattr(params, f"{side}Device") == (2000 if kind == "HOST" else 4096)
