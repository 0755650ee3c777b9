"""Recurrent networks on the CPU: where what lies between the passes has its place."""

import pytest

from lamina.backends import Call
from lamina.backends.cpu.rnn import Tape
from lamina.ops.primitives.rnn import GATES, Rnn, Sizes

#: Of odd sizes, and such that every array is whole lines of the cache.
SIZES = (Sizes(5, 3, 7), Sizes(1, 1, 1), Sizes(4, 16, 32))


@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("bidirectional", [False, True])
@pytest.mark.parametrize(("mode", "projection"), [*((mode, 0) for mode in GATES), ("lstm", 16)])
def test_arrays_lie_side_by_side_in_whole_lines(
    mode: str, bidirectional: bool, projection: int, sizes: Sizes
) -> None:
    """From the first byte to the last one of the memory that is asked for."""
    op = Rnn(mode, 32, 3, bidirectional, projection)
    tape, call, free = Tape(op, sizes), Call((), (), workspace=1 << 20), 1 << 20
    for name, shape in tape.shapes.items():
        assert tape[name].address(call) == free
        assert free % 64 == 0
        assert shape[0] in (sizes.steps, sizes.steps + 1)
        assert shape[1] == sizes.batch
        nbytes = 4 * shape[0] * shape[1] * shape[2]
        free += nbytes + -nbytes % 64
    assert free - (1 << 20) == tape.nbytes
    runs = range(3 * op.directions)
    wanted = {f"{part}{d}" for part in ("gates", "hidden") for d in runs} | {"y0", "y1"}
    wanted |= {f"{part}{d}" for part in ("cells", "tanh") for d in runs if mode == "lstm"}
    wanted |= {f"out{d}" for d in runs if projection} | {f"rest{d}" for d in runs if mode == "gru"}
    wanted |= {f"turned{d}" for d in runs if bidirectional and d % 2}
    assert tape.shapes.keys() == wanted
    assert [tape.width(layer) for layer in range(3)] == [sizes.inputs, *[op.size * op.directions] * 2]
