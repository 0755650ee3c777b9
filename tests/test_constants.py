"""Every number that a module or class holds is the committed one."""

import ast
import json

import pytest

from tests.helpers import constants

TABLE: dict[str, dict[str, str]] = json.loads(constants.TABLE.read_text(encoding="utf-8"))
AGAIN = "if that is meant, python -m tests.helpers.constants write"


@pytest.mark.parametrize("file", constants.files())
def test_numbers_are_as_committed(file: str) -> None:
    known, now = TABLE.get(file, {}), constants.constants(file)
    changed = {n: (known.get(n), now.get(n)) for n in known | now if known.get(n) != now.get(n)}
    assert changed == {}, f"(as committed, as found): {AGAIN}"


def test_no_file_of_the_table_is_gone() -> None:
    assert TABLE.keys() <= set(constants.files()), AGAIN


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
