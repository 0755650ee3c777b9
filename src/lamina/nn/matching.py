"""Error messages of `load_state_dict` for mismatched names: the missing, the unexpected, and near matches."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

#: Names of each kind that a message lists with their nearest match.
_SHOWN = 8
#: The most names searched for near matches.
_COMPARED = 2000


def unmatched(
    name: str,
    own: Mapping[str, Any],
    given: Mapping[str, Any],
    missing: Sequence[str],
    unexpected: Sequence[str],
) -> str:
    """The message: missing and unexpected names with shapes, the nearest names, and a suggested fix.

    name: of the module's class. own: the module's entries, given: the loaded ones, each with `shape`.
    """
    parts = []
    if missing:
        parts.append("missing " + _listed(missing, own, [n for n in unexpected if isinstance(n, str)], given))
    if unexpected:
        parts.append("unexpected " + _listed([str(n) for n in unexpected], given, (), {}))
    return f"{name}.load_state_dict: {'; '.join(parts)}. {_advice(own, given)}"


def _listed(
    names: Sequence[str], tensors: Mapping[str, Any], others: Sequence[str], given: Mapping[str, Any]
) -> str:
    shown = [f"{n}{_shape(tensors, n)}{_nearest(n, tensors, others, given)}" for n in names[:_SHOWN]]
    return ", ".join([*shown, *names[_SHOWN:]])


def _shape(tensors: Mapping[str, Any], name: str) -> str:
    shape = getattr(tensors.get(name), "shape", None)
    return "" if shape is None else f" [{', '.join(map(str, shape))}]"


def _nearest(name: str, own: Mapping[str, Any], others: Sequence[str], given: Mapping[str, Any]) -> str:
    """The most similar unexpected name; of several the one with its shape."""
    close = difflib.get_close_matches(name, others[:_COMPARED], n=5, cutoff=0.5)
    fitting = [n for n in close if _shape(given, n) == _shape(own, name)] or close
    return f" (nearest: {fitting[0]}{_shape(given, fitting[0])})" if fitting else ""


def _advice(own: Mapping[str, Any], given: Mapping[str, Any]) -> str:
    """The suggested fix: remove a prefix that only one side has, or rename."""
    prefix = _prefix(given)
    if prefix and {n.removeprefix(prefix) for n in given} & set(own):
        return f"All given names begin with {prefix!r}: load_weights(file, prefix={prefix!r}) takes it away"
    prefix = _prefix(own)
    if prefix and {n.removeprefix(prefix) for n in own} & set(given):
        return f"All names of the module begin with {prefix!r}: load them into the module of that name"
    return "Use strict=False to load what fits, load_weights(file, rename=…) for other names"


def _prefix(names: Iterable[Any]) -> str:
    """The common module prefix of all names, "" if there is none."""
    paths = [n.split(".")[:-1] if isinstance(n, str) else [] for n in names]
    shared = list(itertools.takewhile(lambda parts: len(set(parts)) == 1, zip(*paths, strict=False)))
    return "".join(f"{parts[0]}." for parts in shared)
