"""What computes each op on a CPU is the committed table, so that it is seen when a kernel gives up."""

import json

import pytest

from lamina.c import dnnl
from tests.helpers import cpu_plans

ISA, VNNI = dnnl.dnnl_get_effective_cpu_isa(), dnnl.dnnl_cpu_isa_t.dnnl_cpu_isa_avx512_core_vnni
TABLE: dict[str, str] = json.loads(cpu_plans.TABLE.read_text(encoding="utf-8"))


@pytest.mark.skipif(ISA & VNNI != VNNI, reason="the table is of processors with AVX-512 and VNNI")
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
