"""Nested tuples, lists and dicts: taken apart into leaves, and built again around others."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple


class Leaf(NamedTuple):
    """One leaf of a tree; path says where: args[0]["mask"]."""

    path: str
    value: Any


def leaves(tree: Any, path: str = "") -> list[Leaf]:
    """The leaves of nested tuples, lists and dicts, in order. None and everything else is a leaf."""
    if isinstance(tree, dict):
        return [leaf for k, v in tree.items() for leaf in leaves(v, f"{path}[{k!r}]")]
    if isinstance(tree, tuple | list):
        return [leaf for i, v in enumerate(tree) for leaf in leaves(v, f"{path}[{i}]")]
    return [Leaf(path, tree)]


def structure(tree: Any) -> Any:
    """What a tree is but for its leaves: equal for trees of the same classes, keys and lengths; hashable."""
    if isinstance(tree, dict):
        return dict, tuple((k, structure(v)) for k, v in tree.items())
    if isinstance(tree, tuple | list):
        return type(tree), tuple(structure(v) for v in tree)
    return None


def rebuild(tree: Any, values: Sequence[Any]) -> Any:
    """The tree with other leaves, in the order of `leaves`."""
    return _filled(tree, iter(values))


def _filled(tree: Any, values: Iterator[Any]) -> Any:
    if isinstance(tree, dict):
        return {k: _filled(v, values) for k, v in tree.items()}
    if isinstance(tree, tuple | list):
        parts = [_filled(v, values) for v in tree]
        return type(tree)(*parts) if hasattr(tree, "_fields") else type(tree)(parts)
    return next(values)
