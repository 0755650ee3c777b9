"""The cases that sanitizers are run on: all can be made without a GPU, and on one they run."""

import pytest

from lamina.backends.cuda.program import Launch, Together
from tests.backends.own_kernels import KINDS, run


@pytest.mark.parametrize("kind", KINDS)
def test_cases_are_of_own_kernels(kind: str) -> None:
    cases = list(KINDS[kind]())
    assert len({case.name for case in cases}) == len(cases) >= 6
    for case in cases:
        assert any(isinstance(step, Launch | Together) for step in case.steps), case.name


@pytest.mark.gpu
@pytest.mark.parametrize("kind", KINDS)
def test_they_run(kind: str) -> None:
    assert [case.name for case in KINDS[kind]() if run(case)] == []
