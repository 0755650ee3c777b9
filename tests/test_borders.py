"""What ops, functions and constructors take and refuse around their borders is the committed table."""

import json
from typing import Any

import pytest

from tests.helpers import border_calls, slow_but_every

TABLE: dict[str, dict[str, Any]] = json.loads(border_calls.TABLE.read_text(encoding="utf-8"))
AGAIN = (
    "`python -m tests.helpers.border_calls show {0}` in both checkouts tells what differs; if that is meant, "
    "python -m tests.helpers.border_calls write"
)


@pytest.mark.parametrize("name", sorted(TABLE["ops"]))
def test_operands_and_fields_of_ops(name: str) -> None:
    assert border_calls.row(border_calls.outcomes("ops", name)) == TABLE["ops"][name], AGAIN.format(name)


@pytest.mark.parametrize("name", sorted(TABLE["saved"]))
def test_saved_ops(name: str) -> None:
    assert border_calls.row(border_calls.outcomes("saved", name)) == TABLE["saved"][name], AGAIN.format(name)


@pytest.mark.parametrize("name", slow_but_every(2, sorted(TABLE["functions"])))
def test_arguments_of_functions(name: str) -> None:
    names, row = TABLE["functions"][name]
    assert border_calls.row(border_calls.outcomes("functions", name, names)) == row, AGAIN.format(name)


@pytest.mark.parametrize("name", slow_but_every(2, sorted(TABLE["classes"])))
def test_arguments_of_constructors(name: str) -> None:
    assert border_calls.row(border_calls.outcomes("classes", name)) == TABLE["classes"][name], AGAIN.format(
        name
    )


def test_everything_is_in_the_table() -> None:
    for part in ("ops", "saved"):
        assert sorted(TABLE[part]) == sorted(border_calls.owned()), AGAIN.format("")
    assert sorted(TABLE["classes"]) == sorted(border_calls.classes()), AGAIN.format("")
    assert len(TABLE["functions"]) > 400
