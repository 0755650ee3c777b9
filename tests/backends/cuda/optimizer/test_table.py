"""The table of a launch over many tensors: a row for each, and the blocks that work on it."""

from lamina.backends.cuda.launch.program import source, target
from lamina.backends.cuda.optimizer.table import address_table
from lamina.spec import Spec, float32


def test_each_tensor_has_blocks_of_its_own() -> None:
    sizes = (5000, 3, 0)
    parts = [(Spec((n,), float32).fixed,) for n in sizes]
    table, blocks, text = address_table(sizes, parts, parts, width=4)
    assert blocks == 2 + 1 + 1
    assert table.entries == (
        *(0, 5000, source(0), target(0)),
        *(2, 3, source(1), target(1)),
        *(3, 0, source(2), target(2)),
    )
    assert text == "#define PARTS 3\n#define WIDTH 4\n"
