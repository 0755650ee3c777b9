"""JSON from files: as Python reads it, but no name twice, and no more memory than the text promises."""

import json
import tracemalloc

import pytest

from lamina._json import DEEPEST, parse_json


def test_texts_are_read() -> None:
    assert parse_json(b'{"a": [1, {"b": "[[{{"}]}') == {"a": [1, {"b": "[[{{"}]}
    assert parse_json('"\\"{"') == '"{'
    assert parse_json('"' + "[{" * 3_000_000 + '"') == "[{" * 3_000_000


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"a":1,"a":2}', "the name 'a' stands twice in one object"),
        ('[{"b":1},{"b":2,"c":{"b":3},"a":4,"d":5,"a":6}]', "the name 'a' stands twice in one object"),
        (
            "{" + ",".join(f'"{k % 9_999}":1' for k in range(10_000)) + "}",
            "the name '…' stands twice in one object",
        ),
        ("{", "Expecting"),
        ("[" + "{}," * 5_000_000 + "1]", "15000003 bytes of JSON would need 1335 MiB of memory"),
    ],
    ids=["twice", "twice behind others", "twice among many", "cut", "large"],
)
def test_others_are_refused(text: str, error: str) -> None:
    with pytest.raises(ValueError, match=error):
        parse_json(text)


def test_deep_ones_are_errors() -> None:
    with pytest.raises(ValueError, match="nested 100000 times, which is more than 200"):
        parse_json("[" * 100_000)


@pytest.mark.parametrize("inner", ["[", '{"a":', '[{"a":', '{"a":['])
def test_each_bracket_counts_once(inner: str) -> None:
    """Lists and objects may stand in each other 200 times, and beside each other as often as they like."""
    close = "".join({"[": "]", "{": "}"}.get(sign, "") for sign in reversed(inner))
    count = DEEPEST // len(close)
    deep = inner * count + "1" + close * count
    assert parse_json(deep) == json.loads(deep)
    with pytest.raises(ValueError, match="nested 201 times, which is more than 200"):
        parse_json(f"[{deep}]")
    with pytest.raises(ValueError, match="nested 201 times, which is more than 200"):
        parse_json(f"[{inner}1{close},{deep}]")
    beside = "[" + ",".join([inner + "1" + close] * 500) + "]"
    assert parse_json(beside) == json.loads(beside)


@pytest.mark.parametrize(
    "part", ["{},", "[],", '{"a":1},', "[1],", "1,", '"a",', '{"a":{"a":1}},', "[[[]]],"]
)
def test_what_is_made_needs_no_more_memory_than_is_counted(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Refused where it is counted to need a byte more than is allowed; what it needs is less."""
    text = "[" + part * 20_000 + "1]"
    needed = allocated(text)
    low, high = 0, 100 * len(text)
    while low < high:  # the smallest allowance that lets it through
        monkeypatch.setattr("lamina._json.ALLOWANCE", middle := (low + high) // 2)
        low, high = (low, middle) if is_taken(text) else (middle + 1, high)
    counted = low + 2 * len(text)
    assert needed <= counted <= 8 * needed


def allocated(text: str) -> int:
    """Bytes of what Python makes of a text."""
    tracemalloc.start()
    try:
        value = json.loads(text)
        return tracemalloc.get_traced_memory()[0] if value else 0
    finally:
        tracemalloc.stop()


def is_taken(text: str) -> bool:
    """Whether a text is read, not refused for the memory that it would need."""
    try:
        parse_json(text)
    except ValueError:
        return False
    return True
