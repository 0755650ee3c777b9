"""Which numbers the code of functions counts up and goes by."""

from typing import Any

import pytest

from lamina.graph.ir.counting import CountPlace, is_counted_by

ITEM = CountPlace("ITEM", "n")


def used(d: Any, x: Any) -> Any:
    d["n"] += 1
    return x * d["n"]


def assigned(d: Any, x: Any) -> Any:
    y = d["n"] + 1
    d["n"] = y
    return x * y


def branched(d: Any, x: Any) -> Any:
    d["n"] += 1
    return x if d["n"] > 3 else -x


def only_counted(d: Any, x: Any) -> Any:
    d["n"] += 1
    d["m"] = d["n"] = d["n"] + 1
    return x * d["k"]


def only_read(d: Any, x: Any) -> Any:
    d["n"] = 3
    return x * d["n"]


def of_another(d: Any, x: Any) -> Any:
    d["k"]["n"] += 1
    return x * d["m"]


@pytest.mark.parametrize("function", [used, assigned, branched])
def test_counts_that_something_goes_by(function: Any) -> None:
    assert is_counted_by([function.__code__], [ITEM])


@pytest.mark.parametrize("function", [only_counted, only_read, of_another])
def test_counts_that_nothing_goes_by(function: Any) -> None:
    assert not is_counted_by([function.__code__], [ITEM])


def test_one_function_counts_and_another_reads() -> None:
    def counts(d: Any) -> None:
        d["n"] += 1

    def reads(d: Any, x: Any) -> Any:
        return x * d["n"]

    assert is_counted_by([counts.__code__, reads.__code__], [ITEM])
    assert not is_counted_by([counts.__code__], [ITEM])
    assert not is_counted_by([reads.__code__], [ITEM])
