"""JSON from files: as Python reads it, but no name twice, and no more memory than the text promises."""

import pytest

from lamina._json import parse_json


def test_texts_are_read() -> None:
    assert parse_json(b'{"a": [1, {"b": "[[{{"}]}') == {"a": [1, {"b": "[[{{"}]}
    assert parse_json('"\\"{"') == '"{'
    assert parse_json('"' + "[{" * 3_000_000 + '"') == "[{" * 3_000_000


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"a":1,"a":2}', "the name 'a' stands twice"),
        ("{", "Expecting"),
        ("[" + "{}," * 5_000_000 + "1]", "MiB"),
    ],
    ids=["twice", "cut", "large"],
)
def test_others_are_refused(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_json(text)


def test_deep_ones_are_errors() -> None:
    with pytest.raises(ValueError, match="nested 100000 times, which is more than 200"):
        parse_json("[" * 100_000)
