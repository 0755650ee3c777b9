"""Whole programs are planned as the committed table says, so that it is seen when a pass gives up."""

import json

import pytest

from tests.helpers import program_plans
from tests.helpers.cudnn.installed import needs_cudnn_919
from tests.helpers.processor import needs_avx512_vnni, without_bfloat16, without_float16

TABLE: dict[str, str] = json.loads(program_plans.TABLE.read_text(encoding="utf-8"))
PROGRAMS = dict(program_plans.programs())


def check(name: str) -> None:
    assert program_plans.row(PROGRAMS[name]()) == TABLE.get(name), (
        f"`python -m tests.helpers.program_plans show '{name}'` in both checkouts tells what differs; if that is "
        "meant, python -m tests.helpers.program_plans write"
    )


@needs_avx512_vnni
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=without_bfloat16 if "bfloat16" in name else without_float16)
        if "float16" in name
        else name
        for name in PROGRAMS
        if name.startswith("cpu")
    ],
)
def test_programs_for_a_cpu_are_as_committed(name: str) -> None:
    check(name)


@needs_cudnn_919
@pytest.mark.parametrize("name", [name for name in PROGRAMS if name.startswith("h200")])
def test_programs_for_a_gpu_are_as_committed(name: str) -> None:
    check(name)


def test_every_program_is_in_the_table() -> None:
    assert list(TABLE) == list(PROGRAMS)
