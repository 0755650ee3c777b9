"""Pickles of data come back as Python's own reader has them; anything else is an error."""

import contextlib
import io
import pickle
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lamina.files.pickle_data import Function, PickleError, read_pickle

KEYS = st.one_of(st.text(), st.integers(-(2**60), 2**60), st.booleans(), st.none())
PLAIN = st.one_of(KEYS, st.floats(allow_nan=False), st.binary(), st.integers())
TREES = st.recursive(
    PLAIN,
    lambda x: st.one_of(st.lists(x), st.tuples(x, x), st.dictionaries(KEYS, x), st.sets(KEYS)),
    max_leaves=20,
)
ENCODE = {("_codecs", "encode"): Function("encode", lambda text, kind: text.encode(kind))}
ENCODE |= {(m, "set"): Function("set", set) for m in ("builtins", "__builtin__")}
ENCODE |= {(m, "bytes"): Function("bytes", bytes) for m in ("builtins", "__builtin__")}


def refused(reference: Any) -> Any:
    raise PickleError(f"a reference {reference!r}")


@settings(deadline=None)
@given(TREES, st.integers(0, 5))
def test_data_comes_back(tree: Any, protocol: int) -> None:
    assert read_pickle(io.BytesIO(pickle.dumps(tree, protocol)), ENCODE, refused, 0) == tree


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60))
def test_any_bytes_end_in_a_value_or_an_error(data: bytes) -> None:
    with contextlib.suppress(PickleError):
        read_pickle(io.BytesIO(b"\x80\x04" + data), ENCODE, refused, 0)


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"cos\nsystem\n.", "os.system is not among"), (b"\x80\x02\x82\x01.", "the opcode EXT1"),
        (b"(S'x'\nios\nsystem\n.", "the opcode INST"), (b"K\x01", "ValueError"), (b"K\x01K\x02.", "too many values"),
        (b"(.", "a mark"), (b"K\x01)R.", "a call of 1, which is no function"), (b"K\x01Q.", "a reference 1"),
        (b"}](K\x01e.", "too many"), (b"}K\x01K\x02a.", "an item for a int, not a list"),
        (b"}]K\x01s.", "a list as a key"),
        (b"}(K\x01u.", "a key without a value"), (b"K\x01}b.", "attributes for a int"), (b"t.", "never began"),
        (b"}\x8b\x09\x00\x00\x00" + b"\x01" * 9 + b"K\x01s.", "more than 64 bits as a key"),
    ],
)  # fmt: skip
def test_errors_say_what(content: bytes, error: str) -> None:
    with pytest.raises(PickleError, match=error):
        read_pickle(io.BytesIO(content), {}, refused, 0)


def test_what_stands_on_the_stack_is_there_twice_after_dup() -> None:
    """The same object, as Python's own reader has it; Python's writer never asks for it."""
    for content, wanted in (
        (b"K\x052\x86.", (5, 5)),
        (b"]2K\x01a\x86.", ([1], [1])),
        (b"K\x01K\x022\x87.", (1, 2, 2)),
    ):
        found = read_pickle(io.BytesIO(content), {}, refused, 0)
        assert found == wanted == pickle.loads(content)
    (first, second) = read_pickle(io.BytesIO(b"]2K\x01a\x86."), {}, refused, 0)
    assert first is second
    with pytest.raises(PickleError, match="a mark"):
        read_pickle(io.BytesIO(b"(2."), {}, refused, 0)


def test_memory_and_steps_are_counted() -> None:
    for content in (b"\x8f" * 800_000, b"N0" * 1_100_000):
        with pytest.raises(PickleError, match="too much memory|steps"):
            read_pickle(io.BytesIO(content + b"."), {}, refused, 0)
