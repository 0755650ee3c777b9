"""What computes each op on a CPU is the committed table, so that it is seen when a kernel gives up."""

import json

import pytest

from tests.helpers import cpu_plans
from tests.helpers.processor import needs_avx512_vnni, without_float16

TABLE: dict[str, str] = json.loads(cpu_plans.TABLE.read_text(encoding="utf-8"))


@needs_avx512_vnni
@without_float16
@pytest.mark.parametrize("name", cpu_plans.OPS)
def test_plans_are_as_committed(name: str) -> None:
    assert cpu_plans.row(name) == TABLE.get(name), (
        f"`python -m tests.helpers.cpu_plans show {name}` in both checkouts tells what differs; if that is meant, "
        "python -m tests.helpers.cpu_plans write"
    )


def test_every_op_is_in_the_table() -> None:
    assert list(TABLE) == cpu_plans.OPS
    counts = [sum(int(word) for word in row.split()[1:-1:2]) for row in TABLE.values()]
    assert min(counts) > 0
    assert sum(counts) > 10000
