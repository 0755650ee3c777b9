"""Every number that a module or class holds is the committed one."""

import ast
import json

import pytest

from tests.helpers import constants

TABLE: dict[str, dict[str, str]] = json.loads(constants.TABLE.read_text(encoding="utf-8"))
AGAIN = "if that is meant, python -m tests.helpers.constants write"


def test_numbers_are_as_committed() -> None:
    now = constants.table()
    numbers = {(file, name) for table in (TABLE, now) for file, held in table.items() for name in held}
    found = {
        (file, name): [table.get(file, {}).get(name) for table in (TABLE, now)] for file, name in numbers
    }
    changed = {number: values for number, values in found.items() if values[0] != values[1]}
    assert changed == {}, f"[as committed, as found]: {AGAIN}"
    assert TABLE.keys() == now.keys(), AGAIN


@pytest.mark.parametrize(
    ("text", "held"),
    [
        ("LIMIT = 1 << 14", {"LIMIT": "16384"}),
        ("A, B = 1, -2", {"(A, B)": "(1, -2)"}),
        ("X: Final = {'b': (2.0, 0.5)}", {"X": "{'b': (2.0, 0.5)}"}),
        ("X = frozenset((3, 1, 2))", {"X": "{1, 2, 3}"}),
        ("class C:\n    inplace = {0: 1}\n    other: int = -1", {"C.inplace": "{0: 1}", "C.other": "-1"}),
        ("X = 'text'", {}),
        ("X = f(3)", {}),
        ("X = Y + 1", {}),
        ("X = (lambda: 3)", {}),
        ("def f():\n    x = 3", {}),
    ],
)
def test_what_counts_as_a_number_with_a_name(text: str, held: dict[str, str]) -> None:
    assert dict(constants._held(ast.parse(text).body, "")) == held
