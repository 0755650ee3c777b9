"""Text: arrays of strings, which tensors cannot hold. Computations on them are done at trace time, on the host.

`RegexFullMatch` is left out: its patterns are RE2's, which take linear time; Python's may take forever on a hostile
file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lamina.convert.onnx.node import Array, OnnxNode, OnnxTexts, as_tensor, converts
from lamina.spec import DType

#: ONNX's spelling of non-finite numbers.
_SPECIAL = {"nan": "NaN", "inf": "INF", "-inf": "-INF"}
#: Unicode case conversion; a model's `locale` is ignored.
_CASES: dict[str, Callable[[str], str]] = {"LOWER": str.lower, "UPPER": str.upper, "NONE": str}


def texts(node: OnnxNode, index: int) -> OnnxTexts:
    """An input that must be strings."""
    found = node.input(index)
    if not isinstance(found, OnnxTexts):
        raise node.error(f"input {index} must be strings, got {found!r}")
    return found


@converts("StringNormalizer")
def string_normalizer(node: OnnxNode) -> Any:
    """[C] or [1, C] without the stop words, in lower or upper case; one empty string if none remain."""
    x = texts(node, 0).array
    if x.ndim not in (1, 2) or x.shape[:-1] not in ((), (1,)):
        raise node.error(f"takes strings of shape [C] or [1, C], got {list(x.shape)}")
    change = node.get("case_change_action", "NONE")
    if change not in _CASES:
        raise node.error(f"case_change_action must be one of {sorted(_CASES)}, got {change!r}")
    sensitive = bool(node.get("is_case_sensitive", 0))
    compared = str if sensitive else str.lower
    stops = {compared(word) for word in node.get("stopwords", ())}
    kept = [_CASES[change](word) for word in x.reshape(-1) if compared(word) not in stops] or [""]
    return OnnxTexts.of(kept, (*x.shape[:-1], len(kept)))


@converts("StringConcat")
def string_concat(node: OnnxNode) -> Any:
    """Each first string concatenated with the second, over broadcast shapes."""
    a, b = np.broadcast_arrays(texts(node, 0).array, texts(node, 1).array)
    return OnnxTexts.of([x + y for x, y in zip(a.reshape(-1), b.reshape(-1), strict=True)], a.shape)


@converts("StringSplit")
def string_split(node: OnnxNode) -> Any:
    """(the parts of each string between delimiters, or white space, padded with empty strings; their counts)."""
    x, most = texts(node, 0).array, node.get("maxsplit", -1)
    delimiter = node.get("delimiter") or None
    parts = [word.split(delimiter, -1 if most is None else int(most)) for word in x.reshape(-1)]
    longest = max(map(len, parts), default=0)
    filled = [part for found in parts for part in (*found, *[""] * (longest - len(found)))]
    counts = np.array([len(p) for p in parts], np.int64).reshape(x.shape)
    return OnnxTexts.of(filled, (*x.shape, longest)), as_tensor(counts)


def written(x: Array) -> OnnxTexts:
    """Numbers as strings, formatted as by ONNX Runtime: floats with eight digits, booleans as 0 and 1."""
    if x.dtype.kind in "biu":
        words = [str(int(v)) for v in x.reshape(-1)]
    else:
        words = [_SPECIAL.get(word, word) for word in (f"{float(v):.8g}" for v in x.reshape(-1))]
    return OnnxTexts.of(words, x.shape)


def read(node: OnnxNode, x: OnnxTexts, dtype: DType) -> Any:
    """Strings parsed as numbers. Raises OnnxError for invalid ones."""
    parse = float if dtype.is_float else int
    try:
        found = [parse(word) for word in x.array.reshape(-1)]
        return as_tensor(np.array(found, np.float64 if dtype.is_float else np.int64).reshape(x.shape), dtype)
    except (ValueError, OverflowError) as error:
        raise node.error(f"strings that are no {dtype}: {error}") from error


def equal(a: OnnxTexts, b: OnnxTexts) -> Any:
    """Where two arrays of strings are equal, over broadcast shapes."""
    return as_tensor(np.asarray(a.array == b.array, np.bool_))
