"""Many tensors in one launch: a table of addresses that is passed as a parameter."""

from __future__ import annotations

from collections.abc import Sequence

from lamina.backends.cuda.launch.program import Place, Table, constants, source, target
from lamina.spec import Spec

#: Bytes of kernel parameters from CUDA 12.1 on, minus room for the others.
MOST_BYTES = 32_000
#: Accesses of each thread: enough work for a block to be worth its start.
_ACCESSES = 4


def address_table(
    sizes: Sequence[int],
    inputs: Sequence[tuple[Spec, ...]],
    outputs: Sequence[tuple[Spec, ...]],
    width: int,
    most: int = 1 << 30,
) -> tuple[Table, int, str]:
    """The table of all parts, how many blocks work on it, and the constants of foreach.cuh.

    sizes: elements of each part. most: blocks per part; they loop over the rest.
    """
    entries: list[Place | int] = []
    first, n_in, n_out = 0, len(inputs[0]), len(outputs[0])
    for i, count in enumerate(sizes):
        places = [source(i * n_in + k) for k in range(n_in)]
        places += [target(i * n_out + k) for k in range(n_out)]
        entries += [first, count, *places]
        first += min(max(1, -(-count // (256 * width * _ACCESSES))), most)
    row = len(entries) // len(inputs)
    return Table(tuple(entries)), first, constants(PARTS=len(inputs), WIDTH=row)
