"""What a handler may ask of its node, and what it is told when it is not there."""

from dataclasses import replace

import numpy as np
import pytest

import lamina as lm
from lamina.convert.onnx import HANDLERS, OnnxError, OnnxNode, UnknownValueError
from lamina.convert.onnx.node import converts, numbers
from lamina.graph import trace


def node(*inputs: object, **attributes: object) -> OnnxNode:
    names = tuple(f"i{k}" for k in range(len(inputs)))
    return OnnxNode("Op", "n", 22, attributes, inputs, names, ("y", ""), lambda body, given: [])


def test_inputs_and_attributes() -> None:
    x = lm.tensor([1.0, 2.0])
    made = node(x, None, axis=3)
    assert made.input(0) is x
    assert made.optional(1) is None
    assert made.optional(7) is None
    assert (made.get("axis"), made.get("other", 5), made.needed("axis")) == (3, 5, 3)
    assert (made.asks(0), made.asks(1), made.asks(2)) == (True, False, False)
    with pytest.raises(OnnxError, match=r"Op 'n': needs input 1"):
        made.input(1)
    with pytest.raises(OnnxError, match=r"Op 'n': needs the attribute mode"):
        made.needed("mode")


def test_a_node_shows_what_it_is_and_not_the_graph_around_it() -> None:
    made = replace(node(None, axis=3), values={"x": 1}, declared={0: 1}, makers={"x": 2})
    mode = "Mode(training=None, batch_statistics=False, write=None, drop=None)"
    assert repr(made) == (
        "OnnxNode(operator='Op', name='n', opset=22, attributes={'axis': 3}, inputs=(None,), input_names=('i0',), "
        f"outputs=('y', ''), mode={mode})"
    )


def test_known_numbers() -> None:
    made = node(lm.tensor([2, 3]), lm.tensor(4.0), axes=[1])
    assert made.integers(0) == (2, 3)
    assert made.integers(5, "axes") == (1,)
    assert made.integers(5, "sizes") is None
    assert made.number(1) == 4.0
    assert made.number(5, 7) == 7
    with pytest.raises(OnnxError, match=r"input 0 must be one number, got shape \(2,\)"):
        made.number(0)


def test_a_traced_value_is_unknown_and_a_constant_made_of_constants_is_known() -> None:
    def program(x: object) -> object:
        with pytest.raises(UnknownValueError, match=r"Op 'n': input 0 \('i0'\) decides shapes"):
            node(x).known(0)
        assert numbers(x) is None
        assert numbers(lm.graph.constant(np.arange(3)) * 2).tolist() == [0, 2, 4]
        return x

    trace(program, lm.tensor([1.0]))


def test_a_handler_is_entered_under_its_domain() -> None:
    @converts("TestOnly", domain="tests")
    def handler(made: OnnxNode) -> object:
        return made.input(0)

    try:
        assert HANDLERS["tests", "TestOnly"] is handler
    finally:
        del HANDLERS["tests", "TestOnly"]
