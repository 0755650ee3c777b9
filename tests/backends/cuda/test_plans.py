"""What is planned for GPUs is the committed table, so that a change of sizes, limits and choices is seen."""

import json

import pytest

from tests.helpers import cuda_plans, own_kernels
from tests.helpers.cudnn.installed import needs_cudnn_919
from tests.helpers.planned import H200

pytest.importorskip("cuda.core")
TABLE: dict[str, dict[str, str]] = json.loads(cuda_plans.TABLE.read_text(encoding="utf-8"))


#: Their graphs are made of cuDNN's descriptors.
GRAPHS = ("convolutions", "libraries")


@pytest.mark.parametrize(
    "part", [pytest.param(p, marks=[needs_cudnn_919] * (p in GRAPHS)) for p in cuda_plans.PARTS]
)
def test_plans_are_as_committed(part: str) -> None:
    if part == "kernels" and own_kernels.DEVICE is not H200:
        pytest.skip("on a machine with a GPU own kernels are planned for that one")
    known, found = TABLE[part], cuda_plans.table(part)
    changed = {
        kind: (known.get(kind), found.get(kind))
        for kind in known | found
        if known.get(kind) != found.get(kind)
    }
    assert changed == {}, (
        f"(as committed, as found): `python -m tests.helpers.cuda_plans show '{part}'` in both checkouts tells what "
        "differs; if that is meant, python -m tests.helpers.cuda_plans write"
    )


def test_every_part_is_in_the_table() -> None:
    assert list(TABLE) == list(cuda_plans.PARTS)
    assert sum(int(row.split()[0]) for rows in TABLE.values() for row in rows.values()) > 15000
