"""Trees of tuples, lists and dicts are taken apart and built again."""

from typing import Any, NamedTuple

from lamina.graph.ir.tree import leaves, rebuild, structure


class Pair(NamedTuple):
    a: Any
    b: Any


TREE = {"x": [1, (2, None)], "y": Pair(3, {}), "z": "text"}


def test_leaves_know_their_path() -> None:
    assert [tuple(leaf) for leaf in leaves(TREE)] == [
        ("['x'][0]", 1), ("['x'][1][0]", 2), ("['x'][1][1]", None), ("['y'][0]", 3), ("['z']", "text"),
    ]  # fmt: skip


def test_a_tree_is_built_again() -> None:
    made = rebuild(TREE, [10, 20, 30, 40, 50])
    assert made == {"x": [10, (20, 30)], "y": Pair(40, {}), "z": 50}
    assert isinstance(made["y"], Pair)
    assert rebuild(5, [6]) == 6


def test_structures_are_equal_where_only_leaves_differ() -> None:
    assert structure(TREE) == structure(rebuild(TREE, "abcde"))
    assert len({structure(t) for t in ([1], (1,), [1, 1], {"a": 1}, {"b": 1}, Pair(1, 1), (1, 1))}) == 7
