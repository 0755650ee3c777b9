"""Operators on tables (domain ai.onnx.ml): label encoding, feature scaling and concatenation, linear models.

String computations are done at trace time; numeric ones are recorded as usual.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from lamina import ops
from lamina.convert.onnx.node import Array, OnnxNode, OnnxTexts, as_tensor, converts, numbers
from lamina.convert.onnx.text import texts
from lamina.spec import float32, int64

DOMAIN = "ai.onnx.ml"
#: The kinds of keys and values of a LabelEncoder: its attributes' suffixes, and the defaults of missing keys.
_LABELS = {"strings": "_Unused", "int64s": -1, "floats": -0.0}

#: The transforms of scores [N, C].
_AFTER: dict[str, Callable[[Any], Any]] = {
    "NONE": ops.identity, "SOFTMAX": lambda x: ops.softmax(x, 1), "LOGISTIC": ops.sigmoid,
    "PROBIT": lambda x: ops.mul(ops.erfinv(ops.sub(ops.mul(x, 2.0), 1.0)), 2**0.5),
}  # fmt: skip


def _labels(node: OnnxNode, what: str) -> Array:
    """The keys or the values of a LabelEncoder: numbers, or an array of str."""
    held = node.get(f"{what}_tensor")
    if held is not None:
        return held.array if isinstance(held, OnnxTexts) else _numbers(held)
    for kind in _LABELS:
        if f"{what}_{kind}" in node.attributes:
            found = node.get(f"{what}_{kind}")
            return np.array(found, {"strings": object, "int64s": np.int64, "floats": np.float32}[kind])
    raise node.error(f"needs the attribute {what}_tensor, or one of {what}_{', '.join(_LABELS)}")


def _numbers(held: Any) -> Array:
    found = numbers(held)
    assert found is not None  # an attribute is a tensor
    return found


def _otherwise(node: OnnxNode, values: Array) -> Any:
    """The default for missing keys."""
    held = node.get("default_tensor")
    if held is not None:
        return (held.array if isinstance(held, OnnxTexts) else _numbers(held)).reshape(()).item()
    kind = {"O": "strings", "i": "int64s", "f": "floats"}[values.dtype.kind]
    return node.get(f"default_{kind.removesuffix('s')}", _LABELS[kind])


@converts("LabelEncoder", domain=DOMAIN)
def label_encoder(node: OnnxNode) -> Any:
    """The value of each element's key, a default for missing ones; keys and values are numbers or strings."""
    x = node.input(0)
    if (
        "classes_strings" in node.attributes
    ):  # the first version: words and their numbers, in either direction
        words = np.array(node.get("classes_strings"), object)
        keys, values = (
            (words, np.arange(len(words))) if isinstance(x, OnnxTexts) else (np.arange(len(words)), words)
        )
    else:
        keys, values = _labels(node, "keys"), _labels(node, "values")
    if len(keys) != len(values) or not len(keys):
        raise node.error(f"has {len(keys)} keys and {len(values)} values")
    default = _otherwise(node, values)
    if isinstance(x, OnnxTexts) or values.dtype == object:
        return _looked_up(node, keys, values, default)
    order = np.argsort(keys, kind="stable")
    keys, table = keys[order], as_tensor(np.append(values[order], np.array(default, values.dtype)))
    known = as_tensor(keys)
    place = ops.clamp(ops.searchsorted(known, x), 0, len(keys) - 1)
    hit = ops.eq(ops.index_select(known, 0, place.reshape((-1,))).reshape(x.shape), x)
    if node.opset >= 4 and np.isnan(keys[-1]):
        last = ops.isnan(x)
        place, hit = ops.where(last, len(keys) - 1, place), ops.logical_or(hit, last)
    place = ops.where(hit, place, len(keys))
    return ops.index_select(table, 0, place.reshape((-1,))).reshape(x.shape)


def _looked_up(node: OnnxNode, keys: Array, values: Array, default: Any) -> Any:
    """With strings: by a dict; all NaNs are one key."""
    x = node.input(0).array if isinstance(node.input(0), OnnxTexts) else node.known(0)
    table = {_key(k): v for k, v in zip(keys.tolist(), values.tolist(), strict=True)}
    found = [table.get(_key(k), default) for k in x.reshape(-1).tolist()]
    if values.dtype == object:
        return OnnxTexts.of(found, x.shape)
    return as_tensor(np.array(found, values.dtype).reshape(x.shape))


def _key(x: Any) -> Any:
    return "NaN" if x != x else x


@converts("Scaler", domain=DOMAIN)
def scaler(node: OnnxNode) -> Any:
    """(x - offset) scale, for each feature or for all, in float32."""
    x = ops.cast(node.input(0), float32)
    offset, scale = (as_tensor(node.get(n, [d]), float32) for n, d in (("offset", 0.0), ("scale", 1.0)))
    return ops.mul(ops.sub(x, offset), scale)


@converts("Normalizer", domain=DOMAIN)
def normalizer(node: OnnxNode) -> Any:
    """Each row [.., F] divided by its norm, unchanged if that is 0, in float32."""
    x, kind = ops.cast(node.input(0), float32), node.get("norm", "MAX")
    norms: dict[str, Callable[[], Any]] = {
        "MAX": lambda: ops.amax(x, -1, True), "L1": lambda: ops.sum(ops.abs(x), -1, True),
        "L2": lambda: ops.sqrt(ops.sum(ops.square(x), -1, True)),
    }  # fmt: skip
    if kind not in norms:
        raise node.error(f"norm must be one of {', '.join(norms)}, got {kind!r}")
    norm = norms[kind]()
    return ops.div(x, ops.where(ops.eq(norm, 0), 1.0, norm))


@converts("Imputer", domain=DOMAIN)
def imputer(node: OnnxNode) -> Any:
    """Missing elements (equal to a given value) replaced: by one number, or by one for each feature."""
    x = node.input(0)
    kind = ("floats", "float") if x.dtype.is_float else ("int64s", "int64")
    fill = as_tensor(node.needed(f"imputed_value_{kind[0]}"), x.dtype)
    missing = node.get(f"replaced_value_{kind[1]}", 0)
    return ops.where(ops.isnan(x) if missing != missing else ops.eq(x, missing), fill, x)


@converts("FeatureVectorizer", domain=DOMAIN)
def feature_vectorizer(node: OnnxNode) -> Any:
    """Features [N, F] (or [F]) of several inputs concatenated, in float32."""
    wide = [ops.cast(x, float32) for x in node.inputs if x is not None]
    return ops.cat([x.unsqueeze(0) if x.ndim == 1 else x for x in wide], 1)


@converts("OneHotEncoder", domain=DOMAIN)
def one_hot_encoder(node: OnnxNode) -> Any:
    """[..., C]: 1 at each element's category, zeros for an unknown one, in float32."""
    x = node.input(0)
    if isinstance(x, OnnxTexts):
        names = np.array(node.needed("cats_strings"), object)
        hit = as_tensor(np.asarray(texts(node, 0).array[..., None] == names, np.bool_))
    else:
        hit = ops.eq(x.unsqueeze(-1), as_tensor(node.needed("cats_int64s"), x.dtype))
    return ops.cast(hit, float32)


def _scores(node: OnnxNode, outputs: int) -> Any:
    """x [N, F] times coefficients [outputs, F], plus intercepts."""
    x = ops.cast(node.input(0), float32)
    x = x.unsqueeze(0) if x.ndim == 1 else x
    weights = as_tensor(np.array(node.needed("coefficients")).reshape(outputs, -1).T, float32)
    found, intercepts = ops.matmul(x, weights), node.get("intercepts")
    return found if intercepts is None else ops.add(found, as_tensor(intercepts, float32))


def _after(node: OnnxNode, scores: Any) -> Any:
    kind = node.get("post_transform", "NONE")
    if kind not in _AFTER:
        raise node.error(f"post_transform must be one of {', '.join(_AFTER)}, got {kind!r}")
    return _AFTER[kind](scores)


@converts("LinearRegressor", domain=DOMAIN)
def linear_regressor(node: OnnxNode) -> Any:
    """[N, targets]."""
    return _after(node, _scores(node, node.get("targets", 1)))


@converts("LinearClassifier", domain=DOMAIN)
def linear_classifier(node: OnnxNode) -> Any:
    """(the label of the largest score [N], the scores [N, C] after the transform).

    A single row of coefficients for two classes is the second one's; the first gets the rest to 1.
    """
    names = node.get("classlabels_strings") or node.get("classlabels_ints")
    if not names:
        raise node.error("needs the attribute classlabels_ints or classlabels_strings")
    rows = len(node.get("intercepts") or names)
    scores = _scores(node, rows)
    if rows == 1 and len(names) == 2:
        chosen = ops.cast(ops.gt(scores[:, 0], 0.0), int64)
        second = ops.sigmoid(scores) if node.get("post_transform") == "LOGISTIC" else scores
        return _labelled(node, chosen, names), ops.cat([ops.sub(1.0, second), second], 1)
    return _labelled(node, ops.argmax(scores, 1), names), _after(node, scores)


def _labelled(node: OnnxNode, chosen: Any, names: list[Any]) -> Any:
    """The names of classes [N] by their numbers. Strings are only available after the program has run."""
    if not isinstance(names[0], str):
        return ops.index_select(as_tensor(names), 0, chosen)
    known = numbers(chosen)
    if known is None:
        raise node.unknown("the class, whose label is a string,", node.input_names[0])
    return OnnxTexts.of([names[i] for i in known], known.shape)
