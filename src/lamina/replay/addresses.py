"""Virtual addresses, before memory is allocated: a region and an offset in one number, so that plans can be bound to
them.

Every region begins at a multiple of 2^44; properties that a plan derives from such addresses (offsets within a
region, alignment to 16) hold for the real ones.
"""

from __future__ import annotations

from collections.abc import Sequence

from lamina.replay.errors import PlanFileError

_BITS = 44
#: The null address.
NOWHERE = 0
#: Temporaries and workspaces; weights and other permanent data; counters for inter-block synchronization; scratchpads
#: of primitives that need more memory than where they were recorded (with other threads).
ARENA, KEPT, COUNTERS, SCRATCH = 1, 2, 3, 4
#: The first input; the others follow.
INPUTS = 8


def virtual(region: int, offset: int = 0) -> int:
    """The address of a byte of a region."""
    return (region << _BITS) + offset


class Regions:
    """The real regions: pairs of address and bytes, by region."""

    def __init__(self, regions: Sequence[tuple[int, int]]) -> None:
        self._regions = list(regions)

    def at(self, address: int, nbytes: int = 0) -> int:
        """The real address of `nbytes` bytes. Raises PlanFileError if they are out of bounds."""
        if address == NOWHERE and not nbytes:
            return 0
        if type(address) is not int or address < 0 or nbytes < 0:
            raise PlanFileError(f"not an address: {address!r}")
        region, offset = address >> _BITS, address & ((1 << _BITS) - 1)
        base, size = self._regions[region] if region < len(self._regions) else (0, -1)
        if offset + nbytes > size:
            raise PlanFileError(
                f"an address {offset} + {nbytes} beyond the {max(size, 0)} bytes of region {region}"
            )
        return base + offset
