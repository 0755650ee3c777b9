"""The language of patterns is data: frozen, comparable, with names checked where they are needed."""

import pytest

from lamina.backends.pattern import Either, MadeBy, either, made_by, operand
from lamina.ops.primitives import Add, Exp, MaxPool, Neg

x = operand("x")


def test_patterns_are_values() -> None:
    assert made_by(Exp, made_by(Neg, x)) == made_by(Exp, made_by(Neg, operand("x")))
    assert made_by(Exp, x) != made_by(Exp, operand("y"))
    assert hash(made_by(Exp, x)) == hash(made_by(Exp, x))


def test_classes_are_one_or_several() -> None:
    assert made_by(Exp).kinds == (Exp,)
    assert made_by(Exp | Neg).kinds == (Exp, Neg)


def test_parts_are_written_as_methods() -> None:
    pool = made_by(MaxPool, x, name="pool")
    assert (pool.index, pool.output(-1).index) == (0, -1)
    assert not pool.only_reader
    assert pool.read_once.only_reader
    assert pool.read_once.name == "pool"
    assert not pool.other_readers
    assert pool.read_elsewhere.other_readers
    assert isinstance(pool, MadeBy)
    assert either(pool, made_by(Add)) == Either((pool, made_by(Add)))


def test_an_output_of_a_nameless_node_is_an_error() -> None:
    with pytest.raises(ValueError, match="a node that is met twice needs a name"):
        made_by(MaxPool).output(1)
