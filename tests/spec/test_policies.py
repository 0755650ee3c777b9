"""Policies: what is in force where, and the process-wide switch of determinism."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

import lamina as lm
from lamina.spec import Policy, current_policy, policy


@pytest.fixture(autouse=True)
def switched_off() -> Iterator[None]:
    yield
    lm.use_deterministic_algorithms(False)


@pytest.mark.parametrize("data_grad", [None, "fastest"])
@pytest.mark.parametrize("filter_grad", [None, "fastest"])
def test_each_direction_has_its_own_algorithm_or_that_of_all(
    data_grad: str | None, filter_grad: str | None
) -> None:
    own = {"conv": None, "conv_data_grad": data_grad, "conv_filter_grad": filter_grad}
    given = Policy(tf32=True, algorithm="heuristic", data_grad=data_grad, filter_grad=filter_grad)
    for direction, name in own.items():
        assert given.of(direction) == Policy(tf32=True, algorithm=name or "heuristic")


def test_a_block_has_a_policy_of_its_own() -> None:
    assert current_policy() == Policy()
    with policy(tf32=True) as outer:
        assert current_policy() is outer
        with policy(algorithm="benchmark"):
            assert current_policy() == Policy(tf32=True, algorithm="fastest")
        assert current_policy() is outer
    assert current_policy() == Policy()


def test_the_switch_holds_in_every_thread() -> None:
    found: list[bool] = []
    lm.use_deterministic_algorithms(True)
    thread = threading.Thread(target=lambda: found.append(lm.are_deterministic_algorithms_enabled()))
    thread.start()
    thread.join()
    assert found == [True]
    assert current_policy() == Policy(deterministic=True)
    with policy(tf32=True):
        assert current_policy() == Policy(deterministic=True, tf32=True)
    with policy(deterministic=False):
        assert not lm.are_deterministic_algorithms_enabled()
    lm.use_deterministic_algorithms(False)
    assert current_policy() == Policy()


def test_the_switch_within_a_block() -> None:
    with policy(tf32=True):
        lm.use_deterministic_algorithms(True)
        assert current_policy() == Policy(deterministic=True, tf32=True)
    assert current_policy() == Policy(deterministic=True)


def test_the_switch_takes_a_flag() -> None:
    with pytest.raises(
        TypeError, match="use_deterministic_algorithms: mode must be True or False, got 'warn'"
    ):
        lm.use_deterministic_algorithms("warn")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"deterministic": "no"}, "policy: deterministic must be True or False, got 'no'"),
        ({"tf32": 1}, "policy: tf32 must be True or False, got 1"),
        (
            {"workspace_limit": "1 GiB"},
            "policy: workspace_limit must be a number of bytes or None, got '1 GiB'",
        ),
        ({"workspace_limit": True}, "policy: workspace_limit must be a number of bytes or None, got True"),
    ],
)
def test_values_of_another_type_are_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeError, match=message), policy(**change):
        pass
