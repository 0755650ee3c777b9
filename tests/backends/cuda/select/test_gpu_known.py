"""The plans of the package's database can be made on the GPU that they were measured on."""

import pytest

from benchmarks.plan_database import problems_of
from benchmarks.plan_problems import LIST, read
from lamina.backends.cuda.select.formulations import Problem, rebuild
from lamina.backends.cuda.select.target import target_of
from lamina.cudnn import Choice, database_of
from lamina.runtime import Device
from lamina.spec import Policy

pytestmark = pytest.mark.gpu
#: Every so many problems of the list are tried.
_STEP = 25


def shipped(device: Device) -> list[tuple[Problem, Choice]]:
    """Problems and their shipped plans; none for a GPU without a database."""
    database = database_of(device)
    if database is None:
        return []
    problems = problems_of(read(LIST)[::_STEP], device)
    placed = [(p, database.placed(p.place.nature).get(p.place.sizes)) for p in problems.values()]
    return [(problem, choice) for problem, choice in placed if choice is not None]


@pytest.mark.feature("B010", "F081")
def test_every_shipped_plan_can_be_made() -> None:
    device = Device("cuda:0")
    found = shipped(device)
    if database_of(device) is None:
        pytest.skip(f"no plans are shipped for {device.name}")
    assert len(found) > 30
    target = target_of(device)
    gone = [problem.key for problem, choice in found if rebuild(problem, choice, target, Policy()) is None]
    assert gone == []
