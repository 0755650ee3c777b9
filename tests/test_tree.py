"""Trees come apart and go together again."""

import pickle
from collections import OrderedDict, defaultdict
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pytest

import lamina as lm
from lamina import _tree, nn


class Pair(NamedTuple):
    first: Any
    second: Any


TREES: list[tuple[Any, list[Any], str]] = [
    (1, [1], "*"),
    ((1, 2), [1, 2], "(*, *)"),
    ((1,), [1], "(*,)"),
    ([1, (2, None)], [1, 2], "[*, (*, None)]"),
    ({"b": 1, "a": [2, 3]}, [1, 2, 3], "{'b': *, 'a': [*, *]}"),
    (Pair(1, {"x": Pair(2, 3)}), [1, 2, 3], "(*, {'x': (*, *)})"),
    ((), [], "()"),
    (None, [], "None"),
]


@pytest.mark.parametrize(("tree", "leaves", "text"), TREES)
def test_there_and_back(tree: Any, leaves: list[Any], text: str) -> None:
    found, structure = _tree.flatten(tree)
    assert (found, str(structure)) == (leaves, text)
    again = _tree.unflatten(structure, found)
    assert again == tree
    assert type(again) is type(tree)
    assert _tree.leaves(tree) == leaves
    assert structure.is_leaf == (tree == 1)


def test_structures_are_keys() -> None:
    one, same, other = (_tree.flatten(t)[1] for t in ((1, [2]), (5, [6]), (1, (2,))))
    assert {one: "found"}[same] == "found"
    assert one != other


def test_leaves_must_be_as_many() -> None:
    structure = _tree.flatten((1, [2, 3]))[1]
    with pytest.raises(ValueError, match=r"2 leaves are too few for \(\*, \[\*, \*\]\)"):
        _tree.unflatten(structure, [1, 2])
    with pytest.raises(ValueError, match="4 leaves are too many"):
        _tree.unflatten(structure, [1, 2, 3, 4])


def test_what_is_a_leaf_may_be_said() -> None:
    assert _tree.flatten([[1, 2], (3,)], lambda x: isinstance(x, tuple))[0] == [1, 2, (3,)]


def test_flags_are_of_the_structure_where_that_is_asked_for() -> None:
    tree = (1, True, {"a": False, "b": np.True_})
    assert _tree.flatten(tree)[0] == [1, True, False, np.True_]
    found, structure = _tree.flatten(tree, flags=True)
    assert found == [1, np.True_]
    assert str(structure) == "(*, True, {'a': False, 'b': *})"
    assert _tree.unflatten(structure, found) == tree
    assert _tree.names(structure, "x") == ["x[0]", "x[2]['b']"]
    assert structure != _tree.flatten((1, False, {"a": False, "b": 2}), flags=True)[1]
    assert pickle.loads(pickle.dumps(structure)) == structure


def test_names_and_arguments() -> None:
    structure = _tree.flatten((1, {"mask": 2, "more": [3]}))[1]
    assert _tree.names(structure, "x") == ["x[0]", "x[1]['mask']", "x[1]['more'][0]"]
    assert _tree.names(_tree.LEAF, "x") == ["x"]
    assert _tree.arguments((1, 2)) == ((1, 2), {})
    assert _tree.arguments([1]) == ((1,), {})
    assert _tree.arguments({"a": 1}) == ((), {"a": 1})
    assert _tree.arguments({"a": 1}, lambda a, b=2: a) == ((), {"a": 1})
    assert _tree.arguments({"a": 1}, lambda **named: named) == ((), {"a": 1})
    assert _tree.arguments({"a": 1}, lambda batch: batch) == (({"a": 1},), {})
    assert _tree.arguments({"a": 1}, lambda a, b: a) == ((), {"a": 1})
    assert _tree.arguments(7) == ((7,), {})


def test_keys_that_are_equal_stay_what_they_are() -> None:
    """1, 1.0 and True are one key to a dict, and not one to who reads it."""
    for key in (1, True, 1.0, "1"):
        leaves, structure = _tree.flatten({key: 5})
        (found,) = _tree.unflatten(structure, leaves)
        assert type(found) is type(key)
    assert _tree.flatten({"a": 1, "b": 2})[1] is _tree.flatten({"a": 3, "b": 4})[1]
    assert _tree.flatten({"a": 1, "b": 2})[1] != _tree.flatten({"b": 1, "a": 2})[1]


@dataclass(frozen=True)
class Result:
    logits: Any
    more: Any = None

    def __post_init__(self) -> None:
        assert isinstance(self.logits, int), "made of numbers"


def test_objects_of_a_dataclass_are_leaves_or_containers() -> None:
    given = {"a": Result(1, [2, None]), "b": Result}
    assert _tree.flatten(given)[0] == [given["a"], Result]
    leaves, structure = _tree.flatten(given, open_dataclasses=True)
    assert leaves == [1, 2, Result]
    assert _tree.unflatten(structure, leaves) == given
    assert _tree.unflatten(structure, ["x", "y", "z"])["a"].logits == "x"  # as it was, not made anew
    assert _tree.names(structure, "r") == ["r['a']['logits']", "r['a']['more'][0]", "r['b']"]
    assert structure == _tree.flatten({"a": Result(5, [6, None]), "b": 3}, open_dataclasses=True)[1]


def test_gradients_stay_those_of_their_module_in_trees() -> None:
    net, other = nn.Linear(2, 2), nn.Linear(2, 2)
    grads = lm.grad(lambda net: (net.weight**2).sum() + net.bias.sum())(net)
    found, structure = _tree.flatten((grads, 1))
    made, one = _tree.unflatten(structure, found)
    assert (type(made), one) == (type(grads), 1)
    assert made.parameters["weight"] is net.weight
    again = lm.grad(lambda net: (net.weight**2).sum() + net.bias.sum())(net)
    theirs = lm.grad(lambda net: (net.weight**2).sum() + net.bias.sum())(other)
    assert _tree.flatten((again, 1))[1] == structure
    assert hash(_tree.flatten((again, 1))[1]) == hash(structure)
    assert _tree.flatten((theirs, 1))[1] != structure
    assert _tree.flatten((dict(grads), 1))[1] != structure


def test_a_dict_whose_entries_are_attributes_is_a_dict() -> None:
    class Output(dict[str, Any]):
        __getattr__ = dict.__getitem__

    found, structure = _tree.flatten(Output(logits=1, like=2))
    assert (found, str(structure)) == ([1, 2], "{'logits': *, 'like': *}")
    assert _tree.unflatten(structure, found) == {"logits": 1, "like": 2}


class Named(dict[str, Any]):
    """A dict whose entries are attributes, as transformers' results are."""

    def __init__(self, kind: str, **entries: Any) -> None:
        super().__init__(**entries)
        self.kind = kind
        self.__dict__.update(entries)


class Itself(dict[str, Any]):
    """A dict that is its own attributes."""

    def __init__(self, *args: Any, **entries: Any) -> None:
        super().__init__(*args, **entries)
        self.__dict__ = self


def test_dicts_of_a_class_stay_of_it_with_their_attributes() -> None:
    for tree in (Named("text", loss=1, logits=[2, 3]), Itself(loss=1, logits=[2, 3])):
        found, structure = _tree.flatten(tree)
        made = _tree.unflatten(structure, [4, 5, 6])
        assert type(made) is type(tree)
        assert made == {**tree, "loss": 4, "logits": [5, 6]}
        assert (made.loss, made.logits) == (4, [5, 6])
        assert (tree.loss, tree.logits) == (1, [2, 3])
        assert found == [1, 2, 3]
    assert _tree.unflatten(_tree.flatten(Named("text", loss=1))[1], [0]).kind == "text"


def test_structures_of_dicts_of_a_class_are_equal_by_class_and_attributes() -> None:
    def structure(tree: Any) -> _tree.Structure:
        return _tree.flatten(tree)[1]

    assert structure(Named("text", loss=1)) == structure(Named("text", loss=2))
    assert hash(structure(Named("text", loss=1))) == hash(structure(Named("text", loss=2)))
    assert structure(Named("text", loss=1)) != structure(Named("image", loss=1))
    assert structure(Named("text", loss=1)) != structure({"loss": 1})
    copied = pickle.loads(pickle.dumps(structure(Named("text", loss=1))))
    assert copied == structure(Named("text", loss=1))


def test_ordered_and_default_dicts_stay_what_they_are() -> None:
    ordered = _tree.unflatten(_tree.flatten(OrderedDict(b=1, a=2))[1], [3, 4])
    assert ordered == OrderedDict(b=3, a=4)
    counted = _tree.unflatten(_tree.flatten(defaultdict(list, a=1))[1], [3])
    assert type(counted) is defaultdict
    assert counted["new"] == []


def test_equal_keys_of_other_types_are_other_structures() -> None:
    one, float_one, true = (_tree.flatten({key: 0})[1] for key in (1, 1.0, True))
    assert one == _tree.flatten({1: 0})[1] != float_one != true != one
    assert pickle.loads(pickle.dumps(float_one)) == float_one
    assert [type(key) for key in _tree.unflatten(true, [5])] == [bool]


def test_a_dict_whose_keys_are_no_names_is_one_argument() -> None:
    assert _tree.arguments({0: 1, "a": 2}) == (({0: 1, "a": 2},), {})
    assert _tree.arguments({0: 1}, lambda x: x) == (({0: 1},), {})
