"""Mutants of every file that is read: no crash, no hang, bounded memory, no code run, documented errors only."""

import pytest

from tests.helpers.hostile_files import run

pytestmark = [pytest.mark.feature("B042")]


@pytest.mark.parametrize(
    ("count", "seed"), [(300, 3), pytest.param(10_000, 1, marks=pytest.mark.slow)], ids=["300", "10000"]
)
def test_mutants_do_no_harm(count: int, seed: int) -> None:
    found = run(count, seed)
    assert found["faults"] == []
    taken = found["taken"]
    assert sum(taken.values()) == count
    kinds = {name.partition(": ")[0] for name in taken}
    assert len(kinds) == 11
    for kind in kinds:
        assert taken[f"{kind}: refused"] > 0.5 * count / len(kinds)
