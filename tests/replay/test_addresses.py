"""Virtual addresses: offsets within regions survive arithmetic, and nothing beyond a region is reached."""

import pytest

from lamina.replay.addresses import ARENA, INPUTS, KEPT, NOWHERE, Regions, virtual
from lamina.replay.errors import PlanFileError

MEMORY = Regions([(0, -1), (0x1000, 64), (0x2000, 16)] + [(0, -1)] * 5 + [(0x3000, 8)])


def test_regions_and_offsets() -> None:
    assert MEMORY.at(virtual(ARENA, 48), 16) == 0x1030
    assert MEMORY.at(virtual(KEPT) + 4) == 0x2004
    assert MEMORY.at(virtual(INPUTS), 8) == 0x3000
    assert MEMORY.at(NOWHERE) == 0
    assert virtual(KEPT, 5) % 16 == 5


@pytest.mark.parametrize(
    ("address", "nbytes"),
    [
        (virtual(ARENA, 49), 16),
        (virtual(ARENA, 65), 0),
        (virtual(ARENA), -1),
        (virtual(INPUTS + 1), 0),
        (virtual(4), 0),
        (7, 1),
        (NOWHERE, 1),
        (-virtual(ARENA), 1),
        (1 << 90, 1),
        (float(virtual(ARENA)), 1),
        ("arena", 1),
    ],
)
def test_nothing_beyond_a_region(address: int, nbytes: int) -> None:
    with pytest.raises((PlanFileError, TypeError)):
        MEMORY.at(address, nbytes)
